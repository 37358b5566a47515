"""What tests of several kernels share."""

import builtins
import json
import os
import sys
import types
from pathlib import Path

import preloaded
import pytest


@pytest.fixture(scope="session")
def printed_apart():
    """What a script prints as JSON, run in a process of its own that compiles, since this one interprets kernels."""

    def run(script):
        environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
        environment["PYTHONPATH"] = os.pathsep.join(sys.path)
        ran = preloaded.run(script, environment, Path.cwd(), ("torch", "triton"))
        assert ran.returncode == 0, ran.stderr
        return json.loads(ran.stdout)

    return run


@pytest.fixture
def imports_as_before_2_13(monkeypatch):
    """torch.compile's, which broke the graph at an import that gave a module of a class of its own: ``kernels``."""

    def imported(*names, **options):
        value = builtins.__import__(*names, **options)
        assert type(value) is types.ModuleType, f"an import that is traced gives {value}"
        return value

    monkeypatch.setattr("torch._dynamo.symbolic_convert.__import__", imported, raising=False)
