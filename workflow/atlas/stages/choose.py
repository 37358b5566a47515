"""choose: which variant and config a call runs on a GPU, and why.  Nothing runs, so the GPU may be elsewhere.

It reads ``kernels/tuned/<gpu>.json`` and what was timed, there and on GPUs of the same board, as a call does; the rule
is that of :mod:`atlas.declaration.choice`.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..errors import AtlasError
from ..results.subject import PassCase, label
from . import frame


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the stage's arguments."""
    frame.add_common_arguments(parser)
    parser.add_argument("--dtype", required=True, help="for instance bf16")
    parser.add_argument("--case", required=True, metavar="m=…,n=…", help="all sizes and flags of the call's case")
    parser.add_argument("--direction", choices=["forward", "backward"], default="forward", help="default: forward")


def run(arguments: argparse.Namespace) -> None:
    """Print it."""
    job = frame.job("choose", arguments)
    declaration = job.declaration()
    from ..declaration import choice, timings
    from .debug import case_of

    case = case_of(arguments.case, arguments.dtype, declaration)
    if arguments.direction not in declaration.passes:
        raise AtlasError(f"--direction {arguments.direction}: {declaration.name} has {', '.join(declaration.passes)}")
    path = choice.TUNED / f"{job.gpu_name}.json"
    entries, faults = _tuned(path)
    timed, fault = timings.read(choice.timings_file(job.gpu_name, declaration.name))
    faults += [f"timings of {declaration.name}: {fault}"] if fault else []
    others = choice.elsewhere(job.gpu(), job.gpu_name, declaration.name)
    try:
        made = choice.explained(
            declaration, arguments.direction, case, job.gpu(), entries, lambda: timed, lambda: others
        )
    except NotImplementedError as error:
        raise AtlasError(str(error)) from None
    print(f"{declaration.name} {PassCase.at(arguments.direction, case)} on {job.gpu_name} runs")
    print(f"  {made.variant.name} {label(made.config)}")
    default = choice.untuned(declaration.passes[arguments.direction], case, job.gpu())
    for line in _reasons(made, default, entries, declaration.name, path):
        print(f"  {line}")
    for fault in faults:
        print(f"  not used: {path.name}, {fault}")


def _tuned(path: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """The file's entries as a call reads them, and what is wrong with others; none where there is no file."""
    from ..declaration import tuned

    if not path.exists():
        return [], []
    _, entries, faults = tuned.read(path)
    return entries, faults


def _reasons(made: Any, default: Any, entries: list[Any], kernel: str, path: Any) -> Iterator[str]:
    file = f"kernels/tuned/{path.name}"
    if made.entry is not None:
        yield f"tuned at this very case where it took {made.entry['median_us']:g} us ({file})"
    elif made.estimate is not None:
        told = _ratio(made.estimate)
        yield f"expected to take {told} of the time of the default, {default[0].name} {label(default[1])}"
    elif made.considered:
        yield "the default: of nothing that was tuned is it sure enough that it would be faster"
    elif not path.is_file():
        yield f"the default: there is no {file}"
    elif not any(entry["kernel"] == kernel for entry in entries):
        yield f"the default: {file} has nothing of {kernel}"
    else:
        yield f"the default: nothing else in {file} is certified for this pass and dtype, fits and was timed"
    for one in made.considered:
        grounds = "; ".join(map(_timed, one.told_by)) or "nothing"
        yield f"considered: {one.variant} {label(one.config)}: {_ratio(one)} of the default's time, told by {grounds}"
    for entry, reason in made.passed_over:
        yield f"passed over: {entry['variant']} {label(entry['config'])}: {reason}"


def _timed(case: Any) -> str:
    return f"{label(case.sizes)} {case.dtype}{f' on {case.gpu}' if case.gpu else ''}"


def _ratio(one: Any) -> str:
    """The expected time over the default's, and how far it may be off either way."""
    from ..declaration.choice import SURE

    low, middle, high = (math.exp(one.log_ratio + side * SURE * one.error) for side in (-1, 0, 1))
    return f"{middle:.3f} ({low:.3f} to {high:.3f})"
