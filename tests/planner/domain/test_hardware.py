"""Cards and machines: what a job may use of them, and what is known of their rates."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.domain.hardware import USUAL_MULTIPROCESSORS, GpuSpec, Hardware, HostSpec, NumberOrigin
from planner.units import GIB
from tests.planner.report.prediction.made import gpu

CARD = replace(gpu(), visible_memory_bytes=24 * GIB)


def on(card: GpuSpec = CARD, reserved: int = 0) -> Hardware:
    """Two nodes of four cards."""
    return Hardware(card, 4, 2, HostSpec("unknown"), gpu_reserved_bytes=reserved)


@pytest.mark.parametrize(
    ("card", "reserved", "limit"),
    [
        (CARD, 0, 24 * GIB),
        (CARD, GIB, 23 * GIB),
        (CARD, 24 * GIB, 0),
        (CARD, 99 * GIB, 0),
        (replace(CARD, visible_memory_bytes=None), 0, None),
        (replace(CARD, vendor="amd"), 0, None),
    ],
)
def test_others_take_of_a_card_what_it_has_and_not_more(
    card: GpuSpec, reserved: int, limit: int | None
) -> None:
    """Nothing is known of a card without a size, nor of the memory of another maker's."""
    assert on(card, reserved).limit_bytes == limit


def test_a_job_has_a_process_for_each_card_of_all_nodes() -> None:
    """Two nodes of four."""
    assert on().world_size == 8


@pytest.mark.parametrize(
    ("capability", "generation", "rate", "supports"),
    [
        ("8.0", "ampere", None, True),
        ("12.0", "blackwell", None, True),
        ("7.5", "turing", 1.0, False),
        ("0.0", "unknown", None, False),
        ("0.0", "unknown", 1.0, True),
    ],
)
def test_bf16_is_there_from_ampere_on(
    capability: str, generation: str, rate: float | None, supports: bool
) -> None:
    """By the capability, whether or not a rate is known; a card of unknown chip has it where its rate is."""
    card = replace(CARD, compute_capability=capability, generation=generation, bf16_flop_per_s=rate)
    assert card.supports_bf16 is supports


@pytest.mark.parametrize(
    ("vendor", "rate", "supports"), [("amd", None, True), ("intel", None, False), ("intel", 1.0, True)]
)
def test_other_makers_have_bf16_where_something_says_so(
    vendor: str, rate: float | None, supports: bool
) -> None:
    """AMD's have it all."""
    card = replace(CARD, vendor=vendor, bf16_flop_per_s=rate)
    assert (card.is_cuda, card.supports_bf16) == (False, supports)


@pytest.mark.parametrize(
    ("bf16", "origins", "unsourced"),
    [
        (1.0, {"bf16_flop_per_s": "unsourced"}, True),
        (1.0, {"bf16_flop_per_s": "datasheet"}, False),
        (1.0, {"bf16_flop_per_s": "unsourced", "best_matmul_flop_per_s": "measured"}, False),
        (1.0, {"bf16_flop_per_s": "unsourced", "best_matmul_flop_per_s": "derived"}, True),
        (None, {"fp16_flop_per_s": "unsourced"}, True),
        (None, {"fp16_flop_per_s": "datasheet", "bf16_flop_per_s": "unsourced"}, False),
        (1.0, {}, False),
    ],
)
def test_rates_without_a_source_are_told(
    bf16: float | None, origins: dict[str, NumberOrigin], unsourced: bool
) -> None:
    """Of the 16-bit rate that the card has, unless somebody measured products."""
    assert (
        replace(CARD, bf16_flop_per_s=bf16, origins=tuple(origins.items())).rates_are_unsourced is unsourced
    )


def test_origins_are_found_by_field() -> None:
    """A number that is unknown has none."""
    assert CARD.origin_of("visible_memory_bytes") == "measured"
    with pytest.raises(KeyError):
        CARD.origin_of("fp8_flop_per_s")


def test_what_is_unknown_counts_as_a_usual_card() -> None:
    """Multiprocessors of an A100; links of a bridge are sold apart."""
    assert replace(CARD, multiprocessors=None).counted_multiprocessors == USUAL_MULTIPROCESSORS
    assert replace(CARD, multiprocessors=84).counted_multiprocessors == 84
    assert replace(CARD, interconnect="nvlink-bridge").needs_bridge
    assert not replace(CARD, interconnect="nvlink").needs_bridge
