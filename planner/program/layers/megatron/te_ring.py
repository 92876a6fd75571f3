"""Attention over a sequence that GPUs divide, by Transformer Engine's ring (``cp_comm_type: p2p``).

Each GPU has two pieces of every sample.  Keys and values of all GPUs come by one after the other.  They stay
until attention's forward pass ends, as does what the kernel returns for each.  What came last is kept for
backward, where keys and values travel with their gradients, in two buffers.  Every second step runs on a
stream of its own.
Source: TransformerEngine d0067d0d (2.20.0.dev0) pytorch/attention/dot_product_attention/context_parallel.py
AttnFuncWithCPAndKVP2P (``thd``, FlashAttention), cp_p2p_fwd_prepare_qkv, cp_p2p_bwd_flash_attn.
ms-swift runs the kernel again in backward, so that its inputs are kept (megatron-core 0.16.1
transformer/attention.py _checkpointed_attention_forward).
Described is the last GPU, which holds most: it meets half of all keys but its own.
Ignored: samples padded to a multiple of two pieces for each GPU; what is sent while a kernel runs, in time.
"""

from __future__ import annotations

from planner.program.layers.attention.ring import cost_of_step, gradients_of_step, half
from planner.program.ops.autograd import record
from planner.program.ops.kernels import PRODUCTS
from planner.program.ops.operators import Operators, part_of, shape_of
from planner.program.ops.tensors import Tensor
from planner.program.view import LayerView

_FORWARD, _READ_HALF = "flash_attention", "thd_read_half_tensor"


def by_te_ring(torch: Operators, view: LayerView, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """What the queries of this GPU's tokens read from the whole sequence."""
    out, *made = _forward(torch, view, query, key)
    shapes = shape_of(query), shape_of(key)
    again = runs_again(view)

    def backward(*_: object) -> list[Tensor | None]:
        _made = _forward(torch, view, *shapes) if again else ()
        of_query, of_keys = _backward(torch, view, *shapes)
        return [of_query, part_of(of_keys, shapes[1].count), part_of(of_keys, shapes[1].count)]

    kept = [query, key, value] if again else [query, out, *made]
    return record(torch, out, [query, key, value], kept, backward)


def runs_again(view: LayerView) -> bool:
    """Whether attention alone is computed again in backward."""
    return view.stack.recomputes_attention and not view.recipe.gradient_checkpointing


def _forward(torch: Operators, view: LayerView, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The sum of all steps, the keys and values that came last, and logarithms of sums."""
    parts, n_heads = view.recipe.parallel.context, view.block.attention.n_heads
    pairs = [torch.new(key.unit, 2 * key.count, key.dtype, "cat", cost=[key, key])]
    outs: list[Tensor] = []
    _halves: list[Tensor] = []
    out = sums = None
    for step in range(parts):
        made = []
        if step < parts - 1:
            made.append(torch.like(pairs[0], "empty", cost=None))
            pairs.append(made[0])
        if step:
            _halves = [torch.like(half(key), _READ_HALF) for _ in range(2)]
            made += _halves
        made.append(torch.like(query, _FORWARD, cost=cost_of_step(view, PRODUCTS)))
        made.append(torch.new(query.unit, n_heads, "fp32", _FORWARD, cost=None))
        outs += made[-2:]
        if step % 2:
            torch.elsewhere += [each.storage.slot for each in made if each.storage is not None]
        if step == 1:
            sums = torch.like(outs[1], "clone")
            out = torch.like(query, "zeros")
    assert out is not None
    assert sums is not None
    torch.pay(outs, [out])
    return out, pairs[-1], sums


def _backward(torch: Operators, view: LayerView, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of the query, and of keys and values in one tensor, beside keys and values themselves."""
    parts = view.recipe.parallel.context
    of_query = torch.like(query, "empty", cost=None)
    buffers = [torch.new(key.unit, 4 * key.count, key.dtype, "empty", cost=None) for _ in range(2)]
    made: list[Tensor] = []
    for step in range(parts):
        made.clear()
        is_own = step == parts - 1
        _halves = [] if is_own else [torch.like(half(key), _READ_HALF) for _ in range(2)]
        made += gradients_of_step(torch, view, query, key if is_own else half(key))
        torch.pay(made, [of_query, key, key])
    return of_query, buffers[parts % 2]
