"""The distinct compilations of a kernel's tuning space, and the build document's rows of what became of them.

Many cases give the same compilation, and it is made once.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import catalog
from ..declaration import GPU, Case, Config, Declaration, Pass, Variant
from ..host.runtime import meta_inputs
from ..results.subject import PassCase
from .compiled import Compiled, complaint
from .offline import Request, compile_only
from .pool import Task


@dataclass(frozen=True)
class Compilation:
    """One distinct compilation of one config of a variant, and the cases that give it.

    ``default_for`` are those of ``cases`` whose default config this is.  ``keys`` name the kernels: compilations with
    equal keys (configs that differ in nothing but the grid) have one binary.
    """

    direction: str
    variant: str
    config: Config
    keys: frozenset[str]
    cases: tuple[Case, ...]
    default_for: tuple[Case, ...] = ()

    @property
    def dtype(self) -> str:
        return self.cases[0].dtype

    @property
    def case(self) -> Case:
        """The case to compile it with: one it is the default of, where there is one."""
        return (self.default_for or self.cases)[0]

    @property
    def default(self) -> bool:
        return bool(self.default_for)


@dataclass(frozen=True)
class Refusal:
    """A variant that supports no case of a dtype on this GPU, with the reason it gives for the first."""

    direction: str
    variant: str
    dtype: str
    reason: str


@dataclass(frozen=True)
class Space:
    """All compilations of a kernel for one GPU, in the order of passes, variants, dtypes and parameter lists."""

    compilations: tuple[Compilation, ...]
    refusals: tuple[Refusal, ...]


def enumerate_space(declaration: Declaration, gpu: GPU, cases: Sequence[Case], largest: bool = False) -> Space:
    """The compilations that ``cases`` give on ``gpu``: every config that fits, and the default of each case.

    ``largest`` asks of each pass, variant and dtype for one case alone, that with the most traffic of those the variant
    supports: the one whose figures count most.  To look at all may take as long as to compile a sample.

    Launchers are called, and compile nothing.  One that raises gives a compilation of its own, for its compiler to
    fail in its turn.
    """
    compilations: list[Compilation] = []
    refusals: list[Refusal] = []
    with compile_only(gpu, compiling=False) as requests:
        for direction, variant, of_dtype in _groups(declaration, cases):
            reasons = [variant.unsupported(case, gpu) for case in of_dtype]
            if all(reasons):
                refusals.append(Refusal(direction, variant.name, of_dtype[0].dtype, reasons[0]))
            handled = [case for case, reason in zip(of_dtype, reasons, strict=True) if not reason]
            work = declaration.passes[direction]
            if largest and handled:
                handled = [representative(work, handled)]
            compilations += _of_variant(work, direction, variant, handled, gpu, requests)
    return Space(tuple(compilations), tuple(refusals))


def _groups(declaration: Declaration, cases: Sequence[Case]) -> Iterator[tuple[str, Variant, list[Case]]]:
    """Every variant of every pass, with the cases of each dtype in turn."""
    by_dtype: dict[str, list[Case]] = {}
    for case in cases:
        by_dtype.setdefault(case.dtype, []).append(case)
    for direction, work in declaration.passes.items():
        for variant, of_dtype in itertools.product(work.variants, by_dtype.values()):
            yield direction, variant, of_dtype


def _of_variant(
    work: Pass, direction: str, variant: Variant, cases: Sequence[Case], gpu: GPU, requests: list[Request]
) -> Iterator[Compilation]:
    found: dict[tuple[str, frozenset[str]], Compilation] = {}
    for case in cases:
        inputs, default = meta_inputs(work, case), dict(variant.default(case, gpu))
        configs = list(variant.configs(case, gpu))
        for config in configs if default in configs else [default, *configs]:
            requests.clear()
            try:
                variant.launch(config=config, **inputs)
                keys = frozenset(request.key for request in requests)
            except Exception as error:
                keys = frozenset([f"raises {complaint(error)}"])
            identity = json.dumps(config, sort_keys=True, default=str), keys
            known = found.get(identity) or Compilation(direction, variant.name, config, keys, ())
            found[identity] = dataclasses.replace(
                known,
                cases=(*known.cases, case),
                default_for=(*known.default_for, case) if config == default else known.default_for,
            )
    yield from found.values()


def sample(space: Space, further: int, seed: str) -> list[Compilation]:
    """The defaults, which untuned calls run, and of each pass ``further`` other configs, drawn by ``seed``."""
    chosen = [compilation for compilation in space.compilations if compilation.default]
    for direction in dict.fromkeys(compilation.direction for compilation in space.compilations):
        others = [one for one in space.compilations if one.direction == direction and not one.default]
        chosen += random.Random(f"{seed} {direction}").sample(others, min(further, len(others)))
    return chosen


def representative(work: Pass, cases: Sequence[Case]) -> Case:
    """Of ``cases`` the one with the most traffic."""
    return max(cases, key=lambda case: sum(work.bytes(case).values()))


Identity = tuple[str, str, str, frozenset[str], bool]


def identity(compilation: Compilation) -> Identity:
    """What decides a compilation's row but for its config: compilations with equal identities are compiled once."""
    return compilation.direction, compilation.variant, compilation.dtype, compilation.keys, compilation.default


def tasks_of(
    kernel: str, declaration: Declaration, compilations: Sequence[Compilation], gpu: GPU, listings: Path, sass: bool
) -> dict[Identity, Task]:
    """One task for each distinct compilation; those of default configs leave listings in the folder ``listings``.

    ``sass`` asks for machine code beside the PTX.
    """
    load = functools.partial(catalog.load, kernel)
    shown = _shown(declaration, compilations)
    tasks: dict[Identity, Task] = {}
    for compilation in compilations:
        task = Task(load, compilation.direction, compilation.variant, compilation.case, compilation.config, gpu)
        if identity(compilation) in shown:
            prefix = listings / f"{compilation.direction}-{compilation.variant}-{compilation.dtype}"
            task = dataclasses.replace(task, listings=prefix, sass=sass)
        tasks.setdefault(identity(compilation), task)
    return tasks


def _shown(declaration: Declaration, compilations: Sequence[Compilation]) -> set[Identity]:
    """Of each pass, variant and dtype the default whose listing is kept: that of the case with the most traffic."""
    groups: dict[tuple[str, str, str], list[Compilation]] = {}
    for compilation in compilations:
        if compilation.default:
            groups.setdefault((compilation.direction, compilation.variant, compilation.dtype), []).append(compilation)
    shown = set()
    for (direction, _, _), group in groups.items():
        case = representative(declaration.passes[direction], [case for c in group for case in c.default_for])
        shown.add(identity(next(compilation for compilation in group if case in compilation.default_for)))
    return shown


def row(compilation: Compilation, compiled: Compiled) -> dict[str, Any]:
    """The document's row of one compilation."""
    return _where(compilation.variant, compilation.direction, compilation.dtype) | {
        "sizes": dict(compilation.case.sizes),
        "config": dict(compilation.config),
        "default": compilation.default,
        **compiled.to_json(),
    }


def refused_row(refusal: Refusal) -> dict[str, Any]:
    """The document's row of a variant that does not support this GPU, or no case of this dtype."""
    return _where(refusal.variant, refusal.direction, refusal.dtype) | {
        "sizes": {},
        "config": {},
        "default": False,
        **Compiled("unsupported", refusal.reason).to_json(),
    }


def _where(variant: str, direction: str, dtype: str) -> dict[str, str]:
    return {"variant": variant, "direction": direction, "dtype": dtype}


def status(rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The document's status and reason: ``failed`` if a default config, which an untuned call runs, is of no use."""
    for bad in rows:
        if bad["default"] and bad["status"] != "ok":
            what = f"default config of {bad['variant']}, {PassCase.of(bad)},"
            how = "does not compile" if bad["status"] == "failed" else "cannot launch"
            return {"status": "failed", "reason": f"{what} {how}: {bad['reason']}"}
    if all(row["status"] == "unsupported" for row in rows):
        return {"status": "unsupported", "reason": rows[0]["reason"] if rows else "no case fits this GPU"}
    return {"status": "ok", "reason": ""}
