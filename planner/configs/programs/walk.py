"""The statements of a training program in their order: which model, adapters and trainer they make.

Nothing is run.  What a statement does to a model, its arguments or its trainer must be known; the program is
refused otherwise, with the line.  What it does to data and reports is passed over.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

from planner.configs.programs.calls import TrainedError
from planner.configs.programs.classes import besides_fields
from planner.configs.programs.looks import is_harmless
from planner.configs.programs.names import ELSEWHERE
from planner.configs.programs.passed_over import PassedOver, only_adds_tokens
from planner.configs.programs.python_calls import Card
from planner.configs.programs.source import Source
from planner.configs.programs.values import (
    Library,
    Made,
    Model,
    Module,
    Opened,
    Own,
    Part,
    Unknown,
    changed_table,
    combined,
    compared,
    is_known,
    joined,
    part,
    sliced,
    truth,
    turned,
    unknown,
)
from planner.errors import InputFileError

_DEEPEST = 12
# What a statement counts beside its parts.
_OF_STATEMENT = 20
# Settings of the libraries that train which leave a model as it is; others may replace its code.
_SETTINGS = ("torch.backends", "torch._dynamo", "torch._inductor", "transformers.logging")
_MOST_LISTED, _MOST_TURNS = 1_000, 100


class _ReturnedError(Exception):
    """A function is left; with its value."""

    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value = value


class Walk(PassedOver):
    """Goes through a program until it trains."""

    def __init__(self, source: Source, card: Card, words: tuple[str, ...] | None = None) -> None:
        super().__init__(source, card, words)
        self._depth = 0

    def to_training(self) -> None:
        """Walk until the trainer trains, or to the end.

        Raises:
            NotModelledError: a statement whose effect is not known.
            InputFileError: without end.
        """
        with suppress(TrainedError, _ReturnedError):
            self._body(self.source.tree.body)
        self.scopes[0] |= self._last

    def _body(self, statements: Iterable[ast.stmt]) -> None:
        for statement in statements:
            self.look(_OF_STATEMENT)
            self._statement(statement)

    def _statement(self, node: ast.stmt) -> None:
        match node:
            case ast.Import() | ast.ImportFrom():
                self.imports(node)
            case ast.FunctionDef() | ast.ClassDef():
                self._define(node)
            case ast.Assign() if self._says_what_is_saved(node):
                pass
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
            case ast.Return() | ast.Raise() | ast.Assert():
                self._may_end(node)
            case _:
                self._block(node)

    def _define(self, node: ast.FunctionDef | ast.ClassDef) -> None:
        if isinstance(node, ast.FunctionDef):
            self.bind(node.name, self._decorated(Own(node, (), tuple(self.scopes))))
            return
        names = tuple(ast.unparse(base) for base in node.bases)
        # ``class TrainingArguments(TrainingArguments)``: the base is what had the name before.
        before = ({node.name: self.looked_up(node.name)},) if node.name in names else ()
        self.bind(node.name, Own(node, names, (*self.scopes, *before)))
        with self.within((*self.scopes, {})):
            for each in besides_fields(node):
                self.pass_over(each)

    def _decorated(self, own: Own) -> Any:
        """A function, as a function of the program above it makes it anew."""
        made: Any = own
        for each in reversed(own.node.decorator_list):
            wraps = self.value(each)
            if isinstance(wraps, Own) and not isinstance(wraps.node, ast.ClassDef):
                made = self.called_with(wraps, self.bound(wraps, ([made], {})))
        return made

    def _may_end(self, node: ast.Return | ast.Raise | ast.Assert) -> None:
        match node:
            case ast.Return(value=value):
                raise _ReturnedError(None if value is None else self.value(value))
            case ast.Raise(exc=ast.Call(func=ast.Name(id="SystemExit")) as value):
                self.arguments(value)
                self.stop(node)
            case ast.Raise():
                self._raised(node)
            case ast.Assert() if truth(self.value(node.test)) is False:
                self._raised(node)

    def _raised(self, node: ast.AST) -> None:
        """An error of the program's own, which ends it.  Where a function may have ended before, or a command
        or an environment would say more, only a run knows whether it comes here.

        Raises: NotModelledError: it does.
        """
        if self.returns_maybe:
            raise _ReturnedError(None)
        if self.asked_variables or (self.parsed and self.words is None):
            return
        raise self.refused(node, "the program stops here before it trains")

    def stop(self, node: ast.AST) -> None:
        """The program ends: with the trainer that it made, where it made one."""
        if self.trainer is not None and not self.returns_maybe:
            raise TrainedError
        self._raised(node)

    def _says_what_is_saved(self, node: ast.Assign) -> bool:
        """Whether it is the ``state_dict`` of a model that is set, as in alpaca-lora's finetune.py."""
        match node.targets:
            case [ast.Attribute(attr="state_dict", value=ast.Name(id=name))]:
                return isinstance(self.looked_up(name), Model)
        return False

    def _added_to(self, node: ast.AugAssign) -> Any:
        """What a variable is after ``+=`` and its like."""
        before = self.value(ast.Name(node.target.id)) if isinstance(node.target, ast.Name) else unknown(node)
        after = self.value(node.value)
        found = combined(ast.BinOp(node.target, node.op, node.value), before, after)
        # Python changes lists and tables under their other names, too, and makes another tuple.
        if isinstance(before, dict):
            before |= found if isinstance(found, dict) else {"**": unknown(node)}
            return before
        if isinstance(before, list) and not isinstance(node.value, ast.Tuple):
            before[:] = found if isinstance(found, list) else [unknown(node)]
            return before
        return found

    def _block(self, node: ast.stmt) -> None:
        match node:
            case ast.If():
                self._if(node)
            case ast.With():
                for item in node.items:
                    made = self.value(item.context_expr)
                    if item.optional_vars is not None:
                        opened = isinstance(made, Opened)
                        self._assign(item.optional_vars, made if opened else unknown(item.context_expr))
                self._body(node.body)
            case ast.Try() | ast.TryStar():
                self._body([*node.body, *node.orelse, *node.finalbody])
            case ast.For() | ast.While() | ast.AsyncFor() | ast.Match():
                self.pass_over(node)
            case ast.Global() | ast.Nonlocal():
                outer = self.scopes[:1] if isinstance(node, ast.Global) else self.scopes[1:-1]
                found = {name: scope for scope in outer for name in node.names if name in scope}
                places = dict.fromkeys(node.names, self.scopes[0]) | found
                self.scopes[-1].setdefault(ELSEWHERE, {}).update(places)
            case ast.Delete():
                for target in node.targets:
                    self._delete(target)

    def _delete(self, target: ast.expr) -> None:
        """``del``: a name is gone, or an item of a table; parts of what trains must stay."""
        owner = self.value(target.value) if isinstance(target, ast.Attribute | ast.Subscript) else None
        if isinstance(target, ast.Name):
            self.bind(target.id, unknown(target))
        elif isinstance(target, ast.Subscript) and isinstance(owner, dict):
            changed_table(owner, "pop", [self.value(target.slice)], {})
        elif isinstance(owner, list):
            owner.append(unknown(target))
        elif isinstance(owner, Made) or self.touches(target):
            raise self.refused(target, "what this changes in what is trained is not known")

    def _if(self, node: ast.If) -> None:
        holds = truth(self.value(node.test))
        if holds is None and not only_adds_tokens(node):
            self.pass_over(node)
        else:
            self._body(node.orelse if holds is False else node.body)

    def names_made_by(self, tree: ast.Module, scope: dict[str, Any]) -> None:
        """Go through the statements of a file, which put names into ``scope``."""
        with self.within((scope,)):
            self._body(tree.body)

    def _assign(self, target: ast.expr, value: Any) -> None:
        match target:
            case ast.Name():
                self.bind(target.id, value)
            case ast.Tuple() | ast.List():
                parts: Sequence[Any] = value if isinstance(value, list | tuple) else ()
                if len(parts) != len(target.elts):
                    parts = [unknown(each) for each in target.elts]
                for each, part in zip(target.elts, parts, strict=True):
                    self._assign(each, part)
            case ast.Attribute():
                self.set(target, value)
            case ast.Subscript():
                self.set_item(target, value)

    def set(self, target: ast.Attribute, value: Any) -> None:
        """An attribute: of arguments it is one of them, of a library it may replace code."""
        owner = self.value(target.value)
        if isinstance(owner, Made):
            self.set_attribute(owner, target, value)
        elif isinstance(owner, Module):
            owner.scope[target.attr] = value
        elif isinstance(owner, Own):
            self.set_on_classes.setdefault(id(owner.node), {})[target.attr] = value
        elif isinstance(owner, Library) and f"{owner.name}.{target.attr}" == "os.environ":
            raise self.refused(target, "which variables this changes is not known")
        elif isinstance(owner, Library) and owner.trains and not owner.name.startswith(_SETTINGS):
            raise self.refused(target, f"what it changes in {owner.name} is not known")
        elif not isinstance(owner, Library) and not is_harmless(target) and self.touches(target):
            raise self.refused(target, "what this changes in what is trained is not known")

    def value(self, node: ast.expr) -> Any:
        """What an expression is, as far as the text says; calls have their effect."""
        self.look()
        match node:
            case ast.Constant():
                return node.value
            case ast.Name():
                return self.looked_up(node.id)
            case ast.Attribute():
                return self.attribute(node, self.value(node.value))
            case ast.Call():
                return self.call(node)
            case ast.List() | ast.Tuple() | ast.Set():
                return self._listed_out(node)
            case ast.Dict():
                return self._table(node)
            case _:
                return self._operation(node)

    def _listed_out(self, node: ast.List | ast.Tuple | ast.Set) -> Any:
        found = list[Any]()
        for each in node.elts:
            value = self.value(each.value if isinstance(each, ast.Starred) else each)
            if not isinstance(each, ast.Starred):
                value = [value]
            elif not isinstance(value, list):
                return unknown(node)
            self.look(len(value))
            found += value
        return found

    def _table(self, node: ast.Dict) -> Any:
        table = dict[str, Any]()
        for key, each in zip(node.keys, node.values, strict=True):
            name, value = None if key is None else self.value(key), self.value(each)
            if key is None:
                table |= value if isinstance(value, dict) else {"**": unknown(each)}
            elif isinstance(name, str):
                table[name] = value
            else:
                return unknown(node)
        return table

    def _operation(self, node: ast.expr) -> Any:
        match node:
            case ast.BinOp():
                return combined(node, self.value(node.left), self.value(node.right))
            case ast.Compare():
                return compared(node, [self.value(each) for each in (node.left, *node.comparators)])
            case ast.BoolOp():
                return self._settled(node)
            case ast.UnaryOp():
                return turned(node, self.value(node.operand))
            case ast.IfExp():
                holds = truth(self.value(node.test))
                return (
                    self._overlooked(node)
                    if holds is None
                    else self.value(node.body if holds else node.orelse)
                )
            case _:
                return self._composed(node)

    def _settled(self, node: ast.BoolOp) -> Any:
        """``and`` or ``or``: the first value that settles it; those behind it are not asked."""
        stops, value = isinstance(node.op, ast.Or), None
        for number, each in enumerate(node.values):
            value = self.value(each)
            holds = truth(value)
            if holds is None:
                for behind in node.values[number + 1 :]:
                    self._overlooked(behind)
                return unknown(node)
            if holds is stops:
                break
        return value

    def _composed(self, node: ast.expr) -> Any:
        match node:
            case ast.Subscript():
                return self._item(node)
            case ast.JoinedStr():
                return self._text(node)
            case ast.ListComp(generators=[ast.comprehension(target=ast.Name(name)) as each]):
                return self._listed(node, name, each)
            case ast.NamedExpr():
                value = self.value(node.value)
                self.bind(node.target.id, value)
                return value
            case ast.Lambda():
                names = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
                with self.within((*self.scopes, {each.arg: Unknown(each.arg) for each in names})):
                    return self._overlooked(node)
            case ast.Slice():
                return unknown(node)
            case _:
                return self._overlooked(node)

    def _overlooked(self, node: ast.expr) -> Any:
        """An expression that is not gone through, as most comprehensions: none of it may touch what trains.

        Raises: NotModelledError: it does, and more than look at it.
        """
        self.leave_open(node)
        if self.touches(node) and not self.only_looks(node):
            raise self.refused(node, "what this does to what is trained is not known")
        for each in self.parts_of(node):
            if isinstance(each, ast.NamedExpr):
                self.bind(each.target.id, unknown(each.value))
        match node:
            case ast.ListComp(elt=ast.Name()) if self.touches(node):
                return part(node)
        return unknown(node)

    def _listed(self, node: ast.ListComp, name: str, each: ast.comprehension) -> Any:
        """A list made of the texts of another: ``[part.strip() for part in given.split(",") if part]``."""
        texts, made = self.value(each.iter), list[Any]()
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            return self._overlooked(node)
        scope = self.scopes[-1]
        for text in texts[:_MOST_LISTED]:
            self.scopes[-1] = {**scope, name: text}
            kept = [truth(self.value(test)) for test in each.ifs]
            made += [] if False in kept else [unknown(node) if None in kept else self.value(node.elt)]
        self.scopes[-1] = scope
        return made if len(texts) <= _MOST_LISTED else unknown(node)

    def _item(self, node: ast.Subscript) -> Any:
        owner, index = self.value(node.value), self.value(node.slice)
        if isinstance(node.slice, ast.Slice) and isinstance(owner, list | str):
            ends = (node.slice.lower, node.slice.upper, node.slice.step)
            cut = sliced(owner, [None if each is None else self.value(each) for each in ends])
            return unknown(node) if cut is None else cut
        try:
            if isinstance(owner, list | tuple | dict):
                return unknown(node) if isinstance(owner, dict) and "**" in owner else owner[index]
        except (LookupError, TypeError):
            return unknown(node)
        return part(node) if isinstance(owner, Part | Model) else unknown(node)

    def _text(self, node: ast.JoinedStr) -> Any:
        parts = [
            self.value(each.value if isinstance(each, ast.FormattedValue) else each) for each in node.values
        ]
        text = joined(parts)
        return unknown(node) if text is None else text

    def inlined(self, own: Own, node: ast.Call) -> Any:
        """What a function of the program gives back, gone through with its arguments."""
        given, function = self.arguments(node), own.node
        if isinstance(function, ast.ClassDef):
            return self.own_class(own, given, node)
        return self.called_with(own, self.bound(own, given))

    def called_with(self, own: Own, values: dict[str, Any]) -> Any:
        """What a function of the program gives back, gone through with these values."""
        if self._depth > _DEEPEST:
            raise InputFileError(self.source.path, "calls itself without end, as far as can be read")
        self._depth += 1
        before, self.returns_maybe = self.returns_maybe, 0
        value = None
        try:
            with self.within((*(own.scopes or self.scopes), dict(values))):
                try:
                    self._body(own.node.body)
                except _ReturnedError as left:
                    value = left.value
                if self.returns_maybe:
                    self._leave_open_behind(own, self.returns_maybe)
            return Unknown(f"{own.node.name}()") if self.returns_maybe else value
        finally:
            self._depth, self.returns_maybe = self._depth - 1, before

    def _leave_open_behind(self, own: Own, line: int) -> None:
        """Whether what is behind ``line`` is done is not known: the function may have ended there."""
        for each in own.node.body:
            if (each.end_lineno or 0) > line:
                self.stays_as_it_is(each, "whether this is done")

    def unrolled(self, node: ast.For) -> bool:
        """Go through a loop for each of its values, where the text says them."""
        leaves = (ast.Break, ast.Continue, ast.Return, ast.Yield)
        match node.iter:
            case ast.Call(func=ast.Attribute(value=owner, attr="items"), args=[]):
                table = self.value(owner) if isinstance(owner, ast.Dict) else self.named(owner)
                values = [[*each] for each in table.items()] if isinstance(table, dict) else []
                known = isinstance(table, dict) and "**" not in table
            case ast.List() | ast.Tuple() | ast.Name() | ast.Attribute():
                values = self.value(node.iter)
                known = isinstance(values, list) and is_known(values)
            case _:
                return False
        leaving = any(isinstance(each, leaves) for each in ast.walk(node))
        if not known or len(values) > _MOST_TURNS or (values and (leaving or self.touches(node))):
            return False
        for each in list(values):
            self._assign(node.target, each)
            self._body(node.body)
        self._body(node.orelse)
        return True
