"""A mixture whose experts a CPU computes (KTransformers): the card routes, sends the tokens and gets the sum.

One process has the experts of all ranks, and it is the one that is counted: it receives the tokens of the
others, joins them, and holds what all of them get back.
Source: kt-kernel 0.7.0 python/sft/layer.py KTMoELayerWrapper.forward, _compute_routing,
_submit_and_compute_gpu; autograd.py KTMoEFunction; dist_utils.py _dist_gather_varlen_to_rank0,
_dist_scatter_varlen_from_rank0; base.py _copy_inputs_to_buffer, _return_output, _return_grads.
Ignored: numbers and weights of the chosen experts, some numbers for each token; the scores of groups of
experts; messages between ranks.
"""

from __future__ import annotations

from collections.abc import Callable

from planner.domain.model import LinearSpec
from planner.program.ops.autograd import record
from planner.program.ops.casts import autocast, linear_function, weight_copy
from planner.program.ops.operators import Operators
from planner.program.ops.tensors import Tensor, Unit
from planner.program.view import LayerView
from planner.program.weights.lora_operators import with_adapter
from planner.program.weights.matrices import linear

RECEIVED, JOINED, FROM_HOST = "irecv", "cat of all ranks", "to the card"
"""Names of what is made on the card around the experts, as operators."""


def on_host(torch: Operators, view: LayerView, x: Tensor, shared: Callable[[Tensor], Tensor]) -> Tensor:
    """What router, experts and the ``shared`` one, if there is one, return for ``x``.

    A layer that runs again sends nothing where the host kept what the experts returned.
    """
    weights = _weights(torch, view, x)
    sends = torch.direction != "again" or not view.stack.keeps_host_activations
    received = _received(torch, view, x) if sends else []
    beside = _beside(torch, view, x, shared) if view.block.mlp.shared_width else None
    del received
    out = _returned(torch, view, x, weights)
    return out if beside is None else torch.add(out, beside)


def _weights(torch: Operators, view: LayerView, x: Tensor) -> Tensor:
    """Weights of the chosen experts, by a linear layer that stands around the weight of the router."""
    mlp = view.block.mlp
    spec = next(spec for spec in _routers(view) if spec.out_features == mlp.n_experts)
    rows = torch.reshaped(x, is_view=True)
    if mlp.router != "sigmoid":
        scores = torch.softmax(torch.to(linear(torch, view, spec, rows), "fp32"))
    else:
        with torch.inside(spec.name):
            adapted = view.adapted(spec)
            logits = (
                with_adapter(torch, view, spec, rows, _wide) if adapted else _wide(torch, view, spec, rows)
            )
        scores = torch.kernel(torch.to(logits, "fp32"), "sigmoid", saves="output")
    return torch.to(torch.chosen(scores, mlp.top_k), "bf16")


def _routers(view: LayerView) -> list[LinearSpec]:
    return [spec for spec in view.linears("mlp_in") if spec.group == "router"]


def _wide(torch: Operators, view: LayerView, spec: LinearSpec, x: Tensor) -> Tensor:
    """The product of a router of DeepSeek, in fp32 where autocast leaves it so."""
    weight = torch.parameter(Unit.ONE, spec.weight_count, view.dtypes.base, trained=view.trains_base)
    weight = torch.to(weight, "fp32")
    x = torch.to(x, "fp32")
    weight = weight_copy(torch, view, weight)
    return linear_function(torch, view)(autocast(torch, view, x), weight, spec.out_features)


def _received(torch: Operators, view: LayerView, x: Tensor) -> list[Tensor]:
    """The tokens of the other ranks, which live until the shared expert has run, and joined with those of
    this one until the host has copied them.
    """
    received = [torch.like(x, RECEIVED, cost=None) for _ in range(view.ranks - 1)]
    if received:
        _joined = torch.new(x.unit, x.count * view.ranks, x.dtype, JOINED, cost=[x, *received])
    return received


def _beside(torch: Operators, view: LayerView, x: Tensor, shared: Callable[[Tensor], Tensor]) -> Tensor:
    """The shared expert, times its gate where it has one."""
    out = shared(x)
    gate = next((spec for spec in _routers(view) if spec.out_features == 1), None)
    if gate is None:
        return out
    return torch.mul(torch.kernel(linear(torch, view, gate, x), "sigmoid", saves="output"), out)


def _returned(torch: Operators, view: LayerView, x: Tensor, weights: Tensor) -> Tensor:
    """The sum over the chosen experts; a tensor without numbers is saved, so that a checkpointed layer runs
    again before the host computes gradients.
    """
    unit, count, dtype, ranks = x.unit, x.count, x.dtype, view.ranks

    def arrived() -> Tensor:
        """What the host returns for all ranks, of which a copy of this rank's rows stays."""
        whole = torch.new(unit, count * ranks, dtype, FROM_HOST, cost=None)
        return whole if ranks == 1 else torch.new(unit, count, dtype, "copy_", cost=[])

    def backward(_: list[Tensor], gradient: Tensor) -> list[Tensor | None]:
        received = [torch.like(gradient, RECEIVED, cost=None) for _ in range(ranks - 1)]
        joined = torch.new(unit, count * ranks, dtype, JOINED, cost=[gradient]) if received else None
        of_input = arrived()
        del received, joined
        return [of_input, Tensor(None, unit, weights_count, "bf16")]

    weights_count = weights.count
    out = arrived()
    sentinel = torch.new(Unit.ONE, 1, dtype, "new_empty", cost=[])
    return record(torch, out, [x, weights], [sentinel], backward)
