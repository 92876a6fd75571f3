"""Sizes and switches of PyTorch's CUDA caching allocator.

Sources (PyTorch 2.13): ``c10/core/AllocatorConfig.h`` and ``.cpp`` for the constants, the defaults and the
parsing, ``c10/cuda/CUDACachingAllocator.cpp`` for how they are used.  Each function names its counterpart.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from planner.errors import NotModelledError, UnknownNameError, UsageError
from planner.units import KIB, MIB, format_bytes
from planner.words import words

# c10/core/AllocatorConfig.h: kMinBlockSize, kSmallSize, kSmallBuffer, kLargeBuffer, kMinLargeAlloc,
# kRoundLarge.
MIN_BLOCK_BYTES = KIB // 2
SMALL_REQUEST_BYTES = MIB
SMALL_SEGMENT_BYTES = 2 * MIB
LARGE_SEGMENT_BYTES = 20 * MIB
MIN_LARGE_REQUEST_BYTES = 10 * MIB
LARGE_ROUNDING_BYTES = 2 * MIB

# c10/core/AllocatorConfig.cpp, kRoundUpPowerOfTwoIntervals:
# one setting per power of two from 1 MiB up to (not with) 64 GiB.
N_ROUNDUP_INTERVALS = 16


@dataclass(frozen=True, slots=True)
class AllocatorSettings:
    """What ``PYTORCH_CUDA_ALLOC_CONF`` says; the defaults are those of PyTorch.

    ``max_split_bytes`` ``None`` means no limit.  ``max_non_split_rounding_bytes`` ``None`` means
    ``large_segment_bytes``.  ``roundup_divisions`` is empty (off) or holds 16 numbers, for sizes from 1, 2,
    4, ... MiB upwards.  ``garbage_collection_threshold`` (0 is off) is a fraction of the allowed memory and
    works, as in PyTorch, only when ``memory_fraction`` is below 1
    (``DeviceCachingAllocator::setMemoryFraction``).

    Raises:
        UsageError: a value that PyTorch refuses too.
    """

    max_split_bytes: int | None = None
    max_non_split_rounding_bytes: int | None = None
    large_segment_bytes: int = LARGE_SEGMENT_BYTES
    roundup_divisions: tuple[int, ...] = ()
    garbage_collection_threshold: float = 0.0
    expandable_segments: bool = False
    memory_fraction: float = 1.0

    def __post_init__(self) -> None:
        if self.large_segment_bytes <= MIN_LARGE_REQUEST_BYTES or self.large_segment_bytes % MIB:
            raise UsageError("large_segment_size_mb must be a whole number above 10")
        for name, n_bytes in (
            ("max_split_size_mb", self.max_split_bytes),
            ("max_non_split_rounding_mb", self.max_non_split_rounding_bytes),
        ):
            if n_bytes is not None and n_bytes < self.large_segment_bytes:
                raise UsageError(
                    f"{name} must be at least the large segment size of "
                    f"{format_bytes(self.large_segment_bytes)}"
                )
        if self.roundup_divisions and len(self.roundup_divisions) != N_ROUNDUP_INTERVALS:
            raise UsageError(
                f"roundup_power2_divisions needs {N_ROUNDUP_INTERVALS} numbers, one per power of two"
            )
        if any(number < 0 or number & (number - 1) for number in self.roundup_divisions):
            raise UsageError("each number of roundup_power2_divisions must be 0 or a power of two")
        if not 0.0 <= self.garbage_collection_threshold < 1.0:
            raise UsageError("garbage_collection_threshold must be above 0 and below 1 (0 turns it off)")
        if not 0.0 < self.memory_fraction <= 1.0:
            raise UsageError("per_process_memory_fraction must be above 0 and at most 1")

    @property
    def oversize_slack_bytes(self) -> int:
        """How much larger than an oversize request a cached block may be."""
        return (
            self.large_segment_bytes
            if self.max_non_split_rounding_bytes is None
            else self.max_non_split_rounding_bytes
        )


DEFAULT_SETTINGS = AllocatorSettings()


def rounded_bytes(n_bytes: int, settings: AllocatorSettings = DEFAULT_SETTINGS) -> int:
    """Bytes of the block that serves a request of ``n_bytes``.

    A multiple of 512, at least 512.  With ``roundup_power2_divisions`` n, sizes above 512 n go up to the next
    n-th part of the way from one power of two to the next.  Source: ``round_size`` and
    ``roundup_power2_next_division`` in c10/cuda/CUDACachingAllocator.cpp.
    """
    if n_bytes < MIN_BLOCK_BYTES:
        return MIN_BLOCK_BYTES
    divisions = roundup_divisions(n_bytes, settings)
    if divisions > 1 and n_bytes > MIN_BLOCK_BYTES * divisions:
        step_bytes = (1 << (n_bytes.bit_length() - 1)) // divisions
    else:
        step_bytes = MIN_BLOCK_BYTES
    return -(-n_bytes // step_bytes) * step_bytes


def roundup_divisions(n_bytes: int, settings: AllocatorSettings) -> int:
    """Divisions set for the power of two that ``n_bytes`` lies in; sizes below 1 MiB share the first,
    above 32 GiB the last.

    Source: ``AcceleratorAllocatorConfig::roundup_power2_divisions`` in c10/core/AllocatorConfig.cpp.
    """
    if not settings.roundup_divisions:
        return 0
    index = n_bytes.bit_length() - MIB.bit_length()
    return settings.roundup_divisions[min(max(index, 0), N_ROUNDUP_INTERVALS - 1)]


def segment_bytes(size_bytes: int, settings: AllocatorSettings = DEFAULT_SETTINGS) -> int:
    """Bytes asked from the driver when no cached block serves a rounded request of ``size_bytes``.

    Up to 1 MiB: 2 MiB.  Below 10 MiB: 20 MiB.  Else: the next multiple of 2 MiB.  Source:
    ``get_allocation_size`` in c10/cuda/CUDACachingAllocator.cpp.
    """
    if size_bytes <= SMALL_REQUEST_BYTES:
        return SMALL_SEGMENT_BYTES
    if size_bytes < MIN_LARGE_REQUEST_BYTES:
        return settings.large_segment_bytes
    return -(-size_bytes // LARGE_ROUNDING_BYTES) * LARGE_ROUNDING_BYTES


# Known to PyTorch, and without effect on which device memory is reserved.
_IRRELEVANT = frozenset(
    words(
        """
        release_lock_on_cudamalloc throw_on_cudamalloc_oom graph_capture_record_stream_reuse
        pinned_use_cuda_host_register pinned_use_background_threads pinned_num_register_threads
        pinned_reserve_segment_size_mb pinned_max_round_threshold_mb pinned_max_cached_size_mb
        pinned_free_catch_all
        """
    )
)
_SIZES = {
    "max_split_size_mb": "max_split_bytes",
    "max_non_split_rounding_mb": "max_non_split_rounding_bytes",
    "large_segment_size_mb": "large_segment_bytes",
}
_FRACTIONS = {
    "garbage_collection_threshold": "garbage_collection_threshold",
    "per_process_memory_fraction": "memory_fraction",
}
_OTHERS = ("backend", "expandable_segments", "roundup_power2_divisions")
_ITEM = re.compile(r"([a-z0-9_]+):(\[[^\[\]]*\]|[^,\[\]:]+)(?:,|$)")


def parse_settings(text: str) -> AllocatorSettings:
    """Settings written as ``key:value,key:value``; an empty text gives the defaults.

    Raises:
        UsageError: not in that form, or a value that PyTorch refuses.
        UnknownNameError: a key that PyTorch does not know.
        NotModelledError: ``backend:cudaMallocAsync``, which is another allocator.
    """
    compact = "".join(text.split())
    values: dict[str, int | float | bool | tuple[int, ...]] = {}
    position = 0
    while position < len(compact):
        item = _ITEM.match(compact, position)
        if item is None:
            raise UsageError(
                f"allocator settings are not 'key:value,key:value' at '{compact[position : position + 40]}'"
            )
        values.update(_value(item[1], item[2]))
        position = item.end()
    return AllocatorSettings(**values)  # type: ignore[arg-type]  # _value gives each field its own type


def _value(key: str, text: str) -> dict[str, int | float | bool | tuple[int, ...]]:
    if key in _IRRELEVANT:
        return {}
    if key in _SIZES:
        return {_SIZES[key]: _whole(key, text) * MIB}
    if key in _FRACTIONS:
        return {_FRACTIONS[key]: _fraction(key, text)}
    if key == "roundup_power2_divisions":
        return {"roundup_divisions": _divisions(text)}
    if key == "expandable_segments":
        if text not in ("True", "False"):
            raise UsageError(f"expandable_segments must be True or False, not '{text}'")
        return {"expandable_segments": text == "True"}
    if key == "backend":
        if text != "native":
            raise NotModelledError(f"the allocator backend '{text}' is not modelled; only 'native' is")
        return {}
    raise UnknownNameError("allocator setting", key, sorted({*_SIZES, *_FRACTIONS, *_OTHERS, *_IRRELEVANT}))


def _whole(key: str, text: str) -> int:
    if not re.fullmatch("[0-9]{1,12}", text):
        raise UsageError(f"{key} needs a whole number, not '{text}'")
    return int(text)


def _fraction(key: str, text: str) -> float:
    if not re.fullmatch(r"[0-9]*\.?[0-9]+", text) or (
        key == "garbage_collection_threshold" and float(text) == 0
    ):
        raise UsageError(f"{key} needs a number above 0, not '{text}'")
    return float(text)


def _divisions(text: str) -> tuple[int, ...]:
    """One number for all sizes, or ``[256:1,512:2,>:4]`` with powers of two in MiB
    (``parseRoundUpPower2Divisions``).

    Sizes below the first one named take its number, ``>`` stands for all above the last one named, and what
    is in between and not named stays off.
    """
    key = "roundup_power2_divisions"
    if not text.startswith("["):
        return (_whole(key, text),) * N_ROUNDUP_INTERVALS
    divisions = [0] * N_ROUNDUP_INTERVALS
    last = None
    for pair in text[1:-1].split(","):
        boundary, _, number = pair.partition(":")
        value = _whole(key, number)
        if boundary == ">":
            start = 1 if last is None else last + 1
            divisions[start:] = [value] * (N_ROUNDUP_INTERVALS - start)
            continue
        mib = _whole(key, boundary)
        if mib == 0 or mib & (mib - 1):
            raise UsageError(f"{key}: the size '{boundary}' must be a power of two in MiB")
        index = min(mib.bit_length() - 1, N_ROUNDUP_INTERVALS - 1)
        if last is None:
            divisions[:index] = [value] * index
        divisions[index] = value
        last = index
    return tuple(divisions)
