"""Certify one config of one variant: what a config must pass before anybody exports it or trusts its time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch

from ..declaration import GPU, Case, Config, Declaration, Pass, Variant, gpu_of
from . import cases as choice
from . import device as devices
from . import randomness, specials, variants
from .findings import ERROR, FAIL, PASS, UNSUPPORTED, Finding
from .inspection import free_inputs
from .problems import NoReference, Problem

CASES = 4
"""The most cases of one certificate: each is a compilation of its own, about half a second on a host of an H200."""


@dataclass(frozen=True)
class Certificate:
    """What was found; ``reason`` is empty where the config is right.

    ``status`` is that of a finding: "pass"; "fail" where a result is wrong; "error" where a launch raised, of which
    nobody knows whether it is right; "unsupported" where there was nothing to try it on.  ``cases`` is how many edge
    cases it ran on, ``checks`` how many findings that gave, ``seeds`` of how many seeds.
    """

    reason: str
    cases: int
    checks: int
    seeds: int
    status: str


@np.errstate(all="ignore")  # the interpreter's NumPy would warn of what is planted
def certify(
    declaration: Declaration,
    direction: str,
    variant: Variant | str,
    config: Config,
    dtype: str,
    device: torch.device,
    seeds: Iterable[int],
) -> Certificate:
    """Check one config on up to :data:`CASES` edge cases of one dtype, chosen by :func:`certifying_cases`.

    With every seed: values, stores outside, unwritten elements, changed inputs.  With the first seed in addition: two
    launches agree bit by bit, and on the first case NaN, infinities, large magnitudes and a common offset, and a random
    pass's mask.
    A case whose launch asks for more of the GPU than there is does not count; a config that ran on none, because the
    GPU lacks what the variant or the dtype needs or for another reason, gets that as ``reason`` with ``cases`` 0.
    Raises :class:`~.device.DeviceLost` where a launch takes the device down with it.
    """
    work, device, seeds = declaration.passes[direction], torch.device(device), list(seeds)
    gpu = gpu_of(device)
    variant = work.variant(variant) if isinstance(variant, str) else variant
    chosen, reason = certifying_cases(declaration, work, variant, config, dtype, gpu, device)
    ran = checks = 0
    status = UNSUPPORTED
    for case in chosen:
        refused = ""
        for seed in seeds:
            first = seed == seeds[0]
            try:
                problem = Problem(declaration, direction, case, device, seed)
                findings = list(variants.check_variant(problem, variant, config, twice=first))
                if first and not ran:
                    findings += _once(problem, variant, config)
            except NoReference as error:
                refused = str(error)
                break
            refused = next((f.reason for f in findings if f.exhausted), "")
            if refused:
                status = ERROR
                break
            wrong = next((f for f in findings if f.status in (FAIL, ERROR)), None)
            checks += len(findings)
            if wrong is not None:
                return Certificate(str(wrong), ran + 1, checks, seeds.index(seed) + 1, wrong.status)
        reason = reason or refused
        ran += not refused
    devices.release(device)
    if ran:
        return Certificate("", ran, checks, len(seeds), PASS)
    return Certificate(reason or f"no edge case of {dtype} to check it on", 0, 0, 0, status)


def certifying_cases(
    declaration: Declaration,
    work: Pass,
    variant: Variant,
    config: Config,
    dtype: str,
    gpu: GPU,
    device: torch.device | None = None,
) -> tuple[list[Case], str]:
    """The edge cases to check a config on, and why there are none; without ``device`` its free memory is not asked.

    Of those that the variant takes and the device affords, the ones that the config fits count; where it fits none
    (large tiles on small problems) the others have to do: ``fits`` says what is worth a trial, not what is right.
    Taken are the one with most sizes that are no multiple of 16, the one with the most traffic, the one with fewest
    such sizes, and then the cheapest.
    """
    taken, refusals = [], []
    for case in declaration.edge_cases:
        if case.dtype != dtype or not sum(work.bytes(case).values()):
            continue
        refusal = variant.unsupported(case, gpu) or choice.too_dear(work, case, gpu, device)
        (refusals if refusal else taken).append(refusal or case)
    fitting = [case for case in taken if not variant.fits(config, case, gpu)] or _small(work, taken)
    if not fitting:
        reasons = "; ".join(dict.fromkeys(refusals))
        return [], f"no edge case of {dtype} that {variant.name} takes: {reasons}" if refusals else ""
    cost = {case: sum(work.bytes(case).values()) for case in fitting}
    ranked = [
        max(fitting, key=lambda case: (_ragged(case), min(choice.sizes_of(case), default=0) > 2, -cost[case])),
        max(fitting, key=cost.get),
        min(fitting, key=lambda case: (_ragged(case), cost[case])),
        *sorted(fitting, key=cost.get),
    ]
    return list(dict.fromkeys(ranked))[:CASES], ""


def _small(work: Pass, cases: list[Case]) -> list[Case]:
    """The cheaper half: a config that fits none of the cases may take long to compile for the larger ones."""
    return sorted(cases, key=lambda case: sum(work.bytes(case).values()))[: max(CASES, len(cases) // 2)]


def _ragged(case: Case) -> int:
    return sum(size % 16 != 0 for size in choice.sizes_of(case))


def _once(problem: Problem, variant: Variant, config: Config) -> list[Finding]:
    names = specials.plantable(problem.inputs, free_inputs(problem))
    found = list(variants.check_specials(problem, variant, config, names)) if names else []
    if problem.work.random is not None:
        found += randomness.check_random(problem, variant, [config])
    return found
