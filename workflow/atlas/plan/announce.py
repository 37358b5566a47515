"""The table a run starts with: where each GPU is, and what will therefore happen for it.

Printed by Snakemake's head process while it parses the workflow, so nothing heavy is imported and of a record only the
first lines are read.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from .. import catalog
from ..host import gpus
from ..identity.kernel import PUBLIC, WHOLE
from ..identity.needs import changed, in_words, sentence
from ..identity.today import of_stage
from ..reading import strict
from ..results import files
from ..results.documents import Envelope, read_envelope
from ..results.summary import counted, listed

_STYLES = {gpus.HERE: "green", gpus.CLUSTER: "cyan", gpus.RECORDED: "yellow", gpus.ABSENT: "dim"}
_DETAILED = 3
"""Up to so many stale kernels of a record are told with what changed; of more the names, or the table fills screens."""


def announce(
    blocks: Mapping[str, Mapping[str, Any]],
    places: Mapping[str, gpus.Place],
    kernels: Sequence[str],
    stages: Callable[[str], Sequence[str]],
    recorded: Path = Path("results/recorded"),
) -> None:
    """Print to stderr a row per GPU: its name, where it is, what the driver calls it, what happens for it.

    ``stages`` gives the stages that a GPU has for each kernel.
    """
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for column in ("GPU", "where", "device"):
        table.add_column(column, no_wrap=True)
    table.add_column("what happens", overflow="fold")
    for name, place in places.items():
        where = Text(place.where, style=_STYLES[place.where])
        table.add_row(name, where, _device(place), _will(blocks[name], place, stages(name), recorded / name, kernels))
    console = Console(stderr=True, highlight=False, markup=False, width=None if sys.stderr.isatty() else 120)
    console.print(f"{counted(len(kernels), 'kernel')}: {', '.join(kernels)}", soft_wrap=True)
    console.print(table)
    for said in disagreements(blocks, places, recorded.with_name("measured")):
        console.print(said, soft_wrap=True, style="yellow")


def disagreements(
    blocks: Mapping[str, Mapping[str, Any]], places: Mapping[str, gpus.Place], measured: Path
) -> list[str]:
    """Where a block of a GPU of this host says another thing than the driver did when that GPU was surveyed."""
    found: list[str] = []
    for name, place in places.items():
        if place.where == gpus.HERE and not gpus.functional(blocks[name]):
            with contextlib.suppress(strict.Unreadable, OSError, KeyError, TypeError, ValueError):
                properties = strict.load_json(measured / name / "survey.json")["properties"]
                found.append(gpus.disagreement(name, blocks[name], properties))
    return [said for said in found if said]


def _device(place: gpus.Place) -> str:
    return f"{place.count} x {place.device_name}" if place.count > 1 else place.device_name or "-"


def _will(
    block: Mapping[str, Any], place: gpus.Place, stages: Sequence[str], record: Path, kernels: Sequence[str]
) -> str:
    if gpus.functional(block):
        return f"functional: {', '.join(stages[:-1])} and {stages[-1]} in the interpreter; says nothing of speed"
    if place.reachable:
        through = "" if place.where == gpus.HERE else ", in jobs the executor places"
        through += f" on partition {place.partition}" if place.partition else ""
        return f"measured: {', '.join(('survey', *stages))}{through}"
    compiled = f"cross-compiled for {_arch(block)}" if block.get("build", True) else "predicted; nothing is compiled"
    if place.where == gpus.ABSENT:
        return f"{compiled}, nothing runs"
    return f"{_record(record, kernels)}; {compiled}"


def _record(folder: Path, kernels: Sequence[str]) -> str:
    """A GPU's record in words: its date, how many of the selected kernels it has, what of them has changed since."""
    envelopes = {kernel: [read_envelope(path) for path in files.listed(folder / kernel, "*")] for kernel in kernels}
    present = [kernel for kernel in kernels if envelopes[kernel]]
    dates = sorted(one.date for kernel in present for one in envelopes[kernel] if one.date)
    words = f"record{f' of {dates[-1][:10]}' if dates else ''} shown"
    if len(present) < len(kernels):
        words += f", {len(present)} of {counted(len(kernels), 'kernel')}"
    stale = {kernel: since for kernel in present if (since := _since(kernel, envelopes[kernel]))}
    if len(stale) > _DETAILED:
        words += f", {len(stale)} stale: {listed(list(stale))}; `python -m atlas record check` says what changed"
    elif stale:
        described = [f"{kernel} ({', '.join(map(in_words, since))})" for kernel, since in stale.items()]
        words += f", {len(stale)} stale, changed since: {', '.join(described)}"
    return words


def _since(kernel: str, envelopes: Sequence[Envelope]) -> list[str]:
    """The identities of a kernel that have changed since any of its documents was written."""
    found = [differences(one, catalog.identities(kernel)) for one in envelopes]
    return [name for name in dict.fromkeys(itertools.chain(*found)) if name != PUBLIC]


def differences(stated: Envelope, today: Mapping[str, str]) -> list[str]:
    """The identities that a document states otherwise than they are today; all as one where it states none."""
    if stated.identities is None or stated.stage is None:
        return [WHOLE]
    return changed(stated.stage, stated.identities, today)


def reasons(
    measured: Mapping[tuple[str, str], Sequence[str]],
    functional: Collection[str] = (),
    results: Path = Path("results/measured"),
) -> list[str]:
    """Why documents that are there are due again, as far as code is the reason: a sentence for each change.

    ``measured`` gives the stages that a run has of each GPU and kernel; ``functional`` are the GPUs of the interpreter.
    For instance ``layer_norm: backward `team` changed: build, autotune (h200)``.
    """
    due: dict[str, dict[str, dict[str, None]]] = {}
    for (gpu, kernel), stages in measured.items():
        now = catalog.identities(kernel)
        for stage in stages:
            stated = read_envelope(results / gpu / kernel / f"{stage}.json")
            if stated.stage is None:
                continue
            names = differences(stated, now)
            said = [f"{kernel}: {sentence(names, stated.identities or {}, now)}"] if names else []
            if stated.code not in (None, of_stage(stage, gpu in functional)):
                said.append(f"the code of {stage} changed")
            for one in said:
                due.setdefault(one, {}).setdefault(stage, {})[gpu] = None
    return [
        f"{said}: {', '.join(stages)} ({', '.join(dict.fromkeys(itertools.chain(*stages.values())))})"
        for said, stages in due.items()
    ]


def announce_reasons(measured: Mapping[tuple[str, str], Sequence[str]], functional: Collection[str] = ()) -> None:
    """Print to stderr why documents that are there are due again."""
    found = reasons(measured, functional)
    if found:
        console = Console(stderr=True, highlight=False, width=None if sys.stderr.isatty() else 120)
        console.print("Due again, since code changed:")
        for said in found:
            console.print(f"  {said}", markup=False, soft_wrap=True)


def _arch(block: Mapping[str, Any]) -> str:
    ((backend, arch),) = block["target"].items()
    return f"sm_{arch}" if backend == "cuda" else str(arch)
