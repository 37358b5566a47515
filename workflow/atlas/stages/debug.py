"""debug: repeat one check and explain what is wrong; in the interpreter also who did it, and step through it.

A document's ``replay`` is such a command.  Nothing is written; the exit status is 1 unless what was selected passes.
On a GPU the check runs as ``validate`` runs it.  With ``--gpu cpu`` the same problem runs in Triton's interpreter,
where every store is watched: the program and the source line that stored the first wrong element, elements that no
program stores, stores and loads outside.  ``--step`` stops in pdb at the first line of that program.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from typing import Any

from ..errors import AtlasError, in_a_line
from ..reading import strict
from ..results.subject import label
from . import frame

_SHOWN = 3  # failing findings that are explained
_KINDS = {bool: "True or False", int: "a whole number, 0 or more", float: "a number", str: "a word"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the stage's arguments."""
    frame.add_common_arguments(parser)
    parser.add_argument("--check", help="one check, as a document names it")
    parser.add_argument("--variant", help='one variant; "public" for the public function')
    parser.add_argument("--direction", choices=["forward", "backward"])
    parser.add_argument("--dtype", help="for instance bf16")
    parser.add_argument("--case", metavar="m=…,n=…", help="one case's sizes; it need not be a declared one")
    parser.add_argument("--config", type=mapping, metavar="JSON", help="a config instead of the default")
    parser.add_argument("--seed", type=int, default=0, help="seed of the inputs (default: 0)")
    parser.add_argument("--step", action="store_true", help="stop in pdb in the program that went wrong; --gpu cpu")
    parser.add_argument(
        "--program", type=_program, metavar="i,j,k", help="with --step: this program of the grid instead"
    )


def run(arguments: argparse.Namespace) -> int:
    """Print what the selected checks find; 0 if all pass."""
    job = frame.job("debug", arguments)
    if arguments.step and not job.functional:
        raise AtlasError(f"--step needs the interpreter: give --gpu cpu instead of --gpu {arguments.gpu}")
    if arguments.program is not None and not arguments.step:
        raise AtlasError("--program names where --step is to stop: give --step as well")
    declaration = job.declaration()
    _check_names(arguments, declaration)
    if arguments.case is not None:
        _check_sizes(arguments.case, arguments.dtype or declaration.dtypes[0], declaration)
    if job.functional:
        import torch

        torch.set_num_threads(1)
        too_costly = _too_costly(job, declaration)
        if too_costly:
            print(too_costly)
            return 1
    with frame.leased(job):
        return _explain(job, declaration)


def _explain(job: frame.Job, declaration: Any) -> int:
    from ..validation.findings import summary, worst

    inspection = _inspection(job, declaration)
    findings, lost = _findings(inspection)
    kept = worst(findings)
    wrong = sorted((f for f in kept if f.status in ("fail", "error")), key=lambda f: f.severity, reverse=True)
    for finding in kept:
        if finding.status not in ("fail", "error"):
            print(finding)
    for finding in wrong[:_SHOWN]:
        for line in _facts(finding):
            print(line)
        if not job.functional:
            print(f"  step through it: {_command(job, finding)}")
        print()
    if len(wrong) > _SHOWN:
        print(f"and {len(wrong) - _SHOWN} more that do not pass; narrow it down with --check, --variant, --case\n")
    if job.functional and not lost and (wrong or (job.arguments.step and kept)):
        _watch(job, declaration, wrong[0] if wrong else _steppable(kept))
    status, reason = summary(findings, lost)
    if not findings:
        left_out = "; ".join(sorted({entry["reason"] for entry in inspection.left_out}))
        reason = left_out or "no declared case, variant and check fit the selection"
        print(f"nothing was checked: {reason}")
        return 1
    print(f"{status}: {lost or reason}" if lost else f"{status}: {len(kept)} finding(s), {len(wrong)} not passing")
    return 0 if status == "ok" else 1


def _facts(finding: Any) -> Iterator[str]:
    """One failing finding as a small sheet."""
    subject, judgement = finding.subject, finding.judgement
    yield f"{finding.check}: {finding.status}"
    yield f"  kernel    {subject.variant or 'public function'}, {subject.direction}"
    yield f"  case      {subject.case}" + (f"  ({subject.case.reason})" if subject.case.reason else "")
    if subject.config is not None:
        yield f"  config    {label(subject.config)}"
    yield f"  seed      {finding.seed}"
    yield f"  what      {finding.reason}"
    if judgement is not None and judgement.wrong:
        yield f"  {'element':<24}{'expected':>16}{'got':>16}{'error':>14}"
        for one in judgement.wrong:
            yield f"  {one.label:<24}{one.expected:>16.8g}{one.got:>16.8g}{abs(one.got - one.expected):>14.3g}"


def _watch(job: frame.Job, declaration: Any, finding: Any) -> None:
    """Run the finding's launch again with every store watched, and stop in it where that was asked for."""
    from ..debugging import reproduction, tracing
    from ..host import runtime

    device = runtime.device_of(job.gpu_name, job.block)
    try:
        run = reproduction.reproduce(declaration, finding, device)
    except Exception as error:
        print(f"in the interpreter: {in_a_line(error)}")
        if not job.arguments.step:
            return
        run = None
    if run is not None:
        print("in the interpreter:")
        for line in reproduction.explanation(run):
            print(f"  {line}")
    if not job.arguments.step:
        return
    owner = reproduction.owner(run) if run is not None else None
    launch, program = (owner[0].number, owner[1]) if owner else (None, (0, 0, 0))
    program = job.arguments.program or program
    stepper = tracing.Stepper(launch, program)
    try:
        reproduction.reproduce(declaration, finding, device, stepper, run.what if run else None)
    except BaseException as error:
        if not tracing.quitted(error):
            raise
    finally:
        stepper.after_launch()
    if not stepper.stopped:
        grids = ", ".join(f"{launch.kernel} {launch.grid}" for launch in run.trace.launches) if run else "unknown"
        raise AtlasError(f"--program {','.join(map(str, program))}: no launch has it; the grids are {grids}")


def _steppable(findings: list[Any]) -> Any:
    """Of findings that pass the first of a variant, which is what one would step through."""
    return next((f for f in findings if f.subject.variant and f.subject.config is not None), findings[0])


def _too_costly(job: frame.Job, declaration: Any) -> str:
    """Where the asked-for case is too large for the interpreter: which smaller one shows the fault, too."""
    from ..declaration import Case
    from ..host import runtime
    from ..validation import cases

    arguments = job.arguments
    if arguments.case is None:
        return ""
    sizes, passes = _sizes(arguments.case), declaration.passes
    asked = [Case(dtype, sizes) for dtype in declaration.dtypes if arguments.dtype in (None, dtype)]
    directions = [d for d in passes if arguments.direction in (None, d)]
    device = runtime.device_of(job.gpu_name, job.block)
    reasons = [cases.too_costly(passes[d], case, job.gpu(), device) for d in directions for case in asked]
    if not all(reasons):
        return ""
    said = f"case {arguments.case} is too large to interpret ({reasons[0]})"
    known = [c for c in declaration.edge_cases if arguments.dtype in (None, c.dtype)]
    for case in sorted(known, key=lambda c: cases.interpreter_cost(passes[directions[0]], c)):
        if cases.too_costly(passes[directions[0]], case, job.gpu(), device):
            continue
        findings, _ = _findings(_inspection(job, declaration, case))
        wrong = next((f for f in findings if f.status in ("fail", "error")), None)
        if wrong is not None:
            return f"{said}; the smallest declared case that fails too is {case}:\n  {_command(job, wrong)}"
    return f"{said}; no declared case that is small enough fails with seed {arguments.seed}"


def _command(job: frame.Job, finding: Any) -> str:
    from ..validation.findings import replay

    return f"{replay(finding, job.kernel, 'cpu')} --step"


def _inspection(job: frame.Job, declaration: Any, case: Any = None) -> Any:
    """The selected checks; of ``case`` instead of the one asked for, where given."""
    from .. import validation
    from ..host import runtime

    arguments = job.arguments
    asked = None if arguments.case is None else _sizes(arguments.case)
    selection = validation.Selection(
        check=arguments.check,
        variant=arguments.variant,
        direction=arguments.direction,
        dtype=case.dtype if case else arguments.dtype,
        sizes=case.sizes if case else asked,
        config=arguments.config,
    )
    device = runtime.device_of(job.gpu_name, job.block)
    return validation.Inspection(declaration, job.gpu(), device, [arguments.seed], selection)


def _findings(inspection: Any) -> tuple[list[Any], str]:
    """All findings, and what took the device down, or ``""``."""
    from ..validation import DeviceLost

    findings: list[Any] = []
    for task in inspection.tasks():
        try:
            findings += inspection.run(task)
        except DeviceLost as error:
            return findings, str(error)
    return findings, ""


def _check_names(arguments: argparse.Namespace, declaration: Any) -> None:
    from ..validation import CHECKS

    names = ["public", *(v.name for work in declaration.passes.values() for v in work.variants)]
    known = {"check": list(CHECKS), "variant": list(dict.fromkeys(names)), "dtype": list(declaration.dtypes)}
    for option, values in known.items():
        value = getattr(arguments, option)
        if value is not None and value not in values:
            raise AtlasError(f"--{option} {value!r}: {declaration.name} has {', '.join(values)}")


def case_of(text: str, dtype: str, declaration: Any) -> Any:
    """The case that ``--case`` and ``--dtype`` name: all sizes of one of its declared cases, in that order."""
    from ..declaration import Case

    if dtype not in declaration.dtypes:
        raise AtlasError(f"--dtype {dtype!r}: {declaration.name} has {', '.join(declaration.dtypes)}")
    _check_sizes(text, dtype, declaration)
    given = dict(_sizes(text))
    shapes = {tuple(name for name, _ in case.sizes) for case in (*declaration.edge_cases, *declaration.huge_cases)}
    order = next((names for names in sorted(shapes) if set(names) == set(given)), None)
    if order is None:
        every = " or ".join(",".join(names) for names in sorted(shapes))
        raise AtlasError(f"--case {text!r}: give all sizes of a case: {every}")
    return Case(dtype, tuple((name, given[name]) for name in order))


def _check_sizes(text: str, dtype: str, declaration: Any) -> None:
    """Refuse sizes that no declared case has, whose values are of another kind, or that say too little."""
    from ..declaration import Case

    asked = Case(dtype, _sizes(text))
    examples = dict(size for case in (*declaration.edge_cases, *declaration.huge_cases) for size in case.sizes)
    has = f"{declaration.name} has {', '.join(examples)}"
    for name, value in asked.sizes:
        if name not in examples:
            raise AtlasError(f"--case {text!r}: unknown size {name!r}; {has}")
        kind = type(examples[name])
        if not isinstance(value, (int, float) if kind is float else kind) or (type(value) is int and value < 0):
            raise AtlasError(f"--case {text!r}: {name} cannot be {value!r}; give {_KINDS[kind]}")
    try:
        for work in declaration.passes.values():
            work.bytes(asked), work.flops(asked)
    except KeyError as error:
        raise AtlasError(f"--case {text!r}: {error.args[0]}; {has}") from None


def _sizes(text: str) -> tuple[tuple[str, Any], ...]:
    """``m=4,causal=True`` as sizes: integers, booleans, numbers, otherwise words."""
    pairs = [word.partition("=") for word in text.split(",")]
    if not all(name and sign for name, sign, _ in pairs):
        raise AtlasError(f"--case {text!r}: give sizes as name=value, separated by commas: m=4096,n=1024")
    names = [name.strip() for name, _, _ in pairs]
    for name in names:
        if names.count(name) > 1:
            raise AtlasError(f"--case {text!r}: size {name!r} is given twice; which of them is meant?")
    return tuple((name.strip(), _value(value.strip())) for name, _, value in pairs)


def _value(text: str) -> Any:
    if text in ("True", "False"):
        return text == "True"
    for kind in (int, float):
        try:
            value = kind(text)
        except ValueError:
            continue
        if not -strict.MOST_INTEGER <= value <= strict.MOST_INTEGER:  # NaN is in no range
            raise AtlasError(f"--case: {strict.shown(text)} is not a number that a case can have")
        return value
    return text


def mapping(text: str) -> dict[str, Any]:
    """A config that an option gives as JSON."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise argparse.ArgumentTypeError(f"not JSON: {error}") from None
    if said := strict.trouble(value):
        raise argparse.ArgumentTypeError(said)
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError('give an object, as {"BLOCK": 1024}')
    return value


def _program(text: str) -> tuple[int, int, int]:
    try:
        indices = [int(word) for word in text.split(",")]
    except ValueError:
        indices = []
    if not 1 <= len(indices) <= 3:
        raise argparse.ArgumentTypeError("give up to three indices, as 3 or 3,0,0")
    return (*indices, 0, 0)[:3]
