"""The border of a run record: columns, allowed ranges, JSON Schema.
The types are those of :class:`RunRecord`.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, fields
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Union, get_args, get_origin

from planner.domain.run_record import RunRecord

if TYPE_CHECKING:
    from pydantic import BaseModel

RECORD_SCHEMA_ID = "planner/record@1"
COLUMNS: tuple[str, ...] = tuple(field.name for field in fields(RunRecord))
LIST_COLUMNS: frozenset[str] = frozenset(field.name for field in fields(RunRecord) if field.default == ())
# What a record cannot do without; a file may leave out every other column, which then says nothing.
REQUIRED_COLUMNS: tuple[str, ...] = tuple(
    field.name for field in fields(RunRecord) if field.default is MISSING
)
# A JSONL line may carry these beside the columns: raw readings,
# environment and the verdict on the quality of the run.
ATTACHMENT_KEYS = ("raw", "environment", "quality")

_MAX_TEXT_CHARS = 10_000
_MAX_LIST_ITEMS = 100_000
_MAX_MIB = 1_000_000_000.0
_MAX_SECONDS = 1_000_000_000.0
_MAX_RATE = 1_000_000_000_000.0

# Allowed range of each number: lowest, highest.  A tuple of one: above zero, up to it.
_RANGES: dict[str, tuple[float, float] | tuple[float]] = {
    "nodes": (1, 100_000),
    "gpus_per_node": (1, 1_024),
    "lora_rank": (1, 65_536),
    "optimizer_rank": (1, 65_536),
    "qat_group": (1, 65_536),
    "oft_block_size": (1, 65_536),
    "lora_dropout": (0.0, 1.0),
    "tensor_parallel": (1, 65_536),
    "pipeline_parallel": (1, 65_536),
    "context_parallel": (1, 65_536),
    "expert_parallel": (1, 65_536),
    "expert_tensor_parallel": (1, 65_536),
    "replicas": (1, 65_536),
    "hpz": (1, 65_536),
    "micro_batch": (1, 65_536),
    "grad_accum": (1, 65_536),
    "seq_len": (1, 16_777_216),
    "tokens_per_sample": (16_777_216.0,),
    "peak_memory_mib": (_MAX_MIB,),
    "peak_memory_per_rank_mib": (_MAX_MIB,),
    "step_time_s": (_MAX_SECONDS,),
    "samples_per_s": (_MAX_RATE,),
    "tokens_per_s": (_MAX_RATE,),
    "padded_tokens_per_s": (_MAX_RATE,),
    "n_samples": (1, 1_000_000_000_000),
    "epochs": (100_000.0,),
    "eval_samples": (1, 1_000_000_000_000),
    "eval_micro_batch": (1, 65_536),
    "peak_memory_percentile": (100.0,),
    "memory_limit_mib": (_MAX_MIB,),
    "checkpoint_every": (1, 1_024),
    "run_time_s": (_MAX_SECONDS,),
    "host_memory_mib": (_MAX_MIB,),
}


@cache
def column_types() -> Mapping[str, Any]:
    """Type of each column as :class:`RunRecord` declares it."""
    return typing.get_type_hints(RunRecord)


@cache
def border_model() -> type[BaseModel]:
    """The pydantic model that every row passes through: strict types, nothing unknown,
    finite numbers within their ranges.
    """
    from pydantic import ConfigDict, create_model

    definitions: dict[str, Any] = {
        field.name: (
            _bounded(field.name, column_types()[field.name]),
            ... if field.default is MISSING else field.default,
        )
        for field in fields(RunRecord)
    }
    config = ConfigDict(extra="forbid", strict=True, frozen=True)
    return create_model("RunRecordRow", __config__=config, __doc__=RunRecord.__doc__, **definitions)


def attachment_models() -> Mapping[str, type[BaseModel]]:
    """The pydantic model of each key of ``ATTACHMENT_KEYS``."""
    from planner.records.measured import ATTACHMENT_MODELS

    return ATTACHMENT_MODELS


def record_json_schema() -> dict[str, Any]:
    """JSON Schema of one record as a line of JSONL.

    The line also carries ``schema`` (this schema's id) and may carry ``raw``,
    ``environment`` and ``quality``.
    """
    from pydantic.json_schema import models_json_schema

    models = attachment_models()
    places, shared = models_json_schema(
        [(model, "validation") for model in models.values()], ref_template="#/$defs/{model}"
    )
    schema = border_model().model_json_schema()
    attachments = {key: places[(model, "validation")] for key, model in models.items()}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": RECORD_SCHEMA_ID,
        **schema,
        "$defs": {**schema.get("$defs", {}), **shared["$defs"]},
        "properties": {"schema": {"const": RECORD_SCHEMA_ID}, **schema["properties"], **attachments},
        "required": ["schema", *schema["required"]],
    }


def _bounded(name: str, annotation: Any) -> Any:
    """``annotation`` with the limits of the column put on its text and numbers."""
    from pydantic import Field

    origin = get_origin(annotation)
    if origin in (types.UnionType, Union):
        # Not `|`: its members are a tuple.
        return Union[tuple(_bounded(name, member) for member in get_args(annotation))]  # noqa: UP007
    if origin is tuple:
        item: Any = _bounded(name, get_args(annotation)[0])
        return Annotated[tuple[item, ...], Field(max_length=_MAX_LIST_ITEMS)]
    if annotation is str:
        # ';' separates the items of a list in CSV, and a line of CSV that begins with '#' is a comment.
        pattern = (
            r"^[^\x00;]+$"
            if name in LIST_COLUMNS
            else r"^[^\x00#][^\x00]*$"
            if name == COLUMNS[0]
            else r"^[^\x00]+$"
        )
        return Annotated[str, Field(min_length=1, max_length=_MAX_TEXT_CHARS, pattern=pattern)]
    if annotation in (int, float):
        limits = _RANGES[name]
        low: dict[str, Any] = {"gt": 0} if len(limits) == 1 else {"ge": limits[0]}
        if annotation is float:
            low["allow_inf_nan"] = False
        return Annotated[annotation, Field(le=limits[-1], **low)]
    return annotation
