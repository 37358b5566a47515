"""bisect: the commit, or the environment, that made a case slower.

Commits are searched by ``git bisect run`` in a worktree of its own.  At each the case is timed in turns with the good
one, five times by default and each time in a fresh process, and judged as ``compare`` judges.  One that cannot be
timed, or decided, is skipped.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

from .. import ROOT
from ..errors import AtlasError
from ..results.differences import ENOUGH
from . import frame
from .debug import case_of, mapping

NOT_FOUND = 1
"""The exit status where only commits are left that could not be judged: 0 says that the first slower one was found."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The case, the ends, how many runs."""
    frame.add_common_arguments(parser)
    parser.add_argument("--dtype", required=True, help="for instance bf16")
    parser.add_argument("--case", required=True, metavar="m=…,n=…", help="all sizes and flags of the case")
    parser.add_argument("--direction", choices=["forward", "backward"], default="forward", help="default: forward")
    parser.add_argument("--variant", help="time this one with its default config, or --config (default: what a call "
                        "runs)")  # fmt: skip
    parser.add_argument("--config", type=mapping, metavar="JSON", help="with --variant: its config")
    parser.add_argument("--good", metavar="COMMIT", help="a commit that is fast")
    parser.add_argument("--bad", default="HEAD", metavar="COMMIT", help="a later one that is slow (default: HEAD)")
    parser.add_argument("--pythons", metavar="A,B,C", help="instead of commits: interpreters of environments with "
                        "other versions of torch and Triton, from the fast one to the slow one")  # fmt: skip
    parser.add_argument("--runs", type=int, default=ENOUGH, help=f"processes a side and step (default: {ENOUGH})")


def run(arguments: argparse.Namespace) -> int:
    """Search, and say what was found; 1 where it could not be narrowed down to one."""
    job = frame.job("bisect", arguments)
    if job.functional:
        raise AtlasError(f"--gpu {job.gpu_name}: the interpreter's times are no speeds; name a GPU of this host")
    if (arguments.good is None) == (arguments.pythons is None):
        raise AtlasError("give --good COMMIT to search commits, or --pythons A,B,C to search environments")
    pythons = [name.strip() for name in (arguments.pythons or "").split(",") if name.strip()]
    if arguments.pythons is not None and len(pythons) < 2:
        raise AtlasError(f"--pythons {arguments.pythons}: give two or more, from the fast one to the slow one")
    asked = _asked(job)
    with frame.leased(job) as lease:
        found = _search(arguments, pythons, asked, dict(lease.environment) if lease else {})
    if found is None:
        print("not found: what is left could not be timed or decided; see above, and give more --runs")
        return NOT_FOUND
    print(f"first slower: {found}")
    return 0


def _search(arguments: argparse.Namespace, pythons: list[str], asked: dict[str, Any], device: dict[str, str]) -> Any:
    from ..bisecting import search
    from ..bisecting.judging import Question, Subject

    def say(line: str) -> None:
        print(line, flush=True)

    question = Question(asked, Subject(str(ROOT), sys.executable), arguments.runs, environment=device)
    if pythons:
        return search.environments(question, pythons, say)
    with search.worktrees(ROOT, arguments.good, arguments.bad) as (good, searched):
        question = Question(asked, Subject(str(good), sys.executable), arguments.runs, environment=device)
        return search.commits(question, searched, arguments.good, arguments.bad, say)


def _asked(job: frame.Job) -> dict[str, Any]:
    """What is to be timed: a case of the kernel as it is declared today."""
    arguments, declaration = job.arguments, job.declaration()
    case = case_of(arguments.case, arguments.dtype, declaration)
    if arguments.direction not in declaration.passes:
        raise AtlasError(f"--direction {arguments.direction}: {declaration.name} has {', '.join(declaration.passes)}")
    names = [variant.name for variant in declaration.passes[arguments.direction].variants]
    if arguments.variant is not None and arguments.variant not in names:
        has = f"{declaration.name} {arguments.direction} has {', '.join(names)}"
        raise AtlasError(f"--variant {arguments.variant}: {has}")
    if arguments.config is not None and arguments.variant is None:
        raise AtlasError("--config is of a variant: give --variant as well")
    return {
        "kernel": declaration.name,
        "direction": arguments.direction,
        "dtype": case.dtype,
        "sizes": dict(case.sizes),
        "variant": arguments.variant,
        "config": arguments.config,
    }
