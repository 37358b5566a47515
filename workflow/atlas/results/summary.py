"""What verdicts say in words: the sentences and figures that the end of a run, the report and MLflow show alike.

A row is one of :func:`atlas.results.verdict.verdicts`, or of the table of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

KIND_WORDS = {
    "measured": "measured here",
    "recorded": "recorded earlier, elsewhere",
    "functional": "in the interpreter",
    "compiled": "compiled only",
}
_CAVEATS = {"functional": ", which says nothing of speed", "compiled": "; nothing ran there"}

STALE = "the kernel's code has changed since"
"""Of a kernel whose documents are stale."""

_ELSE_RAN = "compiled only, not run there as others were"
"""Of kernels that were only compiled for a GPU on which others ran."""
_NAMED = 6
"""So many kernels are named in a line, of more the number is said."""


def evidence(kind: str) -> str:
    """What stands behind a row of this kind, and what that does not say."""
    return KIND_WORDS[kind] + _CAVEATS.get(kind, "")


def note(row: Mapping[str, Any]) -> str:
    """Why a row is not ok or has no figure: the last of its stages that it reached; else nothing."""
    if row["status"] != "ok":
        return row["reason"]
    if row["figure"] is not None:
        return ""
    if row["kind"] in _CAVEATS:
        return evidence(row["kind"])
    if "benchmark" in row["stages"]:
        return "no forward case was timed"
    done = [words for stage, words in (("autotune", "tuned, "), ("validate", "validated, ")) if stage in row["stages"]]
    return f"{next(iter(done), '')}not benchmarked"


def against(row: Mapping[str, Any]) -> str:
    """Whom a row of a benchmark was compared with: ``torch``, ``torch (same)`` where the difference is none.

    ``torch (weak)`` where the peers are no even match.
    """
    if not row["peer"]:
        return "no peer ran"
    said = [row["verdict"]] if row.get("verdict") in ("same", "undecided") else []
    said += ["weak"] if row.get("weak") else []
    return f"{row['peer']} ({', '.join(said)})" if said else row["peer"]


def against_peer(row: Mapping[str, Any]) -> str:
    """``1.23x torch``: how many times as fast as the fastest peer."""
    return f"{times(row['speedup'])} {against(row)}" if row.get("speedup") else against(row)


def all_cases(row: Mapping[str, Any]) -> str:
    """``1.10x, worst 0.93x``: against the fastest peer, geometric mean over all compared cases, and the worst.

    ``1.10x, worst 0.93x, without 2 weak`` where cases are left out for their peers, ``11 weak`` where all are.
    """
    weak = f"{row['weak_cases']} weak" if row.get("weak_cases") else ""
    if not row["speedup_geomean"]:
        return weak or "-"
    mean = f"{times(row['speedup_geomean'])}, worst {times(row['speedup_worst'])}"
    return f"{mean}, without {weak}" if weak else mean


def failure(status: str, kernel: str, gpu: str) -> str:
    """``WRONG: softmax on h200``."""
    return f"{status.upper()}: {kernel} on {gpu}"


def failures(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """A line for each kernel and GPU that makes the run fail."""
    return [f"{failure(row['status'], row['kernel'], row['gpu'])}: {row['reason']}" for row in rows if row["failing"]]


def says_little(row: Mapping[str, Any]) -> bool:
    """Whether all there is to say is that the kernel works in the interpreter, or compiles for a GPU elsewhere."""
    return row["status"] == "ok" and row["kind"] in _CAVEATS and not row["stale"]


def in_short(rows: Iterable[Mapping[str, Any]], kinds: Iterable[str] = tuple(_CAVEATS)) -> list[str]:
    """A line for each GPU and kind, out of ``kinds``, on those of all ``rows`` that say little."""
    rows = list(rows)
    ran = {row["gpu"] for row in rows if row["kind"] in KIND_WORDS and row["kind"] != "compiled"}
    groups: dict[tuple[str, str], list[str]] = {}
    for row in filter(says_little, rows):
        if row["kind"] in kinds:
            said = f"ok {evidence(row['kind'])}"
            if row["kind"] == "compiled":
                said = _ELSE_RAN if row["gpu"] in ran else evidence("compiled")
            groups.setdefault((row["gpu"], said), []).append(row["kernel"])
    return [
        f"{gpu}: {', '.join(kernels) if len(kernels) <= _NAMED else counted(len(kernels), 'kernel')} {said}"
        for (gpu, said), kernels in sorted(groups.items())
    ]


def rate(value: float | None, unit: str) -> str:
    """``3,920 GB/s`` or ``97.5 TFLOP/s``; a dash for None."""
    if value is None:
        return "-"
    return f"{value:,.0f} {unit}" if value >= 100 else f"{value:.3g} {unit}"


def times(value: float) -> str:
    """``1.23x``."""
    return f"{value:.2f}x"


def percent(fraction: float | None) -> str:
    """``87 %`` of 0.87; a dash for None."""
    return "-" if fraction is None else f"{100 * fraction:.0f} %"


def duration(seconds: float) -> str:
    """``31 s``, ``3.2 min``, ``1.4 h``."""
    if seconds < 100:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.1f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def microseconds(value: float) -> str:
    """A time of three digits, or of all before the point, in the unit that suits it."""
    number, unit = (value, "\N{MICRO SIGN}s") if value < 999.5 else (value / 1000, "ms")
    return f"{number:,.0f} {unit}" if number >= 99.95 else f"{number:.3g} {unit}"


def listed(names: Sequence[str], most: int = 6) -> str:
    """``a, b and c``; a long list ends in how many more there are."""
    names = list(names)
    if len(names) > most:
        names = [*names[:most], f"{len(names) - most} more"]
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def counted(count: int, noun: str) -> str:
    """``1 case``, ``2 cases``, ``1,211 cases``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
