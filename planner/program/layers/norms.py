"""Norms, as the modelling code of Transformers writes them.

Source: transformers 5.23 models/{llama,olmo2,gemma,cohere,gpt_oss}/modeling_*.py; torch 2.13
``native_layer_norm``.
"""

from __future__ import annotations

from planner.domain.model import NormSpec
from planner.program.ops.autograd import record
from planner.program.ops.operators import Operators, shape_of
from planner.program.ops.tensors import Tensor, Unit
from planner.program.view import LayerView

_FUSED = ("cast", "narrowed", "returned", "autocast")
"""How kernels of layer norms are called."""


def norm(torch: Operators, view: LayerView, spec: NormSpec, x: Tensor, name: str = "norm") -> Tensor:
    """The module ``name``: one norm of ``spec`` over ``x``.

    What stands behind a space tells several of one name in a layer apart, for engines that hook into modules.
    """
    if view.recipe.sharding.is_zero3 and x.dtype == "fp32":
        # A function of DeepSpeed's around each module, in which gradients of its input are summed first.
        x = torch.reshaped(x)
    with torch.inside(name, name.partition(" ")[0]):
        if spec.kind == "layer" and spec.scaling in _FUSED:
            return _layer_norm(torch, view, spec, x)
        if not spec.weight and spec.scaling != "turned":
            return _l2_norm(torch, spec, x)
        weight = torch.parameter(Unit.ONE, spec.width, view.dtypes.norm, trained=view.trains_base)
        if spec.scaling == "turned":
            return _turned_norm(torch, view, spec, x)
        if spec.scaling == "operators":
            return _by_operators(torch, view, spec, x, weight)
        if view.stack.fused_norm:
            return _fused_rms_norm(torch, x, weight)
        return _rms_norm(torch, spec, x, weight, wide=view.stack.scales_norms_wide)


def _rms_norm(torch: Operators, spec: NormSpec, x: Tensor, weight: Tensor, *, wide: bool) -> Tensor:
    """``weight * (x / sqrt(mean(x^2)))`` in fp32, cast back before the weight (``cast``) or after it.

    ``wide``: the program's own norm casts after it where the model's would before.
    """
    given, rows = x.dtype, spec.rows_per_token
    hidden = torch.to(x, "fp32")
    if spec.scaling == "centred":
        hidden = _centred(torch, hidden, rows)
    else:
        # A variable, which lives until the norm returns.
        variance = torch.mean_of_rows(torch.square(hidden), rows)
        hidden = torch.mul(hidden, torch.rsqrt(variance))
    if spec.scaling == "wide" or (wide and spec.scaling in ("cast", "cast_first")):
        return torch.to(torch.mul(weight, hidden), given)
    if spec.scaling == "cast":
        return torch.mul(weight, torch.to(hidden, given))
    if spec.scaling == "cast_first":
        hidden = torch.to(hidden, given)
        return torch.mul(weight, hidden)
    if spec.scaling == "widened":
        product = torch.mul(torch.to(weight, "fp32"), hidden)
        return torch.to(product, given)
    if spec.scaling == "one_plus":
        hidden = torch.mul(hidden, torch.shifted(torch.to(weight, "fp32")))
    else:
        hidden = torch.mul(torch.to(weight, "fp32"), hidden)
    return torch.to(hidden, given)


def _l2_norm(torch: Operators, spec: NormSpec, x: Tensor) -> Tensor:
    """The same without a weight.  Source: models/llama4/modeling_llama4.py Llama4TextL2Norm."""
    hidden = torch.to(x, "fp32")
    hidden = torch.mul(hidden, torch.rsqrt(torch.mean_of_rows(torch.square(hidden), spec.rows_per_token)))
    return torch.to(hidden, x.dtype)


def _centred(torch: Operators, hidden: Tensor, rows: float) -> Tensor:
    """``(x - mean) / sqrt(mean((x - mean) ** 2))``, whose difference is made twice."""
    mean = torch.mean_of_rows(hidden, rows)
    variance = torch.mean_of_rows(torch.square(torch.sub(hidden, mean)), rows)
    return torch.mul(torch.sub(hidden, mean), torch.rsqrt(variance))


def _by_operators(torch: Operators, view: LayerView, spec: NormSpec, x: Tensor, weight: Tensor) -> Tensor:
    """``scale * (x - mean) / sqrt(var + eps) + shift``, one operator after the other.

    Source: rasbt/LLMs-from-scratch ch05 00_orig.py LayerNorm.
    Ignored: what ``var`` and ``div`` make in backward beside a square and a product.
    """
    shift = torch.parameter(Unit.ONE, spec.width, view.dtypes.norm, trained=view.trains_base)
    mean = torch.mean_of_rows(x, spec.rows_per_token)
    variance = torch.mean_of_rows(torch.square(x), spec.rows_per_token)
    quotient = torch.mul(torch.sub(x, mean), torch.rsqrt(variance))
    return torch.add(torch.mul(weight, quotient), shift)


def _layer_norm(torch: Operators, view: LayerView, spec: NormSpec, x: Tensor) -> Tensor:
    """``nn.LayerNorm``: one kernel that saves its input, in fp32 under autocast; some code casts it back."""
    given = torch.to(x, "fp32") if view.dtypes.autocast or spec.scaling == "narrowed" else x
    if spec.scaling == "autocast":
        given = torch.to(x, view.product_dtype(x.dtype))
    out = torch.like(given, "native_layer_norm")
    dtype, shape = given.dtype, shape_of(given)
    parameters = [
        torch.parameter(Unit.ONE, spec.width, view.dtypes.norm, trained=view.trains_base)
        for _ in range(spec.weight + spec.bias)
    ]
    cast = view.dtypes.autocast and given.dtype == "fp32"
    # Small tensors, which take the host as long as large ones.
    torch.spend("launches", Unit.ONE, cast * sum(each.dtype != "fp32" for each in parameters))
    of_parameters = [each.dtype for each in parameters if each.node is not None]

    def backward(_: list[Tensor], gradient: Tensor) -> list[Tensor | None]:
        of_x = torch.like(gradient, "native_layer_norm_backward", dtype, cost=(shape,))
        if of_parameters:
            torch.move([gradient, shape], torch.manner.share)
            torch.spend("launches", Unit.ONE, cast * sum(each != "fp32" for each in of_parameters))
        made: list[Tensor | None] = [
            torch.new(Unit.ONE, spec.width, each, "native_layer_norm_backward", cost=None)
            for each in of_parameters
        ]
        return [of_x, *(made or [None] * len(parameters))]

    made = record(torch, out, [given, *parameters], [given], backward)
    del given
    return torch.to(made, x.dtype) if spec.scaling in ("narrowed", "returned") else made


def _fused_rms_norm(torch: Operators, x: Tensor, weight: Tensor) -> Tensor:
    """One kernel that saves its input, whose dtype it keeps; in backward it writes a new gradient.

    Source: Liger-Kernel 0.1.0, 0.4.2 and 0.6.0 ops/rms_norm.py.
    """
    out = torch.like(x, "rms_norm")
    trained = weight.node is not None

    def backward(_: list[Tensor], gradient: Tensor) -> list[Tensor | None]:
        of_x = torch.like(gradient, "rms_norm_backward", shape.dtype, cost=(shape,))
        if not trained:
            return [of_x, None]
        return [of_x, torch.new(Unit.ONE, weight.count, weight.dtype, "rms_norm_backward", cost=None)]

    shape = shape_of(x)
    return record(torch, out, [x, weight], [x], backward)


def _turned_norm(torch: Operators, view: LayerView, spec: NormSpec, x: Tensor) -> Tensor:
    """One kernel that saves its input, a number for each head, and its tables of positions.

    Rows that share their positions have them copied for each row.
    Source: axolotl 0.19.0 kernels/gemma4_fused_rope.py fused_rms_norm_rope, fused_rms_norm_noscale.
    Ignored: the gradient of the weight, which is made whether it is needed or not.
    """
    out = torch.like(x, "rms_norm_rope")
    rows = torch.new(x.unit, spec.rows_per_token, "fp32", "rms_norm_rope", cost=None)
    tables: list[Tensor] = []
    if spec.weight and not view.single and view.recipe.batch.padding != "packed":
        width = view.block.attention.rotary_width or spec.width
        tables = [torch.new(Unit.TOKENS, width, view.embedded, "clone", cost=None) for _ in range(2)]

    def backward(kept: list[Tensor], gradient: Tensor) -> list[Tensor | None]:
        if gradient.head_by_head:
            gradient = torch.like(gradient, "clone")
        return [torch.like(kept[0], "rms_norm_rope_backward", cost=(gradient,))]

    return record(torch, out, [x], [x, rows, *tables], backward)
