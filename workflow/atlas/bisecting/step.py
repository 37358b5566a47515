"""One step of ``git bisect run``: judge the tree that git checked out; ``python -m atlas.bisecting.step QUESTION``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from .judging import Question, Subject, Unmeasured, judged

GOOD, BAD, SKIP = 0, 1, 125
"""What git takes an exit status for."""


def step(question: Question, subject: Subject, name: str) -> int:
    """Print what ``subject`` came to, and return what git is told; what cannot be timed or decided is skipped."""
    try:
        found = judged(question, subject)
    except Unmeasured as reason:
        print(f"{name}: cannot be timed: {reason}", flush=True)
        return SKIP
    why = f" ({found.reason})" if found.reason else ""
    print(f"{name}: {found.verdict}, {found.step:.3f}x ({found.low:.3f} to {found.high:.3f}){why}", flush=True)
    return {"slower": BAD, "undecided": SKIP}.get(found.verdict, GOOD)


def main(words: list[str]) -> int:
    """Judge the working folder."""
    question, tree = Question.of_json(Path(words[0]).read_text()), Path.cwd()
    name = subprocess.run(["git", "log", "-1", "--format=%h %s"], cwd=tree, capture_output=True, text=True, check=False)
    return step(question, Subject(str(tree), question.good.python), name.stdout.strip()[:80])


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
