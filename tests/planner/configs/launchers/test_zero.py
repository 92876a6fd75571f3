"""ZeRO's own table: stages, places of state, buckets, and what is said about the rest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from planner.configs.launchers.zero import read_zero, say_offload, say_zero
from planner.configs.said_by_file import Reading
from planner.configs.shared.keys import Keys
from planner.errors import InputFileError, NotModelledError, UsageError

FILE = Path("ds.json")


def read(**table: Any) -> Reading:
    """What such a table says."""
    reading = Reading(FILE, "DeepSpeed")
    keys = Keys(FILE, table)
    read_zero(keys, reading)
    reading.finish(keys)
    return reading


def switches(reading: Reading) -> dict[str, str]:
    """The switches without their places."""
    return {name: value for name, (value, _) in reading.switches.items()}


@pytest.mark.parametrize("stage", [4, -1, True, "3", 1.5])
def test_other_stages_are_refused(stage: object) -> None:
    """``true`` is no stage 1."""
    with pytest.raises(InputFileError, match="'stage' must be 0, 1, 2 or 3"):
        say_zero(Keys(FILE, {}), "stage", stage, Reading(FILE, "DeepSpeed"))


@pytest.mark.parametrize(
    ("states", "params", "offload"),
    [
        ("cpu", None, "optimizer"),
        (None, "cpu", "params"),
        ("nvme", "nvme", "optimizer+params-nvme"),
        ("none", "none", None),
    ],
)
def test_state_lies_where_its_tables_say(states: str | None, params: str | None, offload: str | None) -> None:
    """A table without a device is of none."""
    tables = {"offload_optimizer": states, "offload_param": params}
    said = read(stage=3, **{name: {"device": device} for name, device in tables.items() if device})
    assert said.value("offload") == offload
    assert read(stage=2, cpu_offload=True).value("offload") == "optimizer"
    assert read(stage=3, offload_param={}).value("offload") is None
    below = read(stage=2, offload_param={"device": "cpu"})
    assert below.value("offload") is None
    assert "which ZeRO-2 does not offload" in str(below.remarks)


def test_pairs_of_devices_that_are_not_read_are_refused() -> None:
    """Also a part of the optimizer, and a device of nobody."""
    keys, reading = Keys(FILE, {}), Reading(FILE, "DeepSpeed")
    with pytest.raises(NotModelledError, match="states on cpu with parameters on nvme"):
        say_offload(keys, ("cpu", "nvme"), 3, reading, "x")
    with pytest.raises(InputFileError, match="'x' must be none, cpu or nvme"):
        say_offload(keys, ("gpu", "none"), 3, reading, "x")
    with pytest.raises(NotModelledError, match="offloading a part of the optimizer"):
        read(stage=3, offload_optimizer={"device": "cpu", "ratio": 0.5})


@pytest.mark.parametrize(
    "table",
    [
        {"mics_shard_size": 8},
        {"mics_shard_size": 1, "mics_hierarchical_params_gather": True},
        {"mics_shard_size": "8"},
        {"zeropp_loco_param": {"err_beta": 0.8}},
        {"zero_quantized_gradients": True, "reduce_scatter": False},
    ],
)
def test_what_deepspeed_stops_at(table: dict[str, Any]) -> None:
    """What it has removed, and sums of 4 bits without scattering."""
    with pytest.raises(UsageError, match=r"ds\.json:(mics|zeropp|reduce_s).*stops.*refused-by-its-tool"):
        read(stage=3, **table)


def test_mics_that_is_off_is_a_remark() -> None:
    """Files of older versions say so; the newest stops at the key itself."""
    assert "stops where a file has it" in str(read(stage=3, mics_shard_size=-1).remarks)
    assert len(read(stage=3, mics_shard_size=-1, mics_hierarchical_params_gather=False).remarks) == 2


def test_modules_that_stage_3_gathers_whole() -> None:
    """A file's classes take the place of DeepSpeed's own list; other ways to name modules are not read."""
    both = {"classes": ["a.b.MixtralSparseMoeBlock", "GptOssMLP"], "names": []}
    assert switches(read(stage=3, leaf_module=both))["zero3_leaves"] == "a.b.MixtralSparseMoeBlock+GptOssMLP"
    assert switches(read(stage=3, leaf_module={"classes": []}))["zero3_leaves"] == "none"
    assert "zero3_leaves" not in switches(read(stage=3))
    assert "zero3_leaves" not in switches(read(stage=2, leaf_module=both))
    with pytest.raises(NotModelledError, match="name_suffixes: modules gathered whole are read by their cl"):
        read(stage=3, leaf_module={"name_suffixes": ["mlp"]})


def test_what_stage_3_sends_in_few_bits() -> None:
    """A switch names both; other stages read none of it, and say so."""
    both = {"zero_quantized_weights": True, "zero_quantized_gradients": True}
    assert switches(read(stage=3, **both))["zero3_quantized"] == "weights+gradients"
    assert switches(read(stage=3, zero_quantized_gradients=True))["zero3_quantized"] == "gradients"
    assert "zero3_quantized" not in switches(read(stage=3, zero_quantized_weights=False))
    frozen = read(stage=3, zero_quantized_nontrainable_weights=True)
    assert switches(frozen)["zero3_quantizes_frozen"] == "true"
    below = read(stage=2, zero_hpz_partition_size=8, **both)
    assert ("zero3_quantized" in switches(below), len(below.remarks)) == (False, 3)


@pytest.mark.parametrize(
    ("table", "elements", "overlaps"),
    [
        ({}, "500000000", "false"),
        ({"reduce_bucket_size": "2e8", "overlap_comm": True}, "200000000", "true"),
        ({"reduce_bucket_size": "auto", "overlap_comm": "auto"}, "0", "false"),
    ],
)
def test_buckets_of_the_first_stages(table: dict[str, Any], elements: str, overlaps: str) -> None:
    """DeepSpeed's own 5e8 where nothing is said; ``auto`` is 0, which stands for the hidden size squared."""
    said = switches(read(stage=2, **table))
    assert said == {"zero12_bucket_elements": elements, "zero12_overlap": overlaps}


@pytest.mark.parametrize("key", ["contiguous_gradients", "reduce_scatter"])
def test_how_gradients_are_gathered(key: str) -> None:
    """False is a remark, or refused where gradients have no buckets; true is what DeepSpeed does anyway."""
    assert read(stage=2, **{key: True}).remarks == []
    assert len(read(stage=3, **{key: False}).remarks) == 1
    if key == "contiguous_gradients":
        with pytest.raises(NotModelledError, match="without buckets"):
            read(stage=2, **{key: False})
    else:
        assert len(read(stage=2, **{key: False}).remarks) == 1


def test_sizes_of_stage_3_are_the_files_own_beside_automatic_ones() -> None:
    """What is left out beside ``auto`` is DeepSpeed's own; a stage without states has no buckets."""
    mixed = switches(read(stage=3, reduce_bucket_size="auto", stage3_prefetch_bucket_size=7))
    assert mixed.pop("zero_auto_buckets") == "true"
    assert mixed == {"zero3_prefetch_elements": "7", "zero3_persistence_elements": "100000"}
    own = read(stage=3, prefetch_bucket_size=50_000_000)
    assert (switches(own), own.remarks) == ({"zero_auto_buckets": "false"}, [])
    assert switches(read(stage=0, reduce_bucket_size=5)) == {}
    assert switches(read(stage=3, overlap_comm=False))["zero3_overlap"] == "false"


def test_sizes_beyond_any_model_are_no_limit() -> None:
    """Older pages of Transformers show 1e14: more than a million million is as much as that."""
    said = [switches(read(stage=3, sub_group_size=size)) for size in (1e12, 1e14)]
    assert said[0] == said[1]
    assert said[0]["zero3_sub_group_elements"] == "1000000000000"


@pytest.mark.parametrize("size", [-1, True, "many", "nan", "inf"])
def test_a_bucket_is_a_number_of_elements(size: object) -> None:
    """From zero on."""
    with pytest.raises(InputFileError, match="a number of elements or auto"):
        read(stage=2, reduce_bucket_size=size)


def test_a_second_copy_is_of_stage_3() -> None:
    """Below it the key does nothing; a copy of one process is none."""
    assert read(stage=3, zero_hpz_partition_size=8).value("hpz") == 8
    assert read(stage=2, zero_hpz_partition_size=8).value("hpz") is None
    assert read(stage=3, zero_hpz_partition_size=1).value("hpz") is None
    assert read(stage=3, zero_hpz_partition_size=0).value("hpz") is None


def test_modules_that_are_gathered_whole_by_their_size() -> None:
    """Of stage 3 alone, which divides weights (runtime/zero/config.py)."""
    name = "stage3_module_granularity_threshold"
    assert not read(stage=2, **{name: 1}).ignored
    with pytest.raises(NotModelledError, match=f"{name}: modules that ZeRO-3 gathers whole by"):
        read(stage=3, **{name: 1})
