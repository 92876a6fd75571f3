"""Models that Transformers divides while it reads them, as programs say it."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.configs.read import read_config
from planner.configs.said_by_file import Shards
from planner.errors import InputFileError, NotModelledError, UsageError
from tests.files import written

PROGRAM = """
import torch
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
from transformers.distributed import DistributedConfig
model = AutoModelForCausalLM.from_pretrained("meta-llama/Llama-3.1-8B", dtype=torch.bfloat16, HOW)
trainer = Trainer(model=model, args=TrainingArguments(output_dir="out", bf16=True), train_dataset=data)
trainer.train()
"""


def program(folder: Path, how: str) -> Path:
    """A program whose model is loaded with ``how``."""
    return written(folder, PROGRAM.replace("HOW", how), "train.py")


@pytest.mark.parametrize(
    ("given", "sharding", "shards"), [("tp_size=2, fsdp_size=4", "fsdp", 4), ("tp_size=2", None, 1)]
)
def test_degrees_of_a_program(given: str, sharding: str | None, shards: int, tmp_path: Path) -> None:
    """Both together are the number of GPUs, at which Transformers insists."""
    path = program(tmp_path, f"distributed_config=DistributedConfig({given})")
    said = read_config(path)
    assert (said.value("tensor_parallel"), said.value("sharding")) == (2, sharding)
    assert said.shards == Shards(shards, f"{path}:distributed_config.tp_size")


def test_one_gpu_divides_nothing(tmp_path: Path) -> None:
    """As a config without degrees does."""
    said = read_config(program(tmp_path, "distributed_config=DistributedConfig(tp_size=1)"))
    assert (said.value("tensor_parallel"), said.shards) == (None, None)


def test_experts_of_a_program(tmp_path: Path) -> None:
    """Every GPU has a batch of its own, and FSDP2 divides all else over all of them."""
    path = program(tmp_path, "distributed_config=DistributedConfig(fsdp_size=8, ep_size=4)")
    said = read_config(path)
    assert (said.value("expert_parallel"), said.value("sharding")) == (4, "fsdp")
    assert said.value("tensor_parallel") is None
    assert said.shards == Shards(8, f"{path}:distributed_config.ep_size")


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("DistributedConfig(tp_size=2, pp_size=2)", "a pipeline of Transformers of 2"),
        ("DistributedConfig(fsdp_size=8)", "beside divided matrices"),
        ('DistributedConfig(tp_plan="auto")', "say tp_size"),
        ('DistributedConfig(tp_plan={"lm_head": "colwise"}, tp_size=2)', "of one's own"),
        ('DistributedConfig(fsdp_size=8, ep_size=8, ep_plan={"x": "grouped_gemm"})', "of one's own"),
        ("DistributedConfig(fsdp_size=4, tp_size=2, ep_size=8)", "leave tp_size out"),
        ('DistributedConfig(fsdp_size=8, ep_size=8, ep_implementation="mine")', "only auto"),
    ],
)
def test_what_else_is_divided_is_refused(how: str, why: str, tmp_path: Path) -> None:
    """Else each GPU would be counted with a whole copy."""
    with pytest.raises(NotModelledError, match=why):
        read_config(program(tmp_path, f"distributed_config={how}"))


def test_a_plan_beside_no_config_is_refused(tmp_path: Path) -> None:
    """Older versions take it."""
    with pytest.raises(NotModelledError, match="DistributedConfig"):
        read_config(program(tmp_path, 'tp_plan="auto"'))


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("tp_size=8, enable_expert_parallel=True", "say ep_size"),
        ("fsdp_size=8, ep_size=3", "that divides 8 GPUs"),
        ("fsdp_size=8, expert_parallel_size=8", "no such argument"),
    ],
)
def test_what_transformers_stops_at(how: str, why: str, tmp_path: Path) -> None:
    """It says so before it reads a weight."""
    with pytest.raises(UsageError, match=why):
        read_config(program(tmp_path, f"distributed_config=DistributedConfig({how})"))


def test_what_the_text_does_not_say_is_asked_for(tmp_path: Path) -> None:
    """A config that another file makes."""
    with pytest.raises(InputFileError, match="distributed_config"):
        read_config(program(tmp_path, "distributed_config=made_elsewhere()"))
