"""A pool of devices: one session with each, and the queue of tasks that the sessions take from.

The first session has the job's own device.  While tasks wait, further devices are asked for, each gets a session in a
thread of its own, and gives its device back when the queue is empty or when another job wants it, after the task at
hand.  How many devices there are changes when a task is done, not what is found.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from ..errors import AtlasError
from .process import NoWorker

ASK_SECONDS = 0.5
"""How often devices are asked for."""

Task = TypeVar("Task")
Result = TypeVar("Result")


class Lease(Protocol):
    """A device that a job has to itself; :mod:`atlas.host.leases` gives them."""

    @property
    def uuid(self) -> str:
        """Which device it is."""

    @property
    def device_name(self) -> str:
        """The driver's name of it."""

    def release(self) -> None:
        """Let others have it."""


class NotHere(AtlasError):
    """A worker says that what the user asks for cannot be had on this host."""


class Ended(Exception):
    """The session was ended from another thread."""


class Session(Protocol):
    """What works on a device, in one thread."""

    @property
    def ready(self) -> bool:
        """Whether its worker takes requests."""

    def await_worker(self) -> None:
        """Have a worker that takes requests.  Raises :class:`NotHere`, :class:`NoWorker` and :class:`Ended`."""

    def close(self) -> None:
        """End the worker; a second time does nothing."""

    def end(self) -> None:
        """From another thread: have what the session is at raise :class:`Ended`, and every later request."""

    def __enter__(self) -> Session: ...

    def __exit__(self, *_: object) -> None: ...


def _none() -> None:
    return None


def _no() -> bool:
    return False


@dataclass(frozen=True)
class Devices:
    """Where a run may work: its own lease (None where it has none), and how to get and when to return further ones."""

    own: Lease | None = None
    spare: Callable[[], Lease | None] = _none
    wanted: Callable[[], bool] = _no


ALONE = Devices()
"""No lease, and no further devices."""


@dataclass(frozen=True)
class Later:
    """What the work on a task returns to be taken up again with ``begun``, once those that wait have had a turn."""

    begun: Any


@dataclass
class Member:
    """A session, its lease, and what it has done."""

    session: Session
    lease: Lease | None
    is_first: bool
    tasks: int = 0
    over: bool = False

    @property
    def device_name(self) -> str:
        """The driver's name of the device; empty for the interpreter."""
        return self.lease.device_name if self.lease else ""


class DevicePool(Generic[Task, Result]):
    """Use it as a context manager, which ends all sessions and returns the devices that were borrowed.

    ``open_session`` makes the session for a lease; the first is made at once.
    """

    def __init__(self, open_session: Callable[[Lease | None], Session], devices: Devices = ALONE):
        self._open, self._devices = open_session, devices
        self.members: list[Member] = [Member(open_session(devices.own), devices.own, is_first=True)]
        self.notes: list[str] = []
        """What became of devices that could not be used."""
        self.idle_seconds = 0.0
        """How long the first session waited for others to finish."""
        self._changed = threading.Condition()
        self._waiting: deque[int] = deque()
        self._results: dict[int, Any] = {}
        self._begun: dict[int, Any] = {}
        self._failure: BaseException | None = None
        self._stopping = False
        self._threads: list[threading.Thread] = []
        self._kept: list[Lease] = []

    def __enter__(self) -> DevicePool:
        return self

    def __exit__(self, *_: object) -> None:
        self._end(self.members)
        self.first.close()
        for lease in self._kept:
            lease.release()

    @property
    def first(self) -> Session:
        """The session on the job's own device."""
        return self.members[0].session

    @property
    def device_names(self) -> list[str]:
        """Of each device that took part; one that was given back and lent again is one device."""
        took_part = [member for member in self.members if member.tasks or member.is_first]
        return list({member.lease and member.lease.uuid: member.device_name for member in took_part}.values())

    @property
    def sessions(self) -> list[Session]:
        """All there were."""
        return [member.session for member in self.members]

    def work(
        self,
        tasks: Sequence[Task],
        do: Callable[[Session, Task, Any], Result | Later],
        in_turn: Callable[[Sequence[Task]], Sequence[Task]] = list,
    ) -> list[Result]:
        """``do`` every task, in the order that ``in_turn`` gives; the results in the order of ``tasks``.

        ``do`` is given None the first time, and what a :class:`Later` of its own holds the next.

        An exception of ``do`` in any thread, and Ctrl-C in this one, ends all sessions and is raised.  Where the worker
        of a borrowed device does not start, the task at hand goes back to the queue and the device is noted.
        """
        self._waiting.extend(tasks.index(task) for task in in_turn(tasks))
        self._start(self.members[0], tasks, do)
        while not self._over(ASK_SECONDS, len(tasks)):
            while self._may_hire() and (lease := self._devices.spare()) is not None:
                member = Member(self._open(lease), lease, is_first=False)
                self.members.append(member)
                self._start(member, tasks, do)
        if self._failure is None:
            # A session that is only starting is of no use any more.
            self._end(self.members[1:])
            self._threads[0].join()
        if self._failure is not None:
            raise self._failure
        return [self._results[index] for index in range(len(tasks))]

    def _over(self, seconds: float, tasks: int) -> bool:
        with self._changed:
            return self._changed.wait_for(
                lambda: self._failure is not None or len(self._results) == tasks, timeout=seconds
            )

    def _may_hire(self) -> bool:
        """Whether the device at hand works, and more tasks wait than sessions are about to take one."""
        with self._changed:
            starting = sum(not member.session.ready and not member.over for member in self.members)
            return self.first.ready and self._failure is None and len(self._waiting) > starting

    def _start(self, member: Member, tasks: Sequence[Task], do: Callable[..., Result]) -> None:
        name = f"atlas session {len(self._threads)}"
        thread = threading.Thread(target=self._run, args=(member, tasks, do), name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _run(self, member: Member, tasks: Sequence[Task], do: Callable[..., Result]) -> None:
        # A borrowed device is free when its session's thread has ended; the first session serves on, in another.
        try:
            if member.is_first:
                self._serve(member, tasks, do)
            else:
                with member.session:
                    self._serve(member, tasks, do)
        except Ended:
            pass
        except (NoWorker, NotHere) as error:
            if member.is_first:
                self._fail(error)
            else:
                self._give_up(member, error)
        except BaseException as error:  # it belongs to the thread that waits
            self._fail(error)
        finally:
            member.over = True
            if not member.is_first and member.lease not in self._kept:
                member.lease.release()

    def _serve(self, member: Member, tasks: Sequence[Task], do: Callable[..., Result]) -> None:
        if not member.is_first:
            member.session.await_worker()  # before it takes a task from those that can work
        while (index := self._take(member, len(tasks))) is not None:
            try:
                result = do(member.session, tasks[index], self._begun.get(index))
            except BaseException:
                with self._changed:
                    self._waiting.appendleft(index)
                    self._changed.notify_all()
                raise
            with self._changed:
                if isinstance(result, Later):
                    self._begun[index] = result.begun
                    self._waiting.append(index)
                else:
                    self._results[index] = result
                member.tasks += 1  # also where another takes it up again: the device took part
                self._changed.notify_all()

    def _take(self, member: Member, tasks: int) -> int | None:
        """The next task; None where the session is to end.

        The first session stays until all is done: a task may come back from a device that failed.
        """
        if not member.is_first and self._devices.wanted():
            return None
        since = time.perf_counter()
        with self._changed:
            if member.is_first and not self._waiting:
                self._changed.wait_for(lambda: self._waiting or self._stopping or len(self._results) == tasks)
                self.idle_seconds += time.perf_counter() - since
            return self._waiting.popleft() if self._waiting and not self._stopping else None

    def _give_up(self, member: Member, error: Exception) -> None:
        with self._changed:
            self.notes.append(f"{member.device_name} was not used to its end: {error}")
            self._kept.append(member.lease)  # or the next one asked for would be the same
            self._changed.notify_all()

    def _fail(self, error: BaseException) -> None:
        with self._changed:
            if self._failure is None:
                self._failure = error
            self._stopping = True
            self._changed.notify_all()

    def _end(self, members: Sequence[Member]) -> None:
        """End these sessions at once, and wait for their threads."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        for member in members:
            member.session.end()
        for member, thread in zip(self.members, self._threads, strict=False):
            if member in members:
                thread.join()
