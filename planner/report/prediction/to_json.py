"""Prediction -> JSON text by the published schema."""

from __future__ import annotations

from dataclasses import asdict

from planner.documents import document_text
from planner.domain.recipes.flat_recipe import flat_recipe, values_without_column
from planner.domain.recipes.recipe import Batch, Number, Recipe
from planner.domain.stack import Stack
from planner.domain.term import Phase, Term
from planner.report.prediction.document import JsonValue, MemoryPart, PredictionDocument
from planner.report.prediction.explain import explanations
from planner.report.prediction.subject import Subject, exit_code_of, level_of
from planner.report.prediction.value_sources import settled_coefficients, words_of
from planner.version import __version__

_NUMBERS = ("micro_batch", "grad_accum", "seq_len", "tokens_per_sample", "lora_rank")


def to_json(subject: Subject) -> str:
    """The prediction as indented JSON, ending in a newline."""
    return document_text(prediction_document(subject))


def prediction_document(subject: Subject) -> PredictionDocument:
    """The prediction as the document that the schema describes."""
    prediction, scenario, memory = subject.prediction, subject.scenario, subject.prediction.memory
    shared = ("verdict", "reason", "fits_probability", "calibration", "uncertainty", "host", "time")
    return PredictionDocument.model_validate(
        {
            "version": __version__,
            **{name: getattr(prediction, name) for name in shared},
            "exit_code": int(exit_code_of(prediction)),
            "warnings": subject.warnings,
            "scenario": {
                "model": scenario.model,
                "hardware": scenario.hardware,
                "recipe": _recipe(scenario.recipe),
                "stack": scenario.stack.id,
                "run": asdict(scenario.run),
                "data": _data(scenario.recipe.batch),
            },
            "memory": {
                **{name: getattr(memory, name) for name in MemoryPart.model_fields},
                "terms": [_term(term, memory.limiting_phase) for term in memory.terms],
            },
            "assumptions": scenario.assumptions,
            "levers": subject.levers,
            "stacks": subject.stacks,
            "run_at_length": subject.at_length,
            "unsaid": subject.unsaid,
            "explanations": explanations(prediction) if subject.explain else None,
            "coefficients": settled_coefficients(subject.coefficients) if subject.explain else None,
            "switches": _switches(scenario.stack) if subject.explain else None,
        }
    )


def _recipe(recipe: Recipe) -> dict[str, JsonValue | list[str]]:
    """The recipe as one flat table of what JSON holds; what only some jobs have, where they have it."""
    flat = flat_recipe(recipe)
    flat |= {name: value for name, value in values_without_column(recipe).items() if value not in (None, ())}
    flat |= {name: _real(flat[name]) for name in _NUMBERS if name in flat}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in flat.items()}


def _data(batch: Batch) -> dict[str, float] | None:
    if batch.lengths is None:
        return None
    return {
        "n_sequences": batch.lengths.n_sequences,
        "mean_tokens": float(batch.lengths.mean_tokens(batch.seq_len)),
        "longest_tokens": min(batch.lengths.tokens[-1], float(batch.seq_len)),
    }


def _term(term: Term, limiting_phase: Phase) -> dict[str, object]:
    shown = {name: getattr(term, name) for name in ("name", "label", "kind", "phases", "formula", "detail")}
    return {**shown, "bytes": term.n_bytes, "level": level_of(term), "at_peak": limiting_phase in term.phases}


def _switches(stack: Stack) -> list[dict[str, str]]:
    return [
        {"name": name, "value": words_of(stack, name), "settled_by": settled_by, "source": source}
        for name, settled_by, source in stack.settled
    ]


def _real(size: Number) -> int | float:
    number = float(size)
    return int(number) if number.is_integer() else number
