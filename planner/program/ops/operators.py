"""The operators of PyTorch that layers are made of: what each allocates, saves, and makes in backward.

Source: torch 2.13 ``tools/autograd/derivatives.yaml``.  A node's gradients are made in the order of its
arguments' names (``mat2`` and ``other`` before ``self``), because the code generator sorts them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from planner.program.ops.autograd import LEAF_ORDER, record, save, save_for
from planner.program.ops.tensors import (
    ELEMENT_BYTES,
    Dtype,
    InGraph,
    Node,
    Parameter,
    Tape,
    Tensor,
    Unit,
    promoted,
)
from planner.program.ops.work import Multiplies, Product, is_aligned


class Operators(Tape):
    """A tape with the operators that write to it.

    ``autocast_cache`` holds the copies of trained weights that autocast keeps until its region ends, and that
    of the input where this is a ``leaf``; ``leaves`` the nodes of parameters.
    ``accumulates``: these have gradients already.  ``shared``: tensors
    that one part of the model makes for others, by name; empty again when a part has run.  ``returned`` holds
    what attention returns beside its output, which lives until the layer ends, or until the next layer has
    run where the layer returns it too.

    Variables of running code keep tensors alive.  ``outputs``: those of the training loop, until the backward
    pass is over, ``bound`` until the model returns again.  ``hooked``: those of hooks, until the end of
    backward.  ``summed``: those of a part of a layer, until the sum behind it.

    ``parameters`` are numbered as they are first asked for; ``n_parameters`` counts the calls, which a
    recomputation begins again.  ``flat``: the stream has rows alone, as that of some vision towers, so that
    no product sees it in another shape.  ``caches``: keys and values are kept for the tokens to come.
    """

    def __init__(self, *, accumulates: bool = False) -> None:
        super().__init__()
        self.leaves: list[Node] = []
        self.parameters: list[Parameter] = []
        self.n_parameters = 0
        self.accumulates = accumulates
        self.autocast_cache: dict[Node, Tensor] = {}
        self.leaf: Node | None = None
        self.shared: dict[str, Tensor] = {}
        self.returned: list[Tensor] = []
        self.outputs: list[Tensor] = []
        self.hooked: list[Tensor] = []
        self.summed: list[Tensor] = []
        self.bound: list[Tensor] = []
        self.flat = False
        self.caches = False

    def parameter(
        self,
        unit: Unit,
        count: float,
        dtype: Dtype,
        *,
        trained: bool,
        owner: str = "",
        in_graph: InGraph = "",
    ) -> Tensor:
        """A weight, whose memory is the model's; ``trained``: its gradient stays after the backward pass.

        ``owner``: the module inside the running one that has it; ``in_graph``: as in :class:`Parameter`.
        """
        tensor = Tensor(None, unit, count, dtype)
        number, self.n_parameters = self.n_parameters, self.n_parameters + 1
        if number == len(self.parameters):
            self.parameters.append(
                Parameter(unit, count, dtype, trained, self.module_number(owner), in_graph)
            )
        if trained:
            tensor.node = Node(self.module, LEAF_ORDER, None)
            tensor.node.parameter = number
            self.leaves.append(tensor.node)
            if self.accumulates:
                tensor.node.grad = Tensor(None, unit, count, dtype)
        return tensor

    def to(self, x: Tensor, dtype: Dtype) -> Tensor:
        """``x.to(dtype)``: ``x`` itself where it has that dtype."""
        if x.dtype == dtype:
            return x
        out, before = self.like(x, "to", dtype), x.dtype
        return record(self, out, [x], [], lambda _, gradient: [self.like(gradient, "to", before)])

    def same(self, x: Tensor, op: str) -> Tensor:
        """An operator that saves nothing, and whose gradient is a new tensor (``neg``)."""
        return record(self, self.like(x, op), [x], [], lambda _, gradient: [self.like(gradient, op)])

    def kernel(self, x: Tensor, op: str, *, saves: str = "input", dtype: Dtype | None = None) -> Tensor:
        """An operator of one input that saves its ``input`` or its ``output`` (``silu``, ``tanh``)."""
        saved = save(self, [x], [x]) if saves == "input" else []
        out = self.like(x, op, dtype)

        def backward(kept: list[Tensor], gradient: Tensor) -> list[Tensor | None]:
            return [self.like(kept[0], f"{op}_backward", cost=(gradient,))]

        return record(self, out, [x], saved or [out], backward)

    def softmax(self, x: Tensor, dtype: Dtype | None = None) -> Tensor:
        """``softmax``, which saves its output; its backward multiplies both into a tensor of its own.

        Source: torch 2.13 ATen/native/cuda/SoftMax.cu softmax_backward_cuda_out.
        """
        out = self.like(x, "softmax", dtype)
        given = x.dtype

        def backward(kept: list[Tensor], gradient: Tensor) -> list[Tensor | None]:
            product = self.like(kept[0], "softmax_backward", cost=(gradient,))
            return [self.like(kept[0], "softmax_backward", given, cost=(product,))]

        return record(self, out, [x], [out], backward)

    def mul(self, x: Tensor, other: Tensor) -> Tensor:
        """``x * other``, each of which is saved where the other one needs a gradient."""
        saved = save_for(self, x, other)
        large, small = (x, other) if _larger(x, other) else (other, x)
        out = self.like(large, "mul", promoted(x.dtype, other.dtype), cost=(small,))
        needs = x.node is not None, other.node is not None
        shapes = shape_of(x), shape_of(other)

        def backward(_: list[Tensor], gradient: Tensor) -> list[Tensor | None]:
            made: list[Tensor | None] = [None, None]
            for number in (1, 0):
                factor = shapes[1 - number]
                if needs[number]:
                    dtype = promoted(gradient.dtype, factor.dtype)
                    made[number] = self.like(gradient, "mul", dtype, cost=(factor,))
            return made

        return record(self, out, [x, other], saved, backward)

    def add(self, x: Tensor, other: Tensor, op: str = "add") -> Tensor:
        """``x + other``: the gradient of both is that of the sum."""
        large, small = (x, other) if _larger(x, other) else (other, x)
        out = self.like(large, op, promoted(x.dtype, other.dtype), cost=(small,))
        return record(self, out, [x, other], [], lambda _, gradient: [gradient, gradient])

    def sub(self, x: Tensor, other: Tensor) -> Tensor:
        """``x - other``: the gradient of ``other`` is the negative of the whole one."""
        out = self.like(x, "sub", cost=(other,))
        needs = other.node is not None

        def backward(_: list[Tensor], gradient: Tensor) -> list[Tensor | None]:
            return [gradient, self.like(gradient, "neg") if needs else None]

        return record(self, out, [x, other], [], backward)

    def shifted(self, x: Tensor) -> Tensor:
        """``x`` plus a number: the gradient is passed on."""
        return self.contiguous(x, "add")

    def halves(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """``x.chunk(2)``: two views, whose gradients are joined; that of the second one comes first."""
        came: list[Tensor] = []
        unit, count = x.unit, x.count

        def of_second(_: list[Tensor], gradient: Tensor) -> list[Tensor | None]:
            came.append(gradient)
            return [None]

        def of_first(_: list[Tensor], gradient: Tensor) -> list[Tensor | None]:
            joined = self.new(unit, count, gradient.dtype, "cat", cost=[came.pop(), gradient])
            return [joined]

        first = record(self, part_of(x, count / 2), [x], [], of_first)
        return first, record(self, part_of(x, count / 2), [x], [], of_second)

    def square(self, x: Tensor) -> Tensor:
        """``x.pow(2)``, whose gradient is ``gradient * (2 * x.pow(1))``."""

        def backward(kept: list[Tensor], gradient: Tensor) -> list[Tensor | None]:
            _power = self.like(kept[0], "pow")
            _doubled = self.like(kept[0], "mul")
            return [self.like(kept[0], "mul", cost=(gradient,))]

        saved = save(self, [x], [x])
        return record(self, self.like(x, "pow"), [x], saved, backward)

    def rsqrt(self, x: Tensor) -> Tensor:
        """``rsqrt(x + eps)``, whose gradient is ``-0.5 * gradient * output.pow(3)``."""

        def backward(kept: list[Tensor], gradient: Tensor) -> list[Tensor | None]:
            _power = self.like(kept[0], "pow")
            _half = self.like(gradient, "mul")
            return [self.like(gradient, "mul")]

        x = self.shifted(x)
        out = self.like(x, "rsqrt")
        return record(self, out, [x], [out], backward)

    def mean_of_rows(self, x: Tensor, rows: float = 1) -> Tensor:
        """``x.mean(-1)``: one number for each row, whose gradient is spread over the row again."""
        unit, count, dtype = x.unit, x.count, x.dtype
        out = self.new(unit, rows, dtype, "mean", cost=[x])
        return record(self, out, [x], [], lambda *_: [self.new(unit, count, dtype, "div")])

    def cat(self, parts: Sequence[Tensor], *, by_heads: bool = False) -> Tensor:
        """Parts joined, ``by_heads`` or in rows, whose gradients are views of the whole one."""
        dtype = reduce(promoted, (part.dtype for part in parts))
        out = self.new(parts[0].unit, sum(part.count for part in parts), dtype, "cat", cost=parts)
        out.head_by_head = by_heads
        counts = [part.count for part in parts]

        def backward(_: list[Tensor], gradient: Tensor) -> list[Tensor | None]:
            return [part_of(gradient, count) for count in counts]

        return record(self, out, parts, [], backward)

    def part(self, x: Tensor, count: float, *, by_heads: bool = True, unit: Unit | None = None) -> Tensor:
        """A slice of ``x``, counted in ``unit`` if not as ``x``: a view, whose gradient is copied into zeros.

        ``by_heads``: zeros are laid out by heads, a dimension of ``x`` before that of tokens.
        """
        whole, n_whole = x.unit, x.count

        def backward(_: list[Tensor], gradient: Tensor) -> list[Tensor | None]:
            # Zeros all over, then the part copied.
            zeros = self.new(whole, n_whole, gradient.dtype, "slice_backward", cost=[gradient, gradient])
            zeros.head_by_head = by_heads
            return [zeros]

        return record(self, part_of(x, count, unit), [x], [], backward)

    def shifted_rows(self, x: Tensor) -> Tensor:
        """``x[:, :-1]``: a view of the rows that have a next token, smaller by one row of each sample."""
        return self.part(x, x.count, unit=Unit.SHIFTED_TOKENS if x.unit is Unit.TOKENS else None)

    def index(self, x: Tensor, count: float, unit: Unit | None = None) -> Tensor:
        """``x[rows]``, a copy, counted in ``unit`` if not as ``x``;
        its gradient is added in place, row by row, to zeros in the shape of ``x``.

        Source: torch 2.13 torch/csrc/autograd/FunctionsManual.cpp index_backward (``_index_put_impl_``).
        """
        whole = shape_of(x)
        rows = Tensor(None, x.unit if unit is None else unit, count, x.dtype)
        saved = save(self, [x], [row_numbers()])

        def backward(*_: object) -> list[Tensor | None]:
            zeros = self.new(whole.unit, whole.count, whole.dtype, "new_zeros")
            self.pay([rows, rows], [rows])
            return [zeros]

        out = self.new(rows.unit, count, x.dtype, "index", cost=[rows])
        return record(self, out, [x], saved, backward)

    def chosen(self, x: Tensor, count: float) -> Tensor:
        """The largest of each row, too few to count as memory; their gradients are written into zeros.

        Source: torch 2.13 torch/csrc/autograd/FunctionsManual.cpp value_selecting_reduction_backward.
        """
        whole = shape_of(x)

        def backward(*_: object) -> list[Tensor | None]:
            return [self.new(whole.unit, whole.count, whole.dtype, "new_zeros")]

        return record(self, Tensor(None, x.unit, count, x.dtype), [x], [row_numbers()], backward)

    def add_in_place(self, x: Tensor, other: Tensor) -> Tensor:
        """``x.add_(other)``: the gradient of both is that of the sum."""
        self.pay([x, other], [x])
        return record(self, x.alias(), [x, other], [], lambda _, gradient: [gradient, gradient])

    def contiguous(self, x: Tensor, op: str = "clone", *, by_heads: bool | None = None) -> Tensor:
        """A copy in another layout, ``by_heads`` if said; the gradient is passed on."""
        out = self.like(x, op)
        out.head_by_head = x.head_by_head if by_heads is None else by_heads
        return record(self, out, [x], [], lambda _, gradient: [gradient])

    def moved(self, x: Tensor) -> Tensor:
        """``x`` with dimensions in another order: a view, whose gradient is copied into the first one."""
        return record(self, x.alias(), [x], [], lambda _, gradient: [self.like(gradient, "clone")])

    def reshaped(self, x: Tensor, *, is_view: bool | None = None) -> Tensor:
        """The same memory in another shape, with a node of its own in which gradients of it are summed.

        ``is_view``: whether its gradient is a view, to which none is added in place; ``None``: as it comes.
        """

        def backward(_: list[Tensor], gradient: Tensor) -> list[Tensor | None]:
            same = gradient.alias()
            same.is_view = gradient.is_view if is_view is None else is_view
            return [same]

        return record(self, x.alias(), [x], [], backward)

    def mm(
        self,
        x: Tensor,
        weight: Tensor,
        out: float | tuple[Unit, float],
        *,
        bias: Tensor | None = None,
        copies: float = 1,
        by_deepspeed: bool = False,
    ) -> Tensor:
        """``x @ weight`` (and a bias).  Each factor is saved for the gradient of the other one.

        ``out``: elements of the result, counted as ``x`` if no unit is said.
        ``copies``: matrices that lie in ``weight``, each of which gets its part of the rows.
        The weight's gradient is made first, but after that of ``x`` where a bias makes it an ``addmm``.
        ``by_deepspeed``: a function that saves both, trained or not, when it has run, and makes the gradient
        of ``x`` first.  Neither gradient is a view.
        Source: DeepSpeed 0.19.8 runtime/zero/linear.py LinearFunctionForZeroStage3; 0.12.6 the same.
        """
        op = "mm" if bias is None or by_deepspeed else "addmm"
        inputs = [x, weight] if bias is None else [x, weight, bias]
        saved = [x, weight] if by_deepspeed else save_for(self, x, weight, *inputs[2:])
        size = out if isinstance(out, tuple) else (x.unit, out)
        costs = Costs(x, weight, size, copies)
        made = self.new(*size, x.dtype, op, cost=costs.forward)
        n_inputs, x_first = len(inputs), by_deepspeed or bias is not None
        # A product sees rows, which are viewed in the shape of x, and gives the weight's gradient transposed:
        # views, to which later gradients are not added in place.
        views = (not by_deepspeed and not self.flat, not x_first)
        shapes = [shape_of(each) if each.node is not None else None for each in (x, weight)]

        def backward(_: list[Tensor], gradient: Tensor) -> list[Tensor | None]:
            found: list[Tensor | None] = [None, None, gradient]
            for number in (0, 1) if x_first else (1, 0):
                shape, cost = shapes[number], (costs.of_x, costs.of_weight)[number]
                if shape is not None:
                    one = found[number] = self.new(shape.unit, shape.count, gradient.dtype, op, cost=cost)
                    one.is_view = views[number]
            return found[:n_inputs]

        return record(self, made, inputs, saved, backward)

    def in_place(self, x: Tensor, op: str) -> Tensor:
        """``x`` changed in place by an operator that saves nothing, and whose gradient is a new tensor."""
        self.pay([x], [x])
        return record(self, x.alias(), [x], [], lambda _, gradient: [self.like(gradient, op)])

    def bmm(
        self,
        x: Tensor,
        other: Tensor,
        size: tuple[Unit, float],
        *,
        scaled: bool = False,
        inner: float = 0,
    ) -> Tensor:
        """``x @ other`` of this ``size``, head by head; each is saved for the gradient of the other one.

        ``scaled``: ``baddbmm`` with a factor, by which each gradient is multiplied; that of ``x`` is the
        first one then.  ``inner``: the dimension that is summed over, where neither operand nor result is
        scores.
        """
        saved, (to_unit, to_count) = save_for(self, x, other), size
        macs = to_count * inner or (x.count if to_unit is Unit.PAIRS else to_count)
        of_scores = Unit.PAIRS if Unit.PAIRS in (x.unit, to_unit) else to_unit
        three = shape_of(x), shape_of(other), Tensor(None, to_unit, to_count, x.dtype)

        def cost(*operands: int) -> Multiplies:
            reads = [three[number] for number in operands]
            return Multiplies(Product(three[0].dtype), of_scores, macs, reads)

        out = self.new(to_unit, to_count, x.dtype, "baddbmm" if scaled else "bmm", cost=cost(0, 1))
        out.head_by_head = True
        needs = x.node is not None, other.node is not None

        def gradient_of(number: int) -> Tensor | None:
            if not needs[number]:
                return None
            shape = three[number]
            made = self.new(shape.unit, shape.count, shape.dtype, "bmm_backward", cost=cost(1 - number, 2))
            # That of keys is transposed, so that the features of all heads are one dimension.
            made.head_by_head = not (number == 1 and to_unit is Unit.PAIRS)
            return self.like(made, "mul") if scaled else made

        def backward(_: list[Tensor], gradient: Tensor) -> list[Tensor | None]:
            del gradient
            made = {number: gradient_of(number) for number in ((0, 1) if scaled else (1, 0))}
            return [made[0], made[1]]

        return record(self, out, [x, other], saved, backward)


def row_numbers() -> Tensor:
    """Numbers of rows: too small to count, but a checkpointed layer runs again when they are asked for."""
    return Tensor(None, Unit.TOKENS, 1, "int64")


def shape_of(x: Tensor) -> Tensor:
    """Size, dtype and layout alone, which keep no memory."""
    return Tensor(None, x.unit, x.count, x.dtype, head_by_head=x.head_by_head)


class Costs:
    """What a product with a stored matrix costs, forward and in either gradient: all three multiply as often.

    Reading takes time beside a matrix of a few ranks alone; others are read while the product runs.
    ``copies``: matrices that lie in one tensor, among which the rows are divided.  ``rows``: those of one of
    the products that the rows are divided among.
    """

    def __init__(
        self,
        x: Tensor,
        weight: Tensor,
        out: tuple[Unit, float],
        copies: float = 1,
        *,
        rows: tuple[Unit, float] | None = None,
    ) -> None:
        x, weight, result = shape_of(x), shape_of(weight), Tensor(None, *out, x.dtype)
        ranked = [unit for unit in (out[0], x.unit, weight.unit) if unit in (Unit.RANK, Unit.RANK_TOKENS)]
        n_rows = (x.count * out[1] * copies / weight.count) ** 0.5
        aligned = x.dtype == "fp32" or is_aligned(out[1] / n_rows * ELEMENT_BYTES[x.dtype])
        kind = Product(x.dtype) if ranked else Product(x.dtype, rows or (x.unit, n_rows / copies), aligned)

        def reading(*operands: Tensor) -> Multiplies:
            unit, macs = (*ranked, x.unit)[0], n_rows * weight.count / copies
            return Multiplies(kind, unit, macs, operands if ranked else ())

        self.forward, self.of_x = reading(x, weight), reading(result, weight)
        self.of_weight = reading(x, result)


def part_of(x: Tensor, count: float, unit: Unit | None = None) -> Tensor:
    """A view of ``count`` elements of ``x`` for each of ``unit``, without gradient history."""
    return Tensor(x.storage, x.unit if unit is None else unit, count, x.dtype, None, True, x.head_by_head)


def _larger(x: Tensor, other: Tensor) -> bool:
    """Whether ``x`` is not the one that is broadcast: units of a batch are larger than those of a weight."""
    of_weight = (Unit.ONE, Unit.RANK)
    return (x.unit not in of_weight, x.count) >= (other.unit not in of_weight, other.count)
