"""Checks of passes that keep elements at random: seeds, keep rate, and forward and backward agreeing on the mask.

Values are judged like any other, by the reference given the mask that the outputs show; here it is asked whether the
mask is one that chance and the seed could have made.  The statistical checks are binomial tests at
:data:`FALSE_ALARM`: among a million of them a right kernel trips one with a probability of 0.1 %.  What they see in
exchange hangs on the number of elements: :func:`detectable`.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from ..declaration import Config, Declaration, Variant
from ..host.runtime import draw
from .findings import ERROR, Finding, Subject, judged, stated
from .patterns import describe
from .problems import Problem

SAME_SEED, OTHER_SEED, KEEP_RATE = "same_seed_same_mask", "other_seed_other_mask", "keep_rate"
MASKS_AGREE, EXTREME_RATES = "masks_agree", "extreme_probabilities"
CHECKS = (SAME_SEED, OTHER_SEED, KEEP_RATE, MASKS_AGREE, EXTREME_RATES)

FALSE_ALARM = 1e-9
"""The probability with which one statistical check rejects a right kernel."""

_EXTREMES = (0.0, 0.99)


@functools.cache
def _stats() -> Any:
    """scipy.stats: it takes a second or two to import, and hardly any kernel is random."""
    from scipy import stats

    return stats


def bounds(count: int, rate: float) -> tuple[int, int]:
    """The least and the most of ``count`` elements that may be kept at ``rate``, both included."""
    return int(_stats().binom.ppf(FALSE_ALARM / 2, count, rate)), int(_stats().binom.isf(FALSE_ALARM / 2, count, rate))


def power(count: int, rate: float, actual: float) -> float:
    """The probability that a keep rate of ``actual`` instead of ``rate`` is found among ``count`` elements."""
    least, most = bounds(count, rate)
    return float(_stats().binom.cdf(least - 1, count, actual) + _stats().binom.sf(most, count, actual))


def detectable(count: int, rate: float, power: float = 0.999) -> float:
    """The smallest relative error of the keep rate that is found with this probability (normal approximation)."""
    reach = _stats().norm.isf(FALSE_ALARM / 2) + _stats().norm.ppf(power)
    return float(reach * (rate * (1 - rate) / count) ** 0.5 / rate) if rate else 0.0


def check_random(problem: Problem, variant: Variant, configs: Sequence[Config]) -> Iterator[Finding]:
    """Every check of randomness of a variant on one problem; ``configs`` must all draw the same mask."""
    from . import variants

    subject = Subject(variant.name, problem.direction, problem.case, configs[0])
    problem = problem.with_inputs(_without_zeros(problem.inputs))
    random, seed = problem.work.random, problem.seed

    def masked(inputs: Mapping[str, Any], config: Config = configs[0]) -> torch.Tensor:
        outputs, _ = variants.launch(problem.with_inputs(inputs), variant, config, run=0)
        return random.mask(inputs, outputs)

    try:
        inputs = dict(problem.inputs)
        mask = masked(inputs)
        yield stated(SAME_SEED, subject, _differs(mask, masked, inputs, configs), seed)
        rate = 1.0 - float(inputs[random.probability])
        yield stated(KEEP_RATE, subject, _unlikely("kept", mask, rate), seed)
        other = masked(inputs | {random.seed: inputs[random.seed] + 1})
        apart = _unlikely("different from those of the next seed", mask != other, 2 * rate * (1 - rate))
        yield stated(OTHER_SEED, subject, apart, seed)
        for probability in _EXTREMES:
            extreme = problem.with_inputs(inputs | {random.probability: probability})
            outputs, _ = variants.launch(extreme, variant, configs[0], run=0)
            reason = _unlikely("kept", random.mask(extreme.inputs, outputs), 1 - probability)
            prefix = f"with {random.probability} = {probability:g}: "
            if reason:
                yield stated(EXTREME_RATES, subject, prefix + reason, seed)
            else:
                yield judged(EXTREME_RATES, subject, extreme.judge(outputs), seed, prefix)
    except variants.LaunchFailed as error:
        yield Finding(SAME_SEED, subject, ERROR, str(error), seed)


def check_agreement(problem: Problem, forward: tuple[Variant, Config], backward: tuple[Variant, Config]):
    """Whether a backward variant drops what the forward pass dropped, given its seed and probability."""
    from . import variants

    declaration: Declaration = problem.declaration
    subject = Subject(backward[0].name, "backward", problem.case, backward[1])
    try:
        there = Problem(declaration, "forward", problem.case, problem.device, problem.seed)
        there = there.with_inputs(_without_zeros(there.inputs))
        ahead, behind = declaration.forward.random, declaration.backward.random
        given = {behind.seed: there.inputs[ahead.seed], behind.probability: there.inputs[ahead.probability]}
        drawn = draw(declaration.backward, problem.case, problem.device, problem.seed)
        here = problem.with_inputs(_without_zeros(drawn) | given)
        mask = ahead.mask(there.inputs, variants.launch(there, *forward, run=0)[0])
        other = behind.mask(here.inputs, variants.launch(here, *backward, run=0)[0])
    except variants.LaunchFailed as error:
        yield Finding(MASKS_AGREE, subject, ERROR, str(error), problem.seed)
        return
    reason = ""
    if mask.shape != other.shape:
        reason = f"the forward mask has shape {tuple(mask.shape)}, the backward one {tuple(other.shape)}"
    elif bool((mask != other).any()):
        reason = f"backward drops others than forward in {describe(mask != other)}"
    yield stated(MASKS_AGREE, subject, reason, problem.seed)


def _without_zeros(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The inputs with 1 for 0, so that every dropped element shows."""
    return {
        name: torch.where(value == 0, torch.ones_like(value), value)
        if isinstance(value, torch.Tensor) and value.is_floating_point()
        else value
        for name, value in inputs.items()
    }


def _differs(mask: torch.Tensor, masked: Any, inputs: Mapping[str, Any], configs: Sequence[Config]) -> str:
    for config in configs:
        again = masked(inputs, config)
        if again.shape != mask.shape or bool((again != mask).any()):
            place = describe(again != mask) if again.shape == mask.shape else f"its shape {tuple(again.shape)}"
            how = "a second launch" if config == configs[0] else f"config {dict(config)}"
            return f"with the same seed {how} keeps others: the mask differs in {place}"
    return ""


def _unlikely(what: str, mask: torch.Tensor, rate: float) -> str:
    """What is wrong with a mask whose elements are to be True independently at this rate, or ``""``."""
    count, found = mask.numel(), int(mask.sum())
    least, most = bounds(count, rate)
    if least <= found <= most:
        return ""
    return f"{found} of {count} elements are {what} ({found / count:.4g}), where {least} to {most} were expected"
