"""How many processes a command starts, by its options and by variables of its environment.

Sources: llamafactory 0.9.5 launcher.py and v1/launcher.py, extras/misc.py get_device_count; axolotl 0.19.0
cli/utils/train.py; accelerate 1.15.0 commands/launch.py:1308-1346; torch 2.13.0 distributed/run.py and
cuda/__init__.py _parse_visible_devices.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import Any

from planner.configs.launchers.launch import OPEN_NODES, VISIBLE
from planner.configs.launchers.shell import unknown
from planner.configs.tools.llama_factory.llama_factory_v1 import is_pair_table
from planner.errors import NotModelledError, UsageError, show

# Variables by which LLaMA-Factory trains in another way (hparams/parser.py, launcher.py and extras/misc.py of
# 0.9.5; USE_MEGATRON_BRIDGE at ff6d4d12e of 2026-08) -> why that is not modelled.
_OTHER_WAYS = {
    "USE_KT": "KTransformers is not modelled; leave it out",
}
_DECIDE = (
    "USE_V1",
    "USE_MCA",
    "USE_MEGATRON_BRIDGE",
    "FORCE_TORCHRUN",
    "NPROC_PER_NODE",
    "NNODES",
    VISIBLE,
    *_OTHER_WAYS,
)

# accelerate 1.15 state.py and utils/dataclasses.py; torch 2.13 c10/cuda/CUDACachingAllocator.cpp.
_UNREAD = re.compile(
    r"ACCELERATE_(?:USE_|MIXED_PRECISION|GRADIENT_ACCUMULATION|DYNAMO|DEEPSPEED)"
    r"|PYTORCH_NO_CUDA_MEMORY_CACHING"
)
_OFF = ("", "0", "false", "no", "none")

LOADS_ON_HOST = ("ACCELERATE_USE_FSDP", "FSDP_CPU_RAM_EFFICIENT_LOADING")
"""Variables with which Transformers keeps a packed model in host RAM until FSDP divides it (4.57.1
modeling_utils.py is_fsdp_enabled)."""


def is_on(variables: Mapping[str, str], name: str) -> bool:
    """Whether LLaMA-Factory takes a variable as switched on (extras/misc.py is_env_enabled)."""
    return variables.get(name, "").lower() in ("1", "true", "y")


def refuse_unsure(path: Path, variables: Mapping[str, str]) -> None:
    """Refuse a variable that decides how a job is started, and whose value depends on something.

    Raises:
        UsageError: there is one.
    """
    for name in _DECIDE:
        if variables.get(name) == unknown(name):
            raise UsageError(
                f"{path}: {name} is set under a condition, in a function or from itself: "
                "give the command with its value by --command"
            )


def refuse_unread(path: Path, variables: Mapping[str, str]) -> None:
    """Raises: NotModelledError at a variable that moves memory, and of which nothing is read."""
    for name, value in variables.items():
        if _UNREAD.match(name) and value.lower() not in _OFF:
            raise NotModelledError(
                f"{path}: {name}={show(value)}: what this variable changes is not modelled"
            )


def of_llama_factory(path: Path, variables: Mapping[str, str]) -> dict[str, Any]:
    """Processes of ``llamafactory-cli``, which starts torchrun where it sees several GPUs or is forced to.

    Raises:
        UsageError: no GPU is visible.
        NotModelledError: another way of training.
    """
    for name, why in _OTHER_WAYS.items():
        if is_on(variables, name):
            raise NotModelledError(f"{path}: {name}={show(variables[name])}: {why}")
    visible = _visible(path, variables)
    if visible == "1" and not is_on(variables, "FORCE_TORCHRUN"):
        return processes("1", "1")
    if visible is None and "NPROC_PER_NODE" not in variables and "NNODES" not in variables:
        return {}
    return processes(variables.get("NPROC_PER_NODE", visible), variables.get("NNODES", "1"), ranks=True)


def say_task_of_v1(path: Path, command: str, arguments: MutableMapping[str, Any]) -> None:
    """Enter the task that a command of LLaMA-Factory's v1 says, where its keys do not.

    Source: hiyouga/LLaMA-Factory ff6d4d12e src/llamafactory/v1/launcher.py, config/training_args.py.

    Raises:
        UsageError: keys of preference data for the trainer of single answers.
    """
    pairs = is_pair_table(arguments)
    if command == "dpo" and not pairs:
        arguments["pref_loss"] = "sigmoid"
    elif command in ("train", "sft") and pairs:
        raise UsageError(
            f"{path}: {command} of v1 trains on single answers, and the keys are of preference data: say dpo"
        )


def of_axolotl(path: Path, options: Mapping[str, Any], variables: Mapping[str, str]) -> dict[str, Any]:
    """Processes of ``axolotl train``: accelerate's, which are those given, else the visible GPUs;
    one of torchrun, to which no number is handed, and one without a launcher.

    Raises:
        UsageError: a number for a launcher that takes none, or no GPU is visible.
    """
    launcher, number = options.get("launcher", "accelerate"), options.get("num_processes")
    if launcher != "accelerate":
        if number is not None:
            raise UsageError(
                f"{path}: --num-processes is for accelerate: --launcher {show(str(launcher))} takes none"
            )
        return processes("1", "1")
    number = _visible(path, variables) if number is None else number
    return {} if number is None else processes(number, "1")


def _visible(path: Path, variables: Mapping[str, str]) -> str | None:
    """How many GPUs a command sees, or the variable that says it; ``None`` where nothing does."""
    said = variables.get(VISIBLE)
    if said is None or "$" in said:
        return said
    number = 0
    for each in map(str.strip, said.split(",")):
        # What follows the first one that is none is not seen.
        if not each or each.startswith("-"):
            break
        number += 1
    if not number:
        raise UsageError(f"{path}: {VISIBLE}={show(said)} leaves no GPU, and training on a CPU is not read")
    return str(number)


def say_visible(path: Path, launch: MutableMapping[str, Any], variables: Mapping[str, str]) -> None:
    """Enter the GPUs that a process without a rank sees, where its environment says them.

    Raises:
        UsageError: it sees none.
    """
    if launch.get("distributed_type") == "NO" and "gpu_ids" not in launch:
        seen = _visible(path, variables) or ""
        if seen.isdecimal():
            launch[VISIBLE] = ",".join(map(str, range(int(seen))))


ONE_PROCESS = {"distributed_type": "NO", "num_processes": 1}


def of_torchrun(options: Mapping[str, Any]) -> dict[str, Any]:
    """The launch that options of torchrun say."""
    per_node, nodes = options.get("nproc_per_node", "1"), str(options.get("nnodes", "1")).rpartition(":")[2]
    return processes(per_node, nodes, ranks=True)


def processes(per_node: Any, nodes: Any, *, ranks: bool = False) -> dict[str, Any]:
    """A launch of so many processes on each node; where a number is not one, the GPUs of the job decide.
    ``ranks``: the launcher says them to a single process, too.
    """
    table: dict[str, Any] = {"distributed_type": "MULTI_GPU"}
    if str(nodes).isdecimal() and int(nodes) > 1:
        table["num_machines"] = int(nodes)
    elif "$" in str(nodes):
        table[OPEN_NODES] = str(nodes)
    if str(per_node or "").isdecimal():
        table["num_processes"] = int(str(per_node)) * table.get("num_machines", 1)
        if table["num_processes"] == 1 and not ranks:
            table["distributed_type"] = "NO"
    elif per_node not in (None, "gpu", "auto"):
        table["num_processes"] = str(per_node)
    return table
