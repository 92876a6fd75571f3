"""``PYTORCH_CUDA_ALLOC_CONF`` as text -> :class:`AllocatorSettings`, by the rules of c10/core/AllocatorConfig.cpp."""

from __future__ import annotations

import re

from measure.trace.settings import N_ROUNDUP_INTERVALS, AllocatorSettings
from planner.errors import NotModelledError, UnknownNameError, UsageError
from planner.units import MIB

# Known to PyTorch, and without effect on which device memory is reserved.
_IRRELEVANT = frozenset(
    {
        "release_lock_on_cudamalloc",
        "throw_on_cudamalloc_oom",
        "graph_capture_record_stream_reuse",
        "pinned_use_cuda_host_register",
        "pinned_use_background_threads",
        "pinned_num_register_threads",
        "pinned_reserve_segment_size_mb",
        "pinned_max_round_threshold_mb",
        "pinned_max_cached_size_mb",
        "pinned_free_catch_all",
    }
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
            raise UsageError(f"allocator settings are not 'key:value,key:value' at '{compact[position : position + 40]}'")
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
    if not re.fullmatch(r"[0-9]*\.?[0-9]+", text) or (key == "garbage_collection_threshold" and float(text) == 0):
        raise UsageError(f"{key} needs a number above 0, not '{text}'")
    return float(text)


def _divisions(text: str) -> tuple[int, ...]:
    """One number for all sizes, or ``[256:1,512:2,>:4]`` with powers of two in MiB (``parseRoundUpPower2Divisions``).

    Sizes below the first one named take its number, ``>`` stands for all above the last one named, and what is in between and
    not named stays off.
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
