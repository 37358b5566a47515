"""Which variant and config a call of a public function runs: the tuned one for this GPU, else the default.

Tuned configs are small generated files, ``kernels/tuned/<gpu>.json``, written by ``python -m atlas export``.  The rule:
of the entries for this device, kernel, pass and dtype that are certified for the dtype and whose variant supports the
call's case, the one whose sizes are nearest (sum of absolute log2 ratios; flags must be equal, a `layout` should be).

Certified: this config of this variant validated on the edge cases of this dtype, not only where it was timed.  An entry
that does not say so (in a file from before there were certificates) is passed over.  Nothing is tuned behind the
caller's back.

A stage that times a kernel which calls others hands it the configs that those were tuned to in the same run, in a file
of the same form (:data:`VARIABLE`).
"""

from __future__ import annotations

import functools
import itertools
import math
import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..reading import strict
from . import tuned
from .hardware import GPU, gpu_of

if TYPE_CHECKING:
    from .cases import Case
    from .types import Config, Declaration, Variant

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
def _entries(device_name: str) -> list[dict[str, Any]]:
    """The entries for the device with this driver name; none for an unknown one."""
    given = os.environ.get(VARIABLE)
    _, first = _first_match([Path(given)] if given else [], device_name)
    theirs = {entry["kernel"] for entry in first}
    return first + [entry for entry in exported(device_name)[1] if entry["kernel"] not in theirs]


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


LAYOUT = 3.0
"""What each operand in another order adds to the distance of two cases: as much as one size 8 times too large.

More than 0, so that of two cases of one size the one in the call's order is taken: by the best config of operands by
rows, 1024 each way in fp32 with B along k take 2.8 times as long as by their own (H200).  And not much more, since most
orders cost little and sizes do not: the best config of that case, for few tiles, takes 1.08 times the best one's time
at 4096 each way, and that of 64 batched products along k = 128 1.07 times at k = 1024.
"""


def distance(sizes: dict[str, Any], other: dict[str, Any]) -> float:
    """How far two cases' sizes are apart: sum of \\|log2 ratio\\|; infinite where names or flags differ.

    ``layout``, the order of operands in memory, may differ: a letter for each, N (by rows) where it is left out.
    1, 1.0 and True are three values.
    """
    if sizes.keys() - {"layout"} != other.keys() - {"layout"}:
        return math.inf
    if any(type(sizes[name]) is not type(other[name]) for name in sizes.keys() & other.keys()):
        return math.inf
    orders = itertools.zip_longest(sizes.get("layout", ""), other.get("layout", ""), fillvalue="N")
    total = LAYOUT * sum(one != another for one, another in orders)
    for name, value in sizes.items():
        if name == "layout":
            continue
        if isinstance(value, bool | str) or not value or not other[name]:
            total += 0.0 if value == other[name] else math.inf
        else:
            total += abs(math.log2(value / other[name]))
    return total


@dataclass(frozen=True)
class Choice:
    """What a call runs, and why."""

    variant: Variant
    config: Config
    entry: dict[str, Any] | None
    """The tuned entry it comes from; None where it is the default."""
    passed_over: tuple[tuple[dict[str, Any], str], ...]
    """Nearer entries, and why they are not taken."""


@functools.lru_cache(maxsize=4096)
def _choose(declaration: Declaration, direction: str, case: Case, gpu: GPU) -> tuple[Variant, Config]:
    made = explained(declaration, direction, case, gpu, _entries(gpu.device_name))
    return made.variant, made.config


def explained(
    declaration: Declaration, direction: str, case: Case, gpu: GPU, entries: Sequence[dict[str, Any]]
) -> Choice:
    """The choice for ``case`` on ``gpu`` out of these entries of a file of tuned configs; raises as :func:`choose`."""
    work = declaration.passes[direction]
    sizes = dict(case.sizes)
    near = sorted(
        (
            (distance(sizes, entry["sizes"]), position, entry)
            for position, entry in enumerate(entries)
            if (entry["kernel"], entry["direction"], entry["dtype"]) == (declaration.name, direction, case.dtype)
            and entry.get("certificate")
        ),
        key=lambda item: item[:2],
    )
    passed_over = []
    for apart, _, entry in near:
        if math.isinf(apart):
            break  # a flag differs, in this one and in all that follow
        variant = next((v for v in work.variants if v.name == entry["variant"]), None)
        if variant is None or not _in_space(entry["config"], variant):
            reason = "the entry is older than the kernel's variants"
        else:
            reason = variant.unsupported(case, gpu) or variant.fits(entry["config"], case, gpu)
        if not reason:
            return Choice(variant, entry["config"], entry, tuple(passed_over))
        passed_over.append((entry, reason))
    variant = work.preferred(case, gpu)
    if variant is None:
        reasons = "; ".join(f"{v.name}: {v.unsupported(case, gpu)}" for v in work.variants)
        raise NotImplementedError(f"{declaration.name} {direction} has no variant for {case} on {gpu.name}: {reasons}")
    return Choice(variant, _default(variant, case, gpu), None, tuple(passed_over))


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

    Raises NotImplementedError, with each variant's reason, where no variant supports the case.
    """
    return _choose(declaration, direction, case, gpu_of(device))
