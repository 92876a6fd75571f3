"""Calls of Python itself and of packages that read files, as far as the text says their arguments."""

from __future__ import annotations

import ast
import copy
import os
import re
import sys
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planner.configs.programs.library_classes import adapters_of, quantisation_of
from planner.configs.programs.names import Names, names_in
from planner.configs.programs.parsed import Arguments
from planner.configs.programs.plain_calls import plain
from planner.configs.programs.source import Source, folders_above
from planner.configs.programs.values import Library, Made, Model, Opened, Unknown, is_known, unknown
from planner.configs.shared.allocator_variable import ALLOCATOR_VARIABLES, set_in
from planner.configs.yaml_or_json import read_document
from planner.errors import InputFileError
from planner.words import words

# Variables of the environment that move memory, by their names; of the allocator's the values are known.
_MATTERS = re.compile(
    r"ALLOC_CONF|NO_CUDA_MEMORY_CACHING|ACCELERATE|FSDP|DEEPSPEED|UNSLOTH_(?!WARN|LOG|\w*STATISTICS)"
)
# Variables of the environment that launchers set.
_OF_LAUNCHERS = re.compile(r"RANK|WORLD|LOCAL|MASTER|CUDA|NPROC|NNODES|NUM_(?:GPU|NODE|PROCESS)|SLURM")
_OF_PROCESSES = re.compile(r"RANK|WORLD_SIZE")
_NUMBER_OF_THEM = "WORLD_SIZE"
_OF_MODEL_CONFIG = {"get_peft_config": adapters_of, "get_quantization_config": quantisation_of}
_LOADS = words(
    """
    yaml.safe_load yaml.load yaml.full_load yaml.unsafe_load json.load json.loads tomllib.load tomli.load
    toml.load omegaconf.OmegaConf.load
    """
)
# transformers 4.45 and 5.23 modeling_utils.py PreTrainedModel, which a model of PEFT hands on.
_OF_EVERY_MODEL = words(
    """
    config generation_config enable_input_require_grads gradient_checkpointing_enable
    gradient_checkpointing_disable get_input_embeddings get_output_embeddings resize_token_embeddings
    save_pretrained push_to_hub
    """
)
_SETS_VARIABLES = words(
    "os.environ.setdefault os.environ.update os.putenv torch.cuda.memory._set_allocator_settings"
)
_OPENS = words("builtins.open io.open codecs.open")
_SCOPES = words("builtins.globals builtins.locals builtins.vars")
_IS_THERE = words("os.path.exists os.path.isfile")
# What a program asks a card by; all of it is in torch since long.
_OF_CARD = ("torch.cuda.is_", "torch.cuda.get_device_")
_CONFIGS = (".yaml", ".yml", ".json", ".toml")


@dataclass(frozen=True, slots=True)
class Card:
    """What ``--gpu`` says of the card: its CUDA compute capability and its memory, where they are known;
    ``processes``: how many train, one on each, where that is known.
    """

    capability: tuple[int, ...] | None = None
    memory_bytes: int | None = None
    processes: int | None = None

    @property
    def lone(self) -> bool:
        """Whether one process trains, on one of them."""
        return self.processes == 1


class PythonCalls(Names, ABC):
    """What calls make of values that the text says, and of files beside the program.

    ``variables``: of the environment, that the program sets; ``asked_variables``: whose defaults count;
    ``allocator``: what it tells PyTorch's allocator;
    ``files``: configs that were read, whose values count; ``packages``: what is imported.
    """

    def __init__(self, source: Source, card: Card) -> None:
        super().__init__(source)
        self.card, self.allocator = card, ""
        self.variables: dict[str, Any] = {}
        self.asked_variables: dict[str, Any] = {}
        self.files: list[str] = []
        self.packages: set[str] = set()

    def set_environment(self, node: ast.AST, name: Any, value: Any) -> None:
        """A variable of the environment: it may set the allocator or an engine."""
        self.variables[str(name)] = value
        if not _MATTERS.search(str(name)):
            return
        if name in ALLOCATOR_VARIABLES and isinstance(value, str):
            self.allocator = set_in(self.variables.get)
        else:
            raise self.refused(node, "what this variable changes is not known")

    def set_item(self, target: ast.Subscript, value: Any) -> None:
        """An item: of the environment it may set the allocator or an engine."""
        owner, key = self.value(target.value), self.value(target.slice)
        if isinstance(owner, Library) and owner.name == "os.environ":
            self.set_environment(target, key, value)
        elif isinstance(owner, dict):
            owner[key if isinstance(key, str) else "**"] = value
            self.ask_names(target)
        elif isinstance(owner, list):
            owner.append(unknown(target))

    def ask_names(self, node: ast.AST) -> None:
        """Raises: NotModelledError: a table (``globals``) set names of the file, and which is not known."""
        if self.scopes[0].pop("**", None) is not None:
            raise self.refused(node, "which names this sets is not known")

    def arguments(self, node: ast.Call, names: tuple[str, ...] = ()) -> tuple[list[Any], dict[str, Any]]:
        """Values by place and by name; with ``names`` all of them by name.  ``*`` and ``**`` are among the
        names where a list of the one or a table of the other holds what is not known.
        """
        placed, given = list[Any](), dict[str, Any]()
        for each in node.args:
            value = self.value(each.value if isinstance(each, ast.Starred) else each)
            if not isinstance(each, ast.Starred):
                placed.append(value)
            elif isinstance(value, list):
                self.look(len(value))
                placed += value
            else:
                placed.append(unknown(each))
                given |= {"*": unknown(each), "**": unknown(each)}
        for keyword in node.keywords:
            value = self.value(keyword.value)
            if keyword.arg is not None:
                given[keyword.arg] = value
            elif isinstance(value, dict):
                given |= value
            else:
                given["**"] = unknown(keyword.value)
        return placed, {**dict(zip(names, placed, strict=False)), **given}

    @abstractmethod
    def value(self, node: ast.expr) -> Any:
        """What an expression is."""

    @abstractmethod
    def attribute(self, node: ast.Attribute, owner: Any) -> Any:
        """An attribute of a library, of arguments or of a trainer."""

    @abstractmethod
    def set(self, target: ast.Attribute, value: Any) -> None:
        """An attribute that the program sets."""

    def _plain(self, node: ast.Call, library: Library) -> tuple[Any] | None:
        """What a function of Python gives, or one of TRL that asks a ModelConfig."""
        if library.name in ("builtins.getattr", "builtins.hasattr", "builtins.vars") and node.args:
            return self._looked_into(node, library.last)
        if library.name == "builtins.setattr" and len(node.args) == 3:
            self.set_named(node, node.args)
            return (None,)
        if library.name in _SCOPES and not node.args:
            scope = self.scopes[0 if library.last == "globals" else -1]
            # What is set in a copy of a function's names, Python forgets.
            return (scope if scope is self.scopes[0] else names_in(scope),)
        if library.name in _SETS_VARIABLES:
            return self._set_variables(node, library.last)
        if library.last in _OF_MODEL_CONFIG and library.trains:
            config = next(iter(self.arguments(node, ("model_args",))[1].values()), None)
            if not isinstance(config, Made):
                raise self.refused(node, "which settings this is given is not known")
            return (_OF_MODEL_CONFIG[library.last](config),)
        if library.last == "get_kbit_device_map":
            return ({"": 0},)
        return None if library.trains else self._of_python(library.name, *self.arguments(node))

    def set_named(self, node: ast.Call, parts: list[ast.expr]) -> None:
        """``setattr``: whose attribute, its name, and the value.

        Raises: NotModelledError: which one is not known.
        """
        name = self.value(parts[1]) if len(parts) == 3 else None
        if not isinstance(name, str) or not name.isidentifier():
            raise self.refused(node, "which attribute this sets is not known")
        self.set(ast.Attribute(parts[0], name, lineno=node.lineno), self.value(parts[2]))

    def _set_variables(self, node: ast.Call, name: str) -> tuple[Any] | None:
        placed, given = self.arguments(node)
        if name == "_set_allocator_settings":
            self.set_environment(node, "PYTORCH_CUDA_ALLOC_CONF", next(iter(placed), None))
        elif name == "update":
            table = placed[0] if placed and isinstance(placed[0], dict) else {}
            for each, value in {**table, **given}.items():
                self.set_environment(node, each, value)
        elif len(placed) == 2 and not (name == "setdefault" and placed[0] in self.variables):
            self.set_environment(node, *placed)
        return None

    def _of_python(self, name: str, placed: list[Any], given: dict[str, Any]) -> tuple[Any] | None:
        if name in ("os.getenv", "os.environ.get"):
            return self._variable(*placed, **given)
        first = next(iter((*placed, *given.values())), None)
        if name == "builtins.callable" and isinstance(first, Library) and first.name.startswith(_OF_CARD):
            return (True,)
        if name in _OPENS and isinstance(first, str):
            return (Opened(first),)
        if name in _LOADS and isinstance(first, Opened | str):
            return self.table_of(first.path if isinstance(first, Opened) else first)
        if name in _IS_THERE and isinstance(first, str):
            return (True,) if self._config_at(first) else None
        if name == "builtins.__import__" and first in sys.stdlib_module_names:
            return (Library(str(first)),)
        if name == "functools.wraps":
            # It hands a name and a text on, and calls nothing.
            return (Unknown(name),)
        return plain(name, placed, given)

    def of_path(self, path: str, method: str) -> tuple[Any] | None:
        """What a method of a path gives; ``None`` where the text does not say."""
        if method in ("open", "read_text"):
            return (Opened(path),)
        if method in ("exists", "is_file"):
            return (True,) if self._config_at(path) else None
        return (path,) if method in ("resolve", "absolute", "expanduser", "as_posix") else None

    def _config_at(self, path: str) -> Path | None:
        """A config of this name, from here, from the program's folder, or from three above it."""
        named = Path(path)
        if named.suffix not in _CONFIGS or "\0" in path:
            return None
        folders = (self.source.path.parent, *folders_above(self.source.path))
        places = (named, *(folder / named for folder in folders))
        return next((each for each in places if os.path.isfile(each)), None)  # noqa: PTH113 - long names

    def table_of(self, path: str) -> tuple[Any] | None:
        """What a config holds; nothing where it is not there, or is none."""
        found = self._config_at(path)
        if found is None:
            return None
        try:
            table = read_document(found).table
        except InputFileError:
            return None
        self.files.append(str(found))
        return (copy.deepcopy(table),)

    def _variable(self, name: Any = None, default: Any = None, **_: Any) -> tuple[Any] | None:
        """A variable of the environment that the program sets itself, or else its default; those of launchers
        have it where there is one process, and are known to a run alone else, as one without a default is.
        """
        if not isinstance(name, str) or name in self.variables:
            return (self.variables[name],) if isinstance(name, str) else None
        if name == _NUMBER_OF_THEM and (self.card.processes or 0) > 1:
            return (str(self.card.processes),)
        if default is None or not is_known(default):
            return None
        if _OF_LAUNCHERS.search(name):
            return (default,) if self.card.lone and _OF_PROCESSES.search(name) else None
        self.asked_variables[name] = default
        return (default,)

    def _looked_into(self, node: ast.Call, name: str) -> tuple[Any] | None:
        owner, *rest = (self.value(each) for each in node.args)
        if name == "vars":
            return self._all_of(owner)
        key = rest[0] if rest else None
        if not isinstance(key, str) or not isinstance(owner, Made | Library) or not key.isidentifier():
            return None
        found = self.attribute(ast.Attribute(node.args[0], key), owner)
        of_card = isinstance(found, Library) and found.name.startswith(_OF_CARD)
        there = of_card or not isinstance(found, Unknown | Library)
        if name == "hasattr":
            return (True,) if there or (isinstance(owner, Model) and key in _OF_EVERY_MODEL) else None
        return (found,) if there or not rest[1:] else None

    def _all_of(self, owner: Any) -> tuple[Any] | None:
        if isinstance(owner, Arguments):
            owner.asked |= owner.given.keys()
        return (owner.given,) if isinstance(owner, Made) and not isinstance(owner, Model) else None
