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
"""The most cases of one certificate, beside the one for hard inputs: each is a compilation of its own, about half a
second on a host of an H200."""


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
    """Check one config on the edge cases of one dtype that :func:`certifying_cases` chooses, in their order.

    With every seed: values, stores outside, unwritten elements, changed inputs.  With the first seed in addition: two
    launches agree bit by bit; on the first case that runs NaN, infinities, large magnitudes and a common offset; and on
    the one with the most traffic, which shows the most of it, a random pass's mask.
    A case whose launch asks for more of the GPU than there is does not count; a config that ran on none, because the
    GPU lacks what the variant or the dtype needs or for another reason, gets that as ``reason`` with ``cases`` 0.
    Raises :class:`~.device.DeviceLost` where a launch takes the device down with it.
    """
    work, device, seeds = declaration.passes[direction], torch.device(device), list(seeds)
    gpu = gpu_of(device)
    variant = work.variant(variant) if isinstance(variant, str) else variant
    chosen, reason = certifying_cases(declaration, work, variant, config, dtype, gpu, device)
    ran: list[Case] = []
    checks, status = 0, UNSUPPORTED
    for case in chosen:
        refused = ""
        for seed in seeds:
            first = seed == seeds[0]
            try:
                problem = Problem(declaration, direction, case, device, seed)
                findings = list(variants.check_variant(problem, variant, config, twice=first))
                if first and not ran:
                    findings += _hard_inputs(problem, variant, config)
            except NoReference as error:
                refused = str(error)
                break
            refused = next((f.reason for f in findings if f.exhausted), "")
            if refused:
                status = ERROR
                break
            wrong = _wrong(findings)
            checks += len(findings)
            if wrong is not None:
                return Certificate(str(wrong), len(ran) + 1, checks, seeds.index(seed) + 1, wrong.status)
        reason = reason or refused
        if not refused:
            ran.append(case)
    if ran and work.random is not None:
        widest = max(ran, key=lambda case: sum(work.bytes(case).values()))
        problem = Problem(declaration, direction, widest, device, seeds[0])
        findings = list(randomness.check_random(problem, variant, [config]))
        wrong = _wrong(findings)
        checks += len(findings)
        if wrong is not None:
            return Certificate(str(wrong), len(ran), checks, len(seeds), wrong.status)
    devices.release(device)
    if ran:
        return Certificate("", len(ran), checks, len(seeds), PASS)
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

    First comes the one for hard inputs, which validation chooses too: of those that the variant takes and the device
    affords, whether the config fits or not, the cheapest in which every size is at least 3.  A kernel's author knows
    which that is, and sees to it that a planted infinity means there what the reference makes of it; elsewhere it may
    not (behind a mask the reference has 0 times infinity, where a kernel that skips what no query sees has 0).  A
    variant that takes no such case goes without: then hard inputs are tried on the first of the others.

    Then, of those that the config fits, :data:`CASES` at most; where it fits none (large tiles on small problems) the
    others have to do: ``fits`` says what is worth a trial, not what is right.  Taken are the one with most sizes that
    are no multiple of 16, the one with the most traffic, the one with fewest such sizes, and then the cheapest.
    """
    taken, refusals = [], []
    for case in declaration.edge_cases:
        if case.dtype != dtype or not sum(work.bytes(case).values()):
            continue
        refusal = variant.unsupported(case, gpu) or choice.too_costly(work, case, gpu, device)
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
    return list(dict.fromkeys([*_for_hard_inputs(work, taken), *list(dict.fromkeys(ranked))[:CASES]])), ""


def _for_hard_inputs(work: Pass, cases: list[Case]) -> list[Case]:
    """Of cases of one dtype the one that validation would choose; none where each has a size below 3.

    There the smallest, which validation falls back on, may be a single element, of which hard inputs say little.
    """
    return [case for case in choice.small_cases(work, cases) if min(choice.sizes_of(case), default=0) > 2]


def _small(work: Pass, cases: list[Case]) -> list[Case]:
    """The cheaper half: a config that fits none of the cases may take long to compile for the larger ones."""
    return sorted(cases, key=lambda case: sum(work.bytes(case).values()))[: max(CASES, len(cases) // 2)]


def _ragged(case: Case) -> int:
    return sum(size % 16 != 0 for size in choice.sizes_of(case))


def _wrong(findings: list[Finding]) -> Finding | None:
    return next((finding for finding in findings if finding.status in (FAIL, ERROR)), None)


def _hard_inputs(problem: Problem, variant: Variant, config: Config) -> list[Finding]:
    names = specials.plantable(problem.inputs, free_inputs(problem))
    return list(variants.check_specials(problem, variant, config, names)) if names else []
