"""The eager call of an operator, written out for its schema: look a recording up, repeat it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
import triton
from torch.nn import Parameter

from .plan import Plan

_current_device = getattr(torch._C, "_cuda_getDevice", lambda: -1)  # missing from builds without CUDA


def written(
    types: Sequence[str],
    varying: Collection[int],
    plans: Mapping[tuple, Plan],
    op: Callable[..., Any],
    first: Callable[..., Any],
    run: Callable[..., Any],
) -> Callable[..., Any]:
    """The function of one call.

    A recording in ``plans`` is looked up under what it depends on: the device's index (-1: the CPU), each tensor's
    shape, strides, dtype and alignment to 16 bytes, and each scalar that is not ``varying``.  Without one, ``first(key,
    *args)`` is called; while somebody watches allocations or launches, ``run(*args)``.  Calls under a dispatch mode or
    with tensors of other types than plain ones (fake, functional, functorch's) go to torch's dispatcher, ``op``.

    ``types`` are the schema's, as words.  The function is generated, for a loop over arguments would cost a microsecond
    or two, which is as much as launching a kernel does.
    """
    scope = {
        "Parameter": Parameter,
        "Tensor": torch.Tensor,
        "current_device": _current_device,
        "device": torch.cuda.device,
        "first": first,
        "entering": triton.knobs.runtime.launch_enter_hook,
        "leaving": triton.knobs.runtime.launch_exit_hook,
        "modes": torch._C._len_torch_dispatch_stack,
        "op": op,
        "plans": plans,
        "run": run,
        "watched": torch._C._is_torch_function_mode_enabled,
    }
    exec(_source(types, varying), scope)
    return scope["now"]


def _source(types: Sequence[str], varying: Collection[int]) -> str:
    """The text of the function ``now``; its free names are those of :func:`written`'s scope."""
    names = [f"a{number}" for number in range(len(types))]
    given = ", ".join(names)
    checks, key, index = [], [], "-1"
    for number, (name, kind) in enumerate(zip(names, types, strict=True)):
        if kind not in ("Tensor", "Optional[Tensor]"):
            key += [] if number in varying else [name]
            continue
        optional = f"{name} is not None and " if kind.startswith("Optional") else ""
        checks.append(f"    if {optional}type({name}) is not Tensor and type({name}) is not Parameter:")
        checks.append(f"        return op({given})")
        described = f"({name}.shape, {name}.stride(), {name}.dtype, {name}.data_ptr() & 15)"
        key.append(f"None if {name} is None else {described}" if optional else described)
        if index == "-1" and not optional:
            index = f"{name}.get_device()"
    source = [
        f"def now({given}):",
        "    if modes():",
        f"        return op({given})",
        *checks,
        "    try:",
        f"        index = {index}",
        f"        key = (index, {', '.join(key)})",
        "    except RuntimeError:  # functorch's tensors have no memory",
        f"        return op({given})",
        "    repeat = plans.get(key)",
        "    if repeat is None:",
        f"        return first(key, {given})",
        "    if watched() or entering.calls or leaving.calls:",
        f"        return run({given})",
        "    if current_device() != index:",
        "        with device(index):",
        f"            return repeat({given})",
        f"    return repeat({given})",
    ]
    return "\n".join(source)
