"""Prediction -> JSON text by the published schema."""

from __future__ import annotations

from dataclasses import asdict

from planner.domain.flat_recipe import flat_recipe
from planner.domain.interval import Interval
from planner.domain.prediction import MemoryPrediction, Prediction, Uncertainty
from planner.domain.recipe import Number, Recipe
from planner.domain.scenario import Scenario
from planner.domain.stack import Stack
from planner.domain.term import PHASES, Phase, Term
from planner.report.prediction.explain import explanations
from planner.report.prediction.schema import (
    AssumptionPart,
    AtLengthPart,
    ByteIntervalPart,
    CoefficientPart,
    ExplanationPart,
    HardwarePart,
    HostPart,
    IntervalPart,
    JsonValue,
    LeverPart,
    MemoryPart,
    ModelPart,
    PredictionDocument,
    ScenarioPart,
    SettingPart,
    StackPart,
    TimePart,
    UncertaintyPart,
    UnsaidPart,
)
from planner.report.prediction.settled import settled_coefficients, words_of
from planner.report.prediction.subject import Subject, exit_code_of, level_of
from planner.report.render.json_document import document_text
from planner.version import __version__

_NUMBERS = ("micro_batch", "grad_accum", "seq_len", "tokens_per_sample", "lora_rank")


def to_json(subject: Subject) -> str:
    """The prediction as indented JSON, ending in a newline."""
    return document_text(prediction_document(subject))


def prediction_document(subject: Subject) -> PredictionDocument:
    """The prediction as the document that the schema describes."""
    prediction, scenario = subject.prediction, subject.scenario
    return PredictionDocument(
        version=__version__,
        verdict=prediction.verdict,
        exit_code=int(exit_code_of(prediction)),
        reason=prediction.reason,
        fits_probability=prediction.fits_probability,
        calibration=prediction.calibration,
        uncertainty=_uncertainty(prediction.uncertainty),
        warnings=list(dict.fromkeys((*scenario.warnings, *prediction.warnings))),
        scenario=_scenario(scenario),
        memory=_memory(prediction.memory),
        host=HostPart.model_validate(prediction.host),
        time=TimePart.model_validate(prediction.time) if prediction.time else None,
        assumptions=[AssumptionPart.model_validate(each) for each in scenario.assumptions],
        levers=None if subject.levers is None else [LeverPart.model_validate(each) for each in subject.levers],
        stacks=[StackPart.model_validate(each) for each in subject.stacks],
        run_at_length=None if subject.at_length is None else AtLengthPart.model_validate(subject.at_length),
        unsaid=None if subject.unsaid is None else [UnsaidPart.model_validate(each) for each in subject.unsaid],
        explanations=_explanations(prediction) if subject.explain else None,
        coefficients=_coefficients(subject) if subject.explain else None,
        switches=_switches(scenario.stack) if subject.explain else None,
    )


def _uncertainty(sure: Uncertainty | None) -> UncertaintyPart | None:
    if sure is None:
        return None
    return UncertaintyPart(
        nominal=sure.nominal,
        memory={level: _byte_interval(interval) for level, interval in sure.memory},
        step=IntervalPart.model_validate(sure.step) if sure.step else None,
        host=_byte_interval(sure.host) if sure.host else None,
        coverage=dict(sure.coverage),
        basis=sure.basis,
        extrapolates=list(sure.extrapolates),
    )


def _byte_interval(interval: Interval) -> ByteIntervalPart:
    return ByteIntervalPart(low=round(interval.low), high=round(interval.high))


def _scenario(scenario: Scenario) -> ScenarioPart:
    model, hardware = scenario.model, scenario.hardware
    return ScenarioPart(
        model=ModelPart(
            id=model.id,
            hub_id=model.hub_id,
            architecture=model.architecture,
            params=model.param_count,
            active_params=model.active_param_count,
            published_params=model.published_params,
            params_origin=model.params_origin,
            source=model.source,
        ),
        hardware=HardwarePart(
            gpu=hardware.gpu.id,
            gpus_per_node=hardware.gpus_per_node,
            nodes=hardware.nodes,
            visible_memory_bytes=hardware.gpu.visible_memory_bytes,
            gpu_reserved_bytes=hardware.gpu_reserved_bytes,
            link=hardware.link,
            host=hardware.host.id,
            host_memory_bytes=hardware.host.memory_bytes,
        ),
        recipe=_recipe(scenario.recipe),
        stack=scenario.stack.id,
        run=dict(asdict(scenario.run)),
    )


def _recipe(recipe: Recipe) -> dict[str, JsonValue | list[str]]:
    """The recipe as one flat table of what JSON holds."""
    flat = flat_recipe(recipe)
    flat |= {name: _real(flat[name]) for name in _NUMBERS if name in flat}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in flat.items()}


def _memory(memory: MemoryPrediction) -> MemoryPart:
    return MemoryPart.model_validate(
        {
            **{name: getattr(memory, name) for name in MemoryPart.model_fields if name != "terms"},
            "terms": [_term(term, memory.limiting_phase) for term in memory.terms],
        }
    )


def _term(term: Term, limiting_phase: Phase) -> dict[str, object]:
    return {
        **{name: getattr(term, name) for name in ("name", "label", "kind", "formula", "detail")},
        "bytes": term.n_bytes,
        "level": level_of(term),
        "phases": sorted(term.phases, key=PHASES.index),
        "at_peak": limiting_phase in term.phases,
    }


def _explanations(prediction: Prediction) -> list[ExplanationPart]:
    names = ("topic", "label", "amount", "formula", "detail")
    flat = ({**asdict(each.text), **{name: getattr(each, name) for name in names}} for each in explanations(prediction))
    return [ExplanationPart.model_validate(each) for each in flat]


def _coefficients(subject: Subject) -> list[CoefficientPart]:
    return [
        CoefficientPart(
            name=prior.name,
            value=value,
            unit=prior.unit,
            prior=prior.value,
            low=prior.low,
            high=prior.high,
            settled_by=settled_by,
            source=prior.source,
        )
        for prior, value, settled_by in settled_coefficients(subject.coefficients)
    ]


def _switches(stack: Stack) -> list[SettingPart]:
    return [
        SettingPart(name=name, value=words_of(stack, name), settled_by=settled_by, source=source)
        for name, settled_by, source in stack.settled
    ]


def _real(size: Number) -> int | float:
    number = float(size)
    return int(number) if number.is_integer() else number
