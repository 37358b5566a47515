"""choose: which variant and config a call runs on a GPU, and why.  Nothing runs, so the GPU may be elsewhere.

It reads ``kernels/tuned/<gpu>.json``, as a call on that GPU does; the rule is that of :mod:`atlas.declaration.choice`.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
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
    from ..declaration import choice
    from .debug import case_of

    case = case_of(arguments.case, arguments.dtype, declaration)
    if arguments.direction not in declaration.passes:
        raise AtlasError(f"--direction {arguments.direction}: {declaration.name} has {', '.join(declaration.passes)}")
    path = choice.TUNED / f"{job.gpu_name}.json"
    entries, faults = _tuned(path)
    try:
        made = choice.explained(declaration, arguments.direction, case, job.gpu(), entries)
    except NotImplementedError as error:
        raise AtlasError(str(error)) from None
    print(f"{declaration.name} {PassCase.at(arguments.direction, case)} on {job.gpu_name} runs")
    print(f"  {made.variant.name} {label(made.config)}")
    for line in _reasons(made, dict(case.sizes), entries, declaration.name, path):
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


def _reasons(made: Any, sizes: Mapping[str, Any], entries: list[Any], kernel: str, path: Any) -> Iterator[str]:
    from ..declaration.choice import distance

    file = f"kernels/tuned/{path.name}"
    if made.entry is not None:
        apart = distance(sizes, made.entry["sizes"])
        where = "at this very case" if not apart else f"at {label(made.entry['sizes'])}, {apart:.2f} away,"
        yield f"tuned {where} where it took {made.entry['median_us']:g} us ({file})"
    elif not path.is_file():
        yield f"the default: there is no {file}"
    elif not any(entry["kernel"] == kernel for entry in entries):
        yield f"the default: {file} has nothing of {kernel}"
    else:
        yield f"the default: no entry of {file} is of this pass and dtype, with these flags, and fits"
    for entry, reason in made.passed_over:
        yield f"nearer, but passed over: {entry['variant']} {label(entry['config'])}: {reason}"
