"""Products in 8-bit floats: whose, and how they scale what they cast.

Names without ``te-`` are torchao's: by whole tensors or by rows; ``gathered``: FSDP2 gathers weights that
were cast before; ``gw-hp``: the gradient of a weight is a product in 16 bits.  ``te-``: Transformer Engine's,
with Megatron's words for its recipes; ``gathered``: Megatron keeps weights in 8 bits, and sends them so.
"""

from __future__ import annotations

from typing import Literal, get_args

Fp8 = Literal[
    "none",
    "tensorwise",
    "tensorwise-gathered",
    "rowwise",
    "rowwise-gw-hp",
    "te-delayed",
    "te-tensorwise",
    "te-blockwise",
    "te-mxfp8",
    "te-delayed-gathered",
    "te-tensorwise-gathered",
    "te-blockwise-gathered",
]
FP8S: tuple[Fp8, ...] = get_args(Fp8)
GATHERED_FP8: Fp8 = "tensorwise-gathered"
"""FSDP2 gathers weights that were cast to 8 bits before."""
MULTIPLE = 16
"""Sides of a matrix whose products are in 8 bits are multiples of so many elements."""
_ENGINE, _GATHERED = "te-", "-gathered"


def te_scaling(fp8: Fp8) -> str:
    """How Transformer Engine scales, in Megatron's words; empty where it casts nothing."""
    return fp8.removeprefix(_ENGINE).removesuffix(_GATHERED) if fp8.startswith(_ENGINE) else ""


def keeps_fp8_weights(fp8: Fp8) -> bool:
    """Whether weights that Transformer Engine multiplies are kept in 8 bits alone."""
    return fp8.startswith(_ENGINE) and fp8.endswith(_GATHERED)
