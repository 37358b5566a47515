"""What one call of a launcher allocated and launched, told in terms of its inputs."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from .launching import Varying, recording

_ALLOCATIONS = frozenset(
    {
        torch.ops.aten.empty.memory_format,
        torch.ops.aten.empty_strided.default,
        torch.ops.aten.empty_like.default,
        torch.ops.aten.new_empty.default,
        torch.ops.aten.new_empty_strided.default,
    }
)


def _operation(name: str) -> Any:
    """torch's operation ``mm.default``; None where this version has none of the name."""
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet, None), overload, None)


_OF_TORCH = {
    _operation(name)
    for name in (
        "mm.default", "mm.out", "mm.dtype_out", "addmm.default", "addmm.out", "addmm.dtype_out", "sum.dim_IntList",
        "copy_.default", "add_.Tensor", "new_zeros.default", "_to_copy.default",
    )
}  # fmt: skip
"""What launchers may have torch compute: it depends on nothing but its arguments, and draws and reads nothing."""


class Unrepeatable(Exception):
    """The call did more than allocate, view and launch; the message says what."""


@dataclass(frozen=True)
class Source:
    """A tensor's memory: that of input ``number``, or of the ``number``-th allocation; ``offset`` in bytes."""

    allocated: bool
    number: int
    offset: int = 0


@dataclass(frozen=True, eq=False)
class Constant:
    """A tensor that was there before the call and is none of its inputs: the same at every call."""

    tensor: torch.Tensor


@dataclass(frozen=True, eq=False)
class Described:
    """A host tensor descriptor (Triton's or Gluon's) over ``memory``; ``form`` is the descriptor without its tensor."""

    memory: Source | Constant
    form: Any


@dataclass(frozen=True)
class VaryingInput:
    """The value of input ``number``, another one at each call."""

    number: int


@dataclass(frozen=True)
class Launch:
    """The compiled kernel, three dimensions of programs, and a value for each of the kernel's parameters."""

    compiled: Any
    grid: tuple[int, int, int]
    values: tuple[Any, ...]


@dataclass(frozen=True)
class Operand:
    """A tensor that torch is given: a view of ``memory`` with the ``geometry``."""

    memory: Source | Constant
    geometry: Geometry


@dataclass(frozen=True)
class OfTorch:
    """What torch computed; ``made`` is the allocation that it gave, None where it wrote into one of its arguments."""

    function: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    made: int | None

    @property
    def operands(self) -> list[Operand]:
        """The tensors among the arguments."""
        return [value for value in (*self.args, *self.kwargs.values()) if isinstance(value, Operand)]


@dataclass(frozen=True)
class Geometry:
    """Shape, strides (elements) and dtype of an allocation or an output."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype

    @staticmethod
    def of(tensor: torch.Tensor) -> Geometry:
        """That of a tensor."""
        return Geometry(tuple(tensor.shape), tensor.stride(), tensor.dtype)

    def extent(self) -> int:
        """The bytes from its first element to its last."""
        last = sum((size - 1) * stride for size, stride in zip(self.shape, self.stride, strict=True))
        return (last + 1) * self.dtype.itemsize


class Recording(TorchDispatchMode):
    """Active while a call on ``inputs`` runs; afterwards ``allocations`` and ``launches`` say what it did.

    Among the launches is what torch computed between them.  ``outputs`` tells what the call returned, and raises
    :class:`Unrepeatable` where it did anything else.
    """

    def __init__(self, inputs: Sequence[Any]):
        super().__init__()
        self.allocations: list[Geometry] = []
        self.launches: list[Launch | OfTorch] = []
        self._obstacle = ""
        self._kept: list[torch.Tensor] = []  # no address and no id is given twice while it records
        self._allocated: dict[int, int] = {}
        self._inputs = [(number, value) for number, value in enumerate(inputs) if isinstance(value, torch.Tensor)]
        # Inputs that share memory are told apart by which of them a tensor is, or is a view of.  Of one that stands
        # in two places the first is taken: a recording is of calls in which the same arguments are one tensor.
        self._origins = {id(value): number for number, value in reversed(self._inputs)}
        storages = [value.untyped_storage().data_ptr() for _, value in self._inputs]
        self._shared = {storage for storage in storages if storages.count(storage) > 1}

    def __enter__(self):
        recording.tape = self
        return super().__enter__()

    def __exit__(self, *exception):
        recording.tape = None
        return super().__exit__(*exception)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if recording.launching:  # scratch of a kernel, which its launcher asks for at every launch
            return result
        if func in _ALLOCATIONS:
            self._kept.append(result)
            if result.numel():
                self._allocate(result)
        elif func.is_view or func is torch.ops.aten.detach.default:
            self._follow(args[0], result)
        elif func in _OF_TORCH:
            self._computed(func, args, kwargs or {}, result)
        else:
            self._hinder(f"it calls {func}")
        return result

    def _allocate(self, tensor: torch.Tensor) -> int:
        number = len(self.allocations)
        self._allocated[tensor.untyped_storage().data_ptr()] = number
        self.allocations.append(Geometry.of(tensor))
        return number

    def _computed(self, func: Any, args: tuple, kwargs: dict[str, Any], result: Any) -> None:
        """Keep what torch computed, in the order of the launches."""
        self._kept.append(result)
        try:
            given = tuple(self._operand(value) for value in args)
            named = {name: self._operand(value) for name, value in kwargs.items()}
        except Unrepeatable as obstacle:
            return self._hinder(str(obstacle))
        storage = result.untyped_storage().data_ptr()
        if any(value.untyped_storage().data_ptr() == storage for _, value in self._inputs):
            return self._hinder(f"it calls {func} on an input")
        made = None if storage in self._allocated else self._allocate(result)
        self.launches.append(OfTorch(func, given, named, made))

    def _operand(self, value: Any) -> Any:
        if isinstance(value, Varying):
            raise Unrepeatable("torch computes with what varies from call to call")
        if not isinstance(value, torch.Tensor):
            return value
        if not value.numel():
            raise Unrepeatable("torch computes with an empty tensor")
        source = self._source(value)
        if isinstance(source, Constant):
            raise Unrepeatable("torch computes with a tensor that is none of the call's")
        whole = self.allocations[source.number].dtype if source.allocated else dict(self._inputs)[source.number].dtype
        if whole != value.dtype or value.is_neg() or value.is_conj():
            raise Unrepeatable("torch computes with memory of another dtype")
        return Operand(source, Geometry.of(value))

    def _follow(self, tensor: torch.Tensor, views: Any) -> None:
        """Remember of which input ``views``, one or several, are, if ``tensor`` is one or a view of one."""
        origin = self._origins.get(id(tensor))
        for view in views if isinstance(views, list | tuple) else (views,):
            self._kept.append(view)
            if origin is not None:
                self._origins[id(view)] = origin

    def launched(self, kernel: Any, grid: tuple[int, ...], args: tuple, meta: dict[str, Any], compiled: Any) -> None:
        """Keep a launch; its tensors are found among the inputs and allocations by their memory."""
        if getattr(kernel, "pre_run_hooks", None):
            return self._hinder("its kernel has hooks")
        bound = inspect.signature(kernel.fn).bind(*args, **{k: v for k, v in meta.items() if k in kernel.arg_names})
        bound.apply_defaults()
        parameters = dict(zip(kernel.arg_names, kernel.params, strict=True))
        try:
            values = tuple(self._described(bound.arguments[name], parameters[name]) for name in kernel.arg_names)
        except Unrepeatable as obstacle:
            return self._hinder(str(obstacle))
        self.launches.append(Launch(compiled, (*grid, 1, 1)[:3], values))

    def outputs(self, result: Any) -> list[tuple[Source, Geometry]]:
        """Where each returned tensor lies; :class:`Unrepeatable` where the call cannot be told in these terms."""
        if self._obstacle:
            raise Unrepeatable(self._obstacle)
        found = []
        for tensor in () if result is None else result if isinstance(result, tuple) else (result,):
            if not isinstance(tensor, torch.Tensor):
                raise Unrepeatable(f"it returns {type(tensor).__name__}")
            if not tensor.numel() and not any(tensor is value for _, value in self._inputs):
                self.allocations.append(Geometry.of(tensor))
                found.append((Source(True, len(self.allocations) - 1), Geometry.of(tensor)))
                continue
            source = self._source(tensor)
            if not (isinstance(source, Source) and source.allocated):
                raise Unrepeatable("it returns what it did not allocate")
            found.append((source, Geometry.of(tensor)))
        return found

    def _hinder(self, reason: str) -> None:
        self._obstacle = self._obstacle or reason

    def _described(self, value: Any, parameter: Any) -> Any:
        if isinstance(value, Varying):
            if not (parameter.do_not_specialize and parameter.annotation_type):
                raise Unrepeatable(f"its kernel is compiled for values of {parameter.name}, which varies: annotate it "
                                   "as tl.int64 and name it in do_not_specialize")  # fmt: skip
            return VaryingInput(value.number)
        if isinstance(value, torch.Tensor):
            return self._source(value)
        if type(value).__name__ == "TensorDescriptor":
            form = copy.copy(value)
            form.base, form.shape, form.strides = None, tuple(value.shape), tuple(value.strides)
            return Described(self._source(value.base), form)
        if value is None or isinstance(value, bool | int | float | str) or parameter.is_constexpr:
            return value
        raise Unrepeatable(f"its kernel takes a {type(value).__name__}")

    def _source(self, tensor: torch.Tensor) -> Source | Constant:
        storage, address = tensor.untyped_storage().data_ptr(), tensor.data_ptr()
        if storage in self._allocated:
            return Source(True, self._allocated[storage], address - storage)
        if id(tensor) in self._origins:
            number = self._origins[id(tensor)]
            return Source(False, number, address - dict(self._inputs)[number].data_ptr())
        if storage in self._shared:
            raise Unrepeatable("its inputs share memory in a way that another call's may not")
        for number, value in self._inputs:
            if value.untyped_storage().data_ptr() == storage:
                return Source(False, number, address - value.data_ptr())
        return Constant(tensor)
