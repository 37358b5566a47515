"""NVIDIA's Nsight Compute as a second clock: the device's own counter of a kernel's duration, launch by launch."""

from __future__ import annotations

import csv
import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import AtlasError

METRIC = "gpu__time_duration.sum"

_OPTIONS = (
    "--profile-from-start", "off",  # the profiled process says which launches count
    "--clock-control", "none",  # ncu would lock the clock at its base
    "--cache-control", "none",  # ncu would flush all caches itself; the profiled process does, as the clock does
    "--metrics", METRIC,
    "--csv", "--page", "raw", "--print-units", "base",
)  # fmt: skip
_IN_MICROSECONDS = {"ns": 1e-3, "us": 1.0, "ms": 1e3, "s": 1e6}
_LAST_WORDS = 3


@dataclass(frozen=True)
class Launch:
    """One profiled kernel launch: the kernel's name without arguments, and microseconds."""

    kernel: str
    microseconds: float


def find() -> Path:
    """The ncu program: on PATH, or where CUDA and Nsight Compute are installed; :class:`AtlasError` without one."""
    places = [Path(root, "bin", "ncu") for root in (os.environ.get("CUDA_HOME"), "/usr/local/cuda") if root]
    places += sorted(Path("/opt/nvidia/nsight-compute").glob("*/ncu"), reverse=True)
    found = shutil.which("ncu") or next((place for place in places if os.access(place, os.X_OK)), None)
    if found is None:
        raise AtlasError("ncu is not here: install NVIDIA Nsight Compute, which comes with the CUDA toolkit, and put "
                         "its folder on PATH")  # fmt: skip
    return Path(found)


def profile(words: Sequence[str], environment: dict[str, str], log: Path) -> list[Launch]:
    """What ncu measured of a command's launches between its cudaProfilerStart and Stop, in their order.

    ``log`` gets ncu's own output.  Raises :class:`AtlasError` where the driver does not permit counters, RuntimeError
    where the command or ncu failed.
    """
    command = [str(find()), *_OPTIONS, "--log-file", str(log), *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    text = log.read_text(errors="replace") if log.exists() else ""
    said = f"{text}\n{done.stdout}\n{done.stderr}"
    if "ERR_NVGPUCTRPERM" in said:
        raise AtlasError("ncu may not read this GPU's counters: run as root, or load the driver with "
                         "NVreg_RestrictProfilingToAdminUsers=0 (developer.nvidia.com/ERR_NVGPUCTRPERM)")  # fmt: skip
    if done.returncode:
        lines = [line.strip() for line in said.splitlines() if line.strip()]
        raise RuntimeError(f"ncu ended with {done.returncode}: {' / '.join(lines[-_LAST_WORDS:])}")
    return parse(text)


def parse(text: str) -> list[Launch]:
    """The launches in ncu's raw CSV page; ``==PROF==`` lines and the like may surround it.

    Below the header comes a row of units.  RuntimeError where there is no table, or none of :data:`METRIC`.
    """
    lines = [line for line in text.splitlines() if line.startswith('"')]
    rows = csv.DictReader(lines)
    if rows.fieldnames is None or METRIC not in rows.fieldnames:
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        raise RuntimeError(f"ncu profiled no launch: {' / '.join(lines[-_LAST_WORDS:]) or 'it printed nothing'}")
    scale, launches = None, []
    for row in rows:
        if not row["ID"]:
            scale = _IN_MICROSECONDS[_short(row[METRIC])]
        elif scale is None:
            raise RuntimeError("ncu printed no units; --print-units base asks for them")
        else:
            value = float(row[METRIC].replace(",", ""))
            launches.append(Launch(row["Kernel Name"].partition("(")[0].strip(), value * scale))
    return launches


def _short(unit: str) -> str:
    return unit.replace("econd", "")  # nsecond in releases before 2023
