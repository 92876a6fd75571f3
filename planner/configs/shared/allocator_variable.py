"""What a variable of the environment tells PyTorch's allocator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from planner.allocator.settings import DEFAULT_SETTINGS, parse_settings
from planner.configs.said_by_file import Reading
from planner.errors import NotModelledError, UnknownNameError, UsageError, show
from planner.units import MIB

ALLOCATOR_VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")


def counted_variable(get: Callable[[str], object]) -> str:
    """The variable that PyTorch reads, of those that ``get`` knows; empty where it knows none.

    Source: torch 2.13 c10/cuda/CUDAAllocatorConfig.h ``instance``: the second where the first is not set.
    """
    return next((name for name in ALLOCATOR_VARIABLES if get(name) is not None), "")


def set_in(get: Callable[[str], object]) -> str:
    """The variable that counts and what it says, ``NAME=TEXT``; empty where none is set."""
    name = counted_variable(get)
    return f"{name}={get(name)}" if name else ""


def say_set(said: str, place: str, reading: Reading, *, alone: bool = False) -> None:
    """Enter what :func:`set_in` gave; as :func:`say_allocator`."""
    name, mark, text = said.partition("=")
    if mark:
        say_allocator(text, f"{place}: {name}", reading, alone=alone)


def say_allocator(text: str, origin: str, reading: Reading, *, alone: bool = False) -> None:
    """Enter the settings of the allocator that ``text`` says, as PyTorch reads it; ``alone``: nothing that
    the tool sets where nobody does is beside them.

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
        settings,
        expandable_segments=False,
        roundup_divisions=(),
        max_split_bytes=None,
        garbage_collection_threshold=0.0,
    )
    if rest != DEFAULT_SETTINGS or len(divisions) > 1:
        raise NotModelledError(
            f"{origin}: '{show(text)}' is not modelled; expandable_segments, max_split_size_mb and one "
            "number for roundup_power2_divisions are: leave the rest out"
        )
    if alone or "expandable_segments" in text:
        reading.switch("expandable_segments", "on" if settings.expandable_segments else "off", origin)
    for each in divisions or ({0} if alone else ()):
        reading.switch("roundup_divisions", each, origin)
    if settings.max_split_bytes is not None:
        reading.switch("max_split_mib", settings.max_split_bytes // MIB, origin)
