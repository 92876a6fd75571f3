"""Mamba 1 alone: convolution, steps, scan and output projection in one function of mamba-ssm.

It reads the weights of three matrices itself, past any adapter of them, and makes every gradient.
Source: transformers 5.23 models/{mamba,falcon_mamba}/modeling_*.py, the mixer's forward, and
integrations/hub_kernels.py, which leaves out what the function does not take: Falcon-Mamba's norms;
mamba-ssm 2.3.2 mamba_ssm/ops/selective_scan_interface.py MambaInnerFn.
Ignored: copies of several samples in another layout, one operator long.
"""

from __future__ import annotations

from planner.domain.mixer_specs import Mamba1Spec
from planner.program.layers.selective_scan import decay_of, widened
from planner.program.ops.autograd import record
from planner.program.ops.casts import autocast
from planner.program.ops.operators import Costs, Operators
from planner.program.ops.tensors import Dtype, Tensor, Unit
from planner.program.ops.work import Multiplies, Product
from planner.program.view import LayerView
from planner.program.weights.matrices import linear

_READ = ("mixer_mid", "mixer_step", "mixer_out")
"""Inputs of the three matrices whose weights the function takes."""


def fused_mamba1(torch: Operators, view: LayerView, spec: Mamba1Spec, x: Tensor) -> Tensor:
    """What the state space adds to the stream, from the output ``x`` of the norm before it."""
    with torch.inside("mamba"):
        if view.masked:
            x = torch.same(x, "mul")
        joined = linear(torch, view, view.linears("mixer_in")[0], x)
        return _inner(torch, view, spec, joined)


def _weights(torch: Operators, view: LayerView, spec: Mamba1Spec) -> tuple[list[Tensor], list[Tensor]]:
    """The convolution, and the three matrices."""
    base, trained = view.dtypes.base, view.trains_base
    sizes = [spec.width * spec.kernel] + [spec.width] * spec.conv_bias
    conv = [torch.parameter(Unit.ONE, size, base, trained=trained, owner="conv1d") for size in sizes]
    matrices = [view.linears(each)[0] for each in _READ]
    return conv, [
        torch.parameter(Unit.ONE, each.weight_count, base, trained=trained, owner=each.name)
        for each in matrices
    ]


def _inner(torch: Operators, view: LayerView, spec: Mamba1Spec, joined: Tensor) -> Tensor:
    """The function: saves a copy with positions together, the small product, and what the scan returns."""
    decay = decay_of(torch, view, spec)
    conv, given = _weights(torch, view, spec)
    skip, bias = (widened(torch, view, spec.width) for _ in range(2))
    inputs = [joined, *conv, *given, decay, skip, bias]
    matrices = [autocast(torch, view, each) for each in given]
    copy = torch.like(joined, "clone")
    values, small, steps = _again(torch, spec, copy, matrices)
    shared = [torch.new(Unit.TOKENS, spec.state, small.dtype, "clone", cost=[small]) for _ in range(2)]
    kind, macs = Product(values.dtype), 3.0 * decay.count
    scanned = torch.like(
        steps, "selective_scan", cost=Multiplies(kind, Unit.TOKENS, macs, [values, steps, *shared, copy])
    )
    states = torch.new(Unit.SCAN_BLOCKS, 2 * decay.count, "fp32", "selective_scan")
    gated = torch.like(steps, "selective_scan", cost=None)
    del values, steps
    width = view.linears("mixer_out")[0].out_features
    costs = Costs(gated, matrices[2], (Unit.TOKENS, width))
    out = torch.new(Unit.TOKENS, width, matrices[2].dtype, "mm", cost=costs.forward)
    shapes = [(each.count, each.dtype) for each in (*conv, *matrices)]
    saved = [copy, small, *matrices, decay, *shared, skip, bias, states, scanned]

    def backward(kept: list[Tensor], gradient: Tensor) -> list[Tensor | None]:
        torch.pay(Multiplies(kind, Unit.TOKENS, 3 * macs, [gradient]))
        return _gradients(torch, spec, kept, gradient, (shapes, costs))

    return record(torch, out, inputs, saved, backward)


def _again(
    torch: Operators, spec: Mamba1Spec, copy: Tensor, matrices: list[Tensor], small: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """What the convolution returns, the product of steps, B and C, if it is not there, and the steps."""
    values = torch.new(Unit.TOKENS, spec.width, copy.dtype, "causal_conv1d", cost=[copy])
    shape = (Unit.TOKENS, spec.rank + 2 * spec.state)
    if small is None:
        cost = Costs(values, matrices[0], shape).forward
        small = torch.new(*shape, matrices[0].dtype, "mm", cost=cost)
    cost = Costs(small, matrices[1], (Unit.TOKENS, spec.width)).forward
    return values, small, torch.new(Unit.TOKENS, spec.width, matrices[1].dtype, "mm", cost=cost)


def _gradients(
    torch: Operators,
    spec: Mamba1Spec,
    kept: list[Tensor],
    gradient: Tensor,
    of_weights: tuple[list[tuple[float, Dtype]], Costs],
) -> list[Tensor | None]:
    """All of them, in the order of the function's variables, which live until it returns."""
    (copy, small, *matrices), (shapes, costs) = kept[:5], of_weights
    decay, *shared, skip, bias, _states, scanned = kept[5:]
    values, _, steps = _again(torch, spec, copy, matrices, small)
    of_joined = torch.like(copy, "empty")
    _of_out = torch.like(scanned, "mm", gradient.dtype, cost=costs.of_x)
    of_values, of_steps, of_decay = (torch.like(each, "empty") for each in (values, steps, decay))
    of_shared = [torch.like(each, "zeros_like", "fp32") for each in shared]
    of_skip, of_bias = (torch.like(each, "zeros_like") for each in (skip, bias))
    _gated = torch.like(scanned, "empty")
    _narrow = [torch.to(each, small.dtype) for each in of_shared]
    n_conv = len(shapes) - len(matrices)
    of_matrix = [torch.new(Unit.ONE, *shapes[-1], "mm", cost=costs.of_weight)]
    of_small = torch.like(small, "empty")
    sides = (
        Costs(small, matrices[1], (Unit.TOKENS, spec.width)),
        Costs(values, matrices[0], _unit_of(small)),
    )
    of_matrix.append(torch.new(Unit.ONE, *shapes[-2], "mm", cost=sides[0].of_weight))
    _part = torch.new(Unit.TOKENS, spec.rank, small.dtype, "mm", cost=sides[0].of_x)
    del _part
    of_matrix.append(torch.new(Unit.ONE, *shapes[-3], "mm", cost=sides[1].of_weight))
    torch.pay(sides[1].of_x)
    wide = [torch.new(Unit.ONE, count, "fp32", "zeros_like") for count, _ in shapes[:n_conv]]
    conv = [torch.to(each, dtype) for each, (_, dtype) in zip(wide, shapes, strict=False)]
    del of_values, of_steps, of_small
    return [of_joined, *conv, *reversed(of_matrix), of_decay, of_skip, of_bias]


def _unit_of(x: Tensor) -> tuple[Unit, float]:
    return x.unit, x.count
