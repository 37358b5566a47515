"""Compile one config of one variant for one GPU, and say what came out, or what the compiler complained of."""

from __future__ import annotations

import dataclasses
import re
import signal
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ..declaration import GPU, Case, Config, Declaration
from ..host.runtime import meta_inputs
from . import listings, resources
from .offline import Request, compile_only
from .resources import Resources, occupancy, resources_of


@dataclass(frozen=True)
class Kernel:
    """One compiled kernel of a config.  ``listing`` is the file name of its PTX, where that is kept."""

    name: str
    resources: Resources
    occupancy: float | None
    widest_access_bits: int | None
    matrix_instruction: str
    async_copies: str
    warp_specialized: bool
    ptx_sha256: str
    binary_sha256: str
    tensor_memory: int
    listing: str = ""

    def to_json(self) -> dict[str, Any]:
        """The kernel as the build document holds it."""
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name not in _NOT_STORED}
        return {**fields, **dataclasses.asdict(self.resources), **({"listing": self.listing} if self.listing else {})}


_NOT_STORED = ("resources", "tensor_memory", "listing")


@dataclass(frozen=True)
class Compiled:
    """What became of one config: ``status`` is ``ok``, ``pruned``, ``failed`` or ``unsupported``, with the reason.

    ``seconds`` is None where Triton's cache on disk already had every kernel.
    """

    status: str
    reason: str = ""
    seconds: float | None = None
    kernels: tuple[Kernel, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The compilation as the build document holds it, without what was compiled."""
        of = [kernel.resources for kernel in self.kernels]
        return {
            "status": self.status,
            "reason": self.reason,
            "compile_seconds": None if self.seconds is None else round(self.seconds, 4),
            "registers": _most(r.registers for r in of),
            "spill_bytes": _most(r.spill_bytes for r in of),
            "shared_bytes": _most(r.shared_bytes for r in of),
            "threads": _most(r.threads for r in of),
            "occupancy": min((k.occupancy for k in self.kernels if k.occupancy is not None), default=None),
            "widest_access_bits": _most(k.widest_access_bits for k in self.kernels),
            "matrix_instruction": self._strongest("matrix_instruction", listings.MATRIX_INSTRUCTIONS),
            "async_copies": self._strongest("async_copies", listings.ASYNC_COPIES),
            "warp_specialized": any(k.warp_specialized for k in self.kernels) if self.kernels else None,
            "kernels": [kernel.to_json() for kernel in self.kernels],
        }

    def _strongest(self, fact: str, order: Iterable[str]) -> str | None:
        found = {getattr(kernel, fact) for kernel in self.kernels}
        return next((kind for kind in order if kind in found), None)


def _most(values: Iterable[int | None]) -> int | None:
    return max((value for value in values if value is not None), default=None)


def compile_config(
    declaration: Declaration, direction: str, variant: str, case: Case, config: Config, gpu: GPU
) -> Compiled:
    """Compile ``config`` of a variant as its launch on ``case`` would, for ``gpu``, which need not be here.

    Nothing is launched.  Triton's cache on disk holds the result under the key the launch will ask for: meta tensors
    count as aligned to 16 bytes, like all that torch allocates.  A launcher or compiler that raises gives ``failed``;
    a kernel the GPU cannot launch gives ``pruned``, and so does one that spills, unless ``config`` is the variant's
    default.
    """
    return compile_with_requests(declaration, direction, variant, case, config, gpu)[0]


def compile_with_requests(
    declaration: Declaration, direction: str, variant: str, case: Case, config: Config, gpu: GPU
) -> tuple[Compiled, list[Request]]:
    """Like :func:`compile_config`; also gives the requests, in the order of the result's kernels."""
    work = declaration.passes[direction]
    with compile_only(gpu) as requests:
        try:
            work.variant(variant).launch(config=config, **meta_inputs(work, case))
        except Exception as error:
            return Compiled("failed", complaint(error)), []
    if not requests:
        return Compiled("failed", "the launcher launched no Triton kernel"), []
    kernels = tuple(_inspect(request.kernel, gpu) for request in requests)
    seconds = None if all(request.cached for request in requests) else sum(request.seconds for request in requests)
    default = dict(work.variant(variant).default(case, gpu)) == dict(config)
    for kernel in kernels:
        reason = resources.obstacle(kernel.name, kernel.resources, gpu, kernel.tensor_memory)
        reason = reason or ("" if default else resources.excess_spill(kernel.name, kernel.resources))
        if reason:
            return Compiled("pruned", reason, seconds, kernels), requests
    return Compiled("ok", "", seconds, kernels), requests


def _inspect(kernel: Any, gpu: GPU) -> Kernel:
    text, resources = listings.assembly(kernel), resources_of(kernel)
    return Kernel(
        name=kernel.name,
        resources=resources,
        occupancy=occupancy(resources, gpu),
        widest_access_bits=listings.widest_access_bits(text),
        matrix_instruction=listings.matrix_instruction(text, has_dot="tt.dot" in kernel.asm.get("ttir", "")),
        async_copies=listings.async_copies(text),
        warp_specialized="ttg.warp_specialize" in kernel.asm.get("ttgir", ""),
        ptx_sha256=listings.sha256_of_text(text),
        binary_sha256=listings.sha256_of_binary(kernel.kernel),
        tensor_memory=getattr(kernel.metadata, "tmem_size", None) or 0,
    )


_PATH = re.compile(r"(?<![\w.])/(?:[^\s/:\"']+/)+([^\s/:\"']+)")
_LENGTH = 500


def complaint(error: BaseException) -> str:
    """An exception in one line: its innermost cause and, where it names one, the line of the kernel."""
    inner = error
    while inner.__cause__ is not None:
        inner = inner.__cause__
    text = getattr(inner, "error_message", None) or str(inner)
    said = _first_complaint(text) or _last_line(text)
    node = getattr(error, "node", None) or getattr(inner, "node", None)
    where = f"line {node.lineno} of the kernel: " if hasattr(node, "lineno") else ""
    return _tidy(f"{type(inner).__name__}: {where}{said}" if said else type(inner).__name__)


def with_printed(reason: str, printed: str) -> str:
    """A reason with the first error that was printed meanwhile, unless it says that already.

    MLIR prints what is wrong, and raises only that something is.
    """
    beside = _tidy(_first_complaint(printed))
    return f"{reason} ({beside})"[:_LENGTH] if beside and beside not in reason else reason


def death(exit_code: int, printed: str) -> str:
    """How a compiler process died, with the last it said."""
    if exit_code < 0:
        how = f"the compiler crashed ({signal.Signals(-exit_code).name})"
    else:
        how = f"the compiler's process ended with status {exit_code}"
    last = _first_complaint(printed) or _last_line(printed)
    return _tidy(f"{how}: {last}" if last else how)


def _first_complaint(text: str) -> str:
    """The first line that names an error: ``error: …``, ``ptxas fatal   : …``, ``Assertion … failed``."""
    for line in text.splitlines():
        found = re.search(r"\b(?:error|fatal)\s*:\s*(\S.*)|(Assertion .* failed.*)|(LLVM ERROR.*)", line)
        if found and not line.lstrip().startswith("#"):
            return next(group for group in found.groups() if group).strip()
    return ""


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""


def _tidy(text: str) -> str:
    """In one line, of bounded length, and without the paths of this machine."""
    return " ".join(_PATH.sub(r"\1", text).split())[:_LENGTH]
