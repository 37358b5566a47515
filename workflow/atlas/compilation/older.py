"""Which variants an older Triton runs: that of an environment which a GPU's block names.

What a variant reaches that this Triton has not is found in its functions; what else it does not compile, by asking it.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterator
from typing import Any

import triton

from ..declaration import GPU, Case, Declaration, Variant
from ..host.older_triton import Missing
from ..host.runtime import meta_inputs
from .compiled import compile_config
from .offline import compile_only

_OURS = ("kernels", "atlas.declaration", "atlas.operators")


def mark(declaration: Declaration) -> None:
    """Have the variants of a declaration that this Triton cannot run say so, and why.

    A variant is asked for each case, and its default config is compiled for that: other configs may fail, and are rows
    of their own.
    """
    for direction, work in declaration.passes.items():
        for variant in work.variants:
            missing = _missing(variant.launch)
            handles = (
                functools.partial(_never, f"Triton {triton.__version__} has no {missing}")
                if missing
                else functools.partial(_compiled, variant.handles, declaration, direction, variant, {})
            )
            object.__setattr__(variant, "handles", handles)


def _never(said: str, *_: Any) -> str:
    return said


def _compiled(
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
    config = variant.default(case, gpu)
    with compile_only(gpu, compiling=False) as requests:
        try:
            variant.launch(config=config, **meta_inputs(declaration.passes[direction], case))
        except Exception:  # compiling it says what is wrong
            requests.clear()
    key = frozenset(request.key for request in requests) or case
    if (key, gpu) not in known:
        found = compile_config(declaration, direction, variant.name, case, config, gpu)
        failed = found.status == "failed"
        known[key, gpu] = f"Triton {triton.__version__} does not compile it: {found.reason}" if failed else ""
    return known[key, gpu]


def _missing(launch: Callable[..., Any]) -> str:
    """What a launcher reaches that this Triton has not, or ``""``."""
    seen: set[int] = set()
    waiting: list[Any] = [launch]
    while waiting:
        function = waiting.pop()
        while isinstance(function, functools.partial):
            waiting += [*function.args, *function.keywords.values()]
            function = function.func
        if isinstance(function, Missing):
            return function.__name__
        function = getattr(function, "fn", function)  # of @triton.jit
        if id(function) in seen or not isinstance(function, types.FunctionType):
            continue
        seen.add(id(function))
        if (function.__module__ or "").startswith(_OURS):
            waiting += _named(function)
    return ""


def _named(function: types.FunctionType) -> Iterator[Any]:
    """What the names in a function's body stand for, as far as its module tells."""
    codes = [function.__code__]
    for code in codes:
        codes += [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
        for name in code.co_names:
            value = function.__globals__.get(name)
            yield value
            if isinstance(value, types.ModuleType) and not isinstance(value, Missing):
                yield from (vars(value).get(part) for part in code.co_names)
    yield from (cell.cell_contents for cell in function.__closure__ or ())
