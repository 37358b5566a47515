"""What Triton's interpreter lacks in a version that the kernels otherwise run on, and what it does too often."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import triton
import triton.language as tl
from triton.runtime import interpreter

from .interpreter_operators import INTEGERS, constant, quick


def patch() -> None:
    """All of it; call it before the first launch."""
    allow_runtime_bounds()
    patch_once_a_launch()
    leave_out_unread_checks()
    remember_types()
    call_builtins_directly()
    make_operands_alike()
    address_blocks_by_their_sides()
    multiply_integers_as_floats()
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
    called: set[Any] = set()

    def patch_what_is_not(function: Any) -> Any:
        if function in called:
            return interpreter._LangPatchScope()
        seen = {id(value) for value in function.__globals__.values() if value is tl or value is tl.core}
        if seen and seen <= patched:
            called.add(function)
            return interpreter._LangPatchScope()
        scope = patch(function)
        if not patched:  # the launch's own scope, the only one that Triton restores
            restore = scope.restore
            scope.restore = lambda: (patched.clear(), called.clear(), restore())
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
    tl.core.block_type.__init__ = _remembering_blocks(tl.core.block_type.__init__)
    tl.core.tensor.__init__ = _remembering_shapes(tl.core.tensor.__init__)
    interpreter._get_np_dtype = _remembering_dtypes(interpreter._get_np_dtype)


def _remembering_blocks(derive: Callable[..., None]) -> Callable[..., None]:
    known: dict[tuple[str, tuple[int, ...]], tuple[Any, int, str]] = {}

    @functools.wraps(derive)
    def __init__(self: Any, element_ty: Any, shape: Any) -> None:
        self.sizes = sizes = tuple([size.value if type(size) is tl.constexpr else size for size in shape])
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
        sizes = type.sizes if type.is_block() else ()
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
def call_builtins_directly() -> None:
    """Call what stands behind a builtin of ``triton.language``, whose wrapper asks for what is given here.

    Operators of usual operands are those of :mod:`.interpreter_operators`, unless sums are checked for overflow.  Needs
    :func:`remember_types`.  Once in a process.
    """
    wrapper, semantic = tl.core.builtin(lambda: None).__code__, interpreter.interpreter_semantic
    checked = interpreter.interpreter_builder.options.sanitize_overflow
    builtins: dict[Any, list[tuple[str, Any]]] = {}

    def called(member: Any) -> Callable[..., Any]:
        function = member.__wrapped__ if getattr(member, "__code__", None) is wrapper else member

        def call(*args: Any, **words: Any) -> Any:
            words["_semantic"] = semantic
            return function(*args, **words)

        return call

    def patch_builtin(owner: Any, builder: Any, scope: Any) -> None:
        if owner not in builtins:  # as Triton defines them: before the first launch nothing is patched
            found = [(name, member) for name, member in inspect.getmembers(owner) if tl.core.is_builtin(member)]
            of_tensors = owner in (tl, tl.core, tl.core.tensor) and not checked
            calls = [(name, called(member)) for name, member in found]
            builtins[owner] = [(name, quick(name, call) if of_tensors else call) for name, call in calls]
        for name, call in builtins[owner]:
            scope.set_attr(owner, name, call)

    interpreter._patch_builtin = patch_builtin


@functools.cache
def make_operands_alike() -> None:
    """Find out once for two types and two shapes what the operands of an operation become.

    Numbers and elements of the usual types alone; the rest, and what is refused, stays Triton's.  Needs
    :func:`remember_types`.  Once in a process.
    """
    semantic = interpreter.interpreter_semantic
    semantic.cast = quick("cast", semantic.cast)
    semantic.broadcast_impl_value = _stretching(semantic, semantic.broadcast_impl_value)
    semantic.binary_op_type_checking_impl = _typing(semantic, semantic.binary_op_type_checking_impl)


def _stretching(semantic: Any, broadcast: Callable[..., Any]) -> Callable[..., Any]:
    """Of two shapes, which are told by their identity: tensors of equal sizes share one."""
    known: dict[tuple[int, int], tuple[Any, ...]] = {}

    def stretched(value: Any, shape: Any, sizes: list[int]) -> Any:
        if value.shape is shape:
            return value
        handle, made = value.handle, tl.core.block_type(value.dtype, sizes)
        if value.type.is_block():
            handle = interpreter.TensorHandle(np.broadcast_to(handle.data, sizes), handle.dtype.scalar)
        else:
            handle = semantic.builder.create_splat(made, handle)
        return semantic.tensor(handle, made)

    @functools.wraps(broadcast)
    def broadcast_impl_value(lhs: Any, rhs: Any) -> Any:
        if lhs.shape is rhs.shape:
            return lhs, rhs
        key = id(lhs.shape), id(rhs.shape)
        if key not in known:
            made = broadcast(lhs, rhs)
            known[key] = (
                made[0].shape,
                list(made[0].type.sizes),
                lhs.shape,
                rhs.shape,
            )  # what is kept keeps its identity
            return made
        shape, sizes, *_ = known[key]
        return stretched(lhs, shape, sizes), stretched(rhs, shape, sizes)

    return broadcast_impl_value


def _typing(semantic: Any, check: Callable[..., Any]) -> Callable[..., Any]:
    """Of two types, which are told by their names, and of a number beside one."""
    tensor = tl.core.tensor
    kept = {"int1", "fp16", "bf16", "fp32", "fp64", *INTEGERS}
    common: dict[tuple[str, str, bool], Any] = {}

    def alike(lhs: Any, rhs: Any, div_or_mod: bool) -> tuple[Any, Any] | None:
        if type(lhs) is not tensor:
            lhs = constant(lhs, rhs.dtype, div_or_mod) if type(rhs) is tensor else None
            return None if lhs is None else (lhs, rhs)
        if type(rhs) is not tensor:
            rhs = constant(rhs, lhs.dtype, div_or_mod)
            return None if rhs is None else (lhs, rhs)
        left, right = lhs.dtype.name, rhs.dtype.name
        if left not in kept or right not in kept:
            return None
        key = left, right, div_or_mod
        if key not in common:
            common[key] = semantic.computation_type_impl(lhs.dtype, False, rhs.dtype, False, div_or_mod)
        dtype = common[key]
        lhs = lhs if left == dtype.name else semantic.cast(lhs, dtype)
        return lhs, rhs if right == dtype.name else semantic.cast(rhs, dtype)

    def is_address(lhs: Any, rhs: Any) -> bool:
        """Whether it is a pointer and an offset, which keep their types."""
        both = type(lhs) is tensor and type(rhs) is tensor
        return both and type(lhs.dtype) is tl.pointer_type and rhs.dtype.name in INTEGERS

    @functools.wraps(check)
    def binary_op_type_checking_impl(
        lhs: Any, rhs: Any, allow_lhs_ptr: bool = False, allow_rhs_ptr: bool = False, arithmetic_check: bool = True,
        div_or_mod: bool = False,
    ) -> Any:  # fmt: skip
        if allow_lhs_ptr and is_address(lhs, rhs):
            return semantic.broadcast_impl_value(lhs, rhs)
        found = alike(lhs, rhs, div_or_mod) if arithmetic_check else None
        if found is None:
            return check(lhs, rhs, allow_lhs_ptr, allow_rhs_ptr, arithmetic_check, div_or_mod)
        return semantic.broadcast_impl_value(*found)

    return binary_op_type_checking_impl


@functools.cache
def address_blocks_by_their_sides() -> None:
    """Find a descriptor's addresses and mask from the rows and columns of its block; elements come last.

    Once in a process.
    """
    handle = interpreter.TensorDescHandle

    @functools.wraps(handle.materialize_pointers)
    def materialize_pointers(self: Any, offsets: Any) -> Any:
        assert len(offsets) == self.ndim
        size = self.base.dtype.element_ty.primitive_bitwidth // 8
        assert (offsets[-1].data * size) % 16 == 0, "block offset start must be 16-byte aligned"
        addresses, mask = self.base.data, True
        for dim, count in enumerate(self.block_shape):
            side = [1] * self.ndim
            side[dim] = count
            at = (offsets[dim].data + np.arange(count)).reshape(side)
            addresses = addresses + (size * at * self.strides[dim].data).astype(np.uint64)
            mask = mask & ((at >= 0) & (at < self.shape[dim].data))
        assert addresses.dtype == np.uint64
        return interpreter.TensorHandle(addresses, self.base.dtype.scalar), mask

    handle.materialize_pointers = materialize_pointers


@functools.cache
def multiply_integers_as_floats() -> None:
    """Multiply blocks of 8 bits in fp64, which holds their sums: NumPy has no fast product of integers.

    Once in a process.
    """
    builder = interpreter.InterpreterBuilder
    create_dot = builder.create_dot

    @functools.wraps(create_dot)
    def dot(self: Any, a: Any, b: Any, d: Any, *rest: Any) -> Any:
        if a.data.dtype != np.int8 or b.data.dtype != np.int8 or d.data.dtype != np.int32:
            return create_dot(self, a, b, d, *rest)
        product = np.matmul(a.data.astype(np.float64), b.data.astype(np.float64))
        return interpreter.TensorHandle(product.astype(np.int32) + d.data, d.dtype.scalar)

    builder.create_dot = dot


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
