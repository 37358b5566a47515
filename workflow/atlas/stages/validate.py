"""validate: every variant of a kernel against its float64 reference, on a GPU or on the interpreter.

Without a selection the findings become the document.  With one (``--check``, ``--variant``, ``--case``, …, as the
``replay`` of a document's row has it) the selected checks are made and printed, no document is written, and the exit
status is 1 unless they pass.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

from ..errors import AtlasError
from ..progress import progress
from . import frame


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the stage's arguments."""
    frame.add_common_arguments(parser)
    parser.add_argument("--seeds", type=int, default=5, metavar="N", help="seeds per case (default: 5)")
    chosen = parser.add_argument_group("repeat a part, print it and write no document")
    chosen.add_argument("--check", help="one check, as a document names it")
    chosen.add_argument("--variant", help='one variant; "public" for the public function')
    chosen.add_argument("--direction", choices=["forward", "backward"])
    chosen.add_argument("--dtype", help="for instance bf16")
    chosen.add_argument("--case", metavar="m=…,n=…", help="one case's sizes; it need not be a declared one")
    chosen.add_argument("--config", type=_mapping, metavar="JSON", help="a config instead of the default")
    chosen.add_argument("--seed", type=int, help="one seed")
    chosen.add_argument("--verbose", action="store_true", help="print what passes, too")


def run(arguments: argparse.Namespace) -> int | None:
    """Write the document, or repeat the selected checks."""
    job = frame.job("validate", arguments)
    if arguments.seeds < 1:
        raise AtlasError(f"--seeds {arguments.seeds}: give at least 1")
    names = ("check", "variant", "direction", "dtype", "case", "config", "seed")
    if any(getattr(arguments, name) is not None for name in names):
        return _repeat(job)
    from .. import runtime, validation

    runtime.device_of(job.gpu_name, job.block)  # a GPU that is not here is the user's mistake: no document
    frame.write_document(job, {"protocol": validation.PROTOCOL, "seeds": [], "checks": []}, _body)
    return None


def _body(job: frame.Job) -> dict[str, Any]:
    from .. import validation
    from ..validation.findings import row, summary, worst

    seeds = list(range(job.arguments.seeds))
    inspection = _inspection(job, seeds, validation.Selection())
    findings, lost = _findings(inspection)
    kept = worst(findings)
    status, reason = summary(kept, lost)
    return {
        "protocol": validation.PROTOCOL,
        "seeds": seeds,
        "checks": [row(finding, job.kernel, job.gpu_name) for finding in kept],
        "left_out": inspection.left_out,
        "status": status,
        "reason": reason,
    }


def _repeat(job: frame.Job) -> int:
    from .. import validation
    from ..validation.findings import summary, worst

    arguments = job.arguments
    declaration = job.declaration()
    _check_names(arguments, declaration, validation.CHECKS)
    selection = validation.Selection(
        check=arguments.check,
        variant=arguments.variant,
        direction=arguments.direction,
        dtype=arguments.dtype,
        sizes=None if arguments.case is None else _sizes(arguments.case),
        config=arguments.config,
    )
    seeds = list(range(arguments.seeds)) if arguments.seed is None else [arguments.seed]
    findings, lost = _findings(_inspection(job, seeds, selection))
    for finding in worst(findings):
        if arguments.verbose or finding.status != "pass":
            print(finding)
    status, reason = summary(findings, lost)
    if not findings:
        reason = "nothing was checked: no declared case, variant and check fit the selection"
    print(f"{status if findings else 'failed'}: {reason}" if reason else f"{len(findings)} finding(s), all pass")
    return 0 if findings and status == "ok" else 1


def _inspection(job: frame.Job, seeds: list[int], selection: Any) -> Any:
    import torch

    from .. import runtime, validation

    if job.functional:
        torch.set_num_threads(1)  # the interpreter's tensors are small: threads cost more than they bring
    declaration = job.declaration()
    device = runtime.device_of(job.gpu_name, job.block)
    return validation.Inspection(declaration, job.gpu(), device, seeds, selection)


def _findings(inspection: Any) -> tuple[list[Any], str]:
    """All findings, and what took the device down, or ``""``."""
    from ..validation import DeviceLost

    findings: list[Any] = []
    tasks = inspection.tasks()
    with progress() as shown:
        bar = shown.add_task("validate", total=len(tasks), note="")
        for task in tasks:
            shown.update(bar, note=task.label)
            try:
                findings += inspection.run(task)
            except DeviceLost as error:
                return findings, str(error)
            shown.advance(bar)
    return findings, ""


def _check_names(arguments: argparse.Namespace, declaration: Any, checks: tuple[str, ...]) -> None:
    names = ["public", *(v.name for work in declaration.passes.values() for v in work.variants)]
    known = {"check": list(checks), "variant": list(dict.fromkeys(names)), "dtype": list(declaration.dtypes)}
    for option, values in known.items():
        value = getattr(arguments, option)
        if value is not None and value not in values:
            raise AtlasError(f"--{option} {value!r}: {declaration.name} has {', '.join(values)}")


def _sizes(text: str) -> tuple[tuple[str, Any], ...]:
    """``m=4,causal=True`` as sizes: integers, booleans, numbers, otherwise words."""
    pairs = [word.partition("=") for word in text.split(",")]
    if not all(name and sign for name, sign, _ in pairs):
        raise AtlasError(f"--case {text!r}: give sizes as name=value, separated by commas: m=4096,n=1024")
    return tuple((name.strip(), _value(value.strip())) for name, _, value in pairs)


def _value(text: str) -> Any:
    if text in ("True", "False"):
        return text == "True"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _mapping(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise argparse.ArgumentTypeError(f"not JSON: {error}") from None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError('give an object, as {"BLOCK": 1024}')
    return value
