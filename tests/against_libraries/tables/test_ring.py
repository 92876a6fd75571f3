"""Torch's ring over the keys of a divided sequence:
the step program asks for memory request by request as torch's own functions do.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest

from planner.domain.attention_shape import AttentionSpec
from planner.domain.recipes.parallel import Parallel
from planner.program.layers.attention.ring import by_ring
from planner.program.ops.operators import Operators
from planner.program.ops.tensors import Tensor, Unit
from planner.program.recorded_part import Shape, Template, Terms, run
from planner.program.view import Dtypes
from tests.extras import import_or_skip

TOKENS, WIDTH = 1024, 64
# States of random numbers and what has one number for each token are not counted.
SMALLEST_BYTES = TOKENS * 2
Request = tuple[int, list[int]]


def of_torch(size: int, n_heads: int, n_kv_heads: int) -> tuple[list[Request], list[Request]]:
    """Forward and backward of the last process but one of ``size``."""
    import torch
    from parallel_trace import LocalRecorder, group_of
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed.tensor.experimental._context_parallel import _attention as ring

    from measure.trace.cuda.sdpa import KERNEL_WORKSPACES

    recorder = LocalRecorder(KERNEL_WORKSPACES)
    forward: Any = ring._scaled_dot_product_ring_flash_attention
    back: Any = ring._scaled_dot_product_ring_flash_attention_backward

    def heads(number: int) -> torch.Tensor:
        return torch.empty(1, TOKENS, number, WIDTH, dtype=torch.bfloat16).transpose(1, 2)

    with group_of(size, size - 2) as mesh, FakeTensorMode(), recorder:
        q, k, v, gradient = (heads(number) for number in (n_heads, n_kv_heads, n_kv_heads, n_heads))
        n_given = len(recorder.trace.records)
        out, sums, *rest = forward(mesh, q, k, v, is_causal=True)
        n_forward = len(recorder.trace.records)
        dropped, causal = 0.0, True
        _gradients = back(mesh, gradient, q, k, v, out, sums, *rest[:4], dropped, causal, *rest[4:6])
        n_all = len(recorder.trace.records)
    events = [(each.alloc, int(each.block.n_bytes)) for each in recorder.trace.records]
    return requests(events[n_given:n_forward]), requests(events[n_forward:n_all])


def of_program(size: int, n_heads: int, n_kv_heads: int) -> tuple[list[Request], list[Request]]:
    """The same of the step program, without the copy of the output behind it."""
    spec = AttentionSpec(n_heads, n_kv_heads, WIDTH, WIDTH)
    view: Any = SimpleNamespace(
        block=SimpleNamespace(attention=spec),
        recipe=SimpleNamespace(attention="sdpa", parallel=Parallel(context=size)),
        dtypes=Dtypes("bf16", "bf16", "bf16", "bf16", "bf16", autocast=False),
    )

    def part(torch: Operators, x: Tensor) -> Tensor:
        keys = [torch.parameter(Unit.TOKENS, spec.k_width, "bf16", trained=True) for _ in range(2)]
        return by_ring(torch, view, x, *keys)

    template = run(part, Shape(spec.q_width, "bf16", True), Terms("saved_activations", "block_recompute"))
    forward = requests(events_of(template, "forward"))
    assert forward.pop()[0] == TOKENS * spec.q_width * 2
    return forward, requests(events_of(template, "backward"))


def events_of(template: Template, stage: str) -> list[tuple[bool, int]]:
    """Whether a tensor is made, and its bytes."""
    return [
        (event >= 0, round(template.unit_bytes[event if event >= 0 else ~event] * TOKENS))
        for event in template.stages[stage]
    ]


def requests(events: Iterable[tuple[bool, int]]) -> list[Request]:
    """Each with what is freed before the next one."""
    found: list[Request] = []
    for is_made, n_bytes in events:
        if n_bytes <= SMALLEST_BYTES:
            continue
        if is_made:
            found.append((n_bytes, []))
        else:
            found[-1][1].append(n_bytes)
            found[-1][1].sort()
    return found


@pytest.mark.parametrize(("size", "heads"), [(2, (8, 2)), (4, (8, 2)), (3, (4, 4))])
def test_each_step_asks_for_what_torch_asks_for(size: int, heads: tuple[int, int]) -> None:
    """The last process but one has steps of both kinds, where there are more than two."""
    import_or_skip("torch")
    for program, torch in zip(of_program(size, *heads), of_torch(size, *heads), strict=True):
        assert [n_bytes for n_bytes, _ in program] == [n_bytes for n_bytes, _ in torch]
        # What is freed last goes when the caller lets go of it.
        assert program[:-1] == torch[:-1]
