"""validate: every variant of a kernel against its float64 reference, on a GPU or on the interpreter.

On a GPU most of the time goes into compiling, on one core: worker processes share the GPU and the tasks between them,
and nothing is timed.  To repeat one check and have it explained: :mod:`.debug`.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from ..host.progress import progress
from ..workers import protocol
from ..workers.pool import Outcome, Pool
from ..workers.process import NoWorker
from . import frame

if TYPE_CHECKING:
    from ..workers.protocol import Opened


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the stage's arguments."""
    frame.add_common_arguments(parser)
    parser.add_argument("--seeds", type=int, default=5, metavar="N", help="seeds per case (default: 5)")
    parser.add_argument("--first-seed", type=int, default=0, metavar="K", help="the seeds are K to K+N-1 (default: 0)")
    frame.add_jobs_argument(parser)


def run(arguments: argparse.Namespace) -> None:
    """Write the document."""
    job = frame.job("validate", arguments)
    frame.at_least(arguments, seeds=1, first_seed=0, jobs=1)
    with frame.leased(job) as lease:
        if job.functional and arguments.jobs == 1:
            _write(job, _here)
        else:
            # Before all else: the workers plan while this process finds out what to write.
            worker = functools.partial(frame.worker, job, lease, _serve, _asked(job))
            with Pool(worker, *frame.pool_size(job)) as pool:
                _write(job, functools.partial(_by_workers, pool))


def _seeds(job: frame.Job) -> list[int]:
    first = job.arguments.first_seed
    return list(range(first, first + job.arguments.seeds))


def _asked(job: frame.Job) -> dict[str, Any]:
    """The fields of :class:`atlas.validation.tasks.Setting`."""
    neighbours = 1 if job.functional else frame.pool_size(job)[0]
    return frame.setting(job) | {"seeds": _seeds(job), "neighbours": neighbours}


def _serve(connection: Connection, asked: dict[str, Any]) -> None:
    """In a worker."""
    from ..validation import tasks

    protocol.serve(connection, lambda: tasks.InspectionTasks(tasks.Setting(**asked)))


Body = Callable[[frame.Job], tuple["Opened", Sequence[Outcome | None], str]]
"""Does all tasks: which they were, what became of each (None: not done), and how devices were lost, or ``""``."""


def _write(job: frame.Job, body: Body) -> None:
    from .. import validation

    empty = {"protocol": validation.PROTOCOL, "seeds": [], "checks": []}
    document = frame.write_document(job, empty, lambda job: _document(job, *body(job)))
    frame.print_outcome(job, document)
    replays = (row["replay"] for row in document["checks"] if row["status"] in ("fail", "error"))
    replay = next(filter(None, replays), "")
    if replay:
        print(f"  repeat the first check that fails: {replay}")


def _here(job: frame.Job) -> tuple[Opened, Sequence[Outcome | None], str]:
    """All tasks in this process."""
    from ..validation.tasks import InspectionTasks, Setting

    here = InspectionTasks(Setting(**_asked(job)))
    tasks = here.opened.tasks
    outcomes: list[Outcome | None] = [None] * len(tasks)
    spent = 0.0
    with progress() as shown:
        bar = shown.add_task("validate", total=len(tasks), note="")
        for index, task in enumerate(tasks):
            shown.update(bar, note=task.label)
            outcomes[index], done = _outcome(here, protocol.Do(index, spent))
            if done.lost:
                return here.opened, outcomes, done.lost
            spent += done.seconds
            shown.advance(bar)
    return here.opened, outcomes, ""


def _outcome(here: protocol.Tasks, asked: protocol.Do) -> tuple[Outcome, protocol.Done]:
    """What one task found, and its end."""
    *parts, done = here.do(asked)
    return Outcome([part.content for part in parts], done.notes), done


def _by_workers(pool: Pool, job: frame.Job) -> tuple[Opened, Sequence[Outcome | None], str]:
    """All tasks by worker processes."""
    try:
        opened = pool.plan()
        with progress() as shown:
            bar = shown.add_task("validate", total=len(opened.tasks), note="")
            outcomes = pool.work(lambda label, done: shown.update(bar, note=label, completed=done))
    except NoWorker as error:
        raise frame.Stop("failed", str(error)) from None
    return opened, outcomes, f"{pool.losses[-1]} (worker {len(pool.losses)} to be lost)" if pool.losses else ""


def _document(job: frame.Job, opened: Opened, outcomes: Sequence[Outcome | None], lost: str) -> dict[str, Any]:
    from .. import validation
    from ..validation.findings import ERROR, PROCESS, Finding, row, summary, worst

    findings, left_out = [], list(opened.notes)
    for task, outcome in zip(opened.tasks, outcomes, strict=True):
        if outcome is None:
            continue
        findings += outcome.parts
        if outcome.ended:
            findings.append(Finding(PROCESS, task.about, ERROR, outcome.ended))
        left_out += [entry for entry in outcome.notes if entry not in left_out]
    missing = sum(outcome is None for outcome in outcomes)
    kept = worst(findings)
    status, reason = summary(kept, f"{lost}; {missing} of {len(outcomes)} tasks were not done" if missing else "")
    return {
        "protocol": validation.PROTOCOL,
        "seeds": _seeds(job),
        "checks": [row(finding, job.kernel, job.gpu_name) for finding in kept],
        "left_out": left_out,
        "status": status,
        "reason": reason,
    }
