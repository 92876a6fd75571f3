"""The JSON form of a prediction, ``planner/prediction@1``.
These models write it and their JSON Schema documents it.

Bytes are integers, times are seconds, fractions run from 0 to 1.  ``null`` means unknown or not asked;
never NaN or infinity.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Field

from planner.documents import DocumentPart, at
from planner.domain.prediction import Verdict
from planner.domain.term import PHASES, Phase, TermKind, TermName
from planner.domain.uncertainty.prior import SettledBy
from planner.searching.moves import LeverKind


class ExplanationPart(DocumentPart):
    """One formula of the prediction: what it counts, with which numbers, from which source."""

    topic: str
    label: str
    amount: str
    formula: str
    detail: str
    summary: str = at("text", "summary")
    rule: str = at("text", "rule")
    ignored: str = at("text", "ignored")
    source: str = at("text", "source")


class CoefficientPart(DocumentPart):
    """One coefficient: the value used, its prior with the bounds of a fit, and what settled each.

    ``settled_by`` is that of the value: ``calibration <name>`` where a fit replaced the prior,
    else the prior's.
    """

    name: str = at("prior", "name")
    value: float
    unit: str = at("prior", "unit")
    prior: float = at("prior", "value")
    low: float = at("prior", "low")
    high: float = at("prior", "high")
    settled_by: str
    source: str = at("prior", "source")


class SettingPart(DocumentPart):
    """One switch or default of the stack, and what settled its value."""

    name: str
    value: str
    settled_by: SettledBy
    source: str


PREDICTION_SCHEMA_ID: Final = "planner/prediction@1"


def _finite_or_none(value: Any) -> float | None:
    """JSON has no NaN and no infinity; both mean that the number is not known."""
    return None if value is None or not math.isfinite(float(value)) else float(value)


def _in_order(phases: Iterable[Phase]) -> list[Phase]:
    return sorted(phases, key=PHASES.index)


def _whole(value: Any) -> int | None:
    return None if value is None else round(float(value))


Whole = Annotated[int, BeforeValidator(_whole)]
Bytes = Annotated[Whole, Field(ge=0)]
MaybeBytes = Annotated[int | None, BeforeValidator(_whole)]
Real = Annotated[float | None, BeforeValidator(_finite_or_none)]
JsonValue = str | int | float | bool | None


class ModelPart(DocumentPart):
    """The model: its catalog id, parameters counted from shapes, and how that count was checked."""

    id: str
    hub_id: str
    architecture: str
    params: int = at("param_count")
    active_params: int = at("active_param_count")
    published_params: int | None
    params_origin: str
    source: str


class HardwarePart(DocumentPart):
    """The devices.  ``visible_memory_bytes`` is what CUDA reports as total."""

    gpu: str = at("gpu", "id")
    gpus_per_node: int
    nodes: int
    visible_memory_bytes: MaybeBytes = at("gpu", "visible_memory_bytes")
    gpu_reserved_bytes: Bytes
    link: str | None
    host: str = at("host", "id")
    host_memory_bytes: MaybeBytes = at("host", "memory_bytes")


class DataPart(DocumentPart):
    """Lengths of the data set that was read, none above the sequence length."""

    n_sequences: int
    mean_tokens: float
    longest_tokens: float


class ScenarioPart(DocumentPart):
    """The job as it was resolved; ``recipe`` and ``run`` hold the resolved settings by name."""

    model: ModelPart
    hardware: HardwarePart
    recipe: dict[str, JsonValue | list[str]]
    stack: str
    run: dict[str, JsonValue]
    data: DataPart | None


class TermPart(DocumentPart):
    """Bytes of one kind on one GPU.  ``at_peak`` is whether they are alive in the limiting phase."""

    name: TermName
    label: str
    bytes: Bytes
    kind: TermKind
    level: Literal["allocated", "reserved", "driver"]
    phases: Annotated[list[Phase], BeforeValidator(_in_order)]
    at_peak: bool
    formula: str
    detail: str


class PhasePart(DocumentPart):
    """Peak of one phase on one GPU at the three levels."""

    phase: Phase
    allocated_bytes: Bytes
    reserved_bytes: Bytes
    driver_bytes: Bytes


class FailedPart(DocumentPart):
    """The first request that the card cannot serve: part of the model, module, operator, and what was free.

    ``free_bytes`` of the allocator's cache lie in ``free_blocks`` pieces; ``unreserved_bytes`` of the card
    are not in the cache.  ``fits_expandable``: whether all would be served with expandable segments; null
    where they cannot help.
    """

    phase: Phase
    part: str
    module: str
    op: str
    bytes: Bytes = at("n_bytes")
    free_bytes: Bytes
    free_blocks: int
    largest_free_bytes: Bytes
    unreserved_bytes: Bytes
    fits_expandable: bool | None


class MemoryPart(DocumentPart):
    """GPU memory of one device; ``limit_bytes`` is what the job may use.

    ``state_bytes``: weights, adapters and optimizer states, which any device has to hold;
    the rest is that of CUDA's allocator.
    """

    limit_bytes: MaybeBytes
    allocated_peak_bytes: Bytes
    reserved_peak_bytes: Bytes
    driver_peak_bytes: Bytes
    uncapped_driver_bytes: Bytes
    must_have_bytes: Bytes
    state_bytes: Bytes
    limiting_phase: Phase
    failed: FailedPart | None = Field(
        description="null where the job fits, or where its program was not replayed"
    )
    phases: list[PhasePart]
    terms: list[TermPart]


class HostTermPart(DocumentPart):
    """Host RAM of one kind, per process."""

    name: str
    bytes: Bytes = at("n_bytes")
    pinned: bool
    formula: str
    detail: str


class HostPart(DocumentPart):
    """Host RAM.  ``required_per_node_bytes`` is what the verdict compares with ``available_bytes`` (null:
    unknown, not judged).

    ``reclaimable_per_node_bytes`` comes on top: mapped files,
    which the system gives back when memory is short.
    """

    per_process_bytes: Bytes
    required_per_node_bytes: Bytes
    reclaimable_per_node_bytes: Bytes
    available_bytes: MaybeBytes
    terms: list[HostTermPart]


class TimeTermPart(DocumentPart):
    """Seconds of one part of the step; ``overlapped_s`` of them hide behind other parts."""

    name: str
    seconds: Real
    overlapped_s: Real
    formula: str
    detail: str


class TimePart(DocumentPart):
    """Time of one optimizer step; rates are of the whole job;
    ``mfu`` is model FLOP utilisation as a fraction.
    """

    step_s: Real
    samples_per_s: Real
    tokens_per_s: Real
    padded_tokens_per_s: Real
    model_flop_per_step: Real
    mfu: Real
    run_time_s: Real
    cost_usd: Real
    terms: list[TimeTermPart]


class AssumptionPart(DocumentPart):
    """One resolved setting and where its value comes from."""

    name: str
    value: str
    origin: str
    note: str


class LeverPart(DocumentPart):
    """One change that saves memory, with the flags that ask for it and how they are typed.

    ``kind`` is what it costs: nothing, time, money or host RAM, or a change of the training.
    ``saves_bytes``: fewer bytes that one GPU needs at least; 0 for a card with more memory.
    ``saves_host_bytes`` and ``host_bytes``: less and more host RAM of a node.  ``step_time_ratio`` and
    ``usd_ratio``: step time and cost of a sample, after over before.  ``verdict`` and
    ``fits_probability``: after the change.
    """

    kind: LeverKind
    description: str
    flags: dict[str, str | bool | None] = Field(
        description="by name without hyphens in front; null: leave that flag out"
    )
    flags_text: str
    saves_bytes: int
    saves_host_bytes: int
    step_time_ratio: Real
    host_bytes: Bytes
    usd_ratio: Real
    verdict: Verdict
    fits_probability: Real
    fits: bool


class StackPart(DocumentPart):
    """What one GPU needs at least and uses under a common stack; ``lacks``:
    usual settings that its bare defaults lack.
    """

    stack: str
    need_bytes: Bytes
    peak_bytes: Bytes
    verdict: Verdict
    fits_probability: Real
    lacks: list[str]


class AtLengthPart(DocumentPart):
    """The run with samples of another real length, an example; without their length given,
    ``time`` is that of full samples.
    """

    tokens_per_sample: int
    run_time_s: Real
    cost_usd: Real


class IntervalPart(DocumentPart):
    """A range, in the unit of its number."""

    low: float
    high: float


class ByteIntervalPart(DocumentPart):
    """A range of bytes."""

    low: Whole
    high: Whole


class UnsaidPart(DocumentPart):
    """A setting that is assumed, and the answer with another value of it.

    ``moves_bytes``: what one GPU needs at least with it, less without; ``speed_ratio``:
    real tokens per second with it over without.
    """

    setting: str
    flags: str
    moves_bytes: int
    speed_ratio: Real
    verdict: Verdict


class UncertaintyPart(DocumentPart):
    """Intervals of a calibrated prediction.

    ``memory``: by level, bytes; ``step``: seconds; ``host``: bytes per process.  ``coverage``: share of
    held-out readings inside such intervals, by what was read.  ``extrapolates``: what of the job no
    calibrated record had.
    """

    nominal: float
    memory: Annotated[dict[str, ByteIntervalPart], BeforeValidator(dict)]
    step: IntervalPart | None
    host: ByteIntervalPart | None
    coverage: Annotated[dict[str, float], BeforeValidator(dict)]
    basis: str
    extrapolates: list[str]


class PredictionDocument(DocumentPart):
    """Everything that ``plan`` says about one job."""

    schema_: Literal["planner/prediction@1"] = Field(default=PREDICTION_SCHEMA_ID, alias="schema")
    version: str
    verdict: Verdict
    exit_code: Annotated[int, Field(ge=0, le=6)]
    reason: str
    fits_probability: Annotated[float, Field(ge=0, le=1)] | None
    calibration: str
    uncertainty: UncertaintyPart | None = Field(description="null without a calibration")
    warnings: list[str]
    scenario: ScenarioPart
    memory: MemoryPart
    host: HostPart
    time: TimePart | None
    assumptions: list[AssumptionPart]
    levers: list[LeverPart] | None = Field(
        description="what would save memory: settings, software, cards, then what changes the training; "
        "null where not asked"
    )
    stacks: list[StackPart] = Field(description="what common stacks need; empty where the stack is given")
    run_at_length: AtLengthPart | None = Field(
        description="null where the length of samples is given, or no run is asked for"
    )
    unsaid: list[UnsaidPart] | None = Field(
        description="what is assumed and moves the answer; null where that was not asked"
    )
    explanations: list[ExplanationPart] | None = Field(description="null without --explain")
    coefficients: list[CoefficientPart] | None = Field(description="null without --explain")
    switches: list[SettingPart] | None = Field(description="the stack's; null without --explain")
