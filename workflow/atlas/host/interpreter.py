"""What Triton's interpreter lacks in a version that the kernels otherwise run on, and what it does too often."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import triton
import triton.language as tl
from triton.runtime import interpreter


def patch() -> None:
    """All of it; call it before the first launch."""
    allow_runtime_bounds()
    patch_once_a_launch()
    leave_out_unread_checks()
    remember_types()
    copy_what_bf16_shares_with_fp32()


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


@functools.cache
def leave_out_unread_checks() -> None:
    """Spare the sums, products and comparisons in int64 beside each of int32, whose outcome nobody reads.

    Triton (3.6, 3.7) computes them for ``device_assert``, which in the interpreter looks at no condition unless its
    ``debug`` option is set.  Once in a process.
    """
    builder = interpreter.interpreter_builder
    if not builder.options.debug:
        builder.options = dataclasses.replace(builder.options, sanitize_overflow=False)


@functools.cache
def remember_types() -> None:
    """Derive what follows from a type once: each operation makes a few blocks, of types and shapes seen before.

    What is shared is never changed: names, shapes, counts of elements and NumPy's dtypes.  Once in a process.
    """
    core, semantic = tl.core, interpreter.interpreter_semantic
    core.block_type.__init__ = _remembering_blocks(core.block_type.__init__)
    core.tensor.__init__ = _remembering_shapes(core.tensor.__init__)
    interpreter._get_np_dtype = _remembering_dtypes(interpreter._get_np_dtype)
    broadcast = semantic.broadcast_impl_value
    semantic.broadcast_impl_value = lambda x, y: (x, y) if x.shape is y.shape else broadcast(x, y)


def _remembering_blocks(derive: Callable[..., None]) -> Callable[..., None]:
    known: dict[tuple[str, tuple[int, ...]], tuple[Any, int, str]] = {}

    @functools.wraps(derive)
    def __init__(self: Any, element_ty: Any, shape: Any) -> None:
        sizes = tuple([size.value if type(size) is tl.constexpr else size for size in shape])
        found = known.get((element_ty.name, sizes))
        if found is None:
            derive(self, element_ty, shape)
            known[element_ty.name, sizes] = self.shape, self.numel, self.name
        else:
            self.element_ty = element_ty
            self.shape, self.numel, self.name = found

    return __init__


def _remembering_shapes(derive: Callable[..., None]) -> Callable[..., None]:
    known: dict[tuple[int, ...], tuple[Any, Any]] = {}

    @functools.wraps(derive)
    def __init__(self: Any, handle: Any, type: Any) -> None:
        sizes = tuple(type.shape) if type.is_block() else ()
        found = known.get(sizes)
        if found is None:
            derive(self, handle, type)
            known[sizes] = self.shape, self.numel
        else:
            self.handle, self.type, self.dtype = handle, type, type.scalar
            self.shape, self.numel = found

    return __init__


def _remembering_dtypes(look_up: Callable[[Any], Any]) -> Callable[[Any], Any]:
    known: dict[str, Any] = {}

    @functools.wraps(look_up)
    def get_np_dtype(dtype: Any) -> Any:
        name = dtype.scalar.name
        if name not in known:
            known[name] = look_up(dtype)
        return known[name]

    return get_np_dtype


@functools.cache
def copy_what_bf16_shares_with_fp32() -> None:
    """Convert between bf16 and fp32 by moving 16 bits, which is what Triton (3.6, 3.7) comes to in 30 operations.

    But for subnormal numbers, which stay Triton's.  Once in a process.
    """
    convert = interpreter._convert_float

    @functools.wraps(convert)
    def convert_float(data: Any, source: Any, target: Any, rounding: Any) -> Any:
        pair = (source.name, target.name)
        if rounding is None and pair in (("fp32", "bf16"), ("bf16", "fp32")):
            wide = pair[0] == "fp32"
            bits = np.ascontiguousarray(data).view(np.uint32 if wide else np.uint16)
            size = bits & (0x7FFFFFFF if wide else 0x7FFF)
            if not ((size != 0) & (size < (0x800000 if wide else 0x80))).any():
                return ((bits >> 16).astype(np.uint16) if wide else bits.astype(np.uint32) << 16).reshape(data.shape)
        return convert(data, source, target, rounding)

    interpreter._convert_float = convert_float
