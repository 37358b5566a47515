"""Which variants an older Triton runs, that of an environment which a GPU names: it is asked to compile them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from ..declaration import GPU, Case, Declaration, Variant
from ..host.older_triton import NAME, strictly
from ..host.runtime import meta_inputs
from .compiled import compile_config, complaint
from .offline import compile_only


def mark(declaration: Declaration) -> None:
    """Have the variants of a declaration say of each case whether this Triton can run it, and why not.

    The default config is compiled for that, once for all cases that share it: other configs may fail, and are rows of
    their own.
    """
    for direction, work in declaration.passes.items():
        for variant in work.variants:
            asked = functools.partial(_handles, variant.handles, declaration, direction, variant, {})
            object.__setattr__(variant, "handles", asked)


def _handles(
    handles: Callable[[Case, GPU], str],
    declaration: Declaration,
    direction: str,
    variant: Variant,
    known: dict[Any, str],
    case: Case,
    gpu: GPU,
) -> str:
    """Why a case is not handled: as the variant says, or since this Triton does not compile it; ``known`` answers."""
    said = handles(case, gpu)
    if said or gpu.functional:
        return said
    try:
        with strictly(), compile_only(gpu, compiling=False) as requests:
            config = variant.default(case, gpu)
            variant.launch(config=config, **meta_inputs(declaration.passes[direction], case))
    except Exception as error:
        return _refused(complaint(error))
    key = frozenset(request.key for request in requests), gpu
    if key not in known:
        with strictly():
            found = compile_config(declaration, direction, variant.name, case, config, gpu)
        known[key] = _refused(found.reason) if found.status == "failed" else ""
    return known[key]


def _refused(reason: str) -> str:
    return f"Triton {NAME} does not compile it: {reason}"
