"""A mixture of experts: the router, and the experts of a layer as two tensors that grouped products read.
Those of Gemma 4 read the stream before the dense part of the layer, and are added to what that returns.

Source: transformers 5.23 integrations/moe.py ``grouped_mm_experts_forward``, models/{mixtral,qwen3_moe,
granitemoe,gpt_oss,deepseek_v2}/modeling_*.py, models/gemma4/modeling_gemma4.py Gemma4TextDecoderLayer,
Gemma4TextRouter; peft 0.21 tuners/lora/layer.py ParamWrapper.
Ignored: memory of indices and weights of the chosen experts, some numbers for each token; the second half of
each weight of Hunyuan's routers, which stay in fp32.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from planner.domain.model import LinearSpec, NormSpec
from planner.program.layers.activations import activation, clamped_gate
from planner.program.layers.mixture.experts_in_turn import in_turn
from planner.program.layers.mixture.liger_experts import liger_experts
from planner.program.layers.mixture.scattered import scattered
from planner.program.layers.mixture.sent_rows import (
    masked_in_place,
    masked_rows,
    sent_to_experts,
    sum_of_experts,
)
from planner.program.layers.norms import norm
from planner.program.ops.autograd import record
from planner.program.ops.casts import linear_function
from planner.program.ops.operators import Operators
from planner.program.ops.tensors import InGraph, Tensor, Unit
from planner.program.ops.work import Manner
from planner.program.view import LayerView
from planner.program.weights.fine_grained import experts_fine_grained
from planner.program.weights.four_bit import loaded
from planner.program.weights.matrices import autocast, linear, product_4bit, weight_copy

# On these alone: topk, sort, division by the experts of a token, their weights in that order, the cast of
# their numbers, histc, cumsum; arange and index_put of the inverse order.
_SMALL_OPERATORS = 9
_FP32_ROUTERS = ("fp32", "sigmoid", "sigmoid_divided", "fp32_cast")


def router(torch: Operators, view: LayerView, x: Tensor) -> Tensor:
    """The weights of the experts that each token goes to."""
    mlp = view.block.mlp
    if mlp.router == "module":
        return _by_module(torch, view, x)
    if mlp.router == "sigmoid_module":
        return _by_sigmoid_of_module(torch, view, x)
    spec = next(each for each in view.block.linears if each.group == "router" and each.kind == "parameter")
    with torch.inside(spec.name):
        weight = torch.parameter(
            Unit.ONE, spec.in_features * spec.out_features, view.dtypes.base, trained=view.trains_base
        )
        delta = _delta(torch, view, spec, weight)
        given = x.dtype
        if mlp.router in _FP32_ROUTERS:
            x = torch.to(x, "fp32")
        if delta is not None:
            weight = torch.add(weight, delta)
        seen = torch.to(weight, "fp32") if mlp.router in _FP32_ROUTERS else weight
        if mlp.router == "fp32_cast":
            scores = torch.softmax(torch.mm(x, seen, mlp.n_experts))
            return torch.to(torch.chosen(scores, mlp.top_k), given)
        copy = weight_copy(torch, view, seen)
        logits = linear_function(torch, view)(autocast(torch, view, x), copy, mlp.n_experts)
        del x, seen, copy
        dtype = logits.dtype
        if mlp.router == "chosen":
            return torch.chosen(logits, mlp.top_k)
        if mlp.router in ("sigmoid", "sigmoid_divided", "sigmoid_input", "sigmoid_fp32"):
            wide = torch.to(logits, "fp32") if mlp.router == "sigmoid_fp32" else logits
            best = torch.chosen(torch.kernel(wide, "sigmoid", saves="output"), mlp.top_k)
            return torch.to(best, "fp32") if mlp.router == "sigmoid_divided" else best
        scores = torch.softmax(torch.to(logits, "fp32"))
        best = torch.chosen(scores, mlp.top_k)
        return torch.to(best, dtype) if mlp.router == "softmax" else best


def _by_module(torch: Operators, view: LayerView, x: Tensor) -> Tensor:
    """The router as an ``nn.Linear`` in fp32, to which its input is cast, unless it is quantised."""
    spec = next(each for each in view.linears("mlp_in") if each.group == "router")
    x = torch.reshaped(x, is_view=False)
    if not view.quantized(spec):
        x = torch.to(x, "fp32")
    logits = linear(torch, view, spec, x)
    scores = torch.chosen(torch.softmax(torch.to(logits, "fp32")), view.block.mlp.top_k)
    return torch.to(scores, logits.dtype)


def _by_sigmoid_of_module(torch: Operators, view: LayerView, x: Tensor) -> Tensor:
    """An ``nn.Linear`` whose product is cast: transformers 5.23 models/afmoe AfmoeTokenChoiceRouter."""
    spec = next(each for each in view.linears("mlp_in") if each.group == "router")
    logits = torch.to(linear(torch, view, spec, torch.reshaped(x, is_view=False)), "fp32")
    return torch.chosen(torch.kernel(logits, "sigmoid", saves="output"), view.block.mlp.top_k)


def _delta(torch: Operators, view: LayerView, spec: LinearSpec, weight: Tensor) -> Tensor | None:
    """What the adapter of a router adds to its weight; PEFT adds it once before, as a test."""
    if not view.adapted(spec):
        return None
    down = torch.parameter(Unit.RANK, spec.in_features, view.dtypes.adapter, trained=True)
    up = torch.parameter(Unit.RANK, spec.out_features, view.dtypes.adapter, trained=True)
    copy = weight_copy(torch, view, down)
    delta = torch.mm(weight_copy(torch, view, up), copy, (Unit.ONE, weight.count))
    delta = torch.to(torch.same(delta, "mul"), weight.dtype)
    torch.like(weight, "add")
    return delta


def experts(torch: Operators, view: LayerView, x: Tensor, weights: Tensor) -> Tensor:
    """What the chosen experts return for each token, weighted and summed."""
    with torch.inside("experts"):
        gate_up, down = (expert_spec(view, reads) for reads in ("mlp_in", "mlp_mid"))
        if gate_up.kind == "linear":
            return in_turn(torch, view, x, weights)
        if view.stack.mixture_code == "scattermoe":
            return scattered(torch, view, x, weights, (gate_up, down))
        # The wrapper of the second tensor is the outer one.
        down_factors = _factors(torch, view, down)
        up_factors = _factors(torch, view, gate_up)
        if view.stack.mixture_code == "liger":
            parts = _weight(torch, view, gate_up, up_factors), _weight(torch, view, down, down_factors)
            return liger_experts(torch, x, weights, (gate_up, down), parts)
        with torch.in_manner(_one_by_one(torch, view, down)):
            specs = (gate_up, up_factors), (down, down_factors)
            if view.recipe.parallel.experts > 1:
                return sent_to_experts(torch, view, x, weights, partial(_of_rows, torch, view, specs))
            return _grouped(torch, view, x, weights, specs)


def _one_by_one(torch: Operators, view: LayerView, spec: LinearSpec) -> Manner:
    """Experts that are modules of their own: which rows are an expert's is asked of the GPU before each.

    Source: transformers 4.36 to 4.48 models/mixtral/modeling_mixtral.py MixtralSparseMoeBlock.forward, as
    qwen2_moe and deepseek (``torch.where``); ATen/native/cuda/Nonzero.cu copies the count to the host.
    """
    return torch.manner if view.stack.fused_experts else replace(torch.manner, calls=spec.copies, waits=True)


Factors = tuple[Tensor, ...] | None
"""Two matrices that are multiplied and added to the weight, or one tensor that is added to it."""
Specs = tuple[tuple[LinearSpec, Factors], ...]
"""Both tensors of the experts."""


def expert_spec(view: LayerView, reads: str) -> LinearSpec:
    """The first matrix of the experts that reads one tensor."""
    return next(spec for spec in view.linears(reads) if spec.group == "expert")


def _grouped(torch: Operators, view: LayerView, x: Tensor, weights: Tensor, specs: Specs) -> Tensor:
    """Each token once for each of its experts, by expert: products around a gate or a plain activation,
    and the sum over these experts.
    """
    hidden, rows = x.count, view.block.mlp.top_k
    if view.stack.fused_experts:
        torch.spend("launches", Unit.ONE, _SMALL_OPERATORS)
    selected = torch.index(x, rows * hidden)
    out, _variables = _computed(torch, view, selected, specs)
    weighted = torch.mul(out, weights)
    weighted = torch.index(weighted, rows * hidden)
    return torch.to(sum_of_experts(torch, view, weighted, hidden), x.dtype)


def _of_rows(torch: Operators, view: LayerView, specs: Specs, x: Tensor) -> Tensor:
    """The same of rows that arrived for the experts of this GPU: one expert for each, with a weight of 1."""
    torch.spend("launches", Unit.ONE, _SMALL_OPERATORS)
    selected = masked_in_place(torch, torch.index(x, x.count))
    out, _variables = _computed(torch, view, selected, specs)
    weighted = torch.index(torch.same(out, "mul"), x.count)
    return torch.to(sum_of_experts(torch, view, weighted, x.count), x.dtype)


def _computed(
    torch: Operators, view: LayerView, selected: Tensor, specs: Specs
) -> tuple[Tensor, tuple[Tensor | None, ...]]:
    """What the experts return for rows that are sorted by expert, and what the function refers to until it
    returns; rows of no expert here are masked.
    """
    divided = view.recipe.parallel.experts > 1
    (gate_up, up_factors), (down, down_factors) = specs
    first = _weight(torch, view, gate_up, up_factors)
    biases = _biases(torch, view, gate_up)
    out = _product(torch, view, gate_up, selected, first, biases)
    out = masked_rows(torch, out) if divided else out
    if not view.block.mlp.gated:
        out = activation(torch, view, out)
    elif view.block.mlp.activation == "clamped_swiglu":
        out = clamped_gate(torch, out)
    else:
        out = _gate(torch, view, out)
    second = _weight(torch, view, down, down_factors)
    biases = _biases(torch, view, down)
    out = _product(torch, view, down, out, second, biases)
    return masked_rows(torch, out) if divided else out, (first, second, biases)


def _gate(torch: Operators, view: LayerView, gate_up: Tensor) -> Tensor:
    gate, up = torch.halves(gate_up)
    return torch.mul(activation(torch, view, gate), up)


def _product(
    torch: Operators, view: LayerView, spec: LinearSpec, x: Tensor, weight: Tensor, biases: Tensor | None
) -> Tensor:
    """``grouped_mm`` in the dtype of the weight; autocast has no part in it.  The bias is added in place.

    Where no kernel groups products, torch's host issues one for each expert, forward and backward.
    Ignored: that it waits for the numbers of rows first.
    """
    rows = view.block.mlp.top_k
    if not view.stack.fused_experts:
        with torch.in_manner(replace(torch.manner, calls=spec.copies * spec.rank_factor)):
            return linear(torch, view, spec, x)
    if view.quantized(spec) and view.stack.quantizes_experts == "fp8":
        out = experts_fine_grained(torch, view, spec, x)
    elif view.quantized(spec) and view.stack.quantizes_experts == "expanded":
        out = product_4bit(torch, view, spec, torch.to(x, view.dtypes.compute))
    else:
        grouped = view.groups_products and weight.dtype == "bf16"
        given, calls = torch.to(x, weight.dtype), 1 if grouped else spec.copies
        with torch.in_manner(replace(torch.manner, calls=torch.manner.calls * calls)):
            out = torch.mm(given, weight, rows * spec.out_features, copies=spec.copies)
    if view.adapted(spec) and not view.merged(spec):
        down, up = _adapter(torch, view, spec)
        x, n_ranks = torch.to(x, down.dtype), rows * spec.rank_factor
        middle = torch.mm(x, down, (Unit.RANK_TOKENS, n_ranks), copies=spec.copies)
        del x
        branch = torch.mm(middle, up, (Unit.TOKENS, rows * spec.out_features), copies=spec.copies)
        del middle
        out = torch.add(out, torch.same(branch, "mul"))
    return out if biases is None else torch.add_in_place(out, biases)


def _adapter(torch: Operators, view: LayerView, spec: LinearSpec) -> tuple[Tensor, Tensor]:
    """The two matrices of an adapter of all experts: to the ranks, and from there to the output."""
    ranks, dtype = spec.copies * spec.rank_factor, view.dtypes.adapter
    down = torch.parameter(Unit.RANK, ranks * spec.in_features, dtype, trained=True)
    return down, torch.parameter(Unit.RANK, ranks * spec.out_features, dtype, trained=True)


def _biases(torch: Operators, view: LayerView, spec: LinearSpec) -> Tensor | None:
    """The bias of each row's expert, copied for each row."""
    if not spec.bias:
        return None
    bias = torch.parameter(Unit.ONE, spec.bias_count, view.dtypes.base, trained=view.trains_base)
    return torch.index(bias, view.block.mlp.top_k * spec.out_features, Unit.TOKENS)


def _factors(torch: Operators, view: LayerView, spec: LinearSpec) -> Factors:
    """The matrices of an adapter of all experts in the dtype of the weight; merged once as a test.

    Both are seen by expert before the experts run.  So backward gives them their gradients after what ran
    later, both products of the experts included.
    Source: peft 0.21 tuners/lora/layer.py ParamWrapper.get_delta_factors; torch 2.13 autograd/engine.cpp
    (nodes of high sequence number first).
    """
    if not view.merged(spec):
        return None
    down, up = _adapter(torch, view, spec)
    if view.stack.expert_deltas:
        return (_expert_delta(torch, view, spec, (down, up)),)
    down = torch.reshaped(down)
    factors = torch.to(torch.moved(up), view.dtypes.base), torch.to(down, view.dtypes.base)
    torch.new(Unit.ONE, spec.weight_count, view.dtypes.base, "baddbmm")
    return factors


def _expert_delta(
    torch: Operators, view: LayerView, spec: LinearSpec, factors: tuple[Tensor, Tensor]
) -> Tensor:
    """The product of both matrices, times the scaling; the sum with the weight is made once as a test.

    Source: peft 0.20 tuners/lora/layer.py ParamWrapper.get_delta_weight; torch 2.13 parametrize.py.
    Ignored: that ``einsum`` copies the second matrix, in another order.
    """
    copies = [weight_copy(torch, view, each) for each in factors]
    counts, dtype = [each.count for each in copies], copies[0].dtype
    delta = torch.new(Unit.ONE, spec.weight_count, dtype, "bmm")

    def backward(*_: object) -> list[Tensor | None]:
        return [torch.new(Unit.RANK, count, dtype, "bmm") for count in counts]

    delta = torch.same(record(torch, delta, copies, copies, backward), "mul")
    given = view.recipe.numerics.load_dtype if view.quantized(spec) else view.dtypes.base
    torch.new(Unit.ONE, spec.weight_count, given, "add")
    return torch.to(delta, given)


def _read(torch: Operators, view: LayerView, spec: LinearSpec) -> Tensor:
    """A packed tensor as it is read: of int8 in fp32, times a scale for each row and then ``1 / 127``."""
    if view.recipe.numerics.quantization != "int8":
        return loaded(torch, view, spec)
    with torch.counted_as("dequantization"):
        scaled = torch.new(Unit.ONE, spec.weight_count, "fp32", "mul", cost=[])
        return torch.like(scaled, "mul")


def _weight(torch: Operators, view: LayerView, spec: LinearSpec, factors: Factors) -> Tensor:
    """The weight of all experts, with its adapter added to it where it has one.

    A packed one that is expanded when it is read stays so until its layer is done.
    Source: axolotl 0.19.0 monkeypatch/moe_quant.py; bitsandbytes 0.50 nn/parametrize.py.
    """
    dtype = view.dtypes.base
    if not view.quantized(spec):
        # Grouped products read it turned, and so keep a view; those of GPT-OSS read it as it is stored.
        turned = factors is None and view.block.mlp.activation != "clamped_swiglu"
        kept: InGraph = "saved" if turned else ""
        trained = view.trains_base
        weight = torch.parameter(Unit.ONE, spec.weight_count, dtype, trained=trained, in_graph=kept)
    elif view.stack.quantizes_experts in ("expanded", "fp8"):
        return Tensor(None, Unit.ONE, spec.weight_count, dtype)
    else:
        weight = _read(torch, view, spec)
    dtype = weight.dtype
    if factors is None:
        return weight
    if len(factors) == 1:
        return torch.add(weight, factors[0])
    merged = torch.new(Unit.ONE, spec.weight_count, dtype, "baddbmm")
    counts = [factor.count for factor in factors]

    def backward(*_: object) -> list[Tensor | None]:
        return [torch.like(torch.new(Unit.RANK, count, dtype, "bmm"), "mul") for count in counts]

    return record(torch, merged, factors, factors, backward)


def beside_dense(
    torch: Operators, view: LayerView, dense: Tensor, stream: Tensor, norms: Sequence[NormSpec]
) -> Tensor:
    """The sum of both parts; ``norms``: of the dense part's output, of the experts' input and output."""
    first = norm(torch, view, norms[0], dense)
    rows = torch.reshaped(stream)
    weights = _router_beside(torch, view, rows)
    second = experts(torch, view, norm(torch, view, norms[1], rows), weights)
    return torch.add(first, norm(torch, view, norms[2], second))


def _router_beside(torch: Operators, view: LayerView, x: Tensor) -> Tensor:
    """Weights of the chosen experts, of the stream without its size, times a parameter and a number."""
    mlp, width = view.block.mlp, x.count
    with torch.inside("router"):
        given = norm(torch, view, NormSpec("rms", int(width), weight=False), x)
        scale = torch.parameter(Unit.ONE, width, view.dtypes.norm, trained=view.trains_base)
        given = torch.same(torch.mul(given, scale), "mul")
        spec = next(each for each in view.linears("mlp_in") if each.group == "router")
        scores = torch.softmax(torch.to(linear(torch, view, spec, given), "fp32"))
        return torch.chosen(scores, mlp.top_k)
