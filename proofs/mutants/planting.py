"""A fault planted in a kernel: where, a copy of all kernels with it under another name, and the copy's declaration.

A fault is found by syntax, not by text or file, so that what moves or is laid out anew keeps its faults.  Triton reads
a kernel's source through its file, and a module by its name, so every copy is a package of its own.  It holds what
families share (``kernels/common``, and other families), whose imports lead to the copy too.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import os
import re
import sys
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atlas import catalog
from atlas.errors import AtlasError

from . import operators

if TYPE_CHECKING:
    from atlas.declaration import Declaration

CERTIFICATE = "certificate"
"""The name under which a refused certificate counts as a check."""

HUGE = "needs tensors of more than 2^31 elements"
IN_ORDER = "the interpreter runs programs one after the other"


class Trees(dict[str, ast.Module]):
    """The files below ``kernels/``, by path, each read when it is asked for."""

    def __missing__(self, path: str) -> ast.Module:
        self[path] = ast.parse(sources()[path])
        return self[path]


@dataclass(frozen=True)
class Edit:
    """Python that stands once in a kernel, and what to put in its place.

    Both are an expression each, or statements; ``new`` may be empty.  Layout does not count, nor a name's leading
    underscore.  ``old`` is looked for in the kernel's own files, then in all; ``function`` says in which function, as
    long as there is one of that name.
    """

    old: str
    new: str
    function: str = ""

    def apply(self, trees: Trees, kernel: str) -> str:
        """Change one tree in place; its path.  AtlasError where ``old`` does not stand there exactly once."""
        old, new = _body(self.old), _body(self.new)
        if all(len(one) == 1 and isinstance(one[0], ast.Expr) for one in (old, new)):
            old, new = [old[0].value], [new[0].value]  # expressions, wherever they stand
        own = [path.relative_to(catalog.KERNELS).as_posix() for path in catalog.files(kernel)]
        shared = [path for path in sources() if path.startswith("common/")]
        first = [(own, self.function), (shared, self.function), (own, ""), (shared, "")]
        for paths, function in [*first, (sources(), self.function), (sources(), "")]:
            found = [(path, *place) for path in paths for place in _places(trees[path], old, function)]
            if found:
                break
        if len(found) != 1:
            said = f"stands {len(found)} times" if found else "is not"
            where = f" in {self.function}" if self.function else ""
            raise AtlasError(
                f"{catalog.home(kernel)}: {self.old!r} {said} there{where}; adapt proofs/mutants/handmade/"
            )
        path, parent, field, first = found[0]
        new = [_as_named_in(trees[path], one) for one in new]
        value = getattr(parent, field)
        if isinstance(value, list):
            whole = [*value[:first], *new, *value[first + len(old) :]]
            value[:] = whole or [ast.Pass()]
        else:
            setattr(parent, field, new[0])
        ast.fix_missing_locations(trees[path])
        return path


@dataclass(frozen=True)
class Operation:
    """What a mutation operator does at the ``number``-th place of a function that it applies to."""

    path: str
    function: str
    operator: str
    number: int
    device: bool
    probe: bool = False
    """Raise at this place instead, to find out whether it is run."""

    def apply(self, trees: Trees, kernel: str) -> str:
        """Change one tree in place; its path."""
        (function,) = [one for one in trees[self.path].body if getattr(one, "name", None) == self.function]
        table = operators.DEVICE if self.device else operators.HOST
        (operators.probe if self.probe else operators.mutate)(function, self.operator, self.number, table)
        return self.path


@dataclass(frozen=True)
class Mutant:
    """One fault of one kernel.

    ``caught_by`` is the check that should find the fault (None: any), in ``direction`` and ``variant`` ("public": the
    public function; None: any), and ``dtype`` and ``sizes`` narrow down where it shows soonest.  ``huge`` faults show
    in cases of more than 2^31 elements alone; those with a ``config`` in that one config of the variant and ``dtype``,
    which then must not get its certificate.  ``gpu_only`` says why the interpreter cannot show it, ``""`` where it can,
    and ``needs`` which capabilities of a GPU it takes to show.  ``reached_by`` are the (direction, variant) that run
    what was changed, where that is known.
    """

    kernel: str
    name: str
    kind: str
    edits: tuple[Edit | Operation, ...]
    caught_by: str | None = None
    direction: str | None = None
    variant: str | None = None
    dtype: str | None = None
    sizes: Mapping[str, Any] | None = None
    huge: bool = False
    config: Mapping[str, Any] | None = None
    gpu_only: str = ""
    needs: frozenset[str] = frozenset()
    reached_by: tuple[tuple[str, str], ...] = ()

    def shows(self, functional: bool) -> bool:
        """Whether the fault can be seen here: on a GPU, or with ``functional`` on the interpreter."""
        return not (functional and self.gpu_only)


def mutated(mutant: Mutant) -> dict[str, ast.Module]:
    """The files that a mutant changes, by their paths below ``kernels/``, as trees of their own."""
    trees = Trees()
    changed = [edit.apply(trees, mutant.kernel) for edit in mutant.edits]
    return {path: trees[path] for path in changed}


def plant(folder: Path, kernel: str, mutant: Mutant | None = None) -> Path:
    """Write a copy of all kernels into ``folder``, with the fault where one is given; the path to load.

    The path is that of the kernel within the copy.
    """
    words = re.sub(r"\W+", "_", f"{kernel} {mutant.name if mutant else 'as it is'}")
    root = folder / words
    for number in range(1, 1000):
        if not root.exists():
            break
        root = folder / f"{words}_{number}"
    changed = {path: ast.unparse(tree) for path, tree in mutated(mutant).items()} if mutant else {}
    for path, text in (sources() | changed).items():
        target = root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
    return root / kernel


def load(path: Path, interpret: bool) -> Declaration:
    """Import a planted copy and return its declaration; ``interpret`` as for :func:`atlas.catalog.load`."""
    if interpret:
        os.environ["TRITON_INTERPRET"] = "1"
        from atlas.host import interpreter

        interpreter.patch()
    root = path.parent
    name = f"atlas_planted_{root.name}"
    specification = importlib.util.spec_from_file_location(
        name, root / "__init__.py", submodule_search_locations=[str(root)]
    )
    module = importlib.util.module_from_spec(specification)
    sys.modules[name] = module
    specification.loader.exec_module(module)
    return importlib.import_module(f"{name}.{path.name}").DECLARATION


@functools.cache
def sources() -> dict[str, str]:
    """All Python below ``kernels/``, by path; imports of other kernels made relative, so that a copy's lead to it."""
    paths = sorted(catalog.KERNELS.rglob("*.py"))
    named = [(path, path.relative_to(catalog.KERNELS)) for path in paths]
    return {name.as_posix(): _relative(path.read_text(), len(name.parts)) for path, name in named}


def _relative(text: str, depth: int) -> str:
    dots = "." * depth
    text = re.sub(r"^(\s*from )kernels(?:\.([\w.]+))? import", rf"\1{dots}\2 import", text, flags=re.MULTILINE)
    within = rf"\1from {dots}\2 import \3 as"
    text = re.sub(r"^(\s*)import kernels\.([\w.]+)\.(\w+) as", within, text, flags=re.MULTILINE)
    return re.sub(r"^(\s*)import kernels\.(\w+) as", rf"\1from {dots} import \2 as", text, flags=re.MULTILINE)


def _body(text: str) -> list[ast.stmt]:
    return ast.parse(textwrap.dedent(text).strip()).body


def _places(tree: ast.Module, old: list[ast.AST], function: str) -> list[tuple[ast.AST, str, int]]:
    """Where a run of nodes stands: the parent, its field, and the place in it."""
    found = []
    within = [one for one in tree.body if getattr(one, "name", "").strip("_") == function.strip("_")]
    for top in within if function else [tree]:
        for parent in ast.walk(top):
            for field, value in ast.iter_fields(parent):
                nodes = value if isinstance(value, list) else [value]
                for first in range(len(nodes) - len(old) + 1):
                    if all(map(_same, nodes[first : first + len(old)], old)):
                        found.append((parent, field, first))
    return found


def _same(one: Any, other: Any) -> bool:
    """Whether two nodes are the same syntax; layout does not count, nor a name's leading underscore."""
    if type(one) is not type(other):
        return False
    if isinstance(one, str):
        return one.lstrip("_") == other.lstrip("_")
    if isinstance(one, list):
        return len(one) == len(other) and all(map(_same, one, other))
    if not isinstance(one, ast.AST):
        return one == other
    return all(
        _same(getattr(one, name, None), getattr(other, name, None)) for name in one._fields if name not in _LAYOUT
    )


_LAYOUT = frozenset({"ctx", "kind", "type_comment"})


def _as_named_in(tree: ast.Module, node: ast.AST) -> ast.AST:
    """A node whose names have the underscore, or lack it, as the file has them."""
    known = {one.id for one in ast.walk(tree) if isinstance(one, ast.Name)}
    known |= {one.name for one in ast.walk(tree) if isinstance(one, ast.FunctionDef)}
    for one in ast.walk(node):
        if isinstance(one, ast.Name) and one.id not in known:
            other = one.id.lstrip("_") if one.id.startswith("_") else f"_{one.id}"
            one.id = other if other in known else one.id
    return node
