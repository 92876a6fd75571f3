"""The statements of a training program in their order: which model, adapters and trainer they make.

Nothing is run.  What a statement does to a model, its arguments or its trainer must be known; the program is
refused otherwise, with the line.  What it does to data and reports is passed over.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

from planner.configs.programs.calls import HARMLESS_ATTRIBUTES, TrainedError, is_harmless_call
from planner.configs.programs.classes import Classes
from planner.configs.programs.loops import frozen_by, norms_raised_by
from planner.configs.programs.source import Source
from planner.configs.programs.values import (
    OWN,
    Library,
    Made,
    Model,
    Own,
    Unknown,
    any_or_all,
    combined,
    compared,
    truth,
    turned,
    unknown,
)
from planner.errors import InputFileError
from planner.words import words

_MOST_STEPS, _DEEPEST = 20_000, 12
# Methods and functions that only look at a model.
_READS = frozenset(
    words(
        """
        named_parameters parameters named_modules modules numel nelement size element_size print format
        sum len items keys values isinstance hasattr getattr type str int round sorted set list append
        any all startswith endswith lower split join state_dict dim get info debug warning max min
        enumerate range zip get_input_embeddings get_output_embeddings mean device_count
        generate
        """
    )
)
# What holds settings, and is no model and no trainer.
_IS_SETTINGS = re.compile(rf"(?:{OWN}|Config|Arguments)$")
# What is handed about and trains nothing: arguments of the program's own, and what launches it.
_IS_BESIDE = re.compile(rf"(?:{OWN}|^Accelerator)$")
# Of a list.
_LOOKS_ON = ("index", "count", "copy")
# Variables of the environment that move memory, by their names; of one of them a value is known.
_MATTERS = re.compile(r"ALLOC_CONF|ACCELERATE|FSDP|DEEPSPEED|UNSLOTH_(?!WARN|LOG|\w*STATISTICS)")
_ALLOCATOR = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
# Settings of the libraries that train which leave a model as it is; others may replace its code.
_SETTINGS = ("torch.backends", "torch._dynamo", "torch._inductor", "transformers.logging")
_MOST_LISTED = 1_000
_HARMLESS_CONFIG = words("use_cache pretraining_tp pad_token_id eos_token_id bos_token_id label2id id2label")


class _ReturnedError(Exception):
    """A function is left; with its value."""

    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value = value


class Walk(Classes):
    """Goes through a program until it trains.

    ``expands``: the line that has the allocator grow its segments.
    """

    def __init__(
        self, source: Source, capability: tuple[int, ...] | None, words: tuple[str, ...] | None = None
    ) -> None:
        super().__init__(source, capability, words)
        self._scopes: list[dict[str, Any]] = [{"__name__": "__main__"}]
        self._left, self._starred = _MOST_STEPS, ""
        self._last: dict[str, Any] = {}
        self._asked_about: list[ast.AST] = []
        self.expands = 0

    def to_training(self) -> None:
        """Walk until the trainer trains, or to the end.

        Raises:
            NotModelledError: a statement whose effect is not known.
            InputFileError: nested too deeply, or without end.
        """
        try:
            with suppress(TrainedError, _ReturnedError):
                self._body(self.source.tree.body)
            self._scopes[0] |= self._last
        except RecursionError:
            raise InputFileError(self.source.path, "nested more deeply than can be read") from None

    def _body(self, statements: Iterable[ast.stmt]) -> None:
        for statement in statements:
            self._left -= 1
            if self._left < 0:
                raise InputFileError(self.source.path, "calls itself without end, as far as can be read")
            self._statement(statement)

    def _statement(self, node: ast.stmt) -> None:
        match node:
            case ast.Import() | ast.ImportFrom():
                self._import(node)
            case ast.FunctionDef() | ast.ClassDef():
                bases = node.bases if isinstance(node, ast.ClassDef) else []
                self._bind(node.name, Own(node, tuple(ast.unparse(base) for base in bases)))
            case ast.Assign():
                value = self.value(node.value)
                for target in node.targets:
                    self._assign(target, value)
            case ast.AnnAssign():
                self._assign(node.target, unknown(node) if node.value is None else self.value(node.value))
            case ast.AugAssign():
                self._assign(node.target, self._added_to(node))
            case ast.Expr():
                self.value(node.value)
            case ast.Return():
                raise _ReturnedError(None if node.value is None else self.value(node.value))
            case _:
                self._block(node)

    def _added_to(self, node: ast.AugAssign) -> Any:
        """What a variable is after ``+=`` and its like."""
        before = self.value(ast.Name(node.target.id)) if isinstance(node.target, ast.Name) else unknown(node)
        after = self.value(node.value)
        return combined(ast.BinOp(node.target, node.op, node.value), before, after)

    def _block(self, node: ast.stmt) -> None:
        match node:
            case ast.If():
                self._if(node)
            case ast.With():
                for item in node.items:
                    self.value(item.context_expr)
                    if item.optional_vars is not None:
                        self._assign(item.optional_vars, unknown(item.context_expr))
                self._body(node.body)
            case ast.Try():
                self._body([*node.body, *node.orelse, *node.finalbody])
            case ast.For() | ast.While() | ast.AsyncFor() | ast.Match():
                self._pass_over(node)

    def _if(self, node: ast.If) -> None:
        holds = truth(self.value(node.test))
        if holds is None:
            self._pass_over(node)
        else:
            self._body(node.body if holds else node.orelse)

    def _import(self, node: ast.Import | ast.ImportFrom) -> None:
        module = node.module or "" if isinstance(node, ast.ImportFrom) else ""
        for alias in node.names:
            if alias.name == "*":
                self._starred = module
            name = f"{module}.{alias.name}" if module else alias.name
            whole = alias.asname is not None or isinstance(node, ast.ImportFrom)
            self._bind(
                alias.asname or alias.name.partition(".")[0],
                Library(name if whole else name.partition(".")[0]),
            )
            self.packages.add(name.partition(".")[0])

    def _pass_over(self, node: ast.stmt) -> None:
        """A loop, or a branch of which is not known whether it is taken: nothing of it may touch what trains.

        Raises: NotModelledError: it does, and more than look at it.
        """
        if self._is_known_loop(node):
            return
        self._leave_open(node)
        if self._touches(node) and not self._only_looks(node):
            kind = "whether this is done" if isinstance(node, ast.If | ast.Match) else "what this loop does"
            raise self.refused(node, f"{kind} to what is trained is not known")
        if isinstance(node, ast.If) and self._trains(node):
            raise TrainedError
        for inner in ast.walk(node):
            if isinstance(inner, ast.Import | ast.ImportFrom):
                self._import(inner)
            elif isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store):
                self._bind(inner.id, unknown(inner))

    def _is_known_loop(self, node: ast.stmt) -> bool:
        """Whether a loop does to a model what is known, which is entered then."""
        for name, owner in (("frozen", frozen_by(node)), ("norms_raised", norms_raised_by(node))):
            model = None if owner is None else self._named(owner)
            if isinstance(model, Model) and (name != "frozen" or model.adapters is None):
                setattr(model, name, node.lineno)
                return True
        return False

    def _only_looks(self, node: ast.AST) -> bool:
        """Whether nothing in it can change a model: no attribute is set but of settings, which are open then,
        and what is called looks on, or gets nothing of it.
        """
        inner = {each.id for each in ast.walk(node) if isinstance(each, ast.Name) and _is_set(each)}
        return all(self._looks_on(each, inner) for each in ast.walk(node))

    def _looks_on(self, node: ast.AST, inner: set[str]) -> bool:
        """Whether a part of a statement leaves a model as it is; ``inner``: names that the statement sets."""
        match node:
            case ast.Name() if _is_set(node):
                return not isinstance(self._looked_up(node.id), Made)
            case ast.Attribute() if _is_set(node):
                owner = self._named(node.value)
                harmless = isinstance(owner, Model) and node.attr in HARMLESS_ATTRIBUTES
                return harmless or (isinstance(owner, Made) and _IS_SETTINGS.search(owner.kind) is not None)
            case ast.Subscript() if _is_set(node):
                # Rows of a table of its own, such as those of new tokens, have other values then.
                return isinstance(node.ctx, ast.Store) and not isinstance(self._named(node.value), Made)
            case ast.Call(func=called):
                name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
                names = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
                known = name in _READS or is_harmless_call(name)
                return known or not (names & inner or self._touches(node))
        return True

    def _trains(self, node: ast.AST) -> bool:
        """Whether the trainer trains in it."""
        calls = (each.func for each in ast.walk(node) if isinstance(each, ast.Call))
        parts = (each for each in calls if isinstance(each, ast.Attribute) and each.attr == "train")
        return self.trainer is not None and any(self._named(each.value) is self.trainer for each in parts)

    def _leave_open(self, node: ast.stmt) -> None:
        """Tables, lists and arguments of the program's own that a statement changes, or may: they are not
        known from here on.
        """
        for each in ast.walk(node):
            if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store):
                owner = self._named(each.value)
                if isinstance(owner, Made) and _IS_SETTINGS.search(owner.kind):
                    owner.given[each.attr] = unknown(each)
            elif isinstance(each, ast.Subscript) and isinstance(each.ctx, ast.Store):
                self._set_item(each, unknown(each))
            elif isinstance(each, ast.Call) and isinstance(each.func, ast.Name):
                if isinstance(self._named(each.func), Own):
                    self._hand_to_own(each)
            elif isinstance(each, ast.Call) and isinstance(each.func, ast.Attribute):
                owner = self._named(each.func.value)
                if isinstance(owner, dict) and each.func.attr not in _READS:
                    owner["**"] = unknown(each)
                elif isinstance(owner, list) and each.func.attr not in _LOOKS_ON:
                    owner.append(unknown(each))

    def _hand_to_own(self, node: ast.Call) -> None:
        """Arguments of the program's own, and tables, that a function of the program may change."""
        for each in (*node.args, *(keyword.value for keyword in node.keywords)):
            value = self._named(each)
            if isinstance(value, Made) and value.kind.endswith(OWN):
                value.given = {name: Unknown(f"{ast.unparse(each)}.{name}") for name in value.given}
            elif isinstance(value, dict):
                value["**"] = unknown(each)

    def _named(self, node: ast.expr) -> Any:
        """What a name, or a part of what it names, stands for, without any call."""
        root = node
        while isinstance(root, ast.Attribute):
            root = root.value
        return self.value(node) if isinstance(root, ast.Name) else None

    def _touches(self, node: ast.AST) -> bool:
        """Whether a model, a trainer, or settings as a whole are in it, or what makes them."""
        parts = {id(each.value) for each in ast.walk(node) if isinstance(each, ast.Attribute)}
        for each in ast.walk(node):
            value = self._looked_up(each.id) if isinstance(each, ast.Name) else None
            if isinstance(value, Library) and self.makes(value):
                return True
            if isinstance(value, Own) and self._may_change(value):
                return True
            if isinstance(value, Made) and not _IS_BESIDE.search(value.kind):
                of_settings = _IS_SETTINGS.search(value.kind) is not None
                if not (of_settings and id(each) in parts):
                    return True
        return False

    def _may_change(self, own: Own) -> bool:
        """Whether a function of the program may change what trains, which it does not get as an argument."""
        if own.node in self._asked_about or isinstance(own.node, ast.ClassDef):
            return False
        self._asked_about.append(own.node)
        try:
            return self._touches(own.node) and not self._only_looks(own.node)
        finally:
            self._asked_about.pop()

    def stay(self) -> None:
        """Keep the names of the function that makes the trainer, or trains."""
        if len(self._scopes) > 1:
            self._last |= self._scopes[-1]

    def _bind(self, name: str, value: Any) -> None:
        self._scopes[-1][name] = value

    def _looked_up(self, name: str) -> Any:
        for scope in (self._scopes[-1], self._scopes[0]):
            if name in scope:
                return scope[name]
        # Of classes that every name of a package was imported with.
        package = self._starred if name[:1].isupper() else ""
        return Library(f"{package or 'builtins'}.{name}")

    def _assign(self, target: ast.expr, value: Any) -> None:
        match target:
            case ast.Name():
                self._bind(target.id, value)
            case ast.Tuple() | ast.List():
                parts: Sequence[Any] = value if isinstance(value, list | tuple) else ()
                if len(parts) != len(target.elts):
                    parts = [unknown(each) for each in target.elts]
                for each, part in zip(target.elts, parts, strict=True):
                    self._assign(each, part)
            case ast.Attribute():
                self.set(target, value)
            case ast.Subscript():
                self._set_item(target, value)

    def _set_item(self, target: ast.Subscript, value: Any) -> None:
        """An item: of the environment it may set the allocator or an engine."""
        owner, key = self.value(target.value), self.value(target.slice)
        if isinstance(owner, Library) and owner.name == "os.environ":
            self.set_environment(target, key, value)
        elif isinstance(owner, dict):
            owner[key if isinstance(key, str) else "**"] = value
        elif isinstance(owner, list):
            owner.append(unknown(target))

    def set_environment(self, node: ast.AST, name: Any, value: Any) -> None:
        """A variable of the environment: it may set the allocator or an engine."""
        self.variables[str(name)] = value
        if not _MATTERS.search(str(name)):
            return
        if name in _ALLOCATOR and value == "expandable_segments:True":
            self.expands = getattr(node, "lineno", 0)
        else:
            raise self.refused(node, "what this variable changes is not known")

    def set(self, target: ast.Attribute, value: Any) -> None:
        """An attribute: of arguments it is one of them, of a library it may replace code."""
        owner = self.value(target.value)
        if isinstance(owner, Made):
            self.set_attribute(owner, target, value)
        elif isinstance(owner, Own):
            self.set_on_classes.setdefault(id(owner.node), {})[target.attr] = value
        elif isinstance(owner, Library) and owner.trains and not owner.name.startswith(_SETTINGS):
            raise self.refused(target, f"what it changes in {owner.name} is not known")
        elif not isinstance(owner, Library) and not _is_harmless(target) and self._touches(target):
            raise self.refused(target, "what this changes in what is trained is not known")

    def value(self, node: ast.expr) -> Any:
        """What an expression is, as far as the text says; calls have their effect."""
        match node:
            case ast.Constant():
                return node.value
            case ast.Name():
                return self._looked_up(node.id)
            case ast.Attribute():
                return self.attribute(node, self.value(node.value))
            case ast.Call():
                return self.call(node)
            case ast.List() | ast.Tuple() | ast.Set():
                return [self.value(each) for each in node.elts]
            case ast.Dict():
                return self._table(node)
            case _:
                return self._operation(node)

    def _table(self, node: ast.Dict) -> Any:
        keys = [None if key is None else self.value(key) for key in node.keys]
        values = [self.value(each) for each in node.values]
        return (
            dict(zip(keys, values, strict=True))
            if all(isinstance(key, str) for key in keys)
            else unknown(node)
        )

    def _operation(self, node: ast.expr) -> Any:
        match node:
            case ast.BinOp():
                return combined(node, self.value(node.left), self.value(node.right))
            case ast.Compare():
                return compared(node, [self.value(each) for each in (node.left, *node.comparators)])
            case ast.BoolOp():
                return any_or_all(node, [self.value(each) for each in node.values])
            case ast.UnaryOp():
                return turned(node, self.value(node.operand))
            case ast.IfExp():
                holds = truth(self.value(node.test))
                return unknown(node) if holds is None else self.value(node.body if holds else node.orelse)
            case ast.Subscript() | ast.JoinedStr():
                return self._item(node) if isinstance(node, ast.Subscript) else self._text(node)
            case ast.ListComp(generators=[ast.comprehension(target=ast.Name(name)) as each]):
                return self._listed(node, name, each)
            case _:
                return unknown(node)

    def _listed(self, node: ast.ListComp, name: str, each: ast.comprehension) -> Any:
        """A list made of the texts of another: ``[part.strip() for part in given.split(",") if part]``."""
        texts, made = self.value(each.iter), list[Any]()
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            return unknown(node)
        scope = self._scopes[-1]
        for text in texts[:_MOST_LISTED]:
            self._scopes[-1] = {**scope, name: text}
            kept = [truth(self.value(test)) for test in each.ifs]
            made += [] if False in kept else [unknown(node) if None in kept else self.value(node.elt)]
        self._scopes[-1] = scope
        return made if len(texts) <= _MOST_LISTED else unknown(node)

    def _item(self, node: ast.Subscript) -> Any:
        owner, index = self.value(node.value), self.value(node.slice)
        try:
            return owner[index] if isinstance(owner, list | tuple | dict) else unknown(node)
        except (LookupError, TypeError):
            return unknown(node)

    def _text(self, node: ast.JoinedStr) -> Any:
        parts = [
            self.value(each.value if isinstance(each, ast.FormattedValue) else each) for each in node.values
        ]
        plain = all(isinstance(part, str | int) for part in parts)
        return "".join(map(str, parts)) if plain else unknown(node)

    def inlined(self, own: Own, node: ast.Call) -> Any:
        """What a function of the program gives back, gone through with its arguments."""
        given, function = self.arguments(node), own.node
        if isinstance(function, ast.ClassDef):
            return self.own_class(own, given, node)
        return self.called_with(function, self.bound(function, given))

    def called_with(self, function: ast.FunctionDef, values: dict[str, Any]) -> Any:
        """What a function of the program gives back, gone through with these values."""
        if len(self._scopes) > _DEEPEST:
            raise InputFileError(self.source.path, "calls itself without end, as far as can be read")
        self._scopes.append(dict(values))
        try:
            self._body(function.body)
        except _ReturnedError as left:
            return left.value
        finally:
            self._scopes.pop()
        return None

    def bound(self, function: ast.FunctionDef, given: tuple[list[Any], dict[str, Any]]) -> dict[str, Any]:
        """Parameters of a function with what they get: an argument, else a default."""
        names = [each.arg for each in (*function.args.posonlyargs, *function.args.args)]
        extra = [each.arg for each in function.args.kwonlyargs]
        found: dict[str, Any] = {name: Unknown(name) for name in (*names, *extra)}
        defaults = function.args.defaults
        found |= zip(names[len(names) - len(defaults) :], map(self.value, defaults), strict=True)
        for name, default in zip(extra, function.args.kw_defaults, strict=True):
            if default is not None:
                found[name] = self.value(default)
        found |= zip(names, given[0], strict=False)
        return found | given[1]


def _is_harmless(target: ast.Attribute) -> bool:
    """Whether an attribute says nothing of a training step: what is generated, labels, special tokens."""
    return target.attr in _HARMLESS_CONFIG or "generation_config" in ast.unparse(target)


def _is_set(node: ast.Name | ast.Attribute | ast.Subscript) -> bool:
    return isinstance(node.ctx, ast.Store | ast.Del)
