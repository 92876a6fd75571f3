"""What the name of a script says that a command starts: its task, its tool, or that it is not modelled.

Sources: trl 1.16.0 scripts and examples/scripts; transformers 5.23.0 examples/pytorch/language-modeling;
unslothai/unsloth 015bdef0d unsloth-cli.py.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from planner.configs.launchers.fsdp_keys import found_file
from planner.configs.tools.other_tools import BRIDGE
from planner.errors import InputFileError, NotModelledError, show
from planner.files.reading import read_text


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


# What a script's name says where its arguments may not.
_OTHERS = {
    "preference training other than DPO, KTO, ORPO and SimPO is not modelled": "xpo nash online bco tpo",
    "reinforcement learning other than GRPO is not modelled": "rloo ppo",
    "GRPO whose generation runs beside the update is not modelled": "async",
    "reward models of this kind are not modelled: say the job by flags": "prm rm",
    "distillation is not modelled; supervised fine-tuning is": "distill distillation minillm gold",
    "a loop of its own is not modelled: say the job by flags": "no_trainer",
}
_TASKS = {each: each for each in ("dpo", "kto", "orpo", "simpo", "reward", "grpo", "gkd")}
# trl 1.16.0 examples/scripts: GRPO and DPO with other losses.
_TASKS |= {"gspo": "grpo", "mpo": "dpo", "cpo": "simpo"}
# trl 1.16.0 scripts and examples/scripts.
_TRL_SCRIPTS = _names(
    "sft dpo cpo kto orpo reward reward_modeling grpo gspo gkd dpo_vlm mpo_vlm grpo_vlm gspo_vlm"
)
# Folders of these; one that is called ``sft`` elsewhere is rather somebody's own.
_TRL_FOLDERS = ("trl/scripts", "examples/scripts")
# Scripts of Transformers' examples/pytorch/language-modeling that train with its Trainer.
_TRANSFORMERS_SCRIPTS = _names("run_clm run_fim run_mlm run_plm")
# Scripts of the package open_instruct (allenai/open-instruct e6c3044aa): those that its reader knows, and one
# on the Trainer of Transformers; others have trainers of their own, some of OLMo-core.
_OPEN_INSTRUCT, _ITS_FOLDER = _names("finetune dpo_tune dpo_tune_cache"), "open_instruct"
_ON_A_TRAINER = _names("finetune_trainer")
# Scripts that only one tool has, and which train whatever their arguments are: Unsloth's, and those of
# ms-swift before 3.0 (examples/pytorch/llm).
_OF_ONE_TOOL = {
    "unsloth-cli": "unsloth-cli",
    "qlora": "qlora",
    "llm_sft": "ms-swift",
    "llm_dpo": "ms-swift",
}
# LLaVA's own script, by its folders (haotian-liu/LLaVA c121f0432).
_OF_LLAVA, _LLAVA_FOLDER = _names("train train_mem"), "llava/train"
# LMFlow's other trainers (OptimalScale/LMFlow f3597dba examples), whose arguments look like TRL's, but for
# the folder of their data.
_OF_LMFLOW = _names("reward_modeling dpo_train dpov2_train iterative_dpo_train raft_align")
_ITS_DATA = "--dataset_path"
# Modules that one tool has, as ``python -m`` names them.
MODULES_OF = dict.fromkeys(("llama_recipes.finetuning", "llama_cookbook.finetuning"), "llama-cookbook")
# Modules that are the program of a command, as ``python -m`` names them (accelerate 1.15.0, deepspeed 0.19.8,
# llamafactory 0.9.5, ms-swift 4.6.0).
_PROGRAMS = {
    "accelerate.commands.launch": ("accelerate", "launch"),
    "accelerate.commands.accelerate_cli": ("accelerate",),
    "deepspeed.launcher.runner": ("deepspeed",),
    "llamafactory.cli": ("llamafactory-cli",),
    **{f"swift.cli.{each}": ("swift", each) for each in ("sft", "pt", "rlhf")},
}
UNREAD_COMMANDS = {
    "oumi": (("train",), "Oumi"),
    "xtuner": (("train",), "XTuner"),
    "autoalign-cli": (("sft", "dpo", "rm"), "AutoAlign"),
}
"""First word of a command -> words that train, and the program, whose commands are not read."""
# Packages whose trainers, started as modules, are not read.
_UNREAD = {"openrlhf": "OpenRLHF", "verl": "verl", "RL2": "RL2", "safe_rlhf": "Safe-RLHF"}
_TRAINER = re.compile("train|ppo|finetune")
# What evaluates, answers or prepares, by a launcher; behind an option it may be a value.
_OTHER_PROGRAMS = _names("lm_eval lighteval vllm --prepare_ds_only")
# Words of a script's name that say other work, unless another one says a training; modules of Axolotl that
# train nothing (axolotl 0.19.0 cli).
_OTHER_WORK = re.compile(
    "eval|infer|predict|generat|merg|convert|preprocess|serv(?:e|er|ing)$|benchmark|demo$"
)
_TRAINING = re.compile("train|tun|sft|dpo|grpo|kto|rlhf|ppo|learn|distil")
_OF_AXOLOTL = re.compile(r"axolotl\.cli\.(?!train$)")
# A trainer that a program makes, also by the name that programs choose one under.
_MAKES_TRAINER = re.compile(r"\b\w*Trainer\(|\btrainer_cl(?:s|ass)\(")
# What a command sets in a recipe's ConfigContainer (NVIDIA-NeMo/Megatron-Bridge 067f987d scripts/training).
_OVERRIDES = re.compile(
    r"\+{0,2}(?:model\.\w+_parallel_size|train\.(?:train_iters|(?:micro|global)_batch_size))="
)


def as_program(words: list[str]) -> list[str]:
    """A command whose program is started as a module of Python, as the program itself."""
    if words[1:2] == ["-m"] and len(words) > 2 and Path(words[0]).name.startswith("python"):
        return [*_PROGRAMS[words[2]], *words[3:]] if words[2] in _PROGRAMS else words
    return words


def unread_program(words: Sequence[str]) -> str:
    """The program whose trainer a command starts as a module, where it is not read; else empty."""
    module = next((after for before, after in pairwise(words) if before in ("-m", "--module")), "")
    package, mark, trainer = module.partition(".")
    return _UNREAD.get(package, "") if mark and _TRAINER.search(trainer) else ""


def works_otherwise(words: Sequence[str], *, said: bool) -> bool:
    """Whether a command does other work than a training, as its program says, or the name of its script or
    module where no argument has ``said`` a training.
    """
    if not _OTHER_PROGRAMS.isdisjoint(word for before, word in pairwise(("", *words)) if before[:2] != "--"):
        return True
    script = next((word for word in words if word.endswith(".py")), "")
    module = next((after for before, after in pairwise(words) if before in ("-m", "--module")), "")
    stem = Path(script).stem.lower()
    named = any(map(_OTHER_WORK.match, re.split("[^a-z]+", stem))) and not _TRAINING.search(stem)
    return not said and (named or _OF_AXOLOTL.match(module) is not None)


def refuse_unread_program(path: Path, words: Sequence[str]) -> None:
    """Raises: NotModelledError where a command is that of a program which is not read."""
    _, program = UNREAD_COMMANDS.get(Path(words[0]).name, ((), unread_program(words)))
    if program:
        raise NotModelledError(
            f"{path}: command lines of {program} are not read: say the job by flags (plan --help)"
        )


def runs_program(path: Path, words: Sequence[str]) -> bool:
    """Whether a command runs a program without arguments that lies beside ``path`` or here, and whose name
    is not that of other work.
    """
    script = words[-1]
    here = script.endswith(".py") and found_file(Path(script), path) is not None
    return here and not works_otherwise(words, said=False)


def trains_by_itself(path: Path, script: str) -> bool:
    """Whether a script lies beside ``path`` or here, and its text makes a trainer of a library."""
    found = found_file(Path(script), path) if script.endswith(".py") else None
    try:
        return found is not None and _MAKES_TRAINER.search(read_text(found)) is not None
    except InputFileError:
        return False


def trains_always(word: str) -> bool:
    """Whether a word of a command is a script that does nothing but train."""
    return word.endswith(".py") and Path(word).stem in _OF_ONE_TOOL


def refuse_script(path: Path, script: str, words: Sequence[str], folder: Path = Path()) -> None:
    """Refuse a script of which its name, or the words of its command, say a training that is not read;
    ``folder``: the one from which it is started, as far as the text says.

    Raises:
        NotModelledError: names it and says why.
    """
    if found := next((word for word in words if _OVERRIDES.match(word)), ""):
        raise NotModelledError(f"{path}: {show(found)}: {BRIDGE}")
    place = folder / script
    if place.parent.name == _ITS_FOLDER and place.stem not in _OPEN_INSTRUCT | _ON_A_TRAINER:
        why = "this trainer of open-instruct is not modelled; finetune.py and dpo_tune_cache.py are"
        raise NotModelledError(f"{path}: {show(script)}: {why}")
    if place.stem in _OF_LMFLOW and _ITS_DATA in words:
        why = "this trainer of LMFlow is not modelled; finetune.py is: say the job by flags"
        raise NotModelledError(f"{path}: {show(script)}: {why}")
    parts = _words(script)
    for why, names in _OTHERS.items():
        for name in names.split():
            if name in parts or (name == "no_trainer" and name in script.lower()):
                raise NotModelledError(f"{path}: {show(script)}: {why}")


def said_by_name(script: str, folder: Path = Path()) -> tuple[str, str | None]:
    """The task that a script's name says, empty where it says none, and the tool whose script it is;
    ``folder``: the one from which it is started, as far as the text says.
    """
    stem, words, parent = Path(script).stem.lower(), _words(script), (folder / script).parent
    task = next((task for name, task in _TASKS.items() if name in words), "")
    if stem in _TRANSFORMERS_SCRIPTS:
        return task, "transformers"
    if stem in _OPEN_INSTRUCT and parent.name == _ITS_FOLDER:
        return task, "open-instruct"
    if stem in _OF_LLAVA and f"/{parent.as_posix()}".endswith(f"/{_LLAVA_FOLDER}"):
        return task, "llava"
    if script in MODULES_OF:
        return task, MODULES_OF[script]
    of_trl = stem in _TRL_SCRIPTS and (task or parent.as_posix().endswith(_TRL_FOLDERS))
    return task, _OF_ONE_TOOL.get(stem) or ("trl" if of_trl else None)


def _words(script: str) -> set[str]:
    return {*re.split(r"[^a-z]+", Path(script).name.lower()), Path(script).stem.lower()}
