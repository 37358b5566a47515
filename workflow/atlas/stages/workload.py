"""workload: what a file of calls comes to: problems of kernels, their share, which are tuned on a GPU; and what not.

With ``--export`` the configs that the workload's run tuned go into a file of the user's own, which a program reads that
has its name in ``KERNEL_ATLAS_TUNED``.  The configs that the library has for the same kernels are in it, too.
Where this process has that variable, what is tuned is said of the file: so such a program would run.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from .. import catalog
from ..errors import AtlasError
from ..host import gpus
from ..reading.config import GPUS_FILE, load_gpus
from ..results import collection, documents
from ..results.subject import PassCase, label
from ..results.summary import counted
from ..workload import calls, problems


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``python -m atlas workload``."""
    parser.add_argument("calls", type=Path, help="a file of calls, of `python -m atlas watch` or written by hand")
    parser.add_argument("--gpu", help="a block of gpus.yaml: say what is tuned there")
    parser.add_argument("--gpus-file", type=Path, default=GPUS_FILE, help="default: config/gpus.yaml")
    parser.add_argument("--export", type=Path, metavar="FILE", help="write the configs tuned for --gpu there")
    parser.add_argument("--results", type=Path, help="of the workload's run (default: workloads/<calls>/results)")


def run(arguments: argparse.Namespace) -> None:
    """Print what the file comes to, or export; AtlasError for what it cannot be used for."""
    document = calls.read(arguments.calls)
    blocks = load_gpus(arguments.gpus_file)
    if arguments.gpu:
        gpus.names_of([arguments.gpu], blocks, "--gpu", "command line")
    if arguments.export is None:
        _print(document, arguments.gpu, blocks)
    elif arguments.gpu is None:
        raise AtlasError("--export writes the configs of one GPU: name it by --gpu")
    else:
        if gpus.functional(blocks[arguments.gpu]):
            raise AtlasError(f"--gpu {arguments.gpu}: the interpreter's configs are no fast ones; name a real GPU")
        results = arguments.results or Path("workloads", arguments.calls.stem, "results")
        _export(results, arguments.gpu, blocks[arguments.gpu], arguments.export, arguments.calls)


def _print(document: Mapping[str, Any], gpu: str | None, blocks: Mapping[str, Any]) -> None:
    console = Console(highlight=False, markup=False, emoji=False, width=None if sys.stdout.isatty() else 160)
    known = _Known(gpu, blocks)
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for column, style in (("call", "fold"), ("calls", ""), ("gradients", ""), ("share", ""), ("comes to", "fold")):
        table.add_column(column, overflow="fold", justify="left" if style else "right")
    if gpu:
        table.add_column(f"on {gpu}", overflow="fold")
    notes: dict[str, None] = {}
    for call in document["calls"]:
        compiled = " in compiled code" if call["seen"] == "operator" else ""
        what = Text.assemble((call["function"], "bold"), f"({problems.arguments(call)}){compiled}")
        share = "-" if call.get("share") is None else f"{100 * call['share']:.1f} %"
        head: list[str | Text] = [what, str(call["count"]), str(call["backward"]), share]
        lines = [run for run in call["runs"] if "kernel" in run]
        for run in lines:
            table.add_row(*head, _named(run), *([known.says(run["kernel"], PassCase.of(run))] if gpu else []))
            head = ["", "", "", ""]
        if not lines:
            table.add_row(*head, "no case")
        for run in lines:
            notes |= dict.fromkeys(f"{call['function']}: {said}" for said in known.unsaid(call, run))
        if call["captured"]:
            notes[f"{call['function']}: captured in a CUDA graph, whose replays are not counted"] = None
    for case in document["cases"]:
        said = [known.says(case["kernel"], at) for at in _by_hand(case)]
        row = [
            "by hand",
            str(case.get("count", 1)),
            "",
            "-",
            f"{case['kernel']} {case['dtype']} {label(case['sizes'])}",
        ]
        table.add_row(*row, *(["\n".join(dict.fromkeys(said))] if gpu else []))
    console.print(table)
    if document["calls"]:
        timed = f"timed by {document['timed_by']}" if document["timed_by"] else "not timed, so shares are unknown"
        console.print(f"Seen in {_processes(document['processes'])} of "
                      f"{', '.join(document['programs']) or '?'} on {', '.join(document['devices']) or 'no device'}; "
                      f"{timed}.", soft_wrap=True)  # fmt: skip
    for head, found in (("Comes to no case:", _no_case(document)), ("Not in the case:", notes)):
        if found:
            console.print(head, style="bold")
            for line in found:
                console.print(f"  {line}", soft_wrap=True)
    if known.counts:
        counts = ", ".join(f"{number} {how}" for how, number in known.counts.items())
        console.print(f"On {gpu}: {counts}.")


def _processes(count: int) -> str:
    return "1 process" if count == 1 else f"{count} processes"


def _named(run: Mapping[str, Any]) -> str:
    part = f" (inside {run['inside']})" if run.get("inside") else ""
    return f"{run['kernel']} {run['direction']} {run['dtype']} {label(run['sizes'])}{part}"


def _by_hand(case: Mapping[str, Any]) -> Iterator[PassCase]:
    for direction in [case["direction"]] if "direction" in case else ["forward", "backward"]:
        yield PassCase(direction, case["dtype"], tuple(case["sizes"].items()))


def _no_case(document: Mapping[str, Any]) -> list[str]:
    found = [
        f"{one.function}({one.what}), {counted(one.count, 'call')}: {one.reason}" for one in problems.unmapped(document)
    ]
    return list(dict.fromkeys(found))


class _Known:
    """What this release knows of problems: whether it can draw them, and what a GPU runs for them."""

    def __init__(self, gpu: str | None, blocks: Mapping[str, Any]):
        self.counts: dict[str, int] = {}
        self._gpu, self._blocks = gpu, blocks
        self._entries = _run(gpu, blocks[gpu]) if gpu else []
        self._kernels = set(catalog.names())
        self._said: dict[tuple[str, PassCase], str] = {}

    def says(self, kernel: str, at: PassCase) -> str:
        """What the GPU runs for a problem, or why it can be none."""
        if (kernel, at) not in self._said:
            how, more = self._found(kernel, at)
            self._said[kernel, at] = f"{how}{more}"
            if how:
                self.counts[how] = self.counts.get(how, 0) + 1
        return self._said[kernel, at]

    def unsaid(self, call: Mapping[str, Any], run: Mapping[str, Any]) -> list[str]:
        """What of a call the case of a run does not say."""
        from ..workload import mapping

        return list(mapping.unsaid(catalog.load(run["kernel"]), call, run)) if run["kernel"] in self._kernels else []

    def _found(self, kernel: str, at: PassCase) -> tuple[str, str]:
        from ..declaration import choice
        from ..workload import mapping

        if kernel not in self._kernels:
            return "of no kernel of this release", ""
        declaration = catalog.load(kernel)
        case = mapping.case_of((at.dtype, at.sizes))
        if at.direction not in declaration.passes:
            return "", ""  # a kernel without a gradient of its own
        if said := mapping.trouble(declaration, at.direction, case):
            return "no case", f": {said}"
        if self._gpu is None:
            return "", ""
        described = gpus.gpu(self._gpu, self._blocks[self._gpu])
        try:
            made = choice.explained(declaration, at.direction, case, described, self._entries)
        except NotImplementedError as error:
            return "not run there", f": {error}"
        if made.entry is not None and dict(made.entry["sizes"]) == dict(at.sizes):
            return "tuned", f": {made.variant.name}"
        if made.entry is not None:
            return "tuned nearby", f": {made.variant.name} of {label(made.entry['sizes'])}"
        return "untuned", f": {made.variant.name}"


def _run(gpu: str, block: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The entries that a program's calls run: the library's, or those of the file in the environment."""
    from ..declaration import choice, tuned

    given = os.environ.get(choice.VARIABLE)
    pattern, own, faults = tuned.read(Path(given)) if given else ("", [], [])
    if given and (faults or pattern != block.get("match")):
        said = faults[0] if faults else f"for GPUs whose name matches {pattern!r}"
        raise AtlasError(f"{choice.VARIABLE}: {given}: {said}; unset it, or export the file again for {gpu}")
    kernels = {entry["kernel"] for entry in own}
    return own + [entry for entry in _tuned(gpu) if entry["kernel"] not in kernels]


def _tuned(gpu: str) -> list[dict[str, Any]]:
    from ..declaration import choice, tuned

    path = choice.TUNED / f"{gpu}.json"
    return tuned.read(path)[1] if path.exists() else []


def _export(results: Path, gpu: str, block: Mapping[str, Any], path: Path, name: Path) -> None:
    from ..tuning.export import current, exportable, left_out, text, tuned

    entries = exportable(collection.collect(results, gpus=[gpu]))
    if not entries:
        raise AtlasError(
            f"{results}: no autotune document of status ok that GPU {gpu!r} measured; run the workload on that GPU: "
            f"snakemake --cores 4 --config workload={name} gpus={gpu}"
        )
    device = gpus.gpu(gpu, block)
    kept = [current(entry.document, catalog.load(entry.kernel), device) for entry in entries]
    made = tuned(gpu, block["match"], kept)
    own = {_key(entry) for entry in made["entries"]}
    kernels = {entry["kernel"] for entry in made["entries"]}
    others = [entry for entry in _tuned(gpu) if entry["kernel"] in kernels and _key(entry) not in own]
    count = len(made["entries"])
    command = f"python -m atlas workload {name} --gpu {gpu} --export {path}"
    documents.write_text(path, text(made | {"generated_by": command, "entries": [*made["entries"], *others]}))
    print(f"{path}: {counted(count, 'config')} of this workload, {len(others)} of kernels/tuned/{gpu}.json")
    print(f"  run with it: KERNEL_ATLAS_TUNED={path} python …")
    for entry, exported in zip(entries, kept, strict=True):
        for said in left_out(entry, exported):
            print(f"left out: {said}", file=sys.stderr)


def _key(entry: Mapping[str, Any]) -> tuple[str, PassCase]:
    return entry["kernel"], PassCase.of(entry)
