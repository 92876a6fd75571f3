"""``torch.cuda`` as the named card has it."""

# ruff: noqa: SLF001 - what torch calls private here has no public name

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

from measure.dry_run.card import CardFacts, LiveAllocator
from measure.dry_run.native import Native
from measure.dry_run.streams import Event, OnDevice, Stream, StreamContext, device_index
from planner.units import KIB, MIB

_CUDA_VERSION, _DRIVER = "12.8", 12080
# Of every NVIDIA card since compute capability 8.0;
# kernels choose their tiles by the last three (CUDA C++ Programming Guide).
_LIMITS = {
    "warp_size": 32,
    "max_threads_per_multi_processor": 2048,
    "regs_per_multiprocessor": 65536,
    "shared_memory_per_block": 48 * KIB,
    "shared_memory_per_block_optin": 99 * KIB,
    "shared_memory_per_multiprocessor": 100 * KIB,
    "L2_cache_size": 40 * MIB,
}
_Call = Callable[..., Any]


def install(native: Native, facts: CardFacts, allocator: LiveAllocator) -> None:
    """Make torch believe in the card, in this process and for good."""
    Stream.native = OnDevice.native = native
    functions = (
        _queries(facts)
        | _devices(native, facts)
        | _memory(native, facts, allocator)
        | _random(facts)
        | _streams(native)
    )
    for name, function in functions.items():
        own = _own(function)
        for module in (torch.cuda, torch.cuda.memory, torch.cuda.random, torch.cuda.streams):
            if module is torch.cuda or hasattr(module, name):
                setattr(module, name, own)
    for module in (torch.cuda, torch.cuda.streams):
        setattr(module, "Stream", Stream)  # noqa: B010 - types of torch do not allow it
        setattr(module, "Event", Event)  # noqa: B010
    torch.cuda.StreamContext = StreamContext  # type: ignore[misc,assignment]
    torch.cuda.device = torch.cuda.device_of = torch.cuda._DeviceGuard = OnDevice  # type: ignore[misc,assignment]
    torch.cuda._initialized = True
    torch.cuda.default_generators = (torch.default_generator,) * facts.n_cards  # type: ignore[assignment]
    torch.version.cuda = _CUDA_VERSION
    for name, function in _bindings(native, facts).items():
        setattr(torch._C, name, _own(function))
    _beside(facts)
    _resizing(native)
    _recording(native)


def _own(function: _Call) -> _Call:
    """A function object of its own: programs replace and compare them one by one."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return call


def _nothing(*_: Any, **__: Any) -> None:
    return None


def _always(value: Any) -> _Call:
    return lambda *_, **__: value


def _properties(facts: CardFacts) -> SimpleNamespace:
    major, minor = facts.compute_capability
    return SimpleNamespace(
        name=facts.name,
        major=major,
        minor=minor,
        total_memory=facts.total_bytes,
        multi_processor_count=facts.multiprocessors,
        uuid="00000000-0000-0000-0000-000000000000",
        is_integrated=0,
        is_multi_gpu_board=0,
        gcnArchName="",
        **_LIMITS,
    )


def _queries(facts: CardFacts) -> dict[str, _Call]:
    major, minor = facts.compute_capability
    return {
        "is_available": _always(True),
        "_is_compiled": _always(True),
        "is_initialized": _always(True),
        "init": _nothing,
        "_lazy_init": _nothing,
        "get_device_properties": _always(_properties(facts)),
        "get_device_capability": _always((major, minor)),
        "get_device_name": _always(facts.name),
        "get_arch_list": _always([f"sm_{major}{minor}"]),
        "is_bf16_supported": _always(major >= 8),
        "is_tf32_supported": _always(major >= 8),
        "can_device_access_peer": _always(True),
        "is_current_stream_capturing": _always(False),
        "utilization": _always(0),
    }


def _devices(native: Native, facts: CardFacts) -> dict[str, _Call]:
    def set_device(device: Any) -> None:
        index = device_index(device)
        if index >= 0:
            native.device = index

    return {
        "device_count": _always(facts.n_cards),
        "current_device": lambda: native.device,
        "set_device": set_device,
        "synchronize": _nothing,
        "ipc_collect": _nothing,
    }


def _memory(native: Native, facts: CardFacts, allocator: LiveAllocator) -> dict[str, _Call]:
    def statistics(*_: Any) -> dict[str, int]:
        now = allocator.now()
        found: dict[str, int] = defaultdict(int)
        for name, current, peak in (
            ("allocated", now.allocated_bytes, now.peak_allocated_bytes),
            ("active", now.active_bytes, now.peak_active_bytes),
            ("reserved", now.reserved_bytes, now.peak_reserved_bytes),
        ):
            found |= {f"{name}_bytes.all.current": current, f"{name}_bytes.all.peak": peak}
        return found

    reset = _no_argument(lambda: allocator.now().reset_peaks())
    return {
        "memory_allocated": _no_argument(lambda: allocator.now().allocated_bytes),
        "max_memory_allocated": _no_argument(lambda: allocator.now().peak_allocated_bytes),
        "memory_reserved": _no_argument(lambda: allocator.now().reserved_bytes),
        "max_memory_reserved": _no_argument(lambda: allocator.now().peak_reserved_bytes),
        "memory_stats": statistics,
        "memory_summary": _always(""),
        "reset_peak_memory_stats": reset,
        "reset_max_memory_allocated": reset,
        "mem_get_info": _no_argument(
            lambda: (max(facts.total_bytes - allocator.now().reserved_bytes, 0), facts.total_bytes)
        ),
        "empty_cache": _no_argument(native.empty_cache),
        "set_per_process_memory_fraction": _nothing,
    }


def _no_argument(function: Callable[[], Any]) -> _Call:
    return lambda *_, **__: function()


def _random(facts: CardFacts) -> dict[str, _Call]:
    def state(*_: Any) -> torch.Tensor:
        return torch.zeros(16, dtype=torch.uint8)

    return {
        **dict.fromkeys(
            ("manual_seed", "manual_seed_all", "seed", "seed_all", "set_rng_state", "set_rng_state_all"),
            _nothing,
        ),
        "initial_seed": _always(0),
        "get_rng_state": state,
        "get_rng_state_all": lambda: [state() for _ in range(facts.n_cards)],
    }


def _streams(native: Native) -> dict[str, _Call]:
    def set_stream(stream: Stream) -> None:
        native.stream = stream.stream_id

    return {
        "current_stream": lambda *_: Stream(stream_id=native.stream),
        "default_stream": lambda *_: Stream(stream_id=0),
        "set_stream": set_stream,
        "stream": StreamContext,
    }


def _bindings(native: Native, facts: CardFacts) -> dict[str, _Call]:
    """What torch's own Python code calls in the part of its library that a CPU build lacks."""

    def exchange(index: int) -> int:
        before = native.device
        if index >= 0:
            native.device = index
        return before

    def set_device(index: int) -> None:
        native.device = index

    return {
        "_cuda_getDevice": lambda: native.device,
        "_cuda_setDevice": set_device,
        "_cuda_exchangeDevice": exchange,
        "_cuda_maybeExchangeDevice": exchange,
        "_cuda_getDeviceCount": _always(facts.n_cards),
        "_cuda_getCurrentRawStream": lambda *_: native.stream,
        "_cuda_isInBadFork": _always(False),
        "_cuda_isCurrentStreamCapturing": _always(False),
        "_cuda_synchronize": _nothing,
        "_cuda_getDriverVersion": _always(_DRIVER),
        "_cuda_getCompiledVersion": _always(_DRIVER),
        "_cuda_hasPrimaryContext": _always(True),
    }


def _resizing(native: Native) -> None:
    """``UntypedStorage.resize_``, which a CPU build has for the host alone."""
    resize = torch.UntypedStorage.resize_

    def on_card(storage: Any, size: int) -> Any:
        if storage.device.type != "cuda":
            return resize(storage, size)
        native.resize_storage(storage._cdata, size)
        return storage

    torch.UntypedStorage.resize_ = on_card  # type: ignore[method-assign,assignment]


def _recording(native: Native) -> None:
    """``Tensor.record_stream`` with a stream of ours."""
    record: Any = torch.Tensor.record_stream

    def on_card(tensor: torch.Tensor, stream: Any) -> None:
        if not isinstance(stream, Stream):
            record(tensor, stream)
        elif tensor.is_cuda:
            native.record_stream(tensor.untyped_storage().data_ptr(), stream.stream_id)

    torch.Tensor.record_stream = on_card  # type: ignore[method-assign,assignment]


def _beside(facts: CardFacts) -> None:
    """What lies outside of ``torch.cuda``: accelerators, marks for profilers, pinned memory, graphs."""
    torch.backends.cuda.is_built = _always(True)
    torch.accelerator.is_available = _always(True)
    torch.accelerator.device_count = _always(facts.n_cards)
    torch.Tensor.pin_memory = lambda self, *_, **__: self  # type: ignore[method-assign]
    torch.Tensor.is_pinned = _always(False)  # type: ignore[method-assign]
    for name in ("range_push", "range_pop", "mark", "range_start", "range_end"):
        setattr(torch.cuda.nvtx, name, _own(_nothing))
