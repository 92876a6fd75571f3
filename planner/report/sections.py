"""The report from top to bottom: which sections, in which order, and the short ones themselves."""

from __future__ import annotations

from planner.domain.calibration import lengths_are_unknown
from planner.domain.hardware import Hardware
from planner.domain.prediction import Prediction, Verdict
from planner.domain.recipe import Recipe
from planner.domain.scenario import Assumption, Scenario
from planner.report.intervals import calibration_notes
from planner.report.layout import Column, Grid, Note, Row, Section, Tone
from planner.report.numbers import gib, plain_number, whole_percent
from planner.report.sections_memory import host_section, levels_section, phases_section, terms_section
from planner.report.sections_time import run_section, time_section
from planner.report.subject import Change, Subject, needs_changes, rests_on_unknown_host, shown_peak_bytes
from planner.units import format_count

_UNKNOWN_LENGTHS = (
    "Padded to the longest sample of each batch, and how long samples are is not said: intervals of memory are much wider than "
    "with --tokens-per-sample."
)
_CONFIG_SUFFIXES = (".yaml", ".yml", ".json")
VERDICTS: dict[Verdict, tuple[str, Tone]] = {
    "fits": ("FITS", "good"),
    "does_not_fit": ("DOES NOT FIT", "bad"),
    "uncertain": ("UNCERTAIN", "warn"),
    "host_memory_short": ("HOST RAM TOO SMALL", "bad"),
    "no_verdict": ("NO VERDICT", "warn"),
}


def build_sections(subject: Subject) -> tuple[Section, ...]:
    """All sections of one report, in reading order, empty ones left out."""
    prediction, scenario = subject.prediction, subject.scenario
    sections = (
        _verdict(prediction, scenario),
        _warnings(subject),
        Section("", (Note(job_line(scenario)),)),
        levels_section(prediction, scenario.hardware),
        terms_section(prediction),
        phases_section(prediction),
        host_section(prediction, scenario.hardware),
        time_section(prediction),
        run_section(prediction, scenario),
        _assumptions(scenario.assumptions),
        _unsaid(subject),
        _changes(subject),
        *_formulas(subject),
    )
    return tuple(section for section in sections if section.blocks)


def job_line(scenario: Scenario) -> str:
    """The job in one line: model, method, GPUs, sizes, stack."""
    model, batch = scenario.model, scenario.recipe.batch
    active = f", {format_count(model.active_param_count)} active" if model.is_moe else ""
    seq, micro, accum = (plain_number(size) for size in (batch.seq_len, batch.micro_batch, batch.grad_accum))
    parts = [
        f"{model.id} ({format_count(model.param_count)} parameters{active})",
        method_label(scenario.recipe),
        gpus_label(scenario.hardware),
        *_distribution(scenario.recipe),
        f"seq {seq} x micro-batch {micro} x accumulation {accum}",
        scenario.stack.id,
    ]
    return ", ".join(parts)


def method_label(recipe: Recipe) -> str:
    """What people call the method: ``full``, ``lora r=16``, ``qlora nf4+dq r=16``, ``lora on int8 r=16``."""
    if recipe.adapter is None:
        return recipe.method
    numerics, rank = recipe.numerics, f"r={plain_number(recipe.adapter.rank)}"
    if numerics.quantization == "none":
        return f"lora {rank}"
    if numerics.quantization in ("nf4", "fp4"):
        return f"qlora {numerics.quantization}{'+dq' if numerics.double_quant else ''} {rank}"
    return f"lora on {numerics.quantization} {rank}"


def gpus_label(hardware: Hardware) -> str:
    """``1 x NVIDIA RTX 4090``, or ``4 nodes x 8 x H100 SXM``."""
    nodes = f"{hardware.nodes} nodes x " if hardware.nodes > 1 else ""
    return f"{nodes}{hardware.gpus_per_node} x {hardware.gpu.name}"


def _distribution(recipe: Recipe) -> tuple[str, ...]:
    sharding = () if recipe.sharding == "none" else (recipe.sharding,)
    return sharding if recipe.offload == "none" else (*sharding, f"offload {recipe.offload}")


def _verdict(prediction: Prediction, scenario: Scenario) -> Section:
    word, tone = VERDICTS[prediction.verdict]
    if prediction.verdict == "fits" and rests_on_unknown_host(scenario, prediction):
        word, tone = f"FITS IF A NODE HAS {gib(prediction.host.required_per_node_bytes)} GiB OF RAM", "warn"
    memory = prediction.memory
    # What does not fit has no peak on this card; what counts then is how much it needs at once.
    short, peak_bytes = prediction.verdict == "does_not_fit", shown_peak_bytes(prediction)
    peak = f"{'needs' if short else 'peak'} {gib(peak_bytes)}"
    if memory.limit_bytes is None:
        size = f"{peak} GiB per GPU, limit unknown"
    elif memory.limit_bytes <= 0:
        size = f"{peak} GiB per GPU, nothing is left on the card"
    else:
        share = whole_percent(float(peak_bytes) / memory.limit_bytes)
        size = f"{peak} of {gib(memory.limit_bytes)} GiB per GPU ({share})"
    if prediction.fits_probability is not None:
        sure = f"P(fits) {whole_percent(prediction.fits_probability)}"
    else:
        sure = "P(fits) unknown" if prediction.uncertainty else "uncalibrated: point estimate only"
    head = (Note(f"{word}: {size}; {sure}", tone), Note(prediction.reason), *calibration_notes(prediction))
    guessed = prediction.uncertainty is not None and lengths_are_unknown(scenario)
    return Section("", (*head, Note(_UNKNOWN_LENGTHS, "warn")) if guessed else head)


def _warnings(subject: Subject) -> Section:
    # The estimate may repeat what the intake already warned about.
    texts = dict.fromkeys((*subject.scenario.warnings, *subject.prediction.warnings))
    return Section("", tuple(Note(f"Warning: {text}", "warn") for text in texts))


def _assumptions(assumptions: tuple[Assumption, ...]) -> Section:
    """Settings by origin, so that all of them take little room; notes follow, one a line."""
    groups: dict[str, list[str]] = {}
    for each in assumptions:
        origin, place = _split_place(each.origin)
        groups.setdefault(origin, []).append(f"{each.name}={each.value}{f' ({place})' if place else ''}")
    if not groups:
        return Section("", ())
    rows = tuple(Row((origin, ", ".join(settings))) for origin, settings in groups.items())
    notes = tuple(Note(f"{each.name}: {each.note}", "dim") for each in assumptions if each.note)
    return Section("Assumptions and their origins", (Grid((Column("origin"), Column("settings")), rows), *notes))


def _unsaid(subject: Subject) -> Section:
    """The first place to look where a measurement disagrees: what was taken without being said, and what else people run."""
    if not subject.unsaid:
        return Section("", ())
    columns = (Column("taken"), Column("otherwise"), Column("moves GiB", "right"), Column("tokens/s"), Column("then"))
    rows = []
    for each in subject.unsaid:
        speed = "unknown" if each.speed_ratio is None else f"x {each.speed_ratio:.2f}"
        moved = f"{'-' if each.moves_bytes < 0 else '+'}{gib(abs(each.moves_bytes))}"
        rows.append(Row((each.setting, each.flags, moved, speed, VERDICTS[each.verdict][0].lower())))
    return Section("What nobody said, and how far it moves the peak", (Grid(columns, tuple(rows)),))


def _formulas(subject: Subject) -> tuple[Section, ...]:
    if not subject.explain:
        return ()
    from planner.report.explain import formula_section
    from planner.report.settled import coefficient_section, switch_section

    return (
        formula_section(subject.prediction),
        coefficient_section(subject.coefficients),
        switch_section(subject.scenario.stack),
    )


def _split_place(origin: str) -> tuple[str, str]:
    """``job.toml:4`` -> ``job.toml``, ``line 4``; ``train.yaml:lora_r`` -> ``train.yaml``, ``lora_r``; others have no place."""
    file, _, place = origin.rpartition(":")
    if file and place.isdigit():
        return file, f"line {place}"
    return (file, place) if file.endswith(_CONFIG_SUFFIXES) else (origin, "")


def _changes(subject: Subject) -> Section:
    if subject.changes is None or not needs_changes(subject.prediction):
        return Section("", ())
    if not subject.changes:
        return Section("What would make it fit", (Note("No single change of this recipe that is modelled saves memory."),))
    columns = (Column("change"), Column("flags"), Column("saves GiB", "right"), Column("step time"), Column("then"))
    rows = tuple(_change_row(change) for change in subject.changes)
    enough = any(change.fits for change in subject.changes)
    note = () if enough else (Note("None of these is enough, nor any pair of them that was tried.", "warn"),)
    return Section("What would make it fit", (Grid(columns, rows), *note))


def _change_row(change: Change) -> Row:
    ratio = change.step_time_ratio
    time = "unknown" if ratio is None else f"x {ratio:.2f}"
    outcome = "fits" if change.fits else "still short"
    return Row((change.description, change.flags, gib(change.saves_bytes), time, outcome), "good" if change.fits else "plain")
