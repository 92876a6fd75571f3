"""A DeepSpeed file: it must agree with its trainer, and may bring an optimizer of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from planner.configs.launchers.deepspeed_json import read_deepspeed
from planner.configs.said_by_file import Reading
from planner.configs.shared.keys import Keys
from planner.errors import NotModelledError, UsageError

FILE = Path("ds.json")
ZERO: dict[str, Any] = {"stage": 2}
IN_RAM: dict[str, Any] = {"stage": 2, "offload_optimizer": {"device": "cpu"}}


def read(table: dict[str, Any], **said: Any) -> Reading:
    """What a file says after a trainer has ``said`` something."""
    reading = Reading(Path("train.yaml"), "a trainer")
    for name, value in said.items():
        reading.say(name, value, f"train.yaml:{name}")
    read_deepspeed(Keys(FILE, table), reading)
    return reading


def test_without_a_table_of_zero_nothing_is_divided() -> None:
    """Stage 0 is what DeepSpeed takes, which may be said, too."""
    for table in ({}, {"zero_optimization": {"stage": 0}}):
        assert (read(table).value("sharding"), read(table).remarks) == ("zero0", [])


def test_matrices_that_deepspeed_divides() -> None:
    """AutoTP, as its degree alone has it."""
    zero = {"zero_optimization": {"stage": 2}}
    said = read(zero | {"tensor_parallel": {"autotp_size": 2}})
    assert (said.value("tensor_parallel"), said.value("sharding")) == (2, "zero2")
    assert read(zero | {"tensor_parallel": {"autotp_size": 0}}).value("tensor_parallel") is None
    for more in ({"vocab_parallel_lm_head": True}, {"tp_size": 2}):
        with pytest.raises(NotModelledError, match="autotp_size alone"):
            read(zero | {"tensor_parallel": {"autotp_size": 2, **more}})
    with pytest.raises(NotModelledError, match="a tensor-parallel degree of 2"):
        read(zero | {"tensor_parallel": {"tp_size": 2}})


def test_sizes_agree_with_the_trainer_or_are_refused() -> None:
    """``auto`` is what the trainer said; the batch of all GPUs is kept for later."""
    said = read(
        {"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": "auto", "train_batch_size": 64},
        batch=4,
        grad_accum=2,
    )
    assert (said.value("batch"), said.value("grad_accum")) == (4, 2)
    assert said.total_batch == (64, "ds.json:train_batch_size")
    with pytest.raises(UsageError, match=r"is 4, but train\.yaml:batch is 2: the libraries refuse that"):
        read({"train_micro_batch_size_per_gpu": 4}, batch=2)


@pytest.mark.parametrize(
    ("table", "precision", "found"),
    [
        ({"bf16": {"enabled": True}}, None, "bf16-mixed"),
        ({"fp16": {"enabled": True}, "bf16": {"enabled": False}}, None, "fp16-mixed"),
        ({"bf16": {"enabled": "auto"}}, "fp16-mixed", "fp16-mixed"),
        ({"fp16": {"enabled": False}}, "bf16-mixed", "bf16-mixed"),
        ({"bf16": {"enabled": False}}, None, None),
    ],
)
def test_precision(table: dict[str, Any], precision: str | None, found: str | None) -> None:
    """On is what is computed in; off says nothing of the other."""
    assert read(table, **({"precision": precision} if precision else {})).value("precision") == found


@pytest.mark.parametrize("table", [{"bf16": {"enabled": False}}, {"fp16": {"enabled": True}}])
def test_a_precision_that_the_trainer_has_not_is_refused(table: dict[str, Any]) -> None:
    """Transformers compares both."""
    with pytest.raises(UsageError, match="the libraries refuse that"):
        read(table, precision="bf16-mixed")


def test_an_optimizer_of_the_file_takes_the_place_of_the_trainers() -> None:
    """One kernel on the GPU, DeepSpeed's own in RAM; all weights are one group."""
    adam = {"type": "AdamW", "params": {"lr": "auto"}}
    fused = read({"optimizer": adam, "zero_optimization": ZERO}, optimizer="adafactor")
    assert (fused.value("optimizer"), fused.switches["one_optimizer_group"][0]) == (
        "adamw_torch_fused",
        "true",
    )
    assert read({"optimizer": adam, "zero_optimization": IN_RAM}).value("optimizer") == "adamw_torch"
    torchs = {"type": "AdamW", "params": {"lr": "auto", "torch_adam": True}}
    assert read({"optimizer": torchs, "zero_optimization": ZERO}).value("optimizer") == "adamw_torch"
    with pytest.raises(NotModelledError, match=r"optimizer\.params\.torch_adam: in host RAM DeepSpeed's own"):
        read({"optimizer": torchs, "zero_optimization": IN_RAM})
    with pytest.raises(NotModelledError, match="optimizer 'Lamb' is not modelled"):
        read({"optimizer": {"type": "Lamb"}, "zero_optimization": ZERO})
    assert read({"optimizer": adam}).value("optimizer") == "adamw_torch_fused"


@pytest.mark.parametrize(
    ("table", "before", "found"),
    [
        ({"zero_optimization": IN_RAM}, "adamw_8bit", "adamw_torch"),
        ({"zero_optimization": IN_RAM}, "adafactor", "adamw_torch"),
        ({"zero_optimization": IN_RAM}, "lion", "lion"),
        ({"zero_optimization": IN_RAM, "zero_force_ds_cpu_optimizer": False}, "adafactor", "adafactor"),
        ({"zero_optimization": ZERO}, "adafactor", "adafactor"),
    ],
)
def test_states_in_ram_swap_the_optimizer(table: dict[str, Any], before: str, found: str) -> None:
    """Unless the file forbids it or DeepSpeed has it; on the GPU nothing is swapped."""
    said = read(table, optimizer=before)
    assert said.value("optimizer") == found
    assert any("is swapped for" in each.text for each in said.remarks) == (found == "adamw_torch")


def test_sums_of_divided_sequences_have_a_dtype_of_their_own() -> None:
    """fp32 unless this key says another."""
    key = "seq_parallel_communication_data_type"
    said = {dtype: read({key: dtype, "zero_optimization": {"stage": 3}}) for dtype in ("bf16", "fp32")}
    assert said["bf16"].switches["zero_sums_fp32"][0] == "never"
    assert "zero_sums_fp32" not in said["fp32"].switches


@pytest.mark.parametrize(
    ("dtype", "stage", "switch"),
    [("fp32", 2, True), ("fp32", 3, True), ("fp32", 0, False), ("bf16", 2, False)],
)
def test_sums_in_fp32_are_taken_over_where_they_are_divided(dtype: str, stage: int, *, switch: bool) -> None:
    """Else a remark says what is counted."""
    said = read({"communication_data_type": dtype, "zero_optimization": {"stage": stage}})
    assert ("zero_sums_fp32" in said.switches) == switch
    assert any("reduced in their own dtype" in each.text for each in said.remarks) != switch
