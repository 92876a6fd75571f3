"""The operators of PyTorch that layers are made of: what each allocates, saves, and makes in backward.

Source: torch 2.13 ``tools/autograd/derivatives.yaml``.  A node's gradients are made in the order of its
arguments' names (``mat2`` and ``other`` before ``self``), because the code generator sorts them.
"""

from __future__ import annotations

from collections.abc import Sequence

from planner.program.ops.autograd import LEAF_ORDER, record, save
from planner.program.ops.tensors import ELEMENT_BYTES, Dtype, Node, Parameter, Tape, Tensor, Unit, promoted
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
    backward.  ``held``: those of a loss, until it is there.  ``summed``: those of a part of a layer, until
    the sum behind it.  ``passing``: what a tower returns beside its output, until the loss is there.

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
        self.held: list[Tensor] = []
        self.summed: list[Tensor] = []
        self.bound: list[Tensor] = []
        self.flat = False
        self.caches = False
        self.passing: list[Tensor] = []

    def parameter(self, unit: Unit, count: float, dtype: Dtype, *, trained: bool, owner: str = "") -> Tensor:
        """A weight, whose memory belongs to the model; ``trained``:
        its gradient stays after the backward pass.

        ``owner``: the module inside the running one that has it.
        """
        tensor = Tensor(None, unit, count, dtype)
        number, self.n_parameters = self.n_parameters, self.n_parameters + 1
        if number == len(self.parameters):
            self.parameters.append(Parameter(unit, count, dtype, trained, self.module_number(owner)))
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
        before = x.dtype
        return record(
            self, self.like(x, "to", dtype), [x], [], lambda _, gradient: [self.like(gradient, "to", before)]
        )

    def same(self, x: Tensor, op: str, *, dtype: Dtype | None = None) -> Tensor:
        """An operator that saves nothing, and whose gradient is a new tensor (``neg``,
        a product with a number).
        """
        out = self.like(x, op, dtype)
        return record(self, out, [x], [], lambda _, gradient: [self.like(gradient, op)])

    def kernel(self, x: Tensor, op: str, *, saves: str = "input", dtype: Dtype | None = None) -> Tensor:
        """An operator of one input that saves its ``input`` or its ``output`` (``silu``,
        ``tanh``, ``sigmoid``).
        """
        saved = save(self, [x], [x]) if saves == "input" else []
        out = self.like(x, op, dtype)
        return record(
            self,
            out,
            [x],
            saved or [out],
            lambda kept, each: [self.like(kept[0], f"{op}_backward", cost=(each,))],
        )

    def softmax(self, x: Tensor, dtype: Dtype | None = None) -> Tensor:
        """``softmax``, which saves its output;
        on CUDA its backward multiplies gradient and output into a tensor of its own.

        Source: torch 2.13 ATen/native/cuda/SoftMax.cu softmax_backward_cuda_out.
        """
        out = self.like(x, "softmax", dtype)
        given = x.dtype

        def backward(kept: list[Tensor], gradient: Tensor) -> list[Tensor | None]:
            product = self.like(kept[0], "softmax_backward", cost=(gradient,))
            return [self.like(kept[0], "softmax_backward", given, cost=(product,))]

        return record(self, out, [x], [out], backward)

    def mul(self, x: Tensor, other: Tensor, op: str = "mul") -> Tensor:
        """``x * other``, each of which is saved where the other one needs a gradient."""
        kept = [
            each if beside.node is not None else _nothing(each) for each, beside in ((x, other), (other, x))
        ]
        saved = save(self, [x, other], kept)
        del kept
        large, small = (x, other) if _larger(x, other) else (other, x)
        out = self.like(large, op, promoted(x.dtype, other.dtype), cost=(small,))
        needs = x.node is not None, other.node is not None
        shapes = shape_of(x), shape_of(other)

        def backward(_: list[Tensor], gradient: Tensor) -> list[Tensor | None]:
            def times(factor: Tensor) -> Tensor:
                return self.like(gradient, op, promoted(gradient.dtype, factor.dtype), cost=(factor,))

            of_other = times(shapes[0]) if needs[1] else None
            return [times(shapes[1]) if needs[0] else None, of_other]

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

    def tanh(self, x: Tensor) -> Tensor:
        """``tanh``, which saves its output."""
        return self.kernel(x, "tanh", saves="output")

    def shifted(self, x: Tensor) -> Tensor:
        """``x`` plus a number: the gradient is passed on."""
        return self.contiguous(x, "add")

    def halves(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """``x.chunk(2)``: two views, whose gradients are joined when both are there.

        Nodes run in the reverse order of the forward pass,
        so the second half's gradient comes right before the first one's.
        """
        came: list[Tensor] = []

        def of_second(_: list[Tensor], gradient: Tensor) -> list[Tensor | None]:
            came.append(gradient)
            return [None]

        def of_first(_: list[Tensor], gradient: Tensor) -> list[Tensor | None]:
            joined = self.new(
                gradient.unit, 2 * gradient.count, gradient.dtype, "cat", cost=[*came, gradient]
            )
            came.clear()
            return [joined]

        first = record(self, part_of(x, x.count / 2), [x], [], of_first)
        return first, record(self, part_of(x, x.count / 2), [x], [], of_second)

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

    def cat(self, parts: Sequence[Tensor], op: str = "cat") -> Tensor:
        """Parts joined, whose gradients are views of the whole one."""
        out = self.new(parts[0].unit, sum(part.count for part in parts), parts[0].dtype, op, cost=parts)
        counts = [part.count for part in parts]

        def backward(_: list[Tensor], gradient: Tensor) -> list[Tensor | None]:
            return [part_of(gradient, count) for count in counts]

        return record(self, out, parts, [], backward)

    def part(self, x: Tensor, count: float, *, by_heads: bool = True) -> Tensor:
        """A slice of ``x``: a view,
        whose gradient is a tensor of zeros as large as ``x`` with the part filled in.

        ``by_heads``: ``x`` has a dimension of heads before that of tokens,
        in whose order the zeros are laid out.
        """
        unit, whole = x.unit, x.count

        def backward(_: list[Tensor], gradient: Tensor) -> list[Tensor | None]:
            # Zeros all over, then the part copied.
            zeros = self.new(unit, whole, gradient.dtype, "slice_backward", cost=[gradient, gradient])
            zeros.head_by_head = by_heads
            return [zeros]

        return record(self, part_of(x, count), [x], [], backward)

    def contiguous(self, x: Tensor, op: str = "clone") -> Tensor:
        """A copy in another layout; the gradient is passed on."""
        return record(self, self.like(x, op), [x], [], lambda _, gradient: [gradient])

    def rows(self, x: Tensor) -> Tensor:
        """``x`` where it has two dimensions already: the gradient that a product makes of it is no view."""

        def backward(_: list[Tensor], gradient: Tensor) -> list[Tensor | None]:
            plain = gradient.alias()
            plain.is_view = False
            return [plain]

        return record(self, x.alias(), [x], [], backward)

    def viewed(self, x: Tensor) -> Tensor:
        """``x.view(...)`` in another number of dimensions: its gradient is a view, to which none is added in
        place.
        """

        def backward(_: list[Tensor], gradient: Tensor) -> list[Tensor | None]:
            view = gradient.alias()
            view.is_view = True
            return [view]

        return record(self, x.alias(), [x], [], backward)

    def reshaped(self, x: Tensor) -> Tensor:
        """The same memory in another shape, with a node of its own in which gradients of it are summed."""
        return record(self, x.alias(), [x], [], lambda _, gradient: [gradient])

    def mm(
        self,
        x: Tensor,
        weight: Tensor,
        out_count: float,
        *,
        bias: Tensor | None = None,
        to_unit: Unit = Unit.TOKENS,
        copies: float = 1,
    ) -> Tensor:
        """``x @ weight`` (and a bias).  ``x`` is saved for the weight's gradient,
        the weight for that of ``x``.

        ``copies``: matrices that lie in ``weight``, each of which gets its part of the rows.
        The weight's gradient is made first, but after that of ``x`` where a bias makes it an ``addmm``.
        """
        op = "mm" if bias is None else "addmm"
        inputs = [x, weight] if bias is None else [x, weight, bias]
        kept = [x if weight.node is not None else _nothing(x), weight if x.node is not None else _nothing(x)]
        saved = save(self, inputs, kept)
        del kept
        unit, count, dtype = x.unit, x.count, x.dtype
        costs = Costs(x, weight, (to_unit, out_count), copies)
        out = self.new(to_unit, out_count, dtype, op, cost=costs.forward)
        needs_x, needs_weight, has_bias = x.node is not None, weight.node is not None, bias is not None
        weight_unit, weight_count, is_view = weight.unit, weight.count, not self.flat

        def of_x() -> Tensor | None:
            if not needs_x:
                return None
            # The product sees rows; its gradient is a view of them in the shape of x.
            gradient = self.new(unit, count, dtype, op, cost=costs.of_x)
            gradient.is_view = is_view
            return gradient

        def backward(_: list[Tensor], gradient: Tensor) -> list[Tensor | None]:
            first = of_x() if has_bias else None
            of_weight = (
                self.new(weight_unit, weight_count, dtype, op, cost=costs.of_weight) if needs_weight else None
            )
            if of_weight is not None:
                # The product is transposed, which is a view, to which later gradients are not added in place.
                of_weight.is_view = not has_bias
            return [first, of_weight, gradient] if has_bias else [of_x(), of_weight]

        return record(self, out, inputs, saved, backward)

    def product(
        self,
        x: Tensor,
        weight: Tensor,
        out_count: float,
        *,
        bias: Tensor | None = None,
        to_unit: Unit = Unit.TOKENS,
        copies: float = 1,
    ) -> Tensor:
        """The same as a ``torch.autograd.Function`` of DeepSpeed.  It saves ``x`` and the weight, trained or
        not, when it has run, and makes the gradient of ``x`` first.  Neither gradient is a view.

        Source: DeepSpeed 0.19.8 runtime/zero/linear.py LinearFunctionForZeroStage3; 0.12.6 the same.
        """
        inputs = [x, weight] if bias is None else [x, weight, bias]
        costs = Costs(x, weight, (to_unit, out_count), copies)
        out = self.new(to_unit, out_count, x.dtype, "matmul", cost=costs.forward)
        shapes = [(each.unit, each.count) if each.node is not None else None for each in (x, weight)]
        of_both, has_bias = (costs.of_x, costs.of_weight), bias is not None

        def backward(_: list[Tensor], gradient: Tensor) -> list[Tensor | None]:
            made = [
                None if shape is None else self.new(*shape, gradient.dtype, "matmul", cost=cost)
                for shape, cost in zip(shapes, of_both, strict=True)
            ]
            return [*made, gradient] if has_bias else [*made]

        return record(self, out, inputs, [x, weight], backward)

    def in_place(self, x: Tensor, op: str) -> Tensor:
        """``x`` changed in place by an operator that saves nothing, and whose gradient is a new tensor."""
        self.pay([x], [x])
        return record(self, x.alias(), [x], [], lambda _, gradient: [self.like(gradient, op)])

    def bmm(
        self,
        x: Tensor,
        other: Tensor,
        to_unit: Unit,
        to_count: float,
        *,
        scaled: bool = False,
        inner: float = 0,
    ) -> Tensor:
        """``x @ other`` head by head; each is saved for the gradient of the other one.

        ``scaled``: ``baddbmm`` with a factor, by which each gradient is multiplied; that of ``x`` is the
        first one then.  ``inner``: the dimension that is summed over, where neither operand nor result is
        scores.
        """
        kept = [x if other.node is not None else _nothing(x), other if x.node is not None else _nothing(x)]
        saved = save(self, [x, other], kept)
        del kept
        macs = to_count * inner or (x.count if to_unit is Unit.PAIRS else to_count)
        of_scores = Unit.PAIRS if Unit.PAIRS in (x.unit, to_unit) else to_unit
        three = shape_of(x), shape_of(other), Tensor(None, to_unit, to_count, x.dtype)

        def cost(*operands: int) -> Multiplies:
            return Multiplies(
                Product(three[0].dtype), of_scores, macs, [three[number] for number in operands]
            )

        out = self.new(to_unit, to_count, x.dtype, "bmm", cost=cost(0, 1))
        out.head_by_head = True
        shapes = [
            (each.unit, each.count, each.dtype) if each.node is not None else None for each in (x, other)
        ]

        def gradient_of(number: int) -> Tensor | None:
            shape = shapes[number]
            if shape is None:
                return None
            made = self.new(*shape, "bmm_backward", cost=cost(1 - number, 2))
            # That of keys is transposed, so that the features of all heads are one dimension.
            made.head_by_head = not (number == 1 and to_unit is Unit.PAIRS)
            return self.like(made, "mul") if scaled else made

        def backward(_: list[Tensor], gradient: Tensor) -> list[Tensor | None]:
            del gradient
            made = {number: gradient_of(number) for number in ((0, 1) if scaled else (1, 0))}
            return [made[0], made[1]]

        return record(self, out, [x, other], saved, backward)


def _nothing(like: Tensor) -> Tensor:
    """In place of a tensor that an operator does not save."""
    return Tensor(None, Unit.ONE, 1, like.dtype)


def shape_of(x: Tensor) -> Tensor:
    """Size and dtype alone, which keep no memory."""
    return Tensor(None, x.unit, x.count, x.dtype)


class Costs:
    """What a product with a stored matrix costs, forward and in either gradient: all three multiply as often.

    A matrix of a few ranks is done with each number that it reads so soon that reading is what takes time.
    Others are read while the product runs.  ``copies``: matrices that lie in one tensor, among which the rows
    are divided.
    """

    def __init__(self, x: Tensor, weight: Tensor, out: tuple[Unit, float], copies: float = 1) -> None:
        self.x, self.weight, self.out = shape_of(x), shape_of(weight), Tensor(None, *out, x.dtype)
        ranked = [unit for unit in (out[0], x.unit, weight.unit) if unit in (Unit.RANK, Unit.RANK_TOKENS)]
        rows = (x.count * out[1] * copies / weight.count) ** 0.5
        self.narrow, self.unit, self.macs = bool(ranked), (*ranked, x.unit)[0], rows * weight.count / copies
        aligned = is_aligned(self.out.count / rows * ELEMENT_BYTES[x.dtype])
        self.kind = (
            Product(x.dtype)
            if ranked
            else Product(x.dtype, (x.unit, rows / copies), aligned or x.dtype == "fp32")
        )

    def reading(self, *operands: Tensor) -> Multiplies:
        """The product of two of the three."""
        return Multiplies(self.kind, self.unit, self.macs, operands if self.narrow else ())

    @property
    def forward(self) -> Multiplies:
        """``x @ weight``."""
        return self.reading(self.x, self.weight)

    @property
    def of_x(self) -> Multiplies:
        """The gradient of ``x``."""
        return self.reading(self.out, self.weight)

    @property
    def of_weight(self) -> Multiplies:
        """The gradient of the matrix."""
        return self.reading(self.x, self.out)


def part_of(x: Tensor, count: float) -> Tensor:
    """A view of ``count`` elements of ``x``, without gradient history."""
    part = Tensor(x.storage, x.unit, count, x.dtype)
    part.is_view, part.head_by_head = True, x.head_by_head
    return part


def _larger(x: Tensor, other: Tensor) -> bool:
    """Whether ``x`` is not the one that is broadcast: units of a batch are larger than those of a weight."""
    return (x.unit is not Unit.ONE, x.count) >= (other.unit is not Unit.ONE, other.count)
