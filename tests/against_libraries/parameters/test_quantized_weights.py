"""Stored bytes of quantised matrices: real bitsandbytes layers on the CPU against the program.

Left out on both sides: code books (``code``: 64 bytes of the 4-bit values, 1 KiB of the nested ones) and the
4-byte ``offset`` of double quantisation, per matrix.
"""

from __future__ import annotations

from typing import Any

import pytest
from program_bytes import at_the_end_of
from scenarios import GROUPED, SIZES, Setup, job

from planner.domain.recipes.recipe import Numerics, Quantization
from planner.program.job import Job
from tests.extras import import_or_skip

torch = import_or_skip("torch")
import_or_skip("transformers")
bnb = import_or_skip("bitsandbytes")

LLAMA = {"model_type": "llama", **SIZES, **GROUPED}
# Widths that do not fill the last block of 64 or the last nested block of 64 x 256.
ODD = {**LLAMA, "hidden_size": 200, "intermediate_size": 328, "head_dim": 26}


def block_linears(config: dict[str, Any]) -> list[Any]:
    """The matrices that quantisers replace, of a real model."""
    from real_models import build

    model = build(config, Setup())
    return [
        module
        for path, module in model.named_modules()
        if isinstance(module, torch.nn.Linear) and "lm_head" not in path
    ]


def loaded(case: Job) -> tuple[int, int]:
    """(bytes of weights, bytes of their scales) when everything is on the card."""
    terms = at_the_end_of(case, "adapters").terms
    return terms["weights"], terms["quantization_constants"]


def other_bytes(config: dict[str, Any]) -> int:
    """Tables, head and norms, which preparation for k-bit training makes fp32."""
    from real_models import build

    model = build(config, Setup())
    matrices = sum(linear.weight.numel() for linear in block_linears(config))
    return int(4 * (sum(each.numel() for each in model.parameters()) - matrices))


def size(tensor: Any) -> int:
    """Bytes of one tensor."""
    return int(tensor.numel() * tensor.element_size())


def four_bit_bytes(linear: Any, quant_type: str, double_quant: bool) -> tuple[int, int]:
    """(packed bytes, bytes of scales) of one real 4-bit layer."""
    layer = bnb.nn.Linear4bit(linear.in_features, linear.out_features, bias=False, quant_type=quant_type)
    weight = bnb.nn.Params4bit(
        linear.weight.data, requires_grad=False, quant_type=quant_type, compress_statistics=double_quant
    )
    layer.weight = weight
    layer = layer.to("cpu")
    state = layer.weight.quant_state
    scales = size(state.absmax) + (size(state.state2.absmax) if state.nested else 0)
    assert state.nested == double_quant
    return size(layer.weight), scales


def numerics(quantization: Quantization, double_quant: bool = False) -> Setup:
    """A k-bit LoRA setup."""
    return Setup(rank=8, numerics=Numerics("bf16", "bf16-mixed", quantization, double_quant))


@pytest.mark.parametrize("config", [LLAMA, ODD], ids=["whole-blocks", "started-blocks"])
@pytest.mark.parametrize("double_quant", [False, True], ids=["single", "double"])
@pytest.mark.parametrize("quant_type", ["nf4", "fp4"])
def test_four_bit(quant_type: Quantization, double_quant: bool, config: dict[str, Any]) -> None:
    """Packed bytes are exact; scales too, up to one per started block and nested block of each matrix."""
    linears = block_linears(config)
    real = [four_bit_bytes(linear, quant_type, double_quant) for linear in linears]
    case = job(config, numerics(quant_type, double_quant))
    weights, constants = loaded(case)
    assert weights == pytest.approx(sum(packed for packed, _ in real) + other_bytes(config), abs=len(linears))
    started = (1 + 4 if double_quant else 4) * len(linears)
    assert constants == pytest.approx(sum(scales for _, scales in real), abs=started)


def test_int8() -> None:
    """An int8 layer keeps one byte per element and one fp32 scale per output feature."""
    packed = scales = 0
    for linear in block_linears(LLAMA):
        layer = bnb.nn.Linear8bitLt(
            linear.in_features, linear.out_features, bias=False, has_fp16_weights=False
        )
        layer.weight = bnb.nn.Int8Params(
            linear.weight.data.clone(), requires_grad=False, has_fp16_weights=False
        )
        layer = layer.to("cpu")
        weight = layer.weight
        if weight.dtype != torch.int8 or weight.SCB is None:
            pytest.skip("this build of bitsandbytes does not quantise to int8 on the CPU")
        packed, scales = packed + size(weight), scales + size(weight.SCB)
    assert loaded(job(LLAMA, numerics("int8"))) == (packed + other_bytes(LLAMA), scales)


@pytest.mark.parametrize("name", ["llama", "mixtral"])
def test_what_stays_unquantised(name: str) -> None:
    """After k-bit preparation everything else is fp32: tables, head, norms,
    and in Transformers 5 fused experts too.
    """
    from test_adapters import kbit_case

    model, case = kbit_case(name)
    stored = {id(tensor): size(tensor) for tensor in model.parameters()}
    assert loaded(case)[0] == sum(stored.values())
