"""Lease, certification and the validate command, on the device itself."""

import dataclasses
import json
import os
import subprocess
import sys

import pytest
import torch
from atlas import ROOT, catalog
from atlas.declaration import gpu_of
from atlas.host import devices, leases
from atlas.results import documents
from atlas.validation import certify

pytestmark = pytest.mark.gpu

_HOLDER = """
import sys
from atlas.host import leases
from atlas.reading.config import load_gpus
name = sys.argv[1]
own = leases.lease(name, load_gpus()[name])
with leases.adopted(own):
    import torch
    properties = torch.cuda.get_device_properties(0)
    one = torch.ones(8, device="cuda").sum().item()
    print(own.uuid, torch.cuda.device_count(), properties.uuid, one, flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def environment(tmp_path):
    """Of a command with locks of its own, so that no other job of this host is waited for."""
    path = os.pathsep.join([str(ROOT / "workflow"), str(ROOT), *sys.path])
    return os.environ | {leases.FOLDER_VARIABLE: str(tmp_path / "leases"), "PYTHONPATH": path}


def holder(name, environment):
    return subprocess.Popen(
        [sys.executable, "-c", _HOLDER, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, env=environment,
    )  # fmt: skip


def test_a_lease_is_of_one_device_and_its_holder_sees_no_other(block, environment):
    with holder(block[0], environment) as first:
        uuid, count, of_torch, one = first.stdout.readline().split()
        assert uuid in [device.uuid for device in devices.visible()]
        assert uuid.removeprefix("GPU-") == of_torch.removeprefix("GPU-")
        assert (count, float(one)) == ("1", 8.0)
        first.communicate("\n")


def test_a_second_job_waits_for_the_device_until_the_first_ends_however_it_ends(block, environment):
    if len([d for d in devices.visible() if d.name == torch.cuda.get_device_name()]) > 1:
        pytest.skip("this host shows several devices: a second job would get another one")
    with holder(block[0], environment) as first:
        leased = first.stdout.readline().split()[0]
        with holder(block[0], environment) as second:
            said = second.stderr.readline()  # after some seconds of waiting
            assert "waiting" in said and leased in said and str(first.pid) in said
            first.kill()
            assert second.stdout.readline().split()[0] == leased
            second.communicate("\n")


@pytest.mark.parametrize(("kernel", "dtype"), [("vector_add", "fp32"), ("softmax", "bf16")])
def test_a_kernel_s_default_is_certified_here_and_a_wrong_one_is_not(kernel, dtype, cuda):
    declaration, gpu = catalog.load(kernel), gpu_of(cuda)
    work = declaration.passes["forward"]
    problem = next(case for case in declaration.cases(gpu) if case.dtype == dtype)
    variant = work.preferred(problem, gpu)
    asked = variant.default(problem, gpu), dtype, cuda, (0, 1)
    found = certify(declaration, "forward", variant, *asked)
    assert (found.status, found.reason) == ("pass", "")
    assert found.cases >= 2 and found.checks > 10

    def wrong(**inputs):
        result = variant.launch(**inputs)
        first = result[0] if isinstance(result, tuple) else result
        first.view(-1)[-1:] += 1.0  # one element
        return result

    found = certify(declaration, "forward", dataclasses.replace(variant, launch=wrong), *asked)
    assert found.status == "fail" and found.reason


def test_validate_runs_here_through_its_command(block, environment, tmp_path):
    words = ["validate", "vector_add", "--gpu", block[0], "--results", str(tmp_path), "--seeds", "1", "--jobs", "4"]
    done = subprocess.run(
        [sys.executable, "-m", "atlas", *words], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    path = tmp_path / "measured" / block[0] / "vector_add" / "validate.json"
    document = documents.read(path, "validate")
    assert json.loads(path.read_text())["kind"] == "measured"
    assert document["status"] == "ok" and document["checks"]
    assert {row["status"] for row in document["checks"]} <= {"pass", "unsupported"}
