"""A mixture of experts of Megatron-Core: rows sorted by expert, exchanged, sorted again and computed by
grouped products of Transformer Engine, which weigh them in the activation.  Where GPUs divide the features
of each expert, each gathers the rows of all of them, and their outputs are summed in fp32, the dtype of
probabilities.

Weights of rows go the same way as the rows, so that the router's graph lives until backward.  The dispatcher
refers to probabilities, their map and the map of rows until it is called again, with layers that are
computed again as well.  As many rows are taken to arrive as are sent: tokens spread evenly over the experts.
Source: megatron-core 0.16.1 transformer/moe/moe_layer.py MoELayer.forward, token_dispatcher.py
MoEAlltoAllTokenDispatcher (``self.probs``, ``self.routing_map``, ``dispatch_postprocess``,
``combine_preprocess``,
``self.reversed_local_input_permutation_mapping``), experts.py TEGroupedMLP, router.py TopKRouter,
moe_utils.py RouterGatingLinearFunction, shared_experts.py, fusions/fused_bias_swiglu.py
WeightedSwiGLUFunction; TransformerEngine d0067d0d pytorch/permutation.py (row maps of
twice as many whole numbers as there are experts, and one), module/grouped_linear.py.
Ignored: numbers of the chosen experts, and their softmax; that a shared expert may run beside the exchange;
that the next micro-batch of a pipeline takes the dispatcher's place.
"""

from __future__ import annotations

from planner.domain.model import LinearSpec
from planner.program.layers.megatron.linears import linear
from planner.program.layers.megatron.matrix import gathered, gathered_rows, scattered
from planner.program.ops.autograd import record
from planner.program.ops.operators import Operators, shape_of
from planner.program.ops.tensors import EXCHANGED_ROWS, Tensor, Unit
from planner.program.view import LayerView


def mixture(torch: Operators, view: LayerView, x: Tensor) -> Tensor:
    """``MoELayer.forward``, whose variables refer to sorted and to exchanged rows until it returns."""
    beside = _shared(torch, view, x) if view.block.mlp.shared_width else None
    scores, places = _route(torch, view, x)
    hidden, own = x.count, _own_tokens(view, x)
    n_chosen = view.block.mlp.top_k
    row_map = torch.new(x.unit, (2 * view.block.mlp.n_experts + 1) * own, "int32", "row_id_map")
    if torch.direction != "again":
        torch.outputs += [scores.alias(), places, row_map]
    rows = _moved(torch, x, n_chosen * hidden, [row_map], "permute")
    weights = _moved(torch, scores, n_chosen * own, [row_map], "permute")
    del scores
    arrived, weights = _exchanged(torch, view, rows), _exchanged(torch, view, weights)
    parts = view.recipe.parallel.expert_tensor
    n_rows = n_chosen * own * parts
    out = _computed(
        torch,
        view,
        _by_expert(torch, view, gathered_rows(torch, arrived, parts), n_rows),
        _by_expert(torch, view, gathered_rows(torch, weights, parts), n_rows),
    )
    out = _summed(torch, _by_expert(torch, view, out, n_rows), parts)
    back = _exchanged(torch, view, out)
    del out
    whole = _moved(torch, back, hidden, [row_map], "unpermute")
    return whole if beside is None else torch.add(whole, beside)


def _route(torch: Operators, view: LayerView, x: Tensor) -> tuple[Tensor, Tensor]:
    """Probabilities and a map of all experts; logits in fp32, of which the router's loss keeps a softmax."""
    n_experts = view.block.mlp.n_experts * _own_tokens(view, x)
    spec = _router(view)
    with torch.inside("router"):
        logits = _gate(torch, view, spec, x, n_experts)
        softmax = torch.like(logits, "softmax")
        probabilities = torch.new(x.unit, n_experts, "fp32", "scatter")
        _places = torch.new(x.unit, n_experts, "int32", "scatter")
        places = torch.new(x.unit, n_experts, "bool", "to")
        shape = shape_of(logits)

        def backward(_: list[Tensor], gradient: Tensor) -> list[Tensor | None]:
            return [torch.like(shape, "scatter_backward", cost=(gradient,))]

        return record(torch, probabilities, [logits], [softmax], backward), places


def _router(view: LayerView) -> LinearSpec:
    return next(each for each in view.block.linears if each.group == "router")


def _own_tokens(view: LayerView, x: Tensor) -> float:
    """Share of tokens that this GPU has where GPUs divide matrices."""
    return x.count / _router(view).in_features


def _gate(torch: Operators, view: LayerView, spec: LinearSpec, x: Tensor, n_experts: float) -> Tensor:
    """A product in fp32 of what is kept in 16 bits."""
    weight = torch.parameter(Unit.ONE, spec.weight_count, view.dtypes.base, trained=view.trains_base)
    entry, trained, needs = shape_of(x), weight.node is not None, x.node is not None

    def backward(_: list[Tensor], gradient: Tensor) -> list[Tensor | None]:
        of_x = torch.like(entry, "mm", cost=(gradient,)) if needs else None
        of_weight = torch.like(weight, "mm", cost=(gradient, entry)) if trained else None
        return [of_x, of_weight]

    out = torch.new(x.unit, n_experts, "fp32", "mm", cost=[x])
    return record(torch, out, [x, weight], [x], backward)


def _computed(torch: Operators, view: LayerView, x: Tensor, weights: Tensor) -> Tensor:
    inward = next(each for each in view.linears("mlp_in") if each.group == "expert")
    outward = next(each for each in view.linears("mlp_mid") if each.group == "expert")
    with torch.inside("experts"):
        return linear(torch, view, outward, _weighed(torch, linear(torch, view, inward, x), weights))


def _shared(torch: Operators, view: LayerView, x: Tensor) -> Tensor:
    """The expert of all tokens, weighed by a gate where the model has one."""
    inward = next(each for each in view.linears("mlp_in") if each.group == "shared_expert")
    outward = next(each for each in view.linears("mlp_mid") if each.group == "shared_expert")
    with torch.inside("shared_experts"):
        out = linear(torch, view, outward, gated(torch, linear(torch, view, inward, x)))
        routers = [each for each in view.block.linears if each.group == "router"]
        if len(routers) == 1:
            return out
        weight = torch.parameter(
            Unit.ONE, routers[1].weight_count, view.dtypes.base, trained=view.trains_base
        )
        score = torch.kernel(torch.mm(x, weight, 1), "sigmoid", saves="output")
        return torch.mul(out, score)


def gated(torch: Operators, x: Tensor) -> Tensor:
    """``silu(first half) * second half``, one kernel each way, which saves its input."""
    out = torch.new(x.unit, x.count / 2, x.dtype, "swiglu", cost=[x])

    def backward(kept: list[Tensor], gradient: Tensor) -> list[Tensor | None]:
        return [torch.like(kept[0], "swiglu_back", cost=(gradient,))]

    return record(torch, out, [x], [x], backward)


def _weighed(torch: Operators, x: Tensor, weights: Tensor) -> Tensor:
    """The same times the weight of each row, which is saved, too."""
    out, rows = torch.new(x.unit, x.count / 2, x.dtype, "swiglu", cost=[x]), shape_of(weights)

    def backward(kept: list[Tensor], gradient: Tensor) -> list[Tensor | None]:
        return [torch.like(kept[0], "swiglu_back", cost=(gradient,)), torch.like(rows, "sum")]

    return record(torch, out, [x, weights], [x, weights], backward)


def _by_expert(torch: Operators, view: LayerView, x: Tensor, n_rows: float) -> Tensor:
    """Rows that arrived, put together by expert, or back; as they are where a GPU has one expert."""
    if view.block.mlp.n_experts == view.recipe.parallel.experts:
        return x
    row_map = torch.new(x.unit, n_rows, "int32", "row_id_map")
    return _moved(torch, x, x.count, [row_map], "sort_chunks")


def _moved(torch: Operators, x: Tensor, count: float, saved: list[Tensor], op: str) -> Tensor:
    """Rows copied to other places, and their gradients copied back."""
    entry = shape_of(x)
    out = torch.new(x.unit, count, x.dtype, op, cost=[x])

    def backward(_: list[Tensor], gradient: Tensor) -> list[Tensor | None]:
        return [torch.like(entry, op, cost=(gradient,))]

    return record(torch, out, [x], saved, backward)


def _exchanged(torch: Operators, view: LayerView, x: Tensor) -> Tensor:
    """Rows that other GPUs sent, as many as this one sends; nothing where one GPU has all experts."""
    if view.recipe.parallel.experts == 1:
        return x

    def backward(_: list[Tensor], gradient: Tensor) -> list[Tensor | None]:
        return [torch.like(gradient, EXCHANGED_ROWS, cost=None)]

    return record(torch, torch.like(x, EXCHANGED_ROWS, cost=None), [x], [], backward)


def _summed(torch: Operators, x: Tensor, parts: int) -> Tensor:
    """This GPU's rows of a sum in fp32."""
    if parts == 1:
        return x
    dtype = x.dtype
    return torch.to(_sum_of_all(torch, torch.to(x, "fp32"), parts), dtype)


def _sum_of_all(torch: Operators, x: Tensor, parts: int) -> Tensor:
    whole = shape_of(x)

    def backward(*_: object) -> list[Tensor | None]:
        return [gathered(torch, whole, parts)]

    return record(torch, scattered(torch, [x], parts), [x], [], backward)
