"""Nothing finished is lost: configs that hang, crash and run amok, kills, full disks, spoiled journals, two runs.

A kernel of the proof's own (:mod:`.kernel`) is tuned by the real machinery, in processes of their own that write
to a scratch folder, and what comes of each run is compared with one that nothing disturbed.
"""

from __future__ import annotations

import argparse
import difflib
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from atlas.errors import AtlasError

from .. import scratch
from ..evidence import Claim, Evidence, at_most, none_of

if TYPE_CHECKING:
    from atlas.stages import frame

    from .scenarios import Result

TEARDOWN_SECONDS = 60.0
"""What the tuner waits for a killed worker to be off its device before it gives up."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """``--only``, ``--seed``, ``--jobs``, ``--trial-timeout-seconds`` and ``--scratch``."""
    parser.add_argument("--only", metavar="A,B", default="", help="scenarios to try (default: all)")
    parser.add_argument("--seed", type=int, default=0, help="of the moments at which something is killed (default: 0)")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="cores to compile on (default: 2)")
    parser.add_argument("--trial-timeout-seconds", type=float, default=3.0, metavar="T", help="default: 3")
    parser.add_argument("--scratch", type=Path, metavar="FOLDER", help="keep the runs' journals and logs in a new "
                        "folder there (default: a temporary folder)")  # fmt: skip


def run(job: frame.Job) -> Evidence:
    """Try the scenarios one after the other on one device."""
    from atlas.stages import frame

    from .laboratory import Laboratory
    from .scenarios import Trials

    arguments = job.arguments
    with frame.leased(job), scratch.folder(job) as given:
        root = Path(tempfile.mkdtemp(prefix="faults-", dir=given))
        laboratory = Laboratory(
            job.gpu_name, arguments.gpus_file.resolve(), root, arguments.trial_timeout_seconds, arguments.jobs
        )
        trials = Trials(laboratory, job.functional, arguments.seed)
        results = [trials.run(name) for name in _chosen(arguments.only, list(trials.scenarios()))]
    return Evidence(_claims(results), [result.row() for result in results], [*_notes(job.functional), *trials.notes])


def _chosen(only: str, names: list[str]) -> list[str]:
    asked = [name.strip() for name in only.split(",") if name.strip()]
    for name in asked:
        if name not in names:
            near = difflib.get_close_matches(name, names, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(names)}"
            raise AtlasError(f"command line: --only: unknown scenario {name!r}; {hint}")
    return [name for name in names if name in asked] if asked else names


def _claims(results: list[Result]) -> list[Claim]:
    claims = [none_of("scenarios that did not end as expected", (r for r in results if not r.holds))]
    bad = [r for r in results if r.scenario.startswith("config")]
    if bad:
        claims.append(at_most("trials that a bad config costs besides its own", sum(r.lost for r in bad), 0))
    struck = [r for r in results if r.scenario == "worker-killed"]
    if struck:
        claims.append(
            at_most("trials that a kill of the worker costs", max(r.lost / max(1, r.kills) for r in struck), 1)
        )
    resumed = [r for r in results if r.resumed]
    if resumed:
        claims.append(at_most("finished measurements that were lost", sum(r.vanished for r in resumed), 0))
        claims.append(at_most("finished measurements that were taken again", sum(r.again for r in resumed), 0))
    claims.append(
        at_most("problems whose best config is another than undisturbed", sum(r.other_best for r in results), 0)
    )
    claims.append(at_most("worker processes that outlived their run", sum(r.left for r in results), 0))
    for result in results:
        if result.ending_seconds is not None:
            claims.append(at_most("seconds until a killed endless kernel was off its device", result.ending_seconds,
                                  TEARDOWN_SECONDS))  # fmt: skip
    return claims


def _notes(functional: bool) -> list[str]:
    notes = [
        "Each row is one run or several of one kernel with sound configs beside bad ones. 'The same as undisturbed': "
        "the same trials with the same statuses and the same measurements in the journal; times differ by noise.",
        "A lack of memory and a worker that somebody killed are tried again by the next run. Finalists are timed in "
        "turns: if one figure of a comparison is lost, the comparison is made again.",
    ]
    if functional:
        notes.append(
            "On the interpreter: no shared memory to ask too much of, and best configs are not compared, since its "
            "times mean nothing."
        )
    return notes
