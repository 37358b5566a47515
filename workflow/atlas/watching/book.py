"""The calls of one process, counted: which function, on what, how often, and which problems of kernels it came to.

A *call* is a public function with its arguments: of tensors their shapes, strides and dtypes, of others their values.
A *run* is one problem that calls of this kind came to: an operator, and the kernel, pass and case that its config was
chosen for.  A kind of call is looked up under a key of plain values, so a watched call costs a few microseconds.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import Parameter

from ..declaration import Case, dtype_name
from .spans import Spans

MOST_CALLS = 4096
"""Kinds of calls that a process keeps; of further ones it counts how many there were."""

DRAWN = frozenset({"seed"})
"""Arguments that differ from call to call and decide nothing."""

_PLAIN = (bool, int, float, str, type(None))
_FINITE = frozenset({bool, int, str, type(None)})


def key_of(value: Any) -> Any:
    """What of an argument tells kinds of calls apart, as something to look up by; 1, 1.0 and True are three values."""
    kind = type(value)
    if kind is torch.Tensor or kind is Parameter:
        return value.shape, _strides(value), value.dtype, value.device
    if kind in _FINITE:
        return kind, value
    if isinstance(value, torch.Tensor):
        return kind, value.shape, _strides(value), value.dtype, value.device
    if isinstance(value, list | tuple):
        return list, *map(key_of, value)
    if isinstance(value, float) and not math.isfinite(value):
        return float, repr(value)
    return (type(value), value) if isinstance(value, (*_PLAIN, torch.dtype)) else (type(value), None)


def _strides(tensor: torch.Tensor) -> tuple[int, ...] | None:
    return tensor.stride() if tensor.layout is torch.strided else None


def described(name: str, value: Any) -> dict[str, Any]:
    """An argument as the file holds it."""
    if isinstance(value, torch.Tensor):
        strides = _strides(value)
        found = {"name": name, "shape": list(value.shape), "dtype": name_of(value.dtype)}
        return found | ({} if strides is None else {"strides": list(strides)})
    return {"name": name, "value": _value(value)}


def name_of(dtype: torch.dtype) -> str:
    """The short name of a dtype, torch's where there is none."""
    try:
        return dtype_name(dtype)
    except KeyError:
        return str(dtype).removeprefix("torch.")


def _value(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return int(value) if abs(value) < 2**63 else str(int(value))
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, torch.dtype):
        return name_of(value)
    if isinstance(value, list | tuple):
        return [_value(one) for one in value]
    if isinstance(value, torch.Tensor):
        return f"{list(value.shape)} {name_of(value.dtype)}"
    return f"<{type(value).__name__}>"


@dataclass(frozen=True)
class Problem:
    """What an operator was asked for; without a kernel no config was chosen for it by sizes."""

    operator: str
    kernel: str | None = None
    direction: str | None = None
    case: Case | None = None
    inside: str = ""
    """The operator that called this one."""
    tensors: tuple[dict[str, Any], ...] = ()
    """The operator's tensors, as the file holds them."""


class Run:
    """How often calls of one kind came to a problem, and how long the timed ones took."""

    def __init__(self, during: str, problem: Problem):
        self.during = during
        self.problem = problem
        self.seen = self.count = self.timed = 0
        self.seconds = 0.0

    def took(self, seconds: float) -> None:
        """A timed call ended."""
        self.timed += 1
        self.seconds += seconds

    def taken(self) -> dict[str, Any]:
        """What was counted since it was last asked."""
        problem, case = self.problem, self.problem.case
        found: dict[str, Any] = {"during": self.during, "operator": problem.operator}
        if problem.inside:
            found["inside"] = problem.inside
        if case is not None:
            found |= {"kernel": problem.kernel, "direction": problem.direction, **case.to_json()}
        found["tensors"] = list(problem.tensors)
        found |= {"count": self.count, "timed": self.timed, "timed_seconds": self.seconds}
        self.count = self.timed = 0
        self.seconds = 0.0
        return found


class Call:
    """One kind of call."""

    def __init__(self, function: str, seen: str, arguments: Sequence[Mapping[str, Any]]):
        self.function, self.seen, self.arguments = function, seen, arguments
        self.count = self.captured = self.failed = 0
        self.reason = ""
        self.backwards: dict[str, int] = {}
        self.runs: dict[Any, list[Run]] = {}

    @property
    def changed(self) -> bool:
        """Whether anything was counted since it was last taken."""
        runs = (run for runs in self.runs.values() for run in runs)
        return bool(self.count or self.captured or self.failed or self.backwards) or any(
            run.count or run.timed for run in runs
        )

    def taken(self) -> dict[str, Any]:
        """What was counted since it was last asked."""
        found = {
            "function": self.function,
            "seen": self.seen,
            "arguments": list(self.arguments),
            "count": self.count,
            "backward": max(self.backwards.values(), default=0),
            "captured": self.captured,
            "failed": self.failed,
            "reason": self.reason,
            "runs": [run.taken() for runs in self.runs.values() for run in runs if run.count or run.timed],
        }
        self.count = self.captured = self.failed = 0
        self.backwards.clear()
        return found


class Book:
    """What a process saw since it last told."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.spans = Spans()
        self.left_out = 0
        self.devices: set[str] = set()
        self._calls: dict[Any, Call] = {}
        self.counted: Callable[[], None] = lambda: None
        """Called when a kind of call was counted for the first time, or the first after a while."""

    def call(self, function: str, seen: str, key: Any, arguments: Callable[[], Sequence[Mapping[str, Any]]]) -> Call:
        """The kind of call with this key; ``arguments`` describes one that is new."""
        found = self._calls.get((function, seen, key))
        if found is None:
            with self.lock:
                if len(self._calls) >= MOST_CALLS:
                    self.left_out += 1
                    return Call(function, seen, ())
                found = self._calls.setdefault((function, seen, key), Call(function, seen, arguments()))
        return found

    def known(self, function: str, seen: str, key: Any) -> Call | None:
        """The kind of call with this key, if there was one."""
        return self._calls.get((function, seen, key))

    def made(self, call: Call) -> None:
        """A call ended well."""
        with self.lock:
            call.count += 1
        self.counted()

    def failed(self, call: Call, reason: str) -> None:
        """A call raised."""
        with self.lock:
            call.failed += 1
            call.reason = reason
        self.counted()

    def followed(self, call: Call, operator: str) -> None:
        """The gradient of an operator of the call was taken."""
        with self.lock:
            call.backwards[operator] = call.backwards.get(operator, 0) + 1
        self.counted()

    def runs(
        self, call: Call, during: str, key: Any, device: torch.device, problems: Callable[[], Sequence[Problem]]
    ) -> list[Run]:
        """The runs of one operator on one kind of arguments; ``problems`` says what they are where they are new."""
        found = call.runs.get((during, key))
        if found is None:
            with self.lock:
                made = [Run(during, problem) for problem in problems()]
                found = call.runs.setdefault((during, key), made)
                self.devices.add(torch.cuda.get_device_name(device) if device.type == "cuda" else device.type)
        return found

    def ran(self, call: Call, runs: Sequence[Run], alone: bool, captured: bool) -> None:
        """An operator of a call ended well; ``alone``: it is the call.  ``captured``: a CUDA graph was given it."""
        with self.lock:
            for run in runs:
                run.seen += 1
                run.count += 1
            call.count += alone
            call.captured += captured
        self.counted()

    def taken(self) -> tuple[list[dict[str, Any]], int]:
        """All that was counted since it was last asked, and how many calls were of no kept kind."""
        with self.lock:
            found = [call.taken() for call in [*self._calls.values()] if call.changed]
            left_out, self.left_out = self.left_out, 0
        return found, left_out

    def forget(self) -> None:
        """In a fork: what was counted is the parent's to tell."""
        self.lock = threading.Lock()
        self.spans.forget()
        self._calls.clear()
        self.left_out = 0
