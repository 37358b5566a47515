"""NVIDIA's Nsight Compute (ncu): the device's own counters of each kernel launch of a process, sorted by call.

Names of metrics are ncu's (docs.nvidia.com/nsight-compute, "Metrics Reference"); a GPU that lacks one goes without.
"""

from __future__ import annotations

import csv
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import AtlasError
from ..host.environment import python_path

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
    """Those of ``metrics`` that this GPU has: their base names, before the first dot, are in ncu's own list.

    What ncu knows of every launch (``launch__``) it has of any GPU, and does not list.
    """
    done = subprocess.run([str(find()), "--query-metrics"], capture_output=True, text=True, check=False)
    listed = {line.split()[0] for line in done.stdout.splitlines() if line.split()}
    return [metric for metric in metrics if metric.startswith("launch__") or metric.partition(".")[0] in listed]


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


COUNTERS = {
    "duration_us": DURATION,
    "dram_read_bytes": "dram__bytes_read.sum",
    "dram_write_bytes": "dram__bytes_write.sum",
    "dram_percent": "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    "l2_hit_percent": "lts__t_sector_hit_rate.pct",
    "tensor_percent": "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed",
    "issue_percent": "sm__inst_issued.avg.pct_of_peak_sustained_elapsed",
    "occupancy_percent": "sm__warps_active.avg.pct_of_peak_sustained_active",
    "shared_conflicts": "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum",
    "registers": "launch__registers_per_thread",
}
"""Name here to metric.  Percentages are of the peak over the launch, but occupancy: of the warps an SM holds."""

_STALL = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"
STALLS = {
    "long_scoreboard": "global or local memory",
    "short_scoreboard": "shared memory or special functions",
    "barrier": "a barrier of the block",
    "membar": "a memory fence",
    "wait": "a fixed latency",
    "math_pipe_throttle": "a busy arithmetic pipe",
    "mio_throttle": "the queue of shared memory and special functions",
    "lg_throttle": "the queue of global memory",
    "tex_throttle": "the queue of L1",
    "drain": "stores to drain",
    "gmma": "a matrix product of the warp group",
    "no_instruction": "instructions",
    "dispatch_stall": "dispatch",
    "imc_miss": "constants",
    "branch_resolving": "a branch",
    "sleeping": "a sleep, as of a warp that polls",
}
"""What a warp may wait for, by the part of ncu's name that differs."""


def metrics() -> list[str]:
    """All that ncu is asked for."""
    return [*COUNTERS.values(), *(_STALL.format(reason) for reason in STALLS)]


def facts(launch: Launch) -> dict[str, Any]:
    """``kernel``, every counter of :data:`COUNTERS` (None where ncu gave none), and ``stalls``.

    ``stalls``: of each reason, in the order of their weight, the warps that waited for it on average whenever a
    scheduler issued an instruction.
    """
    values: Mapping[str, float] = launch.values
    stalls = {reason: values.get(_STALL.format(reason)) for reason in STALLS}
    weighed = sorted(((n, reason) for reason, n in stalls.items() if n), reverse=True)
    found = {name: values.get(metric) for name, metric in COUNTERS.items()}
    return {"kernel": launch.kernel, **found, "stalls": {reason: round(n, 4) for n, reason in weighed}}


FAILED = "failed.json"
"""Where :mod:`.launches` says which cases of a lenient plan it left out."""

MARKER = "atlas_marker"
"""The kernel that :mod:`.launches` launches before each call."""


def asked(kernel: str, gpu: str, folder: Path, row: Mapping[str, Any]) -> dict[str, Any]:
    """A benchmark's row as :func:`.launches.thunk` takes it; ``folder`` is that of the kernel's documents."""
    by = "peer" if row["provider_kind"] == "peer" else "variant"
    place = {"kernel": kernel, "gpu": gpu, "folder": str(folder.resolve())}
    return place | {by: row["provider"]} | {key: row[key] for key in ("direction", "dtype", "sizes", "config")}


def watch(
    gpu: str,
    gpus_file: Path,
    cases: Sequence[Mapping[str, Any]],
    repeats: int,
    folder: Path,
    metrics: Sequence[str] = (DURATION,),
    flush: bool = False,
    lenient: bool = False,
) -> list[Launch]:
    """All launches of ``repeats`` calls of each case, with their markers; the plan and ncu's log go into ``folder``.

    ``cases`` are as :func:`.launches.thunk` takes them; of a ``lenient`` plan those that fail are left out, see
    :func:`failures`.  For ``metrics`` and ``flush``, and what is raised, see
    :func:`.ncu.profile`.
    """
    plan = folder / "launches.json"
    asked = {"gpu": gpu, "gpus_file": str(gpus_file.resolve()), "repeats": repeats, "cases": list(cases)}
    plan.write_text(json.dumps(asked | {"lenient": lenient}))
    environment = os.environ | {"PYTHONPATH": python_path()}
    words = [sys.executable, "-m", "atlas.profiling.launches", str(plan)]
    return profile(words, environment, folder / "ncu.csv", metrics, flush)


def failures(folder: Path) -> dict[int, str]:
    """The cases that a lenient plan left out, by their number, and why."""
    path = folder / FAILED
    return {int(number): reason for number, reason in json.loads(path.read_text()).items()} if path.exists() else {}


def by_call(launches: Sequence[Launch], expected: int) -> list[list[Launch]]:
    """The launches of each call, in order; RuntimeError unless there are ``expected`` calls, each with a kernel."""
    calls: list[list[Launch]] = []
    for launch in launches:
        if launch.kernel == MARKER:
            calls.append([])
        elif calls:
            calls[-1].append(launch)
    if len(calls) != expected or not all(calls):
        raise RuntimeError(f"ncu saw {len(calls)} calls, {sum(map(bool, calls))} of them with kernels; "
                           f"{expected} were made")  # fmt: skip
    return calls
