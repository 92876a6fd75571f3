"""Sizes and switches of PyTorch's CUDA caching allocator.

Sources (PyTorch 2.13): ``c10/core/AllocatorConfig.h`` and ``.cpp`` for the constants, the defaults and the parsing,
``c10/cuda/CUDACachingAllocator.cpp`` for how they are used.  Each function names its counterpart.
"""

from __future__ import annotations

from dataclasses import dataclass

from planner.errors import UsageError
from planner.units import KIB, MIB, format_bytes

# c10/core/AllocatorConfig.h: kMinBlockSize, kSmallSize, kSmallBuffer, kMinLargeAlloc, kRoundLarge.
MIN_BLOCK_BYTES = KIB // 2
SMALL_REQUEST_BYTES = MIB
SMALL_SEGMENT_BYTES = 2 * MIB
MIN_LARGE_REQUEST_BYTES = 10 * MIB
LARGE_ROUNDING_BYTES = 2 * MIB

# c10/core/AllocatorConfig.cpp, kRoundUpPowerOfTwoIntervals: one setting per power of two from 1 MiB up to (not with) 64 GiB.
N_ROUNDUP_INTERVALS = 16


@dataclass(frozen=True, slots=True)
class AllocatorSettings:
    """What ``PYTORCH_CUDA_ALLOC_CONF`` says; the defaults are those of PyTorch.

    ``max_split_bytes`` ``None`` means no limit.  ``max_non_split_rounding_bytes`` ``None`` means ``large_segment_bytes``.
    ``roundup_divisions`` is empty (off) or holds 16 numbers, for sizes from 1, 2, 4, ... MiB upwards.
    ``garbage_collection_threshold`` (0 is off) is a fraction of the allowed memory and works, as in PyTorch, only when
    ``memory_fraction`` is below 1 (``DeviceCachingAllocator::setMemoryFraction``).

    Raises:
        UsageError: a value that PyTorch refuses too.
    """

    max_split_bytes: int | None = None
    max_non_split_rounding_bytes: int | None = None
    large_segment_bytes: int = 20 * MIB
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
                raise UsageError(f"{name} must be at least the large segment size of {format_bytes(self.large_segment_bytes)}")
        if self.roundup_divisions and len(self.roundup_divisions) != N_ROUNDUP_INTERVALS:
            raise UsageError(f"roundup_power2_divisions needs {N_ROUNDUP_INTERVALS} numbers, one per power of two")
        if any(number < 0 or number & (number - 1) for number in self.roundup_divisions):
            raise UsageError("each number of roundup_power2_divisions must be 0 or a power of two")
        if not 0.0 <= self.garbage_collection_threshold < 1.0:
            raise UsageError("garbage_collection_threshold must be above 0 and below 1 (0 turns it off)")
        if not 0.0 < self.memory_fraction <= 1.0:
            raise UsageError("per_process_memory_fraction must be above 0 and at most 1")

    @property
    def oversize_slack_bytes(self) -> int:
        """How much larger than an oversize request a cached block may be."""
        return self.large_segment_bytes if self.max_non_split_rounding_bytes is None else self.max_non_split_rounding_bytes


DEFAULT_SETTINGS = AllocatorSettings()


def rounded_bytes(n_bytes: int, settings: AllocatorSettings = DEFAULT_SETTINGS) -> int:
    """Bytes of the block that serves a request of ``n_bytes``.

    A multiple of 512, at least 512; with ``roundup_power2_divisions`` n, sizes above 512 n go up to the next n-th part of the
    way from one power of two to the next.  Source: ``round_size`` and ``roundup_power2_next_division`` in
    c10/cuda/CUDACachingAllocator.cpp.
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
    """Divisions set for the power of two that ``n_bytes`` lies in; sizes below 1 MiB share the first, above 32 GiB the last.

    Source: ``AcceleratorAllocatorConfig::roundup_power2_divisions`` in c10/core/AllocatorConfig.cpp.
    """
    if not settings.roundup_divisions:
        return 0
    index = n_bytes.bit_length() - MIB.bit_length()
    return settings.roundup_divisions[min(max(index, 0), N_ROUNDUP_INTERVALS - 1)]


def segment_bytes(size_bytes: int, settings: AllocatorSettings = DEFAULT_SETTINGS) -> int:
    """Bytes asked from the driver when no cached block serves a rounded request of ``size_bytes``.

    Up to 1 MiB: 2 MiB.  Below 10 MiB: 20 MiB.  Else: the next multiple of 2 MiB.  Source: ``get_allocation_size`` in
    c10/cuda/CUDACachingAllocator.cpp.
    """
    if size_bytes <= SMALL_REQUEST_BYTES:
        return SMALL_SEGMENT_BYTES
    if size_bytes < MIN_LARGE_REQUEST_BYTES:
        return settings.large_segment_bytes
    return -(-size_bytes // LARGE_ROUNDING_BYTES) * LARGE_ROUNDING_BYTES
