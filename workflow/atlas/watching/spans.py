"""How long calls keep a GPU: pairs of events around some of them, read when they are done, so that nobody waits."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from ..errors import in_a_line

_UNTIMED = 2
"""Calls of a kind that are not timed at first: they compile, and are recorded."""

_EACH = 12
"""From then on every call up to this one is timed,"""

_EVERY = 32
"""and later one of so many."""

_PENDING = 512
"""Most pairs that may wait to be read; with more no further call is timed."""


class Timed(Protocol):
    """Whose time it is: how many calls there were before this one, and where the time goes."""

    seen: int

    def took(self, seconds: float) -> None:
        """A timed call ended."""


@dataclass(frozen=True)
class Span:
    """One call under way."""

    of: Timed
    begin: Any
    end: Any
    stream: Any


class Spans:
    """Events around calls on CUDA devices, from any thread."""

    def __init__(self) -> None:
        self._waiting: deque[Span] = deque()
        self._lock = threading.Lock()
        self.obstacle = ""
        """Why nothing is timed any more: a program shall not end because its calls cannot be timed."""

    def begin(self, of: Timed, device: torch.device) -> Span | None:
        """Begin to time a call on ``device``, a CUDA device that captures no graph; None for a call that is passed."""
        number = of.seen
        if self.obstacle:
            return None
        if number < _UNTIMED or (number >= _EACH and number % _EVERY) or len(self._waiting) >= _PENDING:
            self.read()
            return None
        try:
            stream = torch.cuda.current_stream(device)
            span = Span(of, *(torch.cuda.Event(enable_timing=True) for _ in range(2)), stream)
            span.begin.record(stream)
        except Exception as error:
            self.obstacle = in_a_line(error)
            return None
        return span

    def end(self, span: Span) -> None:
        """The call has been launched."""
        try:
            span.end.record(span.stream)
        except Exception as error:
            self.obstacle = in_a_line(error)
            return
        with self._lock:
            self._waiting.append(span)
        self.read()

    def read(self, wait: Callable[[], None] | None = None) -> None:
        """Tell of the calls that are done; with ``wait``, which waits for the devices, of all."""
        if not self._waiting or self.obstacle:
            return
        with self._lock:
            try:
                if wait is not None:
                    wait()
                while self._waiting and self._waiting[0].end.query():
                    span = self._waiting.popleft()
                    span.of.took(span.begin.elapsed_time(span.end) / 1e3)
            except Exception as error:  # a device that was lost: the program will say so
                self.obstacle = in_a_line(error)

    def forget(self) -> None:
        """In a fork: the events are the parent's."""
        self._waiting.clear()
        self._lock = threading.Lock()
