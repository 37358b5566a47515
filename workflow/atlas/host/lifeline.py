"""A stage of a run ends with the run: killed outright, Snakemake ends nothing, and its jobs would keep the GPU.

The shell between them lives on, so a signal at the parent's death (as :mod:`atlas.workers.forked` asks for) does not
come.  A process of its own watches both, since a stage that hangs on a device would not notice anything.
"""

from __future__ import annotations

import os
import select
import socket
import time

from ..errors import AtlasError
from ..workers.family import kill_family

VARIABLE = "KERNEL_ATLAS_RUN"
"""Host and process id of the Snakemake that started a stage; a job on another host parses the workflow there."""

_POLL_SECONDS = 1.0


def begin() -> None:
    """Let the jobs of this process, a Snakemake, know whom they are to end with."""
    os.environ[VARIABLE] = f"{socket.gethostname()}:{os.getpid()}"


def follow() -> None:
    """End this process and all it starts when the run that started it ends; nothing without a run.

    Call it before anything is imported that starts a thread.  Raises :class:`AtlasError` where the run is over.
    """
    host, _, run = os.environ.get(VARIABLE, "").rpartition(":")
    if not run.isdigit() or host != socket.gethostname() or not hasattr(os, "fork"):
        return
    if not _there(int(run)):
        raise AtlasError(f"the run that started this ({VARIABLE}={host}:{run}) has ended, so this ends, too")
    stage = os.getpid()
    between = os.fork()
    if between:
        os.waitpid(between, 0)
        return
    try:
        if os.fork() == 0:  # the stage's grandchild, so that it has no child it does not know of
            _detach()
            if _first_to_end(int(run), stage) == int(run):
                kill_family(stage)
    finally:
        os._exit(0)


def _detach() -> None:
    """Hold nothing of the stage's: its log, its terminal, its locks."""
    os.setsid()
    os.closerange(0, 1024)
    for _ in range(3):
        os.open(os.devnull, os.O_RDWR)


def _first_to_end(run: int, stage: int) -> int:
    """Which of them is the first to end, the stage where both are gone."""
    if not hasattr(os, "pidfd_open"):  # before Linux 5.3, and elsewhere
        while _there(run) and _there(stage):
            time.sleep(_POLL_SECONDS)
        return run if _there(stage) else stage
    handles = {}
    for pid in (stage, run):
        try:
            handles[os.pidfd_open(pid)] = pid
        except ProcessLookupError:
            return pid
    poll = select.poll()
    for handle in handles:
        poll.register(handle, select.POLLIN)
    ended = {handles[handle] for handle, _ in poll.poll()}
    return stage if stage in ended else run


def _there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # somebody else's
        pass
    return True
