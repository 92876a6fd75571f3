"""Cards, their number and memory, and the host."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.domain.scenario import Assumption
from planner.errors import RefusedCombinationError, UsageError
from planner.intake.given.request import from_toml
from planner.intake.resolve import resolve
from planner.predicting import estimate
from planner.units import GIB
from tests.files import written
from tests.jobs import resolved
from tests.planner.intake.jobs import BASE, assumption, scenario_of


def test_gpus_per_node_are_counted_after_the_colon() -> None:
    """`X:n` is n per node, with the origin of the flag, and shards nothing unless told to."""
    scenario = scenario_of(gpu="4090:2", nodes=3)
    assert (scenario.hardware.gpus_per_node, scenario.hardware.world_size) == (2, 6)
    assert assumption(scenario, "gpus") == Assumption("gpus", "2", "cli")
    assert (scenario.recipe.sharding.name, assumption(scenario, "sharding").origin) == ("ddp", "assumed")
    assert assumption(scenario, "link").value == "pcie"


@pytest.mark.parametrize("gpu", ["4090:0", "4090:x", "4090:", ":2", "4090:1025", "4090:-1"])
def test_a_count_that_is_none_is_refused(gpu: str) -> None:
    """What follows the colon must be a number of GPUs."""
    with pytest.raises(UsageError):
        scenario_of(gpu=gpu)


def test_two_counts_must_agree() -> None:
    """`--gpu X:2 --gpus 4` contradicts itself; the same number twice does not."""
    with pytest.raises(UsageError, match="give the count once"):
        scenario_of(gpu="4090:2", gpus=4)
    assert scenario_of(gpu="4090:2", gpus=2).hardware.gpus_per_node == 2


def test_memory_given_replaces_the_catalog() -> None:
    """A vGPU or a MIG slice is its parent card with another memory, which then has the user as its origin."""
    scenario = scenario_of(gpu_memory="10GiB", gpu_reserved="600MiB")
    assert scenario.hardware.gpu.visible_memory_bytes == 10 * GIB
    assert scenario.hardware.gpu.origin_of("visible_memory_bytes") == "user"
    assert assumption(scenario, "gpu_reserved") == Assumption("gpu_reserved", "600.0 MiB", "cli")


def test_a_card_may_be_a_number_in_a_file(tmp_path: Path) -> None:
    """TOML reads 4090 as an integer."""
    path = written(tmp_path, 'model = "7b"\nmethod = "qlora"\nseq = 1024\ngpu = 4090\n', "job.toml")
    assert resolve(from_toml(path)).hardware.gpu.id == "rtx4090"


def test_a_reserve_above_the_card_leaves_nothing() -> None:
    """With force it is tried: then nothing fits, and no limit is negative."""
    flags = {"model": "7b", "method": "qlora", "seq": 1024, "gpu": "4090", "gpu_reserved": "40GiB"}
    with pytest.raises(RefusedCombinationError, match="reserved-fills-card"):
        resolved(flags)
    made = estimate(resolved(flags, force=True))
    assert made.verdict == "does_not_fit"
    assert made.memory.limit_bytes == 0


def test_a_power_limit_needs_the_rated_power() -> None:
    """Without it the share of the clock is unknown, and the limit is not passed over."""
    assert scenario_of(power_limit_w="280").hardware.power_limit_w == 280
    with pytest.raises(UsageError, match="rated power of rtx6090"):
        scenario_of(gpu="rtx6090", gpu_memory="48GiB", power_limit_w="280")


def test_an_unlisted_card_is_usable_with_its_memory() -> None:
    """A card that no catalog knows has a memory verdict when its memory is said,
    and nothing is invented about its speed.
    """
    gpu = scenario_of(gpu="rtx6090", gpu_memory="48GiB").hardware.gpu
    assert (gpu.id, gpu.visible_memory_bytes, gpu.bf16_flop_per_s) == ("rtx6090", 48 * GIB, None)
    assert resolved({**BASE, "gpu": None, "gpu_memory": "48GiB"}).hardware.gpu.id == "unlisted"


def test_the_host_is_unknown_unless_said() -> None:
    """Host RAM comes from the host's entry, from the user, or stays unknown."""
    assert scenario_of().hardware.host.memory_bytes is None
    assert scenario_of(host="server-256g").hardware.host.memory_bytes == 256 * GIB
    assert scenario_of(host="server-256g", host_memory="64GiB").hardware.host.memory_bytes == 64 * GIB


def test_a_card_without_nvlink_is_not_linked_by_it() -> None:
    """A flag that changes nothing would promise a speed; PCIe may be said."""
    with pytest.raises(UsageError, match="link nvlink: rtx4090 has no NVLink"):
        scenario_of(gpu="4090:2", link="nvlink")
    assert scenario_of(gpu="4090:2", link="pcie").hardware.link == "pcie"
    assert scenario_of(gpu="3090:2", link="nvlink").hardware.link == "nvlink"
