"""Checkouts to run the workflow in: copies of the project that a test may edit."""

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[2]
PRIVATE = (
    "TRITON_INTERPRET",
    "CUDA_VISIBLE_DEVICES",
    "KERNEL_ATLAS_DEVICES",
    "KERNEL_ATLAS_GPUS",
    "KERNEL_ATLAS_LEASE",
    "KERNEL_ATLAS_PLACES",
    "KERNEL_ATLAS_RUN",
    "KERNEL_ATLAS_TUNED",
)
"""Variables of the process that runs the tests, which the commands of a checkout shall not inherit."""

PARTS = ("Snakefile", "workflow", "kernels", "config", "profiles", "environment.yml")


@dataclass
class Checkout:
    """A copy of the project without results, and the commands a user would type in it."""

    root: Path
    environment: dict[str, str] = field(default_factory=dict)

    def run(self, *words: str, devices: str | None = "") -> subprocess.CompletedProcess[str]:
        """Run a command in the checkout; ``devices`` are the GPU names its driver would show, separated by ``;``.

        With None the driver is asked.
        """
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        simulated = {} if devices is None else {"KERNEL_ATLAS_DEVICES": devices}
        leases = {"KERNEL_ATLAS_LEASES": str(self.root / "leases")}
        inherited = {name: value for name, value in os.environ.items() if name not in PRIVATE}
        environment = inherited | {"PATH": path} | simulated | leases | self.environment
        environment["PYTHONPATH"] = f"{self.root / 'workflow'}{os.pathsep}{self.root}"
        return subprocess.run(words, cwd=self.root, env=environment, capture_output=True, text=True, check=False)

    def snakemake(self, *words: str, devices: str | None = "") -> subprocess.CompletedProcess[str]:
        """``snakemake`` on two cores."""
        return self.run(sys.executable, "-m", "snakemake", "--cores", "2", *words, devices=devices)

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
