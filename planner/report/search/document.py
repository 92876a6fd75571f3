"""The JSON form of a search, ``planner/search@1``: these models write it and their JSON Schema documents it.

Bytes are integers, times are seconds, fractions run from 0 to 1.  ``null`` means unknown or not asked.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from planner.domain.flat_recipe import flat_recipe
from planner.domain.prediction import Verdict
from planner.domain.term import Phase
from planner.report.prediction.schema import ByteIntervalPart, Bytes, IntervalPart, LeverPart, MaybeBytes, Real
from planner.report.render.json_document import document_text
from planner.report.search.sections import exit_code
from planner.searching.answer import Answer, Group, Quantity
from planner.searching.attempt import Tried
from planner.version import __version__

SEARCH_SCHEMA_ID: Final = "planner/search@1"


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, from_attributes=True)


class RecipePart(_Part):
    """One recipe with what ``plan`` says of it; ``arguments`` are the words after ``plan`` that ask for it again.

    ``sample_s``: seconds of the whole job per sample; ``sample_usd``: US dollars per sample, null without ``--price``.
    """

    arguments: list[str]
    gpu: str
    gpus_per_node: int
    nodes: int
    micro_batch: int
    grad_accum: int
    seq_len: int
    method: str
    quantization: str
    gradient_checkpointing: bool
    attention: str
    loss: str
    optimizer: str
    sharding: str
    offload: str
    verdict: Verdict
    fits_probability: Annotated[float, Field(ge=0, le=1)] | None
    limiting_phase: Phase
    limit_bytes: MaybeBytes
    must_have_bytes: Bytes
    driver_peak_bytes: Bytes
    driver_interval: ByteIntervalPart | None
    host_required_per_node_bytes: Bytes
    host_reclaimable_per_node_bytes: Bytes
    step_s: Real
    step_interval: IntervalPart | None
    samples_per_s: Real
    tokens_per_s: Real
    sample_s: Real
    sample_usd: Real
    run_time_s: Real
    cost_usd: Real
    warnings: list[str]


class GroupPart(_Part):
    """Recipes that train the same.

    ``nearest``: the one that comes closest where none fits; ``refused``: the rule that all break.
    ``above``: the first recipe with the next larger value of what was solved for, null where there is none.
    """

    training: str
    n_tried: int
    n_fit: int
    recipes: list[RecipePart]
    nearest: RecipePart | None
    refused: str
    above: RecipePart | None


class SearchDocument(_Part):
    """Everything that ``plan search`` says."""

    schema_: Literal["planner/search@1"] = Field(default=SEARCH_SCHEMA_ID, alias="schema")
    version: str
    verdict: Verdict
    exit_code: Annotated[int, Field(ge=0, le=6)]
    confidence: float
    solved: Quantity | None
    model: str
    calibration: str
    n_tried: int
    n_fit: int
    n_refused: int
    groups: list[GroupPart]
    tried: dict[str, list[str]] = Field(description="values of every setting of which several were tried")
    levers: list[LeverPart] = Field(description="what would make the nearest recipe fit, where nothing does")
    other_stack: RecipePart | None = Field(description="a better recipe under a stack that was not asked for, if there is one")
    notes: list[str]


def search_json_schema() -> dict[str, Any]:
    """JSON Schema of :class:`SearchDocument`."""
    schema = SearchDocument.model_json_schema(by_alias=True, mode="serialization")
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": SEARCH_SCHEMA_ID, **schema}


def search_json(answer: Answer) -> str:
    """The answer as indented JSON, ending in a newline."""
    first = next(tried for group in answer.groups for tried in (*group.rows, *filter(None, (group.nearest,))))
    document = SearchDocument(
        version=__version__,
        verdict=answer.verdict,
        exit_code=exit_code(answer),
        confidence=answer.confidence,
        solved=answer.solved,
        model=first.scenario.model.id,
        calibration=first.prediction.calibration,
        n_tried=answer.n_tried,
        n_fit=answer.n_fit,
        n_refused=answer.n_refused,
        groups=[_group(group) for group in answer.groups],
        tried={name: list(values) for name, values in answer.tried},
        levers=[LeverPart.model_validate(lever) for lever in answer.levers],
        other_stack=_maybe(None if answer.other_stack is None else answer.other_stack.tried),
        notes=list(answer.notes),
    )
    return document_text(document)


def _group(group: Group) -> GroupPart:
    return GroupPart(
        training=group.title,
        n_tried=group.n_tried,
        n_fit=group.n_fit,
        recipes=[_recipe(tried) for tried in group.rows],
        nearest=_maybe(group.nearest),
        refused=group.refused,
        above=_maybe(group.above),
    )


def _maybe(tried: Tried | None) -> RecipePart | None:
    return None if tried is None else _recipe(tried)


def _recipe(tried: Tried) -> RecipePart:
    recipe, prediction = flat_recipe(tried.scenario.recipe), tried.prediction
    names = ("quantization", "method", "gradient_checkpointing", "attention", "loss", "optimizer", "sharding", "offload")
    memory, sure, hardware = prediction.memory, prediction.uncertainty, tried.scenario.hardware
    times = ("step_s", "samples_per_s", "tokens_per_s", "run_time_s", "cost_usd")
    driver = dict(sure.memory).get("driver") if sure else None
    return RecipePart.model_validate(
        {
            "arguments": list(tried.arguments),
            "gpu": hardware.gpu.id,
            "gpus_per_node": hardware.gpus_per_node,
            "nodes": hardware.nodes,
            **{name: int(recipe[name]) for name in ("micro_batch", "grad_accum", "seq_len")},
            **{name: recipe[name] for name in names},
            "verdict": prediction.verdict,
            "fits_probability": prediction.fits_probability,
            "limiting_phase": memory.limiting_phase,
            "limit_bytes": memory.limit_bytes,
            "must_have_bytes": memory.must_have_bytes,
            "driver_peak_bytes": memory.driver_peak_bytes,
            "driver_interval": {"low": round(driver.low), "high": round(driver.high)} if driver else None,
            "host_required_per_node_bytes": prediction.host.required_per_node_bytes,
            "host_reclaimable_per_node_bytes": round(prediction.host.reclaimable_per_node_bytes),
            "step_interval": IntervalPart.model_validate(sure.step) if sure and sure.step else None,
            **{name: getattr(prediction.time, name, None) for name in times},
            "sample_s": tried.sample_s,
            "sample_usd": tried.sample_usd,
            "warnings": list(dict.fromkeys((*tried.scenario.warnings, *prediction.warnings))),
        }
    )
