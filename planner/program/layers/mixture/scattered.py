"""Experts as ScatterMoE's kernels run them: rows are sorted while they are multiplied, and what the experts
of a token return is weighted and summed by the last product.

Packed experts are expanded whole, before the first product, and again in backward where they have adapters.
Source: axolotl 0.19.0 integrations/kernels/libs/scattermoe_lora/: experts.py scattermoe_experts_forward,
parallel_experts.py ParallelLinear, parallel_linear_lora.py ScatterMoELoRA, experts_lora_fastpath.py,
kernels/ops.py (scatter2scatter, group, group_bwd_W), kernels/grouped_gram.py, selective_dequant.py.
Ignored: numbers of experts and of rows, some for each token; that experts without a token are not expanded.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from planner.domain.model import LinearSpec
from planner.program.layers.activations import activation
from planner.program.ops.autograd import record
from planner.program.ops.casts import costs_of
from planner.program.ops.operators import Costs, Operators, shape_of
from planner.program.ops.tensors import Dtype, Tensor, Unit
from planner.program.ops.work import Multiplies, Product
from planner.program.view import LayerView
from planner.program.weights.four_bit import loaded

Adapter = tuple[Tensor, ...]
"""The two matrices as the kernels read them; none where the experts have no adapter."""


def scattered(
    torch: Operators, view: LayerView, x: Tensor, weights: Tensor, specs: tuple[LinearSpec, LinearSpec]
) -> Tensor:
    """What the chosen experts return for each token, weighted and summed; ``specs``: the tensors of all."""
    # The wrapper of the second tensor is the outer one.
    laid_out = [_laid_out(torch, view, spec, x.dtype) for spec in reversed(specs)]
    weights = torch.to(weights, x.dtype)
    first, second = (_weight(torch, view, spec) for spec in specs)
    of_second, of_first = (_of_active(torch, view, spec, laid_out[n]) for n, spec in enumerate(specs[::-1]))
    gate, up = torch.halves(_product(torch, view, specs[0], x, (first, *of_first)))
    middle = torch.mul(activation(torch, view, gate), up)
    del gate, up
    return _product(torch, view, specs[1], middle, (second, *of_second), weights)


def _laid_out(torch: Operators, view: LayerView, spec: LinearSpec, dtype: Dtype) -> Adapter:
    """An adapter's matrices in the dtype of activations, the second one copied in the order of experts."""
    if not view.adapted(spec):
        return ()
    ranks = spec.copies * spec.rank_factor
    down, up = (
        torch.to(torch.parameter(Unit.RANK, ranks * width, view.dtypes.adapter, trained=True), dtype)
        for width in (spec.in_features, spec.out_features)
    )
    return down, torch.same(up, "clone")


def _of_active(torch: Operators, view: LayerView, spec: LinearSpec, adapter: Adapter) -> Adapter:
    """Beside packed experts: the rows of those that have tokens."""
    if not view.quantized(spec):
        return adapter
    return tuple(torch.index(each, each.count) for each in adapter)


def _weight(torch: Operators, view: LayerView, spec: LinearSpec) -> Tensor:
    """The tensor of all experts; which of packed ones have tokens is asked of the GPU."""
    if not view.quantized(spec):
        return torch.parameter(Unit.ONE, spec.weight_count, view.dtypes.base, trained=view.trains_base)
    with torch.in_manner(replace(torch.manner, waits=True)):
        return loaded(torch, view, spec)


def _product(
    torch: Operators,
    view: LayerView,
    spec: LinearSpec,
    x: Tensor,
    factors: tuple[Tensor, ...],
    weights: Tensor | None = None,
) -> Tensor:
    """Rows times the matrices of their experts; with ``weights`` the rows of each token are summed.

    ``factors``: the weight and its adapter.  Without an adapter the weight is saved; beside one it stays the
    module's, or is expanded again.
    """
    weight, adapter = factors[0], factors[1:]
    seen = weight if weight.dtype == x.dtype else torch.like(weight, "to", x.dtype)
    # A copy in another dtype is not made again.
    copied = [seen] if adapter and seen is not weight else []
    expands = bool(adapter) and view.quantized(spec) and not copied
    back = _Back(torch, view, spec, shape_of(x), [shape_of(each) for each in adapter], expands)
    out = torch.like(back.rows(spec.out_features), "scatter2scatter", cost=back.costs.forward)
    if adapter:
        torch.pay(back.narrow(spec.in_features + spec.out_features), [out])
    saved = [x, *(adapter or (seen,))]
    if weights is None:
        return record(torch, out, [x, weight, *adapter], saved, back.of_rows, copied)
    summed = torch.new(x.unit, spec.out_features, view.product_dtype(x.dtype), "bmm", cost=[out, weights])
    return record(torch, summed, [x, weight, *adapter, weights], [*saved, weights, out], back.of_sums, copied)


@dataclass(frozen=True, slots=True)
class _Back:
    """The backward of one product: ``x`` and ``adapter`` are shapes; ``expands``: the weight, anew."""

    torch: Operators
    view: LayerView
    spec: LinearSpec
    x: Tensor
    adapter: list[Tensor]
    expands: bool

    def rows(self, width: float) -> Tensor:
        """The shape of a row for each token and each of its experts."""
        return Tensor(None, self.x.unit, self.view.block.mlp.top_k * width, self.x.dtype)

    @property
    def costs(self) -> Costs:
        """What the products with the weight cost."""
        return costs_of(self.spec, self.rows(self.spec.in_features))

    def narrow(self, width: float) -> Multiplies:
        """What products of rows with matrices of the adapter cost."""
        n_macs = self.view.block.mlp.top_k * self.spec.rank_factor * width
        return Multiplies(Product(self.x.dtype), Unit.RANK_TOKENS, n_macs, [self.rows(width)])

    def of_rows(self, *_: object) -> list[Tensor | None]:
        """Of tokens that were not sorted: they are now, into a tensor that their gradient is written over."""
        torch = self.torch
        _weight = self._expanded()
        rows = torch.like(self.rows(self.spec.in_features), "group")
        made, _held = self._of_factors()
        torch.pay(self.costs.of_x, [rows])
        if self.adapter:
            branch = self._branch()
            _added = torch.like(rows, "index", cost=(branch,))
            del _added
        return [torch.new(self.x.unit, self.x.count, self.x.dtype, "sum", cost=[rows]), *made]

    def of_sums(self, saved: list[Tensor], gradient: Tensor) -> list[Tensor | None]:
        """Of sorted rows whose products were summed: the gradient of these is written over them."""
        torch = self.torch
        _weight = self._expanded()
        torch.pay([saved[-1], torch.to(gradient, self.x.dtype)], [saved[-1]])
        made, _held = self._of_factors()
        rows = torch.like(self.x, "scatter2scatter", cost=self.costs.of_x)
        if self.adapter:
            torch.pay([self._branch(), rows], [rows])
        return [rows, *made, Tensor(None, self.x.unit, self.view.block.mlp.top_k, self.x.dtype)]

    def _expanded(self) -> Tensor | None:
        return loaded(self.torch, self.view, self.spec) if self.expands else None

    def _of_factors(self) -> tuple[list[Tensor | None], list[Tensor]]:
        """The gradients of the weight and its adapter, and what else lives until the function ends: that of
        a weight is made, trained or not, unless it has an adapter.
        """
        torch, spec = self.torch, self.spec
        if not self.adapter:
            return [
                torch.new(Unit.ONE, spec.weight_count, self.x.dtype, "zeros", cost=self.costs.of_weight)
            ], []
        held: list[Tensor] = []
        with torch.counted_as("adapters"):
            for each, width in zip(
                reversed(self.adapter), (spec.out_features, spec.in_features), strict=True
            ):
                held.append(torch.like(each, "clone"))
                n_ranks = self.view.block.mlp.top_k * spec.rank_factor
                held.append(
                    torch.new(
                        Unit.RANK_TOKENS, n_ranks, self.x.dtype, "scatter2scatter", cost=self.narrow(width)
                    )
                )
            widths = spec.in_features, spec.out_features
            made = [
                torch.like(each, "grouped_gram", cost=self.narrow(width))
                for each, width in zip(self.adapter, widths, strict=True)
            ]
        return [None, *made], held

    def _branch(self) -> Tensor:
        """The gradient through the adapter, of each row."""
        with self.torch.counted_as("adapters"):
            width = self.spec.in_features
            return self.torch.like(self.rows(width), "scatter2scatter", cost=self.narrow(width))
