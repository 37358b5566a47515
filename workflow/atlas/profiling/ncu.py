"""NVIDIA's Nsight Compute: the device's own counters of each kernel launch of a command."""

from __future__ import annotations

import csv
import os
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import AtlasError

DURATION = "gpu__time_duration.sum"
"""From a kernel's start to its end."""

_OPTIONS = (
    "--profile-from-start", "off",  # the profiled process says which launches count
    "--clock-control", "none",  # ncu would lock the clock at its base
    "--csv", "--page", "raw", "--print-units", "base",
)  # fmt: skip
_IN_MICROSECONDS = {"ns": 1e-3, "us": 1.0, "ms": 1e3, "s": 1e6}
_LAST_WORDS = 3


@dataclass(frozen=True)
class Launch:
    """One profiled kernel launch: the kernel's name without arguments, and its metrics: times in microseconds, bytes,
    per cent, and ratios."""

    kernel: str
    values: Mapping[str, float]

    @property
    def microseconds(self) -> float:
        """From the kernel's start to its end."""
        return self.values[DURATION]


def find() -> Path:
    """The ncu program: on PATH, or where CUDA and Nsight Compute are installed; :class:`AtlasError` without one."""
    places = [Path(root, "bin", "ncu") for root in (os.environ.get("CUDA_HOME"), "/usr/local/cuda") if root]
    places += sorted(Path("/opt/nvidia/nsight-compute").glob("*/ncu"), reverse=True)
    found = shutil.which("ncu") or next((place for place in places if os.access(place, os.X_OK)), None)
    if found is None:
        raise AtlasError("ncu is not here: install NVIDIA Nsight Compute, which comes with the CUDA toolkit, and put "
                         "its folder on PATH")  # fmt: skip
    return Path(found)


def known(metrics: Iterable[str]) -> list[str]:
    """Those of ``metrics`` that this GPU has: their base names, before the first dot, are in ncu's own list."""
    done = subprocess.run([str(find()), "--query-metrics"], capture_output=True, text=True, check=False)
    listed = {line.split()[0] for line in done.stdout.splitlines() if line.split()}
    return [metric for metric in metrics if metric.partition(".")[0] in listed]


def profile(
    words: Sequence[str],
    environment: dict[str, str],
    log: Path,
    metrics: Sequence[str] = (DURATION,),
    flush: bool = False,
) -> list[Launch]:
    """What ncu measured of a command's launches between its cudaProfilerStart and Stop, in their order.

    ``log`` gets ncu's own output.  More metrics than fit into one pass replay a kernel: with ``flush`` ncu empties the
    caches before every pass, else the profiled process does before the launch, as the clock does.  Raises
    :class:`AtlasError` where the driver does not permit counters, RuntimeError where the command or ncu failed.
    """
    asked = ["--metrics", ",".join(metrics), "--cache-control", "all" if flush else "none", "--log-file", str(log)]
    command = [str(find()), *_OPTIONS, *asked, *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    text = log.read_text(errors="replace") if log.exists() else ""
    said = f"{text}\n{done.stdout}\n{done.stderr}"
    if "ERR_NVGPUCTRPERM" in said:
        raise AtlasError("ncu may not read this GPU's counters: run as root, or load the driver with "
                         "NVreg_RestrictProfilingToAdminUsers=0 (developer.nvidia.com/ERR_NVGPUCTRPERM)")  # fmt: skip
    if done.returncode:
        lines = [line.strip() for line in said.splitlines() if line.strip()]
        raise RuntimeError(f"ncu ended with {done.returncode}: {' / '.join(lines[-_LAST_WORDS:])}")
    return parse(text, metrics)


def parse(text: str, metrics: Sequence[str] = (DURATION,)) -> list[Launch]:
    """The launches in ncu's raw CSV page; ``==PROF==`` lines and the like may surround it.

    Below the header comes a row of units.  A metric that ncu could not collect of a launch is left out of its values.
    RuntimeError where there is no table, or none of :data:`DURATION`.
    """
    lines = [line for line in text.splitlines() if line.startswith('"')]
    rows = csv.DictReader(lines)
    if rows.fieldnames is None or DURATION not in rows.fieldnames:
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        raise RuntimeError(f"ncu profiled no launch: {' / '.join(lines[-_LAST_WORDS:]) or 'it printed nothing'}")
    scales: dict[str, float] | None = None
    launches = []
    for row in rows:
        if not row["ID"]:
            scales = {name: _IN_MICROSECONDS.get(_short(row[name]), 1.0) for name in metrics if name in row}
        elif scales is None:
            raise RuntimeError("ncu printed no units; --print-units base asks for them")
        else:
            values = {name: _number(row[name]) for name in scales}
            found = {name: value * scales[name] for name, value in values.items() if value is not None}
            launches.append(Launch(plain_name(row["Kernel Name"]), found))
    return launches


def plain_name(signature: str) -> str:
    """A kernel's name with its template arguments: ``at::native::vectorized<4, Functor>`` of a demangled signature.

    The parameters begin at the first bracket that is in no template argument; ``(anonymous namespace)::`` is no such.
    """
    name = signature.replace("(anonymous namespace)::", "").removeprefix("void ").strip()
    depth = 0
    for place, character in enumerate(name):
        depth += {"<": 1, ">": -1}.get(character, 0)
        if character == "(" and depth == 0:
            return name[:place].strip()
    return name


def _number(cell: str) -> float | None:
    try:
        return float(cell.replace(",", ""))
    except ValueError:  # "n/a", and nothing
        return None


def _short(unit: str) -> str:
    return unit.replace("econd", "")  # nsecond in releases before 2023
