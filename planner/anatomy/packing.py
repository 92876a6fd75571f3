"""Bytes of packed matrices and of what is needed to unpack them, by how the base is quantised.

Source: bitsandbytes 0.50 functional.quantize_4bit (blocks of 64, of nested scales 256),
int8_vectorwise_quant; auto_gptq 0.5 nn_modules/qlinear, gptqmodel 7.3.4 nn_modules/qlinear/__init__.py
``_register_gptq_buffers``, ``AWQuantLinear``; autoawq 0.2.9 modules/linear/gemm.py WQLinear_GEMM; aqlm 1.1.6
inference.py QuantizedLinear; transformers 5.23 integrations/finegrained_fp8.py FP8Linear.
Ignored: code books of bitsandbytes, about 1 KiB a matrix; padding of odd sizes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from planner.domain.recipes.recipe import GPTQ, Numerics

_BLOCK, _NESTED_BLOCK = 64, 256
_BITS = {"int8": 8, "nf4": 4, "fp4": 4, "gptq-int4": 4, "gptq-int8": 8, "awq-int4": 4, "fp8": 8}


@dataclass(frozen=True, slots=True)
class Matrices:
    """Matrices counted together: their elements, output features, input features, and how many they are."""

    elements: float
    outputs: float
    inputs: float
    count: float

    def times(self, n: int) -> Matrices:
        """So many times as many."""
        return Matrices(n * self.elements, n * self.outputs, n * self.inputs, n * self.count)

    def __add__(self, other: Matrices) -> Matrices:
        """Both together."""
        return Matrices(
            self.elements + other.elements,
            self.outputs + other.outputs,
            self.inputs + other.inputs,
            self.count + other.count,
        )


def packed_bytes(numerics: Numerics, elements: float) -> float:
    """Bytes of packed elements; of AQLM a code of each code book for each group, in 8 or 16 bits."""
    if numerics.quantization == "none":
        return 0
    packing = numerics.packing
    if numerics.quantization == "aqlm":
        return elements * packing.codebooks * (1 if packing.code_bits <= 8 else 2) / packing.group
    return elements * _BITS[numerics.quantization] / 8


def constants_bytes(numerics: Numerics, matrices: Matrices) -> Iterator[float]:
    """Bytes of each tensor that unpacking reads.

    nf4, fp4: one fp32 scale for each 64 elements; with double quantisation one byte for each,
    and one fp32 for each 64 x 256.
    int8: an fp32 scale for each output.  GPTQ, AWQ: an fp16 scale and a packed zero for each output of each
    group of inputs, and with GPTQ the int32 group of each input.  AQLM: a scale for each output and the code
    books of each matrix, both 16-bit.  fp8: an fp32 scale for each square, or for each matrix.
    """
    quantization, elements = numerics.quantization, matrices.elements
    if quantization == "int8":
        yield 4 * matrices.outputs
    elif quantization in ("nf4", "fp4"):
        blocks = elements / _BLOCK
        yield from (blocks, 4 * blocks / _NESTED_BLOCK) if numerics.double_quant else (4 * blocks,)
    elif quantization == "fp8":
        side = numerics.packing.group
        yield 4 * (elements / side**2 if side else matrices.count)
    elif quantization == "aqlm":
        vectors = numerics.packing.codebooks * 2**numerics.packing.code_bits
        yield from (2 * matrices.outputs, 2 * matrices.count * vectors * numerics.packing.group)
    elif quantization != "none":
        group = numerics.packing.group
        scales = elements / group if group else matrices.outputs
        yield from (2 * scales, scales * _BITS[quantization] / 8)
        if quantization in GPTQ:
            yield 4 * matrices.inputs


_SMALLEST_GROUP = 32
"""Inputs of a scale in the largest of the checkpoints that people publish (https://huggingface.co/TheBloke,
GPTQ).
"""


def group_reach_bytes(numerics: Numerics, matrices: Matrices) -> tuple[float, float]:
    """How far down and up other groups move the constants: one a column, or the smallest usual."""
    now, *ends = (
        sum(constants_bytes(replace(numerics, packing=replace(numerics.packing, group=group)), matrices))
        for group in (numerics.packing.group, 0, _SMALLEST_GROUP)
    )
    return max(0.0, now - ends[0]), max(0.0, ends[1] - now)


def stored_bytes(numerics: Numerics, matrices: Matrices) -> float:
    """Bytes of packed matrices with all that unpacking reads."""
    return packed_bytes(numerics, matrices.elements) + sum(constants_bytes(numerics, matrices))
