"""triton.autotune's part of the race: ``python -m proofs.tuning.triton_side KERNEL --gpu G --pieces FILE``.

Triton's own Autotuner benchmarks, handles errors and chooses as it does for a user; what it takes for its kernel is an
object whose ``run`` calls a variant's launcher with the config under trial.
"""

from __future__ import annotations

import argparse
import functools
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from atlas.declaration import Case, Declaration
from atlas.host import runtime
from atlas.results.pieces import Pieces
from atlas.stages import frame
from atlas.tuning import candidates
from atlas.tuning.candidates import Problem
from atlas.tuning.outcome import reason_of

from ..scratch import context

_SEED = 0


class Launches:
    """The calls of one problem, as Triton's Autotuner expects a kernel: ``run``, ``fn``, ``arg_names``."""

    arg_names = ("case",)

    def __init__(self, calls: Sequence[Callable[[], Any]]):
        self._calls = calls

    @staticmethod
    def fn() -> None:
        """A plain function to be found below; only its name is read."""

    def run(self, case: Case, *, candidate: int, **_: Any) -> Any:
        """Call the candidate under trial; its config is in the call, not in what Triton passes besides."""
        return self._calls[candidate]()


def autotuner(calls: Sequence[Callable[[], Any]], do_bench: Callable[..., Any] | None = None) -> Any:
    """Triton's Autotuner over ``calls``, keyed by case, with its default benchmark unless one is given."""
    from triton import Config
    from triton.runtime.autotuner import Autotuner

    configs = [Config({"candidate": index}) for index in range(len(calls))]
    return Autotuner(Launches(calls), list(Launches.arg_names), configs, ["case"], None, None, do_bench=do_bench)


def tune(
    declaration: Declaration, problem: Problem, device: Any, do_bench: Callable[..., Any] | None = None
) -> dict[str, Any]:
    """Tune one problem: ``seconds`` from the first call to the end of the chosen config's, ``pick``, ``reason``.

    Inputs are drawn before the clock starts.  An error that Autotuner does not take for a config's own ends the problem
    with that reason, as it would end a user's program.
    """
    work = declaration.passes[problem.direction]
    inputs = runtime.draw(work, problem.case, device, _SEED)
    calls = [
        functools.partial(work.variant(one.variant).launch, config=one.config, **inputs) for one in problem.candidates
    ]
    tuner = autotuner(calls, do_bench)
    _synchronize(device)
    since = time.perf_counter()
    pick, reason = None, ""
    try:
        tuner.run(problem.case)
        _synchronize(device)
        chosen = problem.candidates[tuner.best_config.kwargs["candidate"]]
        pick = {"variant": chosen.variant, "config": chosen.config}
    except Exception as error:  # whatever a compiler or the driver may raise
        reason = reason_of(error)
    return {
        "direction": problem.direction,
        **problem.case.to_json(),
        "seconds": time.perf_counter() - since,
        "configs": len(calls),
        "pick": pick,
        "reason": reason,
    }


def _synchronize(device: Any) -> None:
    if device.type != "cpu":
        import torch

        torch.cuda.synchronize(device)


def main(words: Sequence[str] | None = None) -> None:
    """Tune every problem that is not among the pieces yet, and keep each as it is done."""
    parser = argparse.ArgumentParser(prog="python -m proofs.tuning.triton_side")
    frame.add_common_arguments(parser)
    parser.add_argument("--pieces", type=Path, required=True)
    arguments = parser.parse_args(words)
    job = frame.job("prove", arguments)
    with frame.leased(job):
        declaration = job.declaration()
        device = runtime.device_of(job.gpu_name, job.block)
        _synchronize(device)  # the context is there before a clock starts
        pieces = Pieces(arguments.pieces, context(job, job.kernel))
        # As the tuner has them where there is no build document: nothing is ruled out beforehand.
        for problem in candidates.problems(declaration, job.gpu(), candidates.Ruling()):
            pieces.once(str(problem), functools.partial(tune, declaration, problem, device))


if __name__ == "__main__":
    main()
