"""Processes and engines of a training of ms-swift: variables, launchers and files by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from planner.configs.launchers.fsdp_keys import Beside
from planner.errors import ExitCode, NotModelledError, UsageError
from planner.intake.given.config_file import read_config_file
from tests.files import written
from tests.planner.configs.tools.test_ms_swift import BASE, COMMAND, FULL, asked, read, recipe_of

SCRIPT = "swift/cli/sft.py --model Qwen/Qwen2.5-0.5B --tuner_type full --max_length 1024"
GROWING = "expandable_segments=on"


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("deepspeed: zero2\n", {"sharding": "zero2", "offload": None}),
        ("deepspeed: zero3_offload\n", {"sharding": "zero3", "offload": "optimizer+params"}),
        ("deepspeed: zero3\nzero_hpz_partition_size: 4\n", {"sharding": "zero3", "hpz": 4}),
        ("deepspeed: zero3\nzero_hpz_partition_size: 0\n", {"hpz": None}),
        ("deepspeed: zero2\nzero_hpz_partition_size: 4\n", {"sharding": "zero2", "hpz": None}),
        ("zero_hpz_partition_size: 4\n", {"hpz": None}),
        ("ENV: {NPROC_PER_NODE: 4, NNODES: 2}\n", {"gpus": 4, "nodes": 2, "sharding": "ddp"}),
        ("ENV: {NPROC_PER_NODE: 4}\ndeepspeed: zero2\n", {"gpus": 4, "checkpoint_reentrant": None}),
        ("ENV: {PYTORCH_ALLOC_CONF: 'expandable_segments:True'}\n", {"switches": (GROWING,)}),
        ("ENV: {MAX_PIXELS: 1003520}\n", {"image_size": "1001x1001"}),
        ("ENV: {MAX_PIXELS: 12}\nmodel_kwargs: {max_pixels: 1003520}\n", {"image_size": "1001x1001"}),
    ],
)
def test_variables_and_engines_by_name(tmp_path: Path, text: str, values: dict[str, Any]) -> None:
    """Processes, the allocator, the largest image, files that ms-swift ships."""
    request = read(tmp_path, BASE + text).request
    assert {name: request.get(name) for name in values} == values


@pytest.mark.parametrize("text", ["ENV: {CUDA_VISIBLE_DEVICES: '0,1'}", "device_map: auto"])
def test_one_process_spreads_the_layers_over_the_gpus_that_it_sees(tmp_path: Path, text: str) -> None:
    """get_default_device_map; a step of 16 samples then has 16 micro-batches."""
    recipe = recipe_of(tmp_path, BASE + f"{text}\n", "a100-80-sxm:2")
    assert (recipe.parallel.in_turn, recipe.sharding.name, recipe.batch.grad_accum) == (True, "none", 16)


def test_several_gpus_of_several_processes_are_refused(tmp_path: Path) -> None:
    """And those that processes cannot share alike, as ms-swift does."""
    for visible, why in (
        ("'0,1,2,3', NPROC_PER_NODE: 2", "spreads the layers"),
        ("'0,1,2', NPROC_PER_NODE: 2", "3 GPUs cannot be shared alike by 2 processes"),
    ):
        with pytest.raises((NotModelledError, UsageError), match=why):
            read(tmp_path, BASE + f"ENV: {{CUDA_VISIBLE_DEVICES: {visible}}}\n")


@pytest.mark.parametrize("visible", ["-1", "0,0", "0,-2", "", "0,,1", "GPU-8a3f,GPU-8a3f"])
def test_visible_gpus_are_named_once_each(tmp_path: Path, visible: str) -> None:
    """CUDA sees none, or fewer than are named; names of cards count as their numbers do."""
    with pytest.raises(UsageError, match="must name each GPU that is seen, and once"):
        read(tmp_path, BASE + f"ENV: {{CUDA_VISIBLE_DEVICES: '{visible}'}}\n")
    named = read(tmp_path, BASE + "ENV: {CUDA_VISIBLE_DEVICES: 'GPU-8a3f, GPU-77b1'}\n")
    assert named.request.get("gpus") == 2


@pytest.mark.parametrize(("text", "gpu", "reentrant"), [
    ("", "a100-80-sxm", True),
    ("", "a100-80-sxm:2", False),
    ("ENV: {MAX_PIXELS: 1003520}\n", "a100-80-sxm:2", False),
    ("deepspeed: zero2\n", "a100-80-sxm:2", True),
    ("fsdp: fsdp2\n", "a100-80-sxm:2", False),
    ("ENV: {NPROC_PER_NODE: 1}\n", "a100-80-sxm", False),
    ("gradient_checkpointing_kwargs: {use_reentrant: true}\n", "a100-80-sxm:2", True),
])  # fmt: skip
def test_checkpoints_are_reentrant_but_under_ddp(
    tmp_path: Path, text: str, gpu: str, reentrant: bool
) -> None:
    """trainers/mixin.py _fix_gradient_checkpointing looks for processes, DeepSpeed and FSDP."""
    recipe = recipe_of(tmp_path, BASE + text, gpu)
    assert (recipe.gradient_checkpointing, recipe.checkpoint_reentrant) == (True, reentrant)


@pytest.mark.parametrize(("text", "gpu", "code"), [
    (COMMAND, "a100-80-sxm", ExitCode.FITS),
    (COMMAND, "a100-80-sxm:2", ExitCode.FITS),
    (f"NPROC_PER_NODE=2 {COMMAND}", "a100-80-sxm:2", ExitCode.FITS),
])  # fmt: skip
def test_a_command_without_processes_runs_as_one(text: str, gpu: str, code: ExitCode) -> None:
    """On several GPUs it spreads the layers."""
    assert asked(text, gpu).exit_code == code


@pytest.mark.parametrize("launcher", [
    "torchrun --nproc_per_node=8",
    "python -m torch.distributed.run --nproc_per_node 8",
    "accelerate launch --num_processes 8",
    "deepspeed --num_gpus 8",
])  # fmt: skip
@pytest.mark.parametrize(("engine", "sharding"), [("", "ddp"), (" --deepspeed zero3", "zero3")])
def test_a_launcher_says_how_many_processes_there_are(launcher: str, engine: str, sharding: str) -> None:
    """With an engine by name as without one, whatever the card is counted as."""
    for gpu in ("a100-80-sxm", "a100-80-sxm:8"):
        checked = asked(f"{launcher} {SCRIPT}{engine}", gpu)
        assert checked.failure == ""
        scenario = checked.subject.scenario
        assert (scenario.hardware.gpus_per_node, scenario.recipe.sharding.name) == (8, sharding)
        assert scenario.recipe.batch.grad_accum == 2


@pytest.mark.parametrize(("launcher", "engine", "reentrant"), [
    ("python", "", True),
    ("accelerate launch --num_processes 1", "", True),
    ("torchrun --nproc_per_node 1", "", False),
    ("torchrun", " --deepspeed zero2", True),
    ("deepspeed --num_gpus 1", "", False),
])  # fmt: skip
def test_a_launcher_of_one_process_spreads_the_layers_too(
    launcher: str, engine: str, reentrant: bool
) -> None:
    """One process that sees several GPUs does, whoever starts it; with a rank its checkpoints are not
    reentrant.
    """
    job = f"{launcher} {SCRIPT} --learning_rate 1e-5{engine}"
    checked = asked(job)
    assert checked.exit_code == ExitCode.FITS
    assert checked.subject.scenario.recipe.checkpoint_reentrant is reentrant
    several = asked(job, "a100-80-sxm:2")
    if engine:
        assert (several.exit_code, "with sharding" in several.failure) == (ExitCode.NOT_MODELLED, True)
    else:
        assert several.subject.scenario.recipe.parallel.in_turn


@pytest.mark.parametrize("engine", ["", "deepspeed: zero2\n"])
def test_a_launch_file_says_it_as_well(tmp_path: Path, engine: str) -> None:
    """``--accelerate FILE`` beside a config, with an engine by name as without one."""
    launch = written(
        tmp_path, "distributed_type: MULTI_GPU\nnum_processes: 4\nnum_machines: 2\n", "launch.yaml"
    )
    path = written(tmp_path, FULL + engine)
    request = read_config_file(path, None, Beside(accelerate=launch)).request
    assert (request.get("gpus"), request.get("nodes")) == (2, 2)
    assert request.get("sharding") == ("zero2" if engine else "ddp")


def test_a_number_of_nodes_that_is_left_open_is_one(tmp_path: Path) -> None:
    """Which is said, so that --nodes can say more."""
    config = read(tmp_path, BASE + "ENV: {NPROC_PER_NODE: 4, NNODES: $WORLD}\n")
    assert (config.request.get("gpus"), config.request.get("nodes")) == (4, None)
    assert any(remark.origin.endswith("ENV.NNODES") for remark in config.remarks)
