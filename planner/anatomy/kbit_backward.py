"""The moments of the backward of 4-bit matrices: the expanded weight and the widened gradient of the input are not there at once.

Sources: bitsandbytes 0.50 ``autograd/_functions.py`` MatMul4Bit.backward and ``functional.py`` dequantize_4bit, peft 0.21
``tuners/lora/bnb.py``, torch 2.13 ``autograd/engine.cpp`` (nodes run in the reverse order of the forward).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from planner.anatomy.inputs import input_bytes
from planner.anatomy.ledger import BlockView, Moment
from planner.anatomy.weight_copies import expanded_elements, is_4bit
from planner.domain.model import LinearSpec
from planner.domain.recipe import DTYPE_BYTES, Number

# (saved, forward, backward) bytes per token of one matrix for itself, adapter included.
Amounts = Callable[[BlockView, LinearSpec], tuple[Number, Number, Number]]


def all_4bit(view: BlockView, linears: Sequence[LinearSpec]) -> bool:
    """Whether all of ``linears`` are quantised to 4 bits by bitsandbytes, so that :func:`moments_4bit` describes them."""
    return bool(linears) and is_4bit(view) and all(view.quantized(linear) for linear in linears)


@dataclass(frozen=True, slots=True)
class _Around:
    """Bytes per token beside one matrix at work.

    ``others``: the stream's gradient, gradients of outputs whose matrices come later, less what earlier ones had kept.
    ``summed``: the gradient of the input that earlier matrices made.
    """

    others: Number
    summed: Number


def moments_4bit(
    view: BlockView, linears: Sequence[LinearSpec], stream: Number, out_bytes: int, amounts: Amounts
) -> tuple[Moment, ...]:
    """Each moment that may be the fullest of the backward of ``linears``, which read one tensor.

    They run one after the other, the last one first, each after its own adapter: what an adapter or an earlier matrix made of the
    input's gradient waits for the others.  ``out_bytes`` is the size of an element of an output's gradient, 0 where that is the
    stream's.
    """
    made: list[Moment] = []
    released: Number = 0
    waiting = sum(_outputs(linear) for linear in linears) * out_bytes
    done: set[str] = set()
    for linear in reversed(linears):
        saved, _, adapter = amounts(view, linear)
        summed = linear.in_features * input_bytes(view, linear) if linear.reads in done else 0
        made.append(Moment(stream + waiting - released + summed + adapter))
        waiting -= _outputs(linear) * out_bytes
        released = released + saved
        if view.adapted(linear):
            summed = linear.in_features * input_bytes(view, linear)
        if view.needs_gradient(linear):
            made.extend(_of_matrix(view, linear, _Around(stream + waiting - released, summed)))
            done.add(linear.reads)
        elif view.adapted(linear):
            done.add(linear.reads)
    return tuple(made)


def _of_matrix(view: BlockView, linear: LinearSpec, around: _Around) -> tuple[Moment, ...]:
    """Three moments of one matrix, after its adapter: expansion, product, and the product widened to the input's dtype.

    ``dequantize_4bit`` adds up the scales of doubly quantised ones in fp32 and returns the dtype that was quantised; its cast to
    the gradient's dtype is a second copy, and the first one goes before the product.  Autograd casts the gradient of the output
    before the product and that of the input after it, when the weight and the former have gone.
    Formula: (16-bit gradient, scales + expanded, or expanded + cast), (16-bit gradient + product, cast), (product + widened, 0).
    """
    compute, given = view.regime.compute, input_bytes(view, linear)
    gradient, product = _outputs(linear) * compute, linear.in_features * compute
    base = around.others + around.summed
    widened = linear.in_features * given if given != compute else 0
    return (
        Moment(base + gradient, expansion_bytes(view, linear)),
        Moment(base + gradient + product, expanded_elements(view, linear) * compute),
        Moment(base + product + widened),
    )


def expansion_bytes(view: BlockView, linear: LinearSpec) -> int:
    """Most bytes while one 4-bit weight is expanded for the backward.

    Formula: elements * bytes of the dtype that was quantised, beside an fp32 scale of every 64 elements (where scales are
    quantised too), or beside the cast to the compute dtype where that is another.
    Source: bitsandbytes 0.50 functional.py dequantize_4bit (``quant_state.dtype``), autograd/_functions.py MatMul4Bit.backward
    (``.to(grad_output.dtype)``).
    """
    numerics, elements = view.recipe.numerics, expanded_elements(view, linear)
    expanded = elements * DTYPE_BYTES[numerics.load_dtype]
    scales = elements // 64 * 4 if numerics.double_quant else 0
    cast = elements * view.regime.compute if numerics.load_dtype != numerics.compute_dtype else 0
    return expanded + max(scales, cast)


def _outputs(linear: LinearSpec) -> int:
    """Features per token that a matrix returns, of all its copies that a token passes."""
    return linear.out_features * (linear.active_copies if linear.group == "expert" else 1)
