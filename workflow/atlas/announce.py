"""The table a run starts with: where each GPU is, and what will therefore happen for it.

Printed by Snakemake's head process while it parses the workflow, so nothing heavy is imported and of a record only the
first lines are read.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from . import catalog, gpus, strict

_HEAD_BYTES = 8192
"""Documents begin with their envelope; digest and date stand in its first few hundred bytes."""

_STYLES = {gpus.HERE: "green", gpus.CLUSTER: "cyan", gpus.RECORDED: "yellow", gpus.ABSENT: "dim"}


def announce(
    blocks: Mapping[str, Mapping[str, Any]],
    places: Mapping[str, gpus.Place],
    kernels: Sequence[str],
    recorded: Path = Path("results/recorded"),
) -> None:
    """Print to stderr a row per GPU: its name, where it is, what the driver calls it, what happens for it."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for column in ("GPU", "where", "device"):
        table.add_column(column, no_wrap=True)
    table.add_column("what happens", overflow="fold")
    for name, place in places.items():
        where = Text(place.where, style=_STYLES[place.where])
        table.add_row(name, where, _device(place), _will(name, blocks[name], place, kernels, recorded))
    console = Console(stderr=True, highlight=False, markup=False, width=None if sys.stderr.isatty() else 120)
    console.print(f"{_count(kernels, 'kernel')}: {', '.join(kernels)}", soft_wrap=True)
    console.print(table)


def _device(place: gpus.Place) -> str:
    return f"{place.count} x {place.device_name}" if place.count > 1 else place.device_name or "-"


def _will(name: str, block: Mapping[str, Any], place: gpus.Place, kernels: Sequence[str], recorded: Path) -> str:
    if gpus.functional(block):
        return "functional: validate, autotune and benchmark in the interpreter; says nothing of speed"
    if place.reachable:
        through = "" if place.where == gpus.HERE else ", in jobs the executor places"
        return f"measured: survey, build, validate, autotune, benchmark{through}"
    compiled = f"cross-compiled for {_arch(block)}"
    if place.where == gpus.ABSENT:
        return f"{compiled} only; nothing runs"
    return f"{_record(recorded / name, kernels)}; {compiled}"


def _record(folder: Path, kernels: Sequence[str]) -> str:
    """A GPU's record in words: its date, how many of the selected kernels it has, which of them have changed since."""
    heads = {kernel: [_head(path) for path in sorted((folder / kernel).glob("*.json"))] for kernel in kernels}
    present = [kernel for kernel in kernels if heads[kernel]]
    dates = sorted(date for kernel in present for _, date in heads[kernel] if date)
    stale = [kernel for kernel in present if any(digest != catalog.digest(kernel) for digest, _ in heads[kernel])]
    words = f"record{f' of {dates[-1][:10]}' if dates else ''} shown"
    if len(present) < len(kernels):
        words += f", {len(present)} of {_count(kernels, 'kernel')}"
    if stale:
        words += f", {len(stale)} stale, changed since: {', '.join(stale)}"
    return words


def _head(path: Path) -> tuple[str | None, str | None]:
    """The kernel digest and the date of a document, read from its first lines."""
    if not path.is_file():
        return None, None
    with path.open(errors="replace") as file:
        head = file.read(_HEAD_BYTES)
    found = {key: re.search(rf'"{key}"\s*:\s*"([^"]*)"', head) for key in ("kernel_digest", "date")}
    if not all(found.values()):  # an envelope in another order, or one with a very long reason
        try:
            document = strict.load_json(path)
            return document["kernel_digest"], document["software"].get("date")
        except (strict.Unreadable, KeyError, TypeError, AttributeError):
            return None, None  # the stages that read the record whole say what is wrong with it
    return found["kernel_digest"][1], found["date"][1]


def _arch(block: Mapping[str, Any]) -> str:
    ((backend, arch),) = block["target"].items()
    return f"sm_{arch}" if backend == "cuda" else str(arch)


def _count(items: Sequence[str], noun: str) -> str:
    return f"{len(items)} {noun}{'' if len(items) == 1 else 's'}"
