"""Checkouts to run the workflow in: copies of the project that a test may edit."""

import functools
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[2]
PRIVATE = (
    "TRITON_INTERPRET",
    "CUDA_VISIBLE_DEVICES",
    "KERNEL_ATLAS_CONFIG",
    "KERNEL_ATLAS_DEVICES",
    "KERNEL_ATLAS_GPUS",
    "KERNEL_ATLAS_LEASE",
    "KERNEL_ATLAS_PLACES",
    "KERNEL_ATLAS_PYTHONS",
    "KERNEL_ATLAS_RUN",
    "KERNEL_ATLAS_TUNED",
    "KERNEL_ATLAS_WATCH",
    "KERNEL_ATLAS_WORKLOAD",
)
"""Variables of the process that runs the tests, which the commands of a checkout shall not inherit."""

PARTS = ("Snakefile", "workflow", "kernels", "config", "profiles", "environment.yml")


@functools.cache
def _snakemake() -> subprocess.Popen[str]:
    """The process that has Snakemake imported; it ends with this one."""
    words = [sys.executable, str(Path(__file__).parents[1] / "snakemake_server.py")]
    return subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


@dataclass
class Checkout:
    """A copy of the project without results, and the commands a user would type in it."""

    root: Path
    environment: dict[str, str] = field(default_factory=dict)

    def run(self, *words: str, devices: str | None = "") -> subprocess.CompletedProcess[str]:
        """Run a command in the checkout; ``devices`` are the GPU names its driver would show, separated by ``;``.

        With None the driver is asked.
        """
        environment = self._environment(devices)
        return subprocess.run(words, cwd=self.root, env=environment, capture_output=True, text=True, check=False)

    def _environment(self, devices: str | None) -> dict[str, str]:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        simulated = {} if devices is None else {"KERNEL_ATLAS_DEVICES": devices}
        leases = {"KERNEL_ATLAS_LEASES": str(self.root / "leases")}
        inherited = {name: value for name, value in os.environ.items() if name not in PRIVATE}
        environment = inherited | {"PATH": path} | simulated | leases | self.environment
        environment["PYTHONPATH"] = f"{self.root / 'workflow'}{os.pathsep}{self.root}"
        return environment

    def snakemake(self, *words: str, devices: str | None = "") -> subprocess.CompletedProcess[str]:
        """``snakemake`` on two cores."""
        every = ["--cores", "2", *words]
        with tempfile.TemporaryDirectory() as folder:
            printed = [Path(folder) / name for name in ("output", "error")]
            asked = {"folder": str(self.root), "environment": self._environment(devices), "words": every}
            server = _snakemake()
            server.stdin.write(json.dumps(asked | {"printed": list(map(str, printed))}) + "\n")
            server.stdin.flush()
            status = int(server.stdout.readline())
            said = [path.read_text() for path in printed]
        return subprocess.CompletedProcess(every, status, *said)

    def atlas(self, *words: str) -> subprocess.CompletedProcess[str]:
        """``python -m atlas``."""
        return self.run(sys.executable, "-m", "atlas", *words)

    def planned(self, *words: str, devices: str | None = "") -> dict[str, int]:
        """How many jobs of each rule a dry run would start; empty where there is nothing to do."""
        return self.told(*words, devices=devices)[0]

    def told(self, *words: str, devices: str | None = "") -> tuple[dict[str, int], str]:
        """What a dry run would start, as :meth:`planned` gives it, and all that it says."""
        done = self.snakemake("-n", *words, devices=devices)
        said = done.stdout + done.stderr
        assert done.returncode == 0, said
        table = re.search(r"^job +count\n-+ +-+\n(.*?)^total", said, re.M | re.S)
        found = re.findall(r"^(\w+) +(\d+)$", table[1], re.M) if table else []
        return {name: int(count) for name, count in found}, said

    def document(self, gpu: str, kernel: str, stage: str) -> dict:
        """What a stage wrote."""
        return json.loads((self.root / "results/measured" / gpu / kernel / f"{stage}.json").read_text())

    def edit(self, name: str, old: str, new: str) -> None:
        """Replace text that must be there in a file of the checkout."""
        path = self.root / name
        text = path.read_text()
        assert old in text, f"{name} no longer says {old!r}"
        path.write_text(text.replace(old, new))


def make_checkout(root: Path) -> Checkout:
    """A fresh copy of the project at ``root``."""
    for part in PARTS:
        source = PROJECT / part
        if source.is_dir():
            shutil.copytree(source, root / part, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            root.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, root / part)
    return Checkout(root)


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    """A copy of this test's own."""
    return make_checkout(tmp_path / "project")
