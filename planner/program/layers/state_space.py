"""Mamba 2: convolution, scan by chunks, gate or gated norm, and output projection,
in one kernel of mamba-ssm, or one by one.

The kernel multiplies with the output projection's own weight, past any adapter of it,
and makes every gradient.
Source: transformers 5.23 models/{bamba,granitemoehybrid,falcon_h1,nemotron_h}/modeling_*.py, the mixer's
forward; mamba-ssm 2.3.2 mamba_ssm/ops/triton/ssd_combined.py (MambaSplitConv1dScanCombinedFn),
ssd_chunk_state.py, ssd_chunk_scan.py, ssd_state_passing.py, layernorm_gated.py; causal-conv1d 1.6
cpp_functions.py.
Ignored: the rest of a last chunk that is not full; what Triton allocates while it tries configurations in the
first step; between the kernels all but states: scores of positions, numbers of heads.
"""

from __future__ import annotations

from dataclasses import replace

from planner.domain.mixer_specs import Mamba2Spec
from planner.program.head.heads import split
from planner.program.ops.autograd import record
from planner.program.ops.casts import autocast
from planner.program.ops.convolution import convolved
from planner.program.ops.operators import Costs, Operators
from planner.program.ops.tensors import Dtype, Tensor, Unit
from planner.program.ops.work import Multiplies, Product
from planner.program.view import LayerView
from planner.program.weights.matrices import linear

# Kernels whose results are too small to count: scores, sums of decays,
# and backward the gradients of decays, B and C.
_SMALL_FORWARD, _SMALL_BACKWARD = 4, 24


def mamba2(torch: Operators, view: LayerView, spec: Mamba2Spec, x: Tensor) -> Tensor:
    """What the state space adds to the stream, from the output ``x`` of the norm before it."""
    with torch.inside("mamba"):
        if view.masked:
            x = torch.same(x, "mul")
        if spec.scaled:
            x = torch.same(x, "mul")
        joined = linear(torch, view, view.linears("mixer_in")[0], x)
        if spec.scaled:
            joined = torch.mul(joined, Tensor(None, Unit.ONE, spec.joined_width, view.dtypes.base))
        if view.quantized(view.linears("mixer_out")[0]):
            return _apart(torch, view, spec, [joined])
        return _scan(torch, view, spec, joined)


def _apart(torch: Operators, view: LayerView, spec: Mamba2Spec, passed: list[Tensor]) -> Tensor:
    """Convolution, scan, gated norm and output projection by themselves, where the last one is packed.

    ``passed`` holds the product of the input projection, and is emptied.
    Source: transformers 5.23 models/nemotron_h/modeling_nemotron_h.py NemotronHMamba2Mixer.forward,
    NemotronHRMSNormGated; mamba-ssm 2.3.2 MambaChunkScanCombinedFn.
    """
    gate, values, steps = split(torch, passed.pop(), (spec.width, spec.conv_width, spec.heads))
    values = convolved(torch, view, values, spec.kernel, "conv1d", bias=spec.conv_bias)
    out = _chunk_scan(torch, view, spec, values, steps)
    with torch.inside("norm"):
        wide = torch.to(out, "fp32")
        wide = torch.mul(wide, torch.kernel(torch.to(gate, "fp32"), "silu"))
        variance = torch.mean_of_rows(torch.square(wide), spec.groups)
        wide = torch.mul(wide, torch.rsqrt(variance))
        weight = torch.parameter(Unit.ONE, spec.width, view.dtypes.norm, trained=view.trains_base)
        out = torch.mul(weight, torch.to(wide, out.dtype))
        del wide
    return linear(torch, view, view.linears("mixer_out")[0], out)


def _chunk_scan(torch: Operators, view: LayerView, spec: Mamba2Spec, x: Tensor, steps: Tensor) -> Tensor:
    """The scan alone: it saves what it reads and returns."""
    of_heads = [_head_weight(torch, view, spec) for _ in range(2)]
    others = [of_heads[0], _rate(torch, view, spec), of_heads[1]]
    out, _scanned_out, _kept = _scanned(torch, replace(spec, normed=True), x)
    counts = [each.count for each in others]

    def backward(kept: list[Tensor], gradient: Tensor) -> list[Tensor | None]:
        torch.spend(Product(gradient.dtype), Unit.TOKENS, 3 * spec.macs_per_token)
        _again = _scan_gradients(torch, replace(spec, normed=True), kept[0])
        of_x = torch.like(kept[0], "cat")
        of_steps = torch.like(kept[1], "empty")
        return [of_x, of_steps, *(torch.new(Unit.ONE, count, "fp32", "empty") for count in counts)]

    return record(torch, out, [x, steps, *others], [x, steps, out], backward)


def _rate(torch: Operators, view: LayerView, spec: Mamba2Spec) -> Tensor:
    """``-exp(A_log)`` in fp32."""
    log = torch.to(_head_weight(torch, view, spec), "fp32")
    return torch.same(torch.kernel(log, "exp", saves="output"), "neg")


def _head_weight(torch: Operators, view: LayerView, spec: Mamba2Spec) -> Tensor:
    return torch.parameter(Unit.ONE, spec.heads, view.dtypes.base, trained=view.trains_base)


def _weights(torch: Operators, view: LayerView, spec: Mamba2Spec) -> tuple[list[Tensor], list[Tensor]]:
    """Weights that the kernel takes: those before the output projection, and this with its bias."""
    base, trained, matrix = view.dtypes.base, view.trains_base, view.linears("mixer_out")[0]

    def weight(count: float, owner: str, dtype: Dtype = base) -> Tensor:
        return torch.parameter(Unit.ONE, count, dtype, trained=trained, owner=owner)

    log = torch.to(weight(spec.heads, ""), "fp32")
    rate = torch.same(torch.kernel(log, "exp", saves="output"), "neg")
    others = [weight(spec.conv_width * spec.kernel, "conv1d")]
    others += [weight(spec.conv_width, "conv1d")] if spec.conv_bias else []
    others += [weight(spec.heads, ""), rate, weight(spec.heads, "")]
    others += [weight(spec.width, "norm", view.dtypes.norm)] if spec.normed else []
    out = [weight(matrix.weight_count, matrix.name)]
    return others, out + ([weight(matrix.bias_count, matrix.name)] if matrix.bias else [])


def _scan(torch: Operators, view: LayerView, spec: Mamba2Spec, joined: Tensor) -> Tensor:
    """The kernel: saves the product, the scan's output, and the output projection's cast copy."""
    others, of_out = _weights(torch, view, spec)
    convolved = _convolved(torch, spec, joined)
    out, scanned, _kept = _scanned(torch, spec, convolved)
    rows = []
    if spec.normed:
        out = torch.like(scanned, "layer_norm_gated")
        rows = [torch.new(Unit.TOKENS, spec.groups, "fp32", "layer_norm_gated", cost=None)]
    out = autocast(torch, view, out)
    matrices = [autocast(torch, view, each) for each in of_out]
    shapes = [(each.count, each.dtype) for each in (*others, *matrices)]
    width = view.linears("mixer_out")[0].out_features
    costs = Costs(out, matrices[0], (Unit.TOKENS, width))
    out = torch.new(Unit.TOKENS, width, matrices[0].dtype, "mm", cost=costs.forward)

    def backward(kept: list[Tensor], gradient: Tensor) -> list[Tensor | None]:
        return _gradients(torch, spec, (kept[0], kept[1]), gradient, (shapes, costs))

    return record(torch, out, [joined, *others, *of_out], [joined, scanned, *rows, *matrices], backward)


def _states(torch: Operators, spec: Mamba2Spec, dtype: Dtype) -> Tensor:
    """The state of each head before each chunk."""
    return torch.like(Tensor(None, Unit.TOKENS, spec.width * spec.state / spec.chunk, dtype), "empty")


def _scanned(torch: Operators, spec: Mamba2Spec, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The output, that before the gate where the kernel has one, and the states."""
    torch.spend("launches", Unit.ONE, _SMALL_FORWARD)
    states = _states(torch, spec, "fp32")
    states = _states(torch, spec, x.dtype)
    # The scan reads the gate or writes for it what stands before the norm.
    reads = [Tensor(None, Unit.TOKENS, spec.width, x.dtype)]
    products = Multiplies(Product(x.dtype), Unit.TOKENS, spec.macs_per_token, reads)
    out = torch.new(Unit.TOKENS, spec.width, x.dtype, "chunk_scan", cost=products)
    return out, out if spec.normed else torch.like(out, "chunk_scan"), states


def _convolved(torch: Operators, spec: Mamba2Spec, joined: Tensor) -> Tensor:
    return torch.like(Tensor(None, Unit.TOKENS, spec.conv_width, joined.dtype), "causal_conv1d")


def _gradients(
    torch: Operators,
    spec: Mamba2Spec,
    kept: tuple[Tensor, Tensor],
    gradient: Tensor,
    of_weights: tuple[list[tuple[float, Dtype]], Costs],
) -> list[Tensor | None]:
    """Gradients of the product and of weights, of sizes that are given; the scan runs again.

    Each of its products has two gradients.
    """
    (joined, scanned), (shapes, costs) = kept, of_weights
    torch.spend(Product(scanned.dtype), Unit.TOKENS, 3 * spec.macs_per_token)
    out = torch.like(scanned, "empty")
    x = _convolved(torch, spec, joined)
    of_joined = torch.like(joined, "empty")
    _of_parts = torch.like(x, "empty")
    _of_out = torch.like(scanned, "mm", gradient.dtype, cost=costs.of_x)
    if spec.normed:
        _of_scan = torch.like(scanned, "layer_norm_gated_backward")
    again = _scan_gradients(torch, spec, x)
    n_out = 2 if len(shapes) > 4 + spec.conv_bias + spec.normed + 1 else 1
    made = [
        torch.new(Unit.ONE, count, dtype, "mm", cost=[gradient] if index else costs.of_weight)
        for index, (count, dtype) in enumerate(shapes[-n_out:])
    ]
    conv = [torch.new(Unit.ONE, count, "fp32", "zeros_like") for count, _ in shapes[: 1 + spec.conv_bias]]
    for index, (_, dtype) in enumerate(shapes[: len(conv)]):
        conv[index] = torch.to(conv[index], dtype)
    del out, again
    others = [
        torch.new(Unit.ONE, count, dtype, "empty") for count, dtype in shapes[1 + spec.conv_bias : -n_out]
    ]
    return [of_joined, *conv, *others, *made]


def _scan_gradients(torch: Operators, spec: Mamba2Spec, x: Tensor) -> list[Tensor]:
    """States and their gradients; the gated output, where the kernel has a gate, is computed again."""
    torch.spend("launches", Unit.ONE, _SMALL_BACKWARD)
    states = _states(torch, spec, "fp32")
    states = _states(torch, spec, "fp32")
    again = [] if spec.normed else [torch.new(Unit.TOKENS, spec.width, x.dtype, "empty") for _ in range(2)]
    of_states = _states(torch, spec, "fp32")
    _narrow = [_states(torch, spec, x.dtype) for _ in range(2 if x.dtype != "fp32" else 1)]
    del states, of_states
    return again[1:]
