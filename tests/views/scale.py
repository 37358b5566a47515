"""How long the views take of eight simulated GPUs with forty kernels: ``python tests/views/scale.py FOLDER``.

Writes the documents into an empty FOLDER once, then runs each view as its user would, in a process of its own.
"""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

import synthetic
from atlas import catalog

VIEWS = ("tables", "figures", "report")
KERNELS = tuple(replace(kernel, name=f"{kernel.name}_{i}") for i in range(10) for kernel in synthetic.KERNELS)

_SAMPLING_SECONDS = 0.25


@dataclass(frozen=True)
class Run:
    """One view: its seconds, and the most MiB that it and its workers held at a time, shared pages counted once."""

    view: str
    seconds: float
    peak_mib: float

    def __str__(self) -> str:
        return f"{self.view}: {self.seconds:.1f} s, {self.peak_mib:.0f} MiB"


def fill(results: Path) -> None:
    """Documents of every stage for each kernel and GPU: the first measured, the others recorded."""
    catalog.KERNELS = synthetic.use_catalog(results / "kernels", KERNELS)
    first, *others = synthetic.MANY
    synthetic.write_everything(results, KERNELS, measured=[first], recorded=others, functional=False)


def run(results: Path, view: str) -> Run:
    """A view of what :func:`fill` wrote; raises CalledProcessError where it fails."""
    program = (
        "import sys; from pathlib import Path; from atlas import catalog, cli; "
        f"catalog.KERNELS = Path({str(results / 'kernels')!r}); sys.exit(cli.main([{view!r}, '--results', "
        f"{str(results)!r}]))"
    )
    start, peak = time.perf_counter(), 0.0
    with subprocess.Popen([sys.executable, "-c", program]) as process:
        while process.poll() is None:
            peak = max(peak, _held(process.pid) / 2**10)
            time.sleep(_SAMPLING_SECONDS)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, process.args)
    return Run(view, time.perf_counter() - start, peak)


def _held(pid: int | str) -> int:
    """KiB of a process and of all below it; nothing of one that has ended meanwhile."""
    try:
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
        tasks = [(task / "children").read_text() for task in Path(f"/proc/{pid}/task").iterdir()]
    except (FileNotFoundError, ProcessLookupError):
        return 0
    own = next((int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:")), 0)
    return own + sum(map(_held, " ".join(tasks).split()))


if __name__ == "__main__":
    folder = Path(sys.argv[1]).resolve()
    if not (folder / "kernels").exists():
        fill(folder)
    for name in VIEWS:
        print(run(folder, name), flush=True)
