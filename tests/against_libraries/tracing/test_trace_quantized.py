"""Stand-ins for 4-bit layers against bitsandbytes' own on the CPU, and what they do in a step."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest

from tests.extras import import_or_skip

import_or_skip("bitsandbytes")
import_or_skip("peft")

import bitsandbytes
import torch
from scenarios import Setup
from tiny_traces import small_config, small_scenario
from torch import nn

from measure.trace.cuda.quantized import _stand_in
from measure.trace.labels import to_events
from measure.trace.traced_job import trace_records
from planner.domain.recipes.recipe import Numerics


def _tensors(holder: Any) -> Iterator[torch.Tensor]:
    """Tensors of a quantisation state, but for the code book of the scales, which all layers share."""
    for name in ("absmax", "code", "offset"):
        if isinstance(getattr(holder, name, None), torch.Tensor):
            yield getattr(holder, name)
    if holder.state2 is not None:
        yield holder.state2.absmax


@pytest.mark.parametrize("double", [True, False])
@pytest.mark.parametrize("shape", [(128, 256), (11, 320), (688, 256)])
def test_stored_bytes_are_those_of_the_real_layer(shape: tuple[int, int], double: bool) -> None:
    """Packed weights, scales, their scales, offset and code book:
    tensor by tensor as bitsandbytes stores them.
    """
    rows, columns = shape
    real = bitsandbytes.nn.Linear4bit(columns, rows, bias=False, compress_statistics=double, quant_type="nf4")
    real.weight = bitsandbytes.nn.Params4bit(
        torch.randn(rows, columns, dtype=torch.bfloat16),
        requires_grad=False,
        compress_statistics=double,
        quant_type="nf4",
    )
    real = real.to("cpu")
    wanted = sorted(tensor.nbytes for tensor in (real.weight, *_tensors(real.weight.quant_state)))
    with torch.device("meta"):
        ours: nn.Module = bitsandbytes.nn.Linear4bit(
            columns, rows, bias=False, compress_statistics=double, quant_type="nf4"
        )
    _stand_in(ours, torch.bfloat16)
    assert sorted(tensor.nbytes for tensor in (*ours.parameters(), *ours.buffers())) == wanted
    assert isinstance(ours, bitsandbytes.nn.Linear4bit), "PEFT would not take it for a 4-bit layer"


def _qlora(**changes: Any) -> Any:
    numerics = Numerics("bf16", "bf16-mixed", "nf4", double_quant=True)
    return small_scenario("llama", Setup(rank=4, numerics=numerics, **changes))


def test_a_step_over_a_4bit_base_expands_each_matrix_in_both_passes() -> None:
    """Each quantised matrix is expanded once per forward and once per backward, and given back at once."""
    case = _qlora()
    records = trace_records(case, small_config("llama", case))
    gc.collect()
    expanded = [
        each for each in to_events(records) if each.term == "dequantization" and each.n_bytes == 256 * 688 * 2
    ]
    passes = [each.phase for each in expanded if each.action == "alloc"]
    # gate, up and down in each of two layers; while loading, each is there in full before it is packed
    assert {phase: passes.count(phase) for phase in dict.fromkeys(passes)} == {
        "load": 6, "forward": 6, "backward": 6, "forward_2": 6, "backward_2": 6
    }  # fmt: skip
    assert sum(each.action == "alloc" for each in expanded) == sum(each.action == "free" for each in expanded)


def test_the_preparation_of_the_base_widens_what_is_left() -> None:
    """Embedding, norms and head are loaded in 16-bit and widened to fp32, both copies alive for a moment."""
    case = _qlora()
    events = to_events(trace_records(case, small_config("llama", case)))
    table = 512 * 256
    sizes = [
        (each.action, each.n_bytes)
        for each in events
        if each.phase == "load" and each.module.endswith("lm_head")
    ]
    assert sizes == [("alloc", table * 2), ("alloc", table * 4), ("free", table * 2)]
