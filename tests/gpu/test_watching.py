"""A watched program on a GPU: counted, timed, captured in a graph, and right all the same."""

import os
import subprocess
import sys

import pytest
from atlas import ROOT
from atlas.host.environment import python_path
from atlas.workload import calls

pytestmark = pytest.mark.gpu

PROGRAM = """
import torch, kernels
x = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16, requires_grad=True)
for _ in range(40):
    y = kernels.softmax(x)
    y.backward(torch.ones_like(y))
assert torch.allclose(y.float(), torch.softmax(x.float(), -1), atol=1e-2)
still = x.detach()
stream = torch.cuda.Stream()
with torch.cuda.stream(stream):
    for _ in range(3): kernels.gelu(still)
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    z = kernels.gelu(still)
graph.replay()
torch.cuda.synchronize()
assert torch.allclose(z.float(), torch.nn.functional.gelu(still.float()), atol=2e-2)
"""


def test_calls_on_a_gpu_are_counted_timed_and_captured(tmp_path):
    path = tmp_path / "calls.json"
    given = os.environ | {"KERNEL_ATLAS_WATCH": str(path), "PYTHONPATH": python_path()}
    words = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(words, env=given, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    found = calls.read(path)
    assert found["timed_by"] == "cuda events" and "NVIDIA" in found["devices"][0]
    by_name = {call["function"]: call for call in found["calls"]}
    softmax, gelu = by_name["softmax"], by_name["gelu"]
    assert (softmax["count"], softmax["backward"]) == (40, 40)
    for run in softmax["runs"]:
        assert run["timed"] >= 10
        # 64 MiB of traffic or more: no GPU moves it in 5 us, and none takes 10 ms.
        assert 5e-6 < run["timed_seconds"] / run["timed"] < 1e-2
    assert (gelu["count"], gelu["captured"]) == (4, 1), "the capture is a call, its replay is not seen"
    assert sum(call["share"] or 0.0 for call in found["calls"]) == pytest.approx(1.0, abs=1e-3)
