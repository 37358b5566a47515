"""Operators of interpreted programs by a call or two of NumPy.

Triton (3.6, 3.7) derives for each operation what its operands are converted to, and how they are broadcast: most of
what a program takes.  Here it does so once for the types and shapes of the operands.  What NumPy then computes is what
Triton has it compute.  Numbers and tensors of the usual types alone; the rest, and what is refused, stays Triton's.
Needs :func:`~.interpreter.remember_types`, by which tensors of equal sizes share their shape.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter

Call = Callable[..., Any]

_tensor, _constexpr, _Handle = tl.core.tensor, tl.constexpr, interpreter.TensorHandle
_FLOATS = {"fp16", "fp32", "fp64"}
_BITS = (8, 16, 32, 64)
_SIGNED = {f"int{bits}": range(-(2 ** (bits - 1)), 2 ** (bits - 1)) for bits in _BITS}
INTEGERS = _SIGNED | {f"uint{bits}": range(2**bits) for bits in _BITS}
"""The values of each integer type, by its name."""

_NUMBERS = {*_FLOATS, *INTEGERS}

_BY_BITS = {("fp32", "bf16"), ("bf16", "fp32")}
_AT_ONCE = {(here, there) for here in (*_FLOATS, *INTEGERS) for there in (*_FLOATS, *INTEGERS) if here != "fp16"}
_AT_ONCE |= {("fp16", "fp32"), *_BY_BITS}
"""Conversions in one step; of fp16 others go by fp32."""


def constant(number: Any, dtype: Any, div_or_mod: bool = False) -> Any:
    """The number as an element of the type, None where it has a say in what the type is, or may not fit."""
    name = dtype.name
    if name in INTEGERS:
        fits = type(number) is int and number in INTEGERS[name]
    elif (name in _FLOATS or name == "bf16") and not (div_or_mod and name in ("fp16", "bf16")):
        fits = type(number) is float or (type(number) is int and abs(number) < 2**31)
    else:
        fits = False
    return interpreter.interpreter_semantic.scalar_constant(number, dtype) if fits else None


def quick(name: str, call: Call) -> Call:
    """The function of this name, of the language or of tensors, in the place of Triton's, which is ``call``."""
    make = _OPERATORS.get(name)
    return call if make is None else make(call)


@dataclass(frozen=True)
class _Made:
    """What is alike of all tensors that an operation makes of operands of the same types and shapes."""

    type: Any
    dtype: Any
    shape: Any
    numel: Any

    @classmethod
    def like(cls, tensor: Any) -> _Made:
        return cls(tensor.type, tensor.dtype, tensor.shape, tensor.numel)

    def of(self, data: np.ndarray, dtype: Any) -> Any:
        """A tensor of these data, whose handle says that they are of ``dtype``."""
        return self.holding(_handle(data, dtype))

    def holding(self, handle: Any) -> Any:
        """A tensor with this handle."""
        made = _tensor.__new__(_tensor)
        made.handle, made.type, made.dtype, made.shape, made.numel = (
            handle, self.type, self.dtype, self.shape, self.numel
        )  # fmt: skip
        return made


def _handle(data: np.ndarray, dtype: Any) -> Any:
    handle = _Handle.__new__(_Handle)
    handle.data, handle.dtype, handle.attr = data, dtype, {}
    return handle


def _value(word: Any) -> Any:
    return word.value if type(word) is _constexpr else word


class _Numbers:
    """Numbers as elements of a type, as ``convert(number, dtype)`` makes them: an array of one, or None where not."""

    def __init__(self, convert: Call):
        self._convert = convert
        self._known: dict[tuple[Any, ...], np.ndarray | None] = {}

    def __call__(self, number: Any, dtype: Any) -> np.ndarray | None:
        if type(number) is not int and type(number) is not float:
            return None
        key = type(number), number, dtype.name
        if key not in self._known:
            found = self._convert(number, dtype)
            self._known[key] = None if found is None else found.handle.data
        return self._known[key]


def _binary(
    compute: Call,
    types: set[str],
    convert: Call = constant,
    reverse: bool = False,
    mixed: bool = True,
    div_or_mod: bool = False,
) -> Callable[[Call], Call]:
    """An operation on two operands of the ``types``; ``convert(number, dtype)`` is a number as such a tensor.

    ``reverse`` is that of the second operand.  Unless ``mixed``, operands of two types stay Triton's.
    """

    def converted(first: Any, second: Any) -> tuple[Any, Any, Any] | None:
        """To what NumPy's dtypes the operands are converted, None where not, and Triton's name of it."""
        if first.name not in types or second.name not in types:
            return None
        if first.name == second.name:
            return None, None, None
        if not mixed:
            return None
        common = interpreter.interpreter_semantic.computation_type_impl(first, False, second, False, div_or_mod)
        if not all(
            one.name == common.name or (one.name, common.name) in _AT_ONCE - _BY_BITS for one in (first, second)
        ):
            return None
        kind = interpreter._get_np_dtype(common)
        left, right = (None if one.name == common.name else kind for one in (first, second))
        return left, right, common

    def make(call: Call) -> Call:
        known: dict[tuple[Any, ...], tuple[_Made, Any, Any, Any]] = {}
        of_numbers: dict[tuple[str, int], _Made] = {}
        numbers = _Numbers(convert)

        def operate(self: Any, other: Any) -> Any:
            if type(other) is _tensor:
                key = self.dtype.name, other.dtype.name, id(self.shape), id(other.shape)
                found = known.get(key)
                first, second = (other.handle, self.handle) if reverse else (self.handle, other.handle)
                if found is not None:
                    made, left, right, dtype = found
                    one = first.data if left is None else first.data.astype(left)
                    two = second.data if right is None else second.data.astype(right)
                    return made.of(compute(one, two), first.dtype.scalar if left is None else dtype)
                result = call(self, other)
                conversion = converted(*((other.dtype, self.dtype) if reverse else (self.dtype, other.dtype)))
                if conversion is not None:
                    known[key] = _Made.like(result), *conversion
                return result
            data = numbers(_value(other), self.dtype) if self.dtype.name in types else None
            if data is None:
                return call(self, other)
            key = self.dtype.name, id(self.shape)
            made = of_numbers.get(key)
            if made is None:
                of_numbers[key] = made = _Made.like(call(self, other))
            if reverse:
                return made.of(compute(data, self.handle.data), self.dtype)
            return made.of(compute(self.handle.data, data), self.handle.dtype.scalar)

        return operate

    return make


def _sum_or_address(call: Call) -> Call:
    """A sum of numbers, or a pointer and what is added to it."""
    add = _binary(np.add, _NUMBERS)(call)
    known: dict[tuple[Any, ...], _Made] = {}
    steps: dict[tuple[int, int], np.ndarray] = {}

    def plus(self: Any, other: Any) -> Any:
        dtype = self.dtype
        if type(dtype) is not tl.pointer_type or type(self.handle) is not _Handle:
            return add(self, other)
        wide = max(1, self.handle.get_element_ty().primitive_bitwidth // 8)
        if type(other) is _tensor:
            if other.dtype.name not in _SIGNED:
                return call(self, other)
            key = dtype.name, id(self.shape), id(other.shape)
            step = wide * other.handle.data.astype(np.uint64)
        else:
            other = _value(other)
            if type(other) is not int or other not in _SIGNED["int32"]:
                return call(self, other)
            key = dtype.name, id(self.shape)
            if (wide, other) not in steps:
                steps[wide, other] = wide * np.array([other], dtype=np.int32).astype(np.uint64)
            step = steps[wide, other]
        made = known.get(key)
        if made is None:
            known[key] = made = _Made.like(call(self, other))
        return made.of(self.handle.data + step, self.handle.dtype)

    return plus


def _compared(number: Any, dtype: Any) -> Any:
    """A number to compare with, which Triton first makes a tensor of its own type."""
    semantic = interpreter.interpreter_semantic
    own = semantic.to_tensor(number)
    of_int32 = own.dtype.name == "int32" and dtype.name in ("int32", "int64", "fp32")
    return semantic.cast(own, dtype) if of_int32 or own.dtype.name == dtype.name == "fp32" else None


def _quotient(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    return (first - np.fmod(first, second)) // second


def _cast(call: Call) -> Call:
    known: dict[tuple[Any, ...], tuple[_Made, Any]] = {}

    def cast(self: Any, dtype: Any, *rest: Any, **words: Any) -> Any:
        dtype = _value(dtype)
        if rest or words or type(self) is not _tensor or type(dtype) is not tl.dtype:
            return call(self, dtype, *rest, **words)
        here, there = self.handle.dtype, dtype.name
        if here.name != self.dtype.name:  # what a comparison made
            return call(self, dtype)
        if here.name == there:
            return self
        key = here.name, there, id(self.shape)
        found = known.get(key)
        if found is None:
            result = call(self, dtype)
            if (here.name, there) in _AT_ONCE:
                known[key] = _Made.like(result), result.handle.data.dtype
            return result
        made, kind = found
        data = self.handle.data
        if (here.name, there) in _BY_BITS:
            return made.of(interpreter._convert_float(data, here, dtype, None).view(kind), dtype)
        return made.of(data.astype(kind), dtype)

    return cast


def _with_dimensions(call: Call) -> Call:
    """``x[:, None]``."""
    known: dict[tuple[Any, ...], _Made] = {}
    whole = slice(None)

    def getitem(self: Any, slices: Any) -> Any:
        if type(slices) is not tuple or not self.shape:
            return call(self, slices)
        added = tuple([one is None for one in slices])
        if not all(new or (type(one) is slice and one == whole) for one, new in zip(slices, added, strict=True)):
            return call(self, slices)
        key = self.dtype.name, added, id(self.shape)
        made = known.get(key)
        if made is None:
            known[key] = made = _Made.like(call(self, slices))
        return made.of(self.handle.data.reshape(made.type.sizes), self.handle.dtype.scalar)

    return getitem


def _range(call: Call) -> Call:
    known: dict[tuple[int, int], tuple[_Made, np.ndarray]] = {}

    def arange(start: Any, end: Any, **words: Any) -> Any:
        if words:
            return call(start, end, **words)
        start, end = _value(start), _value(end)
        found = known.get((start, end))
        if found is None:
            result = call(start, end)
            known[start, end] = found = _Made.like(result), result.handle.data
        return found[0].of(found[1], tl.int32)

    return arange


def _select(call: Call) -> Call:
    """``tl.where``."""
    known: dict[tuple[Any, ...], _Made] = {}
    numbers = _Numbers(constant)

    def operand(word: Any, beside: Any) -> Any:
        """A handle with the operand's data, None where that hangs on more."""
        if type(word) is _tensor:
            return word.handle if word.dtype.name in _NUMBERS or word.dtype.name == "bf16" else None
        data = numbers(word, beside.dtype) if type(beside) is _tensor and beside.dtype.name in _NUMBERS else None
        return None if data is None else _handle(data, beside.dtype)

    def where(condition: Any, x: Any, y: Any) -> Any:
        x, y = _value(x), _value(y)
        if type(condition) is not _tensor or condition.dtype.name != "int1":
            return call(condition, x, y)
        first, second = operand(x, y), operand(y, x)
        if first is None or second is None or first.dtype.name != second.dtype.name:
            return call(condition, x, y)
        shapes = (id(one.shape) if type(one) is _tensor else None for one in (condition, x, y))
        key = first.dtype.name, *shapes
        made = known.get(key)
        if made is None:
            known[key] = made = _Made.like(call(condition, x, y))
        return made.of(np.where(condition.handle.data, first.data, second.data), second.dtype.scalar)

    return where


def _element(pointer: Any) -> Any:
    """The type that a tensor of addresses points to, where it is one of numbers; else None."""
    if (
        type(pointer) is not _tensor
        or type(pointer.dtype) is not tl.pointer_type
        or type(pointer.handle) is not _Handle
    ):
        return None
    element = pointer.dtype.element_ty
    return element if element.name in _NUMBERS or element.name == "bf16" else None


def _as_large(handle: Any, type: Any, sizes: Any) -> Any:
    """The handle of a tensor of this type, broadcast to ``sizes``."""
    if type.is_block() and type.sizes == sizes:
        return handle
    return _handle(np.broadcast_to(handle.data, sizes), handle.dtype)


def _loaded(number: Any, dtype: Any) -> Any:
    """What stands for masked elements, which Triton first makes a tensor of its own type."""
    semantic = interpreter.interpreter_semantic
    return semantic.cast(semantic.to_tensor(number), dtype)


def _plain(mask: Any) -> bool:
    """Whether a mask is none, or a tensor of truth values."""
    return mask is None or (type(mask) is _tensor and mask.dtype.name == "int1")


def _load(call: Call) -> Call:
    known: dict[tuple[Any, ...], _Made] = {}
    numbers = _Numbers(_loaded)
    builder = interpreter.interpreter_builder

    def load(pointer: Any, mask: Any = None, other: Any = None, *rest: Any, **words: Any) -> Any:
        mask, other, element = _value(mask), _value(other), _element(pointer)
        data = None if other is None or mask is None or element is None else numbers(other, element)
        if rest or element is None or not _plain(mask) or (data is None and other is not None):
            return call(pointer, mask, other, *rest, **words)
        key = pointer.dtype.name, id(pointer.shape), mask is not None and id(mask.shape), *words.items()
        made = known.get(key)
        if made is None:
            result = call(pointer, mask, other, **words)
            known[key] = _Made.like(result)
            return result
        if mask is None:
            return made.holding(builder.create_load(pointer.handle, None, None, False))
        at, chosen = pointer.handle, mask.handle
        if made.shape:
            sizes = made.type.sizes
            at, chosen = _as_large(at, pointer.type, sizes), _as_large(chosen, mask.type, sizes)
            data = None if data is None else np.broadcast_to(data, sizes)
        beside = None if data is None else _handle(data, element)
        return made.holding(builder.create_masked_load(at, chosen, beside, None, None, False))

    return load


def _store(call: Call) -> Call:
    known: dict[tuple[Any, ...], Any] = {}
    builder, semantic = interpreter.interpreter_builder, interpreter.interpreter_semantic

    def store(pointer: Any, value: Any, mask: Any = None, *rest: Any, **words: Any) -> Any:
        mask, element = _value(mask), _element(pointer)
        if rest or element is None or not _plain(mask) or type(value) is not _tensor:
            return call(pointer, value, mask, *rest, **words)
        shapes = id(pointer.shape), id(value.shape), mask is not None and id(mask.shape)
        key = pointer.dtype.name, value.dtype.name, *shapes, *words.items()
        if key not in known:
            known[key] = call(pointer, value, mask, **words)
            return known[key]
        written = semantic.cast(value, element).handle
        if pointer.shape:
            written = _as_large(written, value.type, pointer.type.sizes)
        if mask is None:
            builder.create_store(pointer.handle, written, None, None)
        else:
            chosen = _as_large(mask.handle, mask.type, pointer.type.sizes) if pointer.shape else mask.handle
            builder.create_masked_store(pointer.handle, written, chosen, None, None)
        return known[key]

    return store


def _join(call: Call) -> Call:
    known: dict[tuple[Any, ...], _Made] = {}

    def join(a: Any, b: Any) -> Any:
        if a.shape is not b.shape or not a.shape or a.dtype.name != b.dtype.name:
            return call(a, b)
        key = a.dtype.name, id(a.shape)
        made = known.get(key)
        if made is None:
            known[key] = made = _Made.like(call(a, b))
        one, two = a.handle.data, b.handle.data
        data = np.empty((*one.shape, 2), one.dtype)
        data[..., 0], data[..., 1] = one, two
        return made.of(data, a.handle.dtype.scalar)

    return join


def _pairs() -> dict[str, Callable[[Call], Call]]:
    integers = set(INTEGERS)
    made = {"add": _sum_or_address, "radd": _binary(np.add, _NUMBERS, reverse=True)}
    for name, compute in {"sub": np.subtract, "mul": np.multiply}.items():
        made[name], made[f"r{name}"] = _binary(compute, _NUMBERS), _binary(compute, _NUMBERS, reverse=True)
    comparisons = {
        "lt": np.less, "le": np.less_equal, "eq": np.equal,
        "gt": np.greater, "ge": np.greater_equal, "ne": np.not_equal,
    }  # fmt: skip
    for name, compute in comparisons.items():
        made[name] = _binary(compute, _NUMBERS, _compared)
    for name, compute in {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}.items():
        made[name] = _binary(compute, {"int1", *integers})
    for name, compute in {"lshift": np.left_shift, "rshift": np.right_shift}.items():
        made[name] = _binary(compute, integers, mixed=False)
    for name, compute in {"floordiv": _quotient, "mod": np.fmod}.items():
        made[name] = _binary(compute, integers, div_or_mod=True)
    made["truediv"] = _binary(np.divide, {"fp32", "fp64"}, div_or_mod=True)
    return {f"__{name}__": one for name, one in made.items()}


_OPERATORS = _pairs() | {
    "__getitem__": _with_dimensions, "to": _cast, "cast": _cast, "arange": _range, "where": _select, "join": _join,
    "load": _load, "store": _store,
}  # fmt: skip
