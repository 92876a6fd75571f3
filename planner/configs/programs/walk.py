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
from planner.configs.programs.names import ELSEWHERE
from planner.configs.programs.passed_over import PassedOver, is_harmless, only_adds_tokens
from planner.configs.programs.python_calls import Card
from planner.configs.programs.source import Source
from planner.configs.programs.values import (
    Library,
    Made,
    Model,
    Module,
    Opened,
    Own,
    Unknown,
    any_or_all,
    changed_table,
    combined,
    compared,
    is_known,
    joined,
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
                bases = node.bases if isinstance(node, ast.ClassDef) else []
                names = tuple(ast.unparse(base) for base in bases)
                self.bind(node.name, Own(node, names, tuple(self.scopes)))
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
            case ast.Expr(value=value) | ast.Raise(exc=ast.Call(func=ast.Name(id="SystemExit")) as value):
                self.value(value)
            case ast.Return():
                raise _ReturnedError(None if node.value is None else self.value(node.value))
            case _:
                self._block(node)

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
        return combined(ast.BinOp(node.target, node.op, node.value), before, after)

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
                return (
                    self._overlooked(node)
                    if holds is None
                    else self.value(node.body if holds else node.orelse)
                )
            case _:
                return self._composed(node)

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
            case ast.Lambda() | ast.Slice():
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
            part = sliced(owner, [None if each is None else self.value(each) for each in ends])
            return unknown(node) if part is None else part
        try:
            return owner[index] if isinstance(owner, list | tuple | dict) else unknown(node)
        except (LookupError, TypeError):
            return unknown(node)

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
        before, self.returns_maybe = self.returns_maybe, False
        try:
            with self.within((*(own.scopes or self.scopes), dict(values))):
                self._body(own.node.body)
        except _ReturnedError as left:
            return Unknown(f"{own.node.name}()") if self.returns_maybe else left.value
        else:
            return Unknown(f"{own.node.name}()") if self.returns_maybe else None
        finally:
            self._depth, self.returns_maybe = self._depth - 1, before

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
