"""The extension in C++ that makes plain calls: when it is built, how operators come to it, how to do without.

A call in Python costs some 10 us of the host and a training step 100; in C++ a third of that.  What the extension does
not take it leaves to Python, which does the same; so both are right, and either may be missing.

``KERNEL_ATLAS_NATIVE`` says when: ``auto``, the default, builds it in the background at the first recorded call,
``wait`` has that call wait for it, ``off`` does without.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

import torch
import triton
from torch.autograd import forward_ad

from ..declaration.products import precision_word
from .building import build, load
from .direct import addresses
from .launching import Varying, recording
from .recording import Unrepeatable

VARIABLE = "KERNEL_ATLAS_NATIVE"
WAYS = ("auto", "wait", "off")
DEFAULT = "auto"


def unavailable(*_: Any) -> Any:
    """What stands where a call in C++ would be: it takes none."""
    return NotImplemented


def step(function: Callable[..., torch.Tensor], *args: Any) -> torch.Tensor:
    """``function(*args)``, in a gradient: of torch's functions those that it calls beside operators and views.

    The extension then repeats it with the rest of the gradient, without Python.  ``function`` must be one object that
    is the same at every call (``torch.Tensor.contiguous``), and gives one tensor for tensors and constants.
    """
    return extension.step(function, *args)


def contiguous(x: torch.Tensor) -> torch.Tensor:
    """``x.contiguous()`` as a :func:`step` of a gradient."""
    return extension.step(torch.Tensor.contiguous, x)


def _plain_step(function: Callable[..., torch.Tensor], *args: Any) -> torch.Tensor:
    return function(*args)


class Extension:
    """The extension of this process: ``module`` once it is loaded; ``reason`` says why it is not."""

    def __init__(self) -> None:
        self.module: Any = None
        self.reason = "no call has been recorded yet"
        self.step: Callable[..., torch.Tensor] = _plain_step
        self._operators: weakref.WeakSet[Any] = weakref.WeakSet()
        self._lock = threading.Lock()
        self._started: threading.Thread | None = None

    def register(self, operator: Any) -> None:
        """Have ``operator.adopt(module)`` called once the extension is there, at once if it is."""
        with self._lock:
            self._operators.add(operator)
            module = self.module
        if module is not None:
            operator.adopt(module)

    def wanted(self, device: torch.device) -> None:
        """A call was recorded on ``device``: see to the extension, as the environment says."""
        if self._started is not None:
            return
        way = os.environ.get(VARIABLE, DEFAULT)
        if way not in WAYS:
            raise ValueError(f"{VARIABLE} is one of {', '.join(WAYS)}: {way!r}")
        with self._lock:
            if self._started is not None:
                return
            # No call of CUDA in that thread: it would spoil a graph that this one captures.
            self._started = threading.Thread(target=self._prepare, args=(_keys(device),), daemon=True)
        if way == "off":
            self.reason = f"{VARIABLE}=off"
            return
        self.reason = "it is being built"
        try:
            self._started.start()
        except RuntimeError as error:  # no thread is to be had, or the program is at its end
            self.reason = f"{type(error).__name__}: {error}"
            return
        if way == "wait":
            self._started.join()

    def forked(self) -> None:
        """This process is a fork of one that may be building: its thread is not here, and its lock may be held."""
        self._lock = threading.Lock()
        if self.module is None:
            self._started = None

    def ready(self, device: torch.device) -> bool:
        """Whether it is there for calls on ``device``, after waiting for it where it is wanted."""
        self.wanted(device)
        if self._started.ident is not None:
            self._started.join()
        return self.module is not None

    def _prepare(self, keys: int) -> None:
        try:
            self._use(load(build()), keys, triton.runtime.driver.active.get_current_stream)
        except Exception as error:  # Python makes all calls then, as it did until now
            self.reason = f"{type(error).__name__}: {error}"

    def use(self, module: Any, device: torch.device, stream: Callable[[int], int]) -> None:
        """Make calls on plain tensors of ``device`` by ``module`` from now on; ``stream`` gives the current one."""
        self._use(module, _keys(device), stream)

    def _use(self, module: Any, keys: int, stream: Callable[[int], int]) -> None:
        module.configure(
            keys,
            torch._C._are_functorch_transforms_active,
            vars(forward_ad),
            triton.knobs.runtime.launch_enter_hook,
            triton.knobs.runtime.launch_exit_hook,
            stream,
            precision_word,
            addresses(),
        )
        with self._lock:
            self.module, self.reason, self.step = module, "", module.step
            operators = list(self._operators)
        for operator in operators:
            operator.adopt(module)


def _keys(device: torch.device) -> int:
    """The dispatch keys of a plain tensor, as bits."""
    with torch.inference_mode(False):
        return torch._C._dispatch_keys(torch.empty(0, device=device)).raw_repr()


extension = Extension()
os.register_at_fork(after_in_child=extension.forked)


class _Kept:
    """What ``backward`` is given for ``ctx``."""

    def __init__(self, saved: tuple, needs: tuple, attributes: dict[str, Any]):
        vars(self).update(attributes)
        self.saved_tensors = saved
        self.needs_input_grad = needs


class _Notes:
    """What ``setup_context`` is given for ``ctx`` while it is found out what it keeps."""

    def __init__(self, needs: tuple[bool, ...]):
        vars(self).update(needs_input_grad=needs, _saved=(), _fixed=(), _zeros=True)

    def save_for_backward(self, *tensors: torch.Tensor | None) -> None:
        vars(self)["_saved"] = tensors

    def mark_non_differentiable(self, *tensors: torch.Tensor) -> None:
        vars(self)["_fixed"] = tensors

    def set_materialize_grads(self, value: bool) -> None:
        vars(self)["_zeros"] = value


class _Launches:
    """Takes note of launches in a gradient that no operator makes: the extension would not see them."""

    def launched(self, *_: Any) -> None:
        extension.module.missed()


_launches = _Launches()


def pulling(backward: Callable[..., Any]) -> Callable[..., Any]:
    """``backward`` as the extension calls it."""

    def pull(saved: tuple, needs: tuple, kept: tuple, varying: tuple, *gradients: torch.Tensor | None) -> Any:
        attributes, names = kept
        if names:
            attributes = attributes | dict(zip(names, varying, strict=True))
        before, recording.tape = recording.tape, _launches
        try:
            return backward(_Kept(saved, needs, attributes), *gradients)
        finally:
            recording.tape = before

    return pull


def kept_by(
    setup_context: Callable[..., None], args: Sequence[Any], output: Any, varying: Iterable[int]
) -> tuple[Any, ...]:
    """What ``setup_context`` keeps of a call, told by where it stands, for the extension's ``learn_gradient``.

    Raises :class:`~.recording.Unrepeatable` for what is neither an argument, nor an output, nor the same for all calls
    that repeat one recording.
    """
    needs = tuple(isinstance(value, torch.Tensor) and value.requires_grad for value in args)
    notes = _Notes(needs)
    setup_context(notes, tuple(Varying.of(v, n) if n in varying else v for n, v in enumerate(args)), output)
    attributes = dict(vars(notes))
    saved, fixed, zeros = (attributes.pop(name) for name in ("_saved", "_fixed", "_zeros"))
    attributes.pop("needs_input_grad")
    names = [name for name, value in attributes.items() if isinstance(value, Varying)]
    numbers = tuple(attributes.pop(name).number for name in names)
    for name, value in attributes.items():
        _check_constant(name, value)
    outputs = output if isinstance(output, tuple) else (output,)
    places = tuple(_place(tensor, args, outputs) for tensor in saved)
    bits = sum(1 << n for n, one in enumerate(outputs) if any(one is other for other in fixed))
    return places, bits, zeros, numbers, needs, (attributes, tuple(names))


def _place(tensor: Any, args: Sequence[Any], outputs: Sequence[Any]) -> tuple[int, int]:
    if tensor is None:
        return 0, 0
    for kind, among in ((1, args), (2, outputs)):
        for number, one in enumerate(among):
            if one is tensor:
                return kind, number
    raise Unrepeatable("it saves what is neither an argument nor an output")


def _check_constant(name: str, value: Any) -> None:
    if isinstance(value, tuple | list):
        for one in value:
            _check_constant(name, one)
    elif isinstance(value, Varying) or not isinstance(value, Hashable) or isinstance(value, torch.Tensor):
        raise Unrepeatable(f"its context keeps a {type(value).__name__} as {name}")
