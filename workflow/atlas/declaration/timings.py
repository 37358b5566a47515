"""Read what the tuner timed of one kernel on one GPU: ``kernels/tuned/timings/<gpu>-<kernel>.json``, made by export.

Of each pass the configs that won a case or are the default of one, and by case their times.  Read when the first call
of the kernel wants a config; as with tuned configs, what is wrong with a file is told, and it gives no timings.  A GPU
of the same architecture and as many multiprocessors may learn from it, too (:func:`joined`).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..reading import strict
from . import likeness

if TYPE_CHECKING:
    from .hardware import GPU
    from .likeness import Candidate

FORM = 1
"""The version of the file's form; one of another is not read."""

MOST = 10_000
"""Of configs, and of cases, of one pass."""

_PASSES = ("forward", "backward")


@dataclass(frozen=True)
class Timed:
    """One case: the place of its default among the pass's configs, and microseconds by the place of a config."""

    dtype: str
    sizes: Mapping[str, Any]
    default: int
    us: Mapping[int, float]
    gpu: str = ""
    """The GPU it was timed on, where that is another one than the call's."""


@dataclass(frozen=True)
class Trial:
    """What one config took beside the default of the same case: the places of all three, and the times' logarithm.

    ``variance`` is what the model expects of that logarithm beforehand, ``noise`` what is the trial's own.
    """

    case: int
    config: int
    default: int
    log_ratio: float
    variance: float
    noise: float


@dataclass(frozen=True, eq=False)
class Timings:
    """Of one pass of a kernel on one GPU, or on several that are alike; two are equal if they are one object."""

    configs: tuple[Candidate, ...]
    cases: tuple[Timed, ...]
    certified: tuple[frozenset[str], ...] = ()
    """Of each config the dtypes that it has a certificate for; empty where the file does not say."""
    _alike: dict[tuple[int, int], float] = field(default_factory=dict, repr=False)
    _near: dict[tuple[int, int], float] = field(default_factory=dict, repr=False)

    @functools.cached_property
    def trials(self) -> tuple[Trial, ...]:
        """Every timing of a config that is not its case's default."""
        found = []
        for place, case in enumerate(self.cases):
            best = min(case.us.values())
            logs = {
                config: likeness.SATURATES * math.tanh(math.log(us / best) / likeness.SATURATES)
                for config, us in case.us.items()
            }
            noise = likeness.NOISE**2 + (likeness.TICK_US / best) ** 2
            for config, log in logs.items():
                variance = 2 * likeness.SCALE**2 * (1 - self._configs_alike(config, case.default))
                if variance:
                    log -= logs[case.default]
                    found.append(Trial(place, config, case.default, log, variance, noise))
        return tuple(found)

    def covariance(self, one: Trial, other: Trial) -> float:
        """Of the logarithms of two trials, with their noise."""
        alike = (
            self._configs_alike(one.config, other.config)
            - self._configs_alike(one.config, other.default)
            - self._configs_alike(one.default, other.config)
            + self._configs_alike(one.default, other.default)
        )
        noise = (likeness.SHARED**2 if one.case == other.case else 0.0) + (one.noise if one is other else 0.0)
        return likeness.SCALE**2 * self._cases_near(one.case, other.case) * alike + noise

    def _configs_alike(self, one: int, other: int) -> float:
        key = (one, other) if one < other else (other, one)
        if key not in self._alike:
            self._alike[key] = likeness.alike(self.configs[one], self.configs[other])
        return self._alike[key]

    def _cases_near(self, one: int, other: int) -> float:
        key = (one, other) if one < other else (other, one)
        if key not in self._near:
            case = self.cases[one]
            self._near[key] = likeness.near(case.dtype, case.sizes, self.cases[other], case.gpu)
        return self._near[key]


def board(gpu: GPU) -> str:
    """What two GPUs must share for one to learn from the other's timings: ``cuda 90, 132 sms``.

    Code is compiled for the architecture; how many programs run at once hangs on the multiprocessors.
    """
    return f"{gpu.backend} {gpu.arch}, {gpu.sms} sms"


@functools.lru_cache(maxsize=64)
def joined(own: Timings | None, *others: tuple[str, Timings]) -> Timings:
    """The timings of a GPU, if there are any, with those of others, each with its name.

    What is certified is left out: for its own configs a GPU has a file of entries.  Remembered, as what the trials
    have in common is with the timings: a choice for the next shape finds it there.
    """
    configs = list(own.configs if own else ())
    cases = list(own.cases if own else ())
    for gpu, timings in others:
        configs += [one for one in timings.configs if one not in configs]
        places = [configs.index(one) for one in timings.configs]
        for case in timings.cases:
            us = {places[place]: us for place, us in case.us.items()}
            cases.append(replace(case, default=places[case.default], us=us, gpu=gpu))
    return Timings(tuple(configs), tuple(cases))


def read(path: Path) -> tuple[dict[str, Timings], str]:
    """The timings by pass, and what is wrong with the file, which then gives none; ``""`` where there is no file."""
    try:
        document = strict.load_json(path)
    except FileNotFoundError:
        return {}, ""
    except strict.Unreadable as error:
        return {}, str(error)
    try:
        return parsed(document), ""
    except Misformed as error:
        return {}, str(error)


class Misformed(ValueError):
    """What of a file's content is not of its form, and where."""


def read_if_alike(path: Path, gpu: GPU) -> dict[str, Timings]:
    """The timings of a file of another GPU that this one may learn from; none where it may not, or the file is wrong.

    What is wrong is told where that GPU's own calls read it.
    """
    try:
        document = strict.load_json(path)
        alike = isinstance(document, dict) and document.get("board") == board(gpu)
        return parsed(document) if alike else {}
    except (FileNotFoundError, strict.Unreadable, Misformed):
        return {}


def parsed(document: Any) -> dict[str, Timings]:
    """The timings of a file's content by pass; :class:`Misformed` for content of another form."""
    if not isinstance(document, dict) or document.get("form") != FORM:
        raise Misformed(f"is no file of timings of form {FORM}")
    passes = document.get("passes")
    if not isinstance(passes, dict) or not passes.keys() <= set(_PASSES):
        raise Misformed(f"key 'passes': {strict.shown(passes)} is no mapping of {' and '.join(_PASSES)}")
    return {direction: _pass(one, f"passes.{direction}") for direction, one in passes.items()}


def _pass(one: Any, where: str) -> Timings:
    configs, cases = (_list(one, key, where) for key in ("configs", "cases"))
    return Timings(
        tuple(_config(config, f"{where}.configs.{place}") for place, config in enumerate(configs)),
        tuple(_case(case, len(configs), f"{where}.cases.{place}") for place, case in enumerate(cases)),
        tuple(_certified(config, f"{where}.configs.{place}") for place, config in enumerate(configs)),
    )


def _list(one: Any, key: str, where: str) -> list[Any]:
    found = one.get(key) if isinstance(one, dict) else None
    if not isinstance(found, list) or len(found) > MOST:
        raise Misformed(f"key '{where}.{key}': {strict.shown(found)} is no list of at most {MOST}")
    return found


def _config(one: Any, where: str) -> Candidate:
    variant, config = (one.get("variant"), one.get("config")) if isinstance(one, dict) else (None, None)
    settings = isinstance(config, dict) and all(type(v) in (bool, int, float, str) for v in config.values())
    if not isinstance(variant, str) or not settings:
        raise Misformed(f"key '{where}': {strict.shown(one)} is no variant with a config")
    return variant, config


def _certified(one: Mapping[str, Any], where: str) -> frozenset[str]:
    dtypes = one.get("certified", [])
    if not isinstance(dtypes, list) or not all(isinstance(dtype, str) for dtype in dtypes):
        raise Misformed(f"key '{where}.certified': {strict.shown(dtypes)} is no list of dtypes")
    return frozenset(dtypes)


def _case(one: Any, configs: int, where: str) -> Timed:
    if not isinstance(one, dict) or not isinstance(one.get("dtype"), str) or not isinstance(one.get("sizes"), dict):
        raise Misformed(f"key '{where}': {strict.shown(one)} is no case with a dtype and sizes")
    if not all(type(v) in (bool, str) or (type(v) in (int, float) and v >= 0) for v in one["sizes"].values()):
        raise Misformed(f"key '{where}.sizes': {strict.shown(one['sizes'])} is no mapping of sizes")
    times, default = one.get("us"), one.get("default")
    if not isinstance(times, list) or len(times) != configs:
        raise Misformed(f"key '{where}.us': {strict.shown(times)} is no list of {configs} times")
    if not all(us is None or (type(us) in (int, float) and us > 0) for us in times):
        raise Misformed(f"key '{where}.us': {strict.shown(times)} are not times in microseconds or null")
    if type(default) is not int or not 0 <= default < configs or times[default] is None:
        raise Misformed(f"key '{where}.default': {strict.shown(default)} is not the place of a config with a time")
    return Timed(one["dtype"], one["sizes"], default, {place: us for place, us in enumerate(times) if us is not None})
