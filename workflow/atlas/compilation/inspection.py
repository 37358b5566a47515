"""One config of one variant, compiled for a GPU that may be elsewhere: its facts and the compiler's texts, compared."""

from __future__ import annotations

import difflib
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..declaration import GPU, Case, Config, Declaration
from . import listings
from .compiled import compile_with_requests

_FACTS = (
    ("registers", "a thread"),
    ("spill_bytes", "a thread"),
    ("shared_bytes", "a block"),
    ("threads", "a block"),
    ("occupancy", "of the warps an SM holds, at most"),
    ("widest_access_bits", "of global memory"),
    ("matrix_instruction", ""),
    ("async_copies", ""),
    ("warp_specialized", ""),
)

_LOCATION = re.compile(r",? ?!dbg !\d+| loc\((?:#\w+|unknown|\"[^\"]*\"\([^()]*\))\)")


@dataclass(frozen=True)
class Inspected:
    """What became of a config: ``kernels`` hold a document's facts with ``accesses`` and ``matrix_instructions``.

    ``texts`` has for each of these kernels, in their order, the compiler's texts by kind.
    """

    title: str
    status: str
    reason: str
    kernels: Sequence[Mapping[str, Any]]
    texts: Sequence[Mapping[str, str]]

    def to_json(self) -> dict[str, Any]:
        """For another process."""
        return {name: getattr(self, name) for name in ("title", "status", "reason", "kernels", "texts")}


def inspect(
    declaration: Declaration, direction: str, variant: str, case: Case, config: Config, gpu: GPU, title: str, text: str
) -> Inspected:
    """Compile, and keep of the compiler's texts the one of kind ``text``; none where it is empty."""
    compiled, requests = compile_with_requests(declaration, direction, variant, case, config, gpu)
    kernels, texts = [], []
    for kernel, request in zip(compiled.kernels, requests, strict=bool(compiled.kernels)):
        assembly = listings.assembly(request.kernel)
        own = {"accesses": listings.accesses(assembly), "matrix_instructions": listings.matrix_instructions(assembly)}
        kernels.append(kernel.to_json() | own)
        texts.append({text: text_of(request.kernel, text)} if text else {})
    return Inspected(title, compiled.status, compiled.reason, kernels, texts)


def text_of(kernel: Any, kind: str) -> str:
    """A text of Triton's CompiledKernel without source positions; empty where this target has none of the kind."""
    if kind == "sass":
        return listings.disassembly(kernel) if "cubin" in kernel.asm else ""
    found = kernel.asm.get(kind, "")
    if not found:
        return ""
    return listings.strip_debug(found) if kind in ("ptx", "amdgcn") else _without_locations(found)


def _without_locations(text: str) -> str:
    """MLIR without ``loc(…)`` and LLVM without ``!dbg``, which name this checkout's files."""
    lines = (line for line in text.splitlines() if not re.match(r"#loc\d* = |!\d+ = ", line))
    return "\n".join(_LOCATION.sub("", line).rstrip() for line in lines) + "\n"


def facts(kernel: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """A kernel's facts for a person: name and value."""
    for name, unit in _FACTS:
        value = kernel[name]
        shown = "unknown" if value is None else f"{100 * value:.0f} %" if name == "occupancy" else str(value)
        yield name.replace("_", " "), f"{shown} {unit}".strip() if value not in (None, "none", False) else shown
    for name in ("accesses", "matrix_instructions"):
        counts = ", ".join(f"{count} x {what}" for what, count in kernel[name].items())
        yield f"{name.replace('_', ' ')} in the listing", counts or "none"


def pairs(
    first: Inspected, second: Inspected
) -> Iterator[tuple[Mapping[str, Any] | None, Mapping[str, Any] | None, str, str]]:
    """The kernels of both in their order, with their texts; None where one side has fewer."""
    sides = [
        [(kernel, next(iter(texts.values()), "")) for kernel, texts in zip(one.kernels, one.texts, strict=True)]
        for one in (first, second)
    ]
    for (old, before), (new, after) in itertools.zip_longest(*sides, fillvalue=(None, "")):
        yield old, new, before, after


def unified(first: str, second: str, names: tuple[str, str], context: int = 3) -> str:
    """A unified diff of two texts; empty where they are equal."""
    old, new = (text.splitlines() for text in (first, second))
    return "\n".join(difflib.unified_diff(old, new, *names, n=context, lineterm=""))
