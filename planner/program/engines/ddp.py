"""Distributed data parallel: the whole step on every GPU, and buckets with a second copy of all gradients.

Source: torch 2.13 nn/parallel/distributed.py, torch/csrc/distributed/c10d/reducer.cpp ``initialize_buckets``:
the first bucket is of 1 MiB, the others of 25 MiB, each closed by the gradient that fills it, in the reverse
order of the parameters.  Gradients are copied into buckets and out of them (``gradient_as_bucket_view`` is
off by default); buckets stay until the end.
First the weights are made equal: comm.cpp ``broadcast_coalesced`` copies them, two copies at a time, each
closed by the tensor that fills 250 MiB.  A tensor that is alone is sent as it is.
Where no unused parameters are looked for, one bucket holds all gradients of the first step
(distributed.py ``compute_bucket_size_limits``); the next forward pass begins with letting go of it and making
the others (``_rebuild_buckets``).
Ignored: their order is that in which gradients came, which closes the same buckets but for ties; buffers that
are made equal with the weights, such as the two matrices of VeRA.
"""

from __future__ import annotations

from collections.abc import Iterable

from planner.program.job import Job
from planner.program.load import load_whole, take_workspaces
from planner.program.ops.tensors import ELEMENT_BYTES, Unit
from planner.program.parameters import Weight
from planner.program.request_stream import RequestStream
from planner.program.runtime import Part, Pass, Runtime
from planner.program.update.states import n_elements
from planner.units import MIB

_FIRST_BYTES, _BUCKET_BYTES = MIB, 25 * MIB
_SENT_BYTES, _IN_FLIGHT = 250 * MIB, 2


class Ddp(Runtime):
    """One of the processes of a DDP job."""

    def __init__(self, stream: RequestStream, job: Job) -> None:
        super().__init__(stream, job)
        self._gradient_bytes: list[float] = []
        self._first_bucket: int | None = None
        self._is_due = False

    def load(self) -> None:
        """Everything whole, then the buckets."""
        self.weights = load_whole(self.stream, self.job)
        self._make_equal()
        trained = [each for each in self.weights if each.requires_gradient]
        self._gradient_bytes = [
            n_elements(self.job, each) * ELEMENT_BYTES[each.dtype] for each in reversed(trained)
        ]
        recipe = self.job.recipe
        if self.job.stack.finds_unused(
            has_adapter=recipe.adapter is not None, is_checkpointed=recipe.gradient_checkpointing
        ):
            self._take_buckets()
        else:
            self._first_bucket = self._bucket(sum(self._gradient_bytes))
        self.stream.enter("forward")
        take_workspaces(self.stream, self.job)

    def micro_step(self, parts: list[Part], phases: Pass) -> list[int]:
        """The first one after gradients were summed begins with buckets of the usual size."""
        if self._is_due and self._first_bucket is not None:
            self.stream.enter(phases.forward)
            self.stream.free(self._first_bucket)
            self._first_bucket = None
            self._take_buckets()
        self._is_due = self._is_due or phases.is_last
        return super().micro_step(parts, phases)

    def _take_buckets(self) -> None:
        for n_bytes in bucket_sizes(self._gradient_bytes):
            self._bucket(n_bytes)

    def _bucket(self, n_bytes: float) -> int:
        return self.stream.allocate(Unit.ONE, n_bytes, "gradient_buckets", ("ddp", "", "bucket"))

    def _make_equal(self) -> None:
        """Every rank gets the first one's weights."""
        broadcast(self.stream, "ddp", ((each.dtype, self._n_bytes(each)) for each in self.weights))

    def _n_bytes(self, weight: Weight) -> float:
        if weight.packed:
            return self.stream.unit_bytes[weight.slot]
        return n_elements(self.job, weight) * ELEMENT_BYTES[weight.dtype]


def broadcast(stream: RequestStream, engine: str, tensors: Iterable[tuple[str, float]]) -> None:
    """Copies by which tensors of so many bytes are made equal on every rank, two of them at a time."""
    in_flight: list[list[int]] = []
    for n_bytes in copy_sizes(tensors):
        if len(in_flight) == _IN_FLIGHT:
            stream.free(*in_flight.pop(0))
        sizes = [n_bytes] if n_bytes else []
        in_flight.append(stream.allocate_all(sizes, "other_temporaries", (engine, "", "broadcast")))
    for slots in in_flight:
        stream.free(*slots)


def copy_sizes(tensors: Iterable[tuple[str, float]]) -> list[float]:
    """Bytes of each copy, for tensors by dtype, in the order of their first ones; 0 for one that is alone."""
    copies: list[list[float]] = []
    filling: dict[str, list[float]] = {}
    for dtype, n_bytes in tensors:
        if dtype not in filling:
            filling[dtype] = [0, 0.0]
            copies.append(filling[dtype])
        copy = filling[dtype]
        copy[0] += 1
        copy[1] += n_bytes
        if copy[1] >= _SENT_BYTES:
            del filling[dtype]
    return [n_bytes if count > 1 else 0.0 for count, n_bytes in copies]


def bucket_sizes(gradients: list[float]) -> list[float]:
    """Bytes of each bucket, for gradients in the order in which they come."""
    buckets: list[float] = []
    limit, filled = _FIRST_BYTES, 0.0
    for n_bytes in gradients:
        filled += n_bytes
        if filled >= limit:
            buckets.append(filled)
            limit, filled = _BUCKET_BYTES, 0.0
    return [*buckets, filled] if filled else buckets
