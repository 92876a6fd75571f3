"""A card that is not there.  Python runs this file at its start when its folder is on ``PYTHONPATH`` and
``CARD`` names a folder.

The driver's binding and ``torch.cuda`` keep their own names, signatures and kinds of answers; tensors stay on
the CPU.  Memory follows one law: weights and the rest take ``BASE`` bytes, and each token that goes through
an embedding ``PER_TOKEN`` more, in blocks as the real allocator makes them.  More than the allowed share of
the card raises torch's own error.  ``PID.used`` in the folder is what a process holds, for those that look
from outside; ``reasons`` there are the bits of slowed clocks.
"""

from __future__ import annotations

import importlib.abc
import os
import sys
import time
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

MIB, GIB = 1024**2, 1024**3
TOTAL, BEFORE, CONTEXT, BASE, PER_TOKEN = 143771 * MIB, 600 * MIB, 450 * MIB, 2 * GIB, 16 * MIB
NAME = "NVIDIA H200"


class Card:
    """What the allocator and the driver hold in this process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.opened = False
        self.allowed = TOTAL
        self.allocated = self.peak = self.reserved = self.reserved_peak = 0
        self.ooms = 0
        self.keeps: list[dict[str, Any]] | None = None

    def open(self) -> None:
        """A context comes into being."""
        self.opened = True
        self.publish()

    def publish(self) -> None:
        """Tell the driver."""
        state = self.folder / f"{os.getpid()}.new"
        state.write_text(str(CONTEXT * self.opened + self.reserved))
        state.replace(self.folder / f"{os.getpid()}.used")

    def used(self) -> int:
        """What the driver says: what it keeps for itself, and what each process that lives holds."""
        return BEFORE + sum(self.holders().values())

    def holders(self) -> dict[int, int]:
        """Processes that live, and what each holds."""
        alive = [path for path in self.folder.glob("*.used") if Path("/proc", path.stem).exists()]
        return {int(path.stem): int(path.read_text()) for path in alive}

    def note(self, action: str, address: int, size: int) -> None:
        """One entry of the allocator's history."""
        if self.keeps is not None:
            now_us = time.time_ns() // 1000
            self.keeps.append(
                {
                    "action": action,
                    "addr": address,
                    "size": size,
                    "stream": 0,
                    "time_us": now_us,
                    "frames": [],
                }
            )

    def take(self, address: int, size: int) -> None:
        """A block in a segment of its own, in whole pieces of 2 MiB."""
        segment = -(-size // (2 * MIB)) * 2 * MIB
        if self.reserved + segment > self.allowed:
            self.ooms += 1
            import torch

            raise torch.OutOfMemoryError(
                f"CUDA out of memory. Tried to allocate {size / GIB:.2f} GiB. GPU 0 has a total ..."
            )
        self.note("segment_alloc", address, segment)
        self.note("alloc", address, size)
        self.allocated += size
        self.reserved += segment
        self.peak, self.reserved_peak = max(self.peak, self.allocated), max(self.reserved_peak, self.reserved)
        self.publish()

    def give(self, address: int, size: int) -> None:
        """The block is free, its segment is given back."""
        segment = -(-size // (2 * MIB)) * 2 * MIB
        for action in ("free_requested", "free_completed"):
            self.note(action, address, size)
        self.note("segment_free", address, segment)
        self.allocated -= size
        self.reserved -= segment
        self.publish()


CARD = Card(Path(os.environ.get("CARD", "/nowhere")))


class Event:
    """A device event that looks at the clock."""

    def __init__(self, enable_timing: bool = False) -> None:
        self._timed, self._at_s = enable_timing, 0.0

    def record(self) -> None:
        """Now."""
        self._at_s = time.perf_counter()

    def elapsed_time(self, end: Event) -> float:
        """Milliseconds between two events with timing."""
        assert self._timed
        return (end._at_s - self._at_s) * 1000


def patch_torch(torch: ModuleType) -> None:
    """``torch.cuda`` with one card."""
    _patch_statistics(torch)
    _patch_history(torch)
    _patch_embedding(torch)
    torch.cuda.default_generators = (
        SimpleNamespace(manual_seed=lambda seed: None, get_state=torch.get_rng_state),
    )
    # What compilers of kernels look for where there is a card.
    torch._C._cuda_getCurrentRawStream = lambda index: 0


def _patch_statistics(torch: ModuleType) -> None:
    """What the card is and what it holds."""

    def capped(fraction: float, device: Any = None) -> None:
        assert 0 <= fraction <= 1
        CARD.allowed = int(fraction * TOTAL)

    def reset(device: Any = None) -> None:
        CARD.peak, CARD.reserved_peak = CARD.allocated, CARD.reserved

    answers: dict[str, Any] = {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "is_initialized": lambda: CARD.opened,
        "is_bf16_supported": lambda including_emulation=True: True,
        "init": CARD.open,
        "set_device": lambda device: None,
        # Optimizers ask where torch was built for CUDA.
        "is_current_stream_capturing": lambda: False,
        "synchronize": lambda device=None: None,
        "empty_cache": lambda: None,
        "reset_peak_memory_stats": reset,
        "mem_get_info": lambda device=None: (TOTAL - CARD.used(), TOTAL),
        "memory_reserved": lambda device=None: CARD.reserved,
        "memory_stats_as_nested_dict": lambda device=None: {
            "allocated_bytes": {"all": {"current": CARD.allocated, "peak": CARD.peak}},
            "reserved_bytes": {"all": {"current": CARD.reserved, "peak": CARD.reserved_peak}},
        },
        "memory_stats": lambda device=None: {
            # A shortage is given up only after the cache was given back once.
            "num_alloc_retries": CARD.ooms,
            "num_ooms": CARD.ooms,
            "allocated_bytes.all.peak": CARD.peak,
        },
        "host_memory_stats": lambda: {"allocated_bytes.peak": 5 * MIB},
        "get_device_properties": lambda device=None: SimpleNamespace(
            total_memory=TOTAL, name=NAME, major=9, minor=0
        ),
        "set_per_process_memory_fraction": capped,
        "Event": Event,
    }
    for name, answer in answers.items():
        assert hasattr(torch.cuda, name), name
        setattr(torch.cuda, name, answer)


def _patch_history(torch: ModuleType) -> None:
    """The allocator's history."""

    def record(
        enabled: Any = "all", context: Any = "all", stacks: Any = "all", max_entries: int = sys.maxsize
    ) -> None:
        CARD.keeps = [] if enabled == "all" else None

    def snapshot(device: Any = None, augment_with_fx_traces: bool = False) -> dict[str, Any]:
        settings = {"PYTORCH_CUDA_ALLOC_CONF": "", "max_split_size": -1, "expandable_segments": False}
        return {"segments": [], "device_traces": [list(CARD.keeps or ())], "allocator_settings": settings}

    for name, function in (("_record_memory_history", record), ("_snapshot", snapshot)):
        assert hasattr(torch.cuda.memory, name), name
        setattr(torch.cuda.memory, name, function)


def _patch_embedding(torch: ModuleType) -> None:
    """A token table that takes memory of the card by the tokens that it reads."""
    forward = torch.nn.Embedding.forward
    held: list[int] = []

    def measured(self: Any, ids: Any) -> Any:
        if CARD.opened:
            if not held:
                CARD.take(1 << 40, BASE)
            while len(held) > 1:
                CARD.give(2 << 40, held.pop())
            size = PER_TOKEN * ids.numel()
            CARD.take(2 << 40, size)
            held[:] = [0, size]
        return forward(self, ids)

    torch.nn.Embedding.forward = measured


def patch_probe(module: ModuleType) -> None:
    """The probe asks the card; its tensors are on the CPU."""
    import torch

    module.CudaProbe.device = property(lambda self: torch.device("cpu"))  # type: ignore[attr-defined]
    module.load_kernels = lambda device: None  # type: ignore[attr-defined]


def patch_driver(library: ModuleType) -> None:
    """NVML with one card."""

    def refuse(*_: Any) -> Any:
        raise library.NVMLError(library.NVML_ERROR_NOT_SUPPORTED)

    def memory(handle: Any, version: int | None = None) -> Any:
        """The newer form tells apart what the driver keeps for itself."""
        used = CARD.used() - (BEFORE if version == library.nvmlMemory_v2 else 0)
        return SimpleNamespace(total=TOTAL, used=used, free=TOTAL - CARD.used())

    def reasons(handle: Any) -> int:
        try:
            return int((CARD.folder / "reasons").read_text())
        except OSError:
            return 0

    answers: dict[str, Any] = {
        "nvmlInit": lambda: None,
        "nvmlDeviceGetCount": lambda: 1,
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetUUID": lambda handle: "GPU-00000000-double",
        "nvmlDeviceGetName": lambda handle: NAME,
        "nvmlSystemGetDriverVersion": lambda: "580.159.04",
        "nvmlSystemGetCudaDriverVersion": lambda: 13000,
        "nvmlDeviceGetMemoryInfo": memory,
        "nvmlDeviceGetComputeRunningProcesses": lambda handle: [
            SimpleNamespace(pid=pid, usedGpuMemory=n_bytes) for pid, n_bytes in CARD.holders().items()
        ],
        "nvmlDeviceGetClockInfo": lambda handle, kind: 1980,
        "nvmlDeviceGetMaxClockInfo": lambda handle, kind: 1980,
        "nvmlDeviceGetTemperature": lambda handle, sensor: 40,
        "nvmlDeviceGetPowerUsage": lambda handle: 120_000,
        "nvmlDeviceGetEnforcedPowerLimit": lambda handle: 700_000,
        "nvmlDeviceGetPowerManagementDefaultLimit": lambda handle: 700_000,
        "nvmlDeviceGetCurrPcieLinkGeneration": lambda handle: 5,
        "nvmlDeviceGetCurrPcieLinkWidth": lambda handle: 16,
        "nvmlDeviceGetEccMode": lambda handle: [1, 1],
        "nvmlDeviceGetMigMode": refuse,
        "nvmlDeviceGetCurrentClocksEventReasons": reasons,
    }
    for name, answer in answers.items():
        assert hasattr(library, name), name
        setattr(library, name, answer)


PATCHES = {"torch": patch_torch, "pynvml": patch_driver, "measure.worker.probes.device_memory": patch_probe}


class After(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Runs a patch when its module has been imported."""

    def __init__(self) -> None:
        self._loaders: dict[str, Any] = {}

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """The module's own place, with this as its loader."""
        if fullname not in PATCHES:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            self._loaders[fullname] = spec.loader
            spec.loader = self
        return spec

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """As its own loader does."""
        return self._loaders[spec.name].create_module(spec)  # type: ignore[no-any-return]

    def exec_module(self, module: ModuleType) -> None:
        """Import it, then patch it."""
        self._loaders[module.__name__].exec_module(module)
        PATCHES[module.__name__](module)


if "CARD" in os.environ:
    sys.meta_path.insert(0, After())
