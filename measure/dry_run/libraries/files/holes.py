"""Files of tensors with holes: what is all zeros is written as a hole, and a hole is read as host memory that
takes nothing.  Large host memory of a dry run is zeros until it is written, so no value is lost, and a
checkpoint without content needs neither disk nor memory.

torch 2.13 serialization.py reads and writes by the two classes that are replaced here.  Files that are
mapped, those of safetensors 0.8 among them, come by ``UntypedStorage.from_file``.
"""

# ruff: noqa: SLF001 - what writes and reads files of tensors has no public name

from __future__ import annotations

import ctypes
import os
from typing import Any

import torch

# From this size on host memory is never touched (native/memory.h, HOLLOW_BYTES).
_FEWEST_BYTES = 2 << 20
_compare = ctypes.CDLL(None).memcmp
_compare.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]


def install() -> None:
    """Change what writes, reads and maps files of tensors, in this process and for good."""
    torch._C.PyTorchFileWriter = _writer(torch._C.PyTorchFileWriter)  # type: ignore[misc]
    torch._C.PyTorchFileReader = _reader(torch._C.PyTorchFileReader)  # type: ignore[misc]
    map_file: Any = torch.UntypedStorage.from_file

    def from_file(filename: Any, *args: Any, **kwargs: Any) -> Any:
        return MappedFile(map_file(filename, *args, **kwargs), os.fspath(filename))

    torch.UntypedStorage.from_file = staticmethod(from_file)  # type: ignore[method-assign]


class MappedFile:
    """A storage that was mapped from a file.  A part of it that is a hole comes as memory of its own."""

    def __init__(self, storage: torch.UntypedStorage, path: str) -> None:
        self._storage, self._path = storage, path

    def __getitem__(self, part: Any) -> Any:
        if isinstance(part, slice):
            start, stop, _ = part.indices(len(self._storage))
            if is_hole(self._path, start, stop):
                made: Any = torch.UntypedStorage
                return made(stop - start)
        return self._storage[part]

    def untyped(self) -> MappedFile:
        """The same, without a type of elements, as all storages have it."""
        return self

    def __getattr__(self, name: str) -> Any:
        return getattr(self._storage, name)


def is_hole(path: str, start: int, stop: int) -> bool:
    """Whether many bytes of a file, from ``start`` to ``stop``, are zeros that were never written."""
    if stop - start < _FEWEST_BYTES:
        return False
    with open(path, "rb") as file:  # noqa: PTH123 - the path of any library
        # At both ends a block of the disk may hold bytes of others, too.
        edge = os.fstat(file.fileno()).st_blksize
        ends = os.pread(file.fileno(), edge, start) + os.pread(file.fileno(), edge, stop - edge)
        if any(ends):
            return False
        try:
            return os.lseek(file.fileno(), start + edge, os.SEEK_DATA) >= stop - edge
        except OSError:
            # No data behind this place.
            return True


def _writer(base: Any) -> Any:
    class Writer(base):  # type: ignore[misc]
        def write_record(self, name: str, data: Any, n_bytes: int) -> None:
            if isinstance(data, torch.UntypedStorage) and n_bytes >= _FEWEST_BYTES and _is_all_zeros(data):
                self.write_record_metadata(name, n_bytes)
            else:
                super().write_record(name, data, n_bytes)

    return Writer


def _reader(base: Any) -> Any:
    class Reader(base):  # type: ignore[misc]
        def __init__(self, file: Any) -> None:
            super().__init__(file)
            self._path = file if isinstance(file, str) else getattr(file, "name", None)

        def get_storage_from_record(self, name: str, n_bytes: int, kind: Any) -> torch.Tensor:
            start = self.get_record_offset(name)
            if isinstance(self._path, str) and is_hole(self._path, start, start + n_bytes):
                return torch.empty(n_bytes, dtype=torch.uint8)
            return super().get_storage_from_record(name, n_bytes, kind)  # type: ignore[no-any-return]

    return Reader


def _is_all_zeros(storage: torch.UntypedStorage) -> bool:
    """Whether all bytes are equal to the next one, and the first is zero."""
    place = storage.data_ptr()
    return bool(storage[0] == 0) and _compare(place, place + 1, storage.nbytes() - 1) == 0
