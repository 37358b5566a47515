"""new: write a kernel to begin with, which runs, validates and compiles as it is."""

from __future__ import annotations

import argparse
import keyword
import re
from pathlib import Path

from .. import catalog
from ..errors import AtlasError
from ..results.documents import write_text

TEMPLATES = Path(__file__).parents[1] / "templates"
PLACE = "NAME"
"""What stands in a template for the kernel's name."""

LIKE = ("elementwise", "rows", "matmul")

_NEXT = """{path}: written, and its function is in kernels/__init__.py

Change the formula, the kernel and the reference; then
  python -m atlas validate {name} --gpu cpu      # every check, in the interpreter
  python -m atlas debug {name} --gpu cpu --step  # if one fails: the program and the line that did it
  python -m atlas build {name} --gpu h100        # registers, spills, shared memory
  snakemake --cores 2 --config kernels={name}    # all of it, with a report

A kernel that is to stay has a row in tests/calls/table.py, and in README.md: python -m atlas kernels --write README.md
docs/adding-a-kernel.md explains each field."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The name, and what the kernel is to look like."""
    parser.add_argument("name", help="of the kernel: its file, its declaration and its public function")
    parser.add_argument(
        "--like", choices=LIKE, default=LIKE[0], help="which kernel to begin with (default: elementwise)"
    )


def run(arguments: argparse.Namespace) -> None:
    """Write ``kernels/<name>.py`` and list its function in ``kernels/__init__.py``; AtlasError for a wrong name."""
    name = arguments.name
    check(name)
    init = catalog.KERNELS / "__init__.py"
    listed = registered(init.read_text(), name)  # raises before anything is written
    path = catalog.KERNELS / f"{name}.py"
    write_text(path, listing(arguments.like, name))
    write_text(init, listed)
    print(_NEXT.format(path=f"kernels/{path.name}", name=name))


def listing(like: str, name: str) -> str:
    """The text of a kernel like this one, of this name."""
    return (TEMPLATES / f"{like}.py").read_text().replace(PLACE, name)


def check(name: str) -> None:
    """Raise AtlasError for a name that a new kernel cannot have, with the reason."""
    import torch

    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or keyword.iskeyword(name) or keyword.issoftkeyword(name):
        raise AtlasError(f"{name!r} is no name for a kernel: use lower-case letters, digits and _, no word of Python's")
    if name in catalog.names():
        raise AtlasError(f"{catalog.home(name)} is there already; choose another name, or remove it first")
    owner = next((one for one in catalog.names() if name in catalog.public(one)), None)
    if owner is not None:
        raise AtlasError(f"{name!r} is a function of {catalog.home(owner)}; choose another name")
    if name in catalog.BESIDE:
        raise AtlasError(f"kernels/{name}/ is there for something else; choose another name")
    if hasattr(torch, name) or hasattr(torch.nn.functional, name):
        raise AtlasError(
            f"torch has a {name}, so a function of that name promises to do the same; choose another name, or rename "
            "file, function and DECLARATION.name once it keeps that promise"
        )


def registered(text: str, name: str) -> str:
    """The text of ``kernels/__init__.py`` with a public function that bears its family's name, in order."""
    imports = re.search(r"(?<=^if TYPE_CHECKING:\n)(?:    from \.\w+ import .*\n)+", text, re.MULTILINE)
    functions = re.search(r'(?<=^FUNCTIONS = \{\n)(?:    "\w+": "\w+",\n)+', text, re.MULTILINE)
    if imports is None or functions is None:
        raise AtlasError(
            "kernels/__init__.py: no imports under TYPE_CHECKING, or no FUNCTIONS = {…}, a function a line; "
            "write them so, that new ones can be added"
        )
    for found, line, order in (
        (functions, f'    "{name}": "{name}",\n', lambda line: re.findall(r"\w+", line)[::-1]),
        (imports, f"    from .{name} import {name}\n", lambda line: re.findall(r"\w+", line)[1]),
    ):  # the functions, which come last, first: so both places stay right
        lines = sorted([*found[0].splitlines(keepends=True), line], key=order)
        text = text[: found.start()] + "".join(lines) + text[found.end() :]
    return text
