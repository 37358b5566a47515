"""The extension of ``host/``: compiled once for each torch and Python, kept in the user's cache.

A compiler for C++ and Python's headers are needed, as Triton needs for C; no CUDA.  It takes some 30 s of one core and
1 GB of memory, at the lowest priority, and is the first process to be ended where memory runs out.
"""

from __future__ import annotations

import atexit
import contextlib
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
import threading
from collections.abc import Iterator
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
                with _ended_with_the_program() as ending, tempfile.TemporaryDirectory(dir=path.parent) as scratch:
                    made = Path(scratch, path.name)
                    _compile(made, ending)
                    made.replace(path)  # whoever looks sees all of it or nothing
    except OSError as error:
        raise Unbuilt(f"{path.parent}: {error.strerror or error}") from None
    return path


_LAST_IN_LINE = (
    '{ echo 1000 > /proc/self/oom_score_adj; } 2> /dev/null; command -v nice > /dev/null && exec nice "$@"; exec "$@"'
)
"""What a shell does before a compilation: the program whose calls it is for comes first, in memory, too."""


@contextlib.contextmanager
def _ended_with_the_program() -> Iterator[list[subprocess.Popen]]:
    """A list of processes; a program that ends earlier than the block ends them, and waits for the block."""
    processes: list[subprocess.Popen] = []
    done, here = threading.Event(), os.getpid()

    def end() -> None:
        if os.getpid() == here:  # and not in a fork of the program, which ends earlier than that
            for process in processes:
                _end(process)
            done.wait(_TIDYING)

    atexit.register(end)
    try:
        yield processes
    finally:
        done.set()
        atexit.unregister(end)


_TIDYING = 5
"""Seconds that a program's end waits for what a compilation leaves to be removed."""


def _end(process: subprocess.Popen) -> None:
    """End a compiler, with what it started."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def _compile(target: Path, ending: list[subprocess.Popen]) -> None:
    chosen = compiler()
    if chosen is None:
        raise Unbuilt("no compiler for C++: install g++ or name one in CXX")
    installed = Path(torch.__file__).parent  # torch.utils.cpp_extension, which knows it too, imports setuptools
    folders = (installed / "include", installed / "include/torch/csrc/api/include", sysconfig.get_path("include"))
    command = [chosen, *_FLAGS, *_abi(), *(f"-I{name}" for name in folders), SOURCES / "module.cpp", "-o", target,
               f"-L{installed / 'lib'}", "-lc10", "-ltorch", "-ltorch_cpu", "-ltorch_python"]  # fmt: skip
    messages = target.with_name("messages")
    with messages.open("w") as written:
        process = subprocess.Popen(
            ["/bin/sh", "-c", _LAST_IN_LINE, "sh", *map(str, command)], env=os.environ | {"TMPDIR": str(target.parent)},
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=written, start_new_session=True,
        )  # fmt: skip
    ending.append(process)
    try:
        process.wait(SECONDS)
    except subprocess.TimeoutExpired:
        _end(process)
        process.wait()
        raise Unbuilt(f"{chosen} took more than {SECONDS} s") from None
    if process.returncode:
        said = messages.read_text(errors="replace").splitlines()
        lines = [line for line in said if "error" in line] or said or [""]
        raise Unbuilt(f"{chosen} ended {process.returncode}: {lines[0].strip()}")


def load(path: Path) -> ModuleType:
    """The extension's module."""
    loader = importlib.machinery.ExtensionFileLoader(NAME, str(path))
    module = importlib.util.module_from_spec(importlib.util.spec_from_file_location(NAME, path, loader=loader))
    loader.exec_module(module)
    return module
