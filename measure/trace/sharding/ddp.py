"""Distributed data parallel: the whole step on every rank, and buckets for a second copy of all gradients.

Source: torch 2.13 nn/parallel/distributed.py, torch/csrc/distributed/c10d/reducer.cpp ``initialize_buckets``.
The first bucket is of 1 MiB, the others of 25 MiB, each closed by the gradient that fills it.  Gradients are
copied into buckets and out of them (``gradient_as_bucket_view`` is off by default).  Buckets stay until the
end.
"""

from __future__ import annotations

from measure.trace.record import Record
from measure.trace.sharding.parameters import parameter_of
from measure.trace.sharding.stream import Stream, What
from planner.units import MIB

_BUCKET = What("DDP bucket", "gradient_buckets")
_FIRST_BYTES, _BUCKET_BYTES = MIB, 25 * MIB


def with_buckets(records: list[Record]) -> list[Record]:
    """``records`` of one process with DDP's buckets, which are made when everything is loaded."""
    stream = Stream(1 + max(record.block.id for record in records))
    sizes: list[int] = []
    loading = True
    for record in records:
        parameter = parameter_of(record)
        if parameter is not None and parameter.trained:
            sizes.append(parameter.n_bytes)
        if loading and record.place.stage not in ("load", "adapters"):
            loading = False
            for n_bytes in bucket_sizes(sizes[::-1]):
                stream.take(n_bytes, _BUCKET)
        stream.pass_on(record)
    return stream.records


def bucket_sizes(gradients: list[int]) -> list[int]:
    """Bytes of each bucket, for gradients of one dtype in the order in which they come."""
    buckets, limit, held = [], _FIRST_BYTES, 0
    for n_bytes in gradients:
        held += n_bytes
        if held >= limit:
            buckets.append(held)
            limit, held = _BUCKET_BYTES, 0
    return [*buckets, held] if held else buckets
