"""The report from top to bottom: which sections, in which order, and the short ones themselves."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from planner.domain.hardware import Hardware
from planner.domain.origin import split_place
from planner.domain.prediction import HostPrediction, Prediction, TimePrediction
from planner.domain.recipes.job_line import job_line
from planner.domain.recipes.recipe import Number
from planner.domain.scenario import Assumption
from planner.domain.term import PHASE_WORDS, PHASES, HostTerm, Phase, Term, TimeTerm
from planner.domain.uncertainty.scale import ISSUE_TERMS
from planner.report.prediction.advice import lever_section, sensitivity_section, stack_section
from planner.report.prediction.intervals import calibration_notes, level_interval, step_interval
from planner.report.prediction.step_chart import failed_section, timeline_section
from planner.report.prediction.subject import (
    Level,
    Subject,
    level_of,
    peaks_to_show,
    terms_at_peak,
    terms_elsewhere,
)
from planner.report.prediction.verdict import VERDICTS, doubts, uses_text, verdict_note
from planner.report.render.layout import (
    Block,
    Column,
    Grid,
    Note,
    Row,
    Section,
    Segment,
    StackedBar,
)
from planner.report.render.numbers import (
    duration,
    duration_range,
    gib,
    percent,
    rate,
    whole_percent,
)
from planner.units import MILLI_S, plain_number

__all__ = ["VERDICTS", "build_sections", "explained_sections"]


def build_sections(subject: Subject) -> tuple[Section, ...]:
    """All sections of the whole report, in reading order, empty ones left out;
    the verdict is the first line and the last.
    """
    prediction, scenario = subject.prediction, subject.scenario
    sections = (
        _verdict(subject),
        Section("", tuple(Note(f"Warning: {text}", "warn") for text in doubts(subject))),
        Section("", (Note(job_line(scenario)),)),
        levels_section(prediction, scenario.hardware),
        failed_section(subject),
        terms_section(prediction),
        phases_section(prediction),
        timeline_section(subject),
        host_section(prediction, scenario.hardware),
        time_section(prediction),
        run_section(subject),
        lever_section(subject),
        stack_section(subject),
        sensitivity_section(subject),
        _assumptions(scenario.assumptions),
        *_formulas(subject),
        Section("", (verdict_note(subject),)),
    )
    return tuple(section for section in sections if section.blocks)


def explained_sections(subject: Subject) -> tuple[Section, ...]:
    """How the numbers of one answer are made: totals, terms at the peak, and the formula of each of these,
    of host RAM and of the step's time.
    """
    from planner.report.prediction.explain import formula_section

    prediction = subject.prediction
    more = Note("--explain --details: other phases, and every coefficient and switch with its source", "dim")
    sections = (
        _verdict(subject),
        Section("", tuple(Note(f"Warning: {text}", "warn") for text in doubts(subject))),
        Section("", (Note(job_line(subject.scenario)),)),
        levels_section(prediction, subject.scenario.hardware),
        terms_section(prediction),
        formula_section(prediction, at_peak=True),
        Section("", (more, verdict_note(subject))),
    )
    return tuple(section for section in sections if section.blocks)


def _verdict(subject: Subject) -> Section:
    prediction = subject.prediction
    reason = Note(f"{prediction.reason[:1].upper()}{prediction.reason[1:]}.")
    return Section(
        "", (verdict_note(subject), Note(uses_text(subject)), reason, *calibration_notes(prediction))
    )


def _assumptions(assumptions: tuple[Assumption, ...]) -> Section:
    """Settings by origin, so that all of them take little room; notes follow, one a line."""
    groups: dict[str, list[str]] = {}
    for each in assumptions:
        origin, place = split_place(each.origin)
        shown = f" ({'line ' if place.isdigit() else ''}{place})" if place else ""
        groups.setdefault(origin, []).append(f"{each.name}={each.value}{shown}")
    if not groups:
        return Section("", ())
    rows = tuple(Row((origin, ", ".join(settings))) for origin, settings in groups.items())
    notes = tuple(Note(f"{each.name}: {each.note}", "dim") for each in assumptions if each.note)
    return Section(
        "Assumptions and their origins", (Grid((Column("origin"), Column("settings")), rows), *notes)
    )


def _formulas(subject: Subject) -> tuple[Section, ...]:
    if not subject.explain:
        return ()
    from planner.report.prediction.explain import formula_section
    from planner.report.prediction.value_sources import coefficient_section, switch_section

    return (
        formula_section(subject.prediction),
        coefficient_section(subject.coefficients),
        switch_section(subject.scenario.stack),
    )


_KEYS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
_TERM_COLUMNS = (
    Column(""),
    Column("term"),
    Column("GiB", "right"),
    Column("share", "right"),
    Column("kind"),
)
# Ends the name of a phase in later micro-steps.
_LATER = "_2"
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
    columns = (
        Column("peak per GPU"),
        Column("GiB", "right"),
        *interval,
        Column("of limit", "right"),
        Column("what it counts"),
    )
    rows = []
    for name, size, meaning in levels:
        ranges = (level_interval(prediction, name),) if sure else ()
        rows.append(Row((name, gib(size), *ranges, _share_of_limit(size, memory.limit_bytes), meaning)))
    needs = ("needs", gib(memory.must_have_bytes), *(("",) if sure else ()))
    meaning = "with less than this it fails; the cache shrinks to it"
    rows.append(Row((*needs, _share_of_limit(memory.must_have_bytes, memory.limit_bytes), meaning), "strong"))
    limit = "unknown" if memory.limit_bytes is None else gib(memory.limit_bytes)
    rows.append(Row(("limit", limit, *(("",) if sure else ()), "", _limit_meaning(hardware)), "strong"))
    blocks: list[Block] = [Grid(columns, tuple(rows))]
    larger = _on_a_larger_card(prediction)
    blocks += [Note(larger, "dim")] if larger else []
    return Section("GPU memory in GiB (2^30 bytes)", tuple(blocks))


def _on_a_larger_card(prediction: Prediction) -> str:
    """What the peaks would be with more memory, where this card lacks it."""
    memory = prediction.memory
    if prediction.verdict == "does_not_fit":
        return (
            "The first three are what a card with enough memory would show; on this one the job runs "
            "out of memory first."
        )
    if float(memory.uncapped_driver_bytes) > float(memory.driver_peak_bytes):
        uncapped = gib(memory.uncapped_driver_bytes)
        return (
            f"A larger card would show {uncapped} GiB; on this one the allocator returns cached blocks first."
        )
    return ""


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
        rows.append(Row((key, term.label, gib(term.n_bytes), share, term.kind), colour=index))
        if index + 1 == len(terms) or level_of(terms[index + 1]) != level_of(term):
            rows.append(
                Row(("", f"= {level_of(term)}", gib(running), percent(running / total), ""), "strong")
            )
    blocks: list[Block] = [StackedBar(segments, memory.limit_bytes), Grid(_TERM_COLUMNS, tuple(rows))]
    if elsewhere := terms_elsewhere(prediction):
        blocks += [Note(""), Grid(_ELSEWHERE_COLUMNS, tuple(_elsewhere_row(term) for term in elsewhere))]
    return Section(f"Terms at the peak ({PHASE_WORDS[memory.limiting_phase]})", tuple(blocks))


def phases_section(prediction: Prediction) -> Section:
    """Peak of every phase at the three levels; the limiting one is marked.
    A full fine-tune adds no adapters.
    """
    memory = prediction.memory
    has_adapters = any(term.name == "adapters" for term in memory.terms)
    rows = []
    for peak in memory.phases:
        if peak.phase == "adapters" and not has_adapters:
            continue
        limiting = peak.phase == memory.limiting_phase
        sizes = (gib(peak.allocated_bytes), gib(peak.reserved_bytes), gib(peak.driver_bytes))
        share = _share_of_limit(peak.driver_bytes, memory.limit_bytes)
        cells = (PHASE_WORDS[peak.phase], *sizes, share, "<- peak" if limiting else "")
        rows.append(Row(cells, "strong" if limiting else "plain"))
    return Section("Peak of each phase in GiB", (Grid(_PHASE_COLUMNS, tuple(rows)),) if rows else ())


def host_section(prediction: Prediction, hardware: Hardware) -> Section:
    """Host RAM per process by term, and per node against what the host has."""
    host = prediction.host
    columns = (Column("per process"), Column("GiB", "right"), Column(""))
    rows = [_host_row(term) for term in host.terms if float(term.n_bytes) >= 1]
    rows.append(Row(("= per process", gib(host.per_process_bytes), ""), "strong"))
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
    share = (
        whole_percent(float(host.required_per_node_bytes) / host.available_bytes)
        if host.available_bytes > 0
        else "all"
    )
    return f"{share} of the {gib(host.available_bytes)} GiB that it has"


def _limit_meaning(hardware: Hardware) -> str:
    visible = hardware.gpu.visible_memory_bytes
    if visible is None:
        return f"the memory CUDA sees on {hardware.gpu.name} is unknown"
    if hardware.gpu_reserved_bytes:
        return (
            f"{gib(visible)} GiB visible to CUDA less {gib(hardware.gpu_reserved_bytes)} GiB taken by others"
        )
    return "visible to CUDA on this card"


def _share_of_limit(size: Number, limit_bytes: int | None) -> str:
    return whole_percent(float(size) / limit_bytes) if limit_bytes else ""


def _elsewhere_row(term: Term) -> Row:
    return Row((term.label, gib(term.n_bytes), term.kind, _when(term.phases)), "dim")


def _when(phases: Collection[Phase]) -> str:
    """Phases in their order; one that is there in every micro-step is named once."""
    words: dict[str, None] = {}
    for phase in sorted(phases, key=PHASES.index):
        name = phase.removesuffix(_LATER)
        both = {name, name + _LATER} <= set(phases)
        words[name if both else PHASE_WORDS[phase]] = None
    return "; ".join(words)


def _host_row(term: HostTerm) -> Row:
    return Row((term.name.replace("_", " "), gib(term.n_bytes), "pinned" if term.pinned else ""))


_COLUMNS = (
    Column("part"),
    Column("ms", "right"),
    Column("share", "right"),
    Column("overlapped ms", "right"),
)

_HOST_BOUND_SHARE = 0.1
_HOST_BOUND = (
    "The host sets the pace: kernels end before it has started the next ones.  How long it takes for one is "
    "assumed, and hosts differ by a factor of two or more.  A measured step of yours tells: plan calibrate."
)


def time_section(prediction: Prediction) -> Section:
    """Step time with its parts, samples and tokens per second, model FLOP utilisation."""
    time = prediction.time
    if time is None:
        return Section("Step time", (Note(f"Not predicted: {prediction.untimed}.", "warn"),))
    rows = [_row(term, float(time.step_s)) for term in time.terms if float(term.seconds) > 0]
    rows.append(Row(("= step", _ms(float(time.step_s)), "", ""), "strong"))
    interval = step_interval(prediction)
    notes: tuple[Note, ...] = (Note(f"{interval} of the step."),) if interval else ()
    if is_host_bound(time):
        notes += (Note(_HOST_BOUND, "dim"),)
    return Section("Time of one optimizer step", (Grid(_COLUMNS, tuple(rows)), Note(_rates(time)), *notes))


def is_host_bound(time: TimePrediction) -> bool:
    """Whether a tenth of the step or more is kernels waiting for the host that starts them."""
    issued = ISSUE_TERMS - {"module_walks"}
    waits = (term.seconds - term.overlapped_s for term in time.terms if term.name in issued)
    return float(sum(waits)) > _HOST_BOUND_SHARE * float(time.step_s)


def step_note(prediction: Prediction) -> Note:
    """Time of a step with its interval, the rates, and whether the host decides it, in a line."""
    time = prediction.time
    if time is None:
        return Note(f"Step time is not predicted: {prediction.untimed}.", "warn")
    interval = step_interval(prediction)
    when = " with enough memory" if prediction.verdict == "does_not_fit" else ""
    host = "; the host sets the pace, at an assumed speed" if is_host_bound(time) else ""
    return Note(
        f"Step{when}: {duration(time.step_s)}{f' ({interval})' if interval else ''}; "
        f"{rate(time.tokens_per_s)} tokens/s{host}"
    )


def data_notes(subject: Subject) -> Iterator[Note]:
    """How long samples are, how much of a batch is padding, and the longest batch;
    nothing where no data set was read.
    """
    batch, time = subject.scenario.recipe.batch, subject.prediction.time
    if batch.lengths is None:
        return
    longest = min(batch.lengths.tokens[-1], float(batch.seq_len))
    tokens = int(batch.seq_len if batch.padding != "longest" else longest)
    text = (
        f"Data: {batch.lengths.n_sequences:,} sequences of "
        f"{batch.lengths.mean_tokens(batch.seq_len):,.0f} tokens on average"
    )
    if time is not None:
        text += f"; padding {percent(1 - float(time.tokens_per_s) / float(time.padded_tokens_per_s))}"
    yield Note(f"{text}; longest batch {int(batch.rows)} x {tokens:,}")


def run_section(subject: Subject) -> Section:
    """Run time and cost, where the user says how many samples there are."""
    run, n_gpus = subject.scenario.run, subject.scenario.hardware.world_size
    notes = (*run_notes(subject), *data_notes(subject))
    if notes and run.eval_samples is not None:
        notes += (Note(f"With {run.eval_samples:,} samples evaluated after each epoch."),)
    if notes and run.usd_per_gpu_hour is not None:
        notes += (
            Note(f"{n_gpus} GPU{'s' if n_gpus > 1 else ''} at {run.usd_per_gpu_hour:g} USD an hour each."),
        )
    return Section("Whole run", notes)


def asks_for_run(subject: Subject) -> bool:
    """Whether the user says how many samples there are, and times are predicted."""
    return subject.prediction.time is not None and subject.prediction.time.run_time_s is not None


def run_notes(subject: Subject) -> Iterator[Note]:
    """Run time and cost, and what both are at another length of samples;
    nothing where they are not asked for.
    """
    time, run, sure = subject.prediction.time, subject.scenario.run, subject.prediction.uncertainty
    if time is None or run.n_samples is None or time.run_time_s is None:
        return
    run_s, other = float(time.run_time_s), subject.at_length
    epochs = "" if run.epochs == 1 else f" x {plain_number(run.epochs)} epochs"
    text = f"Run: {run.n_samples:,}{' full' if other else ''} samples{epochs}: {duration(run_s)}"
    if sure is not None and sure.step is not None:
        low, high = (run_s * float(edge) / float(time.step_s) for edge in (sure.step.low, sure.step.high))
        text += f" ({duration_range(low, high)})"
    yield Note(f"{text}{', cost: add --price' if time.cost_usd is None else _usd(float(time.cost_usd))}")
    if other is not None:
        usd = "" if other.cost_usd is None else _usd(other.cost_usd)
        yield Note(
            f"With --tokens-per-sample {other.tokens_per_sample}, for example: "
            f"{duration(other.run_time_s)}{usd}"
        )


def _usd(amount: float) -> str:
    return ", <0.01 USD" if 0 < amount < 0.01 else f", {amount:,.2f} USD"


def _row(term: TimeTerm, step_s: float) -> Row:
    hidden = float(term.overlapped_s)
    visible = max(float(term.seconds) - hidden, 0.0)
    share = percent(visible / step_s) if step_s > 0 else ""
    hidden_ms = _ms(hidden) if hidden > 0 else ""
    return Row((term.name.replace("_", " "), _ms(float(term.seconds)), share, hidden_ms))


def _rates(time: TimePrediction) -> str:
    mfu = "" if time.mfu is None else f", model FLOP utilisation {percent(float(time.mfu))}"
    tokens = f"{rate(time.tokens_per_s)} real tokens/s"
    return (
        f"{duration(time.step_s)} per step; {rate(time.samples_per_s)} samples/s, {tokens}, "
        f"{rate(time.padded_tokens_per_s)} padded tokens/s{mfu}."
    )


def _ms(seconds: float) -> str:
    return rate(seconds / MILLI_S)
