"""Operators: a launcher registered with torch, repeated from a recording in eager mode; and its gradient."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Collection, Hashable, Sequence
from typing import Any

import torch

from ..declaration import Case, Declaration, choose
from .call import watched, written
from .direct import Indirect, direct
from .launching import Varying, compiles_only
from .native import extension, kept_by, pulling, unavailable
from .plan import Plan, layout, plan
from .recording import Recording, Unrepeatable
from .transforms import torch_gradients, transformable, transformed

NAMESPACE = "kernel_atlas"

_TAGS = (torch.Tag.pt2_compliant_tag, torch.Tag.needs_exact_strides)
"""Strides as they were traced: a launcher trusts what its public function has seen to, and inductor pads rows."""

_MOST_PLANS = 4096
"""Recordings an operator keeps; shapes that never return should not fill the memory."""

_ATTEMPTS = 2
"""Calls that are recorded before a launcher counts as unrepeatable: its first may fill caches of its own."""

_is_compiling = torch.compiler.is_compiling

_registered: set[str] = set()
"""Operators of this process: torch takes a name once, and a file may be loaded twice."""


class CustomOperator:
    """A function of tensors and scalars that launches kernels: ``torch.ops.kernel_atlas.<name>``.

    :class:`Operator` is the one to use for a pass of a declared kernel; this one leaves to ``run`` what is launched.

    ``schema`` is torch's, without the name: ``"(Tensor x, float eps) -> (Tensor, Tensor)"``.  ``run`` takes these
    arguments, all by position, and returns the outputs; ``fake`` returns tensors like the outputs without computing
    them.  ``varying`` names int arguments that differ from call to call.  ``state``, given
    the arguments, reads what ``run`` asks of torch's global state (a precision): a recording holds for one value of it.

    On CUDA tensors, outside torch.compile, the first call for given shapes, strides, dtypes, alignment and scalars is
    recorded and later ones repeat its allocations and launches.  What a launcher does beyond that makes it
    unrepeatable: ``obstacles`` says so, and every call then goes through ``run``.  A recording keeps the config that
    was chosen when it was made.
    """

    repeats_on: Collection[str] = ("cuda",)
    """Types of devices whose calls are recorded."""

    def __init__(
        self,
        name: str,
        schema: str,
        run: Callable[..., Any],
        fake: Callable[..., Any],
        varying: Sequence[str] = (),
        state: Callable[..., Hashable] | None = None,
    ):
        self.obstacles: set[str] = set()
        self._run = _without_autocast(run)
        self._plans: dict[tuple, Plan] = {}
        self._attempts: dict[tuple, int] = {}
        # A kernel file that is loaded a second time under another name must not take the first one's operators over.
        frame = sys._getframe(1)
        while frame.f_globals is globals():  # a subclass, below
            frame = frame.f_back
        module = frame.f_globals["__name__"]
        library = NAMESPACE if module.startswith("kernels.") else f"{NAMESPACE}__{module.replace('.', '_')}"
        while f"{library}::{name}" in _registered:
            library += "_again"
        _registered.add(f"{library}::{name}")
        self._library = torch.library.Library(library, "FRAGMENT")
        self._library.define(f"{name}{schema}", tags=_TAGS)
        self.name = f"{library}::{name}"

        def known_fake(*args, **kwargs):
            self._tell_inductor()
            return fake(*args, **kwargs)

        torch.library.register_fake(self.name, known_fake, lib=self._library)
        self.op = getattr(getattr(torch.ops, library), name).default
        arguments = self.op._schema.arguments
        self.varying = frozenset(number for number, argument in enumerate(arguments) if argument.name in set(varying))
        self.written = frozenset(n for n, one in enumerate(arguments) if one.alias_info and one.alias_info.is_write)
        self.now, self.plain, self._straight = written(
            [str(a.type) for a in arguments],
            self.varying,
            self._plans,
            self.op,
            transformable(name, self, self.op),
            self._first,
            self._run,
            state,
        )
        self._library.impl(name, self._straight, "CompositeExplicitAutograd")
        self._state = state
        self._native = unavailable
        self._gradients: list[Differentiable] = []
        extension.register(self)

    def adopt(self, module: Any) -> None:
        """Have ``module``, the extension, make the calls that it can; it learns of each when it is recorded."""
        varying, written = (sum(1 << number for number in numbers) for numbers in (self.varying, self.written))
        self._native = unavailable  # so that the dispatcher forgets an earlier one's calls before it learns of these
        self._native = module.call(self.name.rpartition(":")[2], varying, written, self._state)
        self._native.dispatch(self.name, False)
        for gradient in self._gradients:
            gradient.adopt(self._native)
        self._plans.clear()
        self._attempts.clear()

    def _tell_inductor(self) -> None:
        """Name the operator among those that inductor calls as they are; called while torch.compile traces it.

        Of one that it does not know, inductor before torch 2.13 writes out all that leads to its arguments, for a log
        that nobody reads: twice as long with each layer of a network, minutes at four (pytorch#185951).  And it
        computes what several operators read once for each, until it has met one of them.
        """
        # None where another backend traces, another thread is at the import, or a torch has no such list.
        lowering = sys.modules.get("torch._inductor.lowering")
        for known, one in (("FALLBACK_ALLOW_LIST", self.name), ("needs_realized_inputs", self.op)):
            if (listed := getattr(lowering, known, None)) is not None:
                listed.add(one)

    def add_gradient(self, gradient: Differentiable) -> None:
        """Have ``gradient`` follow where calls of this operator are made in the extension."""
        self._gradients.append(gradient)
        if self._native is not unavailable:
            gradient.adopt(self._native)

    def register_autograd(self, setup_context: Callable[..., None], backward: Callable[..., Any]) -> None:
        """Tell torch the gradient of the operator, as :func:`torch.library.register_autograd`."""
        torch.library.register_autograd(self.name, backward, setup_context=setup_context, lib=self._library)

    def __call__(self, *args: Any) -> Any:
        """The operator on all its arguments, without gradients in eager mode (:class:`Differentiable` has them)."""
        if _is_compiling():
            return self.op(*args)
        result = self._native(*args)
        return self.now(*args) if result is NotImplemented else result

    def _first(self, key: tuple, *args: Any) -> Any:
        """A call that no recording is of; it is recorded where that can be of use."""
        tensors = [value for value in args if isinstance(value, torch.Tensor)]
        device = tensors[0].device
        if any(tensor.is_meta for tensor in tensors):
            return self._run(*args) if compiles_only() else self.op(*args)
        if (
            device.type not in self.repeats_on
            or self._attempts.get(key, 0) >= _ATTEMPTS
            or watched()
            or any(tensor.device != device for tensor in tensors)
        ):
            return self._run(*args)
        if len(self._attempts) >= _MOST_PLANS:
            self._plans.clear()
            self._attempts.clear()
            if self._native is not unavailable:
                self._native.forget()
        self._attempts[key] = self._attempts.get(key, 0) + 1
        given = [Varying.of(v, number) if number in self.varying else v for number, v in enumerate(args)]
        with torch.no_grad(), Recording(args) as recording:
            result = self._run(*given)
        try:
            laid = layout(recording, result)
            self._plans[key] = repeat = plan(recording, laid, args, device)
        except Unrepeatable as obstacle:
            self.obstacles.add(str(obstacle))
            return result
        if device.type == "cuda":
            extension.wanted(device)
        if self._native is not unavailable:
            single = isinstance(result, torch.Tensor)
            try:
                self._native.learn(args, direct(recording.launches, *laid, single, args), single)
            except (Indirect, RuntimeError, TypeError):  # what it cannot take in numbers it has from Python
                self._native.learn(args, repeat, single)
        return result


class Operator(CustomOperator):
    """The operator of one pass of a declared kernel: it chooses variant and config for a call, and launches.

    ``direction`` is ``"forward"`` or ``"backward"``; ``schema``, ``fake``, ``varying`` and ``state`` are those of
    :class:`CustomOperator`, and ``name`` is ``<kernel>_<direction>`` where none is given.  ``case_of``, given the
    operator's arguments by position, names the case whose config is to run; it raises what the call raises.

    Without a ``fake`` the output is like the first argument.  The chosen variant's launcher is called with the
    operator's arguments, by position.  Where it takes other ones, or its results need a last touch,
    ``run(launch, *args)`` does both: ``launch`` is that launcher with its config.
    """

    def __init__(
        self,
        declaration: Declaration,
        direction: str,
        schema: str,
        *,
        case_of: Callable[..., Case],
        fake: Callable[..., Any] = lambda x, *_: torch.empty_like(x),
        name: str | None = None,
        run: Callable[..., Any] | None = None,
        varying: Sequence[str] = (),
        state: Callable[..., Hashable] | None = None,
    ):
        def chosen(*args: Any) -> Any:
            device = next(value.device for value in args if isinstance(value, torch.Tensor))
            variant, config = choose(declaration, direction, case_of(*args), device)
            if run is None:
                return variant.launch(*args, config=config)
            return run(functools.partial(variant.launch, config=config), *args)

        super().__init__(name or f"{declaration.name}_{direction}", schema, chosen, fake, varying, state)


def _without_autocast(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function``, for which autocast is off: which dtypes an operator computes in is settled before it is called."""

    @functools.wraps(function)
    def called(*args):
        if not torch._C._is_any_autocast_enabled():
            return function(*args)
        with torch._C._DisableAutocast():
            return function(*args)

    return called


class Differentiable:
    """An operator with a gradient; call it with all the operator's arguments, by position.

    ``setup_context(ctx, inputs, output)`` and ``backward(ctx, *grads)`` are as for
    :func:`torch.library.register_autograd`; ``backward`` returns a gradient for each argument, None where it has none.
    Under torch.compile the call is the registered operator; in eager mode it costs no more than an autograd function,
    and where no argument wants a gradient, no more than the operator.

    Transforms of torch.func and derivatives in forward mode follow from the gradient; ``pushforward(args, tangents)``
    gives the latter where the gradient is not quite the transpose of the derivative.
    """

    def __init__(
        self,
        operator: CustomOperator,
        setup_context: Callable[..., None],
        backward: Callable[..., Any],
        pushforward: Callable[..., Any] | None = None,
    ):
        self.operator = operator
        backward = _without_autocast(backward)
        operator.register_autograd(setup_context, backward)

        class Function(torch.autograd.Function):
            @staticmethod
            def forward(ctx, *args):  # with a setup_context of its own torch would inspect signatures at every call
                output = operator.plain(*args)
                setup_context(ctx, args, output)
                self._teach(args, output)
                return output

        name = operator.name.rpartition(":")[2]
        Function.backward = staticmethod(backward)
        Function.__name__ = Function.__qualname__ = name
        self._function = Function
        self._transformed = transformable(name, self, operator.op, setup_context, backward, pushforward)
        self._name, self._setup_context, self._pull = name, setup_context, pulling(backward)
        self._native = unavailable
        operator.add_gradient(self)

    def adopt(self, native: Any) -> None:
        """Have ``native``, the operator's call in the extension, make those calls that it can."""
        self._native = native.gradient(self._name, self._pull)
        native.dispatch(self.operator.name, True)

    def _teach(self, args: Sequence[Any], output: Any) -> None:
        """Tell the extension what the context keeps of this call, which Python makes."""
        if self._native is unavailable:
            return
        try:
            kept = kept_by(self._setup_context, args, output, self.operator.varying)
        except (TypeError, Unrepeatable) as obstacle:
            self.operator.obstacles.add(str(obstacle))
            self._native = unavailable
        else:
            self._native.learn_gradient(args, *kept)

    @classmethod
    def by_torch(cls, operator: CustomOperator, function: Callable[..., torch.Tensor]) -> Differentiable:
        """``operator`` with the gradient of ``function``, which computes the same in torch's operations, in fp32.

        It is right, and differentiable in turn; it costs what those operations cost, until there is a backward pass.
        """

        def setup_context(ctx: Any, inputs: Sequence[Any], output: Any) -> None:
            tensors = [isinstance(value, torch.Tensor) for value in inputs]
            ctx.scalars = [None if given else value for given, value in zip(tensors, inputs, strict=True)]
            ctx.save_for_backward(*(v if given else None for given, v in zip(tensors, inputs, strict=True)))

        def backward(ctx: Any, upstream: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
            saved = ctx.saved_tensors
            turning = [x if x is not None and x.is_floating_point() else None for x in saved]

            def wide(*inputs: Any) -> torch.Tensor:
                values = zip(inputs, saved, ctx.scalars, strict=True)
                return function(*(k if s is None else s if x is None else x.float() for x, s, k in values))

            return tuple(torch_gradients(wide, turning, upstream.float()))

        return cls(operator, setup_context, backward)

    def __call__(self, *args: Any) -> Any:
        if _is_compiling():
            return self.operator.op(*args)
        result = self._native(*args)
        if result is not NotImplemented:
            return result
        if transformed():
            return self._transformed(*args)
        if torch.is_grad_enabled():
            for value in args:
                if isinstance(value, torch.Tensor) and value.requires_grad:
                    return self._function.apply(*args)
        return self.operator.plain(*args)

    def again(self, *args: Any) -> Any:
        """The call, where the extension repeats one like it; else None.

        For a public function that has yet to check its arguments: what a recording is found under (dtypes, shapes,
        strides, devices, scalars) passed when it was made, and checks in Python take as long as the launch.
        """
        if _is_compiling():
            return None
        result = self._native(*args)
        return None if result is NotImplemented else result
