"""Which gradients a backward pass makes, in which order, and when it lets go of what the forward pass saved.

A node runs when all its gradients are there, the one made last in forward first.  Gradients get shape and
dtype of their inputs, and saved tensors go when a node has run.  A sum is made in place where nobody else
refers to it.
Source: torch 2.13 torch/csrc/autograd: engine.cpp (evaluate_function, validate_outputs), input_buffer.cpp
(accumulate) and functions/accumulate_grad.h.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from heapq import heappop, heappush
from types import MappingProxyType

from planner.program.ops.tensors import Backward, Node, Tape, Tensor, Unit, Unpack, keep

LEAF_ORDER = sys.maxsize
"""Leaves run as soon as their gradient is there."""
# A storage that a buffer alone refers to: the attribute of its tensor, and the argument of getrefcount.
_ONE_OWNER = 2
# A tensor that a buffer alone refers to: the buffer, the variable that it was read into, and the argument.
_ONE_HOLDER = 3


def record(
    tape: Tape,
    out: Tensor,
    inputs: Sequence[Tensor],
    saved: Sequence[Tensor | Unpack],
    backward: Backward,
    context: Sequence[Tensor] = (),
) -> Tensor:
    """``out`` with the node that sends its gradient back to ``inputs``, if one of them needs it.

    ``saved``: tensors, or what :func:`save` made of them; ``context``: what a function's context keeps.
    """
    if _is_needed(tape, inputs):
        node = Node(tape.module, tape.n_nodes, backward, tape.manner)
        tape.n_nodes += 1
        node.inputs = [
            None if each.node is None else (each.node, each.unit, each.count, each.dtype) for each in inputs
        ]
        node.path = tape.path
        node.saved = [tape.pack(each) if isinstance(each, Tensor) else each for each in saved]
        node.context = [each.alias() for each in context]
        out.node = node
    return out


def save(tape: Tape, inputs: Sequence[Tensor], saved: Sequence[Tensor]) -> list[Tensor | Unpack]:
    """Inputs that an operator saves before it runs, so that a layer that runs again may end there.

    Source: torch 2.13 ``tools/autograd/gen_variable_type.py``: a node gets its outputs after the call.
    """
    return [tape.pack(each) for each in saved] if _is_needed(tape, inputs) else []


def save_for(tape: Tape, x: Tensor, other: Tensor, *more: Tensor) -> list[Tensor | Unpack]:
    """Each of two factors where the other one needs a gradient; what is not saved comes to no hook.

    Source: torch 2.13 torch/csrc/autograd/saved_variable.cpp (SavedVariable of an undefined tensor).
    """
    if not _is_needed(tape, [x, other, *more]):
        return []
    # By their names: ``mat2`` or ``other`` before ``self``.
    pairs = ((other, x), (x, other))
    return [tape.pack(each) if beside.node is not None else keep(_nothing(x)) for each, beside in pairs]


def _nothing(like: Tensor) -> Tensor:
    return Tensor(None, Unit.ONE, 1, like.dtype)


def _is_needed(tape: Tape, inputs: Sequence[Tensor]) -> bool:
    return tape.grad_enabled and any(each.node is not None for each in inputs)


def run_backward(
    tape: Tape, root: Node, gradients: list[Tensor], given: Mapping[Node, Tensor] = MappingProxyType({})
) -> None:
    """Run every node below ``root``, last to first; ``gradients`` holds that of ``root``, and is emptied.

    ``given``: gradients of nodes below, to which others are added.
    """
    waiting = _dependencies(root)
    buffers: dict[Node, Tensor] = {root: gradients.pop(), **given}
    ready = [(-root.order, 0, root)]
    n_ready = 0
    before, tape.grad_enabled = tape.grad_enabled, False
    tape.n_graphs += 1
    module, manner, direction = tape.module, tape.manner, tape.direction
    tape.direction = "backward"
    while ready:
        node = heappop(ready)[2]
        tape.module, tape.manner = node.name, node.manner
        if node.backward is None:
            _keep_gradient(tape, node, buffers.pop(node))
            continue
        if node.path and node.path != tape.path_back:
            tape.go_back_to(node.path)
        results = _run(tape, node, buffers)
        for index, edge in enumerate(node.inputs):
            if edge is None:
                continue
            target = edge[0]
            if target.parameter is None and target.path != node.path:
                tape.passed.update(number for number in node.path if number not in target.path)
            if results[index] is not None:
                _accumulate(tape, buffers, target, results, index)
            waiting[target] -= 1
            if not waiting[target] and target in buffers:
                n_ready += 1
                heappush(ready, (-target.order, n_ready, target))
    tape.n_graphs -= 1
    tape.grad_enabled, tape.module = before, module
    tape.manner, tape.direction = manner, direction


def _run(tape: Tape, node: Node, buffers: dict[Node, Tensor]) -> list[Tensor | None]:
    """What a node returns, each in shape and dtype of its input; lets go of what it saved."""
    assert node.backward is not None
    gradient = buffers.pop(node)
    results = node.backward([unpack() for unpack in node.saved], gradient)
    if tape.end_node is not None:
        tape.end_node()
    for index, edge in enumerate(node.inputs):
        result = results[index]
        if edge is None or result is None:
            results[index] = None
            continue
        _, unit, count, dtype = edge
        if result.unit is not unit or result.count != count:
            result = results[index] = tape.new(unit, count, result.dtype, "sum", cost=[result])
            # What is left when leading dimensions are summed is a view: torch 2.13
            # aten/src/ATen/ExpandUtils.h sum_to.
            result.is_view = True
        if result.dtype != dtype:
            result = results[index] = tape.like(result, "to", dtype)
    # The engine lets go of the gradient before the node does of what it saved, the first one first
    # (engine.cpp call_function, then release_variables).  What was unpacked for it went the last one first,
    # as variables of a C++ function do.
    del gradient
    node.saved.reverse()
    node.saved.clear()
    return results


def _accumulate(
    tape: Tape, buffers: dict[Node, Tensor], target: Node, results: list[Tensor | None], index: int
) -> None:
    result, results[index] = results[index], None
    before = buffers.get(target)
    if before is None:
        assert result is not None
        buffers[target] = result
    elif before.storage is not None and not _is_owned(before):
        assert result is not None
        buffers[target] = tape.like(before, "add", cost=(result,))
    elif result is not None:
        tape.pay([before, result], [before])


def _is_owned(sum_so_far: Tensor) -> bool:
    """Whether nobody but a buffer refers to it (here: through the caller's variable and this one)."""
    alone = (
        sys.getrefcount(sum_so_far) <= _ONE_HOLDER + 1 and sys.getrefcount(sum_so_far.storage) <= _ONE_OWNER
    )
    return alone and not sum_so_far.is_view


def _keep_gradient(tape: Tape, node: Node, gradient: Tensor) -> None:
    """The first gradient of a parameter stays; later ones are added to it in place."""
    if node.grad is None:
        node.grad = gradient
        if gradient.storage is not None and gradient.storage.slot < len(tape.terms):
            tape.terms[gradient.storage.slot] = "gradients"
    if node.parameter is not None:
        tape.mark("gradient", node.parameter, None if gradient.storage is None else gradient.storage.slot)


def _dependencies(root: Node) -> dict[Node, int]:
    """How many gradients each node waits for."""
    counts: dict[Node, int] = {root: 0}
    todo = [root]
    while todo:
        for edge in todo.pop().inputs:
            if edge is not None:
                if edge[0] not in counts:
                    counts[edge[0]] = 0
                    todo.append(edge[0])
                counts[edge[0]] += 1
    return counts
