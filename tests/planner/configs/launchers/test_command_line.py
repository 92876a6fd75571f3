"""Command lines and launch scripts: their words, and the files that would say the same."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any

import pytest

from planner.api.checks import check_job, check_jobs, command_job
from planner.api.files import CheckOptions
from planner.configs.launchers.command_line import ACCELERATE_SWITCHES, Started, started
from planner.errors import ExitCode, InputFileError, NotModelledError, UsageError
from planner.intake.given.request import from_flags
from tests.extras import import_or_skip, needs
from tests.files import written

NAME = Path("command")
EXAMPLES = Path(__file__).parents[1] / "examples"


def read(text: str) -> Started:
    """The training that a text starts."""
    return started(NAME, text)


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ("python t.py --learning_rate 1e-5 --bf16", {"learning_rate": "1e-5", "bf16": True}),
        ("python t.py --max-steps=5 --no_packing", {"max_steps": 5, "packing": False}),
        ("python t.py --max_steps 5 --no_cuda", {"max_steps": 5, "no_cuda": True}),
        (
            "python t.py --max_steps -1 --lora_target_modules q v",
            {"max_steps": -1, "lora_target_modules": ["q", "v"]},
        ),
        (
            "python t.py --max_steps 5 --gradient_checkpointing_kwargs '{\"use_reentrant\": false}'",
            {"max_steps": 5, "gradient_checkpointing_kwargs": {"use_reentrant": False}},
        ),
        ("python t.py --max_steps 5 --max_steps 6 --run_name {x", {"max_steps": 6, "run_name": "{x"}),
        (
            "python -u -m mine.train --max_steps 5 --fsdp 'full_shard auto_wrap'",
            {"max_steps": 5, "fsdp": "full_shard auto_wrap"},
        ),
    ],
)
def test_arguments_become_keys(text: str, arguments: dict[str, Any]) -> None:
    """Switches are true, those with ``no_`` false, several values a list; the last of one name counts."""
    assert read(text).arguments == arguments


@pytest.mark.parametrize(
    ("text", "launch"),
    [
        ("python t.py --max_steps 5", {"distributed_type": "NO", "num_processes": 1}),
        ("torchrun --nproc_per_node 4 t.py --a 1", {"distributed_type": "MULTI_GPU", "num_processes": 4}),
        (
            "python3 -m torch.distributed.launch --nproc_per_node=4 --use_env t.py --a 1",
            {"distributed_type": "MULTI_GPU", "num_processes": 4},
        ),
        (
            "torchrun --standalone --nproc-per-node=4 --nnodes=2 t.py",
            {"distributed_type": "MULTI_GPU", "num_machines": 2, "num_processes": 8},
        ),
        ("python -m torch.distributed.run --nproc_per_node gpu t.py", {"distributed_type": "MULTI_GPU"}),
        ("torchrun t.py", {"distributed_type": "MULTI_GPU", "num_processes": 1}),
        ("torchrun --nproc_per_node $N t.py", {"distributed_type": "MULTI_GPU", "num_processes": "$N"}),
        ("deepspeed t.py --deepspeed ds.json", {"distributed_type": "MULTI_GPU"}),
        ("deepspeed --num_gpus=2 t.py", {"distributed_type": "MULTI_GPU", "num_processes": 2}),
        ("deepspeed --include localhost:0,1,2 t.py", {"distributed_type": "MULTI_GPU", "num_processes": 3}),
        ("accelerate launch t.py", {"distributed_type": "MULTI_GPU"}),
        ("accelerate launch --num_processes 1 -m mine.t", {"num_processes": 1, "distributed_type": "NO"}),
        (
            "accelerate launch --use_deepspeed --zero_stage 3 --mixed_precision bf16 t.py",
            {
                "deepspeed_config": {"zero_stage": 3},
                "mixed_precision": "bf16",
                "distributed_type": "DEEPSPEED",
            },
        ),
        (
            "accelerate launch --use_fsdp --fsdp_version 2 --num_processes=8 t.py",
            {"fsdp_config": {"fsdp_version": 2}, "num_processes": 8, "distributed_type": "FSDP"},
        ),
    ],
)
def test_a_launcher_says_what_a_launch_file_would(text: str, launch: dict[str, Any]) -> None:
    """Processes, machines, engine and precision."""
    assert read(text).launch == launch


def test_options_of_accelerate_win_over_the_file_that_they_name() -> None:
    """Table by table."""
    file = EXAMPLES / "accelerate_zero2.yaml"
    launch = read(f"accelerate launch --config_file {file} --num_processes 4 --zero_stage 3 t.py").launch
    assert (launch["distributed_type"], launch["num_processes"]) == ("DEEPSPEED", 4)
    assert launch["deepspeed_config"]["zero_stage"] == 3
    assert launch["num_machines"] == 2


@pytest.mark.parametrize(
    "text", ["accelerate launch t.py {file} --max_steps 3", "trl sft --config {file} --max_steps 3"]
)
def test_arguments_win_over_a_file_of_arguments(text: str) -> None:
    """Of HfArgumentParser by its place, of TRL by its option."""
    found = read(text.format(file=EXAMPLES / "trl_lora.yaml"))
    assert found.arguments["lora_r"] == 16
    assert found.arguments["max_steps"] == 3


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("echo a", "no command that starts a training"),
        ("python prepare.py --split train", "no command that starts a training"),
        ("torchrun a.py; torchrun b.py", "2 commands that start a training: give one with --command"),
        ('C=(swift sft)\nif a; then C+=(--b c); fi\n"${C[@]}"', r"words of '\$\{C\[@\]\}' depend on more"),
        ("tune run generate --config b.yaml", "no command that starts a training"),
        ("accelerate launch --num_processes 8", "no script stands behind"),
        ("torchrun t.py $ARGS --max_steps 5", r"'\$ARGS' may hold several arguments"),
        ("torchrun t.py lr=3 --max_steps 5", "'lr=3' is no argument"),
        ("accelerate launch --config_file $HOME/a.yaml t.py", "has a variable in its name"),
        ("deepspeed $ARGS t.py --max_steps 5", r"'\$ARGS' may hold options of the launcher"),
    ],
)
def test_what_cannot_be_read_is_said(text: str, sentence: str) -> None:
    """With the way out."""
    with pytest.raises(UsageError, match=sentence):
        read(text)


@pytest.mark.parametrize(
    ("text", "program"),
    [
        ("xtuner train qwen.py", "XTuner"),
        ("oumi train -c train.yaml", "Oumi"),
    ],
)
def test_programs_whose_arguments_are_not_read_are_named(text: str, program: str) -> None:
    """A command of theirs that trains nothing is none."""
    with pytest.raises(NotModelledError, match=f"command lines of {program} are not read"):
        read(text)
    with pytest.raises(UsageError, match="no command that starts a training"):
        read(text.replace(" sft ", " export ").replace(" train ", " infer "))


@pytest.mark.parametrize(
    "script",
    [
        *("trl/scripts/rloo.py", "ppo.py", "online_dpo.py", "prm.py", "run_clm_no_trainer.py"),
        *("minillm.py", "bco.py", "dpo_online.py", "online_dpo_vlm.py", "async_grpo.py", "gold_vlm.py"),
    ],
)
def test_the_name_of_a_script_says_what_its_arguments_may_not(script: str) -> None:
    """Other trainings take the same arguments."""
    with pytest.raises(NotModelledError, match=script):
        read(f"accelerate launch {script} --model_name_or_path gpt2 --max_steps 5")
    with pytest.raises(NotModelledError, match="other than GRPO"):
        read("trl rloo --model_name_or_path gpt2")


@pytest.mark.parametrize(
    ("start", "task"),
    [
        ("trl grpo", "grpo"),
        ("accelerate launch trl/scripts/grpo.py", "grpo"),
        ("python dpo.py", "dpo"),
        ("accelerate launch reward_modeling.py", "reward"),
        ("accelerate launch examples/scripts/gspo_vlm.py", "grpo"),
        ("python mpo_vlm.py", "dpo"),
        ("python sft.py", "sft"),
    ],
)
def test_the_name_of_a_script_says_the_task(start: str, task: str) -> None:
    """Its arguments alone would be those of supervised fine-tuning."""
    text = f"{start} {OF_EIGHT}"
    checked = check_job(command_job(text, CheckOptions()), GIVEN)
    assert checked.subject is not None, checked.failure
    assert checked.subject.scenario.recipe.task == task


@pytest.mark.parametrize(
    ("said", "switches"),
    [("", None), ("--beta 0", ("distillation=forward",)), ("--beta 1.0", ("distillation=reverse",))],
)
def test_a_student_of_trl_is_read_with_its_teacher(said: str, switches: tuple[str, ...] | None) -> None:
    """Where the data have the completions (trl 1.16.0 examples/scripts/gkd.py)."""
    teacher = "--teacher_model_name_or_path Qwen/Qwen2.5-1.5B --temperature 1.0"
    start = f"python gkd.py {OF_EIGHT} --model_name_or_path Qwen/Qwen2.5-0.5B"
    checked = check_job(command_job(f"{start} {teacher} --lmbda 0 {said}", CheckOptions()), GIVEN)
    assert checked.subject is not None, checked.failure
    recipe = checked.subject.scenario.recipe
    assert recipe.teacher is not None
    assert recipe.teacher.model.id == "qwen2.5-1.5b"
    wanted = switches[0].rpartition("=")[2] if switches else "mixture"
    assert checked.subject.scenario.stack.distillation == wanted


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("--lmbda 0", "teacher_model_name_or_path is not given"),
        ("--teacher_model_name_or_path Qwen/Qwen2.5-1.5B", "say lmbda 0"),
        ("--teacher_model_name_or_path Qwen/Qwen2.5-1.5B --lmbda 0.5", "say lmbda 0"),
        ("--teacher_model_name_or_path Qwen/Qwen2.5-1.5B --lmbda 0 --seq_kd", "seq_kd"),
    ],
)
def test_what_a_student_writes_is_refused(said: str, why: str) -> None:
    """By the key that says so."""
    text = f"python gkd.py {OF_EIGHT} --model_name_or_path Qwen/Qwen2.5-0.5B {said}"
    checked = check_job(command_job(text, CheckOptions()), GIVEN)
    assert why in str(checked.failure)


def test_a_task_that_the_arguments_do_not_bear_out_is_refused() -> None:
    """A script of one's own may be TRL's or not."""
    text = f"python train_grpo.py {OF_EIGHT}"
    checked = check_job(command_job(text, CheckOptions()), GIVEN)
    assert checked.exit_code == ExitCode.NOT_MODELLED
    assert "--tool trl" in checked.failure
    checked = check_job(command_job(text, CheckOptions(tool="trl")), GIVEN)
    assert checked.subject is not None
    assert checked.subject.scenario.recipe.task == "grpo"


GIVEN = from_flags({"gpu": "a100-80-sxm", "method": "full", "seq": 256})
OF_EIGHT = "--model_name_or_path gpt2 --per_device_train_batch_size 8 --bf16 True --max_completion_length 64"
JOB = "torchrun --nproc_per_node 2 t.py --model_name_or_path gpt2 --bf16 True --per_device_train_batch_size"


def test_a_command_is_answered_as_its_files_would_be(tmp_path: Path) -> None:
    """With the command as what starts the job, and the flags that ask for all of it."""
    checked = check_job(command_job(f"{JOB} 4 --output_dir $OUT", CheckOptions()), GIVEN)
    assert checked.subject is not None
    recipe, hardware = checked.subject.scenario.recipe, checked.subject.scenario.hardware
    assert (int(recipe.batch.micro_batch), hardware.gpus_per_node, recipe.sharding.name) == (4, 2, "ddp")
    assert checked.launch == f"{JOB} 4 --output_dir $OUT"
    assert checked.command.startswith("plan check --command 'torchrun")
    assert "is taken to hand its arguments" in checked.remarks[0][1]
    script = written(tmp_path, f"#!/bin/bash\nset -e\n{JOB} 4\n", "run.sh")
    (job,) = check_jobs([str(script)], CheckOptions(), ())
    again = check_job(job, GIVEN)
    assert again.subject is not None
    assert again.subject.prediction.memory == checked.subject.prediction.memory
    assert again.launch == f"bash {script}"


def test_the_script_that_runs_is_a_sign_of_age() -> None:
    """LLaMA-Factory had src/train_bash.py up to 0.7, when a length that is not said was 1,024."""
    arguments = "--finetuning_type lora --template qwen --model_name_or_path gpt2 --max_steps 1 --bf16"
    command = f"python src/train_bash.py {arguments}"
    checked = check_job(command_job(command, CheckOptions()), from_flags({"gpu": "a100-80-sxm"}))
    assert checked.subject is not None
    scenario = checked.subject.scenario
    assert (scenario.stack.id, scenario.recipe.batch.seq_len) == ("llama-factory@0.8", 1024)
    assert any("train_bash.py" in place for place, _ in checked.remarks)


def test_a_launch_file_may_lie_beside_its_script(tmp_path: Path) -> None:
    """It is looked for here, then beside the script; else the answer says where to ask, and another one may
    be given in its place.
    """
    (tmp_path / "fsdp.yaml").write_text("distributed_type: FSDP\nnum_processes: 4\n", encoding="utf-8")
    line = "accelerate launch --config_file {} train.py --max_steps 1"
    assert started(tmp_path / "run.sh", line.format("fsdp.yaml")).launch["num_processes"] == 4
    command = "accelerate launch --config_file {} train.py --model_name_or_path gpt2 --max_length 64 --bf16"
    given = from_flags({"gpu": "a100-80-sxm:4", "method": "full"})
    for name, shown in (("other.yaml", r"other\.yaml; check the job from"), ("9" * 400, "999")):
        missing = check_job(command_job(command.format(name), CheckOptions()), given)
        assert re.search(f"no such file: {shown}.*say --accelerate FILE", missing.failure)
        options = CheckOptions(accelerate=str(tmp_path / "fsdp.yaml"))
        found = check_job(command_job(command.format(name), options), given)
        assert found.subject is not None, found.failure
        assert found.subject.scenario.recipe.sharding.engine == "fsdp"


def test_a_default_that_a_script_gives_is_told() -> None:
    """Nothing outside is seen; two dashes end the options of a launcher."""
    text = "B=${B:-2}\naccelerate launch --num_processes 4 -- t.py --per_device_train_batch_size $B"
    job = read(text)
    assert (job.script, job.arguments) == ("t.py", {"per_device_train_batch_size": 2})
    assert job.launch["num_processes"] == 4
    checked = check_job(command_job(text, CheckOptions()), from_flags({"model": "7b", "gpu": "4090"}))
    assert "the defaults that the script gives them" in checked.remarks[0][1]


def test_a_variable_is_refused_where_its_value_matters() -> None:
    """And not where it is the place of the output."""
    checked = check_job(command_job(f"{JOB} $BATCH", CheckOptions()), GIVEN)
    assert checked.exit_code == ExitCode.USAGE
    assert "'per_device_train_batch_size' holds the placeholder $BATCH" in checked.failure
    nodes = JOB.replace("--nproc_per_node 2", "--nproc_per_node $N")
    assert "placeholder $N" in check_job(command_job(f"{nodes} 4", CheckOptions()), GIVEN).failure


def test_an_unknown_argument_that_may_change_memory_is_refused() -> None:
    """By the one rule about unknown keys."""
    checked = check_job(command_job(f"{JOB} 4 --quantize_weights 4", CheckOptions()), GIVEN)
    assert checked.exit_code == ExitCode.NOT_MODELLED
    assert "unknown key" in checked.failure


@needs("accelerate")
def test_every_switch_of_accelerate_launch_is_known() -> None:
    """An option that takes no value must not swallow the script."""
    launch = import_or_skip("accelerate.commands.launch")
    actions = launch.launch_command_parser()._actions
    switches = {
        name.lstrip("-").replace("-", "_")
        for action in actions
        if isinstance(action, argparse._StoreTrueAction | argparse._HelpAction)
        for name in action.option_strings
    }
    assert switches <= ACCELERATE_SWITCHES
    takes = {
        name.lstrip("-").replace("-", "_")
        for action in actions
        if isinstance(action, argparse._StoreAction)
        for name in action.option_strings
    }
    assert not takes & ACCELERATE_SWITCHES


@pytest.mark.parametrize(
    ("text", "tool", "arguments"),
    [
        (
            "llamafactory-cli train --stage sft --lora_rank 8 --bf16 True",
            "llama-factory",
            {"stage": "sft", "lora_rank": 8, "bf16": "True"},
        ),
        ("lmf train {lf} lora_rank=64 bf16=false", "llama-factory", {"lora_rank": 64, "bf16": False}),
        (
            "axolotl train {ax} --micro-batch-size 4 --no-sample-packing --launcher torchrun",
            "axolotl",
            {"micro_batch_size": 4, "sample_packing": False, "adapter": "qlora"},
        ),
        ("python run_clm.py --max_steps 5 --block_size 512", "transformers", {"block_size": 512}),
        ("python -m axolotl.cli.train {ax} --lora_r 8", None, {"adapter": "qlora", "lora_r": 8}),
    ],
)
def test_programs_take_a_file_and_arguments(text: str, tool: str | None, arguments: dict[str, Any]) -> None:
    """Arguments win over the file; those of the launcher are no keys."""
    job = read(text.format(lf=EXAMPLES / "llama_factory_qlora.yaml", ax=EXAMPLES / "axolotl_qlora.yml"))
    assert job.tool == tool
    assert {name: job.arguments.get(name) for name in arguments} == arguments
    assert "launcher" not in job.arguments


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("llamafactory-cli train {lf} --lora_rank 8", "behind a file they are KEY=VALUE"),
        ("axolotl train {ax} -- --num_processes 2", "check the file, with --accelerate FILE"),
        ("axolotl train {ax} --trl.beta 0.1", "write the key into the file"),
    ],
)
def test_arguments_that_are_not_read_are_named(text: str, sentence: str) -> None:
    """Each with a way out."""
    with pytest.raises(UsageError, match=sentence):
        read(text.format(lf=EXAMPLES / "llama_factory_qlora.yaml", ax=EXAMPLES / "axolotl_qlora.yml"))


def test_processes_of_llama_factory_are_variables() -> None:
    """Without them each GPU gets one."""
    assert read("NPROC_PER_NODE=4 llamafactory-cli train --stage sft").launch["num_processes"] == 4
    assert read("llamafactory-cli train --stage sft").launch == {}


LF, V1, AX = (
    EXAMPLES / name
    for name in ("llama_factory_qlora.yaml", "llama_factory_v1_lora.yaml", "axolotl_qlora.yml")
)
ONE = {"distributed_type": "NO", "num_processes": 1}


def several(number: int, nodes: int = 1) -> dict[str, Any]:
    """A launch of so many processes."""
    return {
        "distributed_type": "MULTI_GPU",
        "num_processes": number,
        **({"num_machines": nodes} if nodes > 1 else {}),
    }


@pytest.mark.parametrize(
    ("text", "launch"),
    [
        ("CUDA_VISIBLE_DEVICES=0,1 lmf train {lf}", several(2)),
        ("CUDA_VISIBLE_DEVICES=0,1,-1,3 lmf train {lf}", several(2)),
        ("CUDA_VISIBLE_DEVICES=0,1 NNODES=2 lmf train {lf}", several(4, 2)),
        ("CUDA_VISIBLE_DEVICES=0,1,2,3 NPROC_PER_NODE=2 lmf train {lf}", several(2)),
        ("CUDA_VISIBLE_DEVICES=3 NPROC_PER_NODE=4 lmf train {lf}", {**ONE, "CUDA_VISIBLE_DEVICES": "0"}),
        ("CUDA_VISIBLE_DEVICES=3 FORCE_TORCHRUN=1 NNODES=2 lmf train {lf}", several(2, 2)),
        ("USE_V1=1 NPROC_PER_NODE=4 lmf sft {v1}", several(4)),
        ("axolotl train {ax} --num-processes 8", several(8)),
        ("axolotl train {ax} --num-processes=1", ONE),
        ("axolotl train {ax} --launcher python", ONE),
        (
            "CUDA_VISIBLE_DEVICES=0,1 axolotl train {ax} --launcher torchrun",
            {**ONE, "CUDA_VISIBLE_DEVICES": "0,1"},
        ),
        ("CUDA_VISIBLE_DEVICES=0,1 axolotl train {ax}", several(2)),
        (
            "CUDA_VISIBLE_DEVICES=0,1 axolotl train {ax} --num-processes 1",
            {**ONE, "CUDA_VISIBLE_DEVICES": "0,1"},
        ),
        ("axolotl train {ax}", {}),
    ],
)
def test_processes_are_those_that_the_program_starts(text: str, launch: dict[str, Any]) -> None:
    """Given, or one for each GPU that the command sees."""
    job = read(text.format(lf=LF, v1=V1, ax=AX))
    assert job.launch == launch
    assert "num_processes" not in job.arguments


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("CUDA_VISIBLE_DEVICES= lmf train {lf}", "leaves no GPU"),
        ("CUDA_VISIBLE_DEVICES=-1 axolotl train {ax}", "leaves no GPU"),
        ("axolotl train {ax} --launcher python --num-processes 2", "--num-processes is for accelerate"),
        ("lmf sft {v1}", "no command that starts a training"),
        ("python train.py --bs 2", r"known; .*plan --model .*measure trace --gpu"),
        ("USE_V1=1 lmf sft {v1} pref_loss=simpo", "single answers"),
        ("swift sft --max_length 1024 $OPTS", "may hold several arguments"),
        ("swift sft --max_length 1024 ${{OPTS}}", "may hold several arguments"),
        ('swift sft --max_length 1024 "${{ARGS[@]}}"', "may hold several arguments"),
        ("lmf train {lf} lora_target=[q_proj", "not valid YAML"),
    ],
)
def test_a_command_whose_meaning_is_open_is_refused(text: str, sentence: str) -> None:
    """No GPU, options of another launcher, words that may be anything."""
    with pytest.raises((UsageError, InputFileError), match=sentence):
        read(text.format(lf=LF, v1=V1, ax=AX))


def test_a_variable_alone_behind_an_option_is_its_value() -> None:
    """Only where its value matters it is asked for."""
    arguments = read("swift sft --output_dir $OUT --lora_rank 8").arguments
    assert (arguments["output_dir"], arguments["lora_rank"]) == ("$OUT", 8)


def test_commands_of_llama_factory_v1_say_the_task() -> None:
    """No key says whether single answers or pairs are trained on; reward models are not modelled."""
    job = read(f"USE_V1=1 llamafactory-cli dpo {V1}")
    assert (job.tool, job.arguments["pref_loss"]) == ("llama-factory-v1", "sigmoid")
    assert read(f"USE_V1=1 lmf dpo {V1} pref_loss=simpo").arguments["pref_loss"] == "simpo"
    assert "pref_loss" not in read(f"USE_V1=1 lmf sft {V1}").arguments
    assert read(f"USE_MCA=1 USE_V1=1 lmf sft {V1}").tool == "llama-factory-v1"
    with pytest.raises(NotModelledError, match="reward models"):
        read(f"USE_V1=1 lmf rm {V1}")


def test_processes_of_llama_factory_v1_are_gpus_of_the_job() -> None:
    """Its engine is that of the config."""
    job = command_job(f"USE_V1=1 NPROC_PER_NODE=4 lmf sft {V1}", CheckOptions())
    checked = check_job(job, from_flags({"gpu": "a100-80-sxm"}))
    assert checked.subject is not None
    assert checked.subject.scenario.hardware.gpus_per_node == 4


def test_arguments_behind_a_file_of_llama_factory_are_yaml() -> None:
    """OmegaConf reads lists, numbers and null in them."""
    job = read(f"lmf train {LF} deepspeed=null lora_target=[q_proj,v_proj] lora_rank=4 output_dir=a")
    names = ("deepspeed", "lora_target", "lora_rank", "output_dir")
    assert [job.arguments[name] for name in names] == [None, ["q_proj", "v_proj"], 4, "a"]


@pytest.mark.parametrize("name", ["NPROC_PER_NODE", "NNODES", "CUDA_VISIBLE_DEVICES", "USE_V1"])
@pytest.mark.parametrize("program", ["lmf train --stage sft", "swift sft --model a"])
def test_an_uncertain_launch_is_refused(name: str, program: str) -> None:
    """One that a condition sets, unless the command has its own."""
    text = f"if [ $A ]; then export {name}=1; fi\n"
    with pytest.raises(UsageError, match=f"{name} is set under a condition"):
        read(f"{text}{program}")
    assert read(f"{text}{name}=1 {program}").words[0] in ("lmf", "swift")


@pytest.mark.parametrize(
    ("program", "text"),
    [
        ("lmf train", "model_name_or_path: a\nrun_name: 2024-01-01\n"),
        ("swift sft", "model: a\nmax_length: 512\nENV: [a]\n"),
        ("swift sft", "model: a\nENV: {NPROC_PER_NODE: many}\n"),
    ],
)
def test_what_a_file_of_arguments_holds_ends_no_program(tmp_path: Path, program: str, text: str) -> None:
    """Dates are no JSON, and variables may be no table."""
    file = written(tmp_path, text)
    checked = check_job(command_job(f"{program} {file}", CheckOptions()), from_flags({"gpu": "4090"}))
    assert checked.exit_code in (ExitCode.USAGE, ExitCode.NOT_MODELLED)


@pytest.mark.parametrize(
    "word", ["train.micro_batch_size=1", "model.tensor_model_parallel_size=2", "++train.train_iters=10"]
)
def test_what_changes_a_recipe_of_megatron_bridge_is_refused(word: str) -> None:
    """The recipe is a function of Python, whatever the script is called."""
    with pytest.raises(NotModelledError, match="recipes of Megatron-Bridge are Python"):
        read(f"torchrun --nproc-per-node 8 run_recipe.py --recipe llama32_1b_sft_config {word}")


@pytest.mark.parametrize("name", ["USE_MEGATRON_BRIDGE", "USE_KT"])
def test_variables_by_which_llama_factory_trains_in_another_way(name: str) -> None:
    """The same file would mean another job (llamafactory 0.9.5 hparams/parser.py, launcher.py)."""
    line = f"{name}=1 llamafactory-cli train --stage sft --bf16 True"
    if name == "USE_KT":
        with pytest.raises(NotModelledError, match=f"{name}=1: .*not modelled"):
            read(line)
    else:
        assert read(line).tool == "llama-factory-bridge"
    assert read(f"{name}=0 llamafactory-cli train --stage sft --bf16 True").tool == "llama-factory"
    with pytest.raises(UsageError, match=f"{name} is set under a condition"):
        read(f"if [ $A ]; then export {name}=1; fi\nllamafactory-cli train --stage sft --bf16 True")
