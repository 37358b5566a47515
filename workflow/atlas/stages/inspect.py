"""inspect: what one config compiles to on a GPU, on any host: resources, accesses, matrix instructions, the listings.

Without further options it is what a call of the kernel's largest case runs.  ``--diff`` sets it against another GPU,
variant, config or case, or another Triton.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import AtlasError
from ..host import interpreters
from ..results.documents import write_text
from ..results.subject import PassCase, label
from . import frame
from .debug import case_of, mapping

if TYPE_CHECKING:
    from ..compilation.inspection import Inspected

TEXTS = ("ttir", "ttgir", "llir", "ptx", "amdgcn", "sass")
"""What can be shown, in the order in which the compiler makes it; ``amdgcn`` is AMD's in place of the last two."""
_LACKING = {
    "ttir": "it has none, for Gluon begins with ttgir",
    "ptx": "it has none, for AMD's GPUs have amdgcn",
    "amdgcn": "it has none, for NVIDIA's GPUs have ptx and sass",
    "sass": "it has none on AMD's GPUs, which have amdgcn, or this Triton's disassembler does not know the GPU",
}
"""Why a text may be empty."""
_DIFFERING = ("gpu", "dtype", "case", "direction", "variant", "config", "python")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What to compile, what to show, what to set it against."""
    frame.add_common_arguments(parser)
    parser.add_argument("--dtype", help="default: bf16, else the first that the kernel has")
    parser.add_argument("--case", metavar="m=…,n=…", help="all sizes and flags (default: that of most traffic)")
    parser.add_argument("--direction", choices=["forward", "backward"], default="forward", help="default: forward")
    parser.add_argument("--variant", help="with its default config, or --config (default: what a call runs)")
    parser.add_argument("--config", type=mapping, metavar="JSON", help="with --variant: its config")
    parser.add_argument("--asm", choices=TEXTS, help="print this text alone")
    parser.add_argument("--diff", nargs="+", metavar="WHAT=VALUE", help="against the same with another "
                        f"{', '.join(_DIFFERING[:-1])}, or python=PATH of another Triton")  # fmt: skip
    parser.add_argument("--output", type=Path, metavar="FILE", help="write facts and text as .json instead")


def run(arguments: argparse.Namespace) -> int:
    """Print it; 1 where it does not compile."""
    if arguments.output is not None and arguments.output.suffix != ".json":
        raise AtlasError(f"command line: --output {arguments.output}: end the name in .json")
    if arguments.output is not None and arguments.diff:
        raise AtlasError("command line: --output writes one side: leave out --diff, or the file")
    first = _inspected(arguments)
    if arguments.output is not None:
        write_text(arguments.output, json.dumps(first.to_json(), indent=1) + "\n")
    elif arguments.diff:
        second = _other(arguments)
        _show_difference(first, second, arguments.asm)
        return _failed(first) or _failed(second)
    else:
        _show(first, arguments.asm)
    return _failed(first)


def _failed(one: Inspected) -> int:
    if one.status == "ok":
        return 0
    print(f"{one.title}: {one.status}: {one.reason}", file=sys.stderr)
    return 1


def _inspected(arguments: argparse.Namespace) -> Inspected:
    import triton

    from ..compilation import inspection

    job = frame.job("inspect", arguments)
    if job.functional:
        raise AtlasError(f"GPU {job.gpu_name!r} is the interpreter, which compiles nothing; name another GPU")
    declaration, gpu = job.declaration(), job.gpu()
    arguments.settled = case = _case(arguments, declaration, gpu)
    variant, config = _chosen(job, declaration, case)
    arguments.ran = variant
    arch = f"sm_{gpu.arch}" if gpu.backend == "cuda" else gpu.arch
    where = f"on {job.gpu_name} ({arch}, Triton {triton.__version__})"
    title = f"{declaration.name} {PassCase.at(arguments.direction, case)} {where}: {variant} {label(config)}"
    return inspection.inspect(declaration, arguments.direction, variant, case, config, gpu, title, arguments.asm or "")


def _case(arguments: argparse.Namespace, declaration: Any, gpu: Any) -> Any:
    from ..compilation.space import representative
    from ..host import runtime

    if arguments.direction not in declaration.passes:
        raise AtlasError(f"--direction {arguments.direction}: {declaration.name} has {', '.join(declaration.passes)}")
    dtypes = declaration.dtypes
    dtype = arguments.dtype or ("bf16" if "bf16" in dtypes else dtypes[0])
    if arguments.case is not None:
        return case_of(arguments.case, dtype, declaration)
    if getattr(arguments, "settled", None) is not None:  # of the first side: both are of one case
        return dataclasses.replace(arguments.settled, dtype=dtype)
    cases = [case for case in runtime.sweep(declaration, gpu) if case.dtype == dtype]
    if not cases:
        raise AtlasError(f"--dtype {dtype}: {declaration.name} times no such case on {gpu.name}; give --case")
    return representative(declaration.passes[arguments.direction], cases)


def _chosen(job: frame.Job, declaration: Any, case: Any) -> tuple[str, Mapping[str, Any]]:
    """The variant and config asked for, or what a call runs."""
    from ..declaration import choice, tuned

    arguments, gpu = job.arguments, job.gpu()
    work = declaration.passes[arguments.direction]
    if arguments.variant is None:
        if arguments.config is not None:
            raise AtlasError("--config is of a variant: give --variant as well")
        path = choice.TUNED / f"{job.gpu_name}.json"
        entries = tuned.read(path)[1] if path.exists() else []
        try:
            made = choice.explained(declaration, arguments.direction, case, gpu, entries)
        except NotImplementedError as error:
            raise AtlasError(str(error)) from None
        return made.variant.name, made.config
    names = [variant.name for variant in work.variants]
    if arguments.variant not in names:
        has = f"{declaration.name} {arguments.direction} has {', '.join(names)}"
        raise AtlasError(f"--variant {arguments.variant}: {has}")
    variant = work.variant(arguments.variant)
    if reason := variant.unsupported(case, gpu):
        raise AtlasError(f"--variant {variant.name} on {gpu.name}: {reason}")
    config = arguments.config or variant.default(case, gpu)
    if set(config) != set(variant.space):
        raise AtlasError(f"--config {json.dumps(config)}: {variant.name} has {', '.join(variant.space)}")
    return variant.name, config


def _other(arguments: argparse.Namespace) -> Inspected:
    """What ``--diff`` names."""
    given = dict(word.partition("=")[::2] for word in arguments.diff)
    unknown = [name for name in given if name not in _DIFFERING]
    if unknown or not all(given.values()):
        raise AtlasError(f"--diff {' '.join(arguments.diff)}: give WHAT=VALUE, of {', '.join(_DIFFERING)}")
    python = given.pop("python", None)
    if "variant" in given and "config" not in given:
        given["config"] = None  # which is of the other variant
    elif "config" in given and arguments.variant is None:
        given["variant"] = arguments.ran
    if isinstance(given.get("config"), str):
        try:
            given["config"] = mapping(given["config"])
        except argparse.ArgumentTypeError as error:
            raise AtlasError(f"--diff config: {error}") from None
    changed = argparse.Namespace(**vars(arguments) | given | {"diff": None})
    if python is None and "gpu" in given:
        python = interpreters.of_block(given["gpu"], str(arguments.gpus_file))
    return _inspected(changed) if python is None else _elsewhere(python, changed)


def _elsewhere(python: str | Path, arguments: argparse.Namespace) -> Inspected:
    """The same by another interpreter, whose Triton is asked."""
    from .. import ROOT
    from ..compilation.inspection import Inspected
    from ..host.environment import python_path

    words = ["inspect", arguments.kernel, "--direction", arguments.direction, "--gpus-file", str(arguments.gpus_file)]
    for name in ("gpu", "dtype", "case", "variant", "asm"):
        words += [f"--{name}", getattr(arguments, name)] if getattr(arguments, name) else []
    words += ["--config", json.dumps(arguments.config)] if arguments.config else []
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "inspected.json"
        command = [python, "-m", "atlas", *words, "--output", str(output)]
        given = {"PYTHONPATH": python_path(ROOT), interpreters.VARIABLE: ""}
        try:
            done = subprocess.run(command, env=os.environ | given, capture_output=True, text=True, check=False)
        except OSError as error:
            raise AtlasError(f"--diff python={python}: {error.strerror}") from None
        if not output.exists():
            raise AtlasError(f"--diff python={python}: {(done.stderr.strip().splitlines() or ['it failed'])[-1]}")
        found = json.loads(output.read_text())
    return Inspected(**found | {"title": f"{found['title']}, by {python}"})


def _show(one: Inspected, asm: str | None) -> None:
    from ..compilation import inspection

    if asm:
        for kernel, texts in zip(one.kernels, one.texts, strict=True):
            if len(one.kernels) > 1:
                print(f"// {kernel['name']}")
            print(_text(one, texts, asm), end="")
        return
    console = _console()
    console.print(one.title, style="bold", soft_wrap=True)
    for kernel in one.kernels:
        console.print(_table([kernel["name"]], [dict(inspection.facts(kernel))]))


def _text(one: Inspected, texts: Mapping[str, str], asm: str) -> str:
    if not texts[asm]:
        raise AtlasError(f"--asm {asm}: {one.title}: {_LACKING[asm]}")
    return texts[asm]


def _show_difference(first: Inspected, second: Inspected, asm: str | None) -> None:
    from ..compilation import inspection

    console = _console()
    if asm:
        for one in (first, second):
            for texts in one.texts:
                _text(one, texts, asm)
    else:
        console.print(f"1: {first.title}\n2: {second.title}", style="bold", soft_wrap=True)
    for old, new, before, after in inspection.pairs(first, second):
        if asm:
            print(inspection.unified(before, after, (first.title, second.title)) or f"// the same {asm} on both sides")
            continue
        both = [dict(inspection.facts(kernel)) if kernel else {} for kernel in (old, new)]
        console.print(_table([kernel["name"] if kernel else "-" for kernel in (old, new)], both))


def _console() -> Any:
    from rich.console import Console

    shown = Console(highlight=False, markup=False, emoji=False)
    return shown if shown.is_terminal else Console(highlight=False, markup=False, emoji=False, width=200)


def _table(names: list[str], sides: list[dict[str, str]]) -> Any:
    """Facts a line; where two sides differ the second is marked."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    for header in ("kernel", *names):
        table.add_column(header, overflow="fold")
    for fact in sides[0] or sides[-1]:
        cells = [side.get(fact, "-") for side in sides]
        differs = len(set(cells)) > 1
        table.add_row(fact, *(Text(cell, style="bold yellow" if differs else "") for cell in cells))
    return table
