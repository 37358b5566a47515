"""Configs that spaces leave out: drawn at random, and of those the ones that compile.

Whether a config compiles takes no GPU to find, but minutes of cores: ``python -m proofs.tuning.outside`` does it ahead
on any host and keeps what it found in a scratch folder, from which the proof `pruning` goes on.  With Triton's cache of
that host (``TRITON_CACHE_DIR``) beside it nothing is compiled again.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import importlib.metadata
import itertools
import random
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from atlas import catalog, cli
from atlas.declaration import GPU, Case, Declaration, Variant
from atlas.errors import AtlasError
from atlas.results.pieces import Pieces
from atlas.stages import frame
from atlas.tuning import candidates
from atlas.tuning.candidates import Candidate, Problem, Ruling

from .. import scratch

CONFIGS, CASES = 300, 2
KERNELS = "matmul,attention,softmax,layer_norm"

COMPILE_SECONDS = 20.0
"""What a config from outside may take to compile; the slowest that are of use take some 10."""
MOST_DRAWN = 6
"""How many times as many configs as are wanted are drawn at most."""

Choice = Callable[[Problem, Sequence[Candidate], int], Sequence[Candidate]]
"""Which of those drawn for a problem, so many of them, are tried."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The GPU, of this host or not, and what :func:`add_drawing` adds."""
    frame.add_common_arguments(parser, kernel=False)
    add_drawing(parser)


def add_drawing(parser: argparse.ArgumentParser) -> None:
    """``--kernels``, ``--scratch``, ``--cores``, how many configs and cases, and the seed."""
    scratch.add_arguments(parser, kernels=KERNELS)
    scratch.add_cores(parser)
    parser.add_argument("--configs", type=int, default=CONFIGS, metavar="N", help=f"a case (default: {CONFIGS})")
    parser.add_argument("--cases", type=int, default=CASES, metavar="N", help=f"a kernel and dtype (default: {CASES})")
    parser.add_argument("--seed", type=int, default=0, help="of configs and cases (default: 0)")


def run(arguments: argparse.Namespace) -> None:
    """Find which configs from outside compile, and keep that in ``--scratch``; AtlasError without it."""
    job = frame.job("prove", arguments)
    if arguments.scratch is None:
        raise AtlasError("command line: --scratch is missing; name the folder that the proof shall go on from")
    with scratch.folder(job) as folder:
        for kernel in scratch.kernels_of(arguments):
            choice = that_compile(kernel, job.gpu(), scratch.cores_of(arguments), folder)
            wide(catalog.load(kernel), job.gpu(), arguments.configs, arguments.cases, arguments.seed, choice)


def first(problem: Problem, drawn: Sequence[Candidate], count: int) -> Sequence[Candidate]:
    """So many of those drawn, whatever becomes of them."""
    return drawn[:count]


@dataclasses.dataclass(frozen=True)
class ThatCompile:
    """The first so many of those drawn that compile for a GPU; the tuner finds what was compiled in Triton's cache."""

    kernel: str
    gpu: GPU
    jobs: int
    known: Pieces

    def __call__(self, problem: Problem, drawn: Sequence[Candidate], count: int) -> Sequence[Candidate]:
        drawn = drawn[: MOST_DRAWN * count]
        places = self.known.once(f"{problem}, {count}", lambda: self._find(problem, drawn, count))
        return [drawn[place] for place in places]

    def _find(self, problem: Problem, drawn: Sequence[Candidate], count: int) -> list[int]:
        from atlas.compilation.pool import Task, compile_all

        load = functools.partial(catalog.load, self.kernel)
        tasks = (Task(load, problem.direction, one.variant, problem.case, one.config, self.gpu) for one in drawn)
        found: list[int] = []
        with contextlib.closing(compile_all(tasks, self.jobs, COMPILE_SECONDS)) as compiled:
            for place, result in compiled:
                if result.status == "ok":
                    found.append(place)
                if len(found) == count:
                    break
        print(f"{self.kernel} {problem}: {len(found)} configs from outside compile", flush=True)
        return sorted(found)


def that_compile(kernel: str, gpu: GPU, jobs: int, folder: Path) -> ThatCompile:
    """The choice whose findings are kept in a scratch folder, for this kernel's code and version of Triton."""
    context = {"kernel_digest": catalog.digest(kernel), "gpu": gpu.name, "triton": importlib.metadata.version("triton")}
    return ThatCompile(kernel, gpu, jobs, Pieces(folder / f"{kernel}-compiled.jsonl", context))


def wide(
    declaration: Declaration, gpu: GPU, configs: int, cases: int, seed: int, choice: Choice = first
) -> list[Problem]:
    """Problems of some cases of each dtype, with ``configs`` candidates more from outside the space of each.

    They are drawn at random; ``choice`` says which are tried.
    """
    drawing = random.Random(f"{seed} {declaration.name}")
    by_dtype: dict[str, list[Case]] = {}
    for case in declaration.cases(gpu):
        by_dtype.setdefault(case.dtype, []).append(case)
    chosen = [case for own in by_dtype.values() for case in drawing.sample(own, min(cases, len(own)))]
    found = []
    for problem in candidates.problems(declaration, gpu, Ruling(), chosen):
        variants = declaration.passes[problem.direction].variants
        out = [one for v in variants if not v.unsupported(problem.case, gpu) for one in outside(v, problem.case, gpu)]
        more = choice(problem, drawing.sample(out, len(out)), configs)
        found.append(dataclasses.replace(problem, candidates=(*problem.candidates, *more)))
    return found


def outside(variant: Variant, case: Case, gpu: GPU) -> list[Candidate]:
    """What a variant's lists give and its ``fits`` refuses."""
    product = itertools.product(*variant.space.values())
    every = (dict(zip(variant.space, values, strict=True)) for values in product)
    return [Candidate.of(variant.name, config) for config in every if variant.fits(config, case, gpu)]


if __name__ == "__main__":
    raise SystemExit(cli.run("proofs.tuning.outside", "proofs.tuning.outside", __doc__ or "", sys.argv[1:]))
