"""What GPUs that divide a model send one another in the passes: each collective gives a new tensor.

Their time is that of the links: :mod:`planner.throughput.parallel_time`.
The tensors are made on the stream of the kernels, which waits for the collective before its next kernel.
Source: torch 2.13 distributed/_functional_collectives.py (all_reduce, all_gather_single,
reduce_scatter_single), distributed/tensor/_redistribute.py; transformers 5.23 distributed/tensor_parallel.py;
torchtitan 0.3.0 protocols/module.py, spmd_types 0.2.3 _collectives.py (_AllGatherShard, _ReduceScatterShard),
run on fake tensors. torchtitan's selective checkpoint keeps the sums of another operator
(``_c10d_functional.reduce_scatter_tensor``), so these run again with their layer.
"""

from __future__ import annotations

from planner.domain.model import LinearSpec
from planner.program.ops.autograd import record
from planner.program.ops.operators import Operators
from planner.program.ops.tensors import ELEMENT_BYTES, Tensor
from planner.program.ops.work import SummedInPlace
from planner.program.view import LayerView

ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER = "all_reduce", "all_gather", "reduce_scatter"
GATHERED_KEYS, SCATTERED_KEYS = "all_gather of keys", "reduce_scatter of keys"
SENT_KEYS, ALL_TO_ALL, PASSED_ON = "copy of a head for all_gather", "all_to_all", "sent to the next GPU"
"""Names of collectives as operators; the last five are among GPUs that divide a sequence.
``SENT_KEYS`` makes what is sent, the others what arrives.
"""


def entering(torch: Operators, view: LayerView, spec: LinearSpec, x: Tensor) -> Tensor:
    """``x`` as a matrix with divided outputs reads it: the GPUs' parts of its gradient are summed.

    Where the stream is divided over tokens, ``x`` was gathered before, by :func:`gathered`.
    """
    return (
        with_summed_gradient(torch, view, x) if spec.divided == "outputs" and not splits_tokens(view) else x
    )


def leaving(torch: Operators, view: LayerView, spec: LinearSpec, out: Tensor) -> Tensor:
    """The sum of what all GPUs return of a matrix with divided inputs: whole, or this GPU's tokens of it."""
    if spec.divided != "inputs":
        return out
    return scattered(torch, view, out) if splits_tokens(view) else summed(torch, view, out)


def splits_tokens(view: LayerView) -> bool:
    """Whether norms and the stream between matrices are divided over tokens (sequence parallel)."""
    return view.recipe.parallel.tensor > 1 and view.stack.model_parallel == "tokens"


def summed(torch: Operators, view: LayerView, x: Tensor) -> Tensor:
    """All-reduce of the parts of a sum; the gradient of each part is that of the sum."""
    if view.by_autotp:
        return _in_place(torch, x)
    return record(torch, torch.like(x, ALL_REDUCE, cost=None), [x], [], lambda _, gradient: [gradient])


def with_summed_gradient(torch: Operators, view: LayerView, x: Tensor) -> Tensor:
    """``x``, the parts of whose gradient are summed."""

    def backward(_: list[Tensor], gradient: Tensor) -> list[Tensor | None]:
        if view.by_autotp:
            return [_in_place(torch, gradient)]
        return [torch.like(gradient, ALL_REDUCE, cost=None)]

    return record(torch, x.alias(), [x], [], backward)


def _in_place(torch: Operators, x: Tensor) -> Tensor:
    torch.spend(SummedInPlace(), x.unit, x.count * ELEMENT_BYTES[x.dtype])
    return x


def gathered(torch: Operators, view: LayerView, x: Tensor) -> Tensor:
    """All tokens where GPUs divide the stream over them; each gets the sum of the gradient of its own."""
    if not splits_tokens(view):
        return x
    return _gathered_tokens(torch, view, x, view.recipe.parallel.tensor, (ALL_GATHER, REDUCE_SCATTER))


def gathered_keys(torch: Operators, view: LayerView, keys: Tensor) -> Tensor:
    """Keys or values of the whole sequence, for the queries of this GPU's part of it."""
    whole = _gathered_tokens(torch, view, keys, view.recipe.parallel.context, (GATHERED_KEYS, SCATTERED_KEYS))
    whole.head_by_head = keys.head_by_head
    return whole


def _gathered_tokens(
    torch: Operators, view: LayerView, x: Tensor, parts: int, ops: tuple[str, str]
) -> Tensor:
    """The tokens of all ``parts``; ``ops``: names of both collectives."""
    count = x.count

    def backward(_: list[Tensor], gradient: Tensor) -> list[Tensor | None]:
        return [_scatter(torch, view, gradient, count, ops[1])]

    return record(torch, _gather(torch, count * parts, x, ops[0]), [x], [], backward)


def scattered(torch: Operators, view: LayerView, x: Tensor) -> Tensor:
    """This GPU's tokens of the sum of all parts; the gradient of the whole is gathered."""
    count = x.count

    def backward(_: list[Tensor], gradient: Tensor) -> list[Tensor | None]:
        return [_gather(torch, count, gradient, ALL_GATHER)]

    own = _scatter(torch, view, x, count / view.recipe.parallel.tensor, REDUCE_SCATTER)
    return record(torch, own, [x], [], backward)


def gathered_features(torch: Operators, part: list[Tensor], parts: int) -> Tensor:
    """The features of all GPUs for every token, from this GPU's in ``part``, which is emptied."""
    x = part.pop()
    own = Tensor(None, x.unit, x.count, x.dtype)

    def backward(*_: object) -> list[Tensor | None]:
        return [torch.like(own, "clone")]

    return record(torch, _gather(torch, x.count * parts, x, ALL_GATHER), [x], [], backward)


def _gather(torch: Operators, count: float, x: Tensor, op: str) -> Tensor:
    """What arrives GPU by GPU, and its copy in order."""
    received = torch.new(x.unit, count, x.dtype, op, cost=None)
    out = torch.like(received, "cat")
    del received
    return out


def _scatter(torch: Operators, view: LayerView, whole: Tensor, count: float, op: str) -> Tensor:
    """This GPU's part of a sum; of several samples it is sent from a copy in the order of GPUs."""
    ordered = None if view.single else torch.like(whole, "clone")
    out = torch.new(whole.unit, count, whole.dtype, op, cost=None)
    del ordered
    return out
