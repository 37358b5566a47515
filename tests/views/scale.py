"""How long the views take of eight simulated GPUs with forty kernels: ``python tests/views/scale.py FOLDER``.

Writes the documents into an empty FOLDER once, then runs each view as its user would, in a process of its own.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import synthetic
from atlas import catalog

VIEWS = ("tables", "figures", "report")
KERNELS = tuple(replace(kernel, name=f"{kernel.name}_{i}") for i in range(10) for kernel in synthetic.KERNELS)


def fill(results: Path) -> None:
    """Documents of every stage for each kernel and GPU: the first measured, the others recorded."""
    catalog.KERNELS = synthetic.use_catalog(results / "kernels", KERNELS)
    first, *others = synthetic.MANY
    synthetic.write_everything(results, KERNELS, measured=[first], recorded=others, functional=False)


def run(results: Path) -> None:
    """Every view in turn, with its seconds; at the end the most memory that any of them took."""
    for view in VIEWS:
        program = (
            "import sys; from pathlib import Path; from atlas import catalog, cli; "
            f"catalog.KERNELS = Path({str(results / 'kernels')!r}); sys.exit(cli.main([{view!r}, '--results', "
            f"{str(results)!r}]))"
        )
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", program], check=True)
        print(f"{view}: {time.perf_counter() - start:.1f} s", flush=True)
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**10
    page = (results / "report.html").stat().st_size / 2**20
    print(f"most memory of a process: {peak:.0f} MiB; first page: {page:.2f} MiB")


if __name__ == "__main__":
    folder = Path(sys.argv[1]).resolve()
    if not (folder / "kernels").exists():
        fill(folder)
    run(folder)
