"""The CUDA C++ sources there are; imports no torch, for the workflow asks while it is parsed."""

from __future__ import annotations

import hashlib
from pathlib import Path

from .. import catalog


def source(kernel: str) -> Path:
    """The device code of a kernel's CUDA C++ peers, whether there is any or not."""
    return catalog.KERNELS / "cuda" / f"{kernel}.cu"


def files(kernel: str) -> list[Path]:
    """What a kernel's CUDA C++ peers are compiled from, the headers last; empty where it has none."""
    main = source(kernel)
    return [main, *sorted(main.parent.glob("*.cuh"))] if main.exists() else []


def digest(kernel: str) -> str:
    """SHA-256 of :func:`files`: what a cubin was built of."""
    return hashlib.sha256(b"".join(path.read_bytes() for path in files(kernel))).hexdigest()
