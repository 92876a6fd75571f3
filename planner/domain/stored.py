"""How a checkpoint holds its matrices: packed by a quantiser of its own, which loading keeps."""

from __future__ import annotations

from dataclasses import dataclass

from planner.domain.recipes.recipe import Dtype, Packing, Quantization


@dataclass(frozen=True, slots=True)
class StoredWeights:
    """The quantisation that a ``config.json`` says of its checkpoint, in words of a recipe.

    ``compute_dtype``: that of products where the checkpoint itself says it (bitsandbytes).  ``source``: where
    it is given.  ``assumed``: what of it nobody gave (empty: nothing).  ``unread``: what of it no formula
    covers while matrices stay as they are stored; as 16 bits they are counted all the same.
    """

    quantization: Quantization
    packing: Packing
    double_quant: bool = False
    quant_storage: Dtype | None = None
    compute_dtype: Dtype | None = None
    source: str = ""
    assumed: str = ""
    unread: str = ""


def stored_text(stored: StoredWeights) -> str:
    """``awq-int4 in groups of 128``: the quantisation with what else decides its bytes."""
    packing = stored.packing
    if packing.codebooks:
        codes = f"{packing.codebooks} x {packing.code_bits} bits for each {packing.group} inputs"
        return f"{stored.quantization}, {codes}"
    if stored.quantization == "fp8":
        shared = f"blocks of {packing.group} x {packing.group}" if packing.group else "one scale a matrix"
        return f"fp8, {shared}"
    if packing.is_stored:
        return f"{stored.quantization}{' with double quantisation' if stored.double_quant else ''}"
    return (
        f"{stored.quantization} in groups of {packing.group}"
        if packing.group
        else f"{stored.quantization}, one group"
    )
