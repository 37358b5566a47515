"""What Triton's interpreter lacks in a version that the kernels otherwise run on."""

from __future__ import annotations

import functools
from typing import Any

import triton
from triton.runtime import interpreter


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
