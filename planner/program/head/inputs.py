"""What is made once a pass and read by many layers: the attention masks.

Source: transformers 5.23 masking_utils.py create_causal_mask, create_sliding_window_causal_mask, sdpa_mask,
eager_mask.
Ignored: what older Transformers make of a mask on the way; alibi slopes, one number for each head and
position; tables of rotary positions of one pass, below 0.1 % of what a step allocates.
"""

from __future__ import annotations

from collections.abc import Sequence

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
    return mask
