"""A launch file of Accelerate: processes, precision beside a trainer's, and degrees."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from planner.configs.launchers.accelerate import read_accelerate
from planner.configs.launchers.fsdp_keys import Beside
from planner.configs.read import read_config
from planner.configs.said_by_file import Reading
from planner.configs.shared.keys import Keys
from planner.errors import NotModelledError, UsageError

FILE = Path("launch.yaml")
MULTI_GPU = {"distributed_type": "MULTI_GPU"}
FSDP2 = {"distributed_type": "FSDP", "fsdp_config": {"fsdp_version": 2, "fsdp_reshard_after_forward": True}}


def read(table: dict[str, Any], **said: Any) -> Reading:
    """What a launch file says after a trainer has ``said`` something."""
    reading = Reading(Path("train.yaml"), "a trainer")
    for name, value in said.items():
        reading.say(name, value, f"train.yaml:{name}")
    keys = Keys(FILE, table)
    read_accelerate(keys, reading, Beside())
    reading.finish(keys)
    return reading


@pytest.mark.parametrize(
    ("table", "gpus", "nodes"),
    [
        ({"distributed_type": "MULTI_GPU", "num_processes": 16, "num_machines": 2}, 8, 2),
        ({"distributed_type": "multi_gpu", "num_processes": "4"}, 4, None),
        # YAML reads a bare NO as false; one process is started whatever the number.
        ({"distributed_type": False, "num_processes": 8}, 1, None),
        ({"distributed_type": "MULTI_GPU"}, None, None),
    ],
)
def test_processes_are_of_all_machines(table: dict[str, Any], gpus: int | None, nodes: int | None) -> None:
    """Shared alike."""
    said = read(table)
    assert (said.value("gpus"), said.value("nodes")) == (gpus, nodes)


def test_what_cannot_be_shared_or_is_of_other_devices_is_refused() -> None:
    """With the key that says so."""
    with pytest.raises(UsageError, match="num_processes is 9, which 2 machines cannot share alike"):
        read({"distributed_type": "MULTI_GPU", "num_processes": 9, "num_machines": 2})
    with pytest.raises(NotModelledError, match="distributed_type: MEGATRON_LM is not modelled"):
        read({"distributed_type": "MEGATRON_LM"})
    with pytest.raises(NotModelledError, match="say --gpu cpu"):
        read({"distributed_type": "NO", "use_cpu": True})


@pytest.mark.parametrize(
    ("mixed", "before", "found", "remarks"),
    [
        ("bf16", None, "bf16-mixed", 0),
        (False, "fp16-mixed", "fp16-mixed", 0),
        ("bf16", "bf16-mixed", "bf16-mixed", 0),
        ("fp16", "bf16-mixed", "bf16-mixed", 1),
        ("fp8", None, "bf16-mixed", 0),
    ],
)
def test_a_trainers_precision_wins(mixed: object, before: str | None, found: str, remarks: int) -> None:
    """And that is said where the two differ."""
    said = read(
        {"distributed_type": "NO", "mixed_precision": mixed}, **({"precision": before} if before else {})
    )
    assert (said.value("precision"), len(said.remarks)) == (found, remarks)


def test_products_in_8_bits_are_torchaos() -> None:
    """They are gathered so unless the file says no; MS-AMP is not read."""
    eight: dict[str, Any] = {"distributed_type": "NO", "mixed_precision": "fp8"}
    assert read(eight).value("fp8") == "tensorwise-gathered"
    whole = {"fp8_config": {"backend": "torchao", "enable_fsdp_float8_all_gather": False}}
    assert read(eight | whole).value("fp8") == "tensorwise"
    with pytest.raises(NotModelledError, match="fp8 by MSAMP is not modelled"):
        read(eight | {"fp8_config": {"backend": "MSAMP"}})


def test_products_of_transformer_engine_run_beside_bf16() -> None:
    """Accelerate asks the launcher's variable, whatever a trainer says; then its recipe is the default one.

    Seen in the dry run: with bf16 the Trainer's model is converted, too (``programs/te_trainer.py``).
    """
    eight: dict[str, Any] = {"distributed_type": "NO", "mixed_precision": "fp8"}
    engine = {"backend": "TE", "fp8_format": "HYBRID", "amax_history_length": 1024, "margin": 0}
    blocks = {**engine, "use_mxfp8_block_scaling": True}
    alone = read(eight | {"fp8_config": engine})
    assert (alone.value("fp8"), alone.value("precision")) == ("te-delayed", "bf16-mixed")
    assert read(eight | {"fp8_config": blocks}).value("fp8") == "te-mxfp8"
    beside = read(eight | {"fp8_config": blocks}, precision="bf16-mixed")
    assert (beside.value("fp8"), beside.value("precision")) == ("te-delayed", "bf16-mixed")
    wide = {**engine, "override_linear_precision": [False, False, True]}
    with pytest.raises(NotModelledError, match="override_linear_precision"):
        read(eight | {"fp8_config": wide})
    with pytest.raises(UsageError, match="TE in capitals"):
        read(eight | {"fp8_backend": "te"})


def test_zero_without_a_stage_is_stage_2() -> None:
    """Zero is a stage, too; the states' place swaps the optimizer."""
    assert read({"distributed_type": "DEEPSPEED"}).value("sharding") == "zero2"
    none = {"distributed_type": "DEEPSPEED", "deepspeed_config": {"zero_stage": 0}}
    assert read(none).value("sharding") == "zero0"
    cpu = {"zero_stage": 3, "offload_optimizer_device": "cpu", "gradient_accumulation_steps": 4}
    said = read({"distributed_type": "DEEPSPEED", "deepspeed_config": cpu}, optimizer="adamw_8bit")
    assert [said.value(name) for name in ("sharding", "offload", "optimizer", "grad_accum")] == [
        "zero3",
        "optimizer",
        "adamw_torch",
        4,
    ]


def test_degrees_and_replicas() -> None:
    """Shards that are copied are hsdp; who divides a sequence must be there."""
    copies = {"parallelism_config": {"parallelism_config_dp_replicate_size": 2}}
    said = read(FSDP2 | copies)
    assert (said.value("sharding"), said.value("replicas")) == ("hsdp", 2)
    with pytest.raises(NotModelledError, match="replicas beside sharding none"):
        read(MULTI_GPU | copies)
    assert (
        read(FSDP2 | {"parallelism_config": {"parallelism_config_cp_size": 4}}).value("context_parallel") == 4
    )
    tensors = {"parallelism_config_tp_size": 2, "parallelism_config_cp_size": 1}
    assert read(MULTI_GPU | {"parallelism_config": tensors}).value("tensor_parallel") == 2
    with pytest.raises(NotModelledError, match="divides no matrix itself"):
        read(FSDP2 | {"parallelism_config": tensors})
    divided = read(FSDP2 | {"parallelism_config": {"parallelism_config_dp_shard_size": 4}})
    assert divided.shards is not None
    assert (divided.shards.count, divided.shards.copies) == (4, False)
    spread: dict[str, Any] = {"parallelism_config": {"parallelism_config_sp_size": 8}}
    assert read({"distributed_type": "DEEPSPEED"} | spread).value("context_parallel") == 8
    spread["parallelism_config"]["parallelism_config_sp_attn_implementation"] = "flash_attention_2"
    assert read({"distributed_type": "DEEPSPEED"} | spread).value("attention") == "flash2"
    with pytest.raises(NotModelledError, match="needs distributed_type DEEPSPEED, and it is FSDP"):
        read(FSDP2 | {"parallelism_config": {"parallelism_config_sp_size": 4}})


@pytest.mark.parametrize(
    ("flag", "switches"),
    [(False, {"zero3_init_flag": "false"}), ("false", {"zero3_init_flag": "false"}), (True, {}), (None, {})],
)
def test_a_flag_leaves_the_model_whole_before_stage_3(flag: object, switches: dict[str, str]) -> None:
    """The flag alone is noted: whether the software heeds it is a fact of its version."""
    table = {"zero_stage": 3} if flag is None else {"zero_stage": 3, "zero3_init_flag": flag}
    said = read({"distributed_type": "DEEPSPEED", "deepspeed_config": table})
    assert {
        name: value for name, (value, _) in said.switches.items() if name == "zero3_init_flag"
    } == switches


def test_a_default_has_the_place_where_its_key_would_stand() -> None:
    """``zero_stage`` stands in ``deepspeed_config``, be that table there or not."""
    said = read({"distributed_type": "DEEPSPEED"})
    assert said.said["sharding"].origin == f"{FILE}:deepspeed_config.zero_stage"


def test_programs_train_models_of_transformers(tmp_path: Path) -> None:
    """Where models or sequences are divided, no stack with models of its own stands for the program."""
    path = tmp_path / "launch.yaml"
    text = "distributed_type: FSDP\nfsdp_config: {fsdp_version: 2}\n"
    path.write_text(text, encoding="utf-8")
    assert read_config(path).value("stack") is None
    path.write_text(text + "parallelism_config: {parallelism_config_cp_size: 2}\n", encoding="utf-8")
    assert str(read_config(path).value("stack")).startswith("hf-trainer")


def test_one_process_where_nothing_is_distributed() -> None:
    """However many GPUs there are: accelerate 1.15 commands/launch.py simple_launcher."""
    said = read({"distributed_type": "NO"})
    assert (said.value("gpus"), said.one_process) == (1, ("launch.yaml:distributed_type", 0))


def test_blocks_that_zero_3_gathers_whole() -> None:
    """Named by their class; other stages gather nothing."""
    named = {"deepspeed_moe_layer_cls_names": "MixtralSparseMoeBlock"}
    two = {"distributed_type": "DEEPSPEED", "deepspeed_config": {"zero_stage": 2} | named}
    assert read(two).value("sharding") == "zero2"
    assert "zero3_leaves" not in read(two).switches
    three = {"distributed_type": "DEEPSPEED", "deepspeed_config": {"zero_stage": 3} | named}
    said = read(three).switches["zero3_leaves"]
    assert said == ("MixtralSparseMoeBlock", "launch.yaml:deepspeed_config.deepspeed_moe_layer_cls_names")
