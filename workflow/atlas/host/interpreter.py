"""What Triton's interpreter lacks in a version that the kernels otherwise run on, and what it does too often."""

from __future__ import annotations

import functools
from typing import Any

import triton
import triton.language as tl
from triton.runtime import interpreter


def patch() -> None:
    """All of it; call it before the first launch."""
    allow_runtime_bounds()
    patch_once_a_launch()


@functools.cache
def allow_runtime_bounds() -> None:
    """Let loops have a runtime bound in the interpreter of Triton 3.6, whatever the NumPy; once in a process.

    ``range`` and ``tl.range`` ask a bound for ``__index__``, which Triton 3.6 answers by ``int()`` of an array of one
    element and one dimension: a TypeError since NumPy 2.4 (triton-lang/triton#9171).  Triton 3.7 has this solved
    (triton-lang/triton#9172): remove this module, and its calls, when 3.6 is no longer supported.
    """
    if not triton.__version__.startswith("3.6."):
        return
    patch = interpreter._patch_lang_tensor

    # The interpreter puts its methods on tl.tensor at each launch and takes them off after it, so this joins in there.
    def patch_with_index(tensor: type, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = patch_with_index


@functools.cache
def patch_once_a_launch() -> None:
    """Spare the interpreter a third of its time: what it puts into ``triton.language`` holds until the launch ends.

    Triton (3.6, 3.7) looks all members of the language up again at each call of one jitted function by another, and
    finds nothing that is not patched yet.  Once in a process.
    """
    patch = interpreter._patch_lang
    patched: set[int] = set()

    def patch_what_is_not(function: Any) -> Any:
        seen = {id(value) for value in function.__globals__.values() if value is tl or value is tl.core}
        if seen and seen <= patched:
            return interpreter._LangPatchScope()
        scope = patch(function)
        if not patched:  # the launch's own scope, the only one that Triton restores
            restore = scope.restore
            scope.restore = lambda: (patched.clear(), restore())
        patched.update(seen)
        return scope

    interpreter._patch_lang = patch_what_is_not
