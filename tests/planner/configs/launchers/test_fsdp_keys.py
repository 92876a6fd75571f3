"""FSDP's table: strategies of both versions, units, and files that a config refers to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from planner.configs.launchers.fsdp_keys import DEEPSPEED_FILE, FsdpKeys, found_file, read_fsdp, referred
from planner.configs.said_by_file import Reading
from planner.configs.shared.keys import Keys
from planner.errors import InputFileError, NotModelledError

FILE = Path("train.yaml")


def read(**table: Any) -> Reading:
    """What such a table says of FSDP1, unless it says its version."""
    reading = Reading(FILE, "a trainer")
    keys = Keys(FILE, table, "fsdp_config.")
    read_fsdp(keys, reading, FsdpKeys(1))
    reading.finish(keys)
    return reading


@pytest.mark.parametrize(
    ("table", "sharding"),
    [
        ({"fsdp_sharding_strategy": "FULL_SHARD"}, "fsdp1"),
        ({"sharding_strategy": 1}, "fsdp1"),
        ({"sharding_strategy": 3}, "ddp"),
        ({"sharding_strategy": "HYBRID_SHARD"}, "hsdp1"),
        ({"sharding_strategy": 2}, "fsdp1-grad-op"),
        ({"version": 2, "reshard_after_forward": True}, "fsdp"),
        ({"fsdp_version": 2, "fsdp_reshard_after_forward": "false"}, "fsdp-grad-op"),
    ],
)
def test_a_strategy_is_a_name_a_number_or_a_truth_value(table: dict[str, Any], sharding: str) -> None:
    """With the prefix or without it."""
    assert read(**table).value("sharding") == sharding


@pytest.mark.parametrize("strategy", ["HYBRID_SHARD_ZERO2", 5])
def test_strategies_that_no_formula_covers_are_refused(strategy: object) -> None:
    """By their key."""
    with pytest.raises(NotModelledError, match=r"sharding_strategy: FSDP1 with \w+ is not modelled"):
        read(sharding_strategy=strategy)


@pytest.mark.parametrize(
    ("classes", "switch", "layers"),
    [
        (
            "JambaAttentionDecoderLayer,JambaMambaDecoderLayer",
            ("tower_units", "in_root"),
            "JambaAttentionDecoderLayer+JambaMambaDecoderLayer",
        ),
        (
            ["Qwen2VLDecoderLayer", "Qwen2VLVisionBlock"],
            ("tower_units", "layers"),
            "Qwen2VLDecoderLayer+Qwen2VLVisionBlock",
        ),
        ("MixtralSparseMoeBlock", ("fsdp_units", "feed_forward"), None),
    ],
)
def test_units_are_layers_or_mixtures(classes: object, switch: tuple[str, str], layers: str | None) -> None:
    """Those of a tower are in the root unless one of them is named; the model is asked for each class."""
    found = read(transformer_layer_cls_to_wrap=classes, backward_prefetch="BACKWARD_PRE").switches
    said = {name: value for name, (value, _) in found.items()}
    assert said.pop("fsdp_layer_class", None) == layers
    assert said == dict([switch])


@pytest.mark.parametrize(
    ("table", "prefetches"),
    [
        ({}, False),
        ({"fsdp_backward_prefetch": "BACKWARD_PRE"}, True),
        ({"backward_prefetch_policy": "NO_PREFETCH"}, False),
        ({"version": 2}, True),
    ],
)
def test_fsdp1_gathers_ahead_where_it_is_asked_to(table: dict[str, Any], prefetches: bool) -> None:
    """Not where a file says nothing; FSDP2 has no such setting."""
    reading, keys = Reading(FILE, "a trainer"), Keys(FILE, table, "fsdp_config.")
    read_fsdp(keys, reading, FsdpKeys(1))
    reading.finish(keys)
    assert ("fsdp1_prefetches" not in reading.switches) == prefetches


@pytest.mark.parametrize(
    "table",
    [
        {"transformer_layer_cls_to_wrap": "LlamaMLP"},
        {"transformer_layer_cls_to_wrap": "MixtralDecoderLayer,MixtralSparseMoeBlock"},
        {"auto_wrap_policy": "size_based_wrap"},
        {"auto_wrap_policy": "NO_WRAP"},
    ],
)
def test_other_units_are_refused(table: dict[str, Any]) -> None:
    """Parts of layers, parts beside layers, pieces by size, one unit for all."""
    with pytest.raises(NotModelledError, match="not modelled"):
        read(**table)


def test_fsdp_offloads_both_and_checkpoints_itself() -> None:
    """Only from pinned RAM."""
    said = read(fsdp_offload_params=True, activation_checkpointing=True)
    assert (said.value("offload"), said.value("gradient_checkpointing")) == ("optimizer+params", True)
    assert said.value("checkpoint_reentrant") is False
    assert read(cpu_offload=False).value("offload") is None
    with pytest.raises(NotModelledError, match="RAM that is not pinned"):
        read(offload_params=True, cpu_offload_pin_memory=False)


def test_a_file_is_looked_for_beside_the_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then in the working directory; one without a suffix of such files is not even looked for."""
    config, elsewhere = tmp_path / "a", tmp_path / "b"
    for folder, stage in ((config, 2), (elsewhere, 3)):
        folder.mkdir()
        (folder / "z.json").write_text(f'{{"stage": {stage}}}', encoding="utf-8")
    monkeypatch.chdir(elsewhere)
    keys = Keys(config / "train.yaml", {"deepspeed": "z.json", "hosts": "/etc/hosts"})
    reading = Reading(keys.path, "a trainer")
    assert referred(keys, "deepspeed", DEEPSPEED_FILE, reading).table == {"stage": 2}
    (config / "z.json").unlink()
    assert referred(keys, "deepspeed", DEEPSPEED_FILE, reading).table == {"stage": 3}
    with pytest.raises(InputFileError, match=r"ends in none of \.json"):
        referred(keys, "hosts", DEEPSPEED_FILE, reading)


def test_a_file_may_lie_above_the_script_that_names_it(tmp_path: Path) -> None:
    """A job is launched from the folder that has both; the nearest counts."""
    script = tmp_path / "examples" / "lora" / "run.sh"
    script.parent.mkdir(parents=True)
    named = Path("ds") / "zero2.json"
    assert found_file(named, script) is None
    for folder in (tmp_path, script.parent.parent):
        (folder / "ds").mkdir()
        (folder / named).write_text("{}", encoding="utf-8")
        assert found_file(named, script) == folder / named
    reading = Reading(script, "a trainer")
    referred(Keys(script, {"deepspeed": "ds/zero2.json"}), "deepspeed", DEEPSPEED_FILE, reading)
    assert [remark.text.startswith("found as ") for remark in reading.remarks] == [True]


def test_a_bare_name_is_not_looked_for_above(tmp_path: Path) -> None:
    """Another job may have a file of that name in a folder above."""
    script = tmp_path / "lora" / "run.sh"
    (tmp_path / "z.json").write_text("{}", encoding="utf-8")
    assert found_file(Path("z.json"), script) is None


def test_a_file_of_another_machine_is_the_one_whose_path_ends_alike(tmp_path: Path) -> None:
    """By folder and name at least, and in place of one that a tool ships."""
    config = tmp_path / "train" / "a" / "train.yaml"
    config.parent.mkdir(parents=True)
    (tmp_path / "train" / "ds_z3_config.json").write_text('{"stage": 2}', encoding="utf-8")
    away = {"deepspeed": "/other/mine/train/ds_z3_config.json", "bare": "/other/mine/z9.json"}
    reading, keys = Reading(config, "a trainer"), Keys(config, away)
    assert referred(keys, "deepspeed", DEEPSPEED_FILE, reading).table == {"stage": 2}
    assert [remark.text.partition(": ")[0] for remark in reading.remarks] == [
        "/other/mine/train/ds_z3_config.json is not here"
    ]
    (tmp_path / "z9.json").write_text("{}", encoding="utf-8")
    with pytest.raises(InputFileError, match="neither beside this file"):
        referred(keys, "bare", DEEPSPEED_FILE, reading)


def test_flat_parameters_and_gathering_without_a_limit() -> None:
    """Both are FSDP1's own: the second version has neither."""
    said = read(fsdp_use_orig_params="false")
    assert said.switches["fsdp1_flat"] == ("true", "train.yaml:fsdp_config.fsdp_use_orig_params")
    assert "fsdp1_flat" not in read(use_orig_params=True).switches
    assert "fsdp1_flat" not in read(version=2, use_orig_params=False).switches
    with pytest.raises(NotModelledError, match="limit_all_gathers: weights that FSDP gathers ahead"):
        read(limit_all_gathers=False)
