"""The faults that mutation operators make in a kernel: in all that its variants and its public function reach.

What is reached is asked of the kernel's identities, so that device functions and launchers are found wherever they
stand.  Of what families share, each function is tried once, with the first of the kernels that reach it.
"""

from __future__ import annotations

import ast
import random
from collections.abc import Iterable, Sequence

from atlas import catalog
from atlas.identity import kernel as identities
from atlas.identity import today
from atlas.identity.code import Code

from . import operators
from .planting import HUGE, IN_ORDER, Mutant, Operation, Trees

_DECIDING = frozenset({"problem", "gpu", "case"})
"""Arguments of functions that decide which config runs, and on what: a fault there costs speed, not values."""

_GPU_ONLY = {"offset of 32 bits": HUGE, "fence dropped": IN_ORDER}


def mutants(kernels: Sequence[str], read: tuple[Code, Trees] | None = None) -> list[Mutant]:
    """Every generated fault of these kernels, in the order of kernels, files and functions.

    ``read`` is the kernels' source, for who asks several times while it stays as it is.
    """
    found, seen = [], set()
    code, trees = read or (today.code_of(catalog.KERNELS), Trees())
    for kernel in kernels:
        for (module, name), reached_by in sorted(_reached(code, kernel).items()):
            path = code.path(module).relative_to(catalog.KERNELS).as_posix()
            if (path, name) in seen or _belongs_to_another(path, kernel):
                continue
            seen.add((path, name))
            for function in trees[path].body:
                if isinstance(function, ast.FunctionDef) and function.name == name:
                    found += _of_function(kernel, path, function, reached_by)
    return found


def sample(mutants: Iterable[Mutant], count: int, seed: int = 0) -> list[Mutant]:
    """``count`` mutants of each kernel, of as many operators as there are; the same for the same seed."""
    by_kernel: dict[str, list[Mutant]] = {}
    for mutant in mutants:
        by_kernel.setdefault(mutant.kernel, []).append(mutant)
    chosen = []
    for kernel, own in by_kernel.items():
        shuffled = random.Random(f"{seed} {kernel}").sample(own, len(own))
        times: dict[str, int] = {}
        ranked = []
        for mutant in shuffled:
            times[mutant.kind] = times.get(mutant.kind, 0) + 1
            ranked.append((times[mutant.kind], len(ranked), mutant))
        chosen += [mutant for *_, mutant in sorted(ranked, key=lambda one: one[:2])[:count]]
    return chosen


def _reached(code, kernel: str) -> dict[tuple[str, str], list[tuple[str, str]]]:
    """The definitions in kernels that variants or the public function reach, with the (direction, variant) that do."""
    found: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for identity, definitions in identities.reached(code, kernel).items():
        direction, _, variant = identity.partition(".")
        if variant:
            who = (direction, variant)
        elif identity == identities.PUBLIC:
            who = ("forward", "public")
        else:
            continue
        for definition in definitions:
            if definition[0].startswith("kernels."):
                found.setdefault(definition, []).append(who)
    return found


def _belongs_to_another(path: str, kernel: str) -> bool:
    """Whether a file is another kernel's: its faults are tried with that."""
    family = path.partition("/")[0].removesuffix(".py")
    return family != kernel and family in catalog.names()


def _of_function(
    kernel: str, path: str, function: ast.FunctionDef, reached_by: list[tuple[str, str]]
) -> Iterable[Mutant]:
    device = any("jit" in ast.unparse(one) for one in function.decorator_list)
    if not device and _DECIDING & {one.arg for one in function.args.args}:
        return
    found = operators.mutations(function, operators.DEVICE if device else operators.HOST)
    runs = sorted(reached_by, key=lambda one: one[1] == "public")  # the variants first: their checks are the quicker
    for mutation in found:
        what = f"{mutation.operator} {mutation.number}: {mutation.before} -> {mutation.after}"
        yield Mutant(
            kernel=kernel,
            name=f"{path}: {function.name}: {what}",
            kind=mutation.operator,
            edits=(Operation(path, function.name, mutation.operator, mutation.number, device),),
            huge=mutation.operator == "offset of 32 bits",
            gpu_only=_GPU_ONLY.get(mutation.operator, ""),
            reached_by=tuple(runs),
        )
