"""One training configuration and its outcome: a published table row or a run of our own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from planner.domain.recipes.attention_kernels import Attention
from planner.domain.recipes.fp8 import Fp8
from planner.domain.recipes.recipe import (
    CheckpointPolicy,
    Dtype,
    Loss,
    Offload,
    Padding,
    Precision,
    Qat,
    Quantization,
    Task,
)
from planner.domain.recipes.sharding import ShardingName
from planner.domain.term import Phase

RecordMethod = Literal["full", "lora", "qlora", "int8"]
Grade = Literal["A", "B", "C"]
Link = Literal["nvlink", "pcie", "qpi"]
Outcome = Literal["ok", "oom", "host_oom", "timeout", "crash"]
MemoryKind = Literal["allocated", "reserved", "driver", "board"]
"""``driver``: what nvidia-smi shows.  ``board``: what NVML's first call says is used, which counts what the
driver keeps for itself, too.

Source: NVML API reference, nvmlDeviceGetMemoryInfo and its second version, which has ``reserved`` apart;
rust-nvml/nvml-wrapper#57: 912 MB by the first and 8 by the second on idle A100 cards.
"""
MemoryScope = Literal["per_gpu", "all_gpus"]
HostMemoryKind = Literal["rss_peak", "rss_mark", "cgroup", "installed_min"]
HostMemoryScope = Literal["process", "node"]
Use = Literal[
    "repeat",
    "loop_time",
    "clock_locked",
    "link_unknown",
    "power_unknown",
    "routing_unknown",
    "length_at_peak_unknown",
    "data_on_card",
]
"""Why a row is scored but not fitted.

``repeat``: nothing of it is fitted, because it repeats another row.  ``loop_time``: not its time, which is of
more than training steps.  ``clock_locked``: not its time, because its cards ran at a locked clock.
``link_unknown``: not its time, because nobody knows the link between its GPUs; it is not scored either.
``power_unknown``: the same, because the source says that its cards were limited in
power, and not to what.  ``routing_unknown``: the same, because the samples of a mixture repeat one text, and
nobody knows what each expert gets of them.  ``length_at_peak_unknown``: not its memory, because nobody knows
the length of its longest batch.  ``data_on_card``: not its memory, because the loop holds its whole data set
on the card, and no source says how many bytes that is.
"""
NOT_ITS_MEMORY: frozenset[Use] = frozenset({"length_at_peak_unknown", "data_on_card"})
"""Rows whose peak is scored and not fitted."""
TIME_NOT_SCORED: Mapping[Use, str] = MappingProxyType(
    {
        "link_unknown": "the link between its GPUs",
        "power_unknown": "the power limit of its GPUs",
        "routing_unknown": "what each expert gets of its samples",
    }
)
"""Rows whose time is not compared, and what nobody knows of them."""
NOT_ITS_TIME: frozenset[Use] = frozenset({*TIME_NOT_SCORED, "loop_time", "clock_locked"})
"""Rows whose time is not fitted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """One row of ``data/published/*.csv`` or one line of a measurement file.  ``None`` and ``()``:
    the source does not say.

    The unit is in each name; memory is in MiB as measured, not converted further.

    - ``source_group``: rows of one group are held out together; ``locator``: table and row; ``grade``:
      how far to trust it.
    - ``use``: why the row is scored but not fitted, see :data:`Use`; ``notes`` are for people,
      nothing in them steers a fit.
    - ``optimizer`` is a Hugging Face name and may be one that is not modelled.
    - ``micro_batch`` is per GPU and micro-step; ``seq_len`` the padded or packed length, or the cap on
      natural lengths; ``tokens_per_sample`` the mean number of real tokens.
    - ``peak_memory_mib`` is the maximum over ranks; ``censored``: above 93 % of the card,
      where the allocator makes do with less.
    - ``peak_memory_percentile``: ``peak_memory_mib`` is this percentile over the steps, loading not among
      them; without it, the most of the whole run.
    - ``memory_limit_mib``: what the job was allowed of the card, where that is less than all of it.
    - ``checkpoint_every``: every how many layers one is checkpointed, where not all are.
    - ``checkpoint_policy``: what a checkpointed layer keeps, where that is more than its input.
    - ``optimizer_in_backward``: each parameter is updated as soon as its gradient is there.
    - ``qat``: what inputs and weights were rounded to as if quantised, ``qat_group`` to a scale.
    - ``task``: what is trained for, where that is not supervised fine-tuning; a sample of ``dpo``, ``orpo``,
      ``simpo`` and ``reward`` is a pair.
    - ``train_layers``: what a full fine-tune trained, where that was not everything.
    - ``step_time_s`` is one optimizer step with all its micro-steps; rates are of the whole job;
      ``run_time_s`` the whole run.
    """

    id: str
    source: str
    source_group: str
    locator: str | None = None
    grade: Grade | None = None
    notes: str | None = None
    use: Use | None = None
    model: str
    gpu: str
    host: str | None = None
    link: Link | None = None
    nodes: int | None = None
    gpus_per_node: int | None = None
    method: RecordMethod
    quantization: Quantization | None = None
    double_quant: bool | None = None
    quant_storage: Dtype | None = None
    load_dtype: Dtype | None = None
    precision: Precision | None = None
    adapter_dtype: Dtype | None = None
    lora_rank: int | None = None
    lora_targets: tuple[str, ...] = ()
    lora_dropout: float | None = None
    modules_to_save: tuple[str, ...] = ()
    optimizer: str | None = None
    sharding: ShardingName | None = None
    offload: Offload | None = None
    tensor_parallel: int | None = None
    pipeline_parallel: int | None = None
    context_parallel: int | None = None
    gradient_checkpointing: bool | Literal["selective"] | None = None
    checkpoint_reentrant: bool | None = None
    attention: Attention | None = None
    loss: Loss | None = None
    micro_batch: int | None = None
    grad_accum: int | None = None
    seq_len: int | None = None
    padding: Padding | None = None
    tokens_per_sample: float | None = None
    stack: str | None = None
    versions: tuple[str, ...] = ()
    switches: tuple[str, ...] = ()
    outcome: Outcome
    phase_reached: Phase | None = None
    peak_memory_mib: float | None = None
    peak_memory_per_rank_mib: tuple[float, ...] = ()
    memory_kind: MemoryKind | None = None
    memory_scope: MemoryScope | None = None
    censored: bool | None = None
    step_time_s: float | None = None
    samples_per_s: float | None = None
    tokens_per_s: float | None = None
    padded_tokens_per_s: float | None = None
    n_samples: int | None = None
    epochs: float | None = None
    eval_samples: int | None = None
    eval_micro_batch: int | None = None
    peak_memory_percentile: float | None = None
    memory_limit_mib: float | None = None
    checkpoint_every: int | None = None
    checkpoint_policy: CheckpointPolicy | None = None
    task: Task | None = None
    train_layers: tuple[str, ...] = ()
    dora: bool | None = None
    oft_block_size: int | None = None
    vera: bool | None = None
    optimizer_in_backward: bool | None = None
    optimizer_rank: int | None = None
    fp8: Fp8 | None = None
    qat: Qat | None = None
    qat_group: int | None = None
    expert_parallel: int | None = None
    expert_tensor_parallel: int | None = None
    replicas: int | None = None
    hpz: int | None = None
    run_time_s: float | None = None
    host_memory_mib: float | None = None
    host_memory_kind: HostMemoryKind | None = None
    host_memory_scope: HostMemoryScope | None = None
