"""The PTX (and SASS) of default configs, kept beside the build document for a person to read."""

from __future__ import annotations

import dataclasses
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .compiled import Kernel, assembly
from .listing import strip_debug
from .offline import Request


def write_listings(
    prefix: Path, kernels: Sequence[Kernel], requests: Sequence[Request], sass: bool
) -> tuple[Kernel, ...]:
    """Write each kernel's listing as ``<prefix>-<kernel>.ptx``; the kernels, with that file's name.

    Debug parts are left out: the text is what the document's digest is of.  ``sass`` asks for the machine code as well,
    beside it as ``.sass``, which takes 0.3 s a kernel to disassemble.  For AMD there is one ``.amdgcn``.
    """
    prefix.parent.mkdir(parents=True, exist_ok=True)
    written = []
    for position, (kernel, request) in enumerate(zip(kernels, requests, strict=True)):
        twin = sum(other.name == kernel.name for other in kernels[:position])
        name = f"{prefix.name}-{kernel.name}{f'-{twin + 1}' if twin else ''}"
        cuda = request.kernel.metadata.target.backend == "cuda"
        path = prefix.with_name(f"{name}.{'ptx' if cuda else 'amdgcn'}")
        path.write_text(strip_debug(assembly(request.kernel)))
        code = _sass(request.kernel) if sass and cuda else ""
        if code:
            prefix.with_name(f"{name}.sass").write_text(code)
        written.append(dataclasses.replace(kernel, listing=path.name))
    return tuple(written)


def _sass(kernel: Any) -> str:
    """The machine code as Triton prints it; empty where this Triton's disassembler does not know the architecture."""
    try:
        return kernel.asm["sass"] or ""
    except (OSError, subprocess.SubprocessError, AttributeError, ValueError):
        return ""
