"""The project's source as a graph of top-level definitions, each in a form that knows no layout and no place.

A definition is a function, a class or an assignment at the top of a module.  Its normal form is its syntax tree without
docstrings, comments, positions and the annotations that nothing reads; names of other definitions are numbered
references, so that neither they nor their modules are part of it.  What cannot be resolved is taken whole: a module
that is passed about as a value counts with all that it defines.  Nothing is imported; files are read once a process.
"""

from __future__ import annotations

import ast
import hashlib
import itertools
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import AtlasError
from .scopes import LOCAL, Frame, bound_by, bound_in, imported, walrus

Definition = tuple[str, str]
"""Module and name."""

WHOLE = "*"
"""In the place of a name: all that a module defines."""

_HEX = 16
"""Hexadecimal digits of a digest."""

_LAYOUT = frozenset({"ctx", "type_comment", "kind", "type_ignores", "type_params"})
_FIELDS: dict[type, tuple[str, ...]] = {}

# Decorators that do not look at annotations.
_PLAIN = frozenset({"property", "staticmethod", "classmethod", "functools.cache", "functools.lru_cache",
                    "functools.cached_property", "functools.wraps", "contextlib.contextmanager"})  # fmt: skip


REGISTRAR = ("DECLARATION", "public")
"""A definition and its method that, as a decorator, notes a function and returns it as it is: no part of the form."""


@dataclass(eq=False)
class Value:
    """An expression or a nested function where it stands: its module, and what encloses it (None: the module alone)."""

    node: ast.AST
    module: str
    frame: Frame | None = None


Root = Definition | Value


@dataclass
class Module:
    """What stands at the top of one file.

    ``units`` are the statements that define each name, in order; ``imports`` say for a name which module it comes
    from, and under what name there (None: it is that module).  ``effects`` are other statements.  ``walrus`` says that
    expressions of the file bind names.
    """

    name: str
    package: str
    walrus: bool = False
    units: dict[str, list[ast.stmt]] = field(default_factory=dict)
    imports: dict[str, tuple[str, str | None]] = field(default_factory=dict)
    stars: list[str] = field(default_factory=list)
    effects: list[ast.stmt] = field(default_factory=list)


@dataclass(frozen=True)
class _Form:
    """Normal form of a definition: digest of its text, and what the text refers to, in the order of first mention."""

    digest: str
    references: tuple[Root, ...]


class Code:
    """The source below ``roots``, which maps the name of a top-level package to its folder.

    References into the modules named in ``apart`` (with all below them) are not followed; their names count instead.
    What was found is kept, so one thread at a time may ask.
    """

    def __init__(self, roots: Mapping[str, Path], apart: Collection[str] = ()):
        self._roots = dict(roots)
        self._apart = frozenset(apart)
        self.stands_for: Callable[[str, str], Sequence[tuple[str, Root]] | None] = lambda module, name: None
        """What counts in the place of a definition where it is referred to; None: the definition."""
        self._modules: dict[str, Module | None] = {}
        self._stamps: dict[Path, tuple[int, int] | None] = {}
        self._forms: dict[Definition, _Form] = {}
        self._resolved: dict[Definition, Any] = {}
        names = "|".join(map(re.escape, roots))
        self._dotted = re.compile(rf"(?:{names})(?:\.\w+)+")
        self._below = re.compile(rf"((?:{names})(?:\.\w+)*)\.")

    def current(self) -> bool:
        """Whether every file that was read, or looked for in vain, is still as it was."""
        return all(_stamp(path) == stamp for path, stamp in self._stamps.items())

    def digest(self, roots: Sequence[tuple[str, Root]]) -> str:
        """A digest of everything that is reached from ``roots``, which are labelled."""
        hashed = hashlib.sha256()
        for _, line in self._walk(roots):
            hashed.update(line.encode())
        return hashed.hexdigest()[:_HEX]

    def reached(self, roots: Sequence[tuple[str, Root]]) -> set[Definition]:
        """The definitions that :meth:`digest` is of; those of a module that is taken whole are named one by one."""
        return {root for root, _ in self._walk(roots) if isinstance(root, tuple) and root[1] != WHOLE}

    def files(self) -> list[Path]:
        """The files that were read so far."""
        return sorted(path for path, stamp in self._stamps.items() if stamp is not None)

    def definition(self, module: str, name: str) -> list[ast.stmt]:
        """The statements that define a name; none where the module does not define it itself."""
        found = self.module(module)
        return found.units.get(name, []) if found else []

    def _walk(self, roots: Sequence[tuple[str, Root]]) -> Iterator[tuple[Root, str]]:
        """Each root and each reached definition, with a line of its digest and the numbers of what it refers to."""
        numbers: dict[Any, int] = {}
        waiting: list[Root] = []

        def number(root: Root) -> str:
            if root not in numbers:
                numbers[root] = len(numbers)
                waiting.append(root)
            return str(numbers[root])

        for label, root in roots:
            yield root, f"{label}={number(root)};"
        for root in waiting:  # which grows meanwhile
            form = self._form(root)
            yield root, f"{form.digest}({','.join(map(number, form.references))})"

    def _form(self, root: Root) -> _Form:
        if isinstance(root, Value):
            writer = Writer(self, root.module)
            writer.write(root.node, root.frame)
            return writer.form()
        if root not in self._forms:
            self._forms[root] = self._form_of_definition(*root)
        return self._forms[root]

    def _form_of_definition(self, module: str, name: str) -> _Form:
        writer, found = Writer(self, module), self.module(module)
        assert found is not None, "what is referred to was resolved"
        if name == WHOLE:
            for own in sorted(found.units):
                writer.refer((module, own))
            for own in sorted(found.imports):
                writer.target(self.resolve(module, own))
            for effect in found.effects:
                writer.write(effect, None)
            return writer.form()
        parts = self.stands_for(module, name)
        if parts is not None:
            for label, part in parts:
                writer.labelled(label, part)
            return writer.form()
        for unit in found.units[name]:
            writer.unit(unit, name)
        for effect in found.effects:
            mentioned = {node.id for node in ast.walk(effect) if isinstance(node, ast.Name)} & found.units.keys()
            if name in mentioned or not mentioned:
                writer.write(effect, None)
        return writer.form()

    # --- Modules and names -------------------------------------------------------------------------------------------

    def module(self, name: str) -> Module | None:
        """The module of a dotted name, None where no file of the roots is it."""
        if name not in self._modules:
            self._modules[name] = self._read(name)
        return self._modules[name]

    def path(self, name: str) -> Path | None:
        """A module's file."""
        root, *rest = name.split(".")
        if root not in self._roots:
            return None
        base = self._roots[root].joinpath(*rest)
        for path in (base / "__init__.py", *([base.with_name(f"{base.name}.py")] if rest else [])):
            self._stamps.setdefault(path, _stamp(path))
            if self._stamps[path] is not None:
                return path
        return None

    def _read(self, name: str) -> Module | None:
        path = self.path(name)
        if path is None:
            root, *rest = name.split(".")
            folder = root in self._roots and self._roots[root].joinpath(*rest).is_dir()
            return Module(name, name) if folder else None  # a folder without an __init__.py
        try:
            text = path.read_bytes()
            tree = ast.parse(text)
        except (SyntaxError, ValueError) as error:
            where = f":{error.lineno}" if isinstance(error, SyntaxError) else ""
            raise AtlasError(f"{path}{where}: not Python, so nothing can depend on it: {error}") from None
        module = Module(name, name if path.name == "__init__.py" else name.rpartition(".")[0], b":=" in text)
        for statement in tree.body:
            self._take_in(module, statement)
        return module

    def _take_in(self, module: Module, statement: ast.stmt) -> None:
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
            return
        if isinstance(statement, ast.If) and _skipped(statement.test):
            for other in statement.orelse:
                self._take_in(module, other)
            return
        if isinstance(statement, ast.Import | ast.ImportFrom):
            for name, origin in imported(statement, module.package):
                if name == "*":
                    module.stars.append(origin[0])
                else:
                    module.imports[name] = origin
            return
        names = bound_by(statement)
        if module.walrus and not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names += sorted(walrus(statement).difference(names))
        for name in names:
            module.units.setdefault(name, []).append(statement)
        if not names:
            module.effects.append(statement)

    def submodules(self, package: str) -> list[str]:
        """The modules right below a package."""
        root, *rest = package.split(".")
        folder = self._roots[root].joinpath(*rest)
        found = [path.stem for path in folder.glob("*.py")] + [
            path.parent.name for path in folder.glob("*/__init__.py")
        ]
        return sorted(f"{package}.{name}" for name in found if name != "__init__")

    def resolve(self, module: str, name: str) -> Any:
        """What a name at the top of a module stands for, through imports.

        ``("definition", module, name)``, ``("module", name)``, ``("outside", dotted)``, ``("several", definitions)``,
        or None for a name that the module does not know: a builtin.
        """
        key = (module, name)
        if key not in self._resolved:
            self._resolved[key] = None  # of an import that leads back to itself
            self._resolved[key] = self._resolve(module, name)
        return self._resolved[key]

    def _resolve(self, module: str, name: str) -> Any:
        found = self.module(module)
        if found is None:
            return None
        if name in found.units:
            return "definition", module, name
        if name in found.imports:
            return self.origin(*found.imports[name])
        for star in found.stars:
            if self.module(star) is not None and (there := self.resolve(star, name)) is not None:
                return there
        return None

    def origin(self, module: str, name: str | None) -> Any:
        """What an import of ``name`` from ``module`` gives, or of the module itself; as of :meth:`resolve`."""
        if module.partition(".")[0] not in self._roots or self.is_apart(module):
            return "outside", module if name is None else f"{module}.{name}"
        return ("module", module) if name is None else self.member(module, name)

    def member(self, module: str, name: str) -> Any:
        """The attribute ``name`` of a module, as of :meth:`resolve`.

        A name that cannot be seen is taken to be that of any part of a package that has it, as of one which imports
        its parts when they are asked for; the module itself counts whole.
        """
        if (there := self.resolve(module, name)) is not None:
            return there
        part = f"{module}.{name}"
        if self.is_apart(part):
            return "outside", part
        if self.module(part) is not None:
            return "module", part
        parts = self.submodules(module) if (found := self.module(module)) and found.package == module else []
        there = [self.resolve(part, name) for part in parts]
        return "several", [*((one[1], one[2]) for one in there if one and one[0] == "definition"), (module, WHOLE)]

    def is_apart(self, module: str) -> bool:
        """Whether references into the module are not followed."""
        return any(module == name or module.startswith(f"{name}.") for name in self._apart)

    def named(self, text: str) -> list[str]:
        """The modules that a string names, for instance to run one with ``python -m``."""
        return [text] if self._dotted.fullmatch(text) and not self.is_apart(text) and self.module(text) else []

    def beginning_with(self, text: str) -> list[str]:
        """The modules that a name may mean of which only the beginning is known, up to a dot: ``atlas.stages.``"""
        package = self._below.fullmatch(text)
        if package is None or self.is_apart(package[1]) or self.module(package[1]) is None:
            return []
        return [name for name in self.submodules(package[1]) if not self.is_apart(name)]


class Writer:
    """Writes the normal form of one definition."""

    def __init__(self, code: Code, module: str):
        self._code = code
        self._module = module
        found = code.module(module)
        self._package, self._walrus = (found.package, found.walrus) if found else (module, False)
        self._out: list[str] = []
        self._references: dict[Root, int] = {}

    def form(self) -> _Form:
        """What was written."""
        text = "".join(self._out)
        return _Form(hashlib.sha256(text.encode()).hexdigest()[:_HEX], tuple(self._references))

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
        elif isinstance(statement, ast.Assign) and [*map(_plain_name, statement.targets)] == [name]:
            self.write(statement.value, None)
        elif isinstance(statement, ast.AnnAssign) and _plain_name(statement.target) == name:
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
        """What a name stands for where it is used: LOCAL, a :class:`Value`, or as of :meth:`Code.resolve`."""
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
        package = isinstance(part, ast.FormattedValue) and _plain_name(part.value) == "__package__"
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
        if _plain_name(called) in _PLAIN:
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
            self.write(statement, frame)
            self._out.append(";")

    def _expression(self, node: ast.Expr, frame: Frame | None) -> None:
        if not (isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)):  # else a docstring
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
        if _skipped(node.test):
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


def _plain_name(node: ast.AST) -> str | None:
    return node.id if isinstance(node, ast.Name) else None


def _skipped(test: ast.expr) -> bool:
    """``if TYPE_CHECKING:`` and ``if __name__ == "__main__":``"""
    name = test.attr if isinstance(test, ast.Attribute) else _plain_name(test)
    return name == "TYPE_CHECKING" or (isinstance(test, ast.Compare) and _plain_name(test.left) == "__name__")


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size
