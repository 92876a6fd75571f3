"""Statements of which is not known whether they are done, or how often: they must not touch what trains."""

from __future__ import annotations

import ast
import re
from abc import abstractmethod
from collections.abc import Iterator
from typing import Any, TypeGuard

from planner.configs.programs.calls import TrainedError
from planner.configs.programs.looks import HARMLESS_ATTRIBUTES, READS, is_harmless, only_reads
from planner.configs.programs.loops import frozen_by, norms_raised_by
from planner.configs.programs.modules import Modules
from planner.configs.programs.python_calls import Card
from planner.configs.programs.source import Source
from planner.configs.programs.values import (
    OWN,
    SETTINGS,
    Library,
    Made,
    Model,
    Module,
    Own,
    Part,
    Unknown,
    unknown,
)
from planner.words import words

# What holds settings, and is no model and no trainer.
_IS_SETTINGS = re.compile(rf"(?:{OWN}|{SETTINGS.pattern})")
# What is handed about and trains nothing: arguments of the program's own, and what launches it.
_IS_BESIDE = re.compile(rf"(?:{OWN}|^Accelerator)$")
_OF_CHAT = {*words("info print warning"), "setup_chat_format"}
_SET_ANY = ("setattr", "vars")
# Of a list.
_LOOKS_ON = ("index", "count", "copy")


class PassedOver(Modules):
    """Loops and branches that the text does not decide.

    ``returns_maybe``: the line of one in which the present function ends; 0 where there is none.
    """

    def __init__(self, source: Source, card: Card, words: tuple[str, ...] | None = None) -> None:
        super().__init__(source, card, words)
        self._asked_about: list[ast.AST] = []
        self._opened: list[ast.AST] = []
        self.returns_maybe = 0

    @abstractmethod
    def unrolled(self, node: ast.For) -> bool:
        """Go through a loop for each of its values, where the text says them."""

    def pass_over(self, node: ast.stmt) -> None:
        """A loop, or a branch of which is not known whether it is taken: nothing of it may touch what trains.

        Raises: NotModelledError: it does, and more than look at it.
        """
        if self._is_known_loop(node):
            return
        if isinstance(node, ast.For) and self.unrolled(node):
            return
        ends = any(isinstance(each, ast.Return) for each in _of_this_function(node))
        self.returns_maybe = self.returns_maybe or ends * node.lineno
        is_loop = isinstance(node, ast.For | ast.While | ast.AsyncFor)
        self.stays_as_it_is(node, "what this loop does" if is_loop else "whether this is done")
        if isinstance(node, ast.If) and self._trains(node):
            raise TrainedError
        for inner in self.parts_of(node):
            if isinstance(inner, ast.Import | ast.ImportFrom):
                self.imports(inner)
            else:
                for name in _bound_by(inner):
                    self.bind(name, unknown(inner))

    def stays_as_it_is(self, node: ast.AST, what: str) -> None:
        """What a statement changes beside what trains is open from here on.

        Raises: NotModelledError: it may change what trains.
        """
        self.leave_open(node)
        if self.touches(node) and not self.only_looks(node):
            raise self.refused(node, f"{what} to what is trained is not known")

    def _is_known_loop(self, node: ast.stmt) -> bool:
        """Whether a loop does to a model what is known, which is entered then."""
        for name, owner in (("frozen", frozen_by(node)), ("norms_raised", norms_raised_by(node))):
            model = None if owner is None else self.named(owner)
            if isinstance(model, Model) and (name != "frozen" or model.adapters is None):
                setattr(model, name, node.lineno)
                return True
        return False

    def only_looks(self, node: ast.AST) -> bool:
        """Whether nothing in it can change a model: no attribute is set but of settings, which are open then,
        and what is called looks on, or gets nothing of it.
        """
        inner = {each.id for each in self.parts_of(node) if isinstance(each, ast.Name) and is_set(each)}
        return all(self._looks_on(each, inner) for each in self.parts_of(node))

    def _looks_on(self, node: ast.AST, inner: set[str]) -> bool:
        """Whether a part of a statement leaves a model as it is; ``inner``: names that the statement sets."""
        match node:
            case ast.Name() if is_set(node):
                value = self.looked_up(node.id)
                return not isinstance(value, Made) or self.has_already(value)
            case ast.Attribute() if is_set(node):
                owner = self.named(node.value)
                harmless = isinstance(owner, Model) and node.attr in HARMLESS_ATTRIBUTES
                harmless |= isinstance(owner, Unknown) and is_harmless(node)
                return harmless or (isinstance(owner, Made) and _IS_SETTINGS.search(owner.kind) is not None)
            case ast.Subscript() if is_set(node):
                # Rows of a table of its own, such as those of new tokens, have other values then.
                return isinstance(node.ctx, ast.Store) and not isinstance(self.named(node.value), Made)
            case ast.Call(func=called):
                name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
                names = {each.id for each in self.parts_of(node) if isinstance(each, ast.Name)}
                compiles = name == "compile" and node.args and self.has_already(self.named(node.args[0]))
                known = only_reads(name) or compiles
                return known or self._own_looks_on(node) or not (names & inner or self.touches(node))
        return True

    def _own_looks_on(self, node: ast.Call) -> bool:
        """Whether it is a function of the program that leaves its arguments as they are."""
        own = self.named(node.func)
        if not isinstance(own, Own) or isinstance(own.node, ast.ClassDef):
            return False
        plain = all(isinstance(each, ast.Name | ast.Attribute | ast.Constant) for each in node.args)
        if not plain or node.keywords:
            return False
        names = self.bound(own, ([self.named(each) for each in node.args], {}))
        return own.node not in self._asked_about and not self._may_change(own, names)

    def _trains(self, node: ast.AST) -> bool:
        """Whether the trainer trains in it."""
        calls = (each.func for each in self.parts_of(node) if isinstance(each, ast.Call))
        parts = (each for each in calls if isinstance(each, ast.Attribute) and each.attr == "train")
        return self.trainer is not None and any(self.named(each.value) is self.trainer for each in parts)

    def leave_open(self, node: ast.AST) -> None:
        """Tables, lists and arguments of the program's own that a statement changes, or may: they are not
        known from here on.
        """
        for each in self.parts_of(node):
            match each:
                case ast.Attribute(ctx=ast.Store()):
                    self._leave_attribute_open(self.named(each.value), each)
                case ast.Subscript(ctx=ast.Store()):
                    self.set_item(each, unknown(each))
                case ast.Call(func=ast.Name(id="setattr"), args=[owner, *_]):
                    self._leave_all_open(self.named(owner))
                case ast.Call(func=ast.Name()) if isinstance(own := self.named(each.func), Own):
                    self._hand_to_own(each)
                    self._leave_open_in(own)
                case ast.Call(func=ast.Attribute() as method):
                    self._leave_open_by(each, method)

    def _leave_attribute_open(self, owner: Any, node: ast.Attribute) -> None:
        if isinstance(owner, Made) and _IS_SETTINGS.search(owner.kind):
            owner.given[node.attr] = unknown(node)
        elif isinstance(owner, Own):
            self.set_on_classes.setdefault(id(owner.node), {})[node.attr] = unknown(node)
        elif isinstance(owner, Module):
            owner.scope[node.attr] = unknown(node)

    def _leave_all_open(self, owner: Any) -> None:
        if isinstance(owner, Made) and _IS_SETTINGS.search(owner.kind):
            owner.given = {name: Unknown(name) for name in owner.given} | {"**": Unknown("**")}
        elif isinstance(owner, Own):
            fields = self.asked(owner).fields
            self.set_on_classes[id(owner.node)] = {name: Unknown(name) for name in fields}

    def _leave_open_in(self, own: Own) -> None:
        """What a function of the program changes: names of its file, or of the function around it, and what
        it sees of tables, lists and settings.
        """
        if own.node in self._opened or isinstance(own.node, ast.ClassDef):
            return
        self._opened.append(own.node)
        try:
            self._leave_names_open(own)
            with self.within((*(own.scopes or self.scopes), self.bound(own, ([], {})))):
                self.leave_open(own.node)
        finally:
            self._opened.pop()

    def _leave_names_open(self, own: Own) -> None:
        for each in self.parts_of(own.node):
            for name in each.names if isinstance(each, ast.Global | ast.Nonlocal) else ():
                scopes = own.scopes or self.scopes
                found = scopes[:1] if isinstance(each, ast.Global) else [s for s in scopes[1:] if name in s]
                # A function around it that sets the name later has it anew.
                for scope in found[-1:]:
                    scope[name] = Unknown(name)

    def _leave_open_by(self, node: ast.Call, method: ast.Attribute) -> None:
        """What a method may change of a table, a list or an instance of the program's own."""
        owner = self.named(method.value)
        if isinstance(owner, Made) and owner.by is not None:
            for name in self._sets_of(owner, owner.by, method.attr):
                owner.given[name] = Unknown(f"self.{name}")
            self._hand_to_own(node)
        elif isinstance(owner, dict) and method.attr not in READS:
            owner["**"] = unknown(node)
        elif isinstance(owner, list) and method.attr not in _LOOKS_ON:
            owner.append(unknown(node))

    def hand_over(self, node: ast.Call, values: list[Any], *, foreign: bool) -> None:
        """Functions of the program that something else calls, and settings that they, or a ``foreign``
        function, may change.

        Raises: NotModelledError: one may change what trains.
        """
        functions = [
            each for each in values if isinstance(each, Own) and not isinstance(each.node, ast.ClassDef)
        ]
        for each in functions:
            if self._may_change(each, self.bound(each, ([], {}))):
                raise self.refused(node, "what this does with what is trained is not known")
            self._leave_open_in(each)
        sets = any(self._sets_attributes(each.node) for each in functions)
        for each in values:
            if sets or (foreign and isinstance(each, Made) and SETTINGS.match(each.kind)):
                self._leave_all_open(each)

    def _sets_attributes(self, node: ast.AST) -> bool:
        return any(
            (isinstance(each, ast.Attribute) and is_set(each))
            or (isinstance(each, ast.Name) and each.id in _SET_ANY)
            for each in self.parts_of(node)
        )

    def _sets_of(self, owner: Made, own: Own, name: str, seen: frozenset[str] = frozenset()) -> set[str]:
        """Attributes of an instance that one of its methods sets, or may."""
        method = self.method_of(own, name)
        if method is None or name in seen:
            return set()
        itself, found = next(iter(self.as_itself(method, owner)), ""), set[str]()
        for each in self.parts_of(method.node):
            if isinstance(each, ast.Attribute) and getattr(each.value, "id", None) == itself:
                found |= {each.attr} if is_set(each) else self._sets_of(owner, own, each.attr, seen | {name})
            elif isinstance(each, ast.Name) and each.id in _SET_ANY:
                found |= owner.given.keys()
        return found

    def _hand_to_own(self, node: ast.Call) -> None:
        """Arguments of the program's own, and tables, that a function of the program may change."""
        for each in (*node.args, *(keyword.value for keyword in node.keywords)):
            value = self.named(each)
            if isinstance(value, Made) and value.kind.endswith(OWN):
                value.given = {name: Unknown(f"{ast.unparse(each)}.{name}") for name in value.given}
            elif isinstance(value, dict):
                value["**"] = unknown(each)

    def named(self, node: ast.expr) -> Any:
        """What a name, or a part of what it names, stands for, without any call."""
        root = node
        while isinstance(root, ast.Attribute):
            root = root.value
        return self.value(node) if isinstance(root, ast.Name) else None

    def touches(self, node: ast.AST) -> bool:
        """Whether a model, a trainer, or settings as a whole are in it, or what makes them."""
        parts = {id(each.value) for each in self.parts_of(node) if isinstance(each, ast.Attribute)}
        for each in self.parts_of(node):
            if not isinstance(each, ast.Name | ast.Attribute):
                continue
            if isinstance(each, ast.Attribute) and self._calls_what_changes(each):
                return True
            value = self.looked_up(each.id) if isinstance(each, ast.Name) else self.named(each)
            if isinstance(value, Part):
                return True
            if isinstance(value, Library) and self.makes(value):
                return True
            if isinstance(value, Own) and self._may_change(value, {}):
                return True
            if isinstance(value, list | dict) and self.trains_in(value):
                return True
            if isinstance(value, Made) and not _IS_BESIDE.search(value.kind):
                of_settings = _IS_SETTINGS.search(value.kind) is not None
                if not (of_settings and id(each) in parts):
                    return True
        return False

    def _calls_what_changes(self, node: ast.Attribute) -> bool:
        return self.changes_by(self.named(node.value), node)

    def changes_by(self, owner: Any, node: ast.Attribute) -> bool:
        """Whether it is a method of the program that may change what trains."""
        method = self.method_of(owner.by, node.attr) if isinstance(owner, Made) and owner.by else None
        return method is not None and self._may_change(method, self.as_itself(method, owner))

    def _may_change(self, own: Own, names: dict[str, Any]) -> bool:
        """Whether a function of the program may change what trains, which it does not get as an argument."""
        if own.node in self._asked_about or isinstance(own.node, ast.ClassDef):
            return False
        self._asked_about.append(own.node)
        try:
            with self.within((*(own.scopes or self.scopes), names)):
                return self.touches(own.node) and not self.only_looks(own.node)
        finally:
            self._asked_about.pop()


def _of_this_function(node: ast.AST) -> Iterator[ast.AST]:
    """The statements in a statement, without those of functions in it."""
    yield node
    for each in ast.iter_child_nodes(node):
        if not isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            yield from _of_this_function(each)


def _bound_by(node: ast.AST) -> Iterator[str]:
    """Names that a part of a statement sets."""
    match node:
        case ast.Name(id=name, ctx=ast.Store() | ast.Del()):
            yield name
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            yield node.name
        case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
            yield name
        case ast.MatchMapping(rest=str(name)):
            yield name


def is_set(node: ast.Name | ast.Attribute | ast.Subscript) -> bool:
    """Whether a statement sets or deletes it."""
    return isinstance(node.ctx, ast.Store | ast.Del)


def only_adds_tokens(node: ast.If) -> bool:
    """Whether a branch prints, and gives model and tokenizer the tokens of a chat, as the scripts of TRL do
    where the tokenizer has no template (trl 0.9.6 to 0.20.0 scripts/sft.py): their rows are not counted.
    """
    calls = [each.value for each in node.body if isinstance(each, ast.Expr | ast.Assign)]
    names = [getattr(each.func, "attr", getattr(each.func, "id", "")) for each in calls if _is_call(each)]
    plain = len(names) == len(node.body) and not node.orelse
    return plain and "setup_chat_format" in names and {*names} <= _OF_CHAT


def _is_call(node: ast.expr | None) -> TypeGuard[ast.Call]:
    return isinstance(node, ast.Call)
