"""One kernel for one GPU, from the source tree that PYTHONPATH names: what its launches compile to and pass on.

``python worker.py ASKED ANSWER``: reads the file ASKED, writes ANSWER, both JSON.  Runs apart, so that two trees can be
asked, and imports of the project what compiles a launcher for a GPU that is elsewhere.
"""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import json
import math
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import triton
from atlas import catalog
from atlas.compilation.listings import strip_debug
from atlas.compilation.offline import compile_only
from atlas.declaration import Case
from atlas.host import gpus, runtime
from atlas.reading.config import load_gpus
from torch.utils._python_dispatch import TorchDispatchMode
from triton.runtime.jit import JITFunction

_DIGITS = 12
_LABEL_OF_POSITION = re.compile(r"\$L__tmp\d+:")
_OPTIONS = ("num_warps", "num_ctas", "shared", "tmem_size", "global_scratch_size", "global_scratch_align",
            "cluster_dims", "launch_cooperative_grid", "launch_pdl", "ptx_options", "maxnreg")  # fmt: skip
_SMALL, _DRAWN = 2**20, 4
"""Bytes of a case whose inputs are drawn to compare them, and how many such of each dtype and pass."""


def digest(value: Any) -> str:
    """A short digest of a value that JSON holds."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:_DIGITS]


def without_machine_code() -> None:
    """Let Triton stop at PTX: the assembler makes of the same PTX the same machine code, and takes half of the time."""
    from triton.backends.nvidia.compiler import CUDABackend

    add_stages = CUDABackend.add_stages

    def add_all_but_the_last(self: Any, stages: dict[str, Any], *more: Any) -> None:
        add_stages(self, stages, *more)
        stages["cubin"] = lambda text, metadata: b"left out"

    CUDABackend.add_stages = add_all_but_the_last


def binary(kernel: Any) -> str:
    """What a GPU would run: PTX without positions, comments and the kernel's name, and how it is to be launched.

    Labels of positions go, too: there is one more where a function of the source was divided in two.
    """
    metadata = kernel.metadata
    lines = [line.partition("//")[0].rstrip() for line in strip_debug(kernel.asm["ptx"]).splitlines()]
    lines = [line for line in lines if line and not _LABEL_OF_POSITION.fullmatch(line)]
    text = "\n".join(lines).replace(metadata.name, "kernel")
    return digest([text, {name: getattr(metadata, name, None) for name in _OPTIONS}])


class Operations(TorchDispatchMode):
    """Notes what a launcher does beside launching: torch's operations but for allocations and views."""

    def __init__(self, tensors: Tensors):
        super().__init__()
        self.done: list[Any] = []
        self._tensors = tensors

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if not (func.is_view or func.__name__.startswith(("empty", "new_empty", "detach"))):
            self.done.append([str(func), [self._tensors.told(one) for one in args]])
        return result


class Tensors:
    """Tells tensors by the memory they lie in, numbered as it is met, and by their geometry."""

    def __init__(self, inputs: Any):
        self._numbers: dict[int, int] = {}
        self._kept: list[Any] = []
        for value in inputs.values():
            self.told(value)

    def told(self, value: Any) -> Any:
        """A value of a launch, as JSON."""
        if isinstance(value, torch.Tensor):
            storage = value.untyped_storage()
            self._kept.append(storage)
            number = self._numbers.setdefault(storage._cdata, len(self._numbers))
            return [number, value.storage_offset(), list(value.shape), list(value.stride()), str(value.dtype)]
        if type(value).__name__ == "TensorDescriptor":
            rest = [list(value.shape), list(value.strides), list(value.block_shape), str(getattr(value, "layout", ""))]
            return ["descriptor", self.told(value.base), *rest, str(getattr(value, "padding", ""))]
        if isinstance(value, list | tuple):
            return [self.told(one) for one in value]
        if value is None or isinstance(value, bool | int | float | str):
            return repr(value)
        return type(value).__name__  # a function or a layout, which the binary holds


@contextlib.contextmanager
def noted(tensors: Tensors, launches: list[Any]) -> Iterator[None]:
    """Inside :func:`compile_only`, adds of each launch its grid and what is passed to the kernel."""
    run = JITFunction.run

    def note(self: Any, *args: Any, grid: Any, warmup: bool = False, **kwargs: Any) -> Any:
        own = {name: value for name, value in kwargs.items() if name in self.arg_names}
        bound = inspect.signature(self.fn).bind(*args, **own)
        bound.apply_defaults()
        passed = [one.name for one in self.params if not one.is_constexpr]  # constants are in the binary
        values = [tensors.told(bound.arguments[name]) for name in passed]
        options = {name: tensors.told(value) for name, value in kwargs.items() if name not in own}
        launches.append([list(grid) if isinstance(grid, tuple | list) else str(grid), values, options])
        return run(self, *args, grid=grid, warmup=warmup, **kwargs)

    JITFunction.run = note
    try:
        yield
    finally:
        JITFunction.run = run


class Kernel:
    """A declaration and what has been compiled of it."""

    def __init__(self, name: str, gpu: str):
        self.declaration = catalog.load(name)
        self.gpu = gpus.gpu(gpu, load_gpus(Path("config", "gpus.yaml"))[gpu])
        self._compiled: dict[str, str] = {}

    def launched(self, direction: str, variant: str, case: Case, config: dict[str, Any]) -> str:
        """A digest of the call: its launches, with the binary of each, and what else it does."""
        work = self.declaration.passes[direction]
        launch = work.variant(variant).launch
        inputs = runtime.meta_inputs(work, case)
        tensors, launches = Tensors(inputs), []
        keys = []
        try:
            with compile_only(self.gpu, compiling=False) as requests, noted(tensors, launches):
                operations = Operations(tensors)
                with operations:
                    launch(config=config, **inputs)
                keys = [request.key for request in requests]
            if not all(key in self._compiled for key in keys):
                with compile_only(self.gpu) as requests:
                    launch(config=config, **runtime.meta_inputs(work, case))
                self._compiled |= {request.key: binary(request.kernel) for request in requests}
        except Exception as error:
            return f"error {digest(f'{type(error).__name__}: {error}')}"
        return digest([launches, [self._compiled[key] for key in keys], operations.done])

    def space(self, direction: str, variant: str) -> str:
        """A digest of what the variant supports of the sweep, with its default and all configs that fit.

        Why it does not support a case is a message.
        """
        own, found = self.declaration.passes[direction].variant(variant), []
        for case in self.declaration.cases(self.gpu):
            if own.unsupported(case, self.gpu):
                found.append([told(case), None])
            else:
                default = dict(own.default(case, self.gpu))
                found.append([told(case), default, list(own.configs(case, self.gpu))])
        return digest([found, sorted(map(str, own.needs)), own.deterministic])

    def taken(self, direction: str, variant: str, cases: list[Any]) -> list[Any]:
        """Those of the cases [dtype, sizes] that the variant supports."""
        own = self.declaration.passes[direction].variant(variant)
        return [
            [dtype, sizes]
            for dtype, sizes in cases
            if not own.unsupported(Case.from_json({"dtype": dtype, "sizes": sizes}), self.gpu)
        ]

    def defaults(self) -> Iterator[tuple[str, str, Case, dict[str, Any]]]:
        """The default of every variant for every case of the sweep that it supports."""
        for direction, work in self.declaration.passes.items():
            for variant in work.variants:
                for case in self.declaration.cases(self.gpu):
                    if not variant.unsupported(case, self.gpu):
                        yield direction, variant.name, case, dict(variant.default(case, self.gpu))

    def parts(self) -> dict[str, str | None]:
        """By identity that is of no variant a digest of what it comes to; None where that cannot be told."""
        made = self.declaration
        sweep = made.cases(self.gpu)
        costs = {name: [[work.bytes(case), work.flops(case)] for case in sweep] for name, work in made.passes.items()}
        extra = [*made.edge_cases, *made.huge_cases]
        return {
            "sweep": digest([told(case) for case in sweep]),
            "costs": digest(costs),
            "cases": digest([made.dtypes, [told(case) for case in extra]]),
            "inputs": self._inputs(),
        }

    def _inputs(self) -> str | None:
        found = []
        try:
            for name, work in self.declaration.passes.items():
                for dtype in self.declaration.dtypes:
                    small = [case for case in self.declaration.edge_cases if case.dtype == dtype]
                    small = [case for case in small if 0 < math.fsum(work.bytes(case).values()) < _SMALL]
                    for case in small[:: max(1, len(small) // _DRAWN)]:
                        drawn = runtime.draw(work, case, "cpu", 1)
                        found.append([name, told(case), {key: contents(value) for key, value in drawn.items()}])
                for case in self.declaration.cases(self.gpu):
                    inputs = runtime.meta_inputs(work, case)
                    found.append([name, told(case), Tensors(inputs).told(list(inputs.values()))])
        except Exception as error:
            print(f"inputs: {type(error).__name__}: {error}", file=sys.stderr)
            return None
        return digest(found)


def contents(value: Any) -> Any:
    """A tensor's geometry and a digest of its elements."""
    if not isinstance(value, torch.Tensor):
        return str(value)
    raw = value.contiguous().view(-1).view(torch.uint8).numpy().tobytes() if value.numel() else b""
    return [list(value.shape), list(value.stride()), str(value.dtype), hashlib.sha256(raw).hexdigest()]


def told(case: Case) -> list[Any]:
    """A case without its reason, which is prose."""
    return [case.dtype, dict(case.sizes)]


def label(direction: str, variant: str, case: Case, config: dict[str, Any]) -> tuple[str, str]:
    """The variant's name, and that of a case and config."""
    words = " ".join(f"{name}={value}" for name, value in (*case.sizes, *config.items()))
    return f"{direction}.{variant}", f"{case.dtype} {words}"


def main(asked: Path, answer: Path) -> None:
    """Answer for one kernel and GPU: ``variants`` alone are compiled, and ``added`` are asked which cases they take."""
    torch.set_num_threads(1)
    without_machine_code()
    question = json.loads(asked.read_text())
    kernel = Kernel(question["kernel"], question["gpu"])
    wanted = set(question["variants"])
    recorded = [(row["direction"], row["variant"], Case.from_json(row), row["config"]) for row in question["configs"]]
    variants: dict[str, Any] = {}
    for direction, variant, case, config in (*kernel.defaults(), *recorded):
        name, words = label(direction, variant, case, config)
        if name not in wanted:
            continue
        own = variants.setdefault(name, {"space": "", "configs": {}})
        if words not in own["configs"]:
            own["configs"][words] = kernel.launched(direction, variant, case, config)
    for name, own in variants.items():
        own["space"] = kernel.space(*name.split(".", 1))
    added = {name: kernel.taken(*name.split(".", 1), cases) for name, cases in question.get("added", {}).items()}
    found = {"variants": variants, "parts": kernel.parts(), "added": added, "triton": triton.__version__}
    answer.write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
