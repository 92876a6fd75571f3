"""A config file beside flags: flags win, what is left open is asked for, the batch is checked."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.configs.launchers.fsdp_keys import Beside
from planner.configs.said_by_file import Alone
from planner.errors import NotModelledError, UsageError
from planner.intake.given.config_file import ConfigFile, overruled, read_config_file, with_flags
from planner.intake.given.request import from_flags
from tests.files import read, written

LLAMA_FACTORY = "model_name_or_path: Qwen/Qwen2.5-0.5B\nfinetuning_type: lora\nbf16: true\n"


def test_what_a_file_leaves_open_is_asked_for(tmp_path: Path) -> None:
    """Without bf16 or fp16 LLaMA-Factory computes in the dtype of the weights: the flag is asked for,
    and is enough.
    """
    config = read(tmp_path, LLAMA_FACTORY.replace("lora", "freeze").replace("bf16: true", "stage: sft"))
    with pytest.raises(UsageError, match="--precision bf16"):
        with_flags(config, from_flags({"gpu": "4090"}))
    assert with_flags(config, from_flags({"gpu": "4090", "precision": "fp32"})).get("precision") == "fp32"


def test_a_model_beside_the_config_is_found_from_it(tmp_path: Path) -> None:
    """A folder with a ``config.json`` beside the config is meant, from whatever directory the check runs."""
    (tmp_path / "mine").mkdir()
    written(tmp_path / "mine", "{}", "config.json")
    config = read(tmp_path, LLAMA_FACTORY.replace("Qwen/Qwen2.5-0.5B", "./mine"))
    assert config.request.get("model") == str((tmp_path / "mine").resolve())


def test_switches_of_the_flags_win_one_by_one(tmp_path: Path) -> None:
    """A switch said on the command line replaces that of the file; the file's others stay."""
    written(
        tmp_path,
        '{"zero_optimization": {"stage": 2, "overlap_comm": true, "reduce_bucket_size": 2e8}}',
        "ds.json",
    )
    config = read(tmp_path, LLAMA_FACTORY + "deepspeed: ds.json\n")
    assert config.request.get("switches") == ("zero12_bucket_elements=200000000", "zero12_overlap=true")
    request = with_flags(config, from_flags({"gpu": "4090", "switches": "zero12_overlap=false"}))
    assert request.get("switches") == ("zero12_bucket_elements=200000000", "zero12_overlap=false")


@pytest.mark.parametrize(
    ("text", "size", "becomes"),
    [
        ("template: qwen2_vl\n", "640x480", "640x480"),
        ("template: qwen2_vl\n", "1024x768", "886x665"),
        ("template: qwen2_vl\nimage_max_pixels: 262144\n", "1024x768", "591x443"),
        ("template: qwen2_vl\nimage_resolution: 512\n", "1024x768", "1024x768"),
    ],
)
def test_a_tool_that_makes_large_images_smaller(tmp_path: Path, text: str, size: str, becomes: str) -> None:
    """A size that a flag says is that of the data, of which LLaMA-Factory leaves so many pixels."""
    text = LLAMA_FACTORY.replace("Qwen2.5-0.5B", "Qwen2-VL-2B-Instruct") + text
    config = read(tmp_path, text)
    request = with_flags(config, from_flags({"gpu": "4090", "seq": 2048, "image_size": size}))
    assert request.get("image_size") == becomes
    assert bool(request.values["image_size"].note) is (size != becomes)


def asked(gpus: int, *, total: int = 0, least: int = 0, **said: int) -> tuple[object, object]:
    """Micro-batch and accumulation of a file that says these, on so many GPUs."""
    place = "ds.json:train_batch_size"
    config = ConfigFile(
        Path(),
        "DeepSpeed",
        request=from_flags(said),
        total_batch=(total, place) if total else None,
        least_batch=(least, place) if least else None,
    )
    request = with_flags(config, from_flags({"gpu": f"a100-80-sxm:{gpus}"}))
    return request.get("batch"), request.get("grad_accum")


def test_the_batch_over_all_gpus_says_what_is_left_open() -> None:
    """As in ``_set_batch_related_parameters``, on 8 GPUs; a remainder ends the job."""
    assert asked(8, total=64) == (8, 1)
    assert asked(8, total=64, batch=2) == (2, 4)
    assert asked(8, total=64, grad_accum=4) == (2, 4)
    assert asked(8, total=64, batch=4, grad_accum=2) == (4, 2)
    assert asked(8, batch=4) == (4, None)
    for total, said in ((20, {}), (4, {}), (64, {"grad_accum": 3}), (64, {"batch": 3})):
        with pytest.raises(UsageError, match="which ends the job: say how many GPUs"):
            asked(8, total=total, **said)


def test_a_step_of_so_many_samples_or_more() -> None:
    """The accumulation is rounded up; one that is said stays."""
    assert asked(8, least=100, batch=4) == (4, 4)
    assert asked(1, least=3, batch=4) == (4, 1)
    assert asked(8, least=100, batch=4, grad_accum=1) == (4, 1)


def test_a_key_for_one_gpu_alone() -> None:
    """The tool refuses several; or its process sees no others, and then the job has those that it sees."""
    flags = {gpus: from_flags({"gpu": f"4090:{gpus}"}) for gpus in (1, 2)}
    config = ConfigFile(Path(), "a tool", request=from_flags({}), alone=Alone("a.yaml:x", "one GPU only"))
    assert with_flags(config, flags[1]).get("gpu") == "4090:1"
    with pytest.raises(UsageError, match=r"a\.yaml:x: one GPU only"):
        with_flags(config, flags[2])
    for sees, gpu, gpus in ((1, "4090", 1), (2, "4090:2", None), (4, "4090:2", None)):
        seeing = ConfigFile(
            Path(), "a tool", request=from_flags({}), alone=Alone("a.yaml:x", "one GPU only", sees=sees)
        )
        found = with_flags(seeing, flags[2])
        assert (found.get("gpu"), found.get("gpus")) == (gpu, gpus)
    nowhere = ConfigFile(
        Path(), "a tool", request=from_flags({}), alone=Alone("a.yaml:x", "one GPU only", "not read")
    )
    with pytest.raises(NotModelledError, match="not read"):
        with_flags(nowhere, flags[1])


def test_a_count_of_gpus_over_that_of_the_launch_is_told(tmp_path: Path) -> None:
    """The flag wins, and both numbers are named; the same number needs no word."""
    path, launch = tmp_path / "train.yaml", tmp_path / "launch.yaml"
    path.write_text("model_name_or_path: Qwen/Qwen2.5-0.5B\nfinetuning_type: lora\nbf16: true\n", "utf-8")
    launch.write_text("distributed_type: MULTI_GPU\nnum_processes: 4\n", "utf-8")
    job = read_config_file(path, None, Beside(accelerate=launch))
    for gpu, told in (("4090:8", True), ("4090:4", False), ("4090", False)):
        remarks = overruled(job, with_flags(job, from_flags({"gpu": gpu})))
        assert bool(remarks) == told
        assert all("4 GPUs in each node, and 8 are counted" in each.text for each in remarks)
    command = tmp_path / "command"
    command.write_text('{"model": "Qwen/Qwen2.5-0.5B", "tuner_type": "lora", "max_length": 64}', "utf-8")
    alone = read_config_file(command, "ms-swift")
    spread = with_flags(alone, from_flags({"gpu": "4090:2"}))
    assert (spread.get("device_map"), overruled(alone, spread)) == ("auto", ())
