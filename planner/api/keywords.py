"""Keywords of the Python functions: the flags of the command line with underscores, in Python's own types."""

from __future__ import annotations

import operator
import os
from collections.abc import Mapping, Sequence
from typing import Any, Generic, TypedDict, TypeVar

from planner.errors import UnknownNameError, UsageError, show
from planner.intake.given.fields import REQUEST_FIELDS
from planner.intake.given.request_field import RequestField

Text = str | os.PathLike[str]
Names = str | Sequence[str]
Word = TypeVar("Word")
Count = TypeVar("Count")
Price = TypeVar("Price")
Size = str | int
"""Text with a unit (``24GiB``, ``80GB``), or a whole number of bytes."""


class AlikeFlags(TypedDict, total=False):
    """What is given about a job and to a search alike; each keyword is the flag of that name,
    whose help ``plan --help`` prints.
    """

    model: Text
    double_quant: bool
    gpu_memory: Size
    gpu_reserved: Size
    host: str
    host_memory: Size
    link: str
    link_gb_per_s: float | str
    pcie_lanes: int | str
    pcie_generation: int | str
    power_limit_w: float | str
    tokens_per_sample: float | str
    num_labels: int | str
    generations: int | str
    completion_length: int | str
    generation_steps: int | str
    iterations: int | str
    compare_reference: bool
    generator: str
    vllm_memory: float | str
    vllm_tensor_parallel: int | str
    vllm_sleep: bool
    reward_model: Text
    reward_dtype: str
    teacher_model: Text
    data: Text
    tokenizer: Text
    images_per_sample: int | str
    image_size: str
    lora_targets: Names
    lora_dropout: float | str
    modules_to_save: Names
    train_layers: Names
    freeze: Names
    dora: bool
    oft_block_size: int | str
    vera: bool
    optimizer_in_backward: bool
    optimizer_rank: int | str
    gradient_checkpointing: bool
    checkpoint_reentrant: bool
    versions: Names
    switches: Names
    samples: int | str
    epochs: float | str
    eval_samples: int | str
    eval_batch: int | str
    device_map: str
    tensor_parallel: int | str
    pipeline_parallel: int | str
    pipeline_schedule: str
    pipeline_microbatches: int | str
    pipeline_runs: int | str
    pipeline_first_layers: int | str
    pipeline_last_layers: int | str
    context_parallel: int | str
    expert_parallel: int | str
    expert_tensor_parallel: int | str
    hpz: int | str
    replicas: int | str


class _VariedFlags(AlikeFlags, Generic[Word, Count, Price], total=False):
    method: Word
    task: Word
    quantization: Word
    quant_storage: Word
    gpu: Word
    gpus: Count
    nodes: Count
    seq: Count
    batch: Count
    grad_accum: Count
    padding: Word
    lora_rank: Count
    optimizer: Word
    precision: Word
    fp8: Word
    qat: Word
    qat_group: Count
    load_dtype: Word
    adapter_dtype: Word
    sharding: Word
    offload: Word
    checkpoint_every: Count
    checkpoint_policy: Word
    attention: Word
    loss: Word
    stack: Word
    price: Price


class JobFlags(_VariedFlags[str, int | str, float | str], total=False):
    """What can be given about a job: of each thing one value."""


class SearchFlags(_VariedFlags[Names, int | str | Sequence[int], float | str | Sequence[float]], total=False):
    """What can be given to a search: where the command line takes choices with commas,
    a list gives them as well.
    """


class SearchKeywords(SearchFlags, total=False):
    """What a search takes, beside what the job is."""

    config: Text | None
    calibration: str | None
    confidence: float | None
    top: int | None
    solve: str | None
    global_batch: int | None
    beyond_context: bool


def job_flags(given: Mapping[str, Any], also: Sequence[str]) -> dict[str, object]:
    """Keywords as the intake takes flags; ``also``: the function's own keywords,
    which a wrong one may have meant.

    Raises:
        UnknownNameError: no such keyword; says the nearest.
    """
    return {name: _plain(_field(name, also), value) for name, value in given.items() if value is not None}


def search_flags(given: Mapping[str, Any], also: Sequence[str]) -> dict[str, object]:
    """Keywords as a search takes flags: text as it would be typed, lists as choices with commas.

    Raises:
        UnknownNameError: no such keyword; says the nearest.
    """
    return {name: _typed(_field(name, also), value) for name, value in given.items() if value is not None}


def text_of(value: object) -> str | None:
    """A number or text as it would be typed; ``None`` stays."""
    return None if value is None else str(value)


def path_text(path: Text | None) -> str | None:
    """A path as text; ``None`` stays."""
    return None if path is None else os.fspath(path)


def _field(name: str, also: Sequence[str]) -> RequestField:
    field = REQUEST_FIELDS.get(name)
    if field is None or not field.on_command_line:
        known = (other.name for other in REQUEST_FIELDS.values() if other.on_command_line)
        raise UnknownNameError("keyword", show(name), (*known, *also))
    return field


def _plain(field: RequestField, value: Any) -> object:
    """``value`` without types of other libraries: a path is text, a whole number of any kind an ``int``,
    a size has its unit.
    """
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, str | bool | float | list | tuple):
        return value
    try:
        whole = operator.index(value)
    except TypeError:
        raise UsageError(
            f"{field.name} must be text, a number, true or false, but it is {show(value)}"
        ) from None
    return f"{whole}B" if field.kind == "size" else whole


def _typed(field: RequestField, value: Any) -> object:
    if isinstance(value, list | tuple):
        return (";" if field.kind == "names" else ",").join(str(_plain(field, each)) for each in value)
    plain = _plain(field, value)
    return plain if isinstance(plain, bool) else str(plain)
