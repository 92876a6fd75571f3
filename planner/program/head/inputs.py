"""What is made once a pass and read by many layers: attention masks, and tables of rotary positions.

Source: transformers 5.23 masking_utils.py create_causal_mask, create_sliding_window_causal_mask, sdpa_mask,
eager_mask.
Ignored: what older Transformers make of a mask on the way; alibi slopes before they are part of a mask:
one number for each head and position.
"""

from __future__ import annotations

from collections.abc import Sequence

from planner.program.layers.rotary import COS, SIN, turns
from planner.program.ops.operators import Operators
from planner.program.ops.tensors import Tensor, Unit
from planner.program.view import LayerView

MASK, BIAS = "mask", "bias"


def names_for(view: LayerView) -> dict[str, str]:
    """What layers of one kind read: the names that their code uses, and those of the tensors made."""
    if not view.block.attends:
        return {}
    # Eager attention always adds a mask.
    makes_own = view.block.attention.softcap and view.stack.soft_caps == "stream"
    needs_mask = (view.recipe.attention == "eager" and not makes_own) or has_mask(view)
    names = {MASK: f"{MASK} of windows" if _has_window(view) else MASK} if needs_mask else {}
    names |= {name: _of_turns(view, name) for name in (COS, SIN) if view.block.attention.position == "rope"}
    return names | ({BIAS: BIAS} if view.block.attention.position_bias else {})


def make_masks(torch: Operators, views: Sequence[LayerView]) -> None:
    """Make every mask, for layers without a window first."""
    for view in sorted(views, key=lambda each: (not each.block.attends, _has_window(each))):
        name = names_for(view).get(MASK)
        if name is not None and name not in torch.shared:
            torch.shared[name] = _mask(torch, view)
        attention = view.block.attention
        if attention.position_bias and BIAS not in torch.shared:
            torch.shared[BIAS] = torch.new(Unit.LENGTH_PAIRS, attention.n_heads, "fp32", "mul")


def make_turns(torch: Operators, views: Sequence[LayerView]) -> None:
    """Make each table of cosines and sines."""
    for view in views:
        name = names_for(view).get(COS)
        if name is not None and name not in torch.shared:
            torch.shared[name], torch.shared[_of_turns(view, SIN)] = turns(torch, view)


def _of_turns(view: LayerView, name: str) -> str:
    spec = view.block.attention
    by_window = spec.tables_by_window and _has_window(view)
    return (
        f"{name} {spec.rotary_width or spec.head_dim} {spec.rotary_form}{' of windows' if by_window else ''}"
    )


def _has_window(view: LayerView) -> bool:
    return view.block.attention.window_tokens is not None


def has_mask(view: LayerView) -> bool:
    """Whether SDPA is given a mask: where ``is_causal`` cannot say what it says."""
    return view.recipe.attention == "sdpa" and view.masked and view.stack.sdpa_mask != "none"


def _mask(torch: Operators, view: LayerView) -> Tensor:
    """Comparisons of positions joined, then with the padding; eager attention makes numbers of it."""
    if view.recipe.attention == "sdpa" and view.stack.sdpa_mask == "given":
        # masking_utils.py _preprocess_mask_arguments leaves a mask of four dimensions as it comes.
        return torch.new(Unit.PAIRS, 1, view.recipe.numerics.compute_dtype, "to")
    in_window = _has_window(view)
    for op in ["gt", "le"] if in_window else ["le"]:
        comparison = torch.new(Unit.LENGTH_PAIRS, 1, "bool", op)
        mask = torch.new(Unit.LENGTH_PAIRS, 1, "bool", "bitwise_and")
        del comparison
    if in_window:
        mask = torch.new(Unit.LENGTH_PAIRS, 1, "bool", "bitwise_and")
    mask = torch.new(Unit.PAIRS, 1, "bool", "bitwise_and")
    if view.recipe.attention == "eager" or view.stack.sdpa_mask == "stream":
        mask = torch.new(Unit.PAIRS, 1, view.dtypes.table, "where")
    if view.block.attention.fills_scores:
        mask = torch.like(mask, "to", "bool")
    return _with_slopes(torch, view, mask) if view.block.attention.has_sloped_mask else mask


def _with_slopes(torch: Operators, view: LayerView, mask: Tensor) -> Tensor:
    """Numbers that have the slopes of each head.

    Source: models/falcon/modeling_falcon.py FalconModel.forward, ``masked_fill``.
    """
    if mask.dtype == "bool":
        mask = torch.new(Unit.PAIRS, 1, view.dtypes.table, "where")
    below = torch.like(mask, "lt", "bool")
    filled = torch.new(Unit.PAIRS, view.block.attention.n_heads, view.dtypes.table, "masked_fill")
    del below
    return filled
