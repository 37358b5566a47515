"""A worker's side of :mod:`atlas.workers.dealing`: plan, then do what is asked until left alone."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Protocol

from ..errors import AtlasError, in_a_line
from .dealing import Do, Done, Opened, Part

_LOST = 70
"""Exit status of a worker whose device is lost: an orderly exit would try to release what the context holds."""


class Desk(Protocol):
    """Where tasks are done by their numbers, in this process or in a worker."""

    opened: Opened

    def do(self, asked: Do) -> Iterator[Part | Done]:
        """What the task finds, as it finds it, and its end."""


def serve(connection: Connection, open_desk: Callable[[], Desk]) -> None:
    """The worker's main function."""
    try:
        desk = open_desk()
    except AtlasError as error:
        connection.send(Opened(mistake=str(error)))
        return
    except Exception as error:
        connection.send(Opened(failure=in_a_line(error)))
        return
    connection.send(desk.opened)
    try:
        while True:
            for message in desk.do(connection.recv()):
                connection.send(message)
            if message.lost:
                os._exit(_LOST)
    except (EOFError, ConnectionError):
        return  # the parent is gone
