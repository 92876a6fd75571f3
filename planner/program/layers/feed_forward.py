"""The feed-forward part of a layer: matrices around an activation, or a mixture of experts.

Source: transformers 5.23 models/{llama,phi,phi3}/modeling_*.py, the MLP classes; Liger-Kernel 0.5
transformers/swiglu.py.
"""

from __future__ import annotations

from planner.domain.model import LinearGroup, LinearSpec
from planner.program.layers.activations import activation, fused_gate, gated, largest
from planner.program.layers.mixture.dispatched import dispatched
from planner.program.layers.mixture.every_expert import every_expert
from planner.program.layers.mixture.experts import experts, router
from planner.program.layers.mixture.on_host import on_host
from planner.program.layers.mixture.selected_experts import sampled_experts, selected_experts
from planner.program.ops.collectives import gathered
from planner.program.ops.operators import Operators
from planner.program.ops.tensors import Tensor, replaced
from planner.program.view import LayerView
from planner.program.weights.fused_adapters import fused_feed_forward, takes_adapter
from planner.program.weights.matrices import dropout, linear


def dense(torch: Operators, view: LayerView, x: Tensor, group: LinearGroup = "mlp") -> Tensor:
    """The matrices of one ``group`` around their activation, in expressions of the modelling code."""
    inputs = [spec for spec in view.linears("mlp_in") if spec.group == group]
    down = next(spec for spec in view.linears("mlp_mid") if spec.group == group)
    if not view.block.mlp.gated:
        middle = activation(torch, view, linear(torch, view, inputs[0], x))
        if view.block.sums_inside != "none":
            torch.summed.append(middle)
        return linear(torch, view, down, middle)
    if len(inputs) == 1:
        gate, up = torch.halves(linear(torch, view, inputs[0], x))
        if view.stack.fused_mlp:
            return linear(torch, view, down, fused_gate(torch, torch.contiguous(gate), torch.contiguous(up)))
        return linear(torch, view, down, torch.mul(up, activation(torch, view, gate)))
    if view.block.mlp.scales_gate:
        return _scaled(torch, view, (inputs[0], inputs[1], down), x)
    if view.block.mlp.sparse_gate:
        gate = largest(torch, linear(torch, view, inputs[0], x))
        gate = activation(torch, view, gate)
        return linear(torch, view, down, torch.mul(gate, linear(torch, view, inputs[1], x)))
    if group == "mlp" and all(takes_adapter(view, spec) for spec in (*inputs, down)):
        return fused_feed_forward(torch, view, (*inputs, down), x)
    if view.stack.fused_mlp:
        middle = fused_gate(torch, linear(torch, view, inputs[0], x), linear(torch, view, inputs[1], x))
        return linear(torch, view, down, middle)
    return linear(torch, view, down, gated(torch, view, (inputs[0], inputs[1]), x))


def _scaled(
    torch: Operators, view: LayerView, matrices: tuple[LinearSpec, LinearSpec, LinearSpec], x: Tensor
) -> Tensor:
    """``down(up(x) * act(gate(x) * number)) * number``: transformers 5.23 models/falcon_h1 FalconH1MLP."""
    gate, up, down = matrices
    middle = torch.mul(
        linear(torch, view, up, x), activation(torch, view, torch.same(linear(torch, view, gate, x), "mul"))
    )
    return torch.same(linear(torch, view, down, middle), "mul")


def feed_forward(torch: Operators, view: LayerView, x: Tensor) -> Tensor:
    """What the feed-forward part adds to the stream, from the output ``x`` of the norm before it."""
    with torch.inside("mlp"):
        if view.block.mlp.n_experts and view.block.mlp.router != "beside":
            return _mixture(torch, view, x)
        out = dense(torch, view, gathered(torch, view, x))
        return dropout(torch, out) if view.block.dropouts and view.block.drops_inside else out


def inline_feed_forward(torch: Operators, view: LayerView, passed: list[Tensor]) -> Tensor:
    """The same where the layer itself runs both matrices over rows, with one variable for what each returns.

    ``passed`` holds the output of the norm, and is emptied.
    Source: transformers 5.23 models/opt/modeling_opt.py OPTDecoderLayer.forward.
    """
    with replaced(torch, flat=True), torch.inside("mlp"):
        passed.append(linear(torch, view, view.linears("mlp_in")[0], passed.pop()))
        passed.append(activation(torch, view, passed.pop()))
        return linear(torch, view, view.linears("mlp_mid")[0], passed.pop())


_CHOOSERS = {"selected": selected_experts, "sampled": sampled_experts}
"""Mixtures that have no other part than their experts, by how they choose them."""


def _mixture(torch: Operators, view: LayerView, x: Tensor) -> Tensor:
    """Routed experts, and the shared one: with a gate of its own it runs before them, else behind; Trinity's
    between the router and the experts.

    Source: transformers 5.23 models/{qwen2_moe,deepseek_v3,afmoe}, the ``forward`` of their sparse blocks.
    """

    def shared(rows: Tensor) -> Tensor:
        return dense(torch, view, rows, "shared_expert")

    mlp = view.block.mlp
    if view.stack.mixture_code.startswith("torchtitan-"):
        return dispatched(torch, view, x, shared)
    if view.stack.host_experts != "none":
        return on_host(torch, view, x, shared)
    if (of_its_own := _CHOOSERS.get(mlp.router)) is not None:
        return of_its_own(torch, view, x)
    if mlp.router == "every":
        return every_expert(torch, view, x, shared)
    if not mlp.shared_width:
        return experts(torch, view, x, router(torch, view, x))
    if mlp.router == "sigmoid_module":
        weights, rows = router(torch, view, x), torch.reshaped(x)
        beside = shared(rows)
        return torch.add(beside, experts(torch, view, rows, weights))
    gates = [each for each in view.linears("mlp_in") if each.group == "router" and mlp.router != "module"]
    if not (gates or mlp.shared_first):
        weights = router(torch, view, x)
        out = _narrow_experts(torch, view, torch.reshaped(x), weights)
        dtype = "fp32" if mlp.wide_sum else out.dtype
        return torch.to(torch.add(torch.to(out, dtype), torch.to(shared(x), dtype)), out.dtype)
    beside = shared(x)
    out = experts(torch, view, x, router(torch, view, x))
    if not mlp.shared_first:
        rows = torch.reshaped(x, is_view=False)
        gate = torch.kernel(linear(torch, view, gates[0], rows), "sigmoid", saves="output")
        beside = torch.mul(gate, beside)
    return torch.add(out, beside)


def _narrow_experts(torch: Operators, view: LayerView, x: Tensor, weights: Tensor) -> Tensor:
    """What the experts return, between a matrix to fewer features and one back where the layer has them.

    Source: transformers 5.23 models/nemotron_h/modeling_nemotron_h.py NemotronHMoE.forward.
    """
    inward = [spec for spec in view.linears("mlp_in") if spec.group == "mlp"]
    if not inward:
        return experts(torch, view, x, weights)
    outward = next(spec for spec in view.linears("mlp_mid") if spec.group == "mlp")
    return linear(torch, view, outward, experts(torch, view, linear(torch, view, inward[0], x), weights))
