"""Attention over a divided sequence by exchange (Ulysses): each GPU gives its tokens of other heads for all
tokens of its own heads, and takes the outputs back.

The tensors of one GPU are as large before as after: fewer heads of more tokens.
Source: deepspeed 0.19.8 runtime/sequence_parallel/ulysses_sp.py UlyssesSPAttentionHF.forward,
sequence/layer.py _dim_zero_all_to_all; transformers 5.23 integrations/deepspeed.py
deepspeed_sp_compute_loss.
Ignored: position numbers of the whole sequence, and the loss of each GPU, which are gathered.
"""

from __future__ import annotations

from dataclasses import replace

from planner.domain.recipes.parallel import ALONE
from planner.program.ops.autograd import record
from planner.program.ops.collectives import ALL_TO_ALL
from planner.program.ops.kernels import fused_attention, repeat_kv
from planner.program.ops.operators import Operators
from planner.program.ops.tensors import Tensor
from planner.program.view import LayerView


def by_exchanged_heads(
    torch: Operators, view: LayerView, query: Tensor, key: Tensor, value: Tensor
) -> Tensor:
    """What attention returns for this GPU's tokens, rows of all heads together.

    Fewer heads of keys than GPUs are copied, so that each GPU has one.
    """
    spec, parts = view.block.attention, view.recipe.parallel.context
    copies = max(parts // spec.n_kv_heads, 1)
    queries, keys = spec.n_heads // parts, spec.n_kv_heads * copies // parts
    whole = [_whole_sequence(torch, query, queries)]
    whole += [
        _whole_sequence(torch, repeat_kv(torch, each, copies) if copies > 1 else each, keys)
        for each in (key, value)
    ]
    for index, n_heads in enumerate((queries, keys, keys)):
        if n_heads > 1:
            whole[index] = torch.contiguous(whole[index], by_heads=True)
    out = fused_attention(torch, _one_of_many(view, keys * parts), *whole)
    received = _all_to_all(torch, out)
    del out
    return torch.contiguous(received)


def by_exchanged_parts(
    torch: Operators, view: LayerView, query: Tensor, key: Tensor, value: Tensor
) -> Tensor:
    """The same as LLaMA-Factory v1 does it, with a tensor for each GPU, which goes when this returns."""
    query, key, value = (_exchanged(torch, view, each, to_heads=True) for each in (query, key, value))
    out = fused_attention(torch, _one_of_many(view, view.block.attention.n_kv_heads), query, key, value)
    return _exchanged(torch, view, out, to_heads=False)


def _one_of_many(view: LayerView, n_kv_heads: int) -> LayerView:
    """The layer as the kernel sees it: whole sequences, of which all keys are here."""
    block = replace(view.block, attention=replace(view.block.attention, n_kv_heads=n_kv_heads))
    return replace(view, block=block, recipe=replace(view.recipe, parallel=ALONE))


def _whole_sequence(torch: Operators, x: Tensor, n_heads: int) -> Tensor:
    """All tokens of this GPU's ``n_heads``: sent from a copy in the order of GPUs.

    The gradient of that copy is put back in the order of tokens, where a GPU has several heads.
    """

    def backward(_: list[Tensor], gradient: Tensor) -> list[Tensor | None]:
        return [torch.like(gradient, "clone") if n_heads > 1 else gradient]

    sent = record(torch, torch.like(x, "clone"), [x], [], backward)
    return _all_to_all(torch, sent, is_ordered=n_heads == 1)


def _all_to_all(torch: Operators, x: Tensor, *, is_ordered: bool = False) -> Tensor:
    """What arrives from all GPUs; the gradient goes back from a copy in order, unless it ``is_ordered``."""

    def backward(_: list[Tensor], gradient: Tensor) -> list[Tensor | None]:
        ordered = gradient if is_ordered else torch.like(gradient, "clone")
        returned = torch.like(ordered, ALL_TO_ALL, cost=None)
        returned.head_by_head = False
        return [returned]

    return record(torch, torch.like(x, ALL_TO_ALL, cost=None), [x], [], backward)


def _exchanged(torch: Operators, view: LayerView, x: Tensor, *, to_heads: bool) -> Tensor:
    """All tokens of this GPU's heads for its own tokens of all heads, or back, as the gradient goes.

    Source: hiyouga/LLaMA-Factory ff6d4d12e src/llamafactory/v1/plugins/model_plugins/parallelization/
    seq_comm.py SeqAllToAll4D, ulysses.py UlyssesAttention.
    """

    def backward(_: list[Tensor], gradient: Tensor) -> list[Tensor | None]:
        return [_exchange(torch, view, gradient, cuts_heads=not to_heads)]

    return record(torch, _exchange(torch, view, x, cuts_heads=to_heads), [x], [], backward)


def _exchange(torch: Operators, view: LayerView, x: Tensor, *, cuts_heads: bool) -> Tensor:
    """What is sent is a copy where its parts do not lie together: heads, or tokens of several samples."""
    parts = view.recipe.parallel.context
    piece = Tensor(None, x.unit, x.count / parts, x.dtype)
    copies = cuts_heads or not view.single
    sent = [torch.like(piece, "clone") for _ in range(parts)] if copies else []
    received = [torch.like(piece, ALL_TO_ALL, cost=None) for _ in range(parts)]
    out = torch.like(x, "cat")
    del sent, received
    return out
