"""Streams and events of the pretended card: they have an order and an identity, and no work."""

from __future__ import annotations

from typing import Any, Self

import torch

from measure.dry_run.cuda.native import Native


class Event:
    """``torch.cuda.Event``: the host may wait for it, and knows then how far the card has come."""

    native: Native

    def __init__(self, *_: Any, **__: Any) -> None:
        self._number = self.native.new_event()

    def __del__(self) -> None:
        self.native.forget_event(self._number)

    def record(self, stream: Any = None) -> None:
        """It comes behind all work so far."""
        del stream
        self.native.record_event(self._number)

    def query(self) -> bool:
        """Whether the card has come to it."""
        return self.native.has_come(self._number)

    def synchronize(self) -> None:
        """The host waits for it."""
        self.native.wait_for_event(self._number)

    def wait(self, stream: Any = None) -> None:
        """A stream waits, the host does not."""

    def elapsed_time(self, end_event: Any) -> float:
        """One millisecond: time means nothing here."""
        del end_event
        return 1.0


class Stream:
    """``torch.cuda.Stream``: memory is given out by stream, so each has its number."""

    native: Native

    def __init__(self, device: Any = None, priority: int = 0, **known: Any) -> None:
        del device, priority
        self.stream_id = int(known["stream_id"]) if "stream_id" in known else self.native.new_stream()
        self.cuda_stream = self.stream_id
        self.device = torch.device("cuda", self.native.device)
        self.device_index, self.device_type = self.native.device, 1
        self._before: list[int] = []

    def wait_stream(self, stream: Any) -> None:
        """It waits, the host does not."""

    def wait_event(self, event: Any) -> None:
        """It waits, the host does not."""

    def record_event(self, event: Event | None = None) -> Event:
        """An event after all work so far."""
        event = event or Event()
        if isinstance(event, Event):
            event.record(self)
        return event

    def query(self) -> bool:
        """Whether all work is done: whoever asks is taken to have waited."""
        self.synchronize()
        return True

    def synchronize(self) -> None:
        """The host waits for all work so far."""
        self.native.wait_for_card()

    def is_capturing(self) -> bool:
        """No graph is captured, as ``torch.cuda.is_current_stream_capturing`` says, too."""
        return False

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and other.stream_id == self.stream_id

    def __hash__(self) -> int:
        return hash(self.stream_id)

    def __enter__(self) -> Self:
        self._before.append(self.native.stream)
        self.native.stream = self.stream_id
        return self

    def __exit__(self, *_: object) -> None:
        self.native.stream = self._before.pop()


class StreamContext:
    """``torch.cuda.stream``: work inside goes to a stream, or where it went before for none."""

    def __init__(self, stream: Stream | None) -> None:
        self.stream = stream

    def __enter__(self) -> None:
        if self.stream is not None:
            self.stream.__enter__()

    def __exit__(self, *_: object) -> None:
        if self.stream is not None:
            self.stream.__exit__()


class OnDevice:
    """``torch.cuda.device``: the current card inside."""

    native: Native

    def __init__(self, device: Any) -> None:
        self.idx = device_index(device)
        self._before = 0

    def __enter__(self) -> None:
        self._before = self.native.device
        if self.idx >= 0:
            self.native.device = self.idx

    def __exit__(self, *_: object) -> None:
        self.native.device = self._before


def device_index(device: Any) -> int:
    """Number of a card named as torch allows; -1 for the current one."""
    if device is None:
        return -1
    if isinstance(device, int):
        return device
    if isinstance(device, torch.Tensor):
        return device.get_device()
    index: int | None = torch.device(device).index
    return -1 if index is None else index
