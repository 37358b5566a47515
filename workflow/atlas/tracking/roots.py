"""What a store has of one tree already: whole, half, or being written by somebody else.

The rule that lets any number of hosts write one experiment, without a lock that spans them: a tree counts when its root
has a digest, which is set last; of several the one with the largest stamp counts; whoever sees others deletes them.
"""

from __future__ import annotations

import os
import socket
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

KEY, DIGEST = "atlas.key", "atlas.digest"
"""Tags of a tree's root: which (kernel, GPU) it is, and of what documents.  The digest is set last, so a tree that was
cut off has none and is written again."""

STAMP = "atlas.written"
"""Milliseconds since the epoch, or one more than the largest that was there: hosts' clocks need not agree."""

WRITER, BEAT = "atlas.writer", "atlas.beat"
"""Tags of a root that is being written through a server: by whom, and a count that goes up while they live."""

BEAT_SECONDS = 5.0
"""How often a writer raises its beat at least, while its requests are answered."""

_DEAD_SECONDS = 30.0  # of a writer on another host, without a beat; a request of ours may take 20


@dataclass(frozen=True)
class Root:
    """A root that is not deleted: its run's id, and its tags."""

    run_id: str
    tags: Mapping[str, str]

    @property
    def digest(self) -> str | None:
        """None where the tree is half."""
        return self.tags.get(DIGEST)

    @property
    def order(self) -> tuple[int, str]:
        """The larger counts; ids decide between equal stamps, so that everybody decides alike."""
        return int(self.tags.get(STAMP, "0")), self.run_id


@dataclass(frozen=True)
class State:
    """What there is of a tree: the root that counts, those to delete, and whether somebody is writing it now."""

    current: Root | None
    surplus: tuple[str, ...]
    busy: bool
    stamp: int
    """What a tree written now is to be stamped with."""


def author() -> str:
    """Who writes, to be put on a half tree: host, its boot, process, when that began, and which of its attempts."""
    return " ".join([*_this_host(), str(os.getpid()), _began(os.getpid()) or "-", uuid.uuid4().hex[:12]])


def named(writer: str) -> str:
    """The writer in words: process and host."""
    host, _, process, *_ = [*writer.split(), "", "", ""]
    return f"process {process} on {host}"


@dataclass
class Watch:
    """Tells writers that are alive from dead ones; ``own`` are this process's attempts that go on.

    Of this host the process table says it.  One of another host is alive until its beat has stood still for half a
    minute on this host's own clock.
    """

    own: set[str] = field(default_factory=set)
    _seen: dict[str, tuple[str, float]] = field(default_factory=dict)

    def alive(self, root: Root) -> bool:
        """Whether somebody still writes this half tree."""
        writer = root.tags.get(WRITER, "")
        parts = writer.split()
        if len(parts) != 5:
            return False
        if tuple(parts[:2]) == _this_host():
            if int(parts[2]) == os.getpid():
                return writer in self.own
            return _began(int(parts[2])) == parts[3]
        beat, now = root.tags.get(BEAT, ""), time.monotonic()
        before, since = self._seen.setdefault(root.run_id, (beat, now))
        if beat != before:
            self._seen[root.run_id] = (beat, now)
            return True
        return now - since < _DEAD_SECONDS

    def state(self, roots: Sequence[Root]) -> State:
        """What these roots of one tree come to."""
        whole = sorted((root for root in roots if root.digest), key=lambda root: root.order)
        halves = [root for root in roots if not root.digest]
        alive = {root.run_id for root in halves if self.alive(root)}
        surplus = [root.run_id for root in [*whole[:-1], *halves] if root.run_id not in alive]
        after = whole[-1].order[0] + 1 if whole else 0
        others = any(root.run_id in alive and root.tags[WRITER] not in self.own for root in halves)
        return State(whole[-1] if whole else None, tuple(surplus), others, max(after, time.time_ns() // 10**6))


def _this_host() -> tuple[str, str]:
    boot = Path("/proc/sys/kernel/random/boot_id")
    return socket.gethostname() or "-", boot.read_text().strip() if boot.exists() else "-"


def _began(process: int) -> str | None:
    """When a process of this host began, in ticks since the boot; None where there is none."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[19]  # proc(5): starttime
    except OSError:
        return "-" if _answers(process) and not Path("/proc/self/stat").exists() else None


def _answers(process: int) -> bool:
    try:
        os.kill(process, 0)
    except OSError:
        return False
    return True
