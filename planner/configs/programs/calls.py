"""Calls of the libraries that train: which make a model, adapters, arguments or a trainer, or change one."""

from __future__ import annotations

import ast
import re
from abc import abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any

from planner.configs.programs.adapted_models import Models
from planner.configs.programs.library_classes import ARGUMENTS, start_of
from planner.configs.programs.looks import (
    GIVES_PARTS,
    HANDS_PARTS_ON,
    HARMLESS_ATTRIBUTES,
    HARMLESS_METHODS,
    NOT_COUNTED,
    READS_SETTINGS,
    TELLS,
    changes,
    is_harmless_call,
    is_harmless_setting,
    is_report,
    is_told,
    only_reads,
)
from planner.configs.programs.options import ABSENT
from planner.configs.programs.parsed import Arguments, Asked, Parser
from planner.configs.programs.python_calls import Card
from planner.configs.programs.source import Source
from planner.configs.programs.values import (
    OWN,
    SETTINGS,
    Library,
    Made,
    Model,
    Module,
    Opened,
    Own,
    Part,
    Unknown,
    changed_list,
    changed_table,
    changed_text,
    is_known,
    leaves,
    part,
    unknown,
)
from planner.words import words

_SEEING = "Qwen|Llava|Mistral3|Gemma|Idefics|PaliGemma|Mllama|SmolVLM"
_MODEL = re.compile(
    r"(?:\w*For(?:CausalLM|ImageTextToText|Vision2Seq|SequenceClassification)|Fast(?:Language)?Model"
    rf"|(?:{_SEEING})\w*ForConditionalGeneration)\.from_pretrained"
)
_OTHER_MODEL = re.compile(
    r"\w*Model\w*\.from_pretrained|\w*For[A-Z]\w*\.from_pretrained|\w*Model\w*\.from_config"
)
_ADAPTERS = re.compile(r"PeftModel(?:ForCausalLM)?\.from_pretrained")
_TRAINER = re.compile(r"\w*Trainer$")
_PREPARES = re.compile(r"prepare_model_for_(?:kbit|int8)_training$")
_MAKES = re.compile(r"\w*ForCausalLM|Fast\w*Model|\w*Trainer$|get_peft_model|\w*LoraConfig|prepare_model")
_PARSES = re.compile(r"(?:HfArgumentParser|TrlParser|ArgumentParser|fire\.Fire|typer\.run)$")
_ENDS = words("builtins.exit builtins.quit sys.exit os._exit")
_STARTS_WITH_WORDS = ("fire.Fire", "typer.run")
_GATHERS_WHOLE = "set_z3_leaf_modules"
_PUTS_LIGER_IN = "apply_liger_kernel_to_"
# The CUDA compute capability of the first cards with units for bfloat16.
_FIRST_WITH_BF16 = (8, 0)
# What hands its first argument on, with other labels.
_HANDS_ON = re.compile(r"train_on_responses_only$")
_DTYPES = {
    **{name: name for name in ("bfloat16", "float16", "float32", "uint8")},
    "half": "float16",
    "float": "float32",
}


class TrainedError(Exception):
    """The trainer trains: what comes behind is no part of the job."""


class Calls(Models):
    """What calls make of a program.

    ``trainer``: the one that was made last; ``parses``: the line where a command line is parsed; ``liger``:
    the family in which kernels of Liger are.
    """

    def __init__(self, source: Source, card: Card) -> None:
        super().__init__(source, card)
        self.trainer: Made | None = None
        self.parses = 0
        self.liger = ""
        self.words: tuple[str, ...] | None = None
        self._makers: dict[str, Callable[[ast.Call], Any]] = {
            "Accelerator": lambda node: Made("Accelerator", self.arguments(node)[1], node.lineno),
            "pipeline": self._piped,
            "setup_chat_format": self.with_tokens,
            "compile": self._compiled,
            _GATHERS_WHOLE: self._gathered_whole,
        }

    @abstractmethod
    def inlined(self, own: Own, node: ast.Call) -> Any:
        """What a function of the program gives back."""

    @abstractmethod
    def method_of(self, own: Own, name: str) -> Own | None:
        """A method of a class of the program."""

    @abstractmethod
    def called_as(self, method: Own, owner: Made | Own, given: tuple[list[Any], dict[str, Any]]) -> Any:
        """What a method of a class of the program gives back."""

    @abstractmethod
    def changes_by(self, owner: Any, node: ast.Attribute) -> bool:
        """Whether it is a method of the program that may change what trains."""

    @abstractmethod
    def called_on_base(self, node: ast.Call, name: str) -> Any:
        """What a method of the class gives back from which the present one is derived."""

    @abstractmethod
    def stop(self, node: ast.AST) -> None:
        """The program ends."""

    @abstractmethod
    def hand_over(self, node: ast.Call, values: list[Any], *, foreign: bool) -> None:
        """Functions of the program that something else calls, and settings that they, or a ``foreign``
        function, may change.
        """

    @abstractmethod
    def asked(self, own: Own) -> Asked:
        """The fields of a class of the program."""

    @abstractmethod
    def made_parser(self, node: ast.Call, library: Library) -> Any:
        """A parser of command lines, or nothing where a library's call makes none."""

    @abstractmethod
    def done_with_parser(self, node: ast.Call, parser: Parser, name: str) -> Any:
        """What a method of a parser gives back."""

    @abstractmethod
    def started_with_words(self, own: Own, node: ast.Call) -> Any:
        """What a function gives back that is called with the arguments of the command line."""

    def makes(self, library: Library) -> bool:
        """Whether calling this makes or changes what trains."""
        return library.trains and bool(_MAKES.match(library.last))

    def of_card(self, library: Library) -> tuple[Any] | None:
        """What the card decides; in a tuple, for it may be nothing."""
        if library.last in ("is_bf16_supported", "is_bfloat16_supported", "is_torch_bf16_gpu_available"):
            if self.card.capability is None or self.card.capability >= _FIRST_WITH_BF16:
                return (True,)
            # Newer versions of torch say yes of a card that only emulates it (torch/cuda/__init__.py
            # is_bf16_supported, including_emulation); Unsloth asks for its own units (models/_utils.py).
            return (False,) if "unsloth" in self.packages else None
        if library.last == "get_device_capability" and library.name.startswith("torch"):
            return (list(self.card.capability),) if self.card.capability else None
        if library.name == "torch.cuda.is_available":
            return (True,)
        if library.name == "torch.cuda.get_device_properties" and self.card.memory_bytes:
            numbers = dict(zip(("major", "minor"), self.card.capability or (), strict=False))
            return (Made(f"card{OWN}", {"total_memory": self.card.memory_bytes, **numbers}, 0),)
        return None

    def attribute(self, node: ast.Attribute, owner: Any) -> Any:
        """An attribute of a library, of arguments or of a trainer."""
        if isinstance(owner, Library):
            return self._of_package(node, owner)
        if isinstance(owner, Arguments):
            owner.asked.add(node.attr)
        if isinstance(owner, Part):
            return unknown(node) if owner.settings else _inner(node)
        if isinstance(owner, Made):
            return self._part(node, owner)
        if isinstance(owner, Own) and isinstance(owner.node, ast.ClassDef):
            value = self.asked(owner).fields.get(node.attr, ("", ABSENT))[1]
            return unknown(node) if value is ABSENT else value
        if isinstance(owner, str) and node.attr == "parent":
            return owner.rpartition("/")[0] or ("/" if owner.startswith("/") else ".")
        names = owner.scope if isinstance(owner, Module) else owner if isinstance(owner, dict) else {}
        return names.get(node.attr, unknown(node))

    def _of_package(self, node: ast.Attribute, owner: Library) -> Any:
        if owner.name == "torch" and node.attr in _DTYPES:
            return _DTYPES[node.attr]
        if not owner.is_imported:
            return unknown(node)
        if owner.name == "sys" and node.attr == "argv":
            return [str(self.source.path), *(self.words or ())]
        return Library(f"{owner.name}.{node.attr}")

    def _part(self, node: ast.Attribute, owner: Made) -> Any:
        """What a model, settings or a trainer have under a name."""
        if isinstance(owner, Model) and node.attr == "dtype":
            dtype = owner.given.get("dtype", owner.given.get("torch_dtype"))
            return dtype if is_known(dtype) and dtype in _DTYPES.values() else unknown(node)
        if node.attr in owner.given:
            return owner.given[node.attr]
        if node.attr == "__dict__" and not isinstance(owner, Model):
            return owner.given
        method = self.method_of(owner.by, node.attr) if owner.by is not None else None
        if method is not None and {"property", "cached_property"} & set(method.marks):
            return self.called_as(method, owner, ([], {}))
        if start := start_of(owner, node.attr):
            return start[0]
        return _inner(node) if isinstance(owner, Model) or _TRAINER.match(owner.kind) else unknown(node)

    def call(self, node: ast.Call) -> Any:
        """What a call gives back, with its effect on what trains.

        Raises:
            NotModelledError: it may change the model, its arguments or the trainer, and how is not known.
            TrainedError: the trainer trains.
        """
        if isinstance(node.func, ast.Attribute):
            if node.func.attr == "__setattr__":
                itself = ast.Name("__self__") if _is_base(node.func) else node.func.value
                self.set_named(node, [itself, *node.args][-3:])
                return None
            if _is_base(node.func):
                return self.called_on_base(node, node.func.attr)
            owner = self.value(node.func.value)
            if answer := self._done_by(node, owner, node.func.attr):
                return answer[0]
            called = self.attribute(node.func, owner)
        else:
            called = self.value(node.func)
        if isinstance(called, Own):
            return self.inlined(called, node)
        if isinstance(called, Made) and called.by and (method := self.method_of(called.by, "__call__")):
            return self.called_as(method, called, self.arguments(node))
        if is_report(called):
            return unknown(node)
        if isinstance(called, Library):
            return self._of_library(node, called)
        return self._unknown_call(node, "", called)

    def _done_by(self, node: ast.Call, owner: Any, name: str) -> tuple[Any] | None:
        """What a method gives back; in a tuple, for it may be nothing.  ``None`` where it is a function."""
        if isinstance(owner, str):
            changed = changed_text(owner, name, self.arguments(node)[0])
            return self.of_path(owner, name) or (unknown(node) if changed is None else changed,)
        if isinstance(owner, Opened) and name == "read":
            return (owner,)
        if isinstance(owner, dict | list):
            return (self._of_values(node, owner, name),)
        if isinstance(owner, Part) and owner.settings and name == "update":
            self._update_config(node)
            return (None,)
        if isinstance(owner, Parser):
            return (self.done_with_parser(node, owner, name),)
        if isinstance(owner, Made):
            return (self._method(node, owner, name),)
        method = self.method_of(owner, name) if isinstance(owner, Own) else None
        if isinstance(owner, Own) and method is not None:
            return (self.called_as(method, owner, self.arguments(node)),)
        return None

    def _of_values(self, node: ast.Call, owner: dict[str, Any] | list[Any], method: str) -> Any:
        placed, given = self.arguments(node)
        if isinstance(owner, dict):
            found = changed_table(owner, method, placed, given)[0]
            self.ask_names(node)
            return found
        changed_list(owner, method, placed)
        return unknown(node)

    def _update_config(self, node: ast.Call) -> None:
        placed, given = self.arguments(node)
        tables = [each if isinstance(each, dict) else {"**": each} for each in (*placed, given)]
        if not all(is_harmless_setting(name) for table in tables for name in table):
            raise self.refused(node, "what this changes in what is trained is not known")

    def _of_library(self, node: ast.Call, library: Library) -> Any:
        if (parser := self.made_parser(node, library)) is not None:
            return parser
        if library.name in _STARTS_WITH_WORDS and node.args:
            started = self.value(node.args[0])
            if isinstance(started, Own):
                return self.started_with_words(started, node)
        if _PARSES.search(library.name):
            self.parses = node.lineno
        if library.name in _ENDS:
            self.arguments(node)
            self.stop(node)
        if answer := self.of_card(library) or self._plain(node, library):
            return answer[0]
        made = self._made(node, library) if library.trains or library.last == _GATHERS_WHOLE else None
        return self._unknown_call(node, library.last, library) if made is None else made

    def _made(self, node: ast.Call, library: Library) -> Any:
        """What a call of a library that trains makes; nothing where it is none that is known."""
        two = ".".join(library.name.split(".")[-2:])
        if _MODEL.fullmatch(two):
            return self.loaded_model(node, two)
        if _ADAPTERS.fullmatch(two):
            return self.with_loaded_adapters(node)
        if _OTHER_MODEL.fullmatch(two):
            raise self.refused(node, "how such a model trains is not read from a program")
        if _PREPARES.search(library.name):
            return self.prepared_model(node)
        if library.last == "get_peft_model":
            own = "unsloth" if "FastLanguageModel" in two or "FastModel" in two else ""
            return self.adapted_model(node, own)
        if (maker := self._maker(library.last)) is not None:
            return maker(node)
        if library.last == "unsloth_train":
            raise TrainedError
        if _TRAINER.match(library.last):
            return self.made_trainer(node, library.last)
        if SETTINGS.match(library.last):
            return Made(library.last, self.arguments(node, ARGUMENTS["Config"])[1], node.lineno)
        return None

    def _maker(self, name: str) -> Callable[[ast.Call], Any] | None:
        """What goes through a call of a function of a library that has this name alone."""
        if name.startswith(_PUTS_LIGER_IN):
            return partial(self._with_liger, family=name.removeprefix(_PUTS_LIGER_IN))
        return self._makers.get(name)

    def _piped(self, node: ast.Call) -> Unknown:
        """A pipeline over a model that is there already."""
        model = self.arguments(node, ("task", "model"))[1].get("model")
        if not isinstance(model, Model):
            raise self.refused(node, "what this changes in what is trained is not known")
        model.remarks.append((node.lineno, NOT_COUNTED["generate"]))
        return Unknown("pipeline")

    def _compiled(self, node: ast.Call) -> Unknown:
        """A compiled model beside the one that a trainer has already, which stays as it was (torch 2.13.0
        _dynamo/eval_frame.py OptimizedModule wraps it).
        """
        model = self.arguments(node, ("model",))[1].get("model")
        if isinstance(model, Model) and not self.has_already(model):
            raise self.refused(node, "compiled models are not modelled")
        return unknown(node)

    def _with_liger(self, node: ast.Call, family: str) -> Unknown:
        """Kernels of Liger in a family, or in a model of it that is there; its defaults are those that the
        Trainer turns on (liger-kernel 0.8.5 transformers/monkey_patch.py).
        """
        placed, given = self.arguments(node)
        if placed or not all(isinstance(each, Model) for each in given.values()):
            raise self.refused(node, "kernels of Liger other than its defaults are not read from a program")
        self.liger = family
        return unknown(node)

    def _gathered_whole(self, node: ast.Call) -> Unknown:
        """Modules of some classes become leaves of ZeRO-3 (deepspeed 0.19.8 utils/z3_leaf_module.py)."""
        names = ("model", "leaf_module_classes")
        model, classes = (self.arguments(node, names)[1].get(name) for name in names)
        named = classes if isinstance(classes, list) else []
        found = [each.last if isinstance(each, Library) else each for each in named]
        if not isinstance(model, Model) or not found or not all(isinstance(each, str) for each in found):
            raise self.refused(node, "which modules of which model ZeRO-3 gathers whole is not known")
        model.gathered_whole += found
        return unknown(node)

    def has_already(self, model: Any) -> bool:
        """Whether the trainer has this model."""
        return self.trainer is not None and self.trainer.given.get("model") is model

    def made_trainer(self, node: ast.Call, kind: str) -> Made:
        """The trainer that a call makes."""
        names = ARGUMENTS.get(kind, ARGUMENTS["SFTTrainer"])
        self.stay()
        self.trainer = Made(kind, self.arguments(node, names)[1], node.lineno)
        return self.trainer

    def _method(self, node: ast.Call, owner: Made, name: str) -> Any:
        """What is done to a model, a trainer or arguments."""
        if name == "train" and _TRAINER.match(owner.kind):
            self.trainer = owner
            self.stay()
            raise TrainedError
        if owner.kind == "Accelerator":
            return self._accelerated(node, owner, name)
        if isinstance(owner, Model) and (answer := self._of_model(node, owner, name)):
            return answer[0]
        method = self.method_of(owner.by, name) if owner.by is not None else None
        if method is not None:
            return self.called_as(method, owner, self.arguments(node))
        if owner.kind.endswith(OWN):
            return self._unknown_call(node, name)
        if name in HARMLESS_METHODS or (SETTINGS.match(owner.kind) and name in READS_SETTINGS):
            return owner if name in ("train", "eval") else unknown(node)
        raise self.refused(node, "what this changes in what is trained is not known")

    def _of_model(self, node: ast.Call, model: Model, name: str) -> tuple[Any] | None:
        """What a method of a model gives back; in a tuple, for it may be nothing."""
        if name == "gradient_checkpointing_enable":
            given = self.arguments(node, ("gradient_checkpointing_kwargs",))[1]
            model.checkpoints = Made(name, given, node.lineno)
            return (None,)
        if name == "merge_and_unload" and model.adapters is not None:
            return (self.merged_model(model, node.lineno),)
        if name in NOT_COUNTED:
            model.remarks.append((node.lineno, NOT_COUNTED[name]))
            return (unknown(node),)
        if name in GIVES_PARTS:
            return (part(node),)
        return (model,) if name in ("to", "cuda") and not _may_cast(*self.arguments(node)) else None

    def _accelerated(self, node: ast.Call, owner: Made, name: str) -> Any:
        """What Accelerate does to a model in the one process of a notebook: it moves it to the card, unless
        it is to compute in another dtype (accelerate 1.15.0 accelerator.py prepare_model).
        """
        placed, given = self.arguments(node)
        alone = (self.source.starts or self.card.lone) and owner.given.get("mixed_precision") in (None, "no")
        if name in ("prepare", "prepare_model") and len(placed) == 1 and isinstance(placed[0], Model):
            if not alone or given:
                raise self.refused(node, "what this does with what is trained is not known")
            return placed[0]
        return self._unknown_call(node, name)

    def set_attribute(self, owner: Made, target: ast.Attribute, value: Any) -> None:
        """An attribute of what was made: of arguments it is one of them."""
        if SETTINGS.match(owner.kind) or owner.kind.endswith(OWN):
            owner.given[target.attr] = value
        elif not (isinstance(owner, Model) and target.attr in HARMLESS_ATTRIBUTES):
            raise self.refused(target, "what this changes in what is trained is not known")

    def _unknown_call(self, node: ast.Call, name: str, called: Any = None) -> Any:
        """A call that is not known: what trains must not be among its arguments."""
        placed, given = self.arguments(node)
        values = [*placed, *given.values()]
        if changes(name, values):
            raise self.refused(node, "what this changes in what is trained is not known")
        if _HANDS_ON.search(name) and placed:
            return placed[0]
        method = node.func.attr if isinstance(node.func, ast.Attribute) else name
        if is_harmless_call(method) and not isinstance(called, Part):
            return unknown(node)
        has_parts = any(isinstance(each, Part) and not each.settings for each in (called, *values))
        if has_parts and (method in (*GIVES_PARTS, *HANDS_PARTS_ON)):
            return part(node)
        if (has_parts and not only_reads(method)) or self._takes_trained(node, values):
            raise self.refused(node, "what this does with what is trained is not known")
        foreign = isinstance(called, Library) and called.is_foreign and not is_told(method)
        self.hand_over(node, values, foreign=foreign)
        return unknown(node)

    def _takes_trained(self, node: ast.Call, values: list[Any]) -> bool:
        """Whether the model or the trainer is among the arguments, or a method that may change one."""
        if any(map(self.trains_in, values)):
            return True
        for each in (node.func, *node.args, *(keyword.value for keyword in node.keywords)):
            if isinstance(each, ast.Attribute) and isinstance(each.value, ast.Name | ast.Attribute):
                owner = self.value(each.value)
                if isinstance(owner, Made) and owner.by is not None and self.changes_by(owner, each):
                    return True
        return False

    def trains_in(self, value: Any) -> bool:
        """Whether it is the model or the trainer, or has one: a list, or an instance of the program's own."""
        inner = leaves(value.given if isinstance(value, Made) and value.by is not None else value) or []
        self.look(len(inner))
        return any(isinstance(each, Model) or (each is not None and each is self.trainer)
                   for each in (value, *inner))  # fmt: skip


def _inner(node: ast.Attribute) -> Unknown:
    """What a model, a trainer or a part of one has under a name that nobody set."""
    if node.attr == "config":
        return part(node, settings=True)
    return unknown(node) if node.attr in TELLS else part(node)


def _is_base(node: ast.expr) -> bool:
    match node:
        case ast.Attribute(value=ast.Call(func=ast.Name(id="super"))):
            return True
    return False


def _may_cast(placed: list[Any], given: dict[str, Any]) -> bool:
    """Whether ``to`` is given a dtype; what stands alone and is not known is a device."""
    dtypes = [value for value in (*placed, *given.values()) if is_known(value) and value in _DTYPES.values()]
    return bool(dtypes) or len(placed) > 1 or not given.keys() <= {"device", "non_blocking"}
