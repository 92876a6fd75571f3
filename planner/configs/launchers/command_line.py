"""A command line that starts a training, as the two files that would say the same.

Sources: accelerate 1.15.0 commands/launch.py; torch 2.13.0 distributed/run.py; deepspeed 0.19.8
launcher/runner.py; transformers 5.23.0 hf_argparser.py; trl 1.16.0 cli/main.py;
ms-swift 4.6.0 swift/cli/main.py; llamafactory 0.9.5 launcher.py; axolotl 0.19.0 cli/main.py.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from planner.configs.launchers.arguments import BARE_VARIABLE, SEVERAL, named_values, scalar
from planner.configs.launchers.handed_over import handed_over
from planner.configs.launchers.launch import OPEN_NODES
from planner.configs.launchers.launched_processes import (
    LOADS_ON_HOST,
    ONE_PROCESS,
    is_on,
    of_axolotl,
    of_llama_factory,
    of_torchrun,
    processes,
    refuse_unread,
    refuse_unsure,
    say_task_of_v1,
    say_visible,
)
from planner.configs.launchers.launcher_options import (
    ACCELERATE_SWITCHES,
    DEEPSPEED_OPTIONS,
    DEEPSPEED_SWITCHES,
    TORCHRUN_SWITCHES,
    names_of,
)
from planner.configs.launchers.named_files import from_folder, launch_table, named_file, with_files_here
from planner.configs.launchers.script_names import (
    MODULES_OF,
    UNREAD_COMMANDS,
    as_program,
    refuse_script,
    refuse_unread_program,
    runs_program,
    said_by_name,
    trains_always,
    trains_by_itself,
    unread_program,
    works_otherwise,
)
from planner.configs.launchers.shell import commands
from planner.configs.launchers.tune_words import TRAINS_NOTHING, config_and_rest, overridden, refuse_recipe
from planner.configs.launchers.variables import EVERY_GPU
from planner.configs.shared.allocator_variable import set_in
from planner.configs.tools.unsloth.unsloth_train import in_sections
from planner.configs.yaml_or_json import read_document
from planner.errors import REFUSED_BY_TOOL, InputFileError, PlannerError, UsageError, show
from planner.files.structured import yaml_value

_MOST_CHARACTERS = 65_536
_PYTHON_SWITCHES = names_of("u m O OO B I E s S")
_PYTHON = re.compile(r"python(?:\d(?:\.\d+)?)?")
# Arguments of TrainingArguments and llama-cookbook, by which ``python SCRIPT`` is told from other work.
_TRAINS = names_of(
    "per_device_train_batch_size gradient_accumulation_steps num_train_epochs max_steps learning_rate "
    "peft_method"
)
# Modules that train.
_MODULES = ("axolotl.cli.train", "llamafactory.launcher", *MODULES_OF)
# First word of a command -> its launcher here, and second words that train.
_PROGRAMS = {
    "accelerate": ("accelerate", ("launch",)),
    "trl": ("trl", ("sft", "dpo", "grpo", "kto", "reward", "rloo")),
    "swift": ("swift", ("sft", "pt", "rlhf")),
    "megatron": ("megatron", ("sft", "pt", "rlhf")),
    "llamafactory-cli": ("llama-factory", ("train", "sft", "dpo", "rm")),
    "lmf": ("llama-factory", ("train", "sft", "dpo", "rm")),
    "axolotl": ("axolotl", ("train",)),
    "unsloth": ("unsloth", ("train",)),
    "tune": ("torchtune", ("run",)),
}
_SAYS_TOOL = frozenset(launcher for launcher, _ in _PROGRAMS.values()) - {"accelerate"}
# Options of `axolotl train` that are no keys of its config (axolotl 0.19.0 cli/main.py, cli/args.py).
_OF_AXOLOTL = names_of(
    "launcher cloud debug debug_text_only debug_num_examples prompter shard main_process_port num_processes"
)
MS_SWIFT, MEGATRON = "ms-swift", "ms-swift-megatron"
"""Names of the tools whose command says its own arguments."""
_Command = tuple[list[str], dict[str, str], Path]


@dataclass(slots=True)
class Started:
    """One command: the script, its arguments, and how it is launched,
    as a configuration of Accelerate says it.

    ``words``: as they were written.  ``tool``: where the command itself says it.  ``task``: the one that the
    script's name says.  ``stock``: whose launch file is counted in place of one that is not there.
    ``no_launch``: why the one that it names cannot be read.  ``given``: the words behind a script;
    ``unread``: why they are no arguments by name.  ``allocator``: what the environment tells PyTorch's.
    """

    words: list[str]
    script: str
    arguments: dict[str, Any] = field(default_factory=dict)
    launch: dict[str, Any] = field(default_factory=dict)
    tool: str | None = None
    task: str = ""
    stock: str = ""
    no_launch: InputFileError | None = None
    given: tuple[str, ...] = ()
    unread: PlannerError | None = None
    allocator: str = ""

    @property
    def says_its_tool(self) -> bool:
        """Whether the command is that of a program, and no script's whose arguments are guessed."""
        return self.script in _MODULES or _launcher(self.words) in _SAYS_TOOL or trains_always(self.script)

    @property
    def texts(self) -> tuple[str, str]:
        """Arguments and launch as the text of a file each; what JSON has no word for is text."""
        return json.dumps(self.arguments, default=str), json.dumps(self.launch, default=str)


def reads_text(path: Path, job: Started) -> bool:
    """Whether a command is answered by the text of its script, which is here; also that of TRL, which
    somebody may have changed.
    """
    return not job.says_its_tool and job.tool in (None, "trl") and trains_by_itself(path, job.script)


def how_many(path: Path, text: str) -> int:
    """How many commands of a text start a training.

    Raises:
        InputFileError: too long, or quotes that are not closed.
    """
    return len(_trainings(path, _every_command(path, text)))


def started(path: Path, text: str, number: int | None = None) -> Started:
    """The command of a text that starts a training: the one, or of several that with this number, from 1 on;
    ``path`` names the text in messages.

    Raises:
        InputFileError: too long, or quotes that are not closed.
        UsageError: no such command, several, or arguments that cannot be read.
        NotModelledError: a training that no formula covers.
    """
    every = _every_command(path, text)
    found = _trainings(path, every)
    arrays = (words[0] for words, *_ in every if words and SEVERAL.fullmatch(words[0]))
    if not found and (array := next(arrays, "")):
        raise UsageError(
            f"{path}: the words of '{show(array)}' depend on more than this text: give them with --command"
        )
    if len(found) != 1 and number is None:
        what = (
            f"{len(found)} commands that start a training" if found else "no command that starts a training"
        )
        ways = (
            "accelerate launch, torchrun, deepspeed, python with arguments of Transformers, trl, swift, "
            "llamafactory-cli, axolotl, unsloth and tune are known; of another script give the job by flags "
            "(plan --model NAME ...), or run it without a GPU: measure trace --gpu NAME -- COMMAND"
        )
        raise UsageError(f"{path}: {what}: give one with --command" if found else f"{path}: {what}; {ways}")
    words, variables, folder = found[0 if number is None else number - 1]
    words, moved = with_files_here(path, words)
    refuse_unread_program(path, words)
    job = _LAUNCHERS[_launcher(words)](path, words)
    job.stock = "; ".join(filter(None, (job.stock, *moved)))
    _refuse_open_script(path, job)
    refuse_script(path, job.script, words, folder)
    job.task, tool = said_by_name(job.script, folder)
    job.tool = job.tool or tool
    _take_variables(path, job, variables)
    return job


def _refuse_open_script(path: Path, job: Started) -> None:
    """Raises: UsageError where one variable is all that is launched: it may hold any arguments."""
    if not job.arguments and BARE_VARIABLE.fullmatch(job.script):
        what = "depends on more than this text, and with it all arguments: give the command with --command"
        raise UsageError(f"{path}: '{show(job.script)}' {what}")


def _every_command(path: Path, text: str) -> list[_Command]:
    """Words and variables of each command, and the folder into which the text went before it."""
    if len(text) > _MOST_CHARACTERS:
        raise InputFileError(
            path, f"more than {_MOST_CHARACTERS:,} characters: it is no command and no launch script"
        )
    found, folder = list[_Command](), Path()
    for words, variables, for_sure in commands(path, text):
        if words[:1] == ["cd"] and len(words) == 2 and for_sure:
            folder /= words[1]
        for command in map(as_program, list(handed_over(words)) or [words]):
            found.append(([from_folder(path, folder, word) for word in command], variables, folder))
    return found


def _take_variables(path: Path, job: Started, variables: Mapping[str, str]) -> None:
    """What the environment says of a program's launch."""
    if job.tool in ("llama-factory", "axolotl", MS_SWIFT, MEGATRON):
        refuse_unsure(path, variables)
    if job.tool == "llama-factory":
        job.launch = of_llama_factory(path, variables)
        if is_on(variables, "USE_V1"):  # It goes first (cli.py of ff6d4d12e).
            job.tool = "llama-factory-v1"
            say_task_of_v1(path, job.words[1], job.arguments)
            job.script = "rm" if job.words[1] == "rm" else "train"
        elif is_on(variables, "USE_MCA"):
            job.tool = "llama-factory-mca"
        elif is_on(variables, "USE_MEGATRON_BRIDGE"):
            job.tool = "llama-factory-bridge"
    if job.tool == "axolotl":
        options = {name: job.arguments.pop(name) for name in _OF_AXOLOTL if name in job.arguments}
        job.launch = of_axolotl(path, options, variables)
    say_visible(path, job.launch, variables)
    read = LOADS_ON_HOST if "enable_fsdp" in job.arguments else ()
    job.arguments |= {name: True for name in read if is_on(variables, name)}
    refuse_unread(path, {name: text for name, text in variables.items() if name not in read})
    job.allocator = set_in(variables.get)
    if job.tool in (MS_SWIFT, MEGATRON):
        # A file's variables do not replace those that are set (swift/cli/main.py parse_yaml_args).
        own = job.arguments.get("ENV") or {}
        job.arguments["ENV"] = {**own, **variables} if isinstance(own, dict) else own


def _launcher(words: Sequence[str]) -> str:
    """Name of the launcher of a command, empty for others."""
    if not words:
        return ""
    name, second = Path(words[0]).name, words[1] if len(words) > 1 else ""
    if name in _PROGRAMS and second in _PROGRAMS[name][1]:
        return _PROGRAMS[name][0]
    if name in UNREAD_COMMANDS:
        return "unread" if second in UNREAD_COMMANDS[name][0] else ""
    if _PYTHON.fullmatch(name):
        module = _option(words, "-m")
        return "torchrun" if module in ("torch.distributed.run", "torch.distributed.launch") else "python"
    return name if name in ("torchrun", "deepspeed") else ""


def _option(words: Sequence[str], name: str) -> str:
    return words[words.index(name) + 1] if name in words[:-1] else ""


def _trainings(path: Path, every: list[_Command]) -> list[_Command]:
    """The commands that start a training; where none does, those that run a program which is here."""
    found = [each for each in every if _starts_training(*each[:2]) or _program(path, each[0])]
    return found or [each for each in every if _launcher(each[0]) and runs_program(path, each[0])]


def _program(path: Path, words: Sequence[str]) -> bool:
    """Whether a command runs a program that is here, with arguments of its own."""
    script = next((word for word in words if word.endswith(".py")), "")
    other = not script or script == words[-1] or works_otherwise(words, said=False)
    return not other and _launcher(words) != "" and trains_by_itself(path, script)


def _starts_training(words: Sequence[str], variables: Mapping[str, str]) -> bool:
    kind = _launcher(words)
    if kind == "llama-factory" and words[1] != "train":
        # Words of v1/launcher.py, which the other launcher does not know.
        return is_on(variables, "USE_V1")
    if kind == "torchtune":
        return TRAINS_NOTHING.isdisjoint(words)
    said = any(_name(word) in _TRAINS for word in words if word.startswith("--"))
    if not kind or works_otherwise(words, said=said):
        return False
    known = kind != "python" or _option(words, "-m") in _MODULES or unread_program(words) != ""
    return known or said or any(map(trains_always, words))


def _name(word: str) -> str:
    """An option's name as Python has it."""
    return word.lstrip("-").partition("=")[0].replace("-", "_")


def _options(path: Path, words: Sequence[str], switches: frozenset[str]) -> tuple[dict[str, Any], list[str]]:
    """A launcher's options by name, and the words from the script on."""
    found: dict[str, Any] = {}
    rest = iter(range(len(words)))
    for index in rest:
        word = words[index]
        if not word.startswith("-") or (word == "--" and index + 1 < len(words)):
            _refuse_options_in(path, words[index : index + 2])
            return found, list(words[index + (word == "--") :])
        name, mark, value = word.lstrip("-").partition("=")
        name = name.replace("-", "_")
        if mark:
            found[name] = value
        elif name in switches:
            found[name] = True
        else:
            found[name] = words[next(rest)] if index + 1 < len(words) else ""
    raise UsageError(f"{path}: no script stands behind '{show(words[0] if words else '')}'")


def _refuse_options_in(path: Path, words: Sequence[str]) -> None:
    """Raises: UsageError where a variable stands before what must be the script."""
    if len(words) > 1 and BARE_VARIABLE.fullmatch(words[0]) and not words[1].startswith("-"):
        raise UsageError(f"{path}: '{show(words[0])}' may hold options of the launcher: write them out")


def _of_script(
    path: Path, words: list[str], rest: list[str], launch: dict[str, Any] | None = None
) -> Started:
    """What a launcher starts: a script, with its arguments as they are written behind it."""
    job = Started(words, rest[0], launch=launch or {}, given=tuple(rest[1:]))
    try:
        job.arguments = named_values(path, rest[1:])
    except PlannerError as error:
        # A program that is here says itself which arguments it has.
        if not trains_by_itself(path, rest[0]):
            raise
        job.unread = error
    return job


def _accelerate(path: Path, words: list[str]) -> Started:
    options, rest = _options(path, words[2:], ACCELERATE_SWITCHES)
    job = _of_script(path, words, rest)
    try:
        job.launch, job.stock = _launch_table(path, options)
    except InputFileError as error:
        # Another file may be given in its place.
        job.no_launch = error
    # A number in the script's own file is for another launcher, which this one does not ask.
    job.arguments.pop("num_processes", None)
    return job


def _launch_table(path: Path, options: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """Options of ``accelerate launch`` over the file that they name, whose keys they win over; whose file it
    is where it is not there.
    """
    table: dict[str, Any] = {}
    stock = ""
    if (file := options.pop("config_file", None)) is not None:
        table, stock = launch_table(path, file)
    for name in ("m", "module", "no_python", "quiet", "q", "num_cpu_threads_per_process", "multi_gpu"):
        options.pop(name, None)
    if all("$" in str(options.get(name, "")) for name in ("num_machines", "num_processes")):
        # How many there are in all is open as well, so a node's GPUs decide.
        options[OPEN_NODES] = options.pop("num_machines")
    kinds = {"use_deepspeed": "DEEPSPEED", "use_fsdp": "FSDP", "use_megatron_lm": "MEGATRON_LM"}
    chosen = next((kind for name, kind in kinds.items() if options.pop(name, False)), None)
    for name in list(options):
        part = (
            "fsdp_config"
            if name.startswith("fsdp_")
            else "deepspeed_config"
            if name in DEEPSPEED_OPTIONS
            else None
        )
        value = scalar(options.pop(name))
        if part is None:
            table["use_cpu" if name == "cpu" else name] = value
        else:
            table[part] = {**(table.get(part) or {}), name: value}
    if table.get("num_processes") == EVERY_GPU:
        del table["num_processes"]
    alone = table.get("num_processes") == 1
    table["distributed_type"] = chosen or table.get("distributed_type") or ("NO" if alone else "MULTI_GPU")
    return table, stock


def _torchrun(path: Path, words: list[str]) -> Started:
    start = words.index("-m") + 2 if _PYTHON.fullmatch(Path(words[0]).name) else 1
    options, rest = _options(path, words[start:], TORCHRUN_SWITCHES)
    return _of_script(path, words, rest, of_torchrun(options))


def _tune(path: Path, words: list[str]) -> Started:
    """Options of torchrun, a recipe, its file and what is said over that."""
    options, rest = _options(path, words[2:], TORCHRUN_SWITCHES)
    refuse_recipe(path, rest[0], launched=bool(options))
    file, more = config_and_rest(path, rest[1:])
    table = overridden(path, read_document(named_file(path, file)).table, more)
    return Started(words, rest[0], table, of_torchrun(options) if options else dict(ONE_PROCESS), "torchtune")


def _deepspeed(path: Path, words: list[str]) -> Started:
    """Without a number all GPUs of the nodes are used."""
    options, rest = _options(path, words[1:], DEEPSPEED_SWITCHES)
    per_node = options.get("num_gpus")
    if per_node is None and "include" in options:
        hosts = str(options["include"]).split("@")
        per_node = (
            str(len(hosts[0].partition(":")[2].split(","))) if len(hosts) == 1 and ":" in hosts[0] else None
        )
    launch = processes(per_node, options.get("num_nodes", "1"), ranks=True)
    return _of_script(path, words, rest, launch)


def _python(path: Path, words: list[str]) -> Started:
    """One process; the Trainer would use nn.DataParallel where it sees several GPUs."""
    _, rest = _options(path, words[1:], _PYTHON_SWITCHES)
    return _of_script(path, words, rest, dict(ONE_PROCESS))


def _trl(path: Path, words: list[str]) -> Started:
    """``trl sft`` is ``accelerate launch`` of its script: the launcher's options stand among the script's."""
    arguments = named_values(path, words[2:])
    return Started(words, words[1], arguments, {}, "trl")


def _llama_factory(path: Path, words: list[str]) -> Started:
    """A file with arguments ``KEY=VALUE`` behind it, each read as YAML, or arguments alone.

    Source: llamafactory 0.9.5 hparams/parser.py read_args.
    """
    rest = words[2:]
    if not rest or not rest[0].endswith((".yaml", ".yml")):
        return Started(words, words[1], named_values(path, rest), {}, "llama-factory")
    table = dict(read_document(named_file(path, rest[0])).table)
    for word in rest[1:]:
        name, mark, value = word.partition("=")
        if not mark:
            raise UsageError(
                f"{path}: '{show(word)}' is no argument: behind a file they are KEY=VALUE [{REFUSED_BY_TOOL}]"
            )
        table[name] = yaml_value(path, value)[0]
    return Started(words, words[1], table, {}, "llama-factory")


def _axolotl(path: Path, words: list[str]) -> Started:
    """``axolotl train FILE``, whose other options are keys of the file.

    Source: axolotl 0.19.0 cli/config.py load_cfg.
    """
    if refused := next((word for word in words if word == "--" or _name(word) in ("sweep", "cloud")), None):
        raise UsageError(f"{path}: '{show(refused)}' is not read: check the file, with --accelerate FILE")
    arguments = named_values(path, words[2:])
    if dotted := next((name for name in arguments if "." in name), None):
        raise UsageError(f"{path}: '--{show(dotted)}' is not read: write the key into the file")
    return Started(words, words[1], arguments, {}, "axolotl")


def _unsloth(path: Path, words: list[str]) -> Started:
    """``unsloth train``: options by the names of the file's keys, over those of ``--config``, in one process.

    Source: unsloth 2026.10.9 unsloth_cli/commands/train.py and options.py.
    """
    arguments = named_values(path, ["--config" if word == "-c" else word for word in words[2:]])
    arguments.pop("dry_run", None)
    return Started(words, words[1], in_sections(arguments), dict(ONE_PROCESS), "unsloth")


def _swift(path: Path, words: list[str]) -> Started:
    """How many processes there are, variables say; ``rlhf`` is DPO unless its arguments say otherwise."""
    default = {"rlhf_type": "dpo"} if words[1] == "rlhf" else {}
    tool = MS_SWIFT if Path(words[0]).name == "swift" else MEGATRON
    return Started(words, words[1], default | named_values(path, words[2:]), {}, tool)


_LAUNCHERS: Mapping[str, Callable[[Path, list[str]], Started]] = {
    "accelerate": _accelerate,
    "torchrun": _torchrun,
    "deepspeed": _deepspeed,
    "python": _python,
    "trl": _trl,
    "swift": _swift,
    "megatron": _swift,
    "llama-factory": _llama_factory,
    "axolotl": _axolotl,
    "unsloth": _unsloth,
    "torchtune": _tune,
}
