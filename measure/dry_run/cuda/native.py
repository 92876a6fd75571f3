"""The compiled part as Python calls it: events, blocks, streams,
and what it says about values that nobody has.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

FREE: Final = 0
ALLOC: Final = 1
EMPTY_CACHE: Final = 2
FREE_REQUESTED: Final = 3
N_COLUMNS: Final = 9
ACCUMULATES: Final = -1
"""Node number of one that accumulates a gradient, which has no place in the forward pass."""

_Said = ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_char_p)
_NUMBERS = (
    "dry_n_events", "dry_block_at", "dry_take", "dry_stream", "dry_new_stream", "dry_device", "dry_install",
    "dry_new_event", "dry_has_come",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class NativeEvent:
    """One row of the log; see ``native/memory.h``."""

    kind: int
    id: int
    n_bytes: int
    stream: int
    place: int
    node: int
    op: int
    source: int
    device: int


class Native:
    """The library, loaded.  It has to be before torch is imported: torch asks for hooks of CUDA only once."""

    # Tensors of at most so many elements carry values; see ``native/memory.h``.
    MOST_INTEGERS, MOST_FLOATS = 1 << 20, 1 << 10

    def __init__(self, library: Path) -> None:
        self._library: Any = ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
        for name in _NUMBERS:
            getattr(self._library, name).restype = ctypes.c_int64
        self._library.dry_events.restype = ctypes.POINTER(ctypes.c_int64)
        self._library.dry_operator.restype = ctypes.c_char_p
        self._heard: tuple[Any, ...] = ()

    def begin(self, product_workspace_bytes: int, products: Iterable[Any], copying: Iterable[Any]) -> None:
        """Put card and host memory in place, and see every operator of this thread from now on.

        ``products``: operators that cuBLAS computes; ``copying``: those that read a copy of what has gaps.
        """
        names = (" ".join(each.name() for each in some).encode() for some in (products, copying))
        self._library.dry_install()
        self._library.dry_begin(ctypes.c_int64(product_workspace_bytes), *names)

    def choose(self, share: int) -> None:
        """Where nobody knows which elements are special, one in ``share`` is from now on; none is for 0."""
        self._library.dry_choose(ctypes.c_int64(share))

    def see_thread(self) -> None:
        """See every operator of the thread that calls."""
        self._library.dry_see_thread()

    def listen(self, guess: Callable[[str, str], None], refusal: Callable[[str, str], None]) -> None:
        """Call ``guess`` for each value that stands in for one that nobody has,
        ``refusal`` where there is no shape function.
        """
        self._heard = tuple(_Said(_with_text(each)) for each in (guess, refusal))
        self._library.dry_listen(*self._heard)

    def rows(self, start: int = 0) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Rows of the log from number ``start`` on, of nine numbers each."""
        n_events = self._library.dry_n_events()
        if n_events <= start:
            return np.empty((0, N_COLUMNS), np.int64)
        return np.ctypeslib.as_array(self._library.dry_events(), (n_events, N_COLUMNS))[start:].copy()

    def operator(self, number: int) -> str:
        """Name of an operator in the log."""
        name: bytes = self._library.dry_operator(ctypes.c_int64(number))
        return name.decode()

    def set_place(self, number: int) -> None:
        """Say where the program is; the number comes back in the rows."""
        self._library.dry_set_place(ctypes.c_int64(number))

    def block_at(self, address: int) -> int:
        """Number of the block that begins at an address of the card, or -1."""
        return int(self._library.dry_block_at(ctypes.c_void_p(address)))

    def resize_storage(self, storage: int, n_bytes: int) -> None:
        """Give a storage of the card, by its address, another size."""
        self._library.dry_resize_storage(ctypes.c_void_p(storage), ctypes.c_int64(n_bytes))

    def record_stream(self, address: int, stream: int) -> None:
        """Say that another stream uses the block that begins at an address of the card."""
        self._library.dry_record_stream(ctypes.c_void_p(address), ctypes.c_int64(stream))

    def spoil(self, address: int) -> None:
        """Say that the values in the block that begins at an address of the card are guessed from now on."""
        self._library.dry_spoil(ctypes.c_void_p(address))

    def take(self, n_bytes: int, op: str) -> int:
        """Record memory that a kernel takes while it runs; its number is for :meth:`give_back`."""
        return int(self._library.dry_take(ctypes.c_int64(n_bytes), op.encode()))

    def give_back(self, block: int, n_bytes: int) -> None:
        """Record that a kernel gave its memory back."""
        self._library.dry_give_back(ctypes.c_int64(block), ctypes.c_int64(n_bytes))

    def empty_cache(self) -> None:
        """Record that the program asked torch to give its cache back."""
        self._library.dry_empty_cache()

    @property
    def stream(self) -> int:
        """Number of the stream that work goes to."""
        return int(self._library.dry_stream())

    @stream.setter
    def stream(self, number: int) -> None:
        self._library.dry_set_stream(ctypes.c_int64(number))

    def new_stream(self) -> int:
        """Number of a stream that nobody has used."""
        return int(self._library.dry_new_stream())

    def new_event(self) -> int:
        """Number of an event that nobody has recorded."""
        return int(self._library.dry_new_event())

    def record_event(self, event: int) -> None:
        """Say that an event comes behind all that the card was given so far."""
        self._library.dry_record_event(ctypes.c_int64(event))

    def forget_event(self, event: int) -> None:
        """Say that nobody will ask for an event any more."""
        self._library.dry_forget_event(ctypes.c_int64(event))

    def has_come(self, event: int) -> bool:
        """Whether the card has come to an event; whoever asks twice with nothing in between waits for it."""
        return bool(self._library.dry_has_come(ctypes.c_int64(event)))

    def wait_for_event(self, event: int) -> None:
        """Say that the host waits for an event."""
        self._library.dry_wait_for_event(ctypes.c_int64(event))

    def wait_for_card(self) -> None:
        """Say that the host waits for all that the card was given."""
        self._library.dry_wait_for_card()

    @property
    def device(self) -> int:
        """Number of the current card."""
        return int(self._library.dry_device())

    @device.setter
    def device(self, index: int) -> None:
        self._library.dry_set_device(ctypes.c_int64(index))


def _with_text(call: Callable[[str, str], None]) -> Callable[[bytes, bytes], None]:
    def run(what: bytes, op: bytes) -> None:
        call(what.decode(), op.decode().replace("::", "."))

    return run
