"""Workers of the tests of pools: they do nothing, and import nothing heavy, so that they start at once."""

import os
import time
from pathlib import Path

from atlas.workers.protocol import Done, Listed, Opened, Part


def serve(connection, tasks, folder):
    """Do tasks by what their labels say, and write a log of it into ``folder``."""
    try:
        (Path(folder) / "room for one").rename(Path(folder) / "no room")
    except FileNotFoundError:
        if (Path(folder) / "no room").exists():
            connection.send(Opened(failure="no room"))
            return
    connection.send(Opened(tuple(tasks), notes=("planned",)))
    while True:
        asked = connection.recv()
        label = tasks[asked.index].label
        with (Path(folder) / "log").open("a") as log:
            log.write(f"{os.getpid()} begins {asked.index}\n")
        connection.send(Part(f"{label} {asked.index}"))
        if label == "meets":
            _wait_for_another(Path(folder))
        if label == "dies":
            os.abort()
        if label == "killed":
            os.kill(os.getpid(), 9)
        if label == "hangs":
            time.sleep(600)
        time.sleep(0.05)
        short = label == "greedy" and len(list(Path(folder).glob("greedy*"))) == 0
        if short:
            (Path(folder) / f"greedy{asked.index}").touch()
        with (Path(folder) / "log").open("a") as log:
            log.write(f"{os.getpid()} ends {asked.index}\n")
        connection.send(Done((f"noted {asked.index}",), 1.5, short, "it is lost" if label == "loses" else ""))


def _wait_for_another(folder):
    """Until two processes have begun something; for four minutes at most, where nobody comes."""
    end = time.monotonic() + 240
    while len({line.split()[0] for line in (folder / "log").read_text().splitlines()}) < 2 and time.monotonic() < end:
        time.sleep(0.01)


def tasks(*labels):
    """Listed tasks: ``label``, ``label@group``, ``label*bytes`` or ``label!`` (alone)."""
    found = []
    for index, text in enumerate(labels):
        label, _, size = text.rstrip("!").partition("*")
        label, _, group = label.partition("@")
        found.append(Listed(label, group or str(index), None, float(size or 0), text.endswith("!")))
    return found


def refuse(connection):
    """A worker that cannot do what the user asks."""
    connection.send(Opened(mistake="no such GPU"))


def fail(connection):
    """A worker that cannot plan."""
    connection.send(Opened(failure="NameError: x"))
    time.sleep(600)
