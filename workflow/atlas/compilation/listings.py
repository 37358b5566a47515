"""The PTX and SASS of default configs, kept beside the build document for a person to read."""

from __future__ import annotations

import dataclasses
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .compiled import Kernel, assembly
from .listing import strip_debug
from .offline import Request


def write_listings(prefix: Path, kernels: Sequence[Kernel], requests: Sequence[Request]) -> tuple[Kernel, ...]:
    """Write each kernel's listings as ``<prefix>-<kernel>.ptx`` and ``.sass``; the kernels, with the PTX's file name.

    Debug parts are left out: the text is what the document's digest is of.  For AMD it is one ``.amdgcn``.
    """
    prefix.parent.mkdir(parents=True, exist_ok=True)
    written = []
    for position, (kernel, request) in enumerate(zip(kernels, requests, strict=True)):
        twin = sum(other.name == kernel.name for other in kernels[:position])
        name = f"{prefix.name}-{kernel.name}{f'-{twin + 1}' if twin else ''}"
        cuda = request.kernel.metadata.target.backend == "cuda"
        path = prefix.with_name(f"{name}.{'ptx' if cuda else 'amdgcn'}")
        path.write_text(strip_debug(assembly(request.kernel)))
        sass = _sass(request.kernel) if cuda else ""
        if sass:
            prefix.with_name(f"{name}.sass").write_text(sass)
        written.append(dataclasses.replace(kernel, listing=path.name))
    return tuple(written)


def _sass(kernel: Any) -> str:
    """The machine code as Triton prints it; empty where this Triton's disassembler does not know the architecture."""
    try:
        return kernel.asm["sass"] or ""
    except (OSError, subprocess.SubprocessError, AttributeError, ValueError):
        return ""
