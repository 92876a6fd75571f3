"""Distributed data parallel: the whole step on every GPU, and buckets with a second copy of all gradients.

Source: torch 2.13 nn/parallel/distributed.py, torch/csrc/distributed/c10d/reducer.cpp ``initialize_buckets``:
the first bucket is of 1 MiB, the others of 25 MiB, each closed by the gradient that fills it, in the reverse
order of the parameters.  Gradients are copied into buckets and out of them (``gradient_as_bucket_view`` is
off by default); buckets stay until the end.
Ignored: buckets are made again after the first step, in the order in which gradients came.  Where no unused
parameters are looked for, one bucket holds all gradients until then (``compute_bucket_size_limits``).
Weights are copied for the first broadcast, 250 MiB at a time.  All of this moves reserved memory alone.
"""

from __future__ import annotations

from planner.program.load import load_whole, take_workspaces
from planner.program.ops.tensors import ELEMENT_BYTES, Unit
from planner.program.runtime import Runtime
from planner.program.update.states import n_elements
from planner.units import MIB

_FIRST_BYTES, _BUCKET_BYTES = MIB, 25 * MIB


class Ddp(Runtime):
    """One of the processes of a DDP job."""

    def load(self) -> None:
        """Everything whole, then the buckets."""
        self.weights = load_whole(self.stream, self.job)
        trained = [each for each in self.weights if each.trained]
        for n_bytes in bucket_sizes(
            [n_elements(self.job, each) * ELEMENT_BYTES[each.dtype] for each in reversed(trained)]
        ):
            self.stream.allocate(Unit.ONE, n_bytes, "gradient_buckets", ("ddp", "", "bucket"))
        self.stream.enter("forward")
        take_workspaces(self.stream, self.job)


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
