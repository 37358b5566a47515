"""Where calls pass, and are counted: public functions, operators with their gradients, and the choice of a config.

Functions are wrapped as their files are imported, operators as they are made: :meth:`Seats.take` comes before both.
Under torch.compile functions are traced, not called: there an operator is the call.  What a call does inside, other
public functions included, is the call's, and so is its gradient, whichever thread takes it.
"""

from __future__ import annotations

import functools
import inspect
import sys
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from types import ModuleType
from typing import Any

import torch
from torch.autograd import forward_ad

from .. import operators
from ..declaration import choice
from ..errors import in_a_line
from ..operators import operator as operator_module
from .book import DRAWN, Book, Call, Problem, described, key_of

FORWARD, BACKWARD = "forward", "backward"
CALL, OPERATOR = "call", "operator"
"""How a call was seen: a public function, or an operator that compiled code ran."""


class _Here(threading.local):
    """What this thread is in: a public call, or its gradient, and the innermost operator."""

    call: Call | None = None
    during: str = FORWARD
    frame: _Frame | None = None


class _Frame:
    """An operator under way."""

    __slots__ = ("key", "outer", "seat")

    def __init__(self, seat: _Seat, key: Any, outer: _Frame | None):
        self.seat, self.key, self.outer = seat, key, outer


class _Seat:
    """An operator, and what was chosen for it, by the key of its arguments."""

    def __init__(self, op: Any, varying: Collection[int], state: Callable[..., Any] | None):
        self.name = op.name().partition("::")[2].partition(".")[0]
        self._names = [argument.name for argument in op._schema.arguments]
        self._varying = frozenset(varying)
        self._kept = [number for number in range(len(self._names)) if number not in self._varying]
        self._state = state
        self.chosen: dict[Any, list[tuple[str, str, Any]]] = {}

    def key(self, args: Sequence[Any]) -> Any:
        """What the config hangs on: :func:`.book.key_of` of what does not vary, and what is read of torch's state."""
        kept = [key_of(args[number]) for number in self._kept]
        if self._state is not None:
            kept.append(self._state(*args))
        return tuple(kept)

    def described(self, args: Sequence[Any]) -> list[dict[str, Any]]:
        """The arguments as the file holds them."""
        return [
            described(name, value)
            for number, (name, value) in enumerate(zip(self._names, args, strict=False))
            if number not in self._varying
        ]

    def problems(self, key: Any, inside: str, args: Sequence[Any]) -> list[Problem]:
        """What was asked for, one where nothing was chosen."""
        tensors = tuple(one for one in self.described(args) if "shape" in one)
        asked = self.chosen.get(key) or [(None, None, None)]
        return [Problem(self.name, *one, inside, tensors) for one in asked]


class Seats:
    """The seats of one process, which write into one book."""

    def __init__(self, book: Book):
        self._book = book
        self._here = _Here()

    def take(self, library: ModuleType) -> None:
        """Have everything pass here from now on; ``library`` is the package ``kernels``, none of it imported."""
        plain, choose = choice.choose, self._chooser(choice.choose)
        for module in [*sys.modules.values()]:  # a kernel's file may be halfway, with this among what it has imported
            if getattr(module, "__dict__", {}).get("choose") is plain:
                module.choose = choose
        operator_module.written = self._written(operator_module.written)
        operators.Differentiable.__init__ = self._differentiable(operators.Differentiable.__init__)
        # Python sets each family as an attribute of its package when the import is done, before anybody has it.
        type(library).__setattr__ = self._set(library.FUNCTIONS, type(library).__setattr__)

    # --- Public functions --------------------------------------------------------------------------------------------

    def _set(self, functions: Mapping[str, str], set_attribute: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(set_attribute)
        def watched(library, name, value):
            if isinstance(value, ModuleType):
                for function in (function for function, family in functions.items() if family == name):
                    if not hasattr(found := getattr(value, function), "__wrapped__"):
                        setattr(value, function, self._public(function, found))
            set_attribute(library, name, value)

        return watched

    def _public(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        here, book = self._here, self._book
        compiling = torch.compiler.is_compiling

        @functools.wraps(function)
        def watched(*args, **kwargs):
            if compiling() or here.call is not None or here.frame is not None or _virtual((*args, *kwargs.values())):
                return function(*args, **kwargs)
            try:
                given = [(word, value) for word, value in kwargs.items() if word not in DRAWN]
                key = (*map(key_of, args), *((word, key_of(value)) for word, value in given))
                call = book.call(name, CALL, key, lambda: _arguments(function, args, kwargs))
            except Exception:  # a tensor that tells no shape or strides is no reason to end a program
                book.left_out += 1
                return function(*args, **kwargs)
            here.call, here.during = call, FORWARD
            try:
                result = function(*args, **kwargs)
            except Exception as error:
                book.failed(call, in_a_line(error))
                raise
            finally:
                here.call = None
            book.made(call)
            return result

        return watched

    # --- Gradients ---------------------------------------------------------------------------------------------------

    def _differentiable(self, init: Callable[..., None]) -> Callable[..., None]:
        """That of the class, with a context that remembers its call, and a gradient that is taken in its name."""
        here, book = self._here, self._book

        @functools.wraps(init)
        def watched(this, operator, setup_context, backward, *rest, **more):
            name = operator.name.partition("::")[2]

            def noted(ctx, inputs, output):
                setup_context(ctx, inputs, output)
                ctx.watched_call = here.call

            def followed(ctx, *gradients):
                call = getattr(ctx, "watched_call", None)
                if call is None or here.call is not None:
                    return backward(ctx, *gradients)
                here.call, here.during = call, BACKWARD
                try:
                    result = backward(ctx, *gradients)
                finally:
                    here.call, here.during = None, FORWARD
                book.followed(call, name)
                return result

            init(this, operator, noted, followed, *rest, **more)

        return watched

    # --- Operators ---------------------------------------------------------------------------------------------------

    def _written(self, written: Callable[..., Any]) -> Callable[..., Any]:
        """:func:`atlas.operators.call.written`, whose functions count."""
        transforms = torch._C._are_functorch_transforms_active

        @functools.wraps(written)
        def watched(types, varying, plans, op, aside, first, run, state):
            now, plain, straight = written(types, varying, plans, op, aside, first, run, state)
            seat = _Seat(op, varying, state)
            counted = self._counted(seat, plain)

            def now_counted(*args):  # under a transform it comes back, once or several times, as plain calls
                return now(*args) if transforms() or forward_ad._current_level >= 0 else counted(*args)

            return now_counted, counted, self._counted(seat, straight)

        return watched

    def _counted(self, seat: _Seat, function: Callable[..., Any]) -> Callable[..., Any]:
        here, book = self._here, self._book

        def counted(*args):
            outer = here.frame
            if (outer is not None and outer.seat is seat) or _virtual(args):
                return function(*args)  # the dispatcher's half of a call that is being counted
            try:
                frame = _Frame(seat, seat.key(args), outer)
            except Exception:  # as of a public function
                book.left_out += 1
                return function(*args)
            here.frame = frame
            call, during = here.call, here.during
            device = next(value.device for value in args if isinstance(value, torch.Tensor))
            captured = device.type == "cuda" and torch.cuda.is_current_stream_capturing()
            key = (seat, frame.key, outer.seat.name if outer else "")
            known = call.runs.get((during, key)) if call is not None else _of_alone(book, seat, frame.key, during, key)
            timed = known and outer is None and device.type == "cuda" and not captured
            span = book.spans.begin(known[0], device) if timed else None
            try:
                result = function(*args)
            finally:
                here.frame = outer
                if span is not None:
                    book.spans.end(span)
            alone = call is None
            if call is None:
                call = book.call(seat.name, OPERATOR, frame.key, lambda: seat.described(args))
            runs = book.runs(call, during, key, device, lambda: seat.problems(frame.key, key[2], args))
            book.ran(call, runs, alone and outer is None, captured)
            return result

        return counted

    # --- Configs -----------------------------------------------------------------------------------------------------

    def _chooser(self, choose: Callable[..., Any]) -> Callable[..., Any]:
        """:func:`atlas.declaration.choose`, which tells the operator that asks for a config what it was asked for."""
        here, book = self._here, self._book

        @functools.wraps(choose)
        def watched(declaration, direction, case, device, *rest, **more):
            asked = (declaration.name, direction, case)
            frame, call = here.frame, here.call
            if frame is not None:
                chosen = frame.seat.chosen.setdefault(frame.key, [])
                if asked not in chosen:
                    chosen.append(asked)
            elif call is not None:  # a public function that launches by itself
                runs = book.runs(call, here.during, asked, device, lambda: [Problem(call.function, *asked)])
                book.ran(call, runs, False, False)
            return choose(declaration, direction, case, device, *rest, **more)

        return watched


def _of_alone(book: Book, seat: _Seat, key: Any, during: str, place: Any) -> Any:
    found = book.known(seat.name, OPERATOR, key)
    return found.runs.get((during, place)) if found is not None else None


def _virtual(args: Sequence[Any]) -> bool:
    """Whether a call computes shapes alone: of meta tensors and fake ones."""
    for value in args:
        if isinstance(value, torch.Tensor):
            return value.is_meta or (type(value) is not torch.Tensor and type(value).__name__ == "FakeTensor")
    return False


def _arguments(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What a public function was given, by the names of its parameters."""
    try:
        given = inspect.signature(function).bind(*args, **kwargs).arguments
    except TypeError:  # as the call will say
        given = {str(number): value for number, value in enumerate(args)} | dict(kwargs)
    return [described(name, value) for name, value in given.items() if name not in DRAWN]
