"""What a variable of the environment tells PyTorch's allocator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from planner.allocator.settings import DEFAULT_SETTINGS, parse_settings
from planner.configs.said_by_file import Reading
from planner.errors import NotModelledError, UnknownNameError, UsageError, show

ALLOCATOR_VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")


def counted_variable(get: Callable[[str], object]) -> str:
    """The variable that PyTorch reads, of those that ``get`` knows; empty where it knows none.

    Source: torch 2.13 c10/cuda/CUDAAllocatorConfig.h ``instance``: the second where the first is not set.
    """
    return next((name for name in ALLOCATOR_VARIABLES if get(name) is not None), "")


def say_allocator(text: str, origin: str, reading: Reading) -> None:
    """Enter the settings of the allocator that ``text`` says, as PyTorch reads it.

    Raises:
        UsageError: PyTorch stops at it.
        NotModelledError: more than segments that grow and one rounding for all sizes.
    """
    if "$" in text:
        reading.remark(origin, "depends on more than this text, and is not counted")
        return
    try:
        settings = parse_settings(text)
    except (UsageError, UnknownNameError) as error:
        raise UsageError(f"{origin}: {error}") from None
    except NotModelledError as error:
        raise NotModelledError(f"{origin}: {error}") from None
    divisions = {*settings.roundup_divisions}
    # Garbage is collected under a fraction of the card alone, which is not modelled either.
    rest = replace(
        settings, expandable_segments=False, roundup_divisions=(), garbage_collection_threshold=0.0
    )
    if rest != DEFAULT_SETTINGS or len(divisions) > 1:
        raise NotModelledError(
            f"{origin}: '{show(text)}' is not modelled; expandable_segments and one number for "
            "roundup_power2_divisions are: leave the rest out"
        )
    if "expandable_segments" in text:
        reading.switch("expandable_segments", "on" if settings.expandable_segments else "off", origin)
    for each in divisions:
        reading.switch("roundup_divisions", each, origin)
