"""The line that starts a job, by the tool that its file is for.

Sources: llamafactory 0.9.5 launcher.py and hparams/parser.py read_args; axolotl 0.19.0 cli/main.py train and
cli/utils/train.py; trl 1.16.0 cli/commands/training.py and cli/accelerate_config.py; accelerate 1.15.0
commands/launch.py; deepspeed 0.19.8 launcher/runner.py; torch 2.13.0 distributed/run.py;
allenai/open-instruct e6c3044aa scripts/; huggingface/alignment-handbook ae3f44f scripts/.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from planner.configs.tools.open_instruct import LAUNCHED_WITH

SCRIPT = "YOUR_SCRIPT.py"
"""Stands for the user's own script where the tool is a library."""
_OTHER_NODES = "sbatch YOUR_JOB.sh"
# trl 1.16.0 cli/commands; other trainers are in trl.experimental.
_TRL_COMMANDS = ("sft", "dpo", "grpo", "kto", "reward")


_HANDBOOK_SCRIPTS = ("sft", "dpo", "orpo")


@dataclass(frozen=True, slots=True)
class Launch:
    """What decides how a job is started; ``task`` as ``--task`` names it; ``asks_reference``:
    each step asks the model as it was.

    ``accelerate`` and ``deepspeed``: files that the line has to name, because the config does not.
    ``engine``: whether DeepSpeed or FSDP runs it; ``gpus``: of one node.  ``mixes``: the config has a
    ``dataset_mixer``, which TRL's commands do not know and the scripts of alignment-handbook do.
    ``spread``: one process spreads the layers over its GPUs.
    """

    config: str
    accelerate: str = ""
    deepspeed: str = ""
    gpus: int = 1
    nodes: int = 1
    engine: bool = False
    task: str = "sft"
    asks_reference: bool = False
    mixes: bool = False
    spread: bool = False

    @property
    def file(self) -> str:
        """The config, as a shell takes it."""
        return shlex.quote(self.config)

    @property
    def accelerate_launch(self) -> str:
        """``accelerate launch`` with its file."""
        return f"accelerate launch --config_file {shlex.quote(self.accelerate)}"


def launch_line(tool: str, launch: Launch) -> str:
    """The command that starts the job, empty for a tool of which no such line is known."""
    if tool not in _LINES:
        return ""
    return _OTHER_NODES if launch.nodes > 1 else _LINES[tool](launch)


def _llama_factory(launch: Launch) -> str:
    # read_args hands json.load a path, which it cannot read: no JSON file starts.
    if launch.config.endswith(".json"):
        return ""
    # Arguments after the file are key=value (hparams/parser.py read_args).
    beside = f" deepspeed={shlex.quote(launch.deepspeed)}" if launch.deepspeed else ""
    if launch.accelerate:
        # The module trains when it is run itself, wherever the package lies (launcher.py, last lines).
        return f"{launch.accelerate_launch} -m llamafactory.launcher {launch.file}{beside}"
    # It starts torchrun by itself where it sees several GPUs;
    # DeepSpeed on one GPU is refused without (parser.py:353-354).
    alone = "FORCE_TORCHRUN=1 " if launch.engine and launch.gpus == 1 else ""
    return f"{alone}llamafactory-cli train {launch.file}{beside}"


def _by_variable(name: str, launch: Launch) -> str:
    """The variable makes it start torchrun, with a process for each GPU that it sees."""
    line = _llama_factory(launch)
    return f"{name}=1 {line}" if line else ""


_V1_PAIRS = ("dpo", "orpo", "simpo")


def _llama_factory_v1(launch: Launch) -> str:
    """v1/launcher.py; the engine is that of ``dist_config``,
    so neither a launch file nor a DeepSpeed file is handed over.
    """
    if launch.accelerate or launch.deepspeed:
        return ""
    # Without torchrun one process has no mesh that FSDP2 could divide it over.
    alone = "FORCE_TORCHRUN=1 " if launch.engine and launch.gpus == 1 else ""
    command = "dpo" if launch.task in _V1_PAIRS else "sft"
    return f"USE_V1=1 {alone}llamafactory-cli {command} {launch.file}"


def _axolotl(launch: Launch) -> str:
    # `axolotl train` is `accelerate launch -m axolotl.cli.train`, one process for each GPU;
    # options become keys of the config.
    start = f"{launch.accelerate_launch} -m axolotl.cli.train" if launch.accelerate else "axolotl train"
    # As in TRL, FSDP on one GPU needs a rank.
    alone = " --launcher torchrun" if launch.engine and launch.gpus == 1 and not launch.accelerate else ""
    return f"{start} {launch.file}{alone}{_deepspeed_flag(launch)}"


def _handbook(launch: Launch) -> str:
    """Scripts of alignment-handbook (ae3f44f of 2024-11, scripts/README.md)."""
    if launch.task not in _HANDBOOK_SCRIPTS:
        return ""
    start = f"accelerate launch --num_processes {launch.gpus}"
    if launch.accelerate:
        start = launch.accelerate_launch
    elif launch.deepspeed:
        start += f" --use_deepspeed --deepspeed_config_file {shlex.quote(launch.deepspeed)}"
    return f"{start} scripts/run_{launch.task}.py {launch.file}"


def _trl(launch: Launch) -> str:
    if launch.mixes:
        return _handbook(launch)
    end = f"--config {launch.file}"
    if launch.task not in _TRL_COMMANDS:
        return ""
    if launch.accelerate:
        return (
            f"trl {launch.task} {end} --accelerate_config "
            f"{shlex.quote(launch.accelerate)}{_deepspeed_flag(launch)}"
        )
    # It runs `accelerate launch`, which sets no rank for one GPU (accelerate utils/launch.py
    # prepare_simple_launcher_cmd_env); DeepSpeed and FSDP need one (accelerate state.py:202).
    alone = launch.engine and launch.gpus == 1
    start = f"torchrun --nproc_per_node 1 -m trl.scripts.{launch.task}" if alone else f"trl {launch.task}"
    return f"{start} {end}{_deepspeed_flag(launch)}"


def _transformers(launch: Launch) -> str:
    end = f"{SCRIPT} {launch.file}"
    if launch.deepspeed:
        # Scripts take a file of arguments only where nothing follows it (transformers
        # examples/pytorch/language-modeling), so the launcher says it; the trainer fills in what is auto
        # (transformers 5.23.0 trainer.py:886-887).
        named = (
            f" --config_file {shlex.quote(launch.accelerate)}"
            if launch.accelerate
            else f" --num_processes {launch.gpus}"
        )
        return (
            f"accelerate launch{named} --use_deepspeed --deepspeed_config_file "
            f"{shlex.quote(launch.deepspeed)} {end}"
        )
    if launch.accelerate:
        return f"{launch.accelerate_launch} {end}"
    return (
        f"torchrun --nproc_per_node {launch.gpus} {end}"
        if launch.gpus > 1 or launch.engine
        else f"python {end}"
    )


def _program(launch: Launch) -> str:
    """A program of one's own; the arguments of its trainer name a DeepSpeed file, or nothing does."""
    if launch.config.endswith(".ipynb") or launch.deepspeed:
        return ""
    if launch.accelerate:
        return f"{launch.accelerate_launch} {launch.file}"
    several = launch.engine or (launch.gpus > 1 and not launch.spread)
    return f"torchrun --nproc_per_node {launch.gpus} {launch.file}" if several else f"python {launch.file}"


def _deepspeed_flag(launch: Launch) -> str:
    return f" --deepspeed {shlex.quote(launch.deepspeed)}" if launch.deepspeed else ""


def _deepspeed(launch: Launch) -> str:
    # --deepspeed FILE is the argument of TrainingArguments;
    # a script with a loop of its own may call it otherwise.
    return f"deepspeed --num_gpus {launch.gpus} {SCRIPT} --deepspeed {launch.file}"


def _accelerate(launch: Launch) -> str:
    return f"accelerate launch --config_file {launch.file} {SCRIPT}"


def _open_instruct(launch: Launch) -> str:
    """Its scripts/*_with_accelerate_config.sh; how a job without an engine is launched is not known here."""
    script = "finetune" if launch.task == "sft" else "dpo_tune" if launch.asks_reference else "dpo_tune_cache"
    end = f"open_instruct/{script}.py {launch.file}"
    if launch.accelerate:
        return f"{launch.accelerate_launch} {end}"
    if not launch.engine:
        return ""
    deepspeed = shlex.quote(launch.deepspeed or str(LAUNCHED_WITH))
    start = f"accelerate launch --mixed_precision bf16 --num_processes {launch.gpus}"
    return f"{start} --use_deepspeed --deepspeed_config_file {deepspeed} {end}"


def _ms_swift(launch: Launch) -> str:
    """ms-swift 4.6.0 swift/cli/main.py: torchrun with so many processes; without the variable one process."""
    # Another launcher starts swift/cli/sft.py, and only main.py reads a file.
    if launch.accelerate:
        return ""
    # As in TRL, an engine on one GPU needs a rank.
    processes = f"NPROC_PER_NODE={launch.gpus} " if launch.gpus > 1 or launch.engine else ""
    return f"{processes}swift sft {launch.file}{_deepspeed_flag(launch)}"


def _own(launch: Launch) -> str:
    """Our own file is read by nothing else."""
    return f"torchrun --nproc_per_node {launch.gpus} {SCRIPT}" if launch.gpus > 1 else f"python {SCRIPT}"


_LINES: Mapping[str, Callable[[Launch], str]] = {
    "llama-factory": _llama_factory,
    "llama-factory-v1": _llama_factory_v1,
    "llama-factory-mca": partial(_by_variable, "USE_MCA"),
    "llama-factory-bridge": partial(_by_variable, "USE_MEGATRON_BRIDGE"),
    "axolotl": _axolotl,
    "trl": _trl,
    "transformers": _transformers,
    "open-instruct": _open_instruct,
    "ms-swift": _ms_swift,
    "deepspeed": _deepspeed,
    "accelerate": _accelerate,
    "plan": _own,
    "program": _program,
}
