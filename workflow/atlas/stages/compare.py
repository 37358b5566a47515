"""compare: faster, slower, same or undecided, case by case, between two sides; or a case's history.

A side is a document, a folder of documents, a git commit with records, or an MLflow run; several runs of one side
stand in one folder, or are joined by commas.  Five runs a side decide 3 % of nearly every case over 20 us: one cannot,
since a new process moves a median by up to that.
"""

from __future__ import annotations

import argparse
import collections
import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..errors import AtlasError
from ..results import changes, circumstances, sides
from ..results.collection import Entry
from ..results.documents import write_bytes, write_text
from ..results.subject import PassCase, as_json, label
from ..results.summary import counted, microseconds

SLOWER = 1
"""The exit status where a case is slower: 0 says that none is, 2 that the sides cannot be read or share no case."""

_STYLES = {"slower": "bold red", "faster": "green", "undecided": "yellow", "same": ""}
_ORDER = tuple(_STYLES)
_WIDTH = 160
_MLFLOW = "mlflow:"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The sides, the selection, and where to."""
    parser.add_argument("sides", nargs="*", metavar="SIDE", help="two sides, before and after: a document, a folder, a "
                        "git commit, mlflow:RUN or mlflow:URI/RUN, or several of these joined by commas; --history "
                        "takes any number")  # fmt: skip
    parser.add_argument("--history", action="store_true", help="each case over the records in git, or over the sides")
    parser.add_argument("--kernels", metavar="A,B", help="default: all that both sides have")
    parser.add_argument("--gpus", metavar="A,B", help="default: all that both sides have")
    parser.add_argument("--every-variant", action="store_true", help="each variant with itself (default: the fastest "
                        "of each case)")  # fmt: skip
    parser.add_argument("--all", action="store_true", help="show the cases that are the same, too")
    parser.add_argument("--output", type=Path, metavar="FILE", help="write it as .json or .csv, too")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw it as .png, .svg or .pdf")
    parser.add_argument("--results", type=Path, default=Path("results"), help="whose MLflow mlflow:RUN is of")


def run(arguments: argparse.Namespace) -> int:
    """Print, write and draw the comparison; 1 where a case is slower, else 0."""
    _check_files(arguments)
    if arguments.history:
        return _history(arguments)
    if len(arguments.sides) != 2:
        raise AtlasError(f"command line: {counted(len(arguments.sides), 'side')}; give two, before and after")
    before, after = (_side(name, arguments) for name in arguments.sides)
    shared = [key for key in after.runs if key in before.runs and _chosen(key, arguments)]
    alike = [key for key in shared if sides.same_runs(before.runs[key], after.runs[key])]
    groups = {}
    for key in sorted(set(shared) - set(alike), key=lambda key: key[::-1]):
        rows = list(changes.compared(before.runs[key], after.runs[key], arguments.every_variant))
        if rows:
            groups[key] = rows
    if alike and not groups:
        raise AtlasError(f"{before.name} and {after.name} hold the very same runs; measure again and name both results")
    if not groups:
        raise AtlasError(f"{before.name} and {after.name} share no timed case of a kernel and GPU"
                         f"{' in this selection' if arguments.kernels or arguments.gpus else ''}: they have "
                         f"{_names(before)} and {_names(after)}{_two_gpus(before, after)}")  # fmt: skip
    changed = {key: circumstances.differing(before.runs[key], after.runs[key]) for key in groups}
    every = [row for rows in groups.values() for row in rows]
    console = _console()
    for key, rows in groups.items():
        _show(console, key, rows, changed[key], arguments.all)
    counts = collections.Counter(row["verdict"] for row in every)
    console.print(
        f"{before.name} to {after.name}: {_counted(counts)} of {counted(len(every), 'case')}.", soft_wrap=True
    )
    if arguments.output:
        document = {
            "before": before.name,
            "after": after.name,
            "verdicts": {name: counts[name] for name in _ORDER},
            "changed": [
                {"kernel": kernel, "gpu": gpu, **one} for (gpu, kernel), ones in changed.items() for one in ones
            ],
            "cases": every,
        }
        _write(arguments.output, document, every)
    if arguments.plot:
        from ..figures import changed as figure

        _draw(arguments.plot, figure.steps(every, before.name, after.name))
    return SLOWER if counts["slower"] else 0


def _history(arguments: argparse.Namespace) -> int:
    """Each case over time, each record compared with the one before it; 1 where the last one is slower."""
    series = _series(arguments)
    rows = []
    for (gpu, kernel), entries in series.items():
        last: dict[tuple[Any, ...], dict[str, Any]] = {}
        for position, (name, entry) in enumerate(entries):
            against = entries[position - 1][1] if position else entry
            for row in changes.compared([against], [entry], arguments.every_variant):
                kept = {key: row[key] for key in ("direction", "dtype", "sizes", "provider", "config", "median_us")}
                key = (PassCase.of(row), row["provider"] if arguments.every_variant else "")
                point = {"kernel": kernel, "gpu": gpu, "at": name, "date": row["date"], **kept}
                step = {key: row[key] for key in ("step", "low", "high", "peer_step", "verdict", "reason")}
                last[key] = point | (step if position else dict.fromkeys(step))
                rows.append(last[key])
    if not rows:
        raise AtlasError("--history: no benchmark of this selection was ever recorded, or lies in these folders")
    console = _console()
    for (gpu, kernel), own in _grouped(rows).items():
        console.print(f"{kernel} on {gpu}", style="bold")
        console.print(_history_table(own))
    if arguments.output:
        _write(arguments.output, {"history": rows}, rows)
    if arguments.plot:
        from ..figures import changed as figure

        _draw(arguments.plot, figure.history(rows))
    newest = {(row["kernel"], row["gpu"], PassCase.of(row), row["provider"]): row for row in rows}
    ends = {key: entries[-1][0] for key, entries in series.items()}
    slower = [r for r in newest.values() if r["verdict"] == "slower" and r["at"] == ends[r["gpu"], r["kernel"]]]
    return SLOWER if slower else 0


def _series(arguments: argparse.Namespace) -> dict[tuple[str, str], list[tuple[str, Entry]]]:
    """The runs of every kernel and GPU in the order of their dates, each with where it is from."""
    found: list[tuple[str, Entry]] = []
    if arguments.sides:
        for name in arguments.sides:
            found += [(name, entry) for runs in _side(name, arguments).runs.values() for entry in runs]
    else:
        if not arguments.kernels:
            raise AtlasError("--history: name the --kernels whose records in git are to be read")
        found += sides.history(_split(arguments.kernels), _split(arguments.gpus) or None)
    series: dict[tuple[str, str], list[tuple[str, Entry]]] = {}
    for name, entry in sorted(found, key=lambda one: one[1].document["software"].get("date") or ""):
        key = (entry.gpu, entry.kernel or "")
        if _chosen(key, arguments):
            series.setdefault(key, []).append((name, entry))
    return series


def _side(name: str, arguments: argparse.Namespace) -> sides.Side:
    side = sides.Side(name)
    for one in filter(None, name.split(",")):
        side.add(_entries(one, arguments.results))
    return side


def _entries(name: str, results: Path) -> list[Entry]:
    if name.startswith(_MLFLOW):
        from ..tracking import fetched

        return fetched.benchmarks(name.removeprefix(_MLFLOW), results)
    if Path(name).exists():
        return sides.of_path(Path(name))
    if sides.is_commit(name):
        return sides.of_commit(name)
    raise AtlasError(f"{name}: no file, folder or git commit; an MLflow run is mlflow:RUN or mlflow:URI/RUN")


def _split(names: str | None) -> list[str]:
    return [name.strip() for name in (names or "").split(",") if name.strip()]


def _chosen(key: tuple[str, str], arguments: argparse.Namespace) -> bool:
    gpus, kernels = _split(arguments.gpus), _split(arguments.kernels)
    return (not gpus or key[0] in gpus) and (not kernels or key[1] in kernels)


def _names(side: sides.Side) -> str:
    return ", ".join(f"{kernel} on {gpu}" for gpu, kernel in sorted(side.runs)[:3]) + (
        " …" if len(side.runs) > 3 else ""
    )


def _two_gpus(before: sides.Side, after: sides.Side) -> str:
    """What to do instead where both timed the same kernel, on different GPUs; else nothing."""
    kernels = {kernel for _, kernel in before.runs} & {kernel for _, kernel in after.runs}
    apart = {gpu for gpu, _ in before.runs}.isdisjoint(gpu for gpu, _ in after.runs)
    return "; two GPUs are compared by `python -m atlas report`" if kernels and apart else ""


def _counted(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{counts[name]} {name}" for name in _ORDER)


def _console() -> Console:
    shown = Console(highlight=False, markup=False, emoji=False)
    return shown if shown.is_terminal else Console(highlight=False, markup=False, emoji=False, width=_WIDTH)


def _show(
    console: Console,
    key: tuple[str, str],
    rows: Sequence[Mapping[str, Any]],
    changed: Iterable[Mapping[str, str]],
    every: bool,
) -> None:
    """A kernel's counts, what changed, and its cases: those that are the same where ``every`` is true."""
    counts = collections.Counter(row["verdict"] for row in rows)
    runs = f"{rows[0]['before_runs']} and {counted(rows[0]['runs'], 'run')}"
    console.print(f"{key[1]} on {key[0]}: {_counted(counts)} ({runs})", style="bold")
    for one in changed:
        old = f"{one['before']} -> " if one["before"] else ""
        console.print(f"  {one['what']}: {old}{one['after'] or 'none'}", soft_wrap=True)
    shown = [row for row in rows if every or row["verdict"] != "same"]
    if shown:
        console.print(_table(shown))
    console.print()


def _table(rows: Iterable[Mapping[str, Any]]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 2), pad_edge=False, header_style="bold")
    for header in ("verdict", "case", "before", "after", "step", "interval", "peers", "why"):
        justify = "right" if header in ("before", "after", "step", "peers") else "left"
        table.add_column(header, justify=justify, no_wrap=header not in ("case", "why"), overflow="fold")
    for row in sorted(rows, key=lambda row: (_ORDER.index(row["verdict"]), row["step"])):
        moved = "" if row["provider"] == row["before_provider"] else f", was {row['before_provider']}"
        config = "" if row["config"] == row["before_config"] or moved else ", another config"
        table.add_row(
            Text(row["verdict"], style=_STYLES[row["verdict"]]),
            f"{PassCase.of(row)} ({row['provider']}{moved}{config})",
            microseconds(row["before_median_us"]),
            microseconds(row["median_us"]),
            f"{row['step']:.3f}x",
            f"{row['low']:.3f} to {row['high']:.3f}",
            "-" if row["peer_step"] is None else f"{row['peer_step']:.3f}x",
            row["reason"],
        )
    return table


def _history_table(rows: Iterable[Mapping[str, Any]]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 2), pad_edge=False, header_style="bold")
    for header in ("case", "date", "at", "variant", "median", "step", "verdict"):
        table.add_column(header, justify="right" if header in ("median", "step") else "left", overflow="fold")
    before = None
    for row in sorted(rows, key=lambda row: (row["direction"], row["dtype"], as_json(row["sizes"]), row["date"] or "")):
        case = str(PassCase.of(row))
        table.add_row(
            "" if case == before else case, (row["date"] or "?")[:16], row["at"],
            f"{row['provider']} {label(row['config'])}", microseconds(row["median_us"]),
            "" if row["step"] is None else f"{row['step']:.3f}x",
            Text(row["verdict"] or "", style=_STYLES.get(row["verdict"] or "", "")),
        )  # fmt: skip
        before = case
    return table


def _grouped(rows: Iterable[Mapping[str, Any]]) -> dict[tuple[str, str], list[Mapping[str, Any]]]:
    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["gpu"], row["kernel"]), []).append(row)
    return groups


def _check_files(arguments: argparse.Namespace) -> None:
    """Raise :class:`AtlasError` for a file of a kind that is not written, before anything is read."""
    for option, kinds in (("output", (".json", ".csv")), ("plot", (".png", ".svg", ".pdf"))):
        path = getattr(arguments, option)
        if path is not None and path.suffix not in kinds:
            raise AtlasError(f"command line: --{option} {path}: end the name in {' or '.join(kinds)}")


def _write(path: Path, document: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> None:
    if path.suffix == ".json":
        write_text(path, json.dumps(document, indent=1, allow_nan=False) + "\n")
        return
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({key: as_json(value) if isinstance(value, dict) else value for key, value in row.items()})
    write_text(path, text.getvalue())


def _draw(path: Path, figure: Any) -> None:
    drawn = io.BytesIO()
    figure.savefig(drawn, format=path.suffix[1:], dpi=144)
    write_bytes(path, drawn.getvalue())
