"""What LLM.int8() layers keep, and what they need while they run.

Source: bitsandbytes 0.50 autograd/_functions.py ``MatMul8bitLt``, backends/cuda/ops.py, backends/default/ops.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from planner.anatomy.inputs import input_bytes
from planner.anatomy.ledger import BlockView
from planner.domain.model import LinearSpec


def is_int8(view: BlockView) -> bool:
    """Whether the base is quantised by LLM.int8()."""
    return view.recipe.numerics.quantization == "int8"


def int8_work_bytes(view: BlockView, linear: LinearSpec) -> tuple[int, int]:
    """(forward, backward) bytes per token that an int8 matrix needs while it runs, beyond its input and its output.

    Forward, while the input is quantised: an fp16 copy (2), its absolute values (2), an outlier mask and the int8 rows (1 each);
    while it multiplies: the int8 rows, an int32 product (4), its fp16 form (2) and the product in the input's dtype, which
    becomes the output or is added to the outliers' part.  Backward: the output's gradient in the input's dtype.
    """
    if not (is_int8(view) and view.quantized(linear)):
        return 0, 0
    given, out_bytes = input_bytes(view, linear), view.regime.linear_out
    quantizing = linear.in_features * 6
    multiplying = linear.in_features + linear.out_features * (6 + given - out_bytes)
    cast = linear.out_features * given if given != out_bytes else 0
    return max(quantizing, multiplying), cast


def int8_context_bytes(view: BlockView) -> dict[str, int]:
    """Bytes per token that int8 matrices hold as attributes of the autograd context, not as saved tensors, by what they read.

    Saved-tensor hooks do not see them, so non-reentrant checkpointing keeps them for every layer.  They live as long as the
    graph: a node's backward lets go of what it saved, not of its attributes.
    Source: bitsandbytes 0.50 autograd/_functions.py MatMul8bitLt.forward (``ctx.tensors``), measured 19.1 against 7.1 units.
    """
    if not is_int8(view):
        return {}
    kept: dict[str, int] = {}
    for linear in view.block.linears:
        if view.quantized(linear) and view.needs_gradient(linear):
            kept[linear.reads] = linear.in_features * input_bytes(view, linear)
    if view.shares_norm:
        # Both branches read one tensor.
        kept.pop("mlp_in", None)
    if view.block.reads_stream:
        # The stored input of the layer itself.
        kept.pop("attn_in", None)
    for reads in {linear.reads for linear in view.block.linears}:
        columns = int8_column_bytes(view, [linear for linear in view.block.linears if linear.reads == reads])
        kept[reads] = kept.get(reads, 0) + columns
    return kept


def int8_column_bytes(view: BlockView, linears: Sequence[LinearSpec]) -> int:
    """Bytes per token of the column-wise quantised input that each int8 matrix keeps for itself: one byte per input feature.

    Source: bitsandbytes 0.41.3 autograd/_functions.py MatMul8bitLt.forward (``CAt`` in ``ctx.tensors``); none since 0.45.
    """
    if not is_int8(view) or not view.stack.int8_keeps_quantized_input:
        return 0
    return sum(linear.in_features * linear.copies for linear in linears if view.quantized(linear))


def outlier_weight_bytes(view: BlockView) -> int:
    """Bytes of one layer's int8 matrices, were every column an outlier: elements times the bytes of their input.

    Source: bitsandbytes 0.41.3 autograd/_functions.py MatMul8bitLt.forward (``state.subB`` in the dtype of ``A``).
    """
    return sum(linear.weight_count * input_bytes(view, linear) for linear in view.block.linears if view.quantized(linear))
