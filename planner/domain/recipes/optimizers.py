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
    "lion_8bit",
    "paged_lion_32bit",
    "paged_lion_8bit",
    "ademamix",
    "ademamix_8bit",
    "paged_ademamix_32bit",
    "paged_ademamix_8bit",
    "schedule_free_adamw",
    "adopt_adamw",
    "adamc",
    "adam_mini",
    "muon",
    "apollo_adamw",
    "galore_adamw",
    "galore_adamw_8bit",
    "galore_adafactor",
    "badam",
]
OPTIMIZERS: tuple[Optimizer, ...] = get_args(Optimizer)
TRAINED_BYTES = 16
"""Of one trained parameter, all in fp32: itself, its gradient and the two states of AdamW."""


@dataclass(frozen=True, slots=True)
class OptimizerFacts:
    """What readers, rules and formulas ask of an optimizer.

    ``library``: whose code steps; ``package``: plain operators of torch in code of others; ``tool``: one that
    a training tool brings along, with states or temporaries of its own kind.  ``trainer_names``: what
    ``optim`` of the Trainer calls it, the oldest name first; none where a tool has a key of its own for it.
    ``on_host``: who steps it where an engine has its states in host RAM: a kernel of DeepSpeed, the library
    itself, in ``some`` versions of it and under DeepSpeed alone, or nobody that was read.

    ``moved_bytes``: read and written by one update for each trained parameter, with 4-byte states.
    ``operators``: those that the host issues for each trained tensor; lists of tensors that one kernel takes
    need about one for building lists, clipping and zeroing.

    ``bits``: of an element of its states, where these are large.  ``paged``: large states are managed memory.
    ``state_elements``: elements of each of its state tensors for one of the parameter, for AdamW and where
    the library is torch, a package or bitsandbytes.  ``lists``: of temporaries that a step over all
    parameters at once (``foreach``) needs, each as large as they are.  ``ends_apart``: it steps token table
    and head by themselves, as Axolotl groups parameters for optimizers that it makes itself.

    ``whole_matrices``: it was read where no GPU has a part of a matrix.  ``gathers``: it may step FSDP2's
    DTensors whole, which a rule asks of the stack.  ``projects``: how often it multiplies a matrix's gradient
    with a narrow matrix, of which it keeps one; 0 for all that keep none.  ``decomposes``: what the narrow
    matrix is made of: a singular value decomposition of the gradient (GaLore), or random numbers.
    """

    library: Literal["torch", "torchao", "bitsandbytes", "transformers", "package", "tool"]
    trainer_names: tuple[str, ...]
    on_host: Literal["deepspeed", "library", "some", "unread"]
    moved_bytes: int
    operators: int = 1
    bits: Literal[32, 8, 4] = 32
    paged: bool = False
    state_elements: tuple[int, ...] = (1, 1)
    lists: int = 0
    ends_apart: bool = False
    whole_matrices: bool = False
    gathers: bool = False
    projects: int = 0
    decomposes: bool = False

    @property
    def takes_dtensors(self) -> bool:
        """Whether it steps the DTensors of FSDP2.

        Those of torch do, and torchao's, which makes DTensors of its states (torchao 0.17 optim/adam.py
        _new_buffer).  The kernels of bitsandbytes and the plain sums of Transformers' Adafactor refuse them
        (bitsandbytes 0.50.2, issue 1633; transformers 5.23.0 optimization.py):
        tests/against_libraries/parameters/test_optimizers_of_fsdp2.py.  Nobody tried those of packages.
        """
        return self.library in ("torch", "torchao") or self.gathers

    @property
    def depends_on_size(self) -> bool:
        """Whether states differ between small and large parameters."""
        return self.paged or self.bits < 32


def _of_bitsandbytes(
    name: str,
    moved_bytes: int,
    *elements: int,
    bits: Literal[32, 8] = 32,
    paged: bool = False,
    on_host: Literal["deepspeed", "some", "unread"] = "unread",
) -> OptimizerFacts:
    """All step one tensor after the other, each in the time of seven operators.

    ``name``: of the Trainer's, or two.
    """
    return OptimizerFacts(
        "bitsandbytes", tuple(name.split()), on_host, moved_bytes, 7, bits, paged, state_elements=elements
    )


def _of_matrices(moved_bytes: int, operators: int, *, gathers: bool = False) -> OptimizerFacts:
    return OptimizerFacts("tool", (), "unread", moved_bytes, operators, whole_matrices=True, gathers=gathers)


def _projecting(
    name: str, moved_bytes: int, operators: int, projects: int = 2, bits: Literal[32, 8] = 32
) -> OptimizerFacts:
    """Optimizers of Transformers that keep a narrow matrix for each matrix; ``name``: the Trainer's."""
    return OptimizerFacts(
        "tool",
        (name,),
        "unread",
        moved_bytes,
        operators,
        bits,
        whole_matrices=True,
        projects=projects,
        decomposes=projects > 1,
    )


# Names: transformers 5.23.0 training_args.py OptimizerNames; adamw_hf up to 4.49.0.  On the host: accelerate
# 1.15.0 utils/deepspeed.py:29-94 (Lion becomes DeepSpeedCPULion, what is unknown Adam); bitsandbytes steps
# there only since 0.50, in 8 bits (backends/cpu/ops.py); torchao's step was read as compiled for a GPU.
# Bytes, as accesses of 4.  adamw_torch (foreach) and adamc: decay 2, lerp 3, scale 2, addcmul 4, root 2,
# divide 2, add 2, addcdiv 4; fused: read p g m v, write p m v.  adamw_hf, one operator after the other: decay
# and add 5, decay and addcmul 6, root 2, add 2, addcdiv 4.  adam_mini: square 2, mean 1, decay 2, lerp 3,
# scale 2, learning rate 2, negative 2, add 3.  muon: momentum 5, nesterov 3, decay 2, add 3, beside its
# products.  torchao in two kernels: read p g m v, write both moments; read them and p g m v, write p m v, in
# 4 bits with the codes as int64.  rmsprop: scale 2, addcmul 4, root 2, add 2, addcdiv 4.  badam: as
# adamw_torch, and 12 bytes for copies of gradients and weights between 16 bits and fp32.  apollo: project 1,
# scale 2, norm 1, limit 2, factor 2, add 3, for matrices, which are most.  galore_adamw: project 1, and back
# 1, scale 2, add 3; in 8 bits also a copy of the weight 2; adafactor also copies to fp32 4, negative 2, and
# back 2.  ademamix (fused): read p g m n v, write p m n v.  schedule_free_adamw: scale 2, addcmul 4, divide
# 2, root 2, add 2, divide 3, lerp 3, add 3, subtract 3.  adopt_adamw: decay 3, root 2, limits 6, divide 3,
# lerp 3, add 3, scale 2, addcmul 4.
# Operators: adamw_hf updates tensors one by one (about six calls each; a compiled step of torchao: its
# buffers and kernels).  adafactor and bitsandbytes: time of a Trainer's step per tensor over that of an
# operator of its layers, without a GPU (95 and 71 over 10.4 us; transformers 5.23, bitsandbytes 0.50.2):
# calls outside of modules and autograd are shorter, adafactor's 23 take that of nine.
OPTIMIZER_FACTS: Mapping[Optimizer, OptimizerFacts] = {
    "adamw_torch": OptimizerFacts("torch", ("adamw_torch",), "deepspeed", 84, lists=1),
    "adamw_torch_fused": OptimizerFacts("torch", ("adamw_torch_fused",), "deepspeed", 28),
    "adamw_hf": OptimizerFacts("transformers", ("adamw_hf",), "deepspeed", 76, 7),
    "adamw_8bit": _of_bitsandbytes("adamw_bnb_8bit adamw_8bit", 16, 1, 1, bits=8, on_host="some"),
    "adamw_torch_8bit": OptimizerFacts("torchao", ("adamw_torch_8bit",), "unread", 38, 8, bits=8),
    "adamw_torch_4bit": OptimizerFacts("torchao", ("adamw_torch_4bit",), "unread", 62, 11, bits=4),
    "paged_adamw_32bit": _of_bitsandbytes("paged_adamw_32bit", 28, 1, 1, paged=True),
    "paged_adamw_8bit": _of_bitsandbytes("paged_adamw_8bit", 16, 1, 1, bits=8, paged=True),
    "adafactor": OptimizerFacts("transformers", ("adafactor",), "library", 40, 9),
    "sgd": OptimizerFacts("torch", ("sgd",), "library", 12, state_elements=()),
    "rmsprop": OptimizerFacts("torch", ("rmsprop",), "library", 56, state_elements=(1,), lists=1),
    "lion": _of_bitsandbytes("lion_32bit", 20, 1, on_host="deepspeed"),
    "lion_8bit": _of_bitsandbytes("lion_8bit", 14, 1, bits=8),
    "paged_lion_32bit": _of_bitsandbytes("paged_lion_32bit", 20, 1, paged=True),
    "paged_lion_8bit": _of_bitsandbytes("paged_lion_8bit", 14, 1, bits=8, paged=True),
    "ademamix": _of_bitsandbytes("ademamix", 36, 2, 1),
    "ademamix_8bit": _of_bitsandbytes("ademamix_8bit", 18, 2, 1, bits=8),
    "paged_ademamix_32bit": _of_bitsandbytes("paged_ademamix_32bit", 36, 2, 1, paged=True),
    "paged_ademamix_8bit": _of_bitsandbytes("paged_ademamix_8bit", 18, 2, 1, bits=8, paged=True),
    "schedule_free_adamw": OptimizerFacts("package", ("schedule_free_adamw",), "unread", 96, lists=1),
    "adopt_adamw": OptimizerFacts("package", (), "unread", 104, lists=2, ends_apart=True),
    "adamc": OptimizerFacts("package", (), "unread", 84, lists=1, ends_apart=True),
    "adam_mini": _of_matrices(68, 14),
    "muon": _of_matrices(52, 45, gathers=True),
    "apollo_adamw": _projecting("apollo_adamw", 44, 25, projects=1),
    "galore_adamw": _projecting("galore_adamw", 28, 14),
    "galore_adamw_8bit": _projecting("galore_adamw_8bit", 36, 16, bits=8),
    "galore_adafactor": _projecting("galore_adafactor", 60, 13),
    "badam": OptimizerFacts("tool", (), "unread", 96, lists=1),
}
