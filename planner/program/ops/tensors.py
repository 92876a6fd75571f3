"""Tensors that have a size and no values, and the tape that records when each is allocated and freed.

A tensor is freed when the last variable, saved tensor or view that refers to it goes: Python counts
references as PyTorch does, so code here frees what the modelling code it stands for would free, at the same
moment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Literal, NamedTuple

from planner.domain.term import TermName
from planner.program.ops.work import Cost, Direction, FusedAttention, Key, Kind, Manner, Multiplies, Share

Dtype = Literal["fp32", "bf16", "fp16", "int64", "int32", "int16", "int8", "fp8", "bool"]
_BY_SIZE = {1: ("int8", "fp8", "bool"), 2: ("bf16", "fp16", "int16"), 4: ("fp32", "int32"), 8: ("int64",)}
ELEMENT_BYTES: dict[str, int] = {dtype: size for size, dtypes in _BY_SIZE.items() for dtype in dtypes}


class Unit(IntEnum):
    """What the elements of a tensor are counted in; a size is so many bytes for each of one unit."""

    ONE = 0
    TOKENS = 1
    """Tokens of a micro-batch."""
    PAIRS = 2
    """Tokens times the keys that each attends to."""
    LENGTH = 3
    """Positions of one sample."""
    RANK = 4
    RANK_TOKENS = 5
    PIECE_TOKENS = 6
    """Tokens of one piece of a loss that is computed in pieces."""
    SINK_PAIRS = 7
    """Tokens times the keys that each attends to and one sink."""
    LENGTH_PAIRS = 8
    """Positions of one sample times themselves."""
    ROWS = 9
    """Samples of a micro-batch."""
    PATCHES = 10
    """Patches of all images of a micro-batch."""
    IMAGE_PATCHES = 11
    """Patches of one image, or of one tile where images are cut."""
    RANK_PATCHES = 12
    PIXELS = 13
    """Numbers in ``pixel_values`` of all micro-batches of a step."""
    SCAN_BLOCKS = 14
    """Blocks of positions of all samples, whose last states the kernel of Mamba 1 keeps."""
    EVAL_TOKENS = 15
    """From here on: as those above, of a batch that is evaluated."""
    EVAL_PAIRS = 16
    EVAL_RANK_TOKENS = 17
    EVAL_PIECE_TOKENS = 18
    EVAL_SINK_PAIRS = 19
    EVAL_ROWS = 20
    EVAL_PATCHES = 21
    EVAL_RANK_PATCHES = 22
    EVAL_COMPLETION_TOKENS = 23
    COMPLETION_TOKENS = 24
    """Tokens of a micro-batch that were generated."""
    PROMPT_TOKENS = 25
    """From here on: of the batch that is generated at once.  Its prompts come first."""
    PROMPT_PAIRS = 26
    PROMPT_LENGTH = 27
    PROMPT_LENGTH_PAIRS = 28
    PROMPT_RANK_TOKENS = 29
    GENERATED_ROWS = 30
    """Sequences, each of which is one token longer after every step."""
    GENERATED_RANK_ROWS = 31
    CACHED_TOKENS = 32
    """Tokens that are cached when the last one is generated."""
    CACHED_SINK_TOKENS = 33
    WINDOW_TOKENS = 34
    """Those of them that a layer with a window keeps."""
    SCORED_TOKENS = 35
    """Tokens of the whole sequences that were generated at once."""
    SCORED_PAIRS = 36
    SCORED_SINK_PAIRS = 37
    PATCH_PAIRS = 38
    """Patches of all images times those of their own image or tile."""
    IMAGE_PAIRS = 39
    """The same of one image."""
    ARRIVED_ROWS = 40
    """Rows that arrive at one GPU's experts, a token once for each of its experts, and one of zeros."""
    EXPERT_ROWS = 41
    """Rows that these experts compute, with those that fill up each expert's."""
    EVAL_ARRIVED_ROWS = 42
    EVAL_EXPERT_ROWS = 43
    IMAGE_TOKENS = 44
    """Tokens of all images of a micro-batch."""
    EVAL_IMAGE_TOKENS = 45
    CUT_TOKENS = 46
    """Patches of all tiles of one image, without that of the whole."""
    LINE_TOKENS = 47
    """Tokens of one image without those of its tile of the whole: rows of patches, each with an end."""
    PATCH_SQUARES = 48
    """Patches of all images times themselves."""
    TABLE_ROWS = 49
    """Positions in tables of cosines and sines."""
    SHIFTED_TOKENS = 50
    """Tokens of a micro-batch without one of each sample, as labels are those of the next token."""
    SHIFTED_LENGTH = 51
    """Positions of one sample without one."""
    EVAL_SHIFTED_TOKENS = 52
    COMPLETION_LENGTH = 53
    """Positions of one sample that were generated."""
    HEAD_PIECES = 54
    """Pieces of 128 positions, in which a head makes its logits."""
    PIECE_LOGITS = 55
    """Logits that a fused head and loss hold at a time."""
    EVAL_PIECE_LOGITS = 56
    PIECES = 57
    """Pieces of a loss that is computed in pieces."""
    WORKSPACE = 58
    """Bytes of cuBLAS's workspace."""
    REAL_TOKENS = 59
    """Tokens of a padded micro-batch that are no padding, where one sample is as long as all may be."""
    EVAL_REAL_TOKENS = 60
    CHUNKS = 61
    """Chunks of one sample, through which a layer without attention goes in a loop."""
    CHUNK_TOKENS = 62
    """Tokens of a micro-batch whose samples are filled up to whole chunks."""
    CHUNK_SQUARES = 63
    """These tokens times the chunks of their sample."""
    CHUNK_ROWS = 64
    """Tokens of one chunk of all samples; work is counted for each chunk in turn."""
    LATER_CHUNK_TOKENS = 65
    """``CHUNK_TOKENS`` without one chunk of each sample."""
    EVAL_CHUNKS = 66
    EVAL_CHUNK_TOKENS = 67
    EVAL_CHUNK_SQUARES = 68
    EVAL_CHUNK_ROWS = 69
    EVAL_LATER_CHUNK_TOKENS = 70


class Storage:
    """Memory behind one or several tensors; freed when the last of them goes."""

    __slots__ = ("slot", "tape")

    def __init__(self, tape: Tape, slot: int) -> None:
        self.tape = tape
        self.slot = slot

    def __del__(self) -> None:
        self.tape.events.append(~self.slot)


@dataclass(slots=True, eq=False)
class Tensor:
    """``count`` elements for each of ``unit``; ``node`` sends its gradient on, if it has one.

    ``is_view`` marks a tensor that lies in another one's memory; ``head_by_head`` one whose rows are not
    together, one head following the other.  ``storage`` is ``None`` for what is not counted.
    ``dropped``: what dropout made of it, where several matrices read that.
    """

    storage: Storage | None
    unit: Unit
    count: float
    dtype: Dtype
    node: Node | None = None
    is_view: bool = False
    head_by_head: bool = False
    dropped: Tensor | None = None

    def alias(self) -> Tensor:
        """The same memory without gradient history."""
        return Tensor(self.storage, self.unit, self.count, self.dtype, None, self.is_view, self.head_by_head)


PLAIN = Manner()
# Gradients of the inputs of a node, from its saved tensors and the gradient of its output.
Backward = Callable[[list[Tensor], Tensor], "list[Tensor | None]"]
Unpack = Callable[[], Tensor]


@dataclass(slots=True, eq=False)
class Node:
    """One operator of the backward pass; a leaf (without ``backward``) keeps the gradient of a parameter.

    ``inputs``: the node that made each input, and that input's unit, count and dtype; ``None`` where it needs
    no gradient.  ``saved`` gives each saved tensor back.  ``context`` are tensors that a custom function
    keeps as attributes of its context: they live as long as the node, and checkpointing does not see them.
    ``path``: the modules that it was made in; ``parameter``: number of the parameter that a leaf belongs to;
    ``manner``: how its kernels run.
    """

    name: str
    order: int
    backward: Backward | None
    manner: Manner = PLAIN
    inputs: list[tuple[Node, Unit, float, Dtype] | None] = field(default_factory=list)
    saved: list[Unpack] = field(default_factory=list)
    context: list[Tensor] = field(default_factory=list)
    grad: Tensor | None = None
    path: tuple[int, ...] = ()
    parameter: int | None = None


PartStage = Literal[
    "forward",
    "forward_next",
    "forward_end",
    "forward_out",
    "forward_itself",
    "forward_loss",
    "backward",
    "backward_next",
    "backward_out",
    "backward_end",
    "returns_again",
]
"""When events of a part happen.  ``forward_next``: when the next layer has run; ``forward_end``: when
autocast ends; ``forward_out``: what the head does after that; ``forward_itself``: when the
model has been asked beside that; ``forward_loss``: what is done when other
passes have run, too.  ``backward_next``: when the layer before has gone back; ``backward_out``: when hooks
let go; ``backward_end``: when the graph goes; ``returns_again``: when the model has returned in the next
micro-step."""
Moment = Literal["before_forward", "read", "after_forward", "before_backward", "after_backward", "gradient"]


class Mark(NamedTuple):
    """A moment at which the hooks of an engine run.

    ``number``: of the module, or of the parameter whose gradient is ready; ``slot``: of that gradient.
    """

    moment: Moment
    number: int
    slot: int | None = None


InGraph = Literal["", "saved", "bound"]


@dataclass(frozen=True, slots=True)
class Parameter:
    """A weight that the code asked for: ``count`` elements for each of ``unit``, of a numbered module.

    ``in_graph``: the graph has a view of it, so that its memory stays where an engine takes it away: until
    the operator has run backward, unless a checkpoint runs it again (``saved``), or as long as the graph.
    """

    unit: Unit
    count: float
    dtype: Dtype
    trained: bool
    module: int
    in_graph: InGraph = ""


ATTENTION = frozenset({"flash_attention", "efficient_attention"})
"""Attention kernels of torch."""
EXCHANGED_ROWS = "all_to_all_single"
"""What arrives where GPUs send one another rows for their experts, or what these returned."""
PRODUCTS = frozenset({"mm", "addmm", "bmm", "baddbmm", "matmul"})
"""Products that PyTorch gives to cuBLAS."""
COSTLY = frozenset({"mm", "addmm", "bmm", EXCHANGED_ROWS}) | ATTENTION
"""Operators whose outputs a selective checkpoint may keep."""


class Tape:
    """The record of one run: ``events`` of a stage hold an allocation's number, its complement when freed.

    ``units``, ``unit_bytes``, ``terms`` and ``ops`` describe each allocation by its number.  ``pack``: what
    becomes of a tensor that is saved; ``keeps``: makes outputs of ``COSTLY`` operators, or has kept them.

    For engines: ``marks`` are moments, with the stage of each and how many events of it are before.
    ``modules`` are the paths of names that modules were entered by, the whole part first.  ``path`` are the
    numbers of the modules that run now, ``path_back`` of those whose backward runs, ``passed`` of those that
    have sent a gradient on.

    ``elsewhere``: slots that lie in memory of a second CUDA stream.  ``end_node``: runs when a node of the
    backward pass has; ``n_graphs``: backward passes that run, each inside the one before.
    """

    def __init__(self) -> None:
        self.events: list[int] = []
        self.stages: dict[str, list[int]] = {}
        self.units: list[Unit] = []
        self.unit_bytes: list[float] = []
        self.terms: list[TermName | None] = []
        self.ops: list[tuple[str, str]] = []
        self.module = ""
        self.grad_enabled = True
        self.n_nodes = 0
        self.pack: Callable[[Tensor], Unpack] = keep
        self.keeps: Callable[[str, Callable[[], Tensor]], Tensor] | None = None
        self.stage = ""
        self.marks: list[tuple[str, int, Mark]] = []
        self.modules: list[tuple[str, ...]] = [()]
        self.path: tuple[int, ...] = (0,)
        self.path_back: tuple[int, ...] = ()
        self.passed: set[int] = set()
        self.work: dict[Key, dict[Unit, float]] = {}
        self.direction: Direction = "forward"
        self.manner = PLAIN
        self.elsewhere: list[int] = []
        self.end_node: Callable[[], None] | None = None
        self.n_graphs = 0

    def enter(self, stage: PartStage | Literal["ports", "nowhere"]) -> None:
        """Record into the list of ``stage`` from now on; ``ports``: what other parts made."""
        self.stage, self.events = stage, self.stages.setdefault(stage, [])

    def new(
        self,
        unit: Unit,
        count: float,
        dtype: Dtype,
        op: str,
        term: TermName | None = None,
        *,
        cost: Cost = (),
    ) -> Tensor:
        """A tensor in memory of its own, which the operator ``op`` writes, and what that costs beside.

        One number for each token is no memory: below 0.1 % of what a layer keeps.
        """
        if self.keeps and op in COSTLY and self.grad_enabled:
            return self.keeps(op, lambda: self._new(unit, count, dtype, (op, term), cost))
        return self._new(unit, count, dtype, (op, term), cost)

    def _new(
        self, unit: Unit, count: float, dtype: Dtype, what: tuple[str, TermName | None], cost: Cost
    ) -> Tensor:
        tensor = Tensor(None, unit, count, dtype)
        if cost is not None:
            self.pay(cost, (tensor,))
        if count <= 1 and unit is Unit.TOKENS:
            return tensor
        slot = len(self.units)
        self.units.append(unit)
        self.unit_bytes.append(count * ELEMENT_BYTES[dtype])
        self.terms.append(what[1])
        self.ops.append((self.module, what[0]))
        self.events.append(slot)
        tensor.storage = Storage(self, slot)
        return tensor

    def pay(self, cost: Sequence[Tensor] | Multiplies, writes: Sequence[Tensor] = ()) -> None:
        """Count one kernel: what it multiplies, reads and writes; attention has a rate of its own."""
        self.call("launches")
        if self.manner.waits and self.direction != "backward":
            self.call("waits")
        share = self.manner.share
        if not isinstance(cost, Multiplies):
            self.move((*cost, *writes), share)
            return
        if isinstance(cost.kind, FusedAttention):
            share, writes = "attention", ()
        elif cost.kind.rows and share == "elementwise":
            share = "matmul"
        self.spend(cost.kind, cost.unit, cost.macs, share)
        self.move((*cost.reads, *writes), share)

    def call(self, kind: Kind, times: float = 1) -> None:
        """Count what the host does ``times`` at each call."""
        self.spend(kind, self.manner.per or Unit.ONE, times * self.manner.calls)

    def move(self, tensors: Sequence[Tensor], share: Share) -> None:
        """Count the bytes of ``tensors`` once, as read or written."""
        counts = self._counts("bytes", share) if tensors else {}
        for each in tensors:
            unit = _in_turn(each.unit)
            counts[unit] = counts.get(unit, 0.0) + each.count * ELEMENT_BYTES[each.dtype]

    def spend(self, kind: Kind, unit: Unit, amount: float, share: Share | None = None) -> None:
        """Count so much work for each of ``unit``, in a ``share`` of the time; default: the manner's."""
        counts, unit = self._counts(kind, share or self.manner.share), _in_turn(unit)
        counts[unit] = counts.get(unit, 0.0) + amount

    def _counts(self, kind: Kind, share: Share) -> dict[Unit, float]:
        return self.work.setdefault((self.direction, share, kind), {})

    def in_manner(self, manner: Manner) -> AbstractContextManager[None]:
        """Kernels that are called here, and those of their backward, run in a manner of their own."""
        return replaced(self, manner=manner)

    def counted_as(self, share: Share) -> AbstractContextManager[None]:
        """Kernels that are called here belong to one part of the step's time."""
        # Not ``replace``, which takes four times as long: there are ten of these in a layer.
        return self.in_manner(Manner(share, self.manner.calls, self.manner.waits, self.manner.per))

    def like(self, tensor: Tensor, op: str, dtype: Dtype | None = None, *, cost: Cost = ()) -> Tensor:
        """A new tensor of the shape and layout of ``tensor``, which is read for it, as is ``cost``."""
        paid = (tensor, *cost) if isinstance(cost, tuple) else cost
        new = self.new(tensor.unit, tensor.count, dtype or tensor.dtype, op, cost=paid)
        new.head_by_head = tensor.head_by_head
        return new

    @contextmanager
    def inside(self, module: str, label: str = "") -> Iterator[None]:
        """Name the module whose operators run; ``label``: what they are called instead of it."""
        before, self.module = self.module, label or module
        path, number = self.path, self.module_number(module)
        self.path = (*path, number)
        self.mark("before_forward", number)
        try:
            yield
            self.mark("after_forward", number)
        finally:
            self.module, self.path = before, path

    def module_number(self, module: str) -> int:
        """The number of a module inside the one that runs; the running one itself without a name."""
        if not module:
            return self.path[-1]
        name = (*self.modules[self.path[-1]], module)
        if name not in self.modules:
            self.modules.append(name)
        return self.modules.index(name)

    def mark(self, moment: Moment, number: int, slot: int | None = None) -> None:
        """Note a moment between two events."""
        self.marks.append((self.stage, len(self.events), Mark(moment, number, slot)))

    def go_back_to(self, path: tuple[int, ...]) -> None:
        """Backward goes on in the modules ``path``: mark those that it leaves and those that it enters.

        A module whose input needs no gradient is never left: what would say so is the gradient of the input.
        """
        before = self.path_back
        same = 0
        while same < min(len(path), len(before)) and path[same] == before[same]:
            same += 1
        for number in reversed(before[same:]):
            if number in self.passed:
                self.mark("after_backward", number)
        for number in path[same:]:
            self.mark("before_backward", number)
        self.path_back = path

    def no_grad(self) -> AbstractContextManager[None]:
        """Run operators that keep nothing for a backward pass."""
        return replaced(self, grad_enabled=False)


def _in_turn(unit: Unit) -> Unit:
    """What all turns of a loop over chunks cost, of which each has a tensor of ``unit``."""
    return Unit.CHUNK_TOKENS if unit is Unit.CHUNK_ROWS else unit


@contextmanager
def replaced(torch: Tape, **values: object) -> Iterator[None]:
    """Attributes of ``torch`` have other values for a while."""
    before = {name: getattr(torch, name) for name in values}
    for name in before:
        setattr(torch, name, values.pop(name))
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(torch, name, value)


def promoted(one: Dtype, other: Dtype) -> Dtype:
    """The dtype of a result of both (torch 2.13 c10/core/ScalarType.h): fp16 and bf16 make fp32."""
    return one if one == other else "fp32"


def keep(tensor: Tensor) -> Unpack:
    """A saved tensor that is simply kept."""
    same = tensor.alias()
    return lambda: same
