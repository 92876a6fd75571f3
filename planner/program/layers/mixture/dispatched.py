"""A mixture of experts as torchtitan runs it: rows sorted by expert, padded, computed by grouped products,
and weighted in fp32 behind them.

Where GPUs divide the experts, rows are sent to the GPU that has their expert, and what it returns is sent
back.  As many rows are taken to arrive as are sent: tokens spread evenly over the experts.
From 0.3.0 on rows are not padded, the router computes in fp32, and rows are weighted one by one before they
are added to those of their token.
Source: torchtitan e347b1e5e models/moe/moe.py MoE, TokenChoiceTopKRouter, GroupedExperts; models/moe/utils.py
_permute, _unpermute; distributed/expert_parallel.py ExpertParallel; torchtitan 0.3.0 models/common/: moe.py
MoE, token_dispatcher.py LocalTokenDispatcher; ops/scatter_add.py; torch 2.13
distributed/_functional_collectives.py all_to_all_single_autograd.
Ignored: indices and weights of the chosen experts, some numbers for each token; temporaries of routers that
choose among groups of experts first (``num_expert_groups``), some numbers for each token and expert; work
space of the sort by which CUDA adds rows up.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

from planner.domain.model import LinearSpec
from planner.program.layers.activations import activation
from planner.program.layers.mixture.sent_rows import exchanged, in_places
from planner.program.ops.autograd import record, save
from planner.program.ops.operators import Operators, part_of, row_numbers
from planner.program.ops.tensors import Dtype, Tensor, Unit, replaced
from planner.program.view import LayerView

Shared = Callable[[Tensor], Tensor]
_SIGMOID = ("sigmoid", "sigmoid_divided", "sigmoid_fp32", "sigmoid_input")


def dispatched(torch: Operators, view: LayerView, x: Tensor, shared: Shared) -> Tensor:
    """``MoE.forward``, whose variables live until it returns; ``shared``: the experts of all tokens."""
    x = torch.reshaped(x)
    # Products see rows alone, as the batch and its positions are one dimension.
    mixed = _mixed if view.stack.mixture_code == "torchtitan-2025" else _added
    with replaced(torch, flat=True):
        return mixed(torch, view, x, shared)


def _mixed(torch: Operators, view: LayerView, x: Tensor, shared: Shared) -> Tensor:
    hidden, n_chosen, dtype = x.count, view.block.mlp.top_k, x.dtype
    weights = _router(torch, view, x, x.dtype)
    routed = torch.index(x, n_chosen * hidden)
    returned = _experts(torch, view, routed)
    beside = shared(x) if view.block.mlp.shared_width else None
    unsorted = in_places(torch, returned, Tensor(None, x.unit, n_chosen * hidden, returned.dtype), "zeros")
    with _made_again(torch):
        summed = torch.bmm(weights, torch.to(unsorted, "fp32"), (x.unit, hidden), inner=n_chosen)
    out = torch.to(summed, dtype)
    del summed
    return out if beside is None else torch.add(beside, out)


def _added(torch: Operators, view: LayerView, x: Tensor, shared: Shared) -> Tensor:
    """The same from 0.3.0 on, where no GPUs divide the experts."""
    weights = _router(torch, view, x, "fp32")
    out = _summed(torch, view, x, weights)
    return torch.add(out, shared(x)) if view.block.mlp.shared_width else out


def _summed(torch: Operators, view: LayerView, x: Tensor, weights: Tensor) -> Tensor:
    """``RoutedExperts.forward``, which refers to rows before and behind the experts until it returns."""
    unit, count = x.unit, x.count
    with torch.inside("experts"):
        routed = torch.index(x, count, Unit.EXPERT_ROWS)
        returned = _computed(torch, view, routed)
        given = returned.dtype
        # Compiled, rows are widened, weighted and narrowed by one kernel.
        each = Tensor(None, Unit.EXPERT_ROWS, 1, given if view.stack.fused_mlp else "fp32")
        each.node = weights.node
        _zeros = torch.like(x, "zeros")
        weighted = torch.to(torch.mul(torch.to(returned, each.dtype), each), given)

        def backward(_: list[Tensor], gradient: Tensor) -> list[Tensor | None]:
            rows = Tensor(None, Unit.EXPERT_ROWS, count, given)
            return [torch.new(Unit.EXPERT_ROWS, count, gradient.dtype, "gather", cost=[rows])]

        out = torch.new(unit, count, given, "scatter_add", cost=[weighted])
        return record(torch, out, [weighted], save(torch, [weighted], [row_numbers()]), backward)


def _router(torch: Operators, view: LayerView, x: Tensor, dtype: Dtype) -> Tensor:
    """Weights of the chosen experts: in fp32, of scores to which a bias is added for the choice alone.

    ``dtype``: of the product.
    """
    mlp = view.block.mlp
    spec = next(each for each in view.block.linears if each.group == "router")
    with torch.inside("router"):
        with torch.inside(spec.name), _made_again(torch):
            weight = torch.to(_weight(torch, view, spec), dtype)
            scores = torch.mm(torch.to(x, dtype), weight, mlp.n_experts)
            del weight
        if mlp.router in _SIGMOID:
            scores = torch.kernel(torch.to(scores, "fp32"), "sigmoid", saves="output")
        else:
            scores = torch.softmax(torch.to(scores, "fp32"))
        _biased = torch.like(scores, "add")
        return torch.chosen(scores, mlp.top_k)


def _experts(torch: Operators, view: LayerView, x: Tensor) -> Tensor:
    """The module of the experts, whose hooks send rows and bring them back.

    Until these are back, the call of the module refers to what it was given and to what it computed.
    """
    hidden, divided = x.count / view.block.mlp.top_k, view.recipe.parallel.experts > 1
    with torch.inside("experts"):
        given = _by_expert(torch, x, hidden, divided=divided)
        out = _computed(torch, view, given)
        size = Tensor(None, Unit.ARRIVED_ROWS, hidden, out.dtype)
        placed = in_places(torch, out, size, "new_empty")
        if not divided:
            del out
        # Without the last row, of zeros.
        sent = torch.part(placed, x.count, by_heads=False, unit=x.unit)
        del placed
        return exchanged(torch, sent) if divided else sent


def _by_expert(torch: Operators, x: Tensor, hidden: float, *, divided: bool) -> Tensor:
    """What arrives, and ``_permute``: a row of zeros behind it, which fills up the rows of each expert."""
    arrived = exchanged(torch, x) if divided else x
    unit, count, dtype = x.unit, x.count, x.dtype

    def backward(_: list[Tensor], gradient: Tensor) -> list[Tensor | None]:
        return [part_of(gradient, count, unit)]

    zeros = torch.new(Unit.ONE, hidden, dtype, "new_zeros")
    joined = torch.new(Unit.ARRIVED_ROWS, hidden, dtype, "cat", cost=[x])
    del zeros
    return torch.index(record(torch, joined, [arrived], [], backward), hidden, Unit.EXPERT_ROWS)


def _computed(torch: Operators, view: LayerView, x: Tensor) -> Tensor:
    """``_run_experts_grouped_mm``: gate and up are products of their own."""
    gate, up = (spec for spec in view.linears("mlp_in") if spec.group == "expert")
    down = next(spec for spec in view.linears("mlp_mid") if spec.group == "expert")
    given = x.dtype
    inner = activation(torch, view, _product(torch, view, gate, x))
    inner = torch.mul(inner, _product(torch, view, up, x))
    return torch.to(_product(torch, view, down, inner), given)


def _product(torch: Operators, view: LayerView, spec: LinearSpec, x: Tensor) -> Tensor:
    x = torch.to(x, "bf16")
    weight = torch.to(_weight(torch, view, spec), "bf16")
    with _made_again(torch):
        return torch.mm(x, weight, spec.out_features, copies=spec.copies)


def _weight(torch: Operators, view: LayerView, spec: LinearSpec) -> Tensor:
    return torch.parameter(Unit.ONE, spec.weight_count, view.dtypes.base, trained=view.trains_base)


def _made_again(torch: Operators) -> AbstractContextManager[None]:
    """Products that a selective checkpoint neither keeps nor counts: all but ``mm``, and those of routers.

    Source: torchtitan e347b1e5e models/llama4/infra/parallelize.py (``_op_sac_save_list``),
    config/job_config.py (``per_op_sac_force_recompute_mm_shapes_by_fqns``).
    """
    return replaced(torch, keeps=None)
