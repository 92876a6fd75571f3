"""The report from top to bottom: which sections, in which order, and the short ones themselves."""

from __future__ import annotations

from planner.domain.hardware import Hardware
from planner.domain.recipe import Recipe
from planner.domain.scenario import Assumption, Scenario
from planner.report.intervals import calibration_notes
from planner.report.layout import Column, Grid, Note, Row, Section
from planner.report.numbers import plain_number
from planner.report.sections_choices import lever_section, sensitivity_section, stack_section
from planner.report.sections_memory import host_section, levels_section, phases_section, terms_section
from planner.report.sections_time import run_section, time_section
from planner.report.subject import Subject
from planner.report.verdict import VERDICTS, doubts, uses_text, verdict_note
from planner.units import format_count

__all__ = ["VERDICTS", "build_sections", "gpus_label", "job_line", "method_label"]

_CONFIG_SUFFIXES = (".yaml", ".yml", ".json")


def build_sections(subject: Subject) -> tuple[Section, ...]:
    """All sections of the whole report, in reading order, empty ones left out; the verdict is the first line and the last."""
    prediction, scenario = subject.prediction, subject.scenario
    sections = (
        _verdict(subject),
        Section("", tuple(Note(f"Warning: {text}", "warn") for text in doubts(subject))),
        Section("", (Note(job_line(scenario)),)),
        levels_section(prediction, scenario.hardware),
        terms_section(prediction),
        phases_section(prediction),
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


def short_job_line(scenario: Scenario) -> str:
    """The job in fewer words, with the card by the name to type."""
    batch, hardware = scenario.recipe.batch, scenario.hardware
    accum = [] if float(batch.grad_accum) == 1 else [f"accumulation {plain_number(batch.grad_accum)}"]
    nodes = f"{hardware.nodes} nodes x " if hardware.nodes > 1 else ""
    parts = [
        scenario.model.id,
        method_label(scenario.recipe).replace("+dq", ""),
        f"seq {plain_number(batch.seq_len)}",
        f"batch {plain_number(batch.micro_batch)}",
        *accum,
        f"{nodes}{hardware.gpus_per_node} x {hardware.gpu.id}",
        scenario.stack.id,
        *_distribution(scenario.recipe),
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
    sharding = (recipe.sharding.name,) if recipe.sharding.communicates else ()
    return sharding if recipe.offload == "none" else (*sharding, f"offload {recipe.offload}")


def _verdict(subject: Subject) -> Section:
    prediction = subject.prediction
    reason = Note(f"{prediction.reason[:1].upper()}{prediction.reason[1:]}.")
    return Section("", (verdict_note(subject), Note(uses_text(subject)), reason, *calibration_notes(prediction)))


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
