"""What may be tried: every config of every variant that supports a case, less those the build ruled out."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from ..identity import kernel

if TYPE_CHECKING:  # a worker is started before its parent imports torch
    from ..declaration import GPU, Case, Config, Declaration, Pass

INTERPRETED = 3
"""Configs of a variant and case that the interpreter runs: the default and two spread over the space."""

_BYTES_PER_SECOND, _FLOPS_PER_SECOND = 3e12, 3e14
_TRIAL_SECONDS, _TRIAL_SAMPLES = 5e-3, 10


@dataclass(frozen=True)
class Candidate:
    """One variant with one config; equal where both are, so that it serves as a key."""

    variant: str
    items: tuple[tuple[str, Any], ...]

    @staticmethod
    def of(variant: str, config: Config) -> Candidate:
        """The candidate of a variant's name and a config."""
        return Candidate(variant, tuple(config.items()))

    @property
    def config(self) -> dict[str, Any]:
        """The config as a launch takes it."""
        return dict(self.items)

    def __str__(self) -> str:
        return f"{self.variant} {' '.join(f'{name}={value}' for name, value in self.items)}"


@dataclass(frozen=True)
class Problem:
    """One pass on one case, and the candidates for it.

    ``candidates`` starts with ``defaults``, those of the variants that have one that fits; ``default`` is what an
    untuned call of the public function would run, or None where that does not fit.  ``space`` counts all configs before
    any was ruled out; ``left_out`` those the interpreter has no time for.  ``presumed_seconds`` is a guess
    of what its trials take, good for putting problems in order and for nothing else.
    """

    direction: str
    case: Case
    candidates: tuple[Candidate, ...]
    defaults: frozenset[Candidate]
    default: Candidate | None
    space: int
    left_out: int = 0
    presumed_seconds: float = 0.0

    @property
    def without_sizes(self) -> Problem:
        """What a certificate is about: the pass and the dtype, whatever the case."""
        return replace(self, case=replace(self.case, sizes=()))

    @property
    def ruled_out(self) -> int:
        """Configs that the build says cannot run."""
        return self.space - self.left_out - len(self.candidates)

    def __str__(self) -> str:
        return f"{self.direction} {self.case}"


class Ruling:
    """What a build document says cannot run, of the variants that are still what was built.

    A build compiles once for all cases that share a binary, so a case's own entry may be missing: a config is then
    ruled out only if every entry of its variant, direction and dtype says so.
    """

    def __init__(self, document: Mapping[str, Any] | None = None, identities: Mapping[str, str] = MappingProxyType({})):
        self._entries: dict[tuple[Any, ...], dict[str, str]] = {}
        built = document.get("identities", {}) if document is not None else {}
        for entry in document["configs"] if document is not None else ():
            name = kernel.name_of(entry["direction"], entry["variant"])
            if kernel.find(built, name) is None or kernel.find(built, name) != kernel.find(identities, name):
                continue
            key = (entry["direction"], entry["variant"], entry["dtype"], _text(entry["config"]))
            reason = f"{entry['status']} by the build: {entry['reason']}" if _bad(entry) else ""
            self._entries.setdefault(key, {})[_text(entry["sizes"])] = reason

    def out(self, direction: str, case: Case, candidate: Candidate) -> str:
        """Why ``candidate`` cannot run ``case``, or ``""``; an unknown config may run."""
        key = (direction, candidate.variant, case.dtype, _text(candidate.config))
        reasons = self._entries.get(key, {})
        own = reasons.get(_text(dict(case.sizes)))
        if own is not None:
            return own
        return next(iter(reasons.values())) if reasons and all(reasons.values()) else ""


def problems(declaration: Declaration, gpu: GPU, ruling: Ruling, cases: Sequence[Case] | None = None) -> list[Problem]:
    """Every (pass, case) that any variant supports, with its candidates, in the order of the cases (None: the sweep).

    Defaults are candidates even where the build ruled them out: untuned calls run them, so their failure is a result.
    """
    from ..host import runtime

    found = []
    for direction, work in declaration.passes.items():
        for case in runtime.sweep(declaration, gpu) if cases is None else cases:
            problem = _problem(direction, work, case, gpu, ruling)
            if problem is not None:
                found.append(problem)
    return found


def unsupported(declaration: Declaration, gpu: GPU) -> str:
    """Each variant's reason for not running the sweep's first case: why there are no problems."""
    from ..host import runtime

    cases = runtime.sweep(declaration, gpu)
    if not cases:
        return f"the sweep has no case for {gpu.name}"
    variants = [variant for work in declaration.passes.values() for variant in work.variants]
    return "; ".join(f"{variant.name}: {variant.unsupported(cases[0], gpu)}" for variant in variants)


def _problem(direction: str, work: Pass, case: Case, gpu: GPU, ruling: Ruling) -> Problem | None:
    variants = [variant for variant in work.variants if not variant.unsupported(case, gpu)]
    if not variants:
        return None
    defaults: list[Candidate] = []
    others: list[Candidate] = []
    space = left_out = 0
    for variant in variants:
        configs = [Candidate.of(variant.name, config) for config in variant.configs(case, gpu)]
        config = variant.default(case, gpu)
        # Keys in the order of the space, so that the default equals its point there.
        ordered = {name: config[name] for name in variant.space if name in config} | dict(config)
        default = Candidate.of(variant.name, ordered)
        if not variant.fits(default.config, case, gpu):
            defaults.append(default)
            space += default not in configs
        space += len(configs)
        rest = [c for c in configs if c != default and not ruling.out(direction, case, c)]
        chosen = spread(rest, INTERPRETED - 1) if gpu.functional else rest
        left_out += len(rest) - len(chosen)
        others += chosen
    if not defaults and not others:
        return None
    default = next((c for c in defaults if c.variant == variants[0].name), None)
    candidates = (*defaults, *others)
    presumed = len(candidates) * _presumed_seconds(work, case)
    return Problem(direction, case, candidates, frozenset(defaults), default, space, left_out, presumed)


def longest_first(problems: Iterable[Problem]) -> list[Problem]:
    """The order of the queue, so that no long problem is left when most devices have nothing to do."""
    return sorted(problems, key=lambda problem: -problem.presumed_seconds)


def _presumed_seconds(work: Pass, case: Case) -> float:
    """One trial, were it as fast as a large GPU's roofs and of a handful of samples."""
    roof = max(sum(work.bytes(case).values()) / _BYTES_PER_SECOND, sum(work.flops(case).values()) / _FLOPS_PER_SECOND)
    return _TRIAL_SECONDS + _TRIAL_SAMPLES * roof


def spread(candidates: Sequence[Candidate], count: int) -> list[Candidate]:
    """``count`` candidates evenly spread over the sequence, its ends included; all where there are no more."""
    if len(candidates) <= count:
        return list(candidates)
    step = (len(candidates) - 1) / max(1, count - 1)
    return [candidates[round(index * step)] for index in range(count)]


def _bad(entry: Mapping[str, Any]) -> bool:
    return entry["status"] in ("pruned", "failed")


def _text(value: Mapping[str, Any]) -> str:
    return json.dumps(value, sort_keys=True)
