"""Gradient checkpointing: a function that keeps its input alone, and runs again when its backward begins.

Source: torch 2.13 ``utils/checkpoint.py``: without reentry every saved tensor is replaced by a holder; the
first one that is asked for runs the function again, up to the last tensor that the first run saved
(``_StopRecomputationError``). A selective checkpoint keeps what some operators return, which the second run
takes instead of calling them (``create_selective_checkpoint_contexts``); which ones says torchtitan 0.3.0
distributed/activation_checkpoint.py.  In a compiled layer those that its backward does not need are not kept
(``_functorch/partitioners.py`` solve_min_cut: what is saved lies on a way to the backward; tried with
aot_eager_decomp_partition): the output of a layer's last product, which a sum alone reads.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from weakref import ref

from planner.program.ops.autograd import record, run_backward
from planner.program.ops.operators import Operators, shape_of
from planner.program.ops.tensors import (
    ATTENTION,
    COSTLY,
    ELEMENT_BYTES,
    PLAIN,
    Node,
    Tensor,
    Unpack,
    keep,
    replaced,
)
from planner.program.ops.work import ToHost

Layer = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class Checkpointing:
    """``offloads``: the input lies in host RAM where other saved tensors do not; ``selective``:
    some outputs are kept with it (without reentry only); ``keeps_attention``: that of attention among them;
    ``compiled``: no more of them than its backward needs.

    ``hooked``: a hook on the second run's input refers to it and to its gradient until the whole backward
    pass has ended.
    """

    offloads: bool = False
    selective: bool = False
    keeps_attention: bool = True
    compiled: bool = False
    hooked: bool = False


_PLAIN = Checkpointing()
# Python runs three times for each saved tensor: when it is dropped, saved again and asked for.  On a CPU
# without a GPU that takes 12 to 14 us beside 5.3 to 6.9 us for each operator (Llama of Transformers 5.23,
# with and without adapters of peft 0.21, no autocast); with a GPU an operator takes 2 to 5 us more.
_HOOKED_OPERATORS = 2


class _Outputs:
    """What a selective checkpoint keeps: outputs of attention (where its kernel is on the list),
    of batched products, and of every second product of a weight.

    Products with a bias are another operator (``addmm``), all of which are kept.
    """

    def __init__(self, *, attention: bool) -> None:
        self.kept: deque[Tensor] = deque()
        self.listed = COSTLY if attention else COSTLY - ATTENTION
        self.n_first = self.n_again = self.n_needed = 0

    def keep(self, op: str, make: Callable[[], Tensor]) -> Tensor:
        """An output of the first run."""
        out = make()
        self.n_first += op == "mm"
        if op in self.listed and (op != "mm" or self.n_first % 2):
            self.kept.append(out.alias())
        return out

    def holds(self, tensor: Tensor) -> None:
        """``tensor`` is saved for the backward pass: what was kept before it was made may be needed."""
        last = self.kept[-1].storage if self.kept else None
        if last is not None and tensor.storage is not None and tensor.storage.slot >= last.slot:
            self.n_needed = len(self.kept)

    def drop_unneeded(self) -> None:
        """Of the last ones, from which nothing that is saved was made, no more than that they were."""
        for number in range(self.n_needed, len(self.kept)):
            of = self.kept[number]
            self.kept[number] = Tensor(None, of.unit, of.count, of.dtype)

    def take(self, op: str, make: Callable[[], Tensor]) -> Tensor:
        """The same output in the second run."""
        self.n_again += op == "mm"
        kept = op in self.listed and (op != "mm" or self.n_again % 2)
        return self.kept.popleft() if kept else make()


class _Stop(Exception):  # noqa: N818 - not an error: all that was saved exists again
    """All that the first run saved exists again."""


class _Frame:
    """One checkpointed call: its function and input, and what its second run has saved again."""

    def __init__(self, torch: Operators, layer: Layer, x: Tensor, how: Checkpointing) -> None:
        self.torch, self.layer = torch, layer
        self.outputs = _Outputs(attention=how.keeps_attention) if how.selective else None
        self.x = _kept(torch, x, how)
        self.n_saved, self.n_parameters, self.path = 0, torch.n_parameters, torch.path
        self.again: dict[int, Tensor] = {}
        self.held: list[ref[Unpack]] = []
        self.n_again = 0
        self.ran = False
        # Autocast keeps its copy of an input that is a leaf in the second run too.
        self.leaf = torch.leaf

    def hold(self, tensor: Tensor) -> Unpack:
        """Drop a saved tensor; give it back from the second run."""
        if self.outputs:
            self.outputs.holds(tensor)
        del tensor
        self.torch.call("calls", _HOOKED_OPERATORS)
        number, self.n_saved = self.n_saved, self.n_saved + 1

        def unpack() -> Tensor:
            if not self.ran:
                self.run_again()
            return self.again.pop(number)

        self.held.append(ref(unpack))
        return unpack

    def keep_again(self, tensor: Tensor) -> Unpack:
        """Keep a tensor of the second run, unless the graph that saved it is gone;
        stop after the last one.
        """
        if self.held[self.n_again]() is not None:
            self.again[self.n_again] = tensor.alias()
        self.n_again += 1
        if self.n_again == self.n_saved:
            raise _Stop
        return keep(tensor)

    def run_again(self) -> None:
        """Run the function once more, with gradients and with an autocast region of its own."""
        torch, self.ran = self.torch, True
        second_run = replaced(
            torch,
            pack=self.keep_again,
            grad_enabled=True,
            autocast_cache={},
            leaf=self.leaf,
            returned=[],
            summed=[],
            module=torch.module,
            manner=PLAIN,
            direction="again",
            n_parameters=self.n_parameters,
            keeps=self.outputs.take if self.outputs else torch.keeps,
        )
        with second_run:
            torch.mark("before_forward", self.path[-1])
            x = self.x()
            try:
                self.layer(x)
            except _Stop as stop:
                # The frames that the exception went through hold what their variables refer to.
                stop.__traceback__ = None


def _kept(torch: Operators, x: Tensor, how: Checkpointing) -> Unpack:
    """The input of a layer, saved as other tensors are, or in host RAM; it comes with its node."""
    node = x.node
    unpack = partial(_brought_back, torch, _on_host(torch, x)) if how.offloads else torch.pack(x)

    def back() -> Tensor:
        again = unpack()
        again.node = node
        return again

    return back


def _on_host(torch: Operators, x: Tensor) -> Tensor:
    """What is left of ``x`` on the GPU when it lies in host RAM."""
    size = x.count * ELEMENT_BYTES[x.dtype]
    torch.spend(ToHost(size), x.unit, size)
    left = Tensor(None, x.unit, x.count, x.dtype)
    left.node = x.node
    return left


def _brought_back(torch: Operators, x: Tensor) -> Tensor:
    """``x`` copied from host RAM."""
    copy = torch.like(x, "to", cost=None)
    copy.node = x.node
    return copy


def checkpointed(torch: Operators, layer: Layer, x: Tensor, how: Checkpointing = _PLAIN) -> Tensor:
    """``layer(x)``, of which ``x`` is kept until its backward, and what a selective checkpoint chooses."""
    if not torch.grad_enabled:
        return layer(x)
    frame = _Frame(torch, layer, x, how)
    with replaced(torch, pack=frame.hold, keeps=frame.outputs.keep if frame.outputs else torch.keeps):
        out = layer(x)
    if frame.outputs and how.compiled:
        frame.outputs.drop_unneeded()
    return out


def checkpointed_reentrant(torch: Operators, layer: Layer, x: Tensor, how: Checkpointing = _PLAIN) -> Tensor:
    """The same by the older way: a forward without gradients,
    and a backward pass inside the backward pass.

    What the layer returns beside its output has no gradient: the engine makes zeros, which live until its
    backward is over.  Source: torch 2.13 csrc/autograd/python_function.cpp (``materialize_grads``).
    """
    first, before = torch.n_parameters, len(torch.returned)
    with torch.no_grad():
        out = layer(x)
    shapes = [shape_of(each) for each in torch.returned[before:]]

    def backward(kept: list[Tensor], gradient: Tensor) -> list[Tensor | None]:
        zeros = [torch.like(each, "zeros") for each in shapes]
        entry = _brought_back(torch, kept[0]) if how.offloads else kept[0].alias()
        entry.node = Node(torch.module, -1, None)
        if how.hooked:
            # The gradient that arrives is that of the next layer's input.
            torch.hooked += [entry, gradient.alias()]
        with replaced(torch, returned=[]):
            with replaced(
                torch,
                grad_enabled=True,
                autocast_cache={},
                leaf=entry.node,
                n_parameters=first,
                direction="again",
            ):
                again = layer(entry)
                beside = [each.node for each in torch.returned]
            if again.node is not None:
                # The output of the second run stays until its backward has run (``outputs_with_grad``).
                given = {node: zero for node, zero in zip(beside, zeros, strict=True) if node is not None}
                run_backward(torch, again.node, [gradient.alias()], given)
        return [entry.node.grad]

    return record(torch, out, [x], [_on_host(torch, x) if how.offloads else x], backward)
