"""The JSON form of a search, ``planner/search@1``: these models write it and their JSON Schema documents it.

Bytes are integers, times are seconds, fractions run from 0 to 1.  ``null`` means unknown or not asked.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field

from planner.documents import DocumentPart, at, at_or_none, document_text
from planner.domain.prediction import Verdict
from planner.domain.term import Phase
from planner.report.prediction.document import (
    ByteIntervalPart,
    Bytes,
    IntervalPart,
    LeverPart,
    MaybeBytes,
    Real,
)
from planner.report.search.sections import exit_code
from planner.searching.recipes.answer import FoundRecipes, Quantity
from planner.version import __version__

SEARCH_SCHEMA_ID: Final = "planner/search@1"


class RecipePart(DocumentPart):
    """One recipe with what ``plan`` says of it;
    ``arguments`` are the words after ``plan`` that ask for it again.

    ``sample_s``: seconds of the whole job per sample; ``sample_usd``: US dollars per sample,
    null without ``--price``.
    """

    arguments: list[str]
    gpu: str = at("scenario", "hardware", "gpu", "id")
    gpus_per_node: int = at("scenario", "hardware", "gpus_per_node")
    nodes: int = at("scenario", "hardware", "nodes")
    micro_batch: int = at("scenario", "recipe", "batch", "micro_batch")
    grad_accum: int = at("scenario", "recipe", "batch", "grad_accum")
    seq_len: int = at("scenario", "recipe", "batch", "seq_len")
    method: str = at("scenario", "recipe", "method")
    quantization: str = at("scenario", "recipe", "numerics", "quantization")
    gradient_checkpointing: bool = at("scenario", "recipe", "gradient_checkpointing")
    attention: str = at("scenario", "recipe", "attention")
    loss: str = at("scenario", "recipe", "loss")
    optimizer: str = at("scenario", "recipe", "optimizer")
    sharding: str = at("scenario", "recipe", "sharding", "name")
    offload: str = at("scenario", "recipe", "offload")
    verdict: Verdict = at("prediction", "verdict")
    fits_probability: Annotated[float, Field(ge=0, le=1)] | None = at("prediction", "fits_probability")
    limiting_phase: Phase = at("prediction", "memory", "limiting_phase")
    limit_bytes: MaybeBytes = at("prediction", "memory", "limit_bytes")
    must_have_bytes: Bytes = at("prediction", "memory", "must_have_bytes")
    driver_peak_bytes: Bytes = at("prediction", "memory", "driver_peak_bytes")
    driver_interval: ByteIntervalPart | None = at_or_none("prediction", "uncertainty", "driver")
    host_required_per_node_bytes: Bytes = at("prediction", "host", "required_per_node_bytes")
    host_reclaimable_per_node_bytes: Bytes = at("prediction", "host", "reclaimable_per_node_bytes")
    step_s: Real = at_or_none("prediction", "time", "step_s")
    step_interval: IntervalPart | None = at_or_none("prediction", "uncertainty", "step")
    samples_per_s: Real = at_or_none("prediction", "time", "samples_per_s")
    tokens_per_s: Real = at_or_none("prediction", "time", "tokens_per_s")
    sample_s: Real
    sample_usd: Real
    run_time_s: Real = at_or_none("prediction", "time", "run_time_s")
    cost_usd: Real = at_or_none("prediction", "time", "cost_usd")
    warnings: list[str]


class GroupPart(DocumentPart):
    """Recipes that train the same.

    ``nearest``: the one that comes closest where none fits; ``refused``: the rule that all break.
    ``above``: the first recipe with the next larger value of what was solved for, null where there is none.
    """

    training: str = at("title")
    n_tried: int
    n_fit: int
    recipes: list[RecipePart] = at("rows")
    nearest: RecipePart | None
    refused: str
    above: RecipePart | None


class SearchDocument(DocumentPart):
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
    other_stack: RecipePart | None = Field(
        description="a better recipe under a stack that was not asked for, if there is one"
    )
    notes: list[str]


def search_json(answer: FoundRecipes) -> str:
    """The answer as indented JSON, ending in a newline."""
    first = next(tried for group in answer.groups for tried in (*group.rows, *filter(None, (group.nearest,))))
    shared = ("verdict", "confidence", "solved", "n_tried", "n_fit", "n_refused", "groups", "levers", "notes")
    document = SearchDocument.model_validate(
        {
            "version": __version__,
            **{name: getattr(answer, name) for name in shared},
            "exit_code": exit_code(answer),
            "model": first.scenario.model.id,
            "calibration": first.prediction.calibration,
            "tried": dict(answer.tried),
            "other_stack": None if answer.other_stack is None else answer.other_stack.tried,
        }
    )
    return document_text(document)
