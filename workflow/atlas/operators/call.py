"""The eager call of an operator, written out for its schema: look a recording up, repeat it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from typing import Any

import torch
import triton
from torch.autograd import forward_ad
from torch.nn import Parameter
from torch.utils._device import DeviceContext

from .plan import Plan

_current_device = getattr(torch._C, "_cuda_getDevice", lambda: -1)  # missing from builds without CUDA


def written(
    types: Sequence[str],
    varying: Collection[int],
    plans: Mapping[tuple, Plan],
    op: Callable[..., Any],
    aside: Callable[..., Any],
    first: Callable[..., Any],
    run: Callable[..., Any],
    state: Callable[..., Hashable] | None,
) -> tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]]:
    """The functions ``now``, ``plain`` and ``straight`` of one call: from Python, and as torch's dispatcher calls it.

    A recording in ``plans`` is looked up under what it depends on: each tensor's device, shape, strides, dtype and
    alignment to 16 bytes, which arguments are one tensor, each scalar that is not ``varying``, and what ``state``,
    given the arguments, reads of torch's global state.  Without one, ``first(key, *args)`` is called; while somebody
    watches allocations or launches, ``run(*args)``.

    ``now`` leaves to torch what the dispatcher is there for.  Calls under a dispatch mode, with tensors of other types
    than plain ones and with lazily negated ones go to ``op``, those in which derivatives are taken forwards, and those
    under a transform of torch.func, to ``aside``; ``plain`` is for who has asked that already.  ``straight`` is what
    the dispatcher calls when all that is done.

    ``types`` are the schema's, as words.  The functions are generated, for a loop over arguments would cost a
    microsecond or two, which is as much as launching a kernel does.
    """
    scope = {
        "Parameter": Parameter,
        "Tensor": torch.Tensor,
        "aside": aside,
        "current_device": _current_device,
        "device": torch.cuda.device,
        "entering": triton.knobs.runtime.launch_enter_hook,
        "first": first,
        "forward_ad": forward_ad,
        "leaving": triton.knobs.runtime.launch_exit_hook,
        "modes": torch._C._len_torch_dispatch_stack,
        "op": op,
        "pattern": _pattern,
        "plans": plans,
        "run": run,
        "state": state,
        "transforms": torch._C._are_functorch_transforms_active,
        "modes_of_functions": torch._C._is_torch_function_mode_enabled,
        "watched": watched,
    }
    exec(_source(types, varying, state is not None), scope)
    return scope["now"], scope["plain"], scope["straight"]


def watched() -> bool:
    """Whether a mode of torch functions is active that may want to see allocations.

    ``torch.set_default_device`` and ``with torch.device(…)`` are such modes, and see to calls without a device alone.
    """
    if not torch._C._is_torch_function_mode_enabled():
        return False
    stack = (torch._C._get_function_stack_at(n) for n in range(torch._C._len_torch_function_stack()))
    return any(type(mode) is not DeviceContext for mode in stack)


def _pattern(*tensors: torch.Tensor | None) -> tuple[int, ...]:
    """For each of these the number of the first that is the same object."""
    return tuple(next(n for n, other in enumerate(tensors) if other is tensor) for tensor in tensors)


def _source(types: Sequence[str], varying: Collection[int], stateful: bool) -> str:
    """The text of ``now``, ``plain`` and ``straight``; its free names are those of :func:`written`'s scope."""
    names = [f"a{number}" for number in range(len(types))]
    given = ", ".join(names)
    tensors, checks, key, index = [], [], [], "-1"
    for number, (name, kind) in enumerate(zip(names, types, strict=True)):
        if kind not in ("Tensor", "Optional[Tensor]"):
            key += [] if number in varying else [name]
            continue
        tensors.append(name)
        optional = kind.startswith("Optional")
        check = f"type({name}) is not Tensor and type({name}) is not Parameter or {name}.is_neg()"
        checks.append(f"    if {name} is not None and ({check}):" if optional else f"    if {check}:")
        checks.append(f"        return op({given})")
        described = f"{name}.shape, {name}.stride(), {name}.dtype, {name}.data_ptr() & 15"
        if index == "-1" and not optional:
            index = f"{name}.get_device()"
        else:
            described += f", {name}.get_device()"
        key.append(f"None if {name} is None else ({described})" if optional else f"({described})")
    if stateful:
        key.append(f"state({given})")
    equal = " or ".join(f"{one} is {other}" for one, other in itertools.combinations(tensors, 2))
    if equal:
        key.append(f"pattern({', '.join(tensors)}) if {equal} else None")
    repeat = [
        f"    index = {index}",
        f"    repeat = plans.get(key := (index, {', '.join(key)}))",
        "    if repeat is None:",
        f"        return first(key, {given})",
        "    if modes_of_functions() and watched() or entering.calls or leaving.calls:",
        f"        return run({given})",
        "    if current_device() != index:",
        "        with device(index):",
        f"            return repeat({given})",
        f"    return repeat({given})",
    ]
    source = [
        f"def now({given}):",
        "    if transforms() or forward_ad._current_level >= 0:",
        f"        return aside({given})",
        f"    return plain({given})",
        f"def plain({given}):",
        "    if modes():",
        f"        return op({given})",
        *checks,
        *repeat,
        f"def straight({given}):",
        *repeat,
    ]
    return "\n".join(source)
