"""Optimizers by name, and what is known of each beside the operators of its step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

Optimizer = Literal[
    "adamw_torch",
    "adamw_torch_fused",
    "adamw_hf",
    "adamw_8bit",
    "adamw_torch_8bit",
    "adamw_torch_4bit",
    "paged_adamw_32bit",
    "paged_adamw_8bit",
    "adafactor",
    "sgd",
    "rmsprop",
    "lion",
    "adam_mini",
    "muon",
    "apollo_adamw",
    "badam",
]
OPTIMIZERS: tuple[Optimizer, ...] = get_args(Optimizer)


@dataclass(frozen=True, slots=True)
class OptimizerFacts:
    """What readers, rules and formulas ask of an optimizer.

    ``library``: whose code steps; ``tool``: one that a training tool brings along.  ``trainer_names``: what
    ``optim`` of the Trainer calls it, the oldest name first; none where a tool has a key of its own for it.
    ``on_host``: who steps it where an engine has its states in host RAM: a kernel of DeepSpeed, the library
    itself, or nobody that was read.  ``bits``: of an element of its states, where these are large.
    ``paged``: large states are managed memory.  ``state_elements``: elements of each of its state tensors for
    one of the parameter, for AdamW and where the library is torch or bitsandbytes.  ``gathers``: it may step
    FSDP2's DTensors whole, which a rule asks of the stack.
    """

    library: Literal["torch", "torchao", "bitsandbytes", "transformers", "tool"]
    trainer_names: tuple[str, ...]
    on_host: Literal["deepspeed", "library", "unread"]
    bits: Literal[32, 8, 4] = 32
    paged: bool = False
    state_elements: tuple[int, ...] = (1, 1)
    gathers: bool = False

    @property
    def takes_dtensors(self) -> bool:
        """Whether it steps the DTensors of FSDP2.

        Those of torch do, and torchao's, which makes DTensors of its states (torchao 0.17 optim/adam.py
        _new_buffer).  The kernels of bitsandbytes and the plain sums of Transformers' Adafactor refuse them
        (bitsandbytes 0.50.2, issue 1633; transformers 5.23.0 optimization.py):
        tests/against_libraries/parameters/test_optimizers_of_fsdp2.py.
        """
        return self.library in ("torch", "torchao") or self.gathers

    @property
    def depends_on_size(self) -> bool:
        """Whether states differ between small and large parameters."""
        return self.paged or self.bits < 32


def _of_tool() -> OptimizerFacts:
    return OptimizerFacts("tool", (), "unread")


# Names: transformers 5.23.0 training_args.py OptimizerNames; adamw_hf up to 4.49.0.  On the host: accelerate
# 1.15.0 utils/deepspeed.py:29-94 (Lion becomes DeepSpeedCPULion, what is unknown Adam); bitsandbytes steps
# there only since 0.50, in 8 bits (backends/cpu/ops.py), which is not modelled; torchao's step was read as
# compiled for a GPU.
OPTIMIZER_FACTS: Mapping[Optimizer, OptimizerFacts] = {
    "adamw_torch": OptimizerFacts("torch", ("adamw_torch",), "deepspeed"),
    "adamw_torch_fused": OptimizerFacts("torch", ("adamw_torch_fused",), "deepspeed"),
    "adamw_hf": OptimizerFacts("transformers", ("adamw_hf",), "deepspeed"),
    "adamw_8bit": OptimizerFacts("bitsandbytes", ("adamw_bnb_8bit", "adamw_8bit"), "unread", bits=8),
    "adamw_torch_8bit": OptimizerFacts("torchao", ("adamw_torch_8bit",), "unread", bits=8),
    "adamw_torch_4bit": OptimizerFacts("torchao", ("adamw_torch_4bit",), "unread", bits=4),
    "paged_adamw_32bit": OptimizerFacts("bitsandbytes", ("paged_adamw_32bit",), "unread", paged=True),
    "paged_adamw_8bit": OptimizerFacts("bitsandbytes", ("paged_adamw_8bit",), "unread", bits=8, paged=True),
    "adafactor": OptimizerFacts("transformers", ("adafactor",), "library"),
    "sgd": OptimizerFacts("torch", ("sgd",), "library", state_elements=()),
    "rmsprop": OptimizerFacts("torch", ("rmsprop",), "library", state_elements=(1,)),
    "lion": OptimizerFacts("bitsandbytes", ("lion_32bit",), "deepspeed", state_elements=(1,)),
    "adam_mini": _of_tool(),
    "muon": OptimizerFacts("tool", (), "unread", gathers=True),
    "apollo_adamw": _of_tool(),
    "badam": _of_tool(),
}
