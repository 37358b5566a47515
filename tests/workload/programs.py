"""Programs that a test watches, each a process of its own: what watches one binds the process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import preloaded
from atlas import ROOT
from atlas.workload import calls

DOUBLE = """
import threading, torch
import kernels
from atlas.operators import CustomOperator
double = CustomOperator("double", "(Tensor x) -> Tensor", run=lambda x: 2 * x, fake=torch.empty_like)
x = torch.ones(3)
"""
"""An operator that launches nothing: Triton's interpreter takes one thread at a time."""


def environment(path: Path | None) -> dict[str, str]:
    """That of a program which writes its calls to ``path``; None: of one that nobody watches."""
    given = {name: value for name, value in os.environ.items() if not name.startswith("KERNEL_ATLAS")}
    given |= {"PYTHONPATH": f"{ROOT / 'workflow'}:{ROOT}", "TRITON_INTERPRET": "1"}
    return given | ({} if path is None else {"KERNEL_ATLAS_WATCH": str(path)})


def started(code: str, path: Path | None) -> subprocess.Popen[str]:
    """A process that runs the code."""
    words = [sys.executable, "-c", code]
    return subprocess.Popen(
        words, env=environment(path), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT
    )


def ended(code: str, path: Path | None) -> subprocess.CompletedProcess[str]:
    """What became of a process that ran the code."""
    return preloaded.run(code, environment(path), ROOT)


def printed(code: str, path: Path | None) -> str:
    """What the code prints; it must end well."""
    done = ended(code, path)
    assert done.returncode == 0, done.stderr
    return done.stdout


def of(document: dict[str, Any], function: str) -> list[dict[str, Any]]:
    """The kinds of calls of a function."""
    return [call for call in document["calls"] if call["function"] == function]


def watched(code: str, path: Path) -> dict[str, Any]:
    """What the code was seen to call, read as strictly as a user's file."""
    printed(code, path)
    return calls.read(path)
