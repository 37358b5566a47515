"""Configs of each problem timed in turns: ``python -m proofs.tuning.finals KERNEL --gpu G --asked F --pieces F``.

The file ``--asked`` holds a list of problems, each with ``direction``, ``dtype``, ``sizes`` and ``candidates``
(``variant``, ``config``).  The default of an untuned call is timed with them.
"""

from __future__ import annotations

import argparse
import functools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atlas.declaration import Declaration
from atlas.host import runtime
from atlas.results.pieces import Pieces
from atlas.stages import frame
from atlas.timing.samples import median_interval
from atlas.tuning import candidates
from atlas.tuning.candidates import Candidate, Problem
from atlas.tuning.outcome import reason_of

from ..scratch import context

if TYPE_CHECKING:
    from atlas.timing import Clock, Timing

MIN_SECONDS, MAX_SAMPLES = 0.2, 500
"""Of samples of each config; short kernels end at the latter."""

_SEED = 0


def compare(
    declaration: Declaration, problem: Problem, asked: Sequence[Candidate], clock: Clock, device: Any
) -> dict[str, Any]:
    """Time the asked candidates and the default in turns: ``timed`` by the candidate's text, and ``default``, its text.

    Where one of them fails, ``timed`` is empty and ``reason`` says why.
    """
    finalists = list(dict.fromkeys([*asked, *([problem.default] if problem.default else [])]))
    work = declaration.passes[problem.direction]
    found: dict[str, Any] = {"default": str(problem.default) if problem.default else None, "timed": {}, "reason": ""}
    try:
        inputs = runtime.draw(work, problem.case, device, _SEED)
        thunks = {
            str(one): functools.partial(work.variant(one.variant).launch, config=one.config, **inputs)
            for one in finalists
        }
        timings = clock.interleave(thunks, min_seconds=MIN_SECONDS, max_samples=MAX_SAMPLES)
        found["timed"] = {name: _kept(timing) for name, timing in timings.items()}
    except Exception as error:  # whatever a compiler or the driver may raise
        found["reason"] = reason_of(error)
    return found


def _kept(timing: Timing) -> dict[str, Any]:
    low, high = median_interval(timing.samples_us) or (min(timing.samples_us), max(timing.samples_us))
    return {
        "median_us": timing.median_us,
        "low_us": low,
        "high_us": high,
        "samples": len(timing.samples_us),
        "throttled": timing.throttled,
    }


def named(row: Mapping[str, Any]) -> str:
    """A problem's text, as :class:`Problem` gives it, from a row that has its direction, dtype and sizes."""
    from atlas.declaration import Case

    return f"{row['direction']} {Case.from_json(row)}"


def main(words: Sequence[str] | None = None) -> None:
    """Compare what is asked and is not among the pieces yet, and keep each problem as it is done."""
    parser = argparse.ArgumentParser(prog="python -m proofs.tuning.finals")
    frame.add_common_arguments(parser)
    parser.add_argument("--asked", type=Path, required=True)
    parser.add_argument("--pieces", type=Path, required=True)
    arguments = parser.parse_args(words)
    job = frame.job("prove", arguments)
    wanted = {named(row): row["candidates"] for row in json.loads(arguments.asked.read_text())}
    with frame.leased(job):
        from atlas.timing import Clock

        declaration = job.declaration()
        device = runtime.device_of(job.gpu_name, job.block)
        clock = Clock(device)
        pieces = Pieces(arguments.pieces, context(job, job.kernel))
        for problem in candidates.problems(declaration, job.gpu(), candidates.Ruling()):
            asked = [Candidate.of(one["variant"], one["config"]) for one in wanted.get(str(problem), ())]
            if asked:
                pieces.once(str(problem), functools.partial(compare, declaration, problem, asked, clock, device))


if __name__ == "__main__":
    main()
