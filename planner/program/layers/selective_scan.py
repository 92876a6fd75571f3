"""Mamba 1 as Jamba has it: convolution, products that make steps, B and C with norms,
and a scan in one kernel of mamba-ssm.

Source: transformers 5.23 models/jamba/modeling_jamba.py JambaMambaMixer.forward; mamba-ssm 2.3.2
mamba_ssm/ops/selective_scan_interface.py SelectiveScanFn, csrc/selective_scan/selective_scan.cpp.
Ignored: an adapter of ``dt_proj``, whose weight is read past it where the base has 16 bits; copies of several
samples in another layout, one operator long.
"""

from __future__ import annotations

from planner.domain.mixer_specs import Mamba1Spec
from planner.domain.model import NormSpec
from planner.errors import NotModelledError
from planner.program.head.heads import split
from planner.program.layers.norms import norm
from planner.program.ops.autograd import record
from planner.program.ops.casts import autocast
from planner.program.ops.convolution import convolved
from planner.program.ops.operators import Operators
from planner.program.ops.tensors import Tensor, Unit
from planner.program.ops.work import Multiplies, Product
from planner.program.view import LayerView
from planner.program.weights.matrices import linear, weight_copy


def mamba1(torch: Operators, view: LayerView, spec: Mamba1Spec, x: Tensor) -> Tensor:
    """What the state space adds to the stream, from the output ``x`` of the norm before it."""
    with torch.inside("mamba"):
        if view.masked:
            x = torch.same(x, "mul")
        inner, outer = view.linears("mixer_in")[0], view.linears("mixer_out")[0]
        joined = linear(torch, view, inner, x)
        decay = decay_of(torch, view, spec)
        values, gate = split(torch, joined, (spec.width, spec.width))
        del joined
        values = convolved(torch, view, values, spec.kernel, "conv1d", bias=spec.conv_bias)
        if view.masked:
            values = torch.same(values, "mul")
        middle = linear(torch, view, view.linears("mixer_mid")[0], values)
        steps, into, out_of = split(torch, middle, (spec.rank, spec.state, spec.state))
        del middle
        steps, into, out_of = (
            norm(torch, view, NormSpec("rms", int(each.count), on="mixer"), each)
            for each in (steps, into, out_of)
        )
        steps = _steps(torch, view, spec, steps)
        out = _scan(torch, view, (values, steps, gate), (into, out_of), decay)
        return linear(torch, view, outer, out)


def decay_of(torch: Operators, view: LayerView, spec: Mamba1Spec) -> Tensor:
    """``-exp(A_log)`` in fp32."""
    log = torch.parameter(Unit.ONE, spec.width * spec.state, view.dtypes.base, trained=view.trains_base)
    return torch.same(torch.kernel(torch.to(log, "fp32"), "exp", saves="output"), "neg")


def _steps(torch: Operators, view: LayerView, spec: Mamba1Spec, x: Tensor) -> Tensor:
    """``dt_proj`` without its bias: the weight, or the packed module, whose bias is subtracted again."""
    matrix = view.linears("mixer_step")[0]
    if view.quantized(matrix):
        return torch.contiguous(linear(torch, view, matrix, x), "sub")
    with torch.inside(matrix.name):
        weight = torch.parameter(Unit.ONE, matrix.weight_count, view.dtypes.base, trained=view.trains_base)
        steps = torch.mm(autocast(torch, view, x), weight_copy(torch, view, weight), spec.width)
        # A trained matrix times a batch is one product of rows, transposed and copied behind it.
        return torch.contiguous(steps) if view.trains_base else steps


def widened(torch: Operators, view: LayerView, count: float) -> Tensor:
    """A vector of the kernel, in fp32."""
    weight = torch.parameter(Unit.ONE, count, view.dtypes.base, trained=view.trains_base)
    return torch.to(weight, "fp32")


def _scan(
    torch: Operators,
    view: LayerView,
    wide: tuple[Tensor, Tensor, Tensor],
    narrow: tuple[Tensor, Tensor],
    decay: Tensor,
) -> Tensor:
    """The kernel: copies with positions together, the output before and behind the gate, states of blocks."""
    values, steps, gate = wide
    into, out_of = narrow
    if any(each.dtype != values.dtype for each in (steps, into, out_of, gate)):
        raise NotModelledError(
            f"the kernel of mamba-ssm takes B and C in {values.dtype} as the values, and the norms of this "
            f"job make {into.dtype} of them: it fails; load the base in {values.dtype} "
            f"(--load-dtype {values.dtype})"
        )
    skip, bias = (widened(torch, view, values.count) for _ in range(2))
    inputs = [values, steps, decay, into, out_of, skip, gate, bias]
    copies = [torch.like(values, "clone")]
    # The weight's own product has its positions together already.
    moved = torch.like(steps, "clone") if view.quantized(view.linears("mixer_step")[0]) else steps
    copies += [torch.like(each, "clone") for each in (into, out_of, gate)]
    kind, macs = Product(values.dtype), 3.0 * decay.count
    out = torch.like(
        copies[3], "selective_scan", cost=Multiplies(kind, Unit.TOKENS, macs, [copies[0], moved, *copies[1:]])
    )
    before = torch.new(moved.unit, moved.count, moved.dtype, "selective_scan")
    before.head_by_head = moved.head_by_head
    states = torch.new(Unit.SCAN_BLOCKS, 2 * decay.count, "fp32", "selective_scan")
    saved = [copies[0], moved, decay, copies[1], copies[2], skip, copies[3], bias, states, before]

    def backward(kept: list[Tensor], gradient: Tensor) -> list[Tensor | None]:
        of_gate, of_values, of_steps, of_decay = (torch.like(kept[index], "empty") for index in (6, 0, 1, 2))
        of_values.is_view = True  # of the transposed values
        # States are updated again, and each product has two gradients; the kernel reads the gradient once.
        torch.pay(Multiplies(kind, Unit.TOKENS, 3 * macs, [gradient]))
        shared = [torch.like(kept[index], "zeros_like", "fp32") for index in (3, 4)]
        of_skip, of_bias = (torch.like(kept[index], "zeros_like") for index in (5, 7))
        of_into, of_out_of = (torch.to(each, kept[3].dtype) for each in shared)
        return [of_values, of_steps, of_decay, of_into, of_out_of, of_skip, of_gate, of_bias]

    return record(torch, out, inputs, saved, backward)
