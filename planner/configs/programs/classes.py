"""Classes that a program has itself, and its command line: fields with their defaults, parsers, instances."""

from __future__ import annotations

import ast
import re
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from planner.configs.launchers.named_files import named_file
from planner.configs.programs.calls import Calls
from planner.configs.programs.options import ABSENT, Option, option_of_field
from planner.configs.programs.parsed import Arguments, Asked, Given, Parser, filled, option_of_call
from planner.configs.programs.python_calls import Card
from planner.configs.programs.source import Source
from planner.configs.programs.values import OWN, SETTINGS, Library, Made, Model, Own, Unknown, unknown
from planner.configs.yaml_or_json import read_document
from planner.errors import show
from planner.words import words

_PARSERS = ("HfArgumentParser", "TrlParser", "ArgumentParser")
_TRAINED = re.compile(r"Trainer\b|Model\b|For[A-Z]|Module\b|Parser\b")
_CONFIG = "--config"
_DEEPEST = 6
_PLAIN_BASES = ("object", "ABC", "abc.ABC", "Protocol")
_RECORDS, _FIELD = ("pydantic.BaseModel", "pydantic.main.BaseModel"), ("field", "Field")
# Methods of a trainer that save, note or order samples (transformers 5.23.0 trainer.py): no step changes.
_BESIDE_STEPS = words(
    """
    save_model _save save_state log log_metrics save_metrics _save_checkpoint _load_rng_state push_to_hub
    create_model_card visualize_samples _get_train_sampler _get_eval_sampler
    """
)


def besides_fields(node: ast.ClassDef) -> list[ast.stmt]:
    """The statements of a class that are neither fields nor methods, nor a text that tells of it."""
    return [each for each in node.body if not _is_field(each)]


def _is_field(node: ast.stmt) -> bool:
    match node:
        case ast.Assign(targets=targets):
            return all(isinstance(each, ast.Name | ast.Tuple) for each in targets)
        case ast.AnnAssign() | ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef() | ast.Pass():
            return True
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


class Classes(Calls):
    """What a program's own classes and its parsers make.

    ``words``: arguments that a command gives; ``parsed``: what parsers handed back; ``set_on_classes``:
    what the program sets on classes of its own, by the class.
    """

    def __init__(self, source: Source, card: Card, words: tuple[str, ...] | None = None) -> None:
        super().__init__(source, card)
        self.words = words
        self.parsed: list[Arguments] = []
        self.set_on_classes: dict[int, dict[str, Any]] = {}

    @abstractmethod
    def called_with(self, own: Own, values: dict[str, Any]) -> Any:
        """What a function of the program gives back, gone through with these values."""

    def own_class(self, own: Own, given: tuple[list[Any], dict[str, Any]], node: ast.Call) -> Any:
        """An instance of a class of the program.

        Raises: NotModelledError: it trains, or it is given what does.
        """
        if (kind := self._trainer_of(own)) is not None:
            return self.made_trainer(node, kind)
        if _TRAINED.search(" ".join(own.bases)) and not self._is_record(own):
            self.elsewhere |= self.source.is_of_module(own.node.lineno)
            if self.elsewhere and any(each.endswith("Parser") for each in own.bases):
                self.parses = node.lineno
            raise self.refused(
                node, f"what {own.node.name} changes in {show(' '.join(own.bases))} is not known"
            )
        start_of = self.method_of(own, "__init__")
        followed = start_of is not None and self._is_whole(own)
        if any(isinstance(each, Model) for each in (*given[0], *given[1].values())) and not followed:
            raise self.refused(node, "what this does with the model is not known")
        if not isinstance(own.node, ast.ClassDef):
            return unknown(node)
        asked = self.asked(own)
        start = {name: value for name, (_, value) in asked.fields.items() if value is not ABSENT}
        if start_of is None:
            if "**" in given[1]:
                start = {name: Unknown(name) for name in asked.fields}
            placed = () if "*" in given[1] else given[0]
            start |= {**dict(zip(asked.fields, placed, strict=False)), **given[1]}
        made = Made(asked.library or f"{asked.name}{OWN}", start, node.lineno, own)
        self._begun(own, made, given)
        return made

    def _trainer_of(self, own: Own) -> str | None:
        """The library's trainer whose steps a class of the program leaves as they are; nothing of others."""
        bases = self._bases(own)
        base = bases[0] if len(bases) == 1 else None
        if not (isinstance(base, Library) and base.trains and base.last.endswith("Trainer")):
            return None
        return base.last if all(map(_saves_or_notes, own.node.body)) else None

    def _is_record(self, own: Own) -> bool:
        """Whether it is a class of pydantic with fields alone, which become attributes as they are given."""
        bases = self._bases(own)
        named = bool(bases) and all(isinstance(each, Library) and each.name in _RECORDS for each in bases)
        return named and not any(isinstance(each, ast.FunctionDef) for each in own.node.body)

    def _is_whole(self, own: Own, depth: int = 0) -> bool:
        """Whether a class has nothing from a library."""
        bases = own.node.bases if isinstance(own.node, ast.ClassDef) and depth < _DEEPEST else ()
        with self.within(own.scopes or self.scopes):
            found = [(ast.unparse(base), self.value(base)) for base in bases]
        return all(
            name in _PLAIN_BASES or (isinstance(each, Own) and self._is_whole(each, depth + 1))
            for name, each in found
        )

    def _begun(self, own: Own, made: Made, given: tuple[list[Any], dict[str, Any]] | None = None) -> None:
        """What a class does to its instance when it is made."""
        if (after := self.method_of(own, "__post_init__")) is not None:
            self.called_with(after, self.as_itself(after, made))
        if given is not None and (first := self.method_of(own, "__init__")) is not None:
            self.called_as(first, made, given)

    def method_of(self, own: Own, name: str, depth: int = 0) -> Own | None:
        """A method of a class of the program, or of one that it is derived from."""
        if not isinstance(own.node, ast.ClassDef) or depth > _DEEPEST:
            return None
        for each in own.node.body:
            if isinstance(each, ast.FunctionDef) and each.name == name:
                return Own(each, (), own.scopes, own)
        found = (self.method_of(base, name, depth + 1) for base in self._own_bases(own))
        return next(filter(None, found), None)

    def _own_bases(self, own: Own) -> list[Own]:
        """The classes of the program that one is derived from."""
        self.look()
        return [base for base in self._bases(own) if isinstance(base, Own)]

    def _bases(self, own: Own) -> list[Any]:
        """What a class is derived from."""
        bases = own.node.bases if isinstance(own.node, ast.ClassDef) else []
        with self.within(own.scopes or self.scopes):
            return [self.value(each) for each in bases]

    def called_on_base(self, node: ast.Call, name: str) -> Any:
        """What a method of the class gives back from which the present one is derived.

        Raises: NotModelledError: it is a library's, and gets a model.
        """
        owner, own = self.value(ast.Name("__self__")), self.value(ast.Name("__class__"))
        given = self.arguments(node)
        bases = self._own_bases(own) if isinstance(own, Own) else []
        found = next(filter(None, (self.method_of(base, name) for base in bases)), None)
        if found is not None and isinstance(owner, Made | Own):
            return self.called_as(found, owner, given)
        if any(isinstance(each, Model) for each in (*given[0], *given[1].values())):
            raise self.refused(node, "what this does with the model is not known")
        return unknown(node)

    def as_itself(self, method: Own, owner: Made | Own) -> dict[str, Any]:
        """The name under which a method has its instance, or its class, with it."""
        names = method.node.args.args if isinstance(method.node, ast.FunctionDef) else []
        by_class = isinstance(owner, Own) and "classmethod" not in method.marks
        if "staticmethod" in method.marks or by_class or not names:
            return {}
        of_class = "classmethod" in method.marks and isinstance(owner, Made)
        return {names[0].arg: owner.by if of_class and isinstance(owner, Made) else owner}

    def bound(self, own: Own, given: tuple[list[Any], dict[str, Any]]) -> dict[str, Any]:
        """Parameters of a function with what they get: an argument, else a default."""
        function = own.node
        if not isinstance(function, ast.FunctionDef):
            return {}
        names = [each.arg for each in (*function.args.posonlyargs, *function.args.args)]
        extra = [each.arg for each in function.args.kwonlyargs]
        found: dict[str, Any] = {name: Unknown(name) for name in (*names, *extra)}
        with self.within(own.scopes or self.scopes):
            defaults = function.args.defaults
            found |= zip(names[len(names) - len(defaults) :], map(self.value, defaults), strict=True)
            for name, default in zip(extra, function.args.kw_defaults, strict=True):
                if default is not None:
                    found[name] = self.value(default)
        if "**" in given[1]:
            found = {name: Unknown(name) for name in found}
        if "*" not in given[1]:
            found |= zip(names, given[0], strict=False)
        if function.args.vararg is not None:
            found[function.args.vararg.arg] = given[0][len(names) :]
        if function.args.kwarg is not None:
            found[function.args.kwarg.arg] = {
                name: value for name, value in given[1].items() if name not in found
            }
        return found | {name: value for name, value in given[1].items() if not name.startswith("*")}

    def called_as(self, method: Own, owner: Made | Own, given: tuple[list[Any], dict[str, Any]]) -> Any:
        """What a method gives back, gone through with its instance or its class, and its arguments."""
        itself = self.as_itself(method, owner)
        values = self.bound(method, ([*itself.values(), *given[0]], given[1]))
        return self.called_with(method, {**values, "__self__": owner, "__class__": method.of})

    def asked(self, own: Own, depth: int = 0) -> Asked:
        """The fields of a class of the program, and the library's class that it is derived from."""
        with self.within(own.scopes or self.scopes):
            return self._asked(own, depth)

    def _asked(self, own: Own, depth: int) -> Asked:
        library, fields = "", dict[str, tuple[str, Any]]()
        for base in own.node.bases if isinstance(own.node, ast.ClassDef) and depth < _DEEPEST else ():
            found = self.value(base)
            if isinstance(found, Own) and isinstance(found.node, ast.ClassDef):
                inherited = self.asked(found, depth + 1)
                library, fields = inherited.library or library, {**fields, **inherited.fields}
            elif isinstance(found, Library) and found.trains and SETTINGS.match(found.last):
                library = found.last
        fields |= self._fields(own)
        for name, value in self.set_on_classes.get(id(own.node), {}).items():
            fields[name] = (fields.get(name, ("", None))[0], value)
        return Asked(own.node.name, fields, library, own)

    def _fields(self, own: Own) -> Iterator[tuple[str, tuple[str, Any]]]:
        for each in own.node.body:
            if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
                value = ABSENT if each.value is None else self._default(each.value)
                yield each.target.id, (ast.unparse(each.annotation), value)
            elif isinstance(each, ast.Assign) and isinstance(each.targets[0], ast.Name):
                yield each.targets[0].id, ("", self._default(each.value))
            elif not _is_field(each):
                for inner in self.parts_of(each):
                    if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store | ast.Del):
                        yield inner.id, ("", unknown(each))

    def _default(self, node: ast.expr) -> Any:
        """The default of a field, also where ``field(default=...)`` says it."""
        named = self.value(node.func) if isinstance(node, ast.Call) else None
        if not (isinstance(node, ast.Call) and isinstance(named, Library) and named.last in _FIELD):
            return self.value(node)
        given = {each.arg: each.value for each in node.keywords}
        if node.args and named.last == _FIELD[1]:
            given["default"] = node.args[0]
        if ast.unparse(given.get("default", node)) == "...":
            return ABSENT
        if (default := given.get("default")) is not None:
            return self.value(default)
        match given.get("default_factory"):
            case None:
                return ABSENT
            case ast.Lambda(body=body):
                return self.value(body)
            case ast.Name(id="list"):
                return []
            case ast.Name(id="dict"):
                return {}
            case other:
                return unknown(other)

    def made_parser(self, node: ast.Call, library: Library) -> Any:
        """A parser, or nothing where a library's call makes none."""
        if library.last not in _PARSERS or not (library.trains or library.name == "argparse.ArgumentParser"):
            return None
        given = self.arguments(node, ("dataclass_types",))[1]
        types = given.get("dataclass_types") if library.trains else None
        listed = types if isinstance(types, list) else [] if types is None else [types]
        classes = [self._class_of(each, node) for each in listed]
        return Parser(library.last, {}, node.lineno, classes=classes)

    def _class_of(self, value: Any, node: ast.Call) -> Asked:
        if isinstance(value, Own) and isinstance(value.node, ast.ClassDef):
            return self.asked(value)
        if isinstance(value, Library) and value.trains and SETTINGS.match(value.last):
            return Asked(value.last, {}, value.last)
        self.parses = node.lineno
        raise self.refused(node, "which arguments these are is not known")

    def done_with_parser(self, node: ast.Call, parser: Parser, name: str) -> Any:
        """A method of a parser.

        Raises:
            InputFileError: the program stops at its command line.
            NotModelledError: what it hands back is not known.
        """
        if name in ("add_argument_group", "add_mutually_exclusive_group"):
            return parser
        if name == "add_argument":
            return self._added(node, parser)
        if name in ("parse_args", "parse_known_args"):
            given = self.arguments(node, ("args",))[1]
            found, rest = self._parsed(node, parser, given, strict=name == "parse_args")
            only = found[0] if found else Made(f"Namespace{OWN}", {}, node.lineno)
            return only if name == "parse_args" else [only, rest]
        if name in ("parse_args_into_dataclasses", "parse_args_and_config"):
            given = self.arguments(node, ("args",))[1]
            left = given.get("return_remaining_strings") is True
            found, rest = self._parsed(node, parser, given, strict=not left)
            return [*found, rest] if left else found
        if name in ("parse_json_file", "parse_yaml_file", "parse_dict"):
            return self._from_file(node, parser)
        if name in ("error", "exit"):
            self.stop(node)
        if name in ("print_help", "print_usage", "format_help"):
            return unknown(node)
        if name == "set_defaults" and not node.args:
            return self._with_defaults(node, parser)
        raise self.refused(node, "what this changes in the arguments is not known")

    def _added(self, node: ast.Call, parser: Parser) -> Any:
        placed, given = self.arguments(node)
        kind = next((ast.unparse(each.value) for each in node.keywords if each.arg == "type"), "")
        option = option_of_call(placed, given, kind)
        if option is None:
            raise self.refused(node, "which argument this is is not known")
        parser.options.append(option)
        return unknown(node)

    def _with_defaults(self, node: ast.Call, parser: Parser) -> Any:
        for name, value in self.arguments(node)[1].items():
            if not any(each.target == name for each in parser.options):
                parser.options.append(Option((f"--{name}",), name))
            parser.options[:] = [
                replace(each, default=value) if each.target == name else each for each in parser.options
            ]
        return unknown(node)

    def _parsed(
        self, node: ast.Call, parser: Parser, given: dict[str, Any], *, strict: bool
    ) -> tuple[list[Arguments], list[Any]]:
        words = given.get("args")
        if words is None:
            words = list(self.words or ())
        if not isinstance(words, list) or not all(isinstance(each, str) for each in words):
            raise self.refused(node, "which arguments are parsed here is not known")
        lax = given.get("fail_with_unknown_args") is False
        table: dict[str, Any] = {}
        if parser.kind == "TrlParser" and _CONFIG in words[:-1]:
            place = words.index(_CONFIG)
            table = dict(read_document(named_file(self.source.path, words[place + 1])).table)
            words = [*words[:place], *words[place + 2 :]]
            for name, value in (table.pop("env", None) or {}).items():
                self.set_environment(node, name, value)
        asked = Given(self.source.path, tuple(words), table, strict=strict and not lax)
        return self._handed_back(*filled(parser, asked))

    def _from_file(self, node: ast.Call, parser: Parser) -> list[Arguments]:
        placed, given = self.arguments(node)
        value = next(iter((*placed, *given.values())), None)
        if isinstance(value, str) and value:
            value = read_document(named_file(self.source.path, value)).table
        if not isinstance(value, dict):
            raise self.refused(node, "which arguments are parsed here is not known")
        strict = given.get("allow_extra_keys") is not True
        return self._handed_back(*filled(parser, Given(self.source.path, (), value, strict=strict)))[0]

    def _handed_back(self, found: list[Arguments], rest: list[str]) -> tuple[list[Arguments], list[Any]]:
        for each in found:
            self.parsed.append(each)
            if each.by is not None:
                self._begun(each.by, each)
        return found, list(rest)

    def started_with_words(self, own: Own, node: ast.Call) -> Any:
        """A function that ``fire`` or ``typer`` calls with the arguments of the command line."""
        function = own.node
        if not isinstance(function, ast.FunctionDef) or function.args.vararg or function.args.kwarg:
            raise self.refused(node, "which arguments these are is not known")
        parser = Parser("fire", {}, node.lineno)
        names = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
        start = self.bound(own, ([], {}))
        for each in names:
            default = ABSENT if isinstance(start[each.arg], Unknown) else start[each.arg]
            kind = "literal" if each.annotation is None else ast.unparse(each.annotation)
            for option in option_of_field(each.arg, kind, default):
                # A list is one word there: [q_proj,v_proj].
                as_word = option.nargs == "+" or not option.kind
                parser.options.append(replace(option, kind="literal", nargs=None) if as_word else option)
        found, _ = self._parsed(node, parser, {}, strict=True)
        return self.called_with(own, dict(found[0].given) if found else {})


def _saves_or_notes(node: ast.stmt) -> bool:
    """Whether a part of a trainer's class leaves its steps as they are."""
    if isinstance(node, ast.FunctionDef):
        return node.name in _BESIDE_STEPS and not node.decorator_list
    return isinstance(node, ast.Pass) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
