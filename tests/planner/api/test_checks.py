"""Configs with the launch files that were given for them, and what counts as fitting."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.api.checks import (
    CheckJob,
    allowed_codes,
    check_and_write,
    check_job,
    check_jobs,
    command_job,
    of_trainings,
)
from planner.api.files import CheckOptions
from planner.errors import ExitCode, UnknownNameError, UsageError
from planner.intake.given.request import from_flags
from tests.files import answer_to, written

OPTIONS = CheckOptions()
NOTHING = from_flags({})


def launched(configs: list[str], accelerate: list[str]) -> list[tuple[str, str | None, bool]]:
    """Config, launch file and whether the file belongs to its name, of each job."""
    jobs = check_jobs(configs, OPTIONS, accelerate)
    return [(job.config, job.options.accelerate, job.named) for job in jobs]


def test_words_become_codes() -> None:
    """In any case and with blanks; nothing allows nothing."""
    assert allowed_codes(" Uncertain, NOT-MODELLED,") == {ExitCode.UNCERTAIN, ExitCode.NOT_MODELLED}
    assert allowed_codes(None) == allowed_codes("") == frozenset()
    with pytest.raises(UnknownNameError, match="allowed: uncertain, not-modelled"):
        allowed_codes("uncertain,short")


def test_a_launch_file_is_for_all_configs_or_for_one() -> None:
    """A config with a file of its own leaves the others' alone; several files make several jobs."""
    assert launched(["a", "b"], []) == [("a", None, False), ("b", None, False)]
    assert launched(["a", "b"], ["l"]) == [("a", "l", False), ("b", "l", False)]
    assert launched(["a", "b"], ["a=m", "l"]) == [("a", "m", True), ("b", "l", True)]
    assert launched(["a", "b"], ["a=m", "a=n"]) == [("a", "m", True), ("a", "n", True), ("b", None, False)]
    assert launched([], ["l"]) == []


def test_a_launch_file_of_nobody_is_refused(tmp_path: Path) -> None:
    """A file whose own name has an equals sign is one for all."""
    with pytest.raises(UsageError, match="'c' is none of the configs"):
        check_jobs(["a"], OPTIONS, ["c=l"])
    odd = written(tmp_path, "", "c=l")
    assert launched(["a"], [str(odd)]) == [("a", str(odd), False)]


def test_why_a_file_has_no_answer_is_part_of_the_result(tmp_path: Path) -> None:
    """Of a config that is not there, and of a command that trains nothing."""
    missing = check_job(CheckJob(str(tmp_path / "none.yaml"), OPTIONS), NOTHING)
    assert (missing.subject, missing.exit_code) == (None, ExitCode.USAGE)
    assert "none.yaml" in missing.failure
    command = check_job(command_job("ls -l", OPTIONS), NOTHING)
    assert (command.subject, command.exit_code) == (None, ExitCode.USAGE)
    assert command.failure


def test_scripts_are_commands_and_cannot_be_written() -> None:
    """A config file is none."""
    script, config = CheckJob("run.sh", OPTIONS), CheckJob("run.yaml", OPTIONS)
    assert (script.is_command, config.is_command, command_job("x", OPTIONS).is_command) == (True, False, True)
    with pytest.raises(UsageError, match="--write changes a config file"):
        check_and_write(script, NOTHING, "new.sh")


@pytest.mark.parametrize(
    ("name", "text", "is_command"),
    [
        ("a.slurm", "#!/bin/bash\n#SBATCH --nodes=2\n", True),
        ("train", "#!/usr/bin/env bash\n", True),
        ("a.job", "#! /bin/sh\n", True),
        ("a.bash", "", True),
        ("a.py", "#!/usr/bin/env python3\n", False),
        ("a.slurm", "base_model: gpt2\n", False),
        ("a.yaml", "#!/bin/bash\n", False),
    ],
)
def test_a_shell_in_the_first_line_makes_a_script(
    tmp_path: Path, name: str, text: str, is_command: bool
) -> None:
    """Whatever it is called, unless its name is that of a config."""
    (tmp_path / name).write_text(text, encoding="utf-8")
    assert CheckJob(str(tmp_path / name), OPTIONS).is_command is is_command


def test_each_command_of_a_script_is_a_job(tmp_path: Path) -> None:
    """With its number; one that cannot be answered does not stop the others.  A script with one command, with
    none or that is not there is one job.
    """
    script = tmp_path / "run.sh"
    start = "llamafactory-cli train --model_name_or_path gpt2 --bf16 --cutoff_len 64"
    line = f"{start} --finetuning_type {{}} --stage {{}}"
    script.write_text(
        f"M=8\n{line.format('full', 'sft')}\necho a\n{line.format('lora', 'rl')}\n", encoding="utf-8"
    )
    jobs = check_jobs([str(script)], OPTIONS, ["none"])
    assert [(job.name, job.options.accelerate) for job in jobs] == [
        (f"{script}#1", "none"),
        (f"{script}#2", "none"),
    ]
    first, second = (check_job(job, from_flags({"gpu": "4090"}), advise=False) for job in jobs)
    assert (first.config, first.exit_code, second.config, second.exit_code) == (
        f"{script}#1",
        ExitCode.FITS,
        f"{script}#2",
        ExitCode.USAGE,
    )
    for text in (line.format("full", "sft"), "echo a"):
        script.write_text(text, encoding="utf-8")
        assert [job.name for job in check_jobs([str(script)], OPTIONS, [])] == [str(script)]
    assert [job.name for job in check_jobs(["none.sh"], OPTIONS, [])] == ["none.sh"]


def test_commands_that_train_nothing_are_left_out_beside_one_that_trains(tmp_path: Path) -> None:
    """A script often predicts with what it trained; one that only predicts says so for each."""
    script, config = tmp_path / "run.sh", tmp_path / "predict.yaml"
    start = "llamafactory-cli train --model_name_or_path gpt2 --bf16 --cutoff_len 64 --stage sft"
    train, predict = f"{start} --finetuning_type full", f"{start} --finetuning_type lora --do_predict"
    config.write_text("stage: sft\nfinetuning_type: lora\ndo_predict: true\n", encoding="utf-8")
    other = f"llamafactory-cli train {config}"
    for lines, names in (
        ([train, predict, other], ["#1"]),
        ([predict, other], ["#1", "#2"]),
        ([train, predict, f"{start} --finetuning_type magic"], ["#1", "#3"]),
    ):
        script.write_text("\n".join(lines), encoding="utf-8")
        jobs = check_jobs([str(script)], OPTIONS, ["none"])
        found = [check_job(job, from_flags({"gpu": "4090"}), advise=False) for job in jobs]
        checked = of_trainings(jobs, found)
        assert [each.config for each in checked] == [f"{script}{name}" for name in names]
        alone = check_jobs([str(config)], OPTIONS, [])
        assert len(of_trainings(alone, [check_job(job, NOTHING) for job in alone])) == 1


def test_a_script_of_ones_own_has_a_way_out() -> None:
    """Where its arguments cannot be read as those of the tool that their names say."""
    text = "torchrun mine.py --model_name_or_path gpt2 --finetuning_type lora --template x --bf16 true"
    gpu = from_flags({"gpu": "4090"})
    asked = "is mine.py a script of your own? --tool transformers reads it"
    failed = check_job(command_job(f"{text} --cutoff_len 64 --shift_attn true", OPTIONS), gpu)
    assert failed.failure.endswith(asked)


def test_ways_of_a_script_of_ones_own_are_tried() -> None:
    """Adapters are asked for, and whether the base is packed is the script's: the answer is that of both."""
    text = "torchrun mine.py --model_name_or_path {} --use_peft True --lora_rank 8 --max_length 512 --bf16"
    gpu = from_flags({"gpu": "4090"})
    checked = check_job(command_job(text.format("gpt2"), OPTIONS), gpu, advise=False)
    assert checked.exit_code == ExitCode.FITS
    assert any("say --method" in text for _, text in checked.remarks)
    assert checked.subject is not None
    assert checked.subject.scenario.recipe.method == "lora"
    text += " --gradient_checkpointing True --per_device_train_batch_size 1"
    large = check_job(command_job(text.format("Qwen/Qwen2.5-14B"), OPTIONS), gpu, advise=False)
    assert large.exit_code == ExitCode.UNCERTAIN
    assert any("--method qlora" in text for _, text in large.remarks)
    larger = check_job(command_job(text.format("Qwen/Qwen2.5-72B"), OPTIONS), gpu, advise=False)
    assert larger.exit_code == ExitCode.GPU_MEMORY_SHORT


def test_the_length_of_a_script_with_arguments_of_its_own_is_open() -> None:
    """A tool's script has the tool's default; one that takes more arguments may set another length."""
    text = "torchrun sft.py --model_name_or_path gpt2 --dataset_name a --bf16 --dtype float32"
    gpu = from_flags({"gpu": "4090"})
    of_tool, own = (
        check_job(command_job(text + more, OPTIONS), gpu) for more in ("", " --total_tokens 8192")
    )
    assert "--seq 1024" in of_tool.flags
    assert any("how long samples are" in each for _, each in own.remarks)


def test_the_dtype_that_a_script_of_ones_own_loads_in_is_tried() -> None:
    """Also where its arguments look like TRL's, whose own script loads what its config says."""
    text = "torchrun {} --model_name_or_path Qwen/Qwen2.5-7B --dataset_name a --bf16 --max_length 512"
    own, of_tool = (
        answer_to(text.format(name), {"gpu": "h100-sxm:1"}) for name in ("sft.py", "examples/scripts/sft.py")
    )
    assert any("--load-dtype checkpoint: fits" in each for _, each in own.remarks)
    assert not any("--load-dtype" in each for _, each in of_tool.remarks)


def test_what_a_script_of_ones_own_trains_is_tried() -> None:
    """TRL puts adapters on where use_peft says so; a script that is not TRL's may do it without."""
    text = (
        "torchrun mine.py --model_name_or_path gpt2 --dataset_name a --bf16 --max_length 512 --dtype float32"
    )
    gpu = from_flags({"gpu": "4090"})
    ways = {
        more: next(
            each
            for _, each in check_job(command_job(text + more, OPTIONS), gpu).remarks
            if "--method" in each
        )
        for more in ("", " --lora_r 16")
    }
    assert "tried: full, lora, qlora;" in ways[""]
    assert "tried: lora, qlora;" in ways[" --lora_r 16"]


def test_the_rank_of_a_script_of_ones_own_is_tried() -> None:
    """Where its arguments say that there are adapters and not how large; full fine-tuning has none."""
    text = "torchrun mine.py --model_name_or_path gpt2 --use_lora --max_length 512 --bf16 --max_steps 1"
    lora, full = (answer_to(text, {"gpu": "4090", "method": method}) for method in ("lora", "full"))
    assert "--lora-rank 64" in lora.flags
    assert full.exit_code == ExitCode.FITS
    assert any("--lora-rank" in each for _, each in lora.remarks)
    assert not any("--lora-rank" in each for _, each in full.remarks)


def test_a_script_of_ones_own_that_trains_otherwise_is_refused() -> None:
    """Read as the Trainer's, its beta would be an unknown key that changes nothing."""
    text = "torchrun mine.py --model_name_or_path gpt2 --num_train_epochs 1 --bf16 --beta 0.1 --max_length 64"
    checked = check_job(command_job(text, CheckOptions(tool="transformers")), from_flags({"gpu": "4090"}))
    assert checked.exit_code == ExitCode.NOT_MODELLED
    assert "beta" in checked.failure


@pytest.mark.parametrize(
    ("tool", "more"),
    [
        ("Axolotl", "--sequence_len 64 --micro_batch_size 1 --base_model gpt2 --teacher gpt2"),
        ("LLaMA-Factory", "--cutoff_len 64 --template x --finetuning_type lora --ref_model gpt2"),
        ("TRL", "--max_length 64 --dataset_name x --model_name_or_path gpt2 --reward_model gpt2"),
    ],
)
def test_whatever_its_arguments_look_like(tool: str, more: str) -> None:
    """A second model may be an unknown key to the tool, or one that it passes over in another task; there is
    no way out where the Trainer's reader would refuse it, too.
    """
    checked = check_job(
        command_job(f"torchrun mine.py --bf16 true {more}", OPTIONS), from_flags({"gpu": "4090"})
    )
    key = more.split()[-2].removeprefix("--")
    assert checked.exit_code == ExitCode.NOT_MODELLED, tool
    assert key in checked.failure
    assert "--tool transformers" not in checked.failure


def test_arguments_of_ones_own_do_not_hide_the_trainers() -> None:
    """Keys of several tools, and one that none of them has."""
    text = "torchrun mine.py --model_name_or_path gpt2 --num_train_epochs 1 --bf16 --model_max_length 64 {}"
    for own in (
        "--torch_dtype bfloat16 --use_peft True --cache_dir x",
        "--template_name qwen --lora_enable False",
    ):
        checked = answer_to(text.format(own), {"gpu": "4090"})
        assert checked.exit_code == ExitCode.FITS, checked.failure
        assert checked.tool.startswith("Transformers")


def test_options_of_a_program_that_is_not_read_have_no_such_way_out() -> None:
    """--tool transformers would be refused for the same option."""
    text = "deepspeed --module openrlhf.cli.train_sft --pretrain gpt2 --micro_train_batch_size 2 --bf16"
    failed = check_job(command_job(text, OPTIONS), from_flags({"gpu": "4090"}))
    assert "of OpenRLHF" in failed.failure
    assert not failed.failure.endswith("reads it")


def test_a_flag_says_what_a_template_leaves_open(tmp_path: Path) -> None:
    """A placeholder, or an argument that an empty variable of a script left without a value; without the flag
    it is asked for.
    """
    file = written(
        tmp_path, "model_name_or_path: ${MODEL}\nfinetuning_type: lora\nbf16: true\ncutoff_len: $LEN\n"
    )
    job = CheckJob(str(file), OPTIONS)
    assert "holds the placeholder ${MODEL}" in check_job(job, from_flags({"gpu": "4090", "seq": 64})).failure
    assert "$LEN" in check_job(job, from_flags({"gpu": "4090", "model": "gpt2"})).failure
    said = from_flags({"gpu": "4090", "model": "gpt2", "seq": 64})
    assert check_job(job, said, advise=False).exit_code == ExitCode.FITS
    script = "MODEL=''\nswift sft --model $MODEL --tuner_type lora --max_length 64"
    gpt2 = from_flags({"gpu": "4090", "model": "qwen2.5-0.5b"})
    assert check_job(command_job(script, OPTIONS), gpt2, advise=False).exit_code == ExitCode.FITS


def test_what_a_tool_freezes_of_towers_is_no_flag_of_a_model_without_one(tmp_path: Path) -> None:
    """ms-swift freezes towers by default; typed for a text model the flag would be refused."""
    path = written(
        tmp_path,
        "tuner_type: lora\ntorch_dtype: bfloat16\nmax_length: 512\nmodel: Qwen/Qwen2.5-0.5B\n",
        "job.yaml",
    )
    text = check_job(CheckJob(str(path), OPTIONS), from_flags({"gpu": "4090"}))
    path.write_text(path.read_text().replace("Qwen2.5-0.5B", "Qwen2-VL-2B-Instruct"))
    sees = check_job(CheckJob(str(path), OPTIONS), from_flags({"gpu": "4090"}))
    assert ("freeze" in text.flags, "freeze" in sees.flags) == (False, True)
