"""What the program, the rules and the readers say of ZeRO++ and MiCS is what DeepSpeed's own code does."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from planner.configs.launchers.zero import read_zero
from planner.configs.said_by_file import Reading
from planner.configs.shared.keys import Keys
from planner.errors import RefusedCombinationError, UsageError
from planner.program.engines.zero.gathers import quantized_groups
from tests.extras import import_or_skip

torch: Any = import_or_skip("torch")
deepspeed: Any = import_or_skip("deepspeed")
pytestmark = pytest.mark.slow


@pytest.fixture
def quantizer(monkeypatch: pytest.MonkeyPatch) -> Any:
    """DeepSpeed's quantizer around a kernel that answers how many groups it was asked for."""
    partition = import_or_skip("deepspeed.runtime.zero.partition_parameters")
    kernels = SimpleNamespace(Symmetric=0, quantize=lambda _, groups, *__: groups)
    monkeypatch.setattr(partition.CUDAQuantizer, "quantizer_cuda_module", kernels)
    monkeypatch.setattr(partition.get_accelerator(), "device_name", lambda *_: "cpu")
    return partition.CUDAQuantizer()


def test_groups_are_those_of_the_quantizer(quantizer: Any) -> None:
    """Of sizes with many divisors and with few, and none where it stops."""
    for elements in (8, 512, 7_992, 8_000, 8_008, 131_072, 4_096 * 4_096 // 8, 8 * 15_013):
        assert quantized_groups(elements) == quantizer.quantize(torch.empty(elements))
    for elements in (12, 8_001):
        with pytest.raises(AssertionError, match="multiple of 8"):
            quantizer.quantize(torch.empty(elements))
        with pytest.raises(RefusedCombinationError):
            quantized_groups(elements)


def test_groups_of_a_second_copy_are_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each ``zero.Init`` makes them anew, so that the second model stops."""
    groups: Any = import_or_skip("deepspeed.utils.groups")
    made = SimpleNamespace(
        is_initialized=lambda: True,
        get_world_size=lambda: 4,
        get_rank=lambda: 0,
        new_group=lambda ranks: ranks,
    )
    monkeypatch.setattr(groups, "dist", made)
    monkeypatch.setattr(groups, "_ZERO_PARAM_INTRA_PARALLEL_GROUP", None)
    groups._create_zero_param_parallel_group(2)
    with pytest.raises(AssertionError, match="already initialized"):
        groups._create_zero_param_parallel_group(2)


@pytest.mark.parametrize("key", ["mics_shard_size", "mics_hierarchical_params_gather", "zeropp_loco_param"])
def test_removed_keys_stop_both(key: str) -> None:
    """With any value, of which those that were off are a remark here."""
    config: Any = import_or_skip("deepspeed.runtime.config")
    with pytest.raises(config.DeepSpeedConfigError, match="removed"):
        config._reject_removed_config_keys({"zero_optimization": {key: 8}})
    reading, keys = Reading(key, "DeepSpeed"), Keys(key, {"stage": 3, key: 8})  # type: ignore[arg-type]
    if key == "mics_hierarchical_params_gather":
        read_zero(keys, reading)
        assert "stops where a file has it" in str(reading.remarks)
    else:
        with pytest.raises(UsageError, match=r"has removed .* and stops"):
            read_zero(keys, reading)
