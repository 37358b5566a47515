"""What a file of calls comes to: problems of kernels, each with how often and how long; and what has no case.

A call's *own* problems are those of its function's kernel, or all where that has none: a gradient that calls other
public functions takes the time of these, which are tuned and timed as well, but counted once, with the call.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .. import catalog
from ..results.subject import PassCase, label

Row = Mapping[str, Any]
"""A call or a run, as the file holds it."""


@dataclass
class Problem:
    """One pass of a kernel on one case, as a program came to it."""

    kernel: str
    at: PassCase
    part: str = ""
    """Whose time it is part of, where it is not counted by itself."""
    count: int = 0
    seconds: float | None = None
    """On the device of the program, all calls together; None where nothing was timed."""
    functions: set[str] = field(default_factory=set)
    """Which called it."""

    @property
    def case(self) -> tuple[str, tuple[tuple[str, Any], ...]]:
        """Dtype and sizes."""
        return self.at.dtype, self.at.sizes


@dataclass(frozen=True)
class Unmapped:
    """Calls that come to no case."""

    function: str
    what: str
    count: int
    reason: str


def problems(document: Row) -> list[Problem]:
    """All problems of a file of calls, those that took longest first, then those that were met most often."""
    found: dict[tuple[str, PassCase, str], Problem] = {}
    for function, kernel, at, part, count, seconds in (*_of_calls(document["calls"]), *_by_hand(document["cases"])):
        problem = found.setdefault((kernel, at, part), Problem(kernel, at, part))
        problem.count += count
        problem.functions.add(function)
        if seconds is not None:
            problem.seconds = (problem.seconds or 0.0) + seconds
    return sorted(found.values(), key=lambda one: (-(one.seconds or 0.0), -one.count))


def unmapped(document: Row) -> list[Unmapped]:
    """The calls that come to no case, and why."""
    found = []
    for call in document["calls"]:
        function, what = call["function"], arguments(call)
        if call["failed"]:
            found.append(Unmapped(function, what, call["failed"], f"raised {call['reason']}"))
        if call["count"] and not call["runs"]:
            reason = "nothing was launched: empty tensors, or torch computed it"
            found.append(Unmapped(function, what, call["count"], reason))
        for run in call["runs"]:
            if "kernel" not in run and not run.get("inside"):
                reason = f"no config is chosen by sizes for {run['operator']}: no case says what it does"
                found.append(Unmapped(function, what, run["count"], reason))
    if document["left_out"]:
        found.append(Unmapped("", "", document["left_out"], "calls of further kinds than a process keeps"))
    return found


def arguments(call: Row) -> str:
    """A call's arguments for a person: ``input[4096, 1024] bf16, dim=0``; None and what is empty left out."""
    words = []
    for one in call["arguments"]:
        if "shape" in one:
            words.append(f"{one['name']}{one['shape']} {one['dtype']}{_strided(one)}")
        elif one.get("value") is not None:
            words.append(f"{one['name']}={one['value']}")
    return ", ".join(words)


def contiguous(tensor: Row) -> bool:
    """Whether a tensor's elements lie side by side in the order of its dimensions."""
    expected, strides = 1, tensor.get("strides")
    if strides is None:
        return False
    for size, stride in zip(reversed(tensor["shape"]), reversed(strides), strict=False):
        if size != 1 and stride != expected:
            return False
        expected *= max(size, 1)
    return True


def seconds(run: Row) -> float | None:
    """What all calls of a run took, by the mean of those that were timed."""
    return run["timed_seconds"] / run["timed"] * run["count"] if run["timed"] else None


def _strided(tensor: Row) -> str:
    return "" if contiguous(tensor) or "strides" not in tensor else f" strides {tensor['strides']}"


Met = tuple[str, str, PassCase, str, int, float | None]
"""Function, kernel, pass and case, whose part it is, how often, seconds."""


def _of_calls(calls: Iterable[Row]) -> Iterator[Met]:
    families = importlib.import_module("kernels").FUNCTIONS
    for call in calls:
        runs = [run for run in call["runs"] if "kernel" in run]
        if call["seen"] == "operator":
            yield from _of_operator(call, runs)
            continue
        family = families.get(call["function"], "")
        during = {word: [run for run in runs if run["during"] == word] for word in ("forward", "backward")}
        of_family = any(run["kernel"] == family for run in during["forward"])
        yield from _of_pass(call["function"], during["forward"], family if of_family else "")
        own_gradient = any(run["kernel"] == family for run in during["backward"])
        yield from _of_pass(call["function"], during["backward"], family if of_family else "")
        if of_family and call["backward"] and during["backward"] and not own_gradient:
            first = next(run for run in during["forward"] if run["kernel"] == family)
            at = PassCase("backward", first["dtype"], tuple(first["sizes"].items()))
            yield call["function"], family, at, "", call["backward"], _together(during["backward"])


def _of_pass(function: str, runs: Sequence[Row], family: str) -> Iterator[Met]:
    """The runs of a call or its gradient: those of ``family`` have the others as parts; ``""``: all are alike."""
    own = [run for run in runs if not run.get("inside") and family in ("", run["kernel"])]
    for run in runs:
        at = PassCase.of(run)
        mine = any(run is one for one in own)
        took = _together(runs) if mine and len(own) == 1 else seconds(run)
        yield function, run["kernel"], at, "" if mine else function, run["count"], took


def _of_operator(call: Row, runs: Sequence[Row]) -> Iterator[Met]:
    """What compiled code ran: a gradient whose parts are operators, too, is not counted as a whole beside them."""
    for run in runs:
        in_parts = run["direction"] == "backward" and catalog.called(run["kernel"])
        part = run.get("inside") or ("operators of compiled code" if in_parts else "")
        yield call["function"], run["kernel"], PassCase.of(run), part, run["count"], seconds(run)


def _together(runs: Sequence[Row]) -> float | None:
    took = [one for run in runs if not run.get("inside") and (one := seconds(run)) is not None]
    return sum(took) if took else None


def _by_hand(cases: Iterable[Row]) -> Iterator[Met]:
    for case in cases:
        for direction in [case["direction"]] if "direction" in case else ["forward", "backward"]:
            at = PassCase(direction, case["dtype"], tuple(case["sizes"].items()))
            yield "by hand", case["kernel"], at, "", case.get("count", 1), None


def described(problem: Problem) -> str:
    """A problem's case for a person."""
    return f"{problem.at.dtype} {label(dict(problem.at.sizes))}"
