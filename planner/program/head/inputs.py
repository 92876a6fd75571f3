"""What is made once a pass and read by many layers: the attention masks and the tables of rotary positions.

Source: transformers 5.23 masking_utils.py create_causal_mask, create_sliding_window_causal_mask, sdpa_mask,
eager_mask; models/llama/modeling_llama.py LlamaRotaryEmbedding.forward; models/{gemma3,olmo3}/modeling_*.py
(a pair of tables for each kind of layer).
Ignored: what older Transformers make of a mask on the way; alibi slopes,
one number for each head and position.
"""

from __future__ import annotations

from collections.abc import Sequence

from planner.domain.model import ModelSpec
from planner.program.ops.operators import Operators
from planner.program.ops.tensors import Dtype, Tensor, Unit
from planner.program.view import LayerView

MASK, COSINES, SINES, BIAS = "mask", "cosines", "sines", "bias"


def names_for(model: ModelSpec, view: LayerView) -> dict[str, str]:
    """What layers of one kind read: the names that their code uses, and those of the tensors that were made.

    A checkpointed layer without attention keeps the tables of rotary positions too,
    because it is called with them.
    """
    if not view.block.attends and not (view.recipe.gradient_checkpointing and _turns(model)):
        return {}
    # Eager attention always adds one.
    needs_mask = view.recipe.attention == "eager" or has_mask(view)
    names = {MASK: f"{MASK}{_kind(view)}"} if needs_mask and view.block.attends else {}
    if view.block.attention.position_bias:
        names[BIAS] = BIAS
    if (
        view.block.attention.position == "rope" or not view.block.attends
    ) and model.rotary_tables != "layers":
        kind = _kind(view) if model.rotary_by_kind else ""
        names.update({COSINES: f"{COSINES}{kind}", SINES: f"{SINES}{kind}"})
    return names


def _turns(model: ModelSpec) -> bool:
    return any(group.block.attention.position == "rope" for group in model.groups)


def make_masks(torch: Operators, model: ModelSpec, views: Sequence[LayerView]) -> None:
    """Make every mask, for layers without a window first."""
    for view in _full_first(views):
        name = names_for(model, view).get(MASK)
        if name is not None and name not in torch.shared:
            torch.shared[name] = _mask(torch, view)
        attention = view.block.attention
        if attention.position_bias and BIAS not in torch.shared:
            torch.shared[BIAS] = torch.new(Unit.LENGTH_PAIRS, attention.n_heads, "fp32", "mul")


def make_tables(torch: Operators, model: ModelSpec, views: Sequence[LayerView], stream: Dtype) -> None:
    """Make all tables of rotary positions, for layers without a window first."""
    for view in _full_first(views):
        names = {} if not view.block.attends else names_for(model, view)
        if COSINES in names and names[COSINES] not in torch.shared:
            with torch.inside("rotary_emb"):
                tables = _tables(torch, model, view, stream)
            torch.shared[names[COSINES]], torch.shared[names[SINES]] = tables


def _full_first(views: Sequence[LayerView]) -> list[LayerView]:
    return sorted(
        views, key=lambda view: (not view.block.attends, view.block.attention.window_tokens is not None)
    )


def _kind(view: LayerView) -> str:
    return "" if view.block.attention.window_tokens is None else " of windows"


def has_mask(view: LayerView) -> bool:
    """Whether SDPA is given a mask: where ``is_causal`` cannot say what it says."""
    return view.recipe.attention == "sdpa" and view.masked and view.stack.sdpa_mask != "none"


def _mask(torch: Operators, view: LayerView) -> Tensor:
    """Comparisons of positions joined by ``and``, then with the padding;
    eager attention turns it into numbers to add.
    """
    in_window = view.block.attention.window_tokens is not None
    for op in ["gt", "le"] if in_window else ["le"]:
        comparison = torch.new(Unit.LENGTH_PAIRS, 1, "bool", op)
        mask = torch.new(Unit.LENGTH_PAIRS, 1, "bool", "bitwise_and")
        del comparison
    if in_window:
        mask = torch.new(Unit.LENGTH_PAIRS, 1, "bool", "bitwise_and")
    mask = torch.new(Unit.PAIRS, 1, "bool", "bitwise_and")
    if view.recipe.attention == "eager" or view.stack.sdpa_mask == "stream":
        mask = torch.new(Unit.PAIRS, 1, view.dtypes.table, "where")
    return mask


def _tables(torch: Operators, model: ModelSpec, view: LayerView, dtype: Dtype) -> tuple[Tensor, Tensor]:
    """Cosines and sines of one sample, made in fp32;
    or both as one table of complex numbers (DeepSeek V2).
    """
    attention = view.block.attention
    width = attention.rotary_width or attention.head_dim
    if model.rotary_tables in ("sections", "interleaved"):
        return _of_sections(torch, width, dtype, in_place=model.rotary_tables == "interleaved")
    angles = _frequencies = torch.new(Unit.LENGTH, width / 2, "fp32", "mul")
    if attention.rotary_form == "complex":
        ones = torch.like(angles, "ones_like")
        angles = torch.new(Unit.LENGTH, width, "fp32", "polar")
        del ones
        table = _scaled(torch, angles)
        return table, table
    if model.rotary_tables != "half":
        angles = torch.new(Unit.LENGTH, width, "fp32", "cat")
    cosines = _scaled(torch, torch.like(angles, "cos"))
    sines = _scaled(torch, torch.like(angles, "sin"))
    if model.rotary_tables == "fp32":
        return cosines, sines
    return torch.to(cosines, dtype), torch.to(sines, dtype)


def _of_sections(torch: Operators, width: float, dtype: Dtype, *, in_place: bool) -> tuple[Tensor, Tensor]:
    """Cosines and sines of every sample, each put together of those of time, height and width.

    Source: transformers 5.23 models/qwen2_vl/modeling_qwen2_vl.py Qwen2VLRotaryEmbedding.forward;
    ``in_place``: models/qwen3_vl/modeling_qwen3_vl.py Qwen3VLTextRotaryEmbedding.
    """
    positions = torch.new(Unit.TOKENS, 3, "fp32", "to")
    angles = torch.new(Unit.TOKENS, 3 * width / 2, "fp32", "mul")
    del positions
    cosines = _scaled(torch, torch.like(angles, "cos"))
    sines = _scaled(torch, torch.like(angles, "sin"))
    sines = _joined_sections(torch, [sines], width, in_place=in_place)
    cosines = _joined_sections(torch, [cosines], width, in_place=in_place)
    return torch.to(cosines, dtype), torch.to(sines, dtype)


def _joined_sections(torch: Operators, table: list[Tensor], width: float, *, in_place: bool) -> Tensor:
    """``cat`` of a third of each of three tables, unless the first one takes them,
    and ``cat`` of that with itself.

    ``table`` is emptied.
    """
    half = None if in_place else torch.new(Unit.TOKENS, width / 2, "fp32", "cat")
    out = torch.new(Unit.TOKENS, width, "fp32", "cat")
    del half
    table.clear()
    return out


def _scaled(torch: Operators, table: Tensor) -> Tensor:
    return torch.like(table, "mul")
