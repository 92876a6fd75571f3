"""Layers without attention: the gated delta rule by chunks of 64 positions,
and a short convolution between two gates.

Source: transformers 5.23 models/{qwen3_5,qwen3_next}/modeling_*.py GatedDeltaNet, lfm2 ShortConv; with the
kernels of flash-linear-attention 0.6 (fla/ops/gated_delta_rule/chunk.py ChunkGatedDeltaRuleFunction,
chunk_fwd.py, wy_fast.py, fla/ops/common/chunk_delta_h.py, chunk_o.py, fla/modules/norm/l2norm.py) and
causal-conv1d 1.6 (causal_conv1d_interface.py, cpp_functions.py).
Ignored: the rest of a last chunk that is not full;
a second half of the decay's gradient on cards with little shared memory.
"""

from __future__ import annotations

from dataclasses import replace

from planner.domain.mixer_specs import (
    DELTA_CHUNK_TOKENS,
    GatedDeltaSpec,
    Mamba1Spec,
    Mamba2Spec,
    ShortConvSpec,
)
from planner.program.head.heads import split
from planner.program.layers.fused_scan import fused_mamba1
from planner.program.layers.plain_delta import plain_delta_rule
from planner.program.layers.selective_scan import mamba1
from planner.program.layers.state_space import mamba2
from planner.program.ops.autograd import record
from planner.program.ops.convolution import convolved
from planner.program.ops.kernels import repeat_kv
from planner.program.ops.operators import Operators
from planner.program.ops.tensors import Tensor, Unit
from planner.program.ops.work import Multiplies, Product
from planner.program.view import LayerView
from planner.program.weights.matrices import linear


def mixer(torch: Operators, view: LayerView, x: Tensor) -> Tensor:
    """What a layer without attention adds to the stream, from the output ``x`` of the norm before it."""
    spec = view.block.mixer
    assert spec is not None
    if isinstance(spec, Mamba1Spec):
        return (fused_mamba1 if spec.fused else mamba1)(torch, view, spec, x)
    if isinstance(spec, Mamba2Spec):
        return mamba2(torch, view, spec, x)
    if isinstance(spec, ShortConvSpec):
        return _short_conv(torch, view, spec, x)
    return _gated_delta(torch, view, spec, x)


def _short_conv(torch: Operators, view: LayerView, spec: ShortConvSpec, x: Tensor) -> Tensor:
    """``C * conv(B * x)`` of three parts of one product."""
    with torch.inside("conv"):
        if view.masked:
            x = torch.same(x, "mul")
        joined = linear(torch, view, view.linears("attn_in")[0], x)
        before, behind, values = split(torch, joined, (spec.width,) * 3)
        x = torch.mul(before, values)
        x = convolved(torch, view, x, spec.kernel, "conv", bias=spec.bias)
        out = torch.mul(behind, x)
        return linear(torch, view, view.linears("attn_out")[0], out)


def _gated_delta(torch: Operators, view: LayerView, spec: GatedDeltaSpec, x: Tensor) -> Tensor:
    with torch.inside("linear_attn"):
        if view.masked:
            x = torch.same(x, "mul")
        products = [linear(torch, view, matrix, x) for matrix in view.linears("attn_in")]
        parts: list[Tensor] = []
        if spec.fused_inputs:
            mixed, gate, raw_beta, raw_decay = _taken_apart(torch, spec, products, parts)
        else:
            mixed, gate, raw_beta, raw_decay = products
            products.clear()
        plain = view.stack.recurrent_kernels == "torch"
        mixed = convolved(torch, view, mixed, spec.kernel, "conv1d")
        if plain:
            mixed = torch.kernel(mixed, "silu")
        query, key, value = split(torch, mixed, (spec.k_width, spec.k_width, spec.v_width))
        parts.clear()
        beta = torch.kernel(raw_beta, "sigmoid", saves="output")
        decay = _decay(torch, view, spec, raw_decay)
        shared = spec.value_heads > spec.key_heads
        if repeats := shared and (plain or view.stack.gated_delta != "grouped"):
            query, key = (repeat_kv(torch, each, spec.value_heads // spec.key_heads) for each in (query, key))
            spec = replace(spec, key_heads=spec.value_heads)
        if plain:
            # Gradients come head by head, and are copied for what was no copy of its own.
            query, key = (each if repeats else torch.moved(each) for each in (query, key))
            out = plain_delta_rule(torch, view, spec, (query, key, torch.moved(value)), decay, beta)
        else:
            out = _delta_rule(torch, spec, (query, key, value), decay, beta, copied=repeats)
        out = _gated_norm(torch, view, spec, out, gate)
        return linear(torch, view, view.linears("attn_out")[0], out)


def _taken_apart(
    torch: Operators, spec: GatedDeltaSpec, products: list[Tensor], parts: list[Tensor]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The convolution's input, gate, beta and decay from two products, where parts of a key lie together.

    ``parts`` gets query, key and value, which variables refer to until the convolution has run.  Values of
    several heads for one key are copied when they become heads, those of one head when they become features.
    """
    query, key, value, gate = split(
        torch, products[0], (spec.k_width, spec.k_width, spec.v_width, spec.v_width)
    )
    raw_beta, raw_decay = split(torch, products[1], (spec.value_heads, spec.value_heads))
    several = spec.value_heads > spec.key_heads
    if several:
        value, gate, raw_beta, raw_decay = (
            torch.contiguous(each) for each in (value, gate, raw_beta, raw_decay)
        )
    query, key = (torch.contiguous(each) for each in (query, key))
    parts += [query, key, value if several else torch.contiguous(value)]
    return torch.cat(parts), gate, raw_beta, raw_decay


def _decay(torch: Operators, view: LayerView, spec: GatedDeltaSpec, raw: Tensor) -> Tensor:
    """``-exp(A_log) * softplus(a + dt_bias)``, in fp32."""
    bias, log = (
        torch.parameter(Unit.ONE, spec.value_heads, view.dtypes.base, trained=view.trains_base)
        for _ in ("dt_bias", "A_log")
    )
    rate = torch.same(torch.kernel(torch.to(log, "fp32"), "exp", saves="output"), "neg")
    return torch.mul(rate, torch.kernel(torch.add(torch.to(raw, "fp32"), bias), "softplus"))


def _delta_rule(
    torch: Operators,
    spec: GatedDeltaSpec,
    heads: tuple[Tensor, Tensor, Tensor],
    decay: Tensor,
    beta: Tensor,
    *,
    copied: bool,
) -> Tensor:
    """Chunk by chunk: products within each, its state, and the output.  Views of the convolution are copied;
    query and key may be ``copied`` before.

    Saved are query and key, normed, with a number for each of their heads, the copied value, summed decays,
    beta, and the inverse of each chunk.
    """
    views = heads[2:] if copied else heads
    copies = [*heads[: 3 - len(views)], *(torch.like(each, "clone") for each in views)]
    value, dtype, macs = copies[2], copies[2].dtype, spec.macs_per_token
    products = Product(dtype, chunked=True)
    normed: list[Tensor] = []
    for copy in copies[:2]:
        normed += [
            torch.like(copy, "l2norm"),
            torch.new(Unit.TOKENS, spec.key_heads, "fp32", "l2norm", cost=None),
        ]
    sums = torch.like(decay, "cumsum")
    inverse = torch.new(Unit.TOKENS, spec.value_heads * DELTA_CHUNK_TOKENS, dtype, "zeros")
    _kept = _of_chunks(torch, spec, value)
    # Every tensor between the kernels is read by the next one.
    torch.pay(_kept)
    out = torch.like(value, "delta_rule", cost=Multiplies(products, Unit.TOKENS, macs, [value]))

    def backward(kept: list[Tensor], gradient: Tensor) -> list[Tensor | None]:
        made = _gradients(torch, spec, kept[4], gradient)
        torch.spend(products, Unit.TOKENS, 3 * macs)
        for number in (0, 1):
            made[number] = torch.like(kept[2 * number], "l2norm_backward")
        return made

    return record(torch, out, [*heads, decay, beta], [*normed, value, sums, beta, inverse], backward)


def _of_chunks(torch: Operators, spec: GatedDeltaSpec, value: Tensor) -> list[Tensor]:
    """Keys and values as the state sees them, the state before each chunk, and what is new in each value."""
    keys = torch.new(Unit.TOKENS, spec.value_heads * spec.key_dim, value.dtype, "empty")
    values = torch.like(value, "empty")
    states = torch.new(Unit.TOKENS, spec.v_width * spec.key_dim / DELTA_CHUNK_TOKENS, value.dtype, "empty")
    return [keys, values, states, torch.like(value, "empty")]


def _gradients(
    torch: Operators, spec: GatedDeltaSpec, value: Tensor, gradient: Tensor
) -> list[Tensor | None]:
    """Gradients of normed query and key, value, decay and beta; the chunks are computed again."""
    chunks = _of_chunks(torch, spec, value)
    of_value = torch.like(gradient, "empty")
    _of_states = torch.like(chunks[2], "empty")
    of_value = torch.like(of_value, "empty")
    # One for each head of values; of keys that several of them share, their sum.
    of_query, of_key, _of_keys = (torch.like(chunks[0], "empty") for _ in range(3))
    if spec.key_heads != spec.value_heads:
        shape = Tensor(None, Unit.TOKENS, spec.k_width, value.dtype)
        of_query, of_key = torch.like(shape, "sum"), torch.like(shape, "sum")
    of_decay = torch.new(Unit.TOKENS, spec.value_heads, "fp32", "cumsum")
    _more_of_key = torch.like(chunks[0], "empty")
    of_value = torch.like(value, "empty")
    of_beta = torch.new(Unit.TOKENS, spec.value_heads, value.dtype, "empty")
    return [of_query, of_key, of_value, of_decay, of_beta]


def _gated_norm(torch: Operators, view: LayerView, spec: GatedDeltaSpec, x: Tensor, gate: Tensor) -> Tensor:
    """Each head's output normed, weighted and multiplied by ``silu(gate)`` in fp32.

    Its kernel saves both as they come, and a number for each head.
    Source: flash-linear-attention 0.6 modules/norm/fused_norm_gate.py LayerNormGatedFunction.
    """
    given = x.dtype
    with torch.inside("norm"):
        weight = torch.parameter(Unit.ONE, spec.value_dim, view.dtypes.norm, trained=view.trains_base)
        if view.stack.gated_delta == "fused_norm" and view.stack.recurrent_kernels == "packages":
            return _fused_gated_norm(torch, spec, x, gate, weight)
        hidden = torch.to(x, "fp32")
        variance = torch.mean_of_rows(torch.square(hidden), spec.value_heads)
        hidden = torch.mul(hidden, torch.rsqrt(variance))
        hidden = torch.mul(weight, torch.to(hidden, given))
        hidden = torch.mul(hidden, torch.kernel(torch.to(gate, "fp32"), "silu"))
        return torch.to(hidden, given)


def _fused_gated_norm(
    torch: Operators, spec: GatedDeltaSpec, x: Tensor, gate: Tensor, weight: Tensor
) -> Tensor:
    out = torch.like(x, "empty_like")
    scale = torch.new(Unit.TOKENS, spec.value_heads, "fp32", "empty", cost=None)
    unit, count, dtype = weight.unit, weight.count, weight.dtype

    def backward(kept: list[Tensor], _: Tensor) -> list[Tensor | None]:
        of_x, of_gate = (torch.like(each, "empty_like") for each in kept[:2])
        return [of_x, of_gate, torch.new(unit, count, dtype, "sum") if weight.node is not None else None]

    return record(torch, out, [x, gate, weight], [x, gate, scale], backward)
