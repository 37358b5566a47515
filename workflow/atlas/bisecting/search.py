"""The search: over commits by ``git bisect run`` in worktrees of its own, over environments by halving a list."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from ..errors import AtlasError
from ..host.environment import python_path
from .judging import Question, Subject, Unmeasured, judged
from .step import BAD, SKIP, step

Say = Callable[[str], None]


@contextlib.contextmanager
def worktrees(checkout: Path, good: str, bad: str) -> Iterator[tuple[Path, Path]]:
    """Trees of both commits beside the checkout, gone afterwards; the checkout itself is left as it is.

    Raises :class:`AtlasError` for a name that git does not know, and where ``good`` is no ancestor of ``bad``.
    """
    for option, name in (("--good", good), ("--bad", bad)):
        if git(checkout, "rev-parse", "--verify", "--quiet", f"{name}^{{commit}}").returncode:
            raise AtlasError(f"{option} {name}: git knows no such commit in {checkout}")
    if git(checkout, "merge-base", "--is-ancestor", good, bad).returncode:
        raise AtlasError(f"--good {good} is no ancestor of --bad {bad}: name a commit that {bad} was made from")
    with tempfile.TemporaryDirectory(prefix="atlas-bisect.") as folder:
        trees = Path(folder) / "good", Path(folder) / "searched"
        try:
            for tree, commit in zip(trees, (good, bad), strict=True):
                done = git(checkout, "worktree", "add", "--detach", str(tree), commit)
                if done.returncode:
                    raise AtlasError(f"git worktree add: {done.stderr.strip().splitlines()[-1]}")
            yield trees
        finally:
            for tree in trees:
                git(checkout, "worktree", "remove", "--force", str(tree))


def commits(question: Question, searched: Path, good: str, bad: str, say: Say) -> str | None:
    """The first commit that is slower, found by ``git bisect run`` in the tree ``searched``; its hash and subject.

    None where only commits are left that cannot be timed or decided; git's own words are said.  Raises
    :class:`AtlasError` where ``bad`` is not slower than ``good``.
    """
    _check(question, Subject(str(searched), question.good.python), bad, good)
    with tempfile.TemporaryDirectory() as folder:
        asked = Path(folder) / "question.json"
        asked.write_text(question.to_json())
        begun = git(searched, "bisect", "start", bad, good)
        if begun.returncode:
            raise AtlasError(f"git bisect start: {begun.stderr.strip()}")
        own = os.environ | {"PYTHONPATH": python_path()}
        run = [sys.executable, "-m", "atlas.bisecting.step", str(asked)]
        with subprocess.Popen(["git", "bisect", "run", *run], cwd=searched, env=own, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:  # fmt: skip
            for line in process.stdout or ():
                say(line.rstrip())
        found = git(searched, "log", "-1", "--format=%H %s", "refs/bisect/bad").stdout.strip()
        git(searched, "bisect", "reset")
    return found if process.returncode == 0 else None


def environments(question: Question, pythons: Sequence[str], say: Say) -> str | None:
    """The first of ``pythons`` in which the case is slower than in the first of all, by halving; None as above.

    Raises :class:`AtlasError` where the last is not slower.
    """
    question = dataclasses.replace(question, good=dataclasses.replace(question.good, python=pythons[0]))
    subjects = [Subject(question.good.tree, python) for python in pythons]
    _check(question, subjects[-1], pythons[-1], pythons[0])
    good, bad = 0, len(pythons) - 1
    skipped: set[int] = set()
    while left := [place for place in range(good + 1, bad) if place not in skipped]:
        place = left[len(left) // 2]
        say(f"{pythons[place]} …")
        status = step(question, subjects[place], pythons[place])
        if status == SKIP:
            skipped.add(place)
        elif status == BAD:
            bad = place
        else:
            good = place
    return pythons[bad] if bad - good == 1 else None


def _check(question: Question, bad: Subject, name: str, good: str) -> None:
    """There must be something to find."""
    try:
        found = judged(question, bad)
    except Unmeasured as reason:
        raise AtlasError(f"{good} or {name} cannot be timed: {reason}") from None
    if found.verdict != "slower":
        why = f" ({found.reason})" if found.reason else ""
        raise AtlasError(
            f"{name} is {found.verdict} against {good}: {found.step:.3f}x, {found.low:.3f} to {found.high:.3f}{why}; "
            "name ends of which the last is slower, or give more --runs"
        )


def git(tree: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """What git says in a tree."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    return subprocess.run(["git", *words], cwd=tree, env=environment, capture_output=True, text=True, check=False)
