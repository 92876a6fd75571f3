"""How many operators the host issues: the floor below which no GPU makes a step faster.

Counted with ``TorchDispatchMode`` (views left out) on Transformers 5.23 and peft 0.21: a Llama layer issues
38 operators forward and 71 backward (full fine-tune, sdpa); one LoRA adapter under autocast 8 forward and 10
backward, dropout one more each; one rotation of OFT 23 and 33.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from planner.anatomy.parameters import is_quantizable
from planner.domain.model import BlockSpec, LinearSpec, ModelSpec, NormSpec
from planner.domain.recipe import Attention, Quantization
from planner.throughput.traffic import TrafficView

# Embedding, masks, rotary tables, final norm, head, loss: counted on the same modules.
_OUTSIDE_FORWARD, _OUTSIDE_BACKWARD = 35, 20
# Extra operators of one quantised matrix (forward, backward).  nf4: dequantise (and its nested constants),
# clone, casts; gptq: shift, cast, mask, reshape, subtract, multiply for weights and the same for zeros; int8:
# statistics, quantise, index and zero the outlier columns, gather and dequantise their weights, product,
# scale, second product, add.  Source: bitsandbytes 0.41 and 0.50 autograd/_functions.py, auto_gptq 0.5.1
# qlinear_cuda_old.py.  awq: unpack, casts; unpack and repeat.  aqlm: decode, scale, copy; scale and decode.
_QUANTIZED_OPERATORS = {
    "nf4": (4, 2),
    "fp4": (4, 2),
    "gptq-int4": (12, 0),
    "gptq-int8": (12, 0),
    "int8": (30, 5),
    "awq-int4": (2, 3),
    "aqlm": (3, 2),
    "none": (0, 0),
}
# Operators of one expert beside its products: its rows taken, gated, weighted and added.
_EXPERT_FORWARD, _EXPERT_BACKWARD = 8, 12
# LoRA whose casts, scaling and addition are parts of its products:
# two products and one more kernel forward, six backward.
_ROTATION = {True: (23, 33), False: (16, 23)}
_JOINED_BRANCH = (3, 6)


@dataclass(frozen=True, slots=True)
class Operators:
    """Operators issued per micro-step.  ``synchronising``:
    those between which the host waits for the GPU (int8, experts).
    """

    forward: int
    backward: int
    recompute: int
    synchronising: int
    leaf_modules: int

    @property
    def total(self) -> int:
        """All operators of a micro-step."""
        return self.forward + self.backward + self.recompute


@dataclass(frozen=True, slots=True)
class OperatorView:
    """What decides the operator count; ``backward_share``: of the layers,
    those that backward runs through.
    """

    traffic: TrafficView
    attention: Attention
    quantization: Quantization
    rebuilt_share: float
    backward_share: float = 1.0


@lru_cache(maxsize=256)
def operators_of(model: ModelSpec, view: OperatorView) -> Operators:
    """Operators of one micro-step, and modules with hooks.

    Ignored: views (no kernel), gradient clipping,
    the scheduler and the optimizer's multi-tensor calls (some hundreds per step).
    """
    forward = backward = synchronising = modules = 0
    for group in model.groups:
        ahead, back = block_operators(group.block, view)
        forward, backward = forward + group.count * ahead, backward + group.count * back
        modules += group.count * _modules(group.block, view.traffic)
        if view.quantization == "int8":
            matrices = sum(
                is_quantizable(linear, view.traffic.stack.skips_experts) for linear in group.block.linears
            )
            synchronising += group.count * matrices * _QUANTIZED_OPERATORS["int8"][0]
        synchronising += group.count * _waiting_operators(group.block, view)
    recompute, backward = round(forward * view.rebuilt_share), round(backward * view.backward_share)
    synchronising += round(synchronising * view.rebuilt_share)
    return Operators(
        forward + _OUTSIDE_FORWARD, backward + _OUTSIDE_BACKWARD, recompute, synchronising, modules + 3
    )


def block_operators(block: BlockSpec, view: OperatorView) -> tuple[int, int]:
    """(forward, backward) operators of one layer."""
    trained = view.traffic.trains_base
    parts = [_norm_operators(norm, view.traffic) for norm in block.norms]
    parts += [
        _linear_operators(linear, view)
        for linear in block.linears
        for _ in range(_calls(linear, view.traffic))
    ]
    # Rotation: per tensor two products, negate, concatenate, add; backward also slices and accumulates.
    parts.append((10, 16) if block.attention.position == "rope" else (2, 2))
    parts.append((11, 12) if view.attention == "eager" else (1, 3))
    parts.append(_activation_operators(block, view.traffic))
    # Residual additions; gradient additions where branches meet.
    parts.append((2, 7))
    if block.mlp.n_experts:
        # Router, top-k, sort and scatter; experts kept as separate linears run one after another.
        loops = 1 if view.traffic.stack.fused_experts else block.mlp.n_experts
        parts.append((12 + _EXPERT_FORWARD * loops, 12 + _EXPERT_BACKWARD * loops))
    forward = sum(part[0] for part in parts)
    return forward, sum(part[1] for part in parts) + (
        2 * sum(norm.copies for norm in block.norms) if trained else 0
    )


def _waiting_operators(block: BlockSpec, view: OperatorView) -> int:
    """Forward operators of experts that run one after another:
    which tokens are an expert's is asked of the GPU each time.

    Source: transformers 4.36 to 4.48 models/mixtral/modeling_mixtral.py MixtralSparseMoeBlock.forward
    (``torch.where``), and the same loop in qwen2_moe and deepseek; ATen/native/cuda/Nonzero.cu copies the
    number of rows to the host.
    """
    if not block.mlp.n_experts or view.traffic.stack.fused_experts:
        return 0
    apart = [linear for linear in block.linears if linear.group == "expert"]
    products = sum(_calls(linear, view.traffic) * _linear_operators(linear, view)[0] for linear in apart)
    return products + _EXPERT_FORWARD * block.mlp.n_experts


def _calls(linear: LinearSpec, view: TrafficView) -> int:
    """How many products stand for a matrix: experts kept apart have one each,
    and two where gate and up are one tensor here.
    """
    apart = linear.group == "expert" and not view.stack.fused_experts
    return linear.copies * linear.rank_factor if apart else 1


def _norm_operators(norm: NormSpec, view: TrafficView) -> tuple[int, int]:
    if norm.kind == "layer" or view.stack.fused_norm:
        return norm.copies, norm.copies
    return 8 * norm.copies, 13 * norm.copies


# Operators in forward and backward of activations that Python code spells out.
# Source: transformers 5.23 activations.py NewGELUActivation, FastGELUActivation,
# ReLUSquaredActivation, XIELUActivation.
_PYTHON_ACTIVATIONS = {"gelu_new": (8, 12), "gelu_fast": (8, 12), "relu2": (4, 6), "xielu": (13, 22)}


def _activation_operators(block: BlockSpec, view: TrafficView) -> tuple[int, int]:
    if view.stack.fused_mlp and block.mlp.gated:
        return 1, 1
    if block.mlp.gated:
        return 2, 3
    return _PYTHON_ACTIVATIONS.get(block.mlp.activation, (1, 1))


def _linear_operators(linear: LinearSpec, view: OperatorView) -> tuple[int, int]:
    traffic = view.traffic
    forward, backward = 1, 1 + int(traffic.trains_base)
    if traffic.quantized(linear):
        extra = _QUANTIZED_OPERATORS[view.quantization]
        forward, backward = forward + extra[0], backward + extra[1]
    regime = traffic.regime
    if regime.autocast and not traffic.quantized(linear):
        # Autocast copies: an fp32 weight, an fp32 input.
        casts = int(regime.base > regime.compute) + int(regime.norm_out > regime.compute)
        forward, backward = forward + casts, backward + casts
    if traffic.adapted(linear) and traffic.rotates:
        branch = _ROTATION[regime.autocast]
        return forward + branch[0], backward + branch[1]
    if traffic.adapted(linear):
        joined = traffic.stack.adapter_kernels != "eager"
        branch = _JOINED_BRANCH if joined else (8, 10) if regime.autocast else (5, 7)
        dropped = 0 if joined else int(traffic.dropout)
        forward, backward = forward + branch[0] + dropped, backward + branch[1] + dropped
    return forward, backward


def _modules(block: BlockSpec, view: TrafficView) -> int:
    """Modules of one layer that DeepSpeed hooks: the layer, attention, MLP, activation, norms, matrices,
    and 4 per adapter.
    """
    adapters = sum(4 for linear in block.linears if view.adapted(linear))
    return 4 + sum(norm.copies for norm in block.norms) + len(block.linears) + adapters
