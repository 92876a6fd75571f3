"""Commands that a script starts for somebody, behind ``--``."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.configs.launchers.command_line import how_many, started
from planner.errors import NotModelledError

SCRIPT = Path("run.sh")
LAUNCH = "accelerate launch --num_processes 8 open_instruct/finetune.py --max_seq_length 512"


@pytest.mark.parametrize(
    ("text", "processes"),
    [
        (f"python mason.py --gpus 8 -- {LAUNCH}", {"num_processes": 8}),
        (f"python mason.py --num_nodes 4 -- {LAUNCH}", {"num_processes": 32, "num_machines": 4}),
        (
            f"uv run python mason.py --num_nodes 4 -- source profile.sh \\&\\& {LAUNCH}",
            {"num_processes": 32, "num_machines": 4},
        ),
        (f"python mason.py --num_nodes 1 -- {LAUNCH}", {"num_processes": 8}),
        (f"python submit.py --num_nodes 4 -- {LAUNCH}", {"num_processes": 8}),
    ],
)
def test_a_command_is_read_behind_its_break(text: str, processes: dict[str, int]) -> None:
    """mason.py has processes of one machine, and starts so many on each."""
    job = started(SCRIPT, text)
    assert (job.script, job.tool) == ("open_instruct/finetune.py", "open-instruct")
    assert {name: int(job.launch[name]) for name in processes} == processes
    assert ("num_machines" in job.launch) == ("num_machines" in processes)


@pytest.mark.parametrize("start", ["bash -c", "srun --jobid $SLURM_JOB_ID bash -lc", "sh -c"])
def test_a_command_is_read_that_another_shell_is_handed(start: str) -> None:
    """As one word, in which variables may wait for that shell."""
    job = started(SCRIPT, f'{start} "cd x; {LAUNCH} --output_dir \\$HOME"')
    assert (job.script, job.arguments["output_dir"]) == ("open_instruct/finetune.py", "$HOME")
    assert not how_many(SCRIPT, f"ssh node bash -c '{LAUNCH}'")


def test_each_of_several_commands_is_one() -> None:
    """mason.py starts them one behind the other."""
    assert how_many(SCRIPT, f"python mason.py --gpus 8 -- {LAUNCH} -- echo done -- {LAUNCH}") == 2


@pytest.mark.parametrize("script", ["reward_modeling", "dpo", "olmo_core_finetune", "grpo_fast"])
def test_other_trainers_of_open_instruct_are_refused(script: str) -> None:
    """Their arguments look like those of the trainers that are read."""
    text = LAUNCH.replace("finetune.py", f"{script}.py") + " --learning_rate 1"
    with pytest.raises(NotModelledError, match="this trainer of open-instruct is not modelled"):
        started(SCRIPT, text)


def test_a_launcher_may_stand_in_a_variable_whose_parts_wait_for_that_shell() -> None:
    """The rank of a process is put in there; a container starts the launcher."""
    launch = (
        'LAUNCHER="accelerate launch --rdzv_conf "a=b,c=$D" --machine_rank \\$SLURM_PROCID \\\n'
        " --num_processes 16 --num_machines 2 \\\n"
        '"'
    )
    script = "open_instruct/finetune.py --max_seq_length 512"
    for wrapper in ("", "singularity_wrapper exec "):
        text = f'export {launch}\nexport CMD="{wrapper}$LAUNCHER {script}"\nsrun --x $Y bash -c "$CMD"'
        job = started(SCRIPT, text)
        assert job.script == "open_instruct/finetune.py"
        assert (job.launch["num_processes"], job.launch["num_machines"]) == (16, 2)
