"""Which tool a file is for, and what it says: the one entrance to this folder."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Protocol

from planner.catalog.gpus import load_gpu
from planner.catalog.stacks import at_versions, load_stack
from planner.configs.launchers import accelerate, deepspeed_json
from planner.configs.launchers.fsdp_keys import Beside, found_file, remark_on_twice
from planner.configs.launchers.launch import processes_of, with_commented_launch_file, with_launch_file
from planner.configs.programs.arguments import TRAINER, TRL, UNSLOTH, NotSaidError, read_program
from planner.configs.programs.pins import Pins, pins_of
from planner.configs.programs.python_calls import Card
from planner.configs.programs.source import SUFFIXES
from planner.configs.said_by_file import Reading
from planner.configs.shared.allocator_variable import say_set
from planner.configs.shared.keys import BY_FLAG, Keys, is_left_open
from planner.configs.shared.own_scripts import other_task
from planner.configs.tools import (
    hf_trainer,
    llama_cookbook,
    llava,
    lmflow,
    ms_swift,
    ms_swift_megatron,
    nemo_automodel,
    open_instruct,
    peft_sft,
    programs,
    qlora,
    torchtitan,
    torchtune,
    trl,
)
from planner.configs.tools.axolotl import axolotl
from planner.configs.tools.llama_cookbook import is_llama_cookbook
from planner.configs.tools.llama_factory import (
    llama_factory,
    llama_factory_bridge,
    llama_factory_mca,
    llama_factory_v1,
)
from planner.configs.tools.llama_factory.llama_factory_vision import without_template
from planner.configs.tools.nemo_automodel import is_nemo_automodel
from planner.configs.tools.one_process import say_one_process
from planner.configs.tools.other_tools import refuse_other_tools
from planner.configs.tools.unsloth import unsloth_cli, unsloth_train
from planner.configs.yaml_or_json import Document, read_document
from planner.domain.origin import ToolDefault
from planner.errors import (
    InputFileError,
    NotModelledError,
    PlannerError,
    UnknownNameError,
    UnreadKeyError,
    UsageError,
    show,
)


class UntoldToolError(InputFileError):
    """No tool can be told by the keys of a file."""


Reader = Callable[[Keys, Reading, Beside], None]
"""Enters what the keys of a file say; raises as :func:`read_config` does."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A program that reads such files: its name here, its title with version,
    its stack and how its file is read.

    ``marks``: keys that no other tool has.  ``is_its``: tells a file for sure, before marks are counted.
    ``launched``: how state is divided is usually left to the launch line,
    so launch files are looked for beside the config.
    """

    name: str
    title: str
    stack: str
    marks: frozenset[str]
    read: Reader
    is_its: Callable[[Document], bool] | None = None
    launched: bool = False


class _Module(Protocol):
    """What a module that reads a tool's files says of the tool, beside its ``MARKS`` where it has some."""

    TOOL: str
    STACK: str


def _tool(
    name: str,
    module: _Module,
    read: Reader,
    is_its: Callable[[Document], bool] | None = None,
    *,
    launched: bool = False,
) -> Tool:
    marks: frozenset[str] = getattr(module, "MARKS", frozenset())
    return Tool(name, module.TOOL, module.STACK, marks, read, is_its, launched)


def _deepspeed(keys: Keys, reading: Reading, beside: Beside) -> None:
    del beside
    deepspeed_json.read_deepspeed(keys, reading)


_SWIFT_MEGATRON = _tool(
    "ms-swift-megatron",
    ms_swift_megatron,
    ms_swift_megatron.read_ms_swift_megatron,
    ms_swift_megatron.is_ms_swift_megatron,
)
_MCA = _tool("llama-factory-mca", llama_factory_mca, llama_factory_mca.read_mca, llama_factory_mca.is_mca)
_BRIDGE = _tool(
    "llama-factory-bridge",
    llama_factory_bridge,
    llama_factory_bridge.read_bridge,
    llama_factory_bridge.is_bridge,
)
_OF_MEGATRON = (_SWIFT_MEGATRON, _MCA, _BRIDGE)
"""Tools that hand keys of Megatron on."""
_TRAINING = (
    _tool("llama-factory", llama_factory, llama_factory.read_llama_factory),
    _tool("llama-factory-v1", llama_factory_v1, llama_factory_v1.read_llama_factory_v1),
    _MCA,
    _BRIDGE,
    _tool("axolotl", axolotl, axolotl.read_axolotl),
    _tool("open-instruct", open_instruct, open_instruct.read_open_instruct),
    _tool("torchtune", torchtune, torchtune.read_torchtune, torchtune.is_torchtune),
    _tool("torchtitan", torchtitan, torchtitan.read_torchtitan, torchtitan.is_torchtitan),
    _tool("nemo-automodel", nemo_automodel, nemo_automodel.read_nemo_automodel, is_nemo_automodel),
    _tool("ms-swift", ms_swift, ms_swift.read_ms_swift, ms_swift.is_ms_swift),
    _SWIFT_MEGATRON,
    _tool("lmflow", lmflow, lmflow.read_lmflow, lmflow.is_lmflow, launched=True),
    _tool("llama-cookbook", llama_cookbook, llama_cookbook.read_llama_cookbook, is_llama_cookbook),
    _tool("llava", llava, llava.read_llava, launched=True),
    _tool("qlora", qlora, qlora.read_qlora, launched=True),
    _tool("unsloth", unsloth_train, unsloth_train.read_unsloth, unsloth_train.is_unsloth),
    _tool("unsloth-cli", unsloth_cli, unsloth_cli.read_unsloth_cli),
    _tool("peft-sft", peft_sft, peft_sft.read_peft_sft, peft_sft.is_peft_sft, launched=True),
    _tool("trl", trl, trl.read_trl, launched=True),
)
_REST = (
    _tool("transformers", hf_trainer, hf_trainer.read_hf_trainer, hf_trainer.is_example, launched=True),
    Tool("deepspeed", deepspeed_json.TOOL, "", deepspeed_json.MARKS, _deepspeed),
    Tool("accelerate", accelerate.TOOL, "", accelerate.MARKS, accelerate.read_accelerate),
)
_BY_NAMES = "; --tool transformers or --tool trl reads the names of its arguments alone"
_PROGRAM = "program"
"""How the tool is called of what a program says itself."""
_PROGRAMS = {
    UNSLOTH: _tool(_PROGRAM, unsloth_cli, programs.read_unsloth_program),
    TRL: _tool(_PROGRAM, trl, programs.read_trl_program, launched=True),
    TRAINER: _tool(_PROGRAM, hf_trainer, programs.read_trainer_program, launched=True),
}
"""Readers of what a program hands to a tool."""
_DECIDES = {UNSLOTH: "unsloth", TRL: "trl", TRAINER: "transformers"}
"""The package whose version says which stack a program is for."""
TOOLS: dict[str, Tool] = {tool.name: tool for tool in (*_TRAINING, *_REST)}
TOOL_NAMES = ("plan", *TOOLS)
# ``--accelerate none``: no launch file, and none is looked for.
_NO_FILE = Path("none")
_OF_RUN = "epochs"
_DIVIDED = ("tensor_parallel", "context_parallel")
# They call set_z3_leaf_modules: zero3_leaves in data/packages has the places.
_NAME_LEAVES = ("axolotl", "llama-factory", "ms-swift")


def read_config(path: Path, tool: str | None = None, beside: Beside | None = None) -> Reading:
    """What a YAML or JSON file says about a job.

    Args:
        path: the file.
        tool: which tool the file is for; ``None`` means to tell by its keys.
        beside: files given in place of those that it refers to.

    Raises:
        InputFileError: the file cannot be read, or no tool can be told.
        UnknownNameError: no such tool.
        UsageError: values that cannot be used.
        NotModelledError: something that no formula covers, or a file of a program that is not read.
    """
    beside = beside or Beside()
    if path.suffix in SUFFIXES:
        return _read_program(path, tool, beside)
    document = read_document(path)
    own = beside.own and tool is None
    # A command without arguments: its program says the rest itself, whatever tool has a script of that name.
    alone = not document.table and beside.script.endswith(".py")
    if (alone or beside.words is not None) and (program := found_file(Path(beside.script), path)) is not None:
        try:
            return _read_program(program, None, beside)
        except NotSaidError as error:
            if not document.table:
                raise
            untold = str(error)
        reading = read_config(path, tool, replace(beside, words=None))
        reading.remark(untold, f"the arguments of {show(beside.script)} are read by their names alone")
        return reading
    if tool is None:
        tool = next((each.name for each in _OF_MEGATRON if each.is_its and each.is_its(document)), None)
    refuse_other_tools(document, "ms-swift" if tool is None and ms_swift.is_ms_swift(document) else tool)
    try:
        chosen = recognise(document, own=own) if tool is None else _named(tool)
        return _read_by(chosen, document, beside, tool)
    except (UntoldToolError, UnreadKeyError) as error:
        # A script of one's own has arguments of its own, among which are those of the Trainer.
        if not own:
            raise
        try:
            return _read_by(TOOLS["transformers"], document, beside, "transformers")
        except NotModelledError as other:
            raise (other if isinstance(error, UntoldToolError) else error) from None


def _read_program(path: Path, tool: str | None, beside: Beside) -> Reading:
    """What the text of a program says; raises as :func:`read_config`."""
    try:
        card = Card(*_card(beside.gpu), processes=processes_of(beside))
        program = read_program(path, card, beside.words, beside.allocator)
    except NotSaidError:
        raise
    except NotModelledError as error:
        raise (NotModelledError(f"{error}{_BY_NAMES}") if beside.words else error) from None
    chosen = _PROGRAMS[program.tool]
    if tool is not None:
        raise UsageError(f"{path}: is a program, which says itself who trains: leave --tool {show(tool)} out")
    pins, package = pins_of(path), _DECIDES[program.tool]
    # What Unsloth's loader makes of other versions of Transformers was not read.
    counted = {
        name: pins.versions[name] for name in pins.versions if package in (name, "trl", "transformers")
    }
    stack, others = ("", ()) if beside.stack else at_versions(chosen.stack, package, counted.get)
    stack = stack if package in counted else ""
    beside = replace(beside, task=program.task, script="", own=False, stack=beside.stack or stack)
    beside = replace(beside, allocator="")
    reading = _read_by(chosen, Document(path, program.table), beside, tool)
    _say_pins(reading, pins, stack, others)
    for origin, text in program.remarks:
        reading.remark(origin, text)
    return reading


def _say_pins(reading: Reading, pins: Pins, stack: str, others: tuple[str, ...]) -> None:
    """Enter the versions of packages that a program is installed with, and which of them are not counted."""
    if not pins.versions and not pins.unsure:
        return
    if stack:
        reading.said.pop("stack", None)
        reading.say("stack", stack, pins.place)
    if others:
        reading.say("versions", others, pins.place)
    usual = dict(load_stack(str(reading.value("stack"))).versions)
    counted = {each.partition("==")[0] for each in others}
    left = [
        f"{name}=={version}, and {usual[name]} counts"
        for name, version in pins.versions.items()
        if name in usual and name not in counted and usual[name] != version
    ]
    left += [f"{name} at several versions, and {usual[name]} counts" for name in pins.unsure if name in usual]
    if left:
        reading.remark(pins.place, f"installs {'; '.join(left)}")


def _card(gpu: str) -> tuple[tuple[int, ...] | None, int | None]:
    """CUDA compute capability and memory of a card of the catalog; whoever asks about another says that it is
    none.
    """
    with suppress(PlannerError):
        spec = load_gpu(gpu) if gpu else None
        if spec is not None and spec.is_cuda:
            return tuple(map(int, spec.compute_capability.split("."))), spec.visible_memory_bytes
    return None, None


def _read_by(chosen: Tool, document: Document, beside: Beside, tool: str | None) -> Reading:
    """What a file says to ``chosen``; raises as :func:`read_config`."""
    path, (document, of_run) = document.path, _without_open(document, beside.flags)
    without = without_template(document) if chosen.name == "llama-factory" else document
    keys, reading = Keys.of(without), Reading(path, chosen.title, tool_name=chosen.name)
    if without is not document:
        written = show(str(document.table["template"]))
        reading.remark(f"{path}:template", f"{written} is not set here: counted as one for text")
    _remark_on_open(of_run, reading)
    remark_on_twice(document, reading)
    if document.twice and chosen.name == "llama-factory":
        # hparams/parser.py read_args: OmegaConf.load since then, yaml.safe_load in 0.9.3.
        reading.remark(str(path), "LLaMA-Factory 0.9.5 stops at a key that is given twice; 0.9.3 did not")
    if chosen.stack:
        reading.say("stack", chosen.stack, str(path), f"the keys are those of {chosen.title}")
    reading.script = beside.script
    if beside.accelerate == _NO_FILE:
        beside = replace(beside, accelerate=None, look=False)
    if chosen in _TRAINING:
        beside = with_commented_launch_file(document, reading, beside)
    try:
        chosen.read(keys, reading, with_launch_file(document, reading, beside) if chosen.launched else beside)
    except NotModelledError as error:
        # The newest version may be modelled where an older one is not, never the other way round.
        for stack in reading.fits if reading.value("stack") != chosen.stack else ():
            with suppress(PlannerError):
                return _read_as(stack, str(error), partial(read_config, path, tool), beside)
        raise
    _refuse_leaves(chosen, reading)
    say_one_process(reading)
    _read_allocator(chosen, reading, beside)
    if chosen.name == "accelerate" and not reading.said.keys().isdisjoint(_DIVIDED):
        # The stack that is assumed for such flags has models of its own.
        reading.default("stack", hf_trainer.STACK, f"{chosen.title} launches programs on Transformers")
    _check_task(reading, beside.task)
    if beside.script.endswith(".py"):
        _refuse_other_task(document, keys, reading, own=beside.own)
        _leave_length(keys, reading)
    reading.say_switches()
    reading.finish(keys)
    return reading


def _read_as(stack: str, refusal: str, read: Callable[[Beside], Reading], beside: Beside) -> Reading:
    """What the file says to another version that its keys fit, as the likeliest is not modelled."""
    reading = read(replace(beside, stack=stack))
    reading.remark(str(reading.path), f"counted for {stack}; of the likelier version: {refusal}")
    return reading


def _read_allocator(chosen: Tool, reading: Reading, beside: Beside) -> None:
    """Enter what the environment tells PyTorch's allocator.

    llamafactory-cli replaces it for torchrun, which it starts on several GPUs (llamafactory 0.9.3 cli.py,
    0.9.5 launcher.py); Axolotl sets it where nobody does (axolotl 0.8.0 and 0.19.0 utils/__init__.py).
    """
    by_cli = chosen.name.startswith("llama-factory") and not beside.script.endswith(".py")
    starts = by_cli and beside.allocator and beside.gpus != 1
    if starts and load_stack(str(reading.value("stack"))).expandable_segments != "off":
        where = f"{reading.path}: {beside.allocator.partition('=')[0]}"
        reading.remark(where, "replaced by expandable_segments:True, where torchrun is started")
    else:
        say_set(beside.allocator, str(reading.path), reading, alone=chosen.name == "axolotl")


def _without_open(document: Document, flags: frozenset[str]) -> tuple[Document, str]:
    """``document`` without what it leaves to be filled in and a flag says, or no step depends on: how often
    the run goes over the data; and the key of that where no flag says it.
    """
    open_ = {
        name: BY_FLAG[name]
        for name, value in document.table.items()
        if BY_FLAG.get(name) in {*flags, _OF_RUN} and is_left_open(value)
    }
    left = {name: value for name, value in document.table.items() if name not in open_}
    run = next((name for name, flag in open_.items() if flag == _OF_RUN and _OF_RUN not in flags), "")
    return (replace(document, table=left) if open_ else document), run


def _remark_on_open(key: str, reading: Reading) -> None:
    """Say that the run goes over the data as often as by default, where it is left open by a ``key``."""
    if key:
        reading.remark(f"{reading.path}:{key}", "is left open, and the default counted: say --epochs")


def _refuse_leaves(chosen: Tool, reading: Reading) -> None:
    """Raises: NotModelledError where a file names classes of modules that ZeRO-3 gathers whole, beside a tool
    that names some itself.
    """
    if chosen.name in _NAME_LEAVES and "zero3_leaves" in reading.switches:
        where = reading.switches["zero3_leaves"][1]
        raise NotModelledError(
            f"{where}: classes beside those that {chosen.title} names itself are not modelled: leave them out"
        )


def _check_task(reading: Reading, task: str) -> None:
    """Raises: NotModelledError where a script's name and its arguments say different tasks."""
    if task and reading.value("task") != task:
        raise NotModelledError(
            f"{reading.path}: the script's name says {task}, but its arguments are read as those of "
            f"{reading.tool}, which say nothing of it: say --tool trl where they are TRL's"
        )


def _refuse_other_task(document: Document, keys: Keys, reading: Reading, *, own: bool) -> None:
    """Raises: NotModelledError where a script has arguments of another task than it is read for; of a tool's
    script only those that the tool does not have are asked.
    """
    unread = keys.left_over_here()
    known = not own or reading.value("task") not in (None, "sft", "pretrain")
    table = {name: value for name, value in document.table.items() if not known or name in unread}
    if name := other_task(table, unread):
        does = reading.value("task") or "sft"
        why = f"what the script does with it is not known, beside {does} as {reading.tool} has it"
        way_out = "take it out if it changes nothing, or say the job by flags (plan --help)"
        raise keys.not_modelled(name, f"{why}: {way_out}")


def _leave_length(keys: Keys, reading: Reading) -> None:
    """A script with arguments that the tool does not have is not the tool's, and may set another length."""
    said = reading.said.get("seq")
    if said and isinstance(said.origin, ToolDefault) and keys.left_over_here():
        del reading.said["seq"]
        reading.needs["seq"] = f"{keys.path}: the length is the script's: say --seq"


def recognise(document: Document, *, own: bool = False) -> Tool:
    """The tool that a file is for, by keys that only its files have; ``own``: the arguments of a script that
    no name tells.

    Raises:
        UntoldToolError: no tool's keys, or those of several.
    """
    for tool in (*_OF_MEGATRON, *TOOLS.values()):
        if tool.is_its is not None and tool.is_its(document):
            return tool
    keys = document.table.keys()
    # LLaMA-Factory's v1 calls its model ``model``; a ``train_dataset`` is also in files of others.
    others = {"llama-factory-v1"} if "model_name_or_path" in keys else set()
    # axolotl 0.19.0 utils/schemas/model.py ModelInputConfig: a file without it stops.
    # It takes no arguments in place of a file, whose list of data a script's arguments lack.
    lacks = "base_model" not in keys or (own and not {"datasets", "pretraining_dataset"} & keys)
    # Nor does it train by the name of a model alone, which programs of one's own have, too.
    lacks |= TOOLS["axolotl"].marks & keys == {"base_model"}
    others |= {"axolotl"} if lacks else set()
    others |= {"deepspeed", "accelerate"} if own else set()
    for group in (_TRAINING, _REST):
        counts = {tool.name: len(tool.marks & keys) for tool in group if tool.name not in others}
        best = max(counts.values())
        found = [name for name, count in counts.items() if count == best]
        if best and len(found) == 1:
            return TOOLS[found[0]]
        if group is _TRAINING and not best and "model_name_or_path" in keys and trl.HINTS & keys:
            return TOOLS["trl"]
        if best:
            raise UntoldToolError(
                document.path,
                f"its keys are those of {' and of '.join(found)}: say which: --tool {found[0]}, or "
                "--tool transformers for a script of your own",
            )
    names = ", ".join(TOOL_NAMES)
    raise UntoldToolError(
        document.path, f"its keys do not say which tool it is for: say it with --tool, one of {names}"
    )


def _named(tool: str) -> Tool:
    if tool not in TOOLS:
        raise UnknownNameError("tool", tool[:60], TOOL_NAMES, hint=f"allowed: {', '.join(TOOL_NAMES)}")
    return TOOLS[tool]
