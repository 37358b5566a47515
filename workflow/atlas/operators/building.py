"""The extension of ``host/``: compiled once for each torch and Python, kept in the user's cache.

A compiler for C++ and Python's headers are needed, as Triton needs for C; no CUDA.  It takes some 30 s of one core and
1 GB of memory, at the lowest priority, and is the first process to be ended where memory runs out.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import hashlib
import importlib.machinery
import importlib.util
import os
import platform
import shutil
import signal
import subprocess
import sysconfig
import tempfile
from pathlib import Path
from types import ModuleType

import torch
from filelock import FileLock

NAME = "atlas_host"
SOURCES = Path(__file__).with_name("host")
"""``module.cpp`` and the headers that it includes."""
SECONDS = 600
"""What a compilation may take."""

_FLAGS = ("-O2", "-std=c++20", "-fPIC", "-shared", "-fvisibility=hidden")


class Unbuilt(Exception):
    """There is no extension; the message says why."""


def folder() -> Path:
    """Where the extension for this torch, Python and source is kept, whether it is there or not."""
    sources = [path.read_text() for path in sorted(SOURCES.iterdir()) if path.suffix in (".cpp", ".h")]
    made_for = (torch.__version__, sysconfig.get_config_var("EXT_SUFFIX"), *platform.libc_ver())
    parts = (*sources, *made_for, *_FLAGS, *_abi())
    digest = hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()[:16]
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache, "kernel-atlas", f"{NAME}-{digest}")


def _abi() -> list[str]:
    return [f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"]


def built() -> Path | None:
    """The extension, if it is there."""
    path = folder() / f"{NAME}.so"
    return path if path.exists() else None


def compiler() -> str | None:
    """The compiler to use: ``CXX``, g++ or clang++."""
    return next(filter(None, map(shutil.which, (os.environ.get("CXX") or "g++", "g++", "clang++"))), None)


def build() -> Path:
    """The extension, compiled where it is not there; :class:`Unbuilt` where that fails.

    Of several processes one compiles, and the others wait for it.
    """
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        raise Unbuilt("it relies on Python's lock, which this Python does without")
    path = folder() / f"{NAME}.so"
    if path.exists():  # in a folder that may be another's, or not for writing
        return path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(path.with_suffix(".lock"), timeout=2 * SECONDS):
            if not path.exists():
                with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
                    made = Path(scratch, path.name)
                    _compile(made)
                    made.replace(path)  # whoever looks sees all of it or nothing
    except OSError as error:
        raise Unbuilt(f"{path.parent}: {error.strerror or error}") from None
    return path


_LAST_IN_LINE = (
    '{ echo 1000 > /proc/self/oom_score_adj; } 2> /dev/null; command -v nice > /dev/null && exec nice "$@"; exec "$@"'
)
"""What a shell does before a compilation: the program whose calls it is for comes first, in memory, too."""


def _compile(target: Path) -> None:
    chosen = compiler()
    if chosen is None:
        raise Unbuilt("no compiler for C++: install g++ or name one in CXX")
    from torch.utils import cpp_extension  # which imports setuptools, in other versions, too

    folders = [*cpp_extension.include_paths(), sysconfig.get_path("include")]
    command = [chosen, *_FLAGS, *_abi(), *(f"-I{name}" for name in folders), SOURCES / "module.cpp", "-o", target,
               *(f"-L{name}" for name in cpp_extension.library_paths()), "-lc10", "-ltorch", "-ltorch_cpu",
               "-ltorch_python"]  # fmt: skip
    process = subprocess.Popen(
        ["/bin/sh", "-c", _LAST_IN_LINE, "sh", *map(str, command)], env=os.environ | {"TMPDIR": str(target.parent)},
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    end = functools.partial(_end, process, os.getpid())
    atexit.register(end)  # a program that ends earlier leaves no compiler behind
    try:
        said = process.communicate(timeout=SECONDS)[1]
    except subprocess.TimeoutExpired:
        end()
        process.communicate()
        raise Unbuilt(f"{chosen} took more than {SECONDS} s") from None
    finally:
        atexit.unregister(end)
    if process.returncode:
        lines = [line for line in said.splitlines() if "error" in line] or said.splitlines() or [""]
        raise Unbuilt(f"{chosen} ended {process.returncode}: {lines[0].strip()}")


def _end(process: subprocess.Popen, started_by: int) -> None:
    """End a compiler with what it started, unless this is a fork of the process that started it."""
    if os.getpid() == started_by and process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def load(path: Path) -> ModuleType:
    """The extension's module."""
    loader = importlib.machinery.ExtensionFileLoader(NAME, str(path))
    module = importlib.util.module_from_spec(importlib.util.spec_from_file_location(NAME, path, loader=loader))
    loader.exec_module(module)
    return module
