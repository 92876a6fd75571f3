"""How the state of a job is spread over GPUs: which engine does it, what it divides,
and how often GPUs meet.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

if TYPE_CHECKING:
    from planner.domain.hardware import Hardware
    from planner.domain.recipes.recipe import Number

ShardingName = Literal[
    "none",
    "ddp",
    "zero0",
    "zero1",
    "zero2",
    "zero3",
    "fsdp",
    "fsdp1",
    "fsdp-grad-op",
    "fsdp1-grad-op",
    "hsdp",
    "hsdp1",
    "distributed-optimizer",
]
Engine = Literal["native", "deepspeed", "fsdp", "megatron-core"]
Scope = Literal["process", "world", "node"]

SHARDING_NAMES: tuple[ShardingName, ...] = get_args(ShardingName)


@dataclass(frozen=True, slots=True)
class Sharding:
    """One way to spread weights, gradients and optimizer states; flags, records and JSON have its ``name``.

    ``engine``: plain PyTorch, DeepSpeed's ZeRO, PyTorch's FSDP or Megatron-Core's DDP.
    ``scope``: a process alone, all GPUs, or
    shards inside a node that other nodes repeat, unless the job says how many copies there are.
    ``divides_weights``: also after the forward pass.  ``reduces_each_micro_step``: gradients are reduced in
    every micro-step, not once per optimizer step.
    ``dtensors``: weights become DTensors, as in FSDP2.
    """

    name: ShardingName
    engine: Engine
    scope: Scope
    divides_optimizer: bool = False
    divides_gradients: bool = False
    divides_weights: bool = False
    reduces_each_micro_step: bool = False
    dtensors: bool = False

    @property
    def communicates(self) -> bool:
        """Whether GPUs exchange anything."""
        return self.scope != "process"

    @property
    def zero_stage(self) -> int:
        """Stage of DeepSpeed's ZeRO; 0 for other engines, too."""
        divided = self.divides_optimizer + self.divides_gradients + self.divides_weights
        return divided if self.engine == "deepspeed" else 0

    @property
    def is_zero012(self) -> bool:
        """Whether DeepSpeed's engine runs and leaves weights whole."""
        return self.engine == "deepspeed" and not self.divides_weights

    @property
    def is_zero12(self) -> bool:
        """Whether DeepSpeed's stages 1 and 2 run, which share their code and leave weights whole."""
        return self.divides_optimizer and self.is_zero012

    @property
    def is_zero1(self) -> bool:
        """Whether DeepSpeed divides optimizer states alone."""
        return self.is_zero12 and not self.divides_gradients

    @property
    def is_zero3(self) -> bool:
        """Whether DeepSpeed divides everything."""
        return self.engine == "deepspeed" and self.divides_weights

    @property
    def gathers_weights(self) -> bool:
        """Whether weights are brought together for the passes: ZeRO-3 and every kind of FSDP."""
        return self.engine == "fsdp" or self.is_zero3

    @property
    def is_fsdp1(self) -> bool:
        """Whether FSDP runs on flat parameters."""
        return self.engine == "fsdp" and not self.dtensors

    def reduces_last_only(self, no_sync: str) -> bool:
        """Whether FSDP reduces gradients in the last micro-step only; ``no_sync``: the stack's
        ``fsdp_no_sync``.
        """
        return self.engine == "fsdp" and (no_sync == "both" or (no_sync == "fsdp1" and self.is_fsdp1))

    @property
    def frees_blocks(self) -> bool:
        """Whether FSDP2 runs and gives each block back after its pass."""
        return self.dtensors and self.divides_weights

    def shards(self, hardware: Hardware) -> Number:
        """Over how many GPUs one copy of what is divided lies."""
        return hardware.gpus_per_node if self.scope == "node" else hardware.world_size

    def __str__(self) -> str:
        """The name."""
        return self.name

    def __hash__(self) -> int:
        """Hash of the name: equality still compares all fields, and lookups in caches stay cheap."""
        return hash(self.name)


def _fsdp(
    name: ShardingName, scope: Scope = "world", *, divides_weights: bool = True, dtensors: bool = True
) -> Sharding:
    return Sharding(
        name,
        "fsdp",
        scope,
        divides_optimizer=True,
        divides_gradients=True,
        divides_weights=divides_weights,
        reduces_each_micro_step=True,
        dtensors=dtensors,
    )


# Sources: torch nn/parallel/distributed.py (no_sync: DDP reduces in the last micro-step); deepspeed
# runtime/engine.py allreduce_gradients (so does stage 0), runtime/zero/stage_1_and_2.py (stage 1 reduces at
# the boundary of accumulation, stage 2 in each micro-step) and stage3.py; torch distributed/fsdp.
NONE = Sharding("none", "native", "process")
DDP = Sharding("ddp", "native", "world")
ZERO0 = Sharding("zero0", "deepspeed", "world")
ZERO1 = Sharding("zero1", "deepspeed", "world", divides_optimizer=True)
ZERO2 = Sharding(
    "zero2",
    "deepspeed",
    "world",
    divides_optimizer=True,
    divides_gradients=True,
    reduces_each_micro_step=True,
)
ZERO3 = Sharding(
    "zero3", "deepspeed", "world", True, True, divides_weights=True, reduces_each_micro_step=True
)
FSDP = _fsdp("fsdp")
FSDP1 = _fsdp("fsdp1", dtensors=False)
FSDP_GRAD_OP = _fsdp("fsdp-grad-op", divides_weights=False)
FSDP1_GRAD_OP = _fsdp("fsdp1-grad-op", divides_weights=False, dtensors=False)
HSDP = _fsdp("hsdp", "node")
HSDP1 = _fsdp("hsdp1", "node", dtensors=False)
DISTRIBUTED_OPTIMIZER = Sharding("distributed-optimizer", "megatron-core", "world", divides_optimizer=True)

_BY_NAME: dict[str, Sharding] = {
    each.name: each
    for each in (
        *(NONE, DDP, ZERO0, ZERO1, ZERO2, ZERO3, FSDP, FSDP1, FSDP_GRAD_OP, FSDP1_GRAD_OP, HSDP, HSDP1),
        DISTRIBUTED_OPTIMIZER,
    )
}


def sharding_named(name: str) -> Sharding:
    """The sharding with one of :data:`SHARDING_NAMES`."""
    return _BY_NAME[name]
