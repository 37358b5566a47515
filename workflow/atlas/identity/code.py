"""The project's source as a graph of top-level definitions, each in a form that knows no layout and no place.

A definition is a function, a class or an assignment at the top of a module.  Its normal form is its syntax tree without
docstrings, comments, positions and the annotations that nothing reads; names of other definitions are numbered
references, so that neither they nor their modules are part of it.  What cannot be resolved is taken whole: a module
that is passed about as a value counts with all that it defines.  Nothing is imported; files are read once a process.
"""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import AtlasError
from .normal_form import HEX, Form, Writer
from .scopes import WHOLE, Definition, Root, Value, bound_by, imported, skipped, walrus


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
        self._forms: dict[Definition, Form] = {}
        self._resolved: dict[Definition, Any] = {}
        names = "|".join(map(re.escape, roots))
        self._dotted = re.compile(rf"(?:{names})(?:\.\w+)+")
        self._below = re.compile(rf"((?:{names})(?:\.\w+)*)\.")

    def current(self) -> bool:
        """Whether every file that was read, or looked for in vain, is still as it was."""
        return all(_stamp(path) == stamp for path, stamp in self._stamps.items())

    def digest(self, roots: Sequence[tuple[str, Root]], without: Collection[Root] = ()) -> str:
        """A digest of everything that is reached from ``roots``, which are labelled, but not through ``without``."""
        hashed = hashlib.sha256()
        for _, line in self._walk(roots, without):
            hashed.update(line.encode())
        return hashed.hexdigest()[:HEX]

    def reached(self, roots: Sequence[tuple[str, Root]], without: Collection[Root] = ()) -> set[Definition]:
        """The definitions that :meth:`digest` is of; those of a module that is taken whole are named one by one."""
        return {root for root, _ in self._walk(roots, without) if isinstance(root, tuple) and root[1] != WHOLE}

    def files(self) -> list[Path]:
        """The files that were read so far."""
        return sorted(path for path, stamp in self._stamps.items() if stamp is not None)

    def definition(self, module: str, name: str) -> list[ast.stmt]:
        """The statements that define a name; none where the module does not define it itself."""
        found = self.module(module)
        return found.units.get(name, []) if found else []

    def defined(self, module: str) -> set[Definition]:
        """All that a module defines, each by its name and as a whole; none of a module that there is not."""
        found = self.module(module)
        return {(module, name) for name in (*found.units, WHOLE)} if found else set()

    def _walk(self, roots: Sequence[tuple[str, Root]], without: Collection[Root]) -> Iterator[tuple[Root, str]]:
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
            if root in without:
                continue
            form = self._form(root)
            yield root, f"{form.digest}({','.join(map(number, form.references))})"

    def _form(self, root: Root) -> Form:
        if isinstance(root, Value):
            writer = Writer(self, root.module)
            writer.write(root.node, root.frame)
            return writer.form()
        if root not in self._forms:
            self._forms[root] = self._form_of_definition(*root)
        return self._forms[root]

    def _form_of_definition(self, module: str, name: str) -> Form:
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
            where, what = (f":{error.lineno}", error.msg) if isinstance(error, SyntaxError) else ("", str(error))
            raise AtlasError(f"{path}{where}: not Python: {what}; mend it, or move it out of the folder") from None
        module = Module(name, name if path.name == "__init__.py" else name.rpartition(".")[0], b":=" in text)
        for statement in tree.body:
            self._take_in(module, statement)
        return module

    def _take_in(self, module: Module, statement: ast.stmt) -> None:
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
            return
        if isinstance(statement, ast.If) and skipped(statement.test):
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


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size
