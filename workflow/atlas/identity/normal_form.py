"""The normal form of a definition: its syntax without layout, docstrings and places, its names as numbered references.

Annotations that nothing reads are left out as well.
"""

from __future__ import annotations

import ast
import hashlib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from .scopes import (
    LOCAL,
    WHOLE,
    Definition,
    Frame,
    Root,
    Value,
    bound_by,
    bound_in,
    imported,
    plain_name,
    skipped,
    walrus,
)

HEX = 16
"""Hexadecimal digits of a digest."""

_LAYOUT = frozenset({"ctx", "type_comment", "kind", "type_ignores", "type_params"})
_FIELDS: dict[type, tuple[str, ...]] = {}

# Decorators that do not look at annotations.
_PLAIN = frozenset({"property", "staticmethod", "classmethod", "functools.cache", "functools.lru_cache",
                    "functools.cached_property", "functools.wraps", "contextlib.contextmanager"})  # fmt: skip


REGISTRAR = ("DECLARATION", "public")
"""A definition and its method that, as a decorator, notes a function and returns it as it is: no part of the form."""


@dataclass(frozen=True)
class Form:
    """Normal form of a definition: digest of its text, and what the text refers to, in the order of first mention."""

    digest: str
    references: tuple[Root, ...]


def is_text(statement: ast.stmt) -> bool:
    """Whether a statement is a docstring, or a string that stands by itself as one."""
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )


class ReadModule(Protocol):
    """What is known of a module's source."""

    package: str
    walrus: bool


class Sources(Protocol):
    """The source that a form refers into; :class:`atlas.identity.code.Code` is it, and says what each answer means."""

    def module(self, name: str) -> ReadModule | None: ...
    def resolve(self, module: str, name: str) -> Any: ...
    def origin(self, module: str, name: str | None) -> Any: ...
    def member(self, module: str, name: str) -> Any: ...
    def named(self, text: str) -> list[str]: ...
    def beginning_with(self, text: str) -> list[str]: ...


class Writer:
    """Writes the normal form of one definition."""

    def __init__(self, code: Sources, module: str):
        self._code = code
        self._module = module
        found = code.module(module)
        self._package, self._walrus = (found.package, found.walrus) if found else (module, False)
        self._out: list[str] = []
        self._references: dict[Root, int] = {}

    def form(self) -> Form:
        """What was written."""
        text = "".join(self._out)
        return Form(hashlib.sha256(text.encode()).hexdigest()[:HEX], tuple(self._references))

    def refer(self, root: Root) -> None:
        """A reference."""
        self._out.append(f"#{self._references.setdefault(root, len(self._references))}")

    def labelled(self, label: str, root: Root) -> None:
        """A reference with a word before it."""
        self._out.append(f"{label}=")
        self.refer(root)

    def unit(self, statement: ast.stmt, name: str) -> None:
        """A statement at the top of the module, as the definition of ``name``."""
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            self._definition(statement, None, "")
        elif isinstance(statement, ast.Assign) and [*map(plain_name, statement.targets)] == [name]:
            self.write(statement.value, None)
        elif isinstance(statement, ast.AnnAssign) and plain_name(statement.target) == name:
            if statement.value is not None:
                self.write(statement.value, None)
        else:
            # One statement may define several names: which of them it is here.
            self._out.append(f"{bound_by(statement).index(name)}:")
            self.write(statement, None)

    def target(self, target: Any) -> None:
        """What a name was resolved to; None writes nothing."""
        match target:
            case ("definition", module, name):
                self.refer((module, name))
            case ("module", module):
                self.refer((module, WHOLE))
            case ("outside", dotted):
                self._out.append(f"@{dotted}")
            case ("several", definitions):
                for definition in definitions:
                    self.refer(definition)

    def write(self, node: Any, frame: Frame | None) -> None:
        """Any part of a syntax tree."""
        kind = node.__class__
        special = _SPECIAL.get(kind)
        if special is not None:
            return special(self, node, frame)
        fields = _FIELDS.get(kind)
        if fields is None:
            fields = _FIELDS[kind] = tuple(name for name in kind._fields if name not in _LAYOUT)
        out = self._out
        out.append(f"{kind.__name__}(")
        for name in fields:
            value = getattr(node, name)
            if value is None or value == []:
                continue
            out.append(f"{name}=")
            if isinstance(value, list):
                for item in value:
                    if isinstance(item, ast.AST):
                        self.write(item, frame)
                    else:
                        out.append(f"{item},")
            elif isinstance(value, ast.AST):
                self.write(value, frame)
            else:
                out.append(f"{value!r},")
        out.append(")")

    # --- Names -------------------------------------------------------------------------------------------------------

    def look_up(self, name: str, frame: Frame | None) -> Any:
        """What a name stands for where it is used: LOCAL, a :class:`Value`, or as of :meth:`Sources.resolve`."""
        while frame is not None:
            bound = frame.names.get(name)
            if bound is LOCAL:
                if not frame.is_class:
                    return LOCAL
            elif isinstance(bound, Value):
                return bound
            elif bound is not None:
                return self._code.origin(*bound)
            frame = frame.parent
        return self._code.resolve(self._module, name)

    def dotted(self, node: ast.AST, frame: Frame | None) -> tuple[Any, list[str]]:
        """What ``a.b.c`` stands for, as far as modules lead, and the attributes that are left; None for anything else.

        Attributes of what is outside belong to its name.
        """
        names: list[str] = []
        while isinstance(node, ast.Attribute):
            names.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            return None, []
        found = self.look_up(node.id, frame)
        if found is None or found is LOCAL or isinstance(found, Value):
            return None, []
        names.reverse()
        while names and found[0] == "module":
            found = self._code.member(found[1], names.pop(0))
        if found[0] == "outside":
            return ("outside", ".".join([found[1], *names])), []
        return found, names

    def _name(self, node: ast.Name, frame: Frame | None) -> None:
        found = self.look_up(node.id, frame)
        if isinstance(found, Value):
            self.refer(found)
        elif found is LOCAL or found is None:
            self._out.append(f"{node.id},")
        else:
            self.target(found)
        if found is None and node.id in ("globals", "vars"):
            self.refer((self._module, WHOLE))

    def _attribute(self, node: ast.Attribute, frame: Frame | None) -> None:
        found, rest = self.dotted(node, frame)
        if found is None:
            self._out.append(f".{node.attr}(")
            self.write(node.value, frame)
            self._out.append(")")
        else:
            self.target(found)
            self._out.extend(f".{name}" for name in rest)

    def _constant(self, node: ast.Constant, frame: Frame | None) -> None:
        modules = self._code.named(node.value) if isinstance(node.value, str) else []
        for module in modules:
            self.refer((module, WHOLE))
        if not modules:
            self._out.append(f"{node.value!r},")

    def _joined(self, node: ast.JoinedStr, frame: Frame | None) -> None:
        parts = [self._part(part) for part in node.values]
        known = "".join(itertools.takewhile(lambda part: part is not None, parts))
        modules = self._code.named(known) if None not in parts else self._code.beginning_with(known)
        for module in modules:
            self.refer((module, WHOLE))
        self._out.append("f(")
        for part in node.values:
            self.write(part, frame)
        self._out.append(")")

    def _part(self, part: ast.expr) -> str | None:
        """A part of an f-string that is known without running it."""
        if isinstance(part, ast.Constant):
            return part.value
        package = isinstance(part, ast.FormattedValue) and plain_name(part.value) == "__package__"
        return self._package if package else None

    # --- Statements and scopes ---------------------------------------------------------------------------------------

    def _definition(self, node: Any, frame: Frame | None, name: str | None = None) -> None:
        """A function or a class; at the top of a module its name is no part of it."""
        out = self._out
        out.append(f"{node.__class__.__name__} {node.name if name is None else name}(")
        decorators = [one for one in node.decorator_list if self.registrar(one, frame) is None]
        for decorator in decorators:
            out.append("@")
            self.write(decorator, frame)
        if isinstance(node, ast.ClassDef):
            for base in (*node.bases, *node.keywords):
                self.write(base, frame)
            inner = Frame(bound_in(node.body, self._package) | self._by_walrus(node), frame, is_class=True)
        else:
            read = not all(self._reads_no_annotations(decorator, frame) for decorator in decorators)
            self._arguments(node.args, frame, read)
            if read and node.returns is not None:
                self.write(node.returns, frame)
            names = bound_in(node.body, self._package, node.args) | self._by_walrus(node)
            inner = Frame(names, _outside_classes(frame))
        self._body(node.body, inner)
        out.append(")")

    def registrar(self, decorator: ast.expr, frame: Frame | None) -> Definition | None:
        """The declaration that a decorator registers a function with (:data:`REGISTRAR`); None for any other."""
        if not (isinstance(decorator, ast.Attribute) and decorator.attr == REGISTRAR[1]):
            return None
        found, rest = self.dotted(decorator, frame)
        known = found is not None and found[0] == "definition" and (found[2], *rest) == REGISTRAR
        return found[1:] if known else None

    def _reads_no_annotations(self, decorator: ast.expr, frame: Frame | None) -> bool:
        called = decorator.func if isinstance(decorator, ast.Call) else decorator
        if plain_name(called) in _PLAIN:
            return True
        found, _ = self.dotted(called, frame)
        return found is not None and found[0] == "outside" and found[1] in _PLAIN

    def _by_walrus(self, node: ast.AST) -> dict[str, Any]:
        return dict.fromkeys(walrus(node), LOCAL) if self._walrus else {}

    def _arguments(self, arguments: ast.arguments, frame: Frame | None, annotations: bool) -> None:
        self._out.append("args(")
        for kind in ("posonlyargs", "args", "vararg", "kwonlyargs", "kwarg"):
            given = getattr(arguments, kind)
            for argument in given if isinstance(given, list) else [given] if given else []:
                self._out.append(f"{kind}:{argument.arg},")
                if annotations and argument.annotation is not None:
                    self.write(argument.annotation, frame)
        for kind in ("defaults", "kw_defaults"):
            for default in getattr(arguments, kind):
                self._out.append(f"{kind}:")
                if default is not None:
                    self.write(default, frame)
        self._out.append(")")

    def _lambda(self, node: ast.Lambda, frame: Frame | None) -> None:
        self._out.append("lambda(")
        self._arguments(node.args, frame, False)
        names = bound_in([], self._package, node.args) | self._by_walrus(node)
        self.write(node.body, Frame(names, _outside_classes(frame)))
        self._out.append(")")

    def _comprehension(self, node: Any, frame: Frame | None) -> None:
        names = dict.fromkeys(
            (target.id for one in node.generators for target in ast.walk(one.target) if isinstance(target, ast.Name)),
            LOCAL,
        )
        inner = Frame(names, _outside_classes(frame))
        self._out.append(f"{node.__class__.__name__}(")
        for position, one in enumerate(node.generators):
            self._out.append("for:")
            self.write(one.iter, inner if position else frame)
            self.write(one.target, inner)
            for condition in one.ifs:
                self._out.append("if:")
                self.write(condition, inner)
        for part in ("elt", "key", "value"):
            if hasattr(node, part):
                self.write(getattr(node, part), inner)
        self._out.append(")")

    def _body(self, body: Sequence[ast.stmt], frame: Frame | None) -> None:
        for statement in body:
            if not is_text(statement):
                self.write(statement, frame)
                self._out.append(";")

    def _expression(self, node: ast.Expr, frame: Frame | None) -> None:
        if not is_text(node):
            self.write(node.value, frame)

    def _annotated(self, node: ast.AnnAssign, frame: Frame | None) -> None:
        """Of a class's fields the annotation's text counts, for ClassVar and the like, and leads nowhere."""
        self._out.append("ann(")
        self.write(node.target, frame)
        if frame is not None and frame.is_class:
            self._out.append(ast.unparse(node.annotation))
        if node.value is not None:
            self._out.append("=")
            self.write(node.value, frame)
        self._out.append(")")

    def _import(self, node: ast.Import | ast.ImportFrom, frame: Frame | None) -> None:
        """Inside a function the uses of what is imported count; at the top, under a condition, all that is imported."""
        for name, origin in imported(node, self._package):
            if frame is None:
                self._out.append("import ")
                self.target(self._code.origin(origin[0], None if name == "*" else origin[1]))
            elif (found := self._code.origin(*origin)) is not None and found[0] == "outside":
                self._out.append(f"import {found[1]},")

    def _conditional(self, node: ast.If, frame: Frame | None) -> None:
        if skipped(node.test):
            return self._body(node.orelse, frame)
        self._out.append("if(")
        self.write(node.test, frame)
        self._out.append("then:")
        self._body(node.body, frame)
        self._out.append("else:")
        self._body(node.orelse, frame)
        self._out.append(")")


_SPECIAL: dict[type, Any] = {
    ast.Name: Writer._name,
    ast.Attribute: Writer._attribute,
    ast.Constant: Writer._constant,
    ast.JoinedStr: Writer._joined,
    ast.FunctionDef: Writer._definition,
    ast.AsyncFunctionDef: Writer._definition,
    ast.ClassDef: Writer._definition,
    ast.Lambda: Writer._lambda,
    ast.ListComp: Writer._comprehension,
    ast.SetComp: Writer._comprehension,
    ast.DictComp: Writer._comprehension,
    ast.GeneratorExp: Writer._comprehension,
    ast.Expr: Writer._expression,
    ast.AnnAssign: Writer._annotated,
    ast.Import: Writer._import,
    ast.ImportFrom: Writer._import,
    ast.If: Writer._conditional,
}


def _outside_classes(frame: Frame | None) -> Frame | None:
    """The scope that a function inside ``frame`` sees: methods do not see their class's names."""
    while frame is not None and frame.is_class:
        frame = frame.parent
    return frame
