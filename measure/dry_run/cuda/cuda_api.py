"""``torch.cuda`` as the named card has it."""

# ruff: noqa: SLF001 - what torch calls private here has no public name

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

from measure.dry_run.cuda import cuda_bindings, legacy_types
from measure.dry_run.cuda.card import CardFacts, LiveAllocator
from measure.dry_run.cuda.cuda_bindings import CUDA_VERSION, Call, always, nothing, own
from measure.dry_run.cuda.native import Native
from measure.dry_run.cuda.streams import Event, OnDevice, Stream, StreamContext, device_index
from measure.dry_run.guesses import Guesses
from planner.allocator.caching_allocator import CachingAllocator
from planner.units import KIB, MIB

# What the driver would say of an idle card.
_WATCHED = ("utilization", "memory_usage", "temperature", "power_draw", "clock_rate")
# Names of torch.accelerator.memory, with those of torch.cuda.
_OF_ACCELERATORS = {
    **{
        name: name
        for name in (
            "empty_cache",
            "memory_stats",
            "memory_allocated",
            "max_memory_allocated",
            "memory_reserved",
            "max_memory_reserved",
            "reset_accumulated_memory_stats",
            "reset_peak_memory_stats",
        )
    },
    "get_memory_info": "mem_get_info",
}
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


def install(native: Native, facts: CardFacts, allocator: LiveAllocator, guesses: Guesses) -> None:
    """Make torch believe in the card, in this process and for good."""
    Stream.native = Event.native = OnDevice.native = native
    cuda_bindings.install(native, facts, guesses)
    functions = (
        _queries(facts)
        | _devices(native, facts)
        | _memory(native, facts, allocator)
        | _random(facts)
        | _streams(native)
    )
    for name, function in functions.items():
        of_module = own(function)
        for module in (torch.cuda, torch.cuda.memory, torch.cuda.random, torch.cuda.streams):
            if module is torch.cuda or hasattr(module, name):
                setattr(module, name, of_module)
    for module in (torch.cuda, torch.cuda.streams):
        setattr(module, "Stream", Stream)  # noqa: B010 - types of torch do not allow it
        setattr(module, "Event", Event)  # noqa: B010
    torch.cuda.StreamContext = StreamContext  # type: ignore[misc,assignment]
    for name in ("device", "device_of", "_DeviceGuard"):
        setattr(torch.cuda, name, OnDevice)
    torch.cuda._initialized = True
    generators = tuple(_CardGenerator() for _ in range(facts.n_cards))
    torch.cuda.default_generators = generators  # type: ignore[assignment]
    torch.version.cuda = CUDA_VERSION
    _beside(facts)
    legacy_types.install()
    _resizing(native)
    _copying_storages()
    _recording(native)
    _higher_order()


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


def _queries(facts: CardFacts) -> dict[str, Call]:
    major, minor = facts.compute_capability
    return {
        "is_available": always(True),
        "_is_compiled": always(True),
        "is_initialized": always(True),
        "init": nothing,
        "_lazy_init": nothing,
        "get_device_properties": always(_properties(facts)),
        "get_device_capability": always((major, minor)),
        "get_device_name": always(facts.name),
        "is_bf16_supported": always(major >= 8),
        "is_tf32_supported": always(major >= 8),
        "is_current_stream_capturing": always(False),
        **dict.fromkeys(_WATCHED, always(0)),
    }


def _devices(native: Native, facts: CardFacts) -> dict[str, Call]:
    def set_device(device: Any) -> None:
        index = device_index(device)
        if index >= 0:
            native.device = index

    return {
        "device_count": always(facts.n_cards),
        "current_device": lambda: native.device,
        "set_device": set_device,
        "synchronize": _no_argument(native.wait_for_card),
    }


def _memory(native: Native, facts: CardFacts, allocator: LiveAllocator) -> dict[str, Call]:
    def of_card(read: Callable[[CachingAllocator], Any]) -> Call:
        def call(device: Any = None) -> Any:
            index = device_index(device)
            return read(allocator.now(native.device if index < 0 else index))

        return call

    reset = of_card(lambda now: now.reset_peaks())
    return {
        "memory_allocated": of_card(lambda now: now.allocated_bytes),
        "max_memory_allocated": of_card(lambda now: now.peak_allocated_bytes),
        "memory_reserved": of_card(lambda now: now.reserved_bytes),
        "max_memory_reserved": of_card(lambda now: now.peak_reserved_bytes),
        "memory_stats": of_card(_statistics),
        "device_memory_used": of_card(lambda now: now.reserved_bytes),
        "memory_summary": always(""),
        "list_gpu_processes": always(""),
        "reset_peak_memory_stats": reset,
        "reset_max_memory_allocated": reset,
        "mem_get_info": of_card(
            lambda now: (max(facts.total_bytes - now.reserved_bytes, 0), facts.total_bytes)
        ),
        "empty_cache": _no_argument(native.empty_cache),
    }


def _statistics(now: CachingAllocator) -> dict[str, int]:
    found: dict[str, int] = defaultdict(int)
    for name, current, peak in (
        ("allocated", now.allocated_bytes, now.peak_allocated_bytes),
        ("active", now.active_bytes, now.peak_active_bytes),
        ("reserved", now.reserved_bytes, now.peak_reserved_bytes),
    ):
        found |= {f"{name}_bytes.all.current": current, f"{name}_bytes.all.peak": peak}
    return found


def _no_argument(function: Callable[[], Any]) -> Call:
    return lambda *_, **__: function()


class _CardGenerator(torch.Generator):
    """A card's generator, whose state is a seed and an offset of 8 bytes each; nothing is drawn from it."""

    def get_state(self) -> torch.Tensor:
        return torch.zeros(16, dtype=torch.uint8)

    def set_state(self, new_state: torch.Tensor) -> _CardGenerator:
        del new_state
        return self


def _random(facts: CardFacts) -> dict[str, Call]:
    def state(*_: Any, **__: Any) -> torch.Tensor:
        return _CardGenerator().get_state()

    return {
        **dict.fromkeys(
            ("manual_seed", "manual_seed_all", "seed", "seed_all", "set_rng_state", "set_rng_state_all"),
            nothing,
        ),
        "initial_seed": always(0),
        "get_rng_state": state,
        "get_rng_state_all": lambda: [state() for _ in range(facts.n_cards)],
    }


def _streams(native: Native) -> dict[str, Call]:
    def set_stream(stream: Stream) -> None:
        native.stream = stream.stream_id

    return {
        "current_stream": lambda *_: Stream(stream_id=native.stream),
        "default_stream": lambda *_: Stream(stream_id=0),
        "set_stream": set_stream,
        "stream": StreamContext,
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


def _copying_storages() -> None:
    """``UntypedStorage.clone``, by which tensors are copied deeply, and ``to``, by which ``torch.load``
    brings them where ``map_location`` says: a CPU build makes no storage on the card.
    """
    clone: Any = torch.UntypedStorage.clone
    move: Any = torch.UntypedStorage.to

    def as_bytes(storage: Any) -> torch.Tensor:
        content = torch.empty(0, dtype=torch.uint8, device=storage.device)
        return content.set_(storage, 0, (storage.nbytes(),), (1,))

    def on_card(storage: Any) -> Any:
        return as_bytes(storage).clone().untyped_storage() if storage.is_cuda else clone(storage)

    def to(storage: Any, *, device: Any, non_blocking: bool = False) -> Any:
        wanted = torch.device(device)
        if "cuda" not in (wanted.type, storage.device.type):
            return move(storage, device=device, non_blocking=non_blocking)
        return as_bytes(storage).to(wanted, non_blocking=non_blocking).untyped_storage()

    torch.UntypedStorage.clone = on_card  # type: ignore[method-assign]
    torch.UntypedStorage.to = to  # type: ignore[method-assign,assignment]


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
    torch.backends.cuda.is_built = always(True)
    torch.backends.cuda.is_flash_attention_available = always(True)
    torch.backends.cudnn.is_available = always(True)
    torch.accelerator.is_available = always(True)
    torch.accelerator.device_count = always(facts.n_cards)
    # FSDP2 asks for it where it lets go of what it gathered in vain (_fsdp_param_group.py finalize_backward).
    torch.accelerator.current_stream = torch.cuda.current_stream
    for name, of_cuda in _OF_ACCELERATORS.items():
        for module in (torch.accelerator, torch.accelerator.memory):
            setattr(module, name, own(getattr(torch.cuda, of_cuda)))
            setattr(module, "empty_host_cache", nothing)  # noqa: B010 - types of torch do not allow it
    torch.Tensor.pin_memory = lambda self, *_, **__: self  # type: ignore[method-assign]
    torch.Tensor.is_pinned = always(False)  # type: ignore[method-assign]
    for name in ("range_push", "range_pop", "mark", "range_start", "range_end"):
        setattr(torch.cuda.nvtx, name, own(nothing))


def _higher_order() -> None:
    """Operators of operators choose their code by keys in Python, among which is none of the log's own.

    Source: torch 2.13 _ops.py ``HigherOrderOperator.__call__``; DTensor draws random numbers by one.
    """
    of_log = torch._C._dispatch_key_parse("Fake")
    found: Any = torch._ops._compute_keyset

    def without_log(*args: Any) -> Any:
        return found(*args).remove(of_log)

    torch._ops._compute_keyset = without_log
