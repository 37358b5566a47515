"""kernels: the kernels there are as a table in Markdown, with their functions, dtypes and variants."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from pathlib import Path

from .. import catalog
from ..declaration import DTYPES, Declaration
from ..errors import AtlasError
from ..results.documents import write_text

BEGIN, END = "<!-- python -m atlas kernels -->", "<!-- end -->"
"""Between these lines of a page stands the table."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Where to."""
    parser.add_argument("--write", type=Path, metavar="PAGE", help=f"replace what stands in a page after {BEGIN}")


def run(arguments: argparse.Namespace) -> None:
    """Print the table, or write it into a page; AtlasError for a page without a place for it."""
    if arguments.write is None:
        print(table())
        return
    if not arguments.write.is_file():
        raise AtlasError(f"{arguments.write}: no such page")
    write_text(arguments.write, replaced(arguments.write.read_text(), table(), str(arguments.write)))


def replaced(text: str, new: str, page: str) -> str:
    """A page's text with the table ``new`` in its place."""
    found = re.search(f"{re.escape(BEGIN)}\n.*?{re.escape(END)}", text, re.DOTALL)
    if found is None:
        raise AtlasError(f"{page}: no place for the table: write {BEGIN} and {END}, a line each, where it is to stand")
    return f"{text[: found.start()]}{BEGIN}\n{new}\n{END}{text[found.end() :]}"


def table() -> str:
    """A row for each kernel, by family and name: functions, with what they take and lack, and variants by pass."""
    declared = sorted((catalog.load(name) for name in catalog.names()), key=lambda one: (one.family, one.name))
    return "\n".join(["| functions | variants |", "|---|---|", *map(_row, declared)])


def _row(declaration: Declaration) -> str:
    functions = ", ".join(f"`{name}`" for name in catalog.public(declaration.name)) or f"(kernel {declaration.name})"
    notes = "; ".join(_notes(declaration))
    passes = [_names(work.variants) for work in declaration.passes.values()]
    return f"| {functions}{f' ({notes})' if notes else ''} | {'; backward '.join(passes)} |"


def _names(variants: tuple) -> str:
    return ", ".join(f"`{variant.name}`" for variant in variants)


def _notes(declaration: Declaration) -> Iterator[str]:
    """What sets it apart from most: its dtypes, and that it has no gradient."""
    if set(declaration.dtypes) == {*DTYPES, "tf32"}:
        yield "tf32 too"
    elif set(declaration.dtypes) != set(DTYPES):
        yield ", ".join(declaration.dtypes)
    if not declaration.differentiable:
        yield "no gradient"
