"""torch's own sample inputs, given to the library by the command ``python -m tests.outside``.

By the command, since reading torch's list changes torch's global state for the rest of a process.
"""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import kernels.nn

from .functions import OPERATIONS, WITHOUT_SAMPLES

ROOT = Path(__file__).parents[2]

needs_the_list = pytest.mark.skipif(
    importlib.util.find_spec("expecttest") is None, reason="torch's list of sample inputs needs expecttest"
)


def found(path, *arguments):
    """The command's document, and what it printed."""
    paths = [str(ROOT / "workflow"), str(ROOT), os.environ.get("PYTHONPATH", "")]
    where = {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    command = [sys.executable, "-m", "tests.outside", *arguments, "--json", str(path)]
    ended = subprocess.run(command, cwd=ROOT, env=os.environ | where, capture_output=True, text=True)
    assert path.exists(), ended.stderr[-2000:]
    return json.loads(path.read_text()), ended


@pytest.fixture(scope="module")
def interpreted(tmp_path_factory):
    document, _ = found(tmp_path_factory.mktemp("outside") / "found.json", "--bounded", "--device", "cpu")
    return document


@needs_the_list
@pytest.mark.slow
@pytest.mark.parametrize("name", OPERATIONS)
def test_small_samples_of_torch_s_are_right_or_refused_for_a_known_reason(interpreted, name):
    assert not interpreted[name]["failures"]
    assert not interpreted[name]["new refusals"]
    assert interpreted[name]["passed"]


@needs_the_list
@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_small_samples_of_torch_s_are_right_on_a_gpu(tmp_path):
    document, ended = found(tmp_path / "found.json", "--bounded", "--device", "cuda")
    assert not ended.returncode, ended.stdout
    since_2_13 = {"linear_cross_entropy", "nn.LinearCrossEntropyLoss"}
    assert all(document[name]["passed"] for name in set(OPERATIONS) - since_2_13)


def test_every_public_function_and_module_has_samples_or_a_reason_why_not():
    assert sorted([*OPERATIONS, *WITHOUT_SAMPLES]) == sorted(
        [*kernels.__all__, *(f"nn.{n}" for n in kernels.nn.__all__)]
    )
