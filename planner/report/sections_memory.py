"""Sections about memory: the three levels, the terms at the peak, the peak of each phase, host RAM."""

from __future__ import annotations

from planner.domain.hardware import Hardware
from planner.domain.prediction import HostPrediction, Prediction
from planner.domain.recipe import Number
from planner.domain.term import PHASE_WORDS, PHASES, HostTerm, Term
from planner.report.intervals import level_interval
from planner.report.layout import Block, Column, Grid, Note, Row, Section, Segment, StackedBar
from planner.report.numbers import gib, percent, whole_percent
from planner.report.subject import Level, level_of, peaks_to_show, terms_at_peak, terms_elsewhere

_KEYS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
_TERM_COLUMNS = (
    Column(""),
    Column("term"),
    Column("GiB", "right"),
    Column("share", "right"),
    Column("kind"),
    Column("formula in planner.memory", wide_only=True),
)
_ELSEWHERE_COLUMNS = (Column("not at the peak"), Column("GiB", "right"), Column("kind"), Column("when"))
_PHASE_COLUMNS = (
    Column("phase"),
    *(Column(title, "right") for title in ("allocated", "reserved", "driver", "of limit")),
    Column(""),
)


def levels_section(prediction: Prediction, hardware: Hardware) -> Section:
    """Allocated, reserved and driver peak against what the job may use."""
    memory = prediction.memory
    peaks = peaks_to_show(prediction)
    levels: tuple[tuple[Level, Number, str], ...] = (
        ("allocated", peaks.allocated_bytes, "live tensors: torch.cuda.max_memory_allocated"),
        ("reserved", peaks.reserved_bytes, "with the allocator's cache: torch.cuda.max_memory_reserved"),
        ("driver", peaks.driver_bytes, "with context, libraries, NCCL: nvidia-smi"),
    )
    sure = prediction.uncertainty
    interval = (Column(f"{whole_percent(sure.nominal)} interval", "right"),) if sure else ()
    columns = (Column("peak per GPU"), Column("GiB", "right"), *interval, Column("of limit", "right"), Column("what it counts"))
    rows = []
    for name, size, meaning in levels:
        ranges = (level_interval(prediction, name),) if sure else ()
        rows.append(Row((name, gib(size), *ranges, _share_of_limit(size, memory.limit_bytes), meaning)))
    needs = ("needs at least", gib(memory.must_have_bytes), *(("",) if sure else ()))
    meaning = "with less than this it fails; the cache shrinks to it"
    rows.append(Row((*needs, _share_of_limit(memory.must_have_bytes, memory.limit_bytes), meaning), "strong"))
    limit = "unknown" if memory.limit_bytes is None else gib(memory.limit_bytes)
    rows.append(Row(("limit", limit, *(("",) if sure else ()), "", _limit_meaning(hardware)), "strong"))
    blocks: list[Block] = [Grid(columns, tuple(rows))]
    if prediction.verdict == "does_not_fit":
        blocks.append(
            Note(
                "The first three are what a card with room would show; on this one the job runs out of memory first.",
                "dim",
            )
        )
    elif float(memory.uncapped_driver_bytes) > float(memory.driver_peak_bytes):
        uncapped = gib(memory.uncapped_driver_bytes)
        blocks.append(
            Note(f"A larger card would show {uncapped} GiB; on this one the allocator returns cached blocks first.", "dim")
        )
    return Section("GPU memory in GiB (2^30 bytes)", tuple(blocks))


def terms_section(prediction: Prediction) -> Section:
    """The stacked bar of the limiting phase and the table of all terms; its letters are those of the bar."""
    memory, terms = prediction.memory, terms_at_peak(prediction)
    total = sum(float(term.n_bytes) for term in terms)
    keys = [_KEYS[index % len(_KEYS)] for index in range(len(terms))]
    segments = tuple(Segment(key, float(term.n_bytes)) for key, term in zip(keys, terms, strict=True))
    rows: list[Row] = []
    running = 0.0
    for index, (key, term) in enumerate(zip(keys, terms, strict=True)):
        running += float(term.n_bytes)
        share = percent(float(term.n_bytes) / total)
        rows.append(Row((key, term.label, gib(term.n_bytes), share, term.kind, _short(term.formula)), colour=index))
        if index + 1 == len(terms) or level_of(terms[index + 1]) != level_of(term):
            rows.append(Row(("", f"= {level_of(term)}", gib(running), percent(running / total), "", ""), "strong"))
    blocks: list[Block] = [StackedBar(segments, memory.limit_bytes), Grid(_TERM_COLUMNS, tuple(rows))]
    if elsewhere := terms_elsewhere(prediction):
        blocks += [Note(""), Grid(_ELSEWHERE_COLUMNS, tuple(_elsewhere_row(term) for term in elsewhere))]
    return Section(f"Terms at the peak ({PHASE_WORDS[memory.limiting_phase]})", tuple(blocks))


def phases_section(prediction: Prediction) -> Section:
    """Peak of every phase at the three levels; the limiting one is marked.  A full fine-tune adds no adapters."""
    memory = prediction.memory
    has_adapters = any(term.name == "adapters" for term in memory.terms)
    rows = []
    for peak in memory.phases:
        if peak.phase == "adapters" and not has_adapters:
            continue
        limiting = peak.phase == memory.limiting_phase
        sizes = (gib(peak.allocated_bytes), gib(peak.reserved_bytes), gib(peak.driver_bytes))
        share = _share_of_limit(peak.driver_bytes, memory.limit_bytes)
        cells = (PHASE_WORDS[peak.phase], *sizes, share, "<- limits" if limiting else "")
        rows.append(Row(cells, "strong" if limiting else "plain"))
    return Section("Peak of each phase in GiB", (Grid(_PHASE_COLUMNS, tuple(rows)),) if rows else ())


def host_section(prediction: Prediction, hardware: Hardware) -> Section:
    """Host RAM per process by term, and per node against what the host has."""
    host = prediction.host
    columns = (Column("per process"), Column("GiB", "right"), Column(""), Column("formula in planner.memory", wide_only=True))
    rows = [_host_row(term) for term in host.terms if float(term.n_bytes) >= 1]
    rows.append(Row(("= per process", gib(host.per_process_bytes), "", ""), "strong"))
    processes = f"{hardware.gpus_per_node} process{'es' if hardware.gpus_per_node > 1 else ''}"
    needs = Note(f"A node ({processes}) needs {gib(host.required_per_node_bytes)} GiB; {_against(host)}.")
    blocks: tuple[Block, ...] = (Grid(columns, tuple(rows)), needs)
    if (reclaimable := host.reclaimable_per_node_bytes) >= 1:
        given_back = "mapped files, which the system gives back when RAM is short, so they are not judged"
        blocks += (Note(f"It uses up to {gib(reclaimable)} GiB more for {given_back}."),)
    return Section("Host RAM in GiB", blocks)


def _against(host: HostPrediction) -> str:
    """What is needed against what there is."""
    if host.available_bytes is None:
        return "how much it has is not known, so this is not judged (--host-memory)"
    share = whole_percent(float(host.required_per_node_bytes) / host.available_bytes) if host.available_bytes > 0 else "all"
    return f"{share} of the {gib(host.available_bytes)} GiB that it has"


def _limit_meaning(hardware: Hardware) -> str:
    visible = hardware.gpu.visible_memory_bytes
    if visible is None:
        return f"the memory CUDA sees on {hardware.gpu.name} is unknown"
    if hardware.gpu_reserved_bytes:
        return f"{gib(visible)} GiB visible to CUDA less {gib(hardware.gpu_reserved_bytes)} GiB taken by others"
    return "visible to CUDA on this card"


def _share_of_limit(size: Number, limit_bytes: int | None) -> str:
    return whole_percent(float(size) / limit_bytes) if limit_bytes else ""


def _elsewhere_row(term: Term) -> Row:
    phases = "; ".join(PHASE_WORDS[phase] for phase in sorted(term.phases, key=PHASES.index))
    return Row((term.label, gib(term.n_bytes), term.kind, phases), "dim")


def _host_row(term: HostTerm) -> Row:
    return Row((term.name.replace("_", " "), gib(term.n_bytes), "pinned" if term.pinned else "", _short(term.formula)))


def _short(formula: str) -> str:
    return formula.removeprefix("planner.memory.")
