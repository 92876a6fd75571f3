"""The gated delta rule where flash-linear-attention is not installed: Transformers' own code, in fp32.

It solves a triangular system for each chunk of 64 positions, and then goes through the chunks in a loop of
small operators.  In backward each turn copies gradients of a chunk into zeros for all of them.
Source: transformers 5.17 to 5.23 models/qwen3_5/modeling_qwen3_5.py torch_chunk_gated_delta_rule, l2norm;
torch 2.13 torch/csrc/autograd: functions/tensor.cpp CopySlices, FunctionsManual.cpp
linalg_solve_triangular_backward, cumsum_backward.
Ignored: that a sequence of one chunk has a tenth of its operators fewer.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from planner.domain.mixer_specs import DELTA_CHUNK_TOKENS, GatedDeltaSpec
from planner.program.ops.autograd import record, save
from planner.program.ops.casts import autocast
from planner.program.ops.operators import Operators, shape_of
from planner.program.ops.tensors import ELEMENT_BYTES, Tensor, Unit
from planner.program.ops.work import Multiplies, Product
from planner.program.view import LayerView

# The last turn's state is read by nothing, the first one is zeros, and a first gradient is added to nothing:
# so many operators are left out of the backward pass, and so many casts of autocast.
_NOT_IN_BACKWARD, _CASTS_NOT_IN_BACKWARD = 24, 5


def plain_delta_rule(
    torch: Operators,
    view: LayerView,
    spec: GatedDeltaSpec,
    heads: tuple[Tensor, Tensor, Tensor],
    decay: Tensor,
    beta: Tensor,
) -> Tensor:
    """``spec`` has as many heads of keys as of values, which ``heads`` were copied for."""
    given, n_heads = heads[2].dtype, spec.value_heads
    query, key, value, beta = (torch.to(each, "fp32") for each in (*heads, beta))
    query, key = (_l2_normed(torch, each, n_heads) for each in (query, key))
    query = torch.same(query, "mul")
    query, key, value, beta, decay = (_padded(torch, each) for each in (query, key, value, beta, decay))
    v_beta, k_beta = (torch.moved(torch.mul(each, beta)) for each in (value, key))
    masks = [torch.new(Unit.ONE, DELTA_CHUNK_TOKENS**2, "bool", op) for op in ("ones", "triu")]
    sums = _cumsum(torch, decay)
    pairwise = _difference(torch, sums, sums, n_heads * DELTA_CHUNK_TOKENS)
    pairwise = torch.kernel(torch.same(pairwise, "masked_fill"), "exp", saves="output")
    system = torch.mul(_product(torch, view, k_beta, key, pairwise), pairwise)
    scores = torch.mul(_product(torch, view, query, key, pairwise), pairwise)
    decayed = torch.mul(k_beta, torch.kernel(sums, "exp", saves="output"))
    new_values, reading = (_solved(torch, system, right) for right in (v_beta, decayed))
    query = torch.mul(query, torch.kernel(sums, "exp", saves="output"))
    last = torch.part(sums, n_heads / DELTA_CHUNK_TOKENS)
    left = torch.kernel(_difference(torch, last, sums, n_heads), "exp", saves="output")
    key = torch.mul(key, left)
    chunk_decay = torch.kernel(torch.part(sums, n_heads / DELTA_CHUNK_TOKENS), "exp", saves="output")
    out = _loop(torch, view, spec, (new_values, reading, query, key, chunk_decay, scores))
    del masks
    out = torch.part(torch.contiguous(out), value.count, unit=Unit.TOKENS)
    return torch.to(out, given) if given != "fp32" else torch.contiguous(out)


def _l2_normed(torch: Operators, x: Tensor, rows: int) -> Tensor:
    """``x * rsqrt((x * x).sum(-1) + eps)``."""
    squares, count = torch.mul(x, x), x.count

    def spread(_: list[Tensor], gradient: Tensor) -> list[Tensor | None]:
        wide = gradient.alias()
        wide.count, wide.is_view = count, True
        return [wide]

    total = torch.new(x.unit, rows, x.dtype, "sum", cost=[squares])
    return torch.mul(x, torch.rsqrt(record(torch, total, [squares], [], spread)))


def _padded(torch: Operators, x: Tensor) -> Tensor:
    """``F.pad`` to whole chunks, a copy forward and back."""
    unit, count, dtype = x.unit, x.count, x.dtype

    def backward(_: list[Tensor], gradient: Tensor) -> list[Tensor | None]:
        return [torch.new(unit, count, dtype, "constant_pad_nd", cost=[gradient])]

    out = torch.new(Unit.CHUNK_TOKENS, count, dtype, "constant_pad_nd", cost=[x])
    return record(torch, out, [x], [], backward)


def _cumsum(torch: Operators, x: Tensor) -> Tensor:
    """Sums from the first position on, whose gradient is one from the last."""

    def backward(_: list[Tensor], gradient: Tensor) -> list[Tensor | None]:
        turned = torch.like(gradient, "flip")
        return [torch.like(torch.like(turned, "cumsum"), "flip")]

    return record(torch, torch.like(x, "cumsum"), [x], [], backward)


def _difference(torch: Operators, x: Tensor, other: Tensor, count: float) -> Tensor:
    """``x - other``, either of which is spread over the ``count`` of the result."""
    out = torch.new(x.unit, count, x.dtype, "sub", cost=[x, other])

    def backward(_: list[Tensor], gradient: Tensor) -> list[Tensor | None]:
        return [gradient, torch.like(gradient, "neg")]

    return record(torch, out, [x, other], [], backward)


def _product(torch: Operators, view: LayerView, x: Tensor, other: Tensor, like: Tensor) -> Tensor:
    """``x @ other.T`` within each chunk, of the size of ``like``; autocast casts both factors."""
    right, left = autocast(torch, view, other), autocast(torch, view, x)
    return torch.bmm(left, right, (like.unit, like.count), inner=x.count * DELTA_CHUNK_TOKENS / like.count)


def _solved(torch: Operators, system: Tensor, right: Tensor) -> Tensor:
    """``linalg.solve_triangular``: it saves the system and its result."""
    macs = right.count * DELTA_CHUNK_TOKENS / 2
    kind, unit = Product("fp32"), right.unit
    saved = save(torch, [system, right], [system])
    out = torch.like(right, "solve_triangular", cost=Multiplies(kind, unit, macs, [system, right]))

    def backward(kept: list[Tensor], gradient: Tensor) -> list[Tensor | None]:
        triangle, found = kept[0], kept[-1]
        cost = Multiplies(kind, unit, macs, [triangle, gradient])
        of_right = torch.like(gradient, "solve_triangular", cost=cost)
        cost = Multiplies(kind, unit, 2 * macs, [of_right, found])
        of_system = torch.like(torch.like(triangle, "bmm", cost=cost), "neg")
        return [torch.like(of_system, "tril"), of_right]

    return record(torch, out, [system, right], [*saved, out], backward)


def _loop(torch: Operators, view: LayerView, spec: GatedDeltaSpec, given: tuple[Tensor, ...]) -> Tensor:
    """Chunk by chunk: what is new in the values, the output from state and scores, and the next state.

    One turn stands for all of them: it saves tensors of all chunks, and has others of one.
    """
    values, reading, query, key, decay, scores = given
    size, inner, chunk = (Unit.CHUNK_ROWS, values.count), spec.key_dim, DELTA_CHUNK_TOKENS
    out = torch.like(values, "zeros_like")
    torch.call("launches")  # zeros of the first state
    with torch.in_manner(replace(torch.manner, per=Unit.CHUNKS)):
        with torch.no_grad():
            state = torch.new(Unit.LATER_CHUNK_TOKENS, inner * spec.v_width / chunk, "fp32", "mul")
            before = Tensor(None, Unit.CHUNK_TOKENS, state.count, "fp32")
            factors = [autocast(torch, view, each) for each in (before, _later(view, reading))]
            new = torch.like(values, "sub", cost=(torch.bmm(factors[1], factors[0], size, inner=inner),))
            first, last = (before, _later(view, query)), (_later(view, new), _later(view, key))
            factors += [autocast(torch, view, each) for each in (*first, new, scores)]
            read = torch.bmm(factors[3], factors[2], size, inner=inner)
            within = torch.bmm(factors[5], factors[4], size, inner=chunk)
            torch.pay([torch.like(read, "add", cost=(within,))], [out])
            del read, within
            factors += [autocast(torch, view, each) for each in last]
            added = torch.bmm(factors[7], factors[6], (Unit.CHUNK_ROWS, state.count), inner=chunk)
            torch.pay([state, added], [state])
            del added
        back = partial(_loop_backward, torch, [shape_of(each) for each in given], inner)
        return record(torch, out, list(given), [*factors, state, decay], back)


def _loop_backward(
    torch: Operators, shapes: list[Tensor], inner: int, kept: list[Tensor], gradient: Tensor
) -> list[Tensor | None]:
    """Gradients of all that the loop reads, chunk by chunk."""
    values, reading, query, key, decay, scores = shapes
    narrow, chunk = kept[0].dtype, DELTA_CHUNK_TOKENS
    casts = _CASTS_NOT_IN_BACKWARD if narrow != "fp32" else 0
    torch.spend("launches", Unit.ONE, -torch.manner.calls * (_NOT_IN_BACKWARD + casts))
    _copy = _in_all_chunks(torch, gradient, launches=1)
    of_out = torch.like(_of_one(gradient), "clone")
    torch.pay((), [torch.like(of_out, "zeros_like")])
    of_out = torch.to(of_out, narrow)
    of_new, _of_scores = _of_factors(torch, of_out, kept[4:6], chunk)
    torch.pay([of_new, of_new], [of_new])
    given: list[Tensor | None] = [_in_all_chunks(torch, scores)]
    of_state, _of_query = _of_factors(torch, of_out, kept[2:4], inner)
    torch.pay([of_state, of_state], [of_state])
    given.append(_in_all_chunks(torch, query))
    of_old = torch.to(torch.like(of_new, "neg"), narrow)
    more, _of_reading = _of_factors(torch, of_old, kept[0:2], inner)
    torch.pay([of_state, more], [of_state])
    given += [_in_all_chunks(torch, each) for each in (reading, values)]
    _of_added = _of_factors(torch, torch.to(of_state, narrow), kept[6:8], chunk)
    given.append(_in_all_chunks(torch, key))
    torch.pay([of_state, kept[9]], [of_state])
    torch.pay([torch.like(of_state, "mul", cost=(kept[8],))], [decay])
    given.append(_in_all_chunks(torch, decay))
    return [given[number] for number in (3, 2, 1, 4, 5, 0)]


def _of_factors(torch: Operators, gradient: Tensor, factors: list[Tensor], inner: float) -> list[Tensor]:
    """Gradients of both factors of a product, in fp32 as what was cast."""
    made = []
    for number, factor in enumerate(factors):
        reads = [gradient, factors[1 - number]]
        cost = Multiplies(Product(factor.dtype), gradient.unit, gradient.count * inner, reads)
        made.append(torch.to(torch.like(_of_one(factor), "bmm", cost=cost), "fp32"))
    return made


def _later(view: LayerView, x: Tensor) -> Tensor:
    """``x`` of all chunks but one, where autocast makes a copy of each: the first state is zeros without a
    gradient, the last one is read by nothing, and what only their gradients need is not saved.
    """
    return Tensor(None, Unit.LATER_CHUNK_TOKENS, x.count, x.dtype) if view.dtypes.autocast else x


def _of_one(x: Tensor) -> Tensor:
    """The shape of one chunk of ``x``."""
    return Tensor(None, Unit.CHUNK_ROWS, x.count, x.dtype)


def _in_all_chunks(torch: Operators, shape: Tensor, launches: int = 2) -> Tensor:
    """A gradient of all chunks, made again for each: zeros into which one is copied, added to those before.

    With one launch it is copied alone.
    """
    torch.call("launches", launches)
    accesses = 2 * launches * ELEMENT_BYTES[shape.dtype]
    torch.spend("bytes", Unit.CHUNK_SQUARES, torch.manner.calls * accesses * shape.count)
    return torch.like(shape, "select_backward", cost=None)
