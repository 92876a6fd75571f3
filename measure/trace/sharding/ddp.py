"""Distributed data parallel: the whole step on every rank, and buckets for a second copy of all gradients.

Source: torch 2.13 nn/parallel/distributed.py, torch/csrc/distributed/c10d/reducer.cpp ``initialize_buckets``.
The first bucket is of 1 MiB, the others of 25 MiB, each closed by the gradient that fills it.  Gradients are
copied into buckets and out of them (``gradient_as_bucket_view`` is off by default).  Buckets stay until the
end, but for the one of the first step where no unused parameters are looked for.
Before that all weights are copied to be sent, at least 250 MiB at a time and two of these at once
(comm.cpp ``broadcast_coalesced``); flattening one tensor copies nothing.
"""

from __future__ import annotations

from measure.trace.record import Record, TracedBlock
from measure.trace.sharding.shard_records import RankRecords, TracedPurpose
from measure.trace.sharding.sharded_parameters import in_module_order, parameter_of
from planner.units import MIB

_BUCKET = TracedPurpose("DDP bucket", "gradient_buckets")
_COPY = TracedPurpose("DDP broadcast", "")
_FIRST_BYTES, _BUCKET_BYTES = MIB, 25 * MIB
_COPY_BYTES = 250 * MIB


def with_buckets(records: list[Record], *, finds_unused: bool) -> list[Record]:
    """``records`` of one process with DDP's buckets, which are made when everything is loaded.

    Where no unused parameters are looked for, all gradients of the first step have one, which the next
    forward pass replaces (distributed.py ``compute_bucket_size_limits``, reducer.cpp ``rebuild_buckets``).
    """
    stream = RankRecords(1 + max(record.block.id for record in records))
    sizes: list[int] = []
    loaded: list[TracedBlock] = []
    loading, has_stepped = True, False
    first: TracedBlock | None = None
    for record in records:
        parameter = parameter_of(record)
        if parameter is not None:
            loaded.append(record.block)
            if parameter.trained:
                sizes.append(parameter.n_bytes)
        if loading and record.place.stage not in ("load", "adapters"):
            loading = False
            broadcast(stream, [_sent(each) for each in in_module_order(loaded, lambda block: block)])
            if finds_unused:
                _take_buckets(stream, sizes)
            else:
                first = stream.take(sum(sizes), _BUCKET)
        has_stepped = has_stepped or record.place.stage == "optimizer_step"
        if first is not None and has_stepped and record.place.stage == "forward":
            stream.place = record.place
            stream.free(first)
            first = None
            _take_buckets(stream, sizes)
        stream.pass_on(record)
    return stream.records


def _sent(block: TracedBlock) -> tuple[int, bool, int]:
    assert block.parameter is not None
    return block.parameter.element_bytes, block.parameter.is_float, block.n_bytes


def _take_buckets(stream: RankRecords, sizes: list[int]) -> None:
    for n_bytes in bucket_sizes(sizes[::-1]):
        stream.take(n_bytes, _BUCKET)


def broadcast(stream: RankRecords, tensors: list[tuple[int, bool, int]]) -> None:
    """Copies of tensors of one dtype (width, whether it is a float), by their first tensors.

    Two are on their way at once, a tensor that is sent without a copy among them.
    """
    groups: list[list[int]] = []
    open_groups: dict[tuple[int, bool], list[int]] = {}
    for width, is_float, n_bytes in tensors:
        if (width, is_float) not in open_groups:
            open_groups[width, is_float] = []
            groups.append(open_groups[width, is_float])
        open_groups[width, is_float].append(n_bytes)
        if sum(open_groups[width, is_float]) >= _COPY_BYTES:
            del open_groups[width, is_float]
    sent: list[TracedBlock | None] = []
    for number, group in enumerate(groups):
        if number >= 2:
            stream.free(sent[number - 2])
        sent.append(stream.take(sum(group), _COPY) if len(group) > 1 else None)
    stream.free(*sent[-2:])


def bucket_sizes(gradients: list[int]) -> list[int]:
    """Bytes of each bucket, for gradients of one dtype in the order in which they come."""
    buckets, limit, held = [], _FIRST_BYTES, 0
    for n_bytes in gradients:
        held += n_bytes
        if held >= limit:
            buckets.append(held)
            limit, held = _BUCKET_BYTES, 0
    return [*buckets, held] if held else buckets
