"""The card that is here, by its name in the catalog."""

from __future__ import annotations

from dataclasses import replace

import pytest

from measure.run.readings.machine import Machine, catalog_id
from measure.run.readings.nvml import Gpu
from planner.errors import UsageError
from planner.units import GIB, MIB

H200 = Gpu(0, "NVIDIA H200", "0" * 12, 143771 * MIB, "580.1", "13.0")


@pytest.mark.parametrize(
    ("name", "gib", "expected"),
    [
        ("NVIDIA H200", 140.4, "h200-sxm"),
        ("NVIDIA A100-SXM4-80GB", 80, "a100-80-sxm"),
        ("NVIDIA A100-SXM4-40GB", 40, "a100-40-sxm"),
        ("NVIDIA A100 80GB PCIe", 80, "a100-80-pcie"),
        ("NVIDIA H100 80GB HBM3", 80, "h100-sxm"),
        ("NVIDIA GeForce RTX 4090", 24, "rtx4090"),
        ("NVIDIA GeForce RTX 3090", 24, "rtx3090"),
        ("Tesla T4", 15, "t4"),
        ("NVIDIA L4", 22.5, "l4"),
        ("NVIDIA A10G", 22.5, "a10g"),
        ("NVIDIA Thing 9000", 24, None),
    ],
)
def test_cards_are_known_by_their_drivers_name(name: str, gib: float, expected: str | None) -> None:
    """What the driver calls a card leads to its entry, and an unknown one to none."""
    assert catalog_id(replace(H200, name=name, memory_bytes=round(gib * GIB))) == expected


def test_a_job_is_placed_on_the_card_that_is_here() -> None:
    """Nothing said: the card; another card: refused with the way to ask about it;
    more than there are: refused.
    """
    machine = Machine(None, (H200,), "h200-sxm", {})
    assert machine.place({"seq": 1})["gpu"] == "h200-sxm"
    assert machine.place({"gpu": "cpu"})["gpu"] == "cpu"
    with pytest.raises(UsageError, match="--memory-limit 4090"):
        machine.place({"gpu": "4090"})
    with pytest.raises(UsageError, match="2 GPUs are asked for and 1"):
        machine.place({"gpus": 2})
    with pytest.raises(UsageError, match="name it with --gpu"):
        Machine(None, (H200,), None, {}).place({})
