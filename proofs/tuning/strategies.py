"""Search strategies against each other, without a device: ``python -m proofs.tuning.strategies JOURNAL``.

Every strategy searches the same problems under the same seeds.  One that leaves candidates untried is followed by
``random``, which has as many trials of each problem: on paper, chance is the least that a strategy has to beat.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from atlas import cli
from atlas.errors import unwritable
from atlas.tuning.candidates import Candidate
from atlas.tuning.strategies import STRATEGIES, halving, strategy
from atlas.tuning.strategies.guided import GUIDED, guided
from atlas.tuning.strategies.strategy import EXHAUSTIVE, Round, Search, Strategy

from . import recording
from .recording import Recording
from .replay import Run, replay

FORMAT = "replay/1"
"""Of the JSON that ``--output`` gets."""


@dataclass(frozen=True)
class Standing:
    """One row of the comparison; regrets are fractions over all problems and seeds, None where nothing was found.

    ``seconds`` and ``trials`` are those of one seed, in the mean; ``share`` is of the exhaustive search's seconds.
    ``lost`` counts the searches that found no config that works.
    """

    strategy: str
    problems: int
    trials: float
    seconds: float
    share: float
    regret_median: float | None
    regret_p95: float | None
    regret_worst: float | None
    lost: int


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The journal, and how to search it."""
    parser.add_argument("journal", type=Path, help="the journal.jsonl of an exhaustive autotune run")
    parser.add_argument("--strategy", default="halving", metavar="S,T", help="halving (default), exhaustive, guided, "
                        "several with commas, or all")  # fmt: skip
    parser.add_argument("--budget-seconds", type=float, metavar="B", help="simulated device time (default: no limit)")
    parser.add_argument("--context", metavar="C", help="which of the journal's contexts: a number from 1, or the "
                        "beginning of a kernel digest (default: the last)")  # fmt: skip
    parser.add_argument("--seeds", type=int, default=5, metavar="N", help="searches of each problem (default: 5)")
    parser.add_argument("--output", type=Path, metavar="FILE", help="the runs and their best-so-far curves, as JSON")


def run(arguments: argparse.Namespace) -> None:
    """Replay, print the standings, and write ``--output`` where given; nothing goes into the results folder."""
    recorded = recording.read(arguments.journal, arguments.context)
    runs = compare(recorded, _asked(arguments.strategy), arguments.seeds, arguments.budget_seconds)
    standings = [standing(name, runs) for name in dict.fromkeys(run.strategy for run in runs)]
    show(f"{arguments.journal} of {recorded.context.get('gpu', 'a GPU')}", recorded, runs, standings)
    if arguments.output:
        document = to_json(recorded, runs, standings)
        try:
            arguments.output.write_text(json.dumps(document, indent=1) + "\n")
        except OSError as error:
            raise unwritable(arguments.output, error, "the standings are above") from None


def compare(
    recorded: Recording, strategies: Iterable[Strategy], seeds: int, budget_seconds: float | None = None
) -> list[Run]:
    """Every run of every strategy, the exhaustive search's first, which has no budget.

    ``budget_seconds`` are simulated ones, shared equally by the problems.
    """
    rivals = [EXHAUSTIVE, *(one for one in strategies if one.name != EXHAUSTIVE.name)]
    share = budget_seconds / len(recorded.problems) if budget_seconds is not None else None
    runs: list[Run] = []
    for rival in rivals:
        limit = None if rival is EXHAUSTIVE else share
        own = [replay(one, _seeded(rival, seed), seed, limit) for seed in range(seeds) for one in recorded.problems]
        runs += own
        if any(run.trials < len(run.problem.candidates) for run in own):
            runs += _by_chance(recorded, rival, own)
    return runs


def _by_chance(recorded: Recording, rival: Strategy, own: Sequence[Run]) -> list[Run]:
    problems = list(recorded.problems) * (len(own) // len(recorded.problems))
    by_chance = [replay(one, chance(run.trials, run.seed), run.seed) for one, run in zip(problems, own, strict=True)]
    return [replace(run, strategy=f"random, trials of {rival.name}") for run in by_chance]


def chance(count: int, seed: int) -> Strategy:
    """Configs at random: the first candidate and ``count - 1`` drawn from the others, then the rungs of halving."""

    def search(candidates: Sequence[Candidate]) -> Search:
        first, *others = candidates
        drawn = random.Random(seed).sample(others, min(count - 1, len(others)))
        answers = yield Round([first, *drawn], halving.SAMPLES[0], 0, halving.STOP_BEYOND)
        yield from halving.climb(answers)

    return Strategy("random", f"{count} configs drawn at random; then as halving", search)


def standing(name: str, runs: Sequence[Run]) -> Standing:
    """One strategy's row; ``runs`` are all of the comparison."""
    own = [run for run in runs if run.strategy == name]
    exhaustive = [run for run in runs if run.strategy == EXHAUSTIVE.name]
    seeds = len({run.seed for run in own})
    regrets = [run.regret for run in own if run.regret is not None]
    seconds = sum(run.seconds for run in own)
    return Standing(
        strategy=name,
        problems=len(own) // seeds,
        trials=sum(run.trials for run in own) / seeds,
        seconds=seconds / seeds,
        share=seconds / sum(run.seconds for run in exhaustive),
        **spread(regrets),
        lost=len(own) - len(regrets),
    )


def spread(regrets: Sequence[float]) -> dict[str, float | None]:
    """Median, 95th percentile (a value that occurs, the upper where it lies between two) and worst."""
    if not regrets:
        return {"regret_median": None, "regret_p95": None, "regret_worst": None}
    median, p95, worst = np.quantile(regrets, (0.5, 0.95, 1.0), method="higher")
    return {"regret_median": float(median), "regret_p95": float(p95), "regret_worst": float(worst)}


def to_json(recorded: Recording, runs: Sequence[Run], standings: Sequence[Standing]) -> dict[str, Any]:
    """What ``--output`` holds."""
    return {
        "format": FORMAT,
        "journal": str(recorded.path),
        "context": recorded.context,
        "damaged_lines": recorded.damaged,
        "standings": [vars(one) for one in standings],
        "runs": [run.to_json() for run in runs],
    }


def show(title: str, recorded: Recording, runs: Sequence[Run], standings: Sequence[Standing]) -> None:
    """The standings as a table on the terminal, and what to know of the journal."""
    from rich.console import Console
    from rich.table import Table

    console = Console(width=140, highlight=False)
    columns = ("strategy", "problems", "trials", "device s", "of exhaustive", "regret: median", "p95", "worst", "lost")
    table = Table(title=f"{title}, replayed: {recorded.label}")
    for name in columns:
        table.add_column(name, justify="left" if name == "strategy" else "right")
    for one in standings:
        regrets = map(_percent, (one.regret_median, one.regret_p95, one.regret_worst))
        seconds = (f"{one.seconds:.2f}", f"{one.share:.1%}")
        table.add_row(one.strategy, str(one.problems), f"{one.trials:.0f}", *seconds, *regrets, str(one.lost))
    defaults = spread([run.default_regret for run in runs if run.default_regret is not None])
    table.add_row(
        "the default, untuned", str(standings[0].problems), "0", "", "", *map(_percent, defaults.values()), ""
    )
    console.print(table)
    console.print("Device seconds are simulated; compiling and certifying are not in them.")
    if recorded.damaged:
        console.print(f"{recorded.path}: {recorded.damaged} damaged lines were left out.")
    partial = sum(not one.thorough for one in recorded.problems)
    if partial:
        console.print(
            f"{partial} of {len(recorded.problems)} problems were not searched exhaustively: their optimum is that of "
            "what was measured to the end, and regrets are too small."
        )


def _percent(fraction: float | None) -> str:
    return "-" if fraction is None else f"{fraction:.2%}"


def _asked(names: str) -> list[Strategy]:
    if names == "all":
        return list(STRATEGIES.values())
    return [strategy(name.strip()) for name in names.split(",")]


def _seeded(rival: Strategy, seed: int) -> Strategy:
    return guided(seed) if rival is GUIDED else rival


if __name__ == "__main__":
    raise SystemExit(cli.run("proofs.tuning.strategies", "proofs.tuning.strategies", __doc__ or "", sys.argv[1:]))
