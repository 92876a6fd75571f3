"""The line that starts a job, by the tool that its file is for.

Sources: LLaMA-Factory 0.9.5 examples/README.md; axolotl 0.19.0 docs/cli.qmd; trl 1.16.0 scripts/utils.py
(``--accelerate_config``); Accelerate 1.15.0 commands/launch.py; DeepSpeed 0.19.8 launcher/runner.py; torch 2.13
distributed/run.py.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass

SCRIPT = "YOUR_SCRIPT.py"
"""Stands for the user's own script where the tool is a library."""
_OTHER_NODES = "sbatch YOUR_JOB.sh"


@dataclass(frozen=True, slots=True)
class Launch:
    """What decides how a job is started.

    ``accelerate`` and ``deepspeed``: files that the line has to name, because the config does not.  ``engine``: whether DeepSpeed
    or FSDP runs it; ``gpus``: of one node.
    """

    config: str
    accelerate: str = ""
    deepspeed: str = ""
    gpus: int = 1
    nodes: int = 1
    engine: bool = False

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
    # Arguments after the file are key=value (hparams/parser.py read_args).
    beside = f" deepspeed={shlex.quote(launch.deepspeed)}" if launch.deepspeed else ""
    if launch.accelerate:
        return f"{launch.accelerate_launch} src/train.py {launch.file}{beside}"
    # It starts torchrun by itself for several GPUs; an engine on one GPU has to ask for it.
    alone = "FORCE_TORCHRUN=1 " if launch.engine and launch.gpus == 1 else ""
    return f"{alone}llamafactory-cli train {launch.file}{beside}"


def _axolotl(launch: Launch) -> str:
    start = f"{launch.accelerate_launch} -m axolotl.cli.train" if launch.accelerate else "axolotl train"
    return f"{start} {launch.file}{_deepspeed_flag(launch)}"


def _trl(launch: Launch) -> str:
    beside = f" --accelerate_config {shlex.quote(launch.accelerate)}" if launch.accelerate else ""
    return f"trl sft --config {launch.file}{beside}{_deepspeed_flag(launch)}"


def _transformers(launch: Launch) -> str:
    end = f"{SCRIPT} {launch.file}{_deepspeed_flag(launch)}"
    if launch.accelerate:
        return f"{launch.accelerate_launch} {end}"
    return f"torchrun --nproc_per_node {launch.gpus} {end}" if launch.gpus > 1 or launch.engine else f"python {end}"


def _deepspeed_flag(launch: Launch) -> str:
    return f" --deepspeed {shlex.quote(launch.deepspeed)}" if launch.deepspeed else ""


def _deepspeed(launch: Launch) -> str:
    return f"deepspeed --num_gpus {launch.gpus} {SCRIPT} --deepspeed {launch.file}"


def _accelerate(launch: Launch) -> str:
    return f"accelerate launch --config_file {launch.file} {SCRIPT}"


def _own(launch: Launch) -> str:
    """Our own file is read by nothing else."""
    return f"torchrun --nproc_per_node {launch.gpus} {SCRIPT}" if launch.gpus > 1 else f"python {SCRIPT}"


_LINES: Mapping[str, Callable[[Launch], str]] = {
    "llama-factory": _llama_factory,
    "axolotl": _axolotl,
    "trl": _trl,
    "transformers": _transformers,
    "deepspeed": _deepspeed,
    "accelerate": _accelerate,
    "plan": _own,
}
