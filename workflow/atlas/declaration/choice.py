"""Which variant and config a call of a public function runs: a tuned one for this GPU where that is surely faster.

Tuned configs are small generated files, ``kernels/tuned/<gpu>.json``, written by ``python -m atlas export`` with what
the tuner timed (:mod:`.timings`).  The rule: a case that was tuned takes the config that won there.  Any other one
takes, of the configs that won some case, the one that gains most by :mod:`.expected`, if it gains more than the
estimate may be wrong by; else the default.

All are of this kernel, pass and dtype, are certified for the dtype, and can be launched for the call's case.  Those
that won on another GPU of the same board (:func:`.timings.board`) are weighed with the others, by what was timed there;
no case counts as tuned for them.
Certified: this config of this variant validated on the edge cases of this dtype, not only where it was timed.  An entry
that does not say so (in a file from before there were certificates) is passed over.  Nothing is tuned behind the
caller's back.

A stage that times a kernel which calls others hands it the configs that those were tuned to in the same run, in a file
of the same form (:data:`VARIABLE`).
"""

from __future__ import annotations

import functools
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..reading import strict
from . import tuned
from .hardware import GPU, INTERPRETER, gpu_of

if TYPE_CHECKING:
    from .cases import Case
    from .expected import Estimate
    from .likeness import Candidate
    from .timings import Timings
    from .types import Config, Declaration, Pass, Variant

TUNED = Path(find_spec("kernels").origin).parent / "tuned"
"""Where exported configs lie, beside the kernels they belong to."""


VARIABLE = "KERNEL_ATLAS_TUNED"
"""Names a file in the form of ``kernels/tuned/<gpu>.json`` that is read instead for the kernels it has entries of.

A process reads it once, at the first choice.
"""


def exported(device_name: str) -> tuple[str, list[dict[str, Any]]]:
    """The name of the file in ``kernels/tuned`` for the device with this driver name, and its entries.

    ``""`` and none for a device that has no file.
    """
    return _first_match(sorted(TUNED.glob("*.json")), device_name)


@functools.cache
def _entries(device_name: str) -> tuple[str, list[dict[str, Any]]]:
    """The device's file in ``kernels/tuned``, and its entries or those that a stage hands on; else ``""`` and none."""
    given = os.environ.get(VARIABLE)
    _, first = _first_match([Path(given)] if given else [], device_name)
    theirs = {entry["kernel"] for entry in first}
    name, others = exported(device_name)
    return name, first + [entry for entry in others if entry["kernel"] not in theirs]


@functools.cache
def _timings(path: Path) -> dict[str, Timings]:
    """What the file says that was timed, by pass; what is wrong with it is a warning."""
    from . import timings  # when it is wanted: importing kernels takes no longer for it

    found, fault = timings.read(path)
    if fault:
        warnings.warn(
            f"{path}: {fault}: not used, so calls at cases that were not tuned run default configs; "
            "write it again with `python -m atlas export`",
            RuntimeWarning,
            stacklevel=2,
        )
    return found


def timings_file(gpu: str, kernel: str) -> Path:
    """Where export writes what was timed of a kernel on a GPU."""
    return TUNED / "timings" / f"{gpu}-{kernel}.json"


def elsewhere(gpu: GPU, own: str, kernel: str) -> dict[str, dict[str, Timings]]:
    """What was timed of a kernel on other GPUs that ``gpu`` may learn from, by their names and pass.

    ``own`` is the name that the GPU itself goes by, ``""`` for one that has no file.  None where a stage hands configs
    on (:data:`VARIABLE`): its document says which were used, and these are none of them.
    """
    if os.environ.get(VARIABLE):
        return {}
    from . import timings

    ending = timings_file("", kernel).name
    found = sorted(timings_file("", kernel).parent.glob(f"*{ending}"))
    names = {path.name.removesuffix(ending): path for path in found}
    return {name: timings.read_if_alike(path, gpu) for name, path in names.items() if name != own}


def _first_match(paths: list[Path], device_name: str) -> tuple[str, list[dict[str, Any]]]:
    """Name and entries of the first of these files that is for the device; ``""`` and none where none is.

    What is wrong with a file is a warning: a model that trains shall not end because its configs cannot be read.
    """
    for path in paths if device_name else []:
        pattern, entries, faults = tuned.read(path)
        if faults:
            said = f"{faults[0]}{f', and {len(faults) - 1} more' if len(faults) > 1 else ''}"
            warnings.warn(
                f"{path}: {said}: not used, so calls run default configs; write it again with `python -m atlas export`",
                RuntimeWarning,
                stacklevel=2,
            )
        if pattern and strict.pattern_found(pattern, device_name):
            return path.name, entries
    return "", []


SURE = 4.0
"""Standard errors by which a config must be expected to be faster than the default to be taken in its place.

Where each case is left out in turn, the H200's regret is 5.4 % at the 95th percentile and the choice 0.01 % ahead of
the default over all; by two errors 5.8 % and 0.04 % behind, by three 5.8 % and 0.03 % behind.
A gain of a few per cent at neighbours of 100 us is enough; of 10 to 40 us, where 0.4 us of a timing count, 20 % is not.
"""


def same_case(sizes: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two cases of one dtype are one: 1, 1.0 and True are three values.

    ``layout``, the order of operands in memory, has a letter for each, N (by rows) where it is left out.
    """
    return _told_apart(sizes) == _told_apart(other)


def _told_apart(sizes: Mapping[str, Any]) -> dict[str, tuple[type, Any]]:
    written = {name: value.rstrip("N") if name == "layout" else value for name, value in sizes.items()}
    return {name: (type(value), value) for name, value in written.items() if (name, value) != ("layout", "")}


@dataclass(frozen=True)
class Choice:
    """What a call runs, and why."""

    variant: Variant
    config: Config
    entry: dict[str, Any] | None = None
    """The entry of the very case; None where the case was not tuned, or that entry is passed over."""
    passed_over: tuple[tuple[dict[str, Any], str], ...] = ()
    """Entries that the call cannot run, and why not."""
    considered: tuple[Estimate, ...] = ()
    """What was expected of configs that won other cases, the surest gain first; none for a case that was tuned."""

    @property
    def estimate(self) -> Estimate | None:
        """What was expected of the config; None for the default and for a case that was tuned."""
        return next(
            (one for one in self.considered if (one.variant, one.config) == (self.variant.name, self.config)), None
        )


@functools.lru_cache(maxsize=4096)
def _choose(declaration: Declaration, direction: str, case: Case, gpu: GPU) -> tuple[Variant, Config]:
    name, entries = _entries(gpu.device_name)
    own = Path(name).stem
    timed = functools.partial(_timings, timings_file(own, declaration.name)) if name else dict
    others = functools.partial(_elsewhere, gpu, own, declaration.name)
    made = explained(declaration, direction, case, gpu, entries, timed, others)
    return made.variant, made.config


@functools.cache
def _elsewhere(gpu: GPU, own: str, kernel: str) -> dict[str, dict[str, Timings]]:
    return elsewhere(gpu, own, kernel)


def explained(
    declaration: Declaration,
    direction: str,
    case: Case,
    gpu: GPU,
    entries: Sequence[dict[str, Any]],
    timed: Callable[[], Mapping[str, Timings]] = dict,
    others: Callable[[], Mapping[str, Mapping[str, Timings]]] = dict,
) -> Choice:
    """The choice for ``case`` on ``gpu`` out of these entries of a file of tuned configs; raises as :func:`choose`.

    ``timed`` gives what was timed by pass, ``others`` what :func:`elsewhere` was; both are called where no entry is of
    the very case.
    """
    work = declaration.passes[direction]
    sizes = dict(case.sizes)
    passed_over: list[tuple[dict[str, Any], str]] = []
    able: list[tuple[Variant, dict[str, Any]]] = []
    own = [
        entry
        for entry in entries
        if (entry["kernel"], entry["direction"], entry["dtype"]) == (declaration.name, direction, case.dtype)
        and entry.get("certificate")
    ]
    seen: list[Candidate] = []
    for entry in sorted(own, key=lambda one: not same_case(sizes, one["sizes"])):
        if (entry["variant"], entry["config"]) in seen:
            continue
        seen.append((entry["variant"], entry["config"]))
        variant, reason = launchable(work, entry, case, gpu)
        if reason:
            passed_over.append((entry, reason))
        elif same_case(sizes, entry["sizes"]):
            return Choice(variant, entry["config"], entry, tuple(passed_over))
        else:
            able.append((variant, entry))
    default = untuned(work, case, gpu)
    if default is None:
        reasons = "; ".join(f"{v.name}: {v.unsupported(case, gpu)}" for v in work.variants)
        raise NotImplementedError(f"{declaration.name} {direction} has no variant for {case} on {gpu.name}: {reasons}")
    variant, config = default
    known = {name: passes[direction] for name, passes in others().items() if direction in passes}
    able += _of_others(work, known, seen, case, gpu)
    considered = _considered(timed().get(direction), known, case, (variant.name, config), able) if able else []
    if considered and at_worst(considered[0]) < 0:
        variant, config = work.variant(considered[0].variant), considered[0].config
    return Choice(variant, config, None, tuple(passed_over), tuple(considered))


def at_worst(one: Estimate) -> float:
    """The logarithm of a config's time over the default's, if it is slower than expected by :data:`SURE` errors."""
    return one.log_ratio + SURE * one.error


def untuned(work: Pass, case: Case, gpu: GPU) -> tuple[Variant, Config] | None:
    """What a call runs where nothing is known to be faster: the first variant that supports the case, by default."""
    variant = work.preferred(case, gpu)
    return None if variant is None else (variant, _default(variant, case, gpu))


def launchable(work: Pass, entry: Mapping[str, Any], case: Case, gpu: GPU) -> tuple[Any, str]:
    """The variant of an entry, and why it cannot run the case with the entry's config, or ``""``."""
    variant = next((v for v in work.variants if v.name == entry["variant"]), None)
    if variant is None or not _in_space(entry["config"], variant):
        return None, "the entry is older than the kernel's variants"
    return variant, variant.unsupported(case, gpu) or variant.fits(entry["config"], case, gpu)


def _of_others(
    work: Pass, known: Mapping[str, Timings], seen: Sequence[Candidate], case: Case, gpu: GPU
) -> list[tuple[Variant, dict[str, Any]]]:
    """The configs with a certificate for the dtype from other GPUs that the call can run, but for those seen."""
    configs = [
        one
        for timings in known.values()
        for one, dtypes in zip(timings.configs, timings.certified, strict=False)
        if case.dtype in dtypes and one not in seen
    ]
    entries = [{"variant": variant, "config": config} for variant, config in configs]
    launched = [(launchable(work, entry, case, gpu), entry) for entry in entries]
    return [(variant, entry) for (variant, reason), entry in launched if not reason]


def _considered(
    own: Timings | None,
    others: Mapping[str, Timings],
    case: Case,
    default: Candidate,
    able: Sequence[tuple[Variant, Mapping[str, Any]]],
) -> list[Estimate]:
    """What is expected of the configs of these entries that are timed and not the default, the surest gain first."""
    from . import expected, timings

    found = timings.joined(own, *others.items()) if others else own
    if found is None:
        return []
    candidates = [(variant.name, entry["config"]) for variant, entry in able]
    candidates = [one for place, one in enumerate(candidates) if one != default and one not in candidates[:place]]
    candidates = [one for one in candidates if one in found.configs]
    told = expected.estimates(found, case.dtype, dict(case.sizes), default, candidates)
    return sorted(told, key=at_worst)


def _in_space(config: Config, variant: Variant) -> bool:
    """Whether a config is of the variant's space: of its names, each with one of the values, in their types."""
    return set(config) == set(variant.space) and all(
        any(type(value) is type(one) and value == one for one in variant.space[name]) for name, value in config.items()
    )


def _default(variant: Variant, case: Case, gpu: GPU) -> Config:
    """The variant's default; where it does not fit (a GPU of less shared memory), the config most like it that does."""
    default = variant.default(case, gpu)
    if not variant.fits(default, case, gpu):
        return default
    others = variant.configs(case, gpu)
    return min(others, key=lambda other: sum(other[name] != default[name] for name in default), default=default)


def choose(declaration: Declaration, direction: str, case: Case, device: Any) -> tuple[Variant, Config]:
    """The variant and config to run for ``case`` on ``device`` (a torch device).

    Raises NotImplementedError, with each variant's reason, where no variant supports the case; RuntimeError for
    tensors of the host outside the interpreter.
    """
    gpu = gpu_of(device)
    if gpu is INTERPRETER and getattr(device, "type", device) == "cpu" and not _interpreted():
        raise RuntimeError(
            f"{declaration.name} runs on a GPU, and its tensors are on the host: move them there (x.cuda()), or set "
            "TRITON_INTERPRET=1 before Python starts to have kernels interpreted, slowly"
        )
    return _choose(declaration, direction, case, gpu)


def _interpreted() -> bool:
    return os.environ.get("TRITON_INTERPRET", "0") not in ("", "0")
