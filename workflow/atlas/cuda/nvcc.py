"""The CUDA C++ sources there are, nvcc, and what ptxas says of a compilation.

Imports no torch, for the workflow asks while it is parsed.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import catalog


def source_of(kernel: str) -> Path:
    """The device code of a kernel's CUDA C++ peers, whether there is any or not."""
    return catalog.KERNELS / "cuda" / f"{kernel}.cu"


def sources(kernel: str) -> list[Path]:
    """What a kernel's CUDA C++ peers are compiled from, the headers last; empty where it has none."""
    main = source_of(kernel)
    return [main, *sorted(main.parent.glob("*.cuh"))] if main.exists() else []


def source_digest(kernel: str) -> str:
    """SHA-256 of :func:`files`: what a cubin was built of."""
    return hashlib.sha256(b"".join(path.read_bytes() for path in sources(kernel))).hexdigest()


NOWHERE = "nvcc not found: not on PATH, nor under CUDA_HOME, CUDA_PATH or /usr/local/cuda, nor as a wheel"
FLAGS = ("-O3", "-std=c++17", "-Xptxas", "-v")
SECONDS = 300
"""What a compilation may take."""


@dataclass(frozen=True)
class NvccResult:
    """What nvcc said; ``reason`` is empty where it compiled."""

    said: str
    reason: str = ""


def find() -> Path | None:
    """The nvcc to use, or None."""
    return next((path for path in _candidates() if os.access(path, os.X_OK)), None)


def _candidates() -> Iterator[Path]:
    on_path = shutil.which("nvcc")
    if on_path:
        yield Path(on_path)
    for home in (os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"):
        if home:
            yield Path(home, "bin", "nvcc")
    wheels = importlib.util.find_spec("nvidia")  # nvidia-cuda-nvcc puts it into nvidia/cu13
    for folder in wheels.submodule_search_locations if wheels else ():
        yield from sorted(Path(folder).glob("cu*/bin/nvcc"), reverse=True)


def version(nvcc: Path) -> str:
    """nvcc's version, as in ``13.0.88``; what it says where it gives none."""
    said = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=False).stdout
    found = re.search(r"\bV(\d+(?:\.\d+)+)", said)
    return found[1] if found else said.strip()


def flags(arch: int | str) -> list[str]:
    """The options for the architecture of this compute capability, 75 for 7.5."""
    return [f"-arch=sm_{arch}", *FLAGS]


def compile_cubin(nvcc: Path, source: Path, arch: int | str, cubin: Path) -> NvccResult:
    """Compile ``source`` for ``arch`` into ``cubin``."""
    command = [nvcc, "-cubin", *flags(arch), "-o", cubin, source]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return NvccResult("", f"nvcc took more than {SECONDS} s")
    said = done.stdout + done.stderr
    return NvccResult(said, _error(said) or f"nvcc ended {done.returncode}" if done.returncode else "")


def _error(said: str) -> str:
    """The line that says why, without the folder that the source is in."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    line = next((line for line in lines if re.search(r"\b(error|fatal)\b", line)), lines[-1] if lines else "")
    return re.sub(r"(?<!\w)(?:/[^\s:(]+)+/", "", line)


_ENTRY = re.compile(r"Compiling entry function '(\w+)' for 'sm_\w+'")
_FIGURES = {
    "registers": re.compile(r"\bUsed (\d+) registers"),
    "stack_bytes": re.compile(r"(\d+) bytes stack frame"),
    "spill_store_bytes": re.compile(r"(\d+) bytes spill stores"),
    "spill_load_bytes": re.compile(r"(\d+) bytes spill loads"),
    "shared_bytes": re.compile(r"(\d+) bytes smem"),
}


def usage(said: str) -> list[dict[str, Any]]:
    """A row for each entry function, sorted by name; what ptxas does not mention is 0, but for registers None."""
    parts = _ENTRY.split(said)[1:]
    rows = [{"name": name, **_figures(text)} for name, text in zip(parts[::2], parts[1::2], strict=True)]
    return sorted(rows, key=lambda row: row["name"])


def _figures(text: str) -> dict[str, int | None]:
    found = {key: pattern.search(text) for key, pattern in _FIGURES.items()}
    return {key: int(match[1]) if match else (None if key == "registers" else 0) for key, match in found.items()}
