"""Tasks dealt to worker processes that share one device, and what became of each.

Every worker plans the same tasks, and is told by number which to do next.  A worker that is lost costs the task it was
at, and another takes its place.  Results stand in the order of the tasks: who did what, and when, shows nowhere.
"""

from __future__ import annotations

import signal
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from typing import Any

from ..errors import AtlasError
from .child import Child, Died, Hung

START_SECONDS = 300.0
"""What a worker is given to import torch, bring the device up and plan: on a busy host, minutes."""

SILENCE_SECONDS = 600.0
"""What a worker may take for one part of a task before it counts as hung."""

MOST_LOSSES = 12
"""Workers lost in one run before it is given up: each costs the start of another, and a kernel may lose every one."""

_MEMORY_SHARE = 0.6
"""Of the device's memory that tasks side by side may be expected to take: estimates are rough, contexts cost, too."""


class NoWorker(RuntimeError):
    """No worker starts; the text says why."""


@dataclass(frozen=True)
class Listed:
    """What is known of a task where it is not run.

    ``about`` is for whoever makes something of its loss.  Tasks of one ``group`` go to one worker, in their order: they
    need the same kernels compiled.  ``memory_bytes`` is what the task may take of the device; one that is to be
    ``alone`` runs when all others are done and their workers gone.
    """

    label: str
    group: str
    about: Any = None
    memory_bytes: float = 0.0
    alone: bool = False


@dataclass(frozen=True)
class Opened:
    """A worker's first message: its tasks and what planning noted, or why it has none.

    ``mistake`` is one of the user's, ``failure`` any other.
    """

    tasks: tuple[Listed, ...] = ()
    notes: tuple[Any, ...] = ()
    mistake: str = ""
    failure: str = ""


@dataclass(frozen=True)
class Do:
    """Do the task of this number; all workers have spent so many CPU seconds on tasks so far."""

    index: int
    spent_seconds: float


@dataclass(frozen=True)
class Part:
    """Something that the task at hand found."""

    content: Any


@dataclass(frozen=True)
class Done:
    """The task's end: what was noted, and the CPU seconds it took.

    ``short_of_memory`` says that its parts may be other ones where more of the device is free.  ``lost`` says what took
    the device from this process, which is of no use any more.
    """

    notes: tuple[Any, ...] = ()
    seconds: float = 0.0
    short_of_memory: bool = False
    lost: str = ""


@dataclass
class Outcome:
    """What became of a task: its parts and notes, and how the process at it ended, where it could not say so itself."""

    parts: list[Any] = field(default_factory=list)
    notes: tuple[Any, ...] = ()
    ended: str = ""


class _Member:
    """A worker, and what it is at."""

    def __init__(self, child: Child):
        self.child = child
        self.opened = False
        self.batch: deque[int] = deque()
        self.memory_bytes = 0.0
        self.index: int | None = None
        self.found = Outcome()
        self.expect(START_SECONDS)
        child.start()

    @property
    def at_work(self) -> bool:
        """Whether it has a task, or is to have one."""
        return self.index is not None or bool(self.batch)

    def expect(self, seconds: float) -> None:
        self.deadline = time.monotonic() + seconds


def _exit(signum: int, frame: object) -> None:
    raise SystemExit(128 + signum)


class Dealing:
    """Use it in the main thread as a context manager, which ends all workers, after Ctrl-C and SIGTERM, too.

    ``new_worker`` makes one that is not started; ``workers`` start at once, on a device of ``memory_bytes``.
    """

    def __init__(self, new_worker: Callable[[], Child], workers: int, memory_bytes: float = 0.0):
        self._new, self._budget = new_worker, _MEMORY_SHARE * memory_bytes
        self._members = [_Member(new_worker()) for _ in range(workers)]
        self._opened: Opened | None = None
        self._queue: deque[deque[int]] = deque()
        self._later: list[int] = []
        self._alone = self._given_up = False
        self._spent = 0.0
        self._outcomes: dict[int, Outcome] = {}
        self.losses: list[str] = []
        """How workers were lost."""

    def __enter__(self) -> Dealing:
        self._before = signal.signal(signal.SIGTERM, _exit)
        return self

    def __exit__(self, *_: object) -> None:
        self._keep(0)
        signal.signal(signal.SIGTERM, self._before)

    def plan(self) -> Opened:
        """The tasks, once a worker has planned them.

        Raises :class:`AtlasError` for a mistake of the user's, :class:`NoWorker` where no worker starts.
        """
        while self._opened is None:
            self._listen()
        return self._opened

    def work(self, tell: Callable[[str, int], None] = lambda label, done: None) -> list[Outcome | None]:
        """The outcome of every task, None for those that were not done because workers were lost too often.

        ``tell`` is told the label of each task that begins, and how many are done.
        """
        tasks = self.plan().tasks
        groups: dict[str, deque[int]] = {}
        for index, task in enumerate(tasks):
            if task.alone or task.memory_bytes > self._budget:
                self._later.append(index)
            else:
                groups.setdefault(task.group, deque()).append(index)
        self._queue.extend(groups.values())
        self._finish(tell)
        self._alone = True
        self._queue.extend(deque([index]) for index in sorted(self._later))
        self._keep(1 if self._queue else 0)
        self._finish(tell)
        return [self._outcomes.get(index) for index in range(len(tasks))]

    def _finish(self, tell: Callable[[str, int], None]) -> None:
        """Have everything done that waits."""
        while not self._given_up and (self._queue or any(member.at_work for member in self._members)):
            if not self._members:
                self._members.append(_Member(self._new()))
            for member in self._members:
                if member.opened and member.index is None and self._take(member):
                    self._give(member)
                    tell(self._opened.tasks[member.index].label, len(self._outcomes))
            self._listen()

    def _take(self, member: _Member) -> bool:
        """Whether the member has something to do: the rest of its batch, or else the first one there is room for."""
        if member.batch:
            return True
        taken = sum(other.memory_bytes for other in self._members if other.at_work)
        for batch in self._queue:
            needed = max(self._opened.tasks[index].memory_bytes for index in batch)
            if self._alone or taken + needed <= self._budget:
                self._queue.remove(batch)
                member.batch, member.memory_bytes = batch, needed
                return True
        return False

    def _give(self, member: _Member) -> None:
        member.index, member.found = member.batch.popleft(), Outcome()
        member.child.send(Do(member.index, self._spent))
        member.expect(SILENCE_SECONDS)

    def _listen(self) -> None:
        """Wait for a message, or for a deadline, and act on it."""
        first = min(
            (m.deadline for m in self._members if m.index is not None or not m.opened), default=time.monotonic()
        )
        ready = wait([member.child.connection for member in self._members], max(0.0, first - time.monotonic()))
        for member in list(self._members):
            expected = member.index is not None or not member.opened
            if member.child.connection in ready or (expected and time.monotonic() >= member.deadline):
                try:
                    self._hear(member, member.child.receive(0))
                except Hung:
                    allowed = SILENCE_SECONDS if member.opened else START_SECONDS
                    self._bury(member, f"no answer within {allowed:g} s")
                except Died as death:
                    self._bury(member, f"the process {death}")

    def _hear(self, member: _Member, message: Opened | Part | Done) -> None:
        member.expect(SILENCE_SECONDS)
        if isinstance(message, Part):
            member.found.parts.append(message.content)
        elif isinstance(message, Done):
            self._spent += message.seconds
            self._settle(member, message)
        else:
            self._welcome(member, message)

    def _welcome(self, member: _Member, opened: Opened) -> None:
        if opened.mistake:
            raise AtlasError(opened.mistake)
        if opened.failure:
            member.child.kill()
            self._dismiss(member, opened.failure)
            return
        if self._opened is not None and opened.tasks != self._opened.tasks:
            raise RuntimeError("two workers plan different tasks: what they plan from must be the same in each")
        self._opened, member.opened = self._opened or opened, True

    def _settle(self, member: _Member, done: Done) -> None:
        """Keep the outcome of the member's task, or have it repeated alone."""
        index, member.index = member.index, None
        if done.short_of_memory and not self._alone:
            self._later.append(index)
        else:
            member.found.notes = done.notes
            self._outcomes[index] = member.found
        if done.lost:
            member.child.kill()
            self._replace(member, done.lost)

    def _bury(self, member: _Member, how: str) -> None:
        """A process that is gone, and has not said why."""
        if not member.opened:
            self._dismiss(member, how)
            return
        if member.index is None:  # between two tasks: nobody's fault
            self._replace(member, how)
            return
        index, member.index = member.index, None
        if "SIGKILL" in how and not self._alone:
            self._later.append(index)  # no kernel kills its process: a host short of memory does
        else:
            member.found.ended = how
            self._outcomes[index] = member.found
        self._replace(member, how)

    def _dismiss(self, member: _Member, why: str) -> None:
        """One that does not start.  Where others do, there is no room for as many, it seems."""
        self._members.remove(member)
        if self._members:
            return
        if self._opened is None:
            raise NoWorker(why)
        self.losses.append(f"no worker starts: {why}")
        self._given_up = True

    def _replace(self, member: _Member, how: str) -> None:
        """Another worker for one that was lost; what it had taken comes after all that others wait for."""
        self.losses.append(how)
        self._given_up = self._given_up or len(self.losses) >= MOST_LOSSES
        self._members.remove(member)
        if member.batch:
            self._queue.append(member.batch)
        if self._queue and not self._given_up:
            self._members.append(_Member(self._new()))

    def _keep(self, count: int) -> None:
        """End all workers but so many, first those that are not ready."""
        kept: Iterable[_Member] = sorted(self._members, key=lambda member: not member.opened)
        for position, member in enumerate(list(kept)):
            if position >= count:
                member.child.kill()
                self._members.remove(member)
