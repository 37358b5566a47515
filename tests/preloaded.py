"""Scripts in processes of their own that need not import torch, which takes longer than most of them."""

import functools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path


@functools.cache
def _server(*modules: str) -> subprocess.Popen[str]:
    """The process that has the modules imported; it ends with this one."""
    words = [sys.executable, str(Path(__file__).with_name("preloaded_server.py")), *modules]
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "TRITON_INTERPRET")}
    return subprocess.Popen(words, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def run(
    code: str, environment: Mapping[str, str], folder: Path, modules: tuple[str, ...] = ("torch",)
) -> subprocess.CompletedProcess[str]:
    """``python -c code`` with this environment, whose PYTHONPATH must be given, in a folder; ``modules`` are there."""
    with tempfile.TemporaryDirectory() as made:
        printed = [Path(made) / name for name in ("output", "error")]
        asked = {"code": code, "environment": dict(environment), "folder": str(folder)}
        server = _server(*modules)
        server.stdin.write(json.dumps(asked | {"printed": list(map(str, printed))}) + "\n")
        server.stdin.flush()
        status = int(server.stdout.readline())
        said = [path.read_text() for path in printed]
    return subprocess.CompletedProcess(code, status, *said)
