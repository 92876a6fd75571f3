"""Loops over the weights of a model whose effect is known: all of them frozen, or norms moved to fp32."""

from __future__ import annotations

import ast

_WEIGHTS, _MODULES = ("parameters", "named_parameters"), ("named_modules", "modules")


def looped_over(node: ast.stmt, names: tuple[str, ...]) -> ast.expr | None:
    """What a loop goes over, where it is one of these methods."""
    match node:
        case ast.For(iter=ast.Call(func=ast.Attribute(value=owner, attr=name))) if name in names:
            return owner
    return None


def frozen_by(node: ast.stmt) -> ast.expr | None:
    """The model whose weights a loop freezes, all of them; nothing where it does anything else."""
    owner = looped_over(node, _WEIGHTS)
    return owner if isinstance(node, ast.For) and all(map(_freezes, node.body)) else None


def _freezes(node: ast.stmt) -> bool:
    match node:
        case ast.Assign(targets=[ast.Attribute(attr="requires_grad")], value=ast.Constant(value=False)):
            return True
        case ast.Expr(ast.Call(func=ast.Attribute(attr="requires_grad_"), args=[ast.Constant(value=False)])):
            return True
    return False


def norms_raised_by(node: ast.stmt) -> ast.expr | None:
    """The model whose norms a loop moves to fp32; nothing where it does anything else."""
    owner = looped_over(node, _MODULES)
    match node:
        case ast.For(
            body=[
                ast.If(
                    test=ast.Compare(left=ast.Constant(value="norm"), ops=[ast.In()]),
                    body=[ast.Assign(targets=[ast.Name()], value=done) | ast.Expr(done)],
                    orelse=[],
                )
            ]
        ):
            return owner if ast.unparse(done).endswith(".to(torch.float32)") else None
    return None
