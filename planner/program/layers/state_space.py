"""Mamba 2: convolution, scan by chunks, gate or gated norm, and output projection,
in one kernel of mamba-ssm.

The kernel multiplies with the output projection's own weight, past any adapter of it,
and makes every gradient.
Source: transformers 5.23 models/{bamba,granitemoehybrid,falcon_h1,nemotron_h}/modeling_*.py, the mixer's
forward; mamba-ssm 2.3.2 mamba_ssm/ops/triton/ssd_combined.py (MambaSplitConv1dScanCombinedFn),
ssd_chunk_state.py, ssd_chunk_scan.py, ssd_state_passing.py, layernorm_gated.py; causal-conv1d 1.6
cpp_functions.py.
Ignored: the rest of a last chunk that is not full;
what Triton allocates while it tries configurations in the first step.
"""

from __future__ import annotations

from dataclasses import dataclass

from planner.domain.mixers import Mamba2Spec
from planner.program.ops.autograd import record
from planner.program.ops.casts import autocast
from planner.program.ops.operators import Costs, Operators
from planner.program.ops.tensors import ELEMENT_BYTES, Dtype, Tensor, Unit
from planner.program.ops.work import Multiplies, Product
from planner.program.view import LayerView
from planner.program.weights.matrices import linear

# Blocks that a chunk and a state are divided into, at least.
_CHUNK_BLOCK, _STATE_BLOCK = 32, 64


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
        return _scan(torch, view, spec, joined)


@dataclass(frozen=True, slots=True)
class _Weights:
    """Weights that the kernel takes: those before the output projection, and this with its bias."""

    others: list[Tensor]
    out: list[Tensor]


def _weights(torch: Operators, view: LayerView, spec: Mamba2Spec) -> _Weights:
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
    return _Weights(others, out + ([weight(matrix.bias_count, matrix.name)] if matrix.bias else []))


def _scan(torch: Operators, view: LayerView, spec: Mamba2Spec, joined: Tensor) -> Tensor:
    """The kernel: saved are the product, the scan's output,
    and a cast copy of the output projection under autocast.
    """
    weights = _weights(torch, view, spec)
    convolved = _convolved(torch, spec, joined)
    out, scanned, _kept = _scanned(torch, spec, convolved)
    rows = []
    if spec.normed:
        out = torch.like(scanned, "layer_norm_gated")
        rows = [torch.new(Unit.TOKENS, spec.groups, "fp32", "layer_norm_gated", cost=None)]
    out = autocast(torch, view, out)
    matrices = [autocast(torch, view, each) for each in weights.out]
    shapes = [(each.count, each.dtype) for each in (*weights.others, *matrices)]
    width = view.linears("mixer_out")[0].out_features
    costs = Costs(out, matrices[0], (Unit.TOKENS, width))
    out = torch.new(Unit.TOKENS, width, matrices[0].dtype, "mm", cost=costs.forward)

    def backward(kept: list[Tensor], gradient: Tensor) -> list[Tensor | None]:
        return _gradients(torch, spec, (kept[0], kept[1]), gradient, (shapes, costs))

    return record(
        torch, out, [joined, *weights.others, *weights.out], [joined, scanned, *rows, *matrices], backward
    )


def _convolved(torch: Operators, spec: Mamba2Spec, joined: Tensor) -> Tensor:
    """The convolution reads rows that begin at multiples of eight elements, others are copied before."""
    if spec.joined_width % 8:
        _aligned = _between(torch, Unit.TOKENS, spec.conv_width, joined.dtype, "clone")
    return _between(torch, Unit.TOKENS, spec.conv_width, joined.dtype, "causal_conv1d")


def _between(torch: Operators, unit: Unit, count: float, dtype: Dtype, op: str) -> Tensor:
    """A tensor that one kernel writes and the next one reads."""
    return torch.new(unit, count, dtype, op, cost=[Tensor(None, unit, count, dtype)])


def _numbers(torch: Operators, spec: Mamba2Spec, *, blocks: int = 1) -> Tensor:
    """One fp32 number for each head and position, of each of ``blocks``."""
    return _between(torch, Unit.TOKENS, blocks * spec.heads, "fp32", "empty")


def _states(torch: Operators, spec: Mamba2Spec, dtype: Dtype) -> Tensor:
    """The state of each head before each chunk."""
    return _between(torch, Unit.TOKENS, spec.width * spec.state / spec.chunk, dtype, "empty")


def _last_states(torch: Operators, spec: Mamba2Spec) -> Tensor:
    return torch.new(Unit.ROWS, spec.width * spec.state, "fp32", "empty")


def _scores(torch: Operators, spec: Mamba2Spec) -> Tensor:
    """C times B for each pair of positions of a chunk."""
    return _between(torch, Unit.TOKENS, spec.groups * spec.chunk, "fp32", "empty")


def _scanned(torch: Operators, spec: Mamba2Spec, x: Tensor) -> tuple[Tensor, Tensor, list[Tensor]]:
    """The output, that before the gate where the kernel has one,
    and what else variables of the kernel refer to.
    """
    kept = [_numbers(torch, spec), _numbers(torch, spec)]
    states = _states(torch, spec, "fp32")
    states = _passed(torch, spec, x.dtype, kept)
    _products = _scores(torch, spec)
    # The scan reads the gate or writes for it what stands before the norm.
    reads = [Tensor(None, Unit.TOKENS, spec.width, x.dtype)]
    products = Multiplies(Product(x.dtype), Unit.TOKENS, spec.macs_per_token, reads)
    out = torch.new(Unit.TOKENS, spec.width, x.dtype, "chunk_scan", cost=products)
    return out, out if spec.normed else torch.like(out, "chunk_scan"), [*kept, states]


def _passed(torch: Operators, spec: Mamba2Spec, dtype: Dtype, kept: list[Tensor]) -> Tensor:
    """States passed from chunk to chunk; the last ones go to ``kept``."""
    states = _states(torch, spec, dtype)
    kept.append(_last_states(torch, spec))
    return states


def _gradients(
    torch: Operators,
    spec: Mamba2Spec,
    kept: tuple[Tensor, Tensor],
    gradient: Tensor,
    of_weights: tuple[list[tuple[float, Dtype]], Costs],
) -> list[Tensor | None]:
    """Gradients of the product and of all weights; ``of_weights``: elements and dtypes of these,
    and what the output projection costs.

    The scan runs again, and each of its products has two gradients.
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
        _norm_sums(torch, spec, scanned.dtype)
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


def _norm_sums(torch: Operators, spec: Mamba2Spec, dtype: Dtype) -> None:
    """The gradient of the norm's weight, first as one sum for each program that runs at once."""
    group = spec.width // spec.groups
    block = min(65536 // ELEMENT_BYTES[dtype], 1 << (group - 1).bit_length())
    programs = -(-4 // min(max(block // 256, 1), 8))
    torch.new(Unit.MULTIPROCESSORS, programs * spec.width / spec.groups, "fp32", "empty")


def _scan_gradients(torch: Operators, spec: Mamba2Spec, x: Tensor) -> list[Tensor]:
    """What the scan's backward pass makes on the way; the gated output, where it has a gate,
    is computed again.

    Variables live until the function returns, as there.
    """
    kept = [
        torch.new(Unit.TOKENS, spec.heads, x.dtype, "clone"),
        _numbers(torch, spec),
        _numbers(torch, spec),
    ]
    kept.append(_scores(torch, spec))
    states = _states(torch, spec, "fp32")
    states = _passed(torch, spec, "fp32", kept)
    again: list[Tensor] = []
    if not spec.normed:
        of_skip = _of_skip(torch, spec)
        again = [torch.new(Unit.TOKENS, spec.width, x.dtype, "empty") for _ in range(2)]
        del of_skip
    given = [states]
    del states
    kept += _passed_back(torch, spec, given, x.dtype)
    of_skip = _of_skip(torch, spec)
    kept.append(_numbers(torch, spec))
    del of_skip
    kept += _of_shared(torch, spec)
    kept += _of_shared(torch, spec)
    parts = _between(torch, Unit.CHUNK_SPLITS, spec.groups * spec.chunk**2, "fp32", "empty")
    kept.append(torch.new(Unit.TOKENS, spec.groups * spec.chunk, "fp32", "sum"))
    del parts
    _of_decays(torch, spec)
    return again[1:]


def _of_skip(torch: Operators, spec: Mamba2Spec) -> Tensor:
    """A number for each head, chunk and block of it, before they are summed."""
    return torch.new(Unit.TOKENS, spec.heads * -(-spec.chunk // _CHUNK_BLOCK) / spec.chunk, "fp32", "zeros")


def _passed_back(torch: Operators, spec: Mamba2Spec, states: list[Tensor], dtype: Dtype) -> list[Tensor]:
    """Gradients of states and of decays between chunks,
    and the states in the dtype of the products; ``states`` is emptied.
    """
    of_states = _states(torch, spec, "fp32")
    narrow = [_states(torch, spec, dtype)]
    narrow.append(states[0] if dtype == "fp32" else _states(torch, spec, dtype))
    blocks = -(-spec.head_dim * spec.state // _STATE_BLOCK)
    between = _between(torch, Unit.TOKENS, spec.heads * blocks / spec.chunk, "fp32", "empty")
    summed = torch.new(Unit.TOKENS, spec.heads / spec.chunk, "fp32", "sum")
    states.clear()
    del of_states, between
    return [*narrow, summed]


def _of_decays(torch: Operators, spec: Mamba2Spec) -> None:
    """Sums over positions from behind, and of the blocks of each chunk, and of both."""
    flipped = _numbers(torch, spec)
    summed = _numbers(torch, spec)
    del flipped
    _back = _numbers(torch, spec)
    del summed
    parts = _numbers(torch, spec, blocks=-(-spec.chunk // _CHUNK_BLOCK))
    _whole = _numbers(torch, spec)
    del parts
    _both = _numbers(torch, spec)


def _of_shared(torch: Operators, spec: Mamba2Spec) -> list[Tensor]:
    """Gradients of decays, and of B or C, summed over the parts of each group."""
    decays = _numbers(torch, spec)
    _parts = _between(torch, Unit.CHUNK_SPLITS, spec.chunk * spec.groups * spec.state, "fp32", "empty")
    return [decays, torch.new(Unit.TOKENS, spec.groups * spec.state, "fp32", "sum")]
