"""The types of a kernel's declaration: variant, pass, declaration."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch

from .cases import DTYPES, Case, torch_dtype
from .hardware import GPU, Capability
from .peers import Peer

Function = TypeVar("Function", bound=Callable)

Config = Mapping[str, Any]
"""One point of a tuning space: block sizes, ``num_warps``, ``num_stages``, …"""

# Dtypes that Triton cannot even load where the capability is missing, or whose meaning rests on it.
_DTYPE_NEEDS = {"fp8e4m3": Capability.FP8, "tf32": Capability.TF32}


def _always(*_: Any) -> str:
    return ""


@dataclass(frozen=True, eq=False)
class Variant:
    """One implementation of one pass of a kernel.

    ``launch(*, config, **inputs)`` allocates the outputs, launches and returns them; it is the one function that ahead-
    of-time builds (meta tensors), the tuner, the benchmark and the public function call.  It validates nothing.
    ``fits(config, case, gpu)`` and ``handles(case, gpu)`` return ``""`` for yes, otherwise the reason why not: a config
    that cannot launch (shared memory, registers), a case this variant is not written for (rows too long).
    ``follows`` names the variant of the same pass that this one was made from, by the change that ``summary`` tells:
    the rungs of the kernel's ladder, which the kernel log shows with what each of them brought.
    """

    name: str
    launch: Callable[..., Any]
    space: Mapping[str, Sequence[Any]]
    default: Callable[[Case, GPU], Config]
    summary: str = ""
    fits: Callable[[Config, Case, GPU], str] = _always
    handles: Callable[[Case, GPU], str] = _always
    needs: frozenset[str] = frozenset()
    deterministic: bool = True
    follows: str = ""

    def configs(self, case: Case, gpu: GPU) -> Iterator[dict[str, Any]]:
        """Every config of the space that fits, in the order of the parameter lists."""
        for values in itertools.product(*self.space.values()):
            config = dict(zip(self.space, values, strict=True))
            if not self.fits(config, case, gpu):
                yield config

    def unsupported(self, case: Case, gpu: GPU) -> str:
        """Why this variant cannot run this case on this GPU, or ``""``."""
        needs = self.needs | ({_DTYPE_NEEDS[case.dtype]} if case.dtype in _DTYPE_NEEDS else set())
        lacking = sorted(needs - gpu.capabilities)
        if lacking and not gpu.functional:
            return f"{gpu.name} has no {', '.join(lacking)}"
        return self.handles(case, gpu)


@dataclass(frozen=True, eq=False)
class Random:
    """How to check a pass that draws random numbers to keep some elements and drop the others (dropout).

    ``seed`` and ``probability`` name the inputs that hold the seed, an int, and the probability of being dropped, a
    float.  ``mask(inputs, outputs)`` recovers from a launch's outputs which elements were kept, as a bool tensor of the
    shape that the mask has; it may take for granted that no element of the floating inputs is 0.  The pass's
    ``reference`` takes that mask as a further keyword argument ``mask``.  Elements are kept independently.
    """

    seed: str
    probability: str
    mask: Callable[[Mapping[str, Any], Sequence[torch.Tensor]], torch.Tensor]


@dataclass(frozen=True, eq=False)
class Pass:
    """One direction of a kernel: what it computes, from what, at what cost, and who else computes it.

    ``inputs(case, device, generator)`` returns the keyword arguments of ``reference`` and of every ``launch``; with
    ``device="meta"`` the generator is None.  ``reference`` is plain torch and is evaluated in float64.  ``peers`` map a
    name to what a user would run instead; ``peers["torch"]`` is required, it is the error yardstick of validation.
    ``bytes`` and ``flops`` give the least traffic and arithmetic of a case, a term for each tensor or product.
    ``reduction(case)`` is how many terms one output element accumulates: absolute tolerances grow with it.
    ``random`` says how a pass is checked whose result hangs on random numbers.
    ``rounds_products`` says that products of the inputs are rounded to the case's dtype before the pass goes on with
    them, as torch's operation does: 16 bits leave nothing of such products under a common offset, which then says
    nothing, and is checked in fp32 alone.
    ``offset_inputs`` names the inputs that validation gives a common offset; None: all.  Of inputs whose products go
    into an exponential, fp32 keeps nothing under one: the products differ by less than their own rounding.
    ``precision(case)`` is the dtype whose tolerance counts beside that of the outputs: the case's, to which
    intermediates may be rounded.  A product of 8-bit operands rounds nothing to 8 bits, and says its outputs' dtype.
    ``spread`` tells what those roundings come to, element by element, where outputs differ in it: of the arguments of
    ``reference`` it returns for each output a float64 tensor of its shape, the square root of the sum of squares of the
    terms that are rounded on the way, or None for an output whose root mean square tells as much.  What it leaves out
    of those roundings is not allowed: see the tolerances of validation.
    ``weak`` maps the names of peers to why they are no even match, as one that computes in another dtype: a case that
    none but these ran is left out of means.
    """

    inputs: Callable[[Case, Any, torch.Generator | None], dict[str, Any]]
    reference: Callable[..., Any]
    outputs: tuple[str, ...]
    variants: tuple[Variant, ...]
    peers: Mapping[str, Peer]
    bytes: Callable[[Case], Mapping[str, float]]
    flops: Callable[[Case], Mapping[str, float]]
    reduction: Callable[[Case], int] = lambda case: 1
    random: Random | None = None
    rounds_products: bool = False
    offset_inputs: tuple[str, ...] | None = None
    precision: Callable[[Case], str] = lambda case: case.dtype
    spread: Callable[..., tuple[torch.Tensor | None, ...]] | None = None
    weak: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        strangers = self.weak.keys() - self.peers.keys()
        if strangers:
            raise ValueError(f"weak names {', '.join(sorted(strangers))}, but the peers are {', '.join(self.peers)}")

    def variant(self, name: str) -> Variant:
        """The variant of this name; KeyError names the ones there are."""
        for variant in self.variants:
            if variant.name == name:
                return variant
        raise KeyError(f"no variant {name!r}; there are {', '.join(v.name for v in self.variants)}")

    def preferred(self, case: Case, gpu: GPU) -> Variant | None:
        """The variant to run untuned: the first that supports the case, or None."""
        return next((v for v in self.variants if not v.unsupported(case, gpu)), None)


@dataclass(frozen=True, eq=False)
class Declaration:
    """All that the project knows of one kernel; everything else is derived from it.

    ``name`` is the file's stem.  :meth:`public` tells the public function; ``call(function, inputs)`` calls it on the
    forward pass's inputs, by their names where nothing else is said.  ``cases(gpu)`` is the benchmark sweep, sized to
    the GPU; ``edge_cases`` are what validation adds, each with its reason, and ``huge_cases`` those with a tensor of
    more than 2^31 elements, on which offsets overflow that are not 64 bits wide: they need tens of GiB and are run
    where these are.  ``differentiable`` names the forward inputs that have a gradient, in the order of the backward
    pass's outputs.
    """

    name: str
    family: str
    summary: str
    cases: Callable[[GPU], list[Case]]
    edge_cases: tuple[Case, ...]
    forward: Pass
    backward: Pass | None = None
    call: Callable[[Callable[..., Any], dict[str, Any]], Any] = lambda function, inputs: function(**inputs)
    dtypes: tuple[str, ...] = DTYPES
    differentiable: tuple[str, ...] = ()
    huge_cases: tuple[Case, ...] = ()
    function: Callable[..., Any] | None = None
    dtype_names: Mapping[torch.dtype, str] = field(init=False, repr=False)
    """``{torch.bfloat16: "bf16"}`` for the declared dtypes; float32 is ``"fp32"`` however it is multiplied."""

    def __post_init__(self) -> None:
        names = {torch_dtype(name): name for name in self.dtypes if name != "tf32"}
        object.__setattr__(self, "dtype_names", names)

    def public(self, function: Function) -> Function:
        """Decorator of the kernel's public function, the one that ``call`` calls; returns it as it is.

        Raises TypeError for a second one.
        """
        if self.function is not None:
            raise TypeError(
                f"{self.name} has a public function, {self.function.__name__}: {function.__name__} is called by users "
                "all the same, but `call` takes one alone, so leave @DECLARATION.public away from it"
            )
        object.__setattr__(self, "function", function)
        return function

    def dtype_of(self, *tensors: torch.Tensor | None, function: str = "", tf32: bool = False) -> str:
        """The name of the dtype of ``tensors``, such as ``"bf16"``; ``tf32`` says that float32 is multiplied so.

        None is passed over.  Raises TypeError for a dtype that is not declared, or for several.  It names the public
        function: ``function``, where the kernel has more than one.
        """
        dtypes = [tensor.dtype for tensor in tensors if tensor is not None]
        name = self.dtype_names.get(dtypes[0])
        if name is None or dtypes.count(dtypes[0]) < len(dtypes):
            caller = function or (self.function.__name__ if self.function is not None else self.name)
            one = "tensors of one dtype out of " if len(dtypes) > 1 else ""
            found = ", ".join(map(str, dtypes))
            raise TypeError(f"{caller} takes {one}{', '.join(self.dtype_names.values())}: {found}")
        return "tf32" if tf32 and name == "fp32" else name

    @property
    def passes(self) -> dict[str, Pass]:
        """``{"forward": …}`` and, where there is one, ``"backward"``."""
        return {"forward": self.forward} | ({"backward": self.backward} if self.backward else {})
