"""What surrounds a run's jobs: whose code they run, where a pod's documents are, and what a run says last."""

from __future__ import annotations

import os
import shlex
import sys
import time
from pathlib import Path

from .. import ROOT
from ..workload import current as workloads

STARTED = time.time()


def use_this_checkout() -> None:
    """Let jobs run this checkout's code with the Python that runs Snakemake, whatever PATH says.

    Jobs inherit this process's environment; a job on another host parses the workflow there, and thus does the same.
    """
    for variable, first in {
        "PATH": str(Path(sys.executable).parent),
        "PYTHONPATH": f"{ROOT / 'workflow'}{os.pathsep}{ROOT}",
    }.items():
        rest = os.environ.get(variable, "")
        if not rest.startswith(first):
            os.environ[variable] = f"{first}{os.pathsep}{rest}" if rest else first
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")


def link_documents(kept: Path) -> None:
    """Let ``results/measured`` of a pod be ``kept``: where Snakemake puts and expects its share of the storage.

    Stages read and write under ``results/`` and know nothing of a storage.
    """
    kept.mkdir(parents=True, exist_ok=True)
    here = Path("results", "measured")
    here.parent.mkdir(exist_ok=True)
    here.symlink_to(kept.absolute())


def bringing(kept: str | None) -> str:
    """The command that brings a storage's share of documents, ``kept``, to where all is without one."""
    return "true" if kept is None else f"mkdir -p results/measured && cp -rv {shlex.quote(kept)}/. results/measured"


def closing(results: str, failed: bool = False) -> str:
    """What a run says last: its verdict, or where to look if it did not come to one; ``failed`` says that a job did."""
    where = "" if workloads.current() is None else f"\nThe workload's results are in {Path(results).absolute()}."
    log = Path(results, "logs", "verdict.log")
    if log.exists() and log.stat().st_mtime >= STARTED:
        return log.read_text() + where
    report = Path(results, "report.html")
    if failed or not report.exists():
        return f"No verdict: see {results}/logs/.{where}"
    return f"Nothing new to judge; the report is {report}.{where}"
