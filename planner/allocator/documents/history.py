"""Recorded allocator histories of PyTorch -> events.

The input is ``torch.cuda.memory._snapshot()`` after ``_record_memory_history()``, turned into JSON (never a
pickle).  Its fields are described in the docstring of ``torch.cuda.memory._snapshot`` and by ``TraceEntry``
in c10/core/CachingDeviceAllocator.h.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from planner.allocator.events import NO_BLOCK, AllocEvent
from planner.allocator.settings import AllocatorSettings, parse_settings
from planner.errors import NotModelledError, UsageError

_RESERVES = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}
_BLOCKS = frozenset({"alloc", "free_requested", "free_completed"})
IGNORED = frozenset({"snapshot", "oom", "workspace_snapshot", "user_defined"})
ACTIONS = _BLOCKS | _RESERVES.keys() | IGNORED
"""Every action that PyTorch 2.13 records."""
_NO_POOL = (0, 0)


def events_from_history(
    history: Mapping[str, Any], device: int = 0, phase_marks: Sequence[tuple[int, str]] = ()
) -> list[AllocEvent]:
    """The requests that the program made, in order; what the real allocator did with them is left out.

    A free that completes at once becomes one ``free``, one that waits for another stream ``free_requested``
    and later ``free``; what is given back to the card becomes ``empty_cache``, unless the card was full.
    Streams become 0, 1, ... in the order in which they occur.  ``phase_marks`` are times
    (``time_us`` of the history) at which a phase begins, in order; without them the phase is empty.

    Raises:
        UsageError: not such a history, or one that does not reach back to the first allocation;
        names the entry.
        NotModelledError: it uses private pools (CUDA graphs, ``MemPool``).
    """
    entries = _entries(history, device)
    emptied = _emptied(entries)
    blocks: dict[int, int] = {}
    waiting: dict[int, int] = {}
    streams: dict[int, int] = {}
    phases = _Phases(phase_marks)
    events: list[AllocEvent] = []
    for index, action, entry in _checked(entries):
        if index in emptied:
            events.append(AllocEvent("empty_cache", NO_BLOCK, 0, phase=phases.at(entry, index)))
        if action not in _BLOCKS:
            continue
        address, n_bytes = _number(entry, "addr", index), _number(entry, "size", index)
        stream = streams.setdefault(_number(entry, "stream", index), len(streams))
        phase = phases.at(entry, index)
        if action == "alloc":
            if address in blocks:
                raise UsageError(
                    f"history entry {index}: address {address} is allocated twice; an entry is "
                    "missing before it"
                )
            blocks[address] = index
            events.append(AllocEvent("alloc", index, n_bytes, stream, phase, op=_operator(entry)))
        elif action == "free_requested":
            waiting[address] = block = _known(blocks, address, index)
            done = _completes(entries, index, address)
            events.append(AllocEvent("free" if done else "free_requested", block, n_bytes, stream, phase))
        else:
            block = _known(waiting, address, index)
            if not (events and events[-1].action == "free" and events[-1].block == block):
                events.append(AllocEvent("free", block, n_bytes, stream, phase))
    return events


def reserved_timeline(history: Mapping[str, Any], device: int = 0) -> list[int]:
    """Bytes that the real allocator had reserved after each of its segment entries:
    what a replay is held against.

    Raises:
        UsageError: not such a history, or segments are freed that it never reserved.
    """
    reserved = 0
    timeline: list[int] = []
    for index, action, entry in _checked(_entries(history, device)):
        if action in _RESERVES:
            reserved += _RESERVES[action] * _number(entry, "size", index)
            if reserved < 0:
                raise UsageError(
                    f"history entry {index}: more is released than was reserved; record from the start"
                )
            timeline.append(reserved)
    return timeline


def settings_from_history(history: Mapping[str, Any]) -> AllocatorSettings:
    """The settings under which the history was recorded, from its ``PYTORCH_CUDA_ALLOC_CONF`` text.

    Raises:
        UsageError: the history does not hold them, or they cannot be read.
        NotModelledError: another allocator backend.
    """
    settings = history.get("allocator_settings")
    # Devices other than NVIDIA's use the shorter name, and torch is moving to it.
    names = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
    text = (
        next((settings[name] for name in names if name in settings), None)
        if isinstance(settings, Mapping)
        else None
    )
    if not isinstance(text, str):
        raise UsageError("the history has no allocator_settings; record it with PyTorch 2.1 or later")
    return parse_settings(text)


def _emptied(entries: Sequence[Any]) -> frozenset[int]:
    """Entries at which the program began to empty the cache.

    The allocator gives segments back by itself, too, when a request finds the card full.  Then a segment
    follows that would not have found room beside what was reserved: more than was reserved at any time.
    """
    reserved = 0
    begins: list[tuple[int, int, int]] = []  # entry, bytes reserved before, bytes of the segment behind it
    most, is_releasing = 0, False
    for index, action, entry in _checked(entries):
        sign = _RESERVES.get(action, 0)
        n_bytes = _number(entry, "size", index) if sign else 0
        if sign < 0 and not is_releasing:
            begins.append((index, reserved, 0))
        elif sign > 0 and is_releasing:
            begins[-1] = (*begins[-1][:2], n_bytes)
        is_releasing = sign < 0
        reserved += sign * n_bytes
        most = max(most, reserved)
    return frozenset(index for index, before, n_bytes in begins if before + n_bytes <= most)


class _Phases:
    """Which phase a time lies in; times only grow."""

    def __init__(self, marks: Sequence[tuple[int, str]]) -> None:
        self._marks = list(marks)
        if any(later[0] < earlier[0] for earlier, later in zip(self._marks, self._marks[1:], strict=False)):
            raise UsageError("the phase marks must be in order of time")
        self._next = 0
        self._phase = ""

    def at(self, entry: Mapping[str, Any], index: int) -> str:
        if self._next < len(self._marks):
            time_us = _number(entry, "time_us", index)
            while self._next < len(self._marks) and self._marks[self._next][0] <= time_us:
                self._phase = self._marks[self._next][1]
                self._next += 1
        return self._phase


def _entries(history: Mapping[str, Any], device: int) -> Sequence[Any]:
    traces = history.get("device_traces")
    if not isinstance(traces, list) or not all(
        isinstance(trace, Sequence) and not isinstance(trace, str) for trace in traces
    ):
        raise UsageError(
            "not an allocator history: it has no device_traces; use torch.cuda.memory._record_memory_history"
        )
    if not 0 <= device < len(traces):
        raise UsageError(f"the history has {len(traces)} devices; there is no device {device}")
    segments = history.get("segments")
    for segment in segments if isinstance(segments, list) else ():
        if isinstance(segment, Mapping):
            _refuse_private_pool(segment.get("segment_pool_id"))
    trace: Sequence[Any] = traces[device]
    return trace


def _checked(entries: Sequence[Any]) -> Iterator[tuple[int, str, Mapping[str, Any]]]:
    for index, entry in enumerate(entries):
        action = entry.get("action") if isinstance(entry, Mapping) else None
        if action not in ACTIONS:
            raise UsageError(
                f"history entry {index}: unknown action {str(action)[:40]!r}; the format of PyTorch "
                "2.13 is read"
            )
        _refuse_private_pool(entry.get("pool_id"))
        yield index, str(action), entry


def _refuse_private_pool(pool_id: Any) -> None:
    if isinstance(pool_id, (list, tuple)) and tuple(pool_id) != _NO_POOL:
        raise NotModelledError(
            "private memory pools (CUDA graphs, MemPool) are not modelled; record the run without them"
        )


def _number(entry: Mapping[str, Any], key: str, index: int) -> int:
    value = entry.get(key)
    if type(value) is not int or not 0 <= value < 2**64:
        raise UsageError(f"history entry {index}: '{key}' must be a whole number, zero or more")
    return value


def _known(blocks: dict[int, int], address: int, index: int) -> int:
    if address not in blocks:
        raise UsageError(
            f"history entry {index}: address {address} is freed but was never allocated; record from the "
            "start of the program"
        )
    return blocks.pop(address)


def _completes(entries: Sequence[Any], index: int, address: int) -> bool:
    """Whether the next entry is the completion of this free, so that no other stream held it up."""
    following = entries[index + 1] if index + 1 < len(entries) else None
    return (
        isinstance(following, Mapping)
        and following.get("action") == "free_completed"
        and following.get("addr") == address
    )


def _operator(entry: Mapping[str, Any]) -> str:
    """Name of the innermost frame, where frames were recorded."""
    frames = entry.get("frames")
    first = frames[0] if isinstance(frames, list) and frames else None
    name = first.get("name") if isinstance(first, Mapping) else None
    return name if isinstance(name, str) else ""
