"""Which names a scope of Python binds, what its imports stand for, and how code names what it refers to."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

LOCAL = object()
"""Bound in a scope, to nothing that can be told without running it."""

_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)


@dataclass(eq=False)
class Frame:
    """A scope: the names it binds, each to LOCAL, an import's (module, name) or a value; and what encloses it."""

    names: Mapping[str, Any]
    parent: Frame | None = None
    is_class: bool = False


Definition = tuple[str, str]
"""Module and name."""

WHOLE = "*"
"""In the place of a name: all that a module defines."""


@dataclass(eq=False)
class Value:
    """An expression or a nested function where it stands: its module, and what encloses it (None: the module alone)."""

    node: ast.AST
    module: str
    frame: Frame | None = None


Root = Definition | Value


def imported(node: ast.Import | ast.ImportFrom, package: str) -> Iterator[tuple[str, tuple[str, str | None]]]:
    """Each name that an import binds, with module and name there; None is the module itself, ``*`` all its names."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            whole = alias.name if alias.asname else alias.name.partition(".")[0]
            yield alias.asname or whole, (whole, None)
        return
    base = package
    if node.level:
        base = ".".join(package.split(".")[: len(package.split(".")) - node.level + 1])
        base = f"{base}.{node.module}" if node.module else base
    else:
        base = node.module or ""
    for alias in node.names:
        yield alias.asname or alias.name, (base, None if alias.name == "*" else alias.name)


def bound_by(statement: ast.stmt) -> list[str]:
    """The names that a statement at the top of a module defines, in the order of their first mention.

    ``table["x"] = 1`` and ``f.attribute = 1`` count as definitions of ``table`` and ``f``.
    """
    found: dict[str, Any] = {}
    _of_statements([statement], found, "", inside=True)
    return list(found)


def bound_in(body: Sequence[ast.stmt], package: str, arguments: ast.arguments | None = None) -> dict[str, Any]:
    """What the body of a function or class binds, with the arguments of a function."""
    found: dict[str, Any] = {}
    if arguments is not None:
        given = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        given += [one for one in (arguments.vararg, arguments.kwarg) if one]
        found |= dict.fromkeys((one.arg for one in given), LOCAL)
    elsewhere = _of_statements(body, found, package)
    return {name: bound for name, bound in found.items() if name not in elsewhere} if elsewhere else found


def _of_statements(body: Sequence[ast.stmt], found: dict[str, Any], package: str, inside: bool = False) -> set[str]:
    """Add to ``found`` what statements bind; the names that they declare to be another scope's.

    What an expression binds by ``:=`` is left out: see :func:`walrus`.  ``inside`` adds names whose attributes or items
    are set.
    """
    elsewhere: set[str] = set()
    for statement in body:
        match statement:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                found[statement.name] = LOCAL
            case ast.Assign():
                for target in statement.targets:
                    _target(target, found, inside)
            case ast.AnnAssign() | ast.AugAssign():
                _target(statement.target, found, inside)
            case ast.Import() | ast.ImportFrom():
                found |= {name: origin for name, origin in imported(statement, package) if name != "*"}
            case ast.Global() | ast.Nonlocal():
                elsewhere |= set(statement.names)
            case ast.Delete():
                for target in statement.targets:
                    _target(target, found, inside)
            case ast.For() | ast.AsyncFor():
                _target(statement.target, found, inside)
            case ast.With() | ast.AsyncWith():
                for item in statement.items:
                    if item.optional_vars is not None:
                        _target(item.optional_vars, found, inside)
            case ast.Match():
                for case in statement.cases:
                    for node in ast.walk(case.pattern):
                        name = getattr(node, "rest" if isinstance(node, ast.MatchMapping) else "name", None)
                        if name is not None:
                            found[name] = LOCAL
                    elsewhere |= _of_statements(case.body, found, package, inside)
            case ast.Try() | ast.TryStar():
                for handler in statement.handlers:
                    if handler.name:
                        found[handler.name] = LOCAL
                    elsewhere |= _of_statements(handler.body, found, package, inside)
                elsewhere |= _of_statements(statement.finalbody, found, package, inside)
        if not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Match):
            for part in ("body", "orelse"):
                elsewhere |= _of_statements(getattr(statement, part, ()), found, package, inside)
    return elsewhere


def _target(target: ast.expr, found: dict[str, Any], inside: bool) -> None:
    if isinstance(target, ast.Name):
        if not isinstance(found.get(target.id), tuple):  # `try: import x; except ImportError: x = None`
            found[target.id] = LOCAL
    elif isinstance(target, ast.Tuple | ast.List):
        for element in target.elts:
            _target(element, found, inside)
    elif isinstance(target, ast.Starred):
        _target(target.value, found, inside)
    elif inside:
        while isinstance(target, ast.Attribute | ast.Subscript):
            target = target.value
        if isinstance(target, ast.Name):
            found[target.id] = LOCAL


def walrus(node: ast.AST) -> set[str]:
    """The names that expressions of one scope bind by ``:=``, those inside comprehensions included."""
    found: set[str] = set()
    waiting = [node]
    while waiting:
        one = waiting.pop()
        if isinstance(one, ast.NamedExpr):
            found.add(one.target.id)
        if one is node or not isinstance(one, _SCOPES):
            waiting.extend(ast.iter_child_nodes(one))
    return found


def plain_name(node: ast.AST) -> str | None:
    return node.id if isinstance(node, ast.Name) else None


def skipped(test: ast.expr) -> bool:
    """``if TYPE_CHECKING:`` and ``if __name__ == "__main__":``"""
    name = test.attr if isinstance(test, ast.Attribute) else plain_name(test)
    return name == "TYPE_CHECKING" or (isinstance(test, ast.Compare) and plain_name(test.left) == "__name__")
