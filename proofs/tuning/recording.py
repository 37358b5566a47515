"""What a journal recorded, as problems that can be searched again without a device.

Problems and candidates come from the journal's own entries, so a kernel's file is not needed, nor that it is still what
was measured.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from atlas.declaration import Case
from atlas.errors import AtlasError
from atlas.reading import strict
from atlas.results import packed
from atlas.tuning.candidates import Candidate, Problem
from atlas.tuning.journal import unsealed
from atlas.tuning.outcome import OK, STOPPED, Outcome
from atlas.tuning.worker import SCREEN_SECONDS

_MANY = 30
"""Samples enough for the truth about a candidate; slow work gets as many as a screening has time for."""


@dataclass
class Recorded:
    """One problem of a journal: each candidate's longest screening, and its checks and certificates."""

    problem: Problem
    screened: Mapping[Candidate, Outcome]
    checked: Mapping[Candidate, Outcome]
    certified: Mapping[Candidate, Outcome]

    @property
    def thorough(self) -> bool:
        """Whether every candidate that works was timed long enough to say which is the fastest."""
        return all(
            outcome.status == OK
            and (len(outcome.samples_us) >= _MANY or sum(outcome.samples_us) >= 0.5e6 * SCREEN_SECONDS)
            for outcome in self.screened.values()
            if outcome.worked
        )

    def time_us(self, candidate: Candidate) -> float:
        """The median of all samples recorded of a candidate that works."""
        return statistics.median(self.screened[candidate].samples_us)

    @property
    def right(self) -> list[Candidate]:
        """The candidates that were measured to the end and not found wrong."""
        wrong = {c for found in (self.checked, self.certified) for c, outcome in found.items() if outcome.status != OK}
        return [c for c, outcome in self.screened.items() if outcome.status == OK and c not in wrong]


@dataclass
class Chapter:
    """The part of a journal that holds for one context."""

    context: Mapping[str, Any]
    entries: list[dict[str, Any]] = field(default_factory=list)

    @property
    def label(self) -> str:
        """The context in a few words."""
        device = self.context.get("device") or {}
        parts = {"kernel": str(self.context.get("kernel_digest"))[:12], "driver": device.get("driver")}
        parts |= {name: self.context.get(name) for name in ("torch", "triton")}
        return ", ".join(f"{name} {value}" for name, value in parts.items() if value)


@dataclass(frozen=True)
class Recording:
    """A journal's measurements under one context; ``damaged`` counts the lines that could not be read."""

    path: Path
    context: Mapping[str, Any]
    label: str
    problems: Sequence[Recorded]
    damaged: int


def read(path: Path, context: str | None = None) -> Recording:
    """The recording of the last context that measured anything, or of the one whose number (from 1) or digest is given.

    Raises :class:`AtlasError` where the file holds nothing to replay.
    """
    chapters, damaged = _chapters(path)
    if not chapters:
        lines = f" ({damaged} damaged lines)" if damaged else ""
        raise AtlasError(f"{path}: holds no measurement{lines}; give the journal.jsonl of an autotune run")
    chapter = _chosen(path, chapters, context)
    problems = _problems(path, chapter)
    return Recording(path, chapter.context, chapter.label, problems, damaged)


def _chapters(path: Path) -> tuple[list[Chapter], int]:
    """The contexts that measured something, in the order of their last entries; and the count of damaged lines."""
    try:
        content = path.read_bytes()
        if path.suffix == ".xz":
            content = packed.unpack_lines(content)
    except OSError as error:
        raise AtlasError(f"{path}: cannot be read: {error.strerror}; give a journal.jsonl") from None
    except (strict.Unreadable, KeyError, TypeError) as error:
        raise AtlasError(f"{path}: {error}; give a journal.jsonl, or one of a record") from None
    chapters: dict[str, Chapter] = {}
    at_hand: Chapter | None = None
    damaged = 0
    for line in filter(None, content.split(b"\n")):
        try:
            entry = unsealed(line)
            if "context" in entry:
                key = json.dumps(entry["context"], sort_keys=True)
                at_hand = chapters.pop(key, None) or Chapter(dict(entry["context"]))
                chapters[key] = at_hand
            elif at_hand is None:
                raise ValueError("nothing says what it holds for")
            else:
                Candidate.of(entry["variant"], entry["config"])
                Problem.__str__(_problem(entry, ()))
                Outcome.from_json(entry), entry["method"].split()
                at_hand.entries.append(entry)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            damaged += 1
    return [chapter for chapter in chapters.values() if chapter.entries], damaged


def _chosen(path: Path, chapters: Sequence[Chapter], context: str | None) -> Chapter:
    if context is None:
        return chapters[-1]
    if context.isdigit() and 1 <= int(context) <= len(chapters):
        return chapters[int(context) - 1]
    fitting = [one for one in chapters if str(one.context.get("kernel_digest")).startswith(context)]
    if len(fitting) == 1:
        return fitting[0]
    there = "; ".join(f"{number}: {one.label}" for number, one in enumerate(chapters, 1))
    how = "several contexts" if fitting else "no context"
    raise AtlasError(f"{path}: {how} for --context {context!r}; give a number, there are {there}")


def _problems(path: Path, chapter: Chapter) -> list[Recorded]:
    screened: dict[Any, dict[Candidate, Outcome]] = {}
    checked: dict[Any, dict[Candidate, Outcome]] = {}
    certified: dict[Any, dict[Candidate, Outcome]] = {}
    cases: dict[Any, dict[str, Any]] = {}
    for entry in chapter.entries:
        key = str(_problem(entry, ()))
        candidate, outcome = Candidate.of(entry["variant"], entry["config"]), Outcome.from_json(entry)
        way = entry["method"].split()[0]
        if way == "screen":
            cases.setdefault(key, entry)
            known = screened.setdefault(key, {})
            if candidate not in known or len(outcome.samples_us) >= len(known[candidate].samples_us):
                known[candidate] = outcome
        elif way == "check":
            checked.setdefault(key, {})[candidate] = outcome
        elif way == "certify":  # of a dtype, whatever the sizes
            certified.setdefault((entry["direction"], entry["dtype"]), {})[candidate] = outcome
    _require_samples(path, screened)
    return [
        Recorded(
            _problem(entry, tuple(screened[key])),
            screened[key],
            checked.get(key, {}),
            certified.get((entry["direction"], entry["dtype"]), {}),
        )
        for key, entry in cases.items()
        if any(outcome.status == OK for outcome in screened[key].values())
    ]


def _require_samples(path: Path, screened: Mapping[Any, Mapping[Candidate, Outcome]]) -> None:
    ok = [outcome for known in screened.values() for outcome in known.values() if outcome.status in (OK, STOPPED)]
    if not any(outcome.status == OK for outcome in ok):
        raise AtlasError(
            f"{path}: no config of this context was timed to the end; replay the journal of a run that was"
        )
    if not all(outcome.samples_us for outcome in ok):
        raise AtlasError(
            f"{path}: its entries lack samples_us, so it was written before samples were kept; "
            "record it anew with autotune --strategy exhaustive"
        )


def _problem(entry: Mapping[str, Any], candidates: tuple[Candidate, ...]) -> Problem:
    """The problem of an entry.  A search measures its default first, so the first candidate is taken for it."""
    default = candidates[0] if candidates else None
    return Problem(
        entry["direction"], Case.from_json(entry), candidates, frozenset(candidates[:1]), default, len(candidates)
    )
