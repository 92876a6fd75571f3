"""Attention over a sequence that GPUs divide, by Transformer Engine's exchange of tokens for heads
(``cp_comm_type: a2a``): each GPU gets all tokens of its own heads, and gives outputs back.

What is sent is a copy by GPUs, and what came is put in the order of the sequence on a stream of its own.
Query, key and value of all tokens are kept, and what the kernel made of them.  ms-swift runs all of it again
in backward, so that its inputs are kept.
Source: TransformerEngine d0067d0d (2.20.0.dev0) pytorch/attention/dot_product_attention/context_parallel.py
AttnFuncWithCPAndQKVOA2A, flash_attn_a2a_communicate (``thd``, FlashAttention); megatron-core 0.16.1
transformer/attention.py _checkpointed_attention_forward.
Ignored: samples padded to a multiple of two pieces for each GPU.
"""

from __future__ import annotations

from planner.program.layers.megatron.te_ring import runs_again
from planner.program.ops.autograd import record
from planner.program.ops.collectives import ALL_TO_ALL
from planner.program.ops.kernels import BACKWARD_PRODUCTS, PRODUCTS, flash_workspace, fused_cost
from planner.program.ops.operators import Operators, shape_of
from planner.program.ops.tensors import Tensor
from planner.program.view import LayerView

_FORWARD, _BACKWARD = "flash_attention", "flash_attention_backward"


def by_te_exchange(torch: Operators, view: LayerView, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """What the queries of this GPU's tokens read from the whole sequence."""
    shapes = [shape_of(each) for each in (query, key, value)]
    out, made = _forward(torch, view, shapes)
    again = runs_again(view)

    def backward(*_: object) -> list[Tensor | None]:
        _made = _forward(torch, view, shapes) if again else ()
        return [*_backward(torch, view, shapes)]

    inputs = [query, key, value]
    return record(torch, out, inputs, inputs if again else made, backward)


def _forward(torch: Operators, view: LayerView, shapes: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
    """The output of this GPU's tokens; and all tokens of its heads, with what the kernel made of them."""
    made = _to_heads(torch, shapes)
    made.append(torch.like(shapes[0], _FORWARD, cost=fused_cost(view, "flash", PRODUCTS)))
    n_heads = view.block.attention.n_heads
    made.append(torch.new(shapes[0].unit, n_heads, "fp32", _FORWARD, cost=None))
    return _to_tokens(torch, shapes[:1])[0], made


def _backward(torch: Operators, view: LayerView, shapes: list[Tensor]) -> list[Tensor]:
    """Gradients of query, key and value."""
    spec, (query, key, _) = view.block.attention, shapes
    _of_out = _to_heads(torch, shapes[:1])
    _made = [torch.like(each, "empty", cost=None) for each in shapes]
    torch.pay(fused_cost(view, "flash", BACKWARD_PRODUCTS))
    work = flash_workspace(torch, spec.head_dim, (query.unit, query.count / spec.head_dim), _BACKWARD)
    if key.count < query.count:
        work += [torch.new(key.unit, query.count, key.dtype, _BACKWARD, cost=None) for _ in range(2)]
    work.clear()
    return _to_tokens(torch, shapes)


def _to_heads(torch: Operators, shapes: list[Tensor]) -> list[Tensor]:
    """All tokens of this GPU's heads."""
    return _exchanged(torch, shapes, "clone", "thd_to_sequence_order")


def _to_tokens(torch: Operators, shapes: list[Tensor]) -> list[Tensor]:
    """All heads of this GPU's tokens."""
    return _exchanged(torch, shapes, "thd_to_rank_order", "clone")


def _exchanged(torch: Operators, shapes: list[Tensor], before: str, behind: str) -> list[Tensor]:
    """Each is copied, sent while the next one is copied, and copied to its place when it has come."""
    sent: list[Tensor] = []
    made: list[Tensor] = []
    for turn in range(len(shapes) + 2):
        if 0 < turn <= len(shapes):
            made.append(torch.like(sent[turn - 1], ALL_TO_ALL, cost=None))
        if turn < len(shapes):
            sent.append(torch.like(shapes[turn], before))
        if turn > 1:
            made[turn - 2] = _beside(torch, made[turn - 2], behind)
    return made


def _beside(torch: Operators, x: Tensor, op: str) -> Tensor:
    """A copy on the stream of what is sent."""
    out = torch.like(x, op)
    if out.storage is not None:
        torch.elsewhere.append(out.storage.slot)
    return out
