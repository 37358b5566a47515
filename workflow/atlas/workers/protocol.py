"""What a pool and its workers say to each other, and the worker's side of it.

A worker plans its tasks itself, as inputs and kernels do not travel: it lists them first, and is then told by number
which to do.  Or it does jobs that are sent to it, one after another.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Protocol

from ..errors import AtlasError, in_a_line
from . import process

_LOST = 70
"""Exit status of a worker whose device is lost: an orderly exit would try to release what the context holds."""


@dataclass(frozen=True)
class Listed:
    """What is known of a task where it is not run.

    ``about`` is for whoever makes something of its loss.  Tasks of one ``group`` go to one worker, in their order: they
    need the same kernels compiled.  ``memory_bytes`` is what the task may take of the memory that the workers share;
    one that is to be ``alone`` runs when all others are done and their workers gone.
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

    ``short_of_memory`` says that its parts may be other ones where more memory is free.  ``lost`` says what took the
    device from this process, which is of no use any more.
    """

    notes: tuple[Any, ...] = ()
    seconds: float = 0.0
    short_of_memory: bool = False
    lost: str = ""


class Tasks(Protocol):
    """Tasks done by their numbers, in this process or in a worker."""

    opened: Opened

    def do(self, asked: Do) -> Iterator[Part | Done]:
        """What the task finds, as it finds it, and its end."""


def serve(connection: Connection, plan: Callable[[], Tasks]) -> None:
    """A worker's main function: plan tasks, then do what is asked until left alone."""
    try:
        tasks = plan()
    except AtlasError as error:
        connection.send(Opened(mistake=str(error)))
        return
    except Exception as error:
        connection.send(Opened(failure=in_a_line(error)))
        return
    connection.send(tasks.opened)
    try:
        while True:
            for message in tasks.do(connection.recv()):
                connection.send(message)
            if message.lost:
                os._exit(_LOST)
    except (EOFError, ConnectionError):
        return  # the parent is gone


def serve_jobs(connection: Connection) -> None:
    """A worker's main function: call what is sent, each with nothing printed before it, until left alone.

    A job does not raise: what it returns is its result.
    """
    connection.send(Opened())
    try:
        while True:
            job: Callable[[], Any] = connection.recv()
            process.forget_printed()
            connection.send(job())
    except (EOFError, ConnectionError):
        return  # the parent is gone
