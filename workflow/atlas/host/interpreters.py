"""The Python under which a GPU's commands run: this one, or that which the GPU's block names by ``python``.

A block names an interpreter, of a virtual environment, of uv or of conda: most GPU hosts have no conda, and Snakemake's
``conda`` directive would move all rules or none.  A command that is started for such a GPU goes on under its
interpreter (:func:`hand_over`), in a run, by hand and on a cluster alike.

A run settles once which interpreters there are (:func:`settle`), asks each for its versions, and tells its jobs by
:data:`VARIABLE`.  Imports neither torch nor Triton.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from .. import ROOT
from ..errors import AtlasError

VARIABLE = "KERNEL_ATLAS_PYTHONS"
"""``t4=/opt/t4/bin/python;h200=…``: taken instead of what blocks say where it is set; empty: all run under this one."""

KEY = "python"
"""Of a block, and of the config, which has it by GPU."""

_LEAST = {"python": (3, 11), "triton": (3, 2), "torch": (2, 6)}
_NEEDED = ("filelock", "jsonschema", "jsonschema_rs", "numpy", "pynvml", "rich", "scipy", "yaml")
_INSTALLED = {"jsonschema_rs": "jsonschema-rs", "pynvml": "nvidia-ml-py", "yaml": "pyyaml"}
_ANSWER_SECONDS = 60.0
_ASKED = """
import importlib.metadata, importlib.util, json, platform, sys
def version(*names):
    for name in names:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            pass
tritons = sys.argv[1].split(",")
missing = [name for name in sys.argv[2].split(",") if importlib.util.find_spec(name) is None]
found = {"python": platform.python_version(), "triton": version(*tritons), "torch": version("torch")}
print(json.dumps([found, missing]))
"""

TRITONS = ("triton", "pytorch-triton", "triton-nightly", "pytorch-triton-rocm", "triton-rocm")
"""Under which names Triton is distributed: releases, nightly builds, those for AMD."""


def settle(
    blocks: Mapping[str, Mapping[str, Any]], given: Mapping[str, str | None], names: Collection[str], where: str
) -> dict[str, Path]:
    """The interpreter of each of the ``names`` GPUs that have one of their own.

    ``given`` are those of the config, before what blocks say; None there means this one.  ``where`` names the config.
    Raises :class:`AtlasError` for a GPU in ``given`` that has no block.
    """
    for name in given:
        if name not in blocks:
            raise AtlasError(
                f"{where}: key {f'{KEY}.{name}'!r}: no such block in gpus.yaml; there are {', '.join(blocks)}"
            )
    chosen = {name: given.get(name, blocks[name].get(KEY)) for name in names}
    return {name: _path(path) for name, path in chosen.items() if path}


def _path(path: str) -> Path:
    """Relative to the checkout; links are left as they are, since one is what makes a virtual environment's Python."""
    return Path(os.path.abspath(ROOT / Path(path).expanduser()))  # noqa: PTH100 - resolve() would follow the link


def versions(python: Path, said: str) -> dict[str, str]:
    """The versions of Python, torch and Triton that an interpreter has, asked without importing them.

    ``said`` names file and key.  Raises :class:`AtlasError` where it cannot be run, lacks what stages need, or has it
    too old.
    """
    try:
        words = [str(python), "-c", _ASKED, ",".join(TRITONS), ",".join(_NEEDED)]
        done = subprocess.run(
            words, env=environment(python), capture_output=True, text=True, timeout=_ANSWER_SECONDS, check=False
        )
    except OSError as error:
        remedy = "make that environment, or name another interpreter"
        raise AtlasError(f"{said}: {python} cannot be run: {error.strerror}; {remedy}") from None
    except subprocess.TimeoutExpired:
        raise AtlasError(f"{said}: {python} gave no answer in {_ANSWER_SECONDS:g} s; is it a Python?") from None
    try:
        found, missing = json.loads(done.stdout)
    except ValueError:
        last = (done.stderr.strip().splitlines() or ["it printed something else"])[-1]
        raise AtlasError(f"{said}: {python} is no Python that can be used: {last}") from None
    missing = [name for name in ("torch", "triton") if found[name] is None] + missing
    if missing:
        wanted = " ".join(_INSTALLED.get(name, name) for name in missing)
        raise AtlasError(f"{said}: {python} lacks {', '.join(missing)}; run {python} -m pip install {wanted}")
    for name, least in _LEAST.items():
        if _parts(found[name]) < least:
            needed = ".".join(map(str, least))
            raise AtlasError(f"{said}: {python} has {name} {found[name]}; make it an environment of {needed} or later")
    return found


def _parts(version: str) -> tuple[int, ...]:
    return tuple(int(part) if part.isdigit() else 0 for part in version.split(".")[:2])


def publish(pythons: Mapping[str, Path]) -> None:
    """Tell the jobs of this process, which need not look for them."""
    os.environ[VARIABLE] = ";".join(f"{name}={path}" for name, path in pythons.items())


def of(gpu: str, gpus_file: str = "") -> Path | None:
    """The interpreter of a GPU's commands, None for this one: as the run says, or else its block.

    ``gpus_file`` is config/gpus.yaml where it is empty.  Raises :class:`AtlasError` for a file that cannot be used.
    """
    if VARIABLE in os.environ:
        named = dict(item.split("=", 1) for item in os.environ[VARIABLE].split(";") if "=" in item)
        return _path(named[gpu]) if gpu in named else None
    return of_block(gpu, gpus_file)


def of_block(gpu: str, gpus_file: str = "") -> Path | None:
    """The interpreter that a GPU's block names, whatever the run says."""
    from ..reading.config import GPUS_FILE, load_gpus

    path = load_gpus(Path(gpus_file or GPUS_FILE)).get(gpu, {}).get(KEY)
    return _path(path) if path else None


def environment(python: Path) -> dict[str, str]:
    """What a process under this interpreter has in its environment: nothing of this one's packages and servers."""
    from ..workers.forked import VARIABLE as SERVER

    left_out = (SERVER, "PYTHONHOME", "VIRTUAL_ENV")
    inherited = {name: value for name, value in os.environ.items() if name not in left_out}
    return inherited | {
        VARIABLE: "",
        "PYTHONPATH": f"{ROOT / 'workflow'}{os.pathsep}{ROOT}",
        "PATH": f"{python.parent}{os.pathsep}{os.environ.get('PATH', '')}",
    }


def hand_over(words: Sequence[str], gpu: str, gpus_file: str = "") -> None:
    """Go on as ``python -m atlas words…`` under the GPU's interpreter; return where that is this one.

    Raises :class:`AtlasError` where it cannot be run.
    """
    python = of(gpu, gpus_file) if gpu else None
    if python is None or str(python) == sys.executable:
        return
    _become(python, words, f"GPU {gpu!r}: key {KEY!r}")


def _become(python: Path, words: Sequence[str], said: str) -> NoReturn:
    try:
        os.execve(python, [str(python), "-m", "atlas", *words], environment(python))
    except OSError as error:
        remedy = "make that environment there, or name another interpreter"
        raise AtlasError(f"{said}: {python} cannot be run: {error.strerror}; {remedy}") from None


def in_words(found: Mapping[str, str]) -> str:
    """``Triton 3.2.0, torch 2.6.0``."""
    return f"Triton {found['triton']}, torch {found['torch']}"
