"""Jobs and tasks on several worker processes, and what became of each.

:func:`run_jobs` has jobs done that anybody can do.  :class:`Pool` has workers plan tasks that share one device: it sees
to their order, to the memory they take side by side, and to those that must be alone.  A worker that is lost costs the
task it was at, and another takes its place.  Who did what, and when, shows nowhere.
"""

from __future__ import annotations

import signal
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from typing import Any

from ..errors import AtlasError
from .process import Died, NoWorker, Process, TimedOut
from .protocol import Do, Done, Opened, Part

START_SECONDS = 300.0
"""What a worker is given to import torch, bring the device up and plan: on a busy host, minutes."""

SILENCE_SECONDS = 600.0
"""What a worker may take for one part of a task before it counts as hung."""

MOST_LOSSES = 12
"""Workers lost in one run before it is given up: each costs the start of another, and a kernel may lose every one."""

_MEMORY_SHARE = 0.6
"""Of the device's memory that tasks side by side may be expected to take: estimates are rough, contexts cost, too."""


@dataclass
class Outcome:
    """What became of a task: its parts and notes, and how the process at it ended, where it could not say so itself."""

    parts: list[Any] = field(default_factory=list)
    notes: tuple[Any, ...] = ()
    ended: str = ""


class Worker:
    """A process, and what it is at; it starts at once."""

    def __init__(self, process: Process):
        self.process = process
        self.opened = False
        self.index: int | None = None
        self.expect(START_SECONDS)
        process.start()

    def give(self, index: int, message: Any) -> None:
        """Have it do the job of this number, which is to be :meth:`expect`-ed."""
        self.index = index
        self.process.send(message)

    def expect(self, seconds: float) -> None:
        """Allow it so long for its next answer."""
        self.allowed_seconds = seconds
        self.deadline = time.monotonic() + seconds

    @property
    def expected(self) -> bool:
        """Whether an answer is due."""
        return self.index is not None or not self.opened


Event = Any
"""A worker's answer, or the :class:`TimedOut` or :class:`Died` that ended it."""


def _events(workers: Sequence[Worker]) -> Iterator[tuple[Worker, Event]]:
    """Wait for an answer, a death or a deadline: each worker of which there is one, with that."""
    first = min((worker.deadline for worker in workers if worker.expected), default=time.monotonic())
    ready = wait([worker.process.connection for worker in workers], max(0.0, first - time.monotonic()))
    for worker in list(workers):
        late = worker.expected and time.monotonic() >= worker.deadline
        if late or worker.process.connection in ready:
            try:
                yield worker, worker.process.receive(0)
            except (TimedOut, Died) as end:
                yield worker, end


def run_jobs(
    jobs: Iterable[Callable[[], Any]], most: int, timeout_seconds: float, new_worker: Callable[[], Process]
) -> Iterator[tuple[int, Event]]:
    """Have jobs done on up to ``most`` workers; yields (number of the job, result) as each ends.

    ``new_worker`` makes one that is not started and runs :func:`~.protocol.serve_jobs`.  Jobs are drawn when a worker
    is free for them, so an iterator may take its time to find the next.  The result of a job over its time is
    :class:`TimedOut`, that of one whose process ends :class:`Died`; a new worker takes its place.  Closing the iterator
    early ends the workers.
    """
    waiting = enumerate(jobs)
    upcoming = next(waiting, None)
    workers: list[Worker] = []
    try:
        while upcoming is not None or workers:
            while upcoming is not None and len(workers) < most:
                workers.append(Worker(new_worker()))
                workers[-1].give(*upcoming)
                upcoming = next(waiting, None)
            for worker, event in list(_events(workers)):
                if isinstance(event, Opened):
                    worker.opened = True
                    worker.expect(timeout_seconds)
                    continue
                index = worker.index
                if upcoming is not None and worker.process.running:
                    worker.give(*upcoming)
                    worker.expect(timeout_seconds)
                    upcoming = next(waiting, None)
                else:
                    workers.remove(worker)
                    worker.process.kill()
                yield index, event
    finally:
        for worker in workers:
            worker.process.kill()


class _Member(Worker):
    """A worker of a pool of tasks."""

    def __init__(self, process: Process):
        self.batch: deque[int] = deque()
        self.memory_bytes = 0.0
        self.found = Outcome()
        super().__init__(process)

    @property
    def at_work(self) -> bool:
        """Whether it has a task, or is to have one."""
        return self.index is not None or bool(self.batch)


def _exit(signum: int, frame: object) -> None:
    raise SystemExit(128 + signum)


class Pool:
    """Use it in the main thread as a context manager, which ends all workers, after Ctrl-C and SIGTERM, too.

    ``new_worker`` makes one that is not started; ``workers`` start at once, on a device of ``memory_bytes``.
    """

    def __init__(self, new_worker: Callable[[], Process], workers: int, memory_bytes: float = 0.0):
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

    def __enter__(self) -> Pool:
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
        index, member.found = member.batch.popleft(), Outcome()
        member.give(index, Do(index, self._spent))
        member.expect(SILENCE_SECONDS)

    def _listen(self) -> None:
        """Wait for a message, or for a deadline, and act on it."""
        for member, event in _events(self._members):
            if isinstance(event, TimedOut):
                self._lose(member, f"no answer within {member.allowed_seconds:g} s")
            elif isinstance(event, Died):
                self._lose(member, f"the process {event}", event.killed)
            else:
                self._hear(member, event)

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
            member.process.kill()
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
            member.process.kill()
            self._replace(member, done.lost)

    def _lose(self, member: _Member, how: str, killed: bool = False) -> None:
        """A process that is gone, and has not said why."""
        if not member.opened:
            self._dismiss(member, how)
            return
        if member.index is None:  # between two tasks: nobody's fault
            self._replace(member, how)
            return
        index, member.index = member.index, None
        if killed and not self._alone:
            self._later.append(index)  # a host short of memory kills
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
                member.process.kill()
                self._members.remove(member)
