"""Peak memory: what the benchmark writes of a call is what the call allocated."""

import pytest
import torch
from atlas.benchmarking.measurement import Benchmark
from atlas.benchmarking.providers import Tuned
from atlas.declaration import gpu_of

from .small_kernels import HELD_BYTES, declare

pytestmark = pytest.mark.gpu

N = 2**20


@pytest.fixture(scope="module")
def rows(clock, cuda):
    """By kind of provider: untuned, the variant runs its default."""
    declaration = declare(N)
    bench = Benchmark(declaration, gpu_of(cuda), cuda, clock, Tuned({"best": [], "trials": []}), None, 0.01, 20)
    (case,) = declaration.cases(None)
    return {row["provider_kind"]: row for row in bench.rows("forward", case)}


def test_the_peak_of_a_call_is_its_result_and_its_scratch(rows):
    assert rows["default"]["status"] == "ok", rows["default"]
    assert rows["default"]["peak_bytes"] == 4 * N + HELD_BYTES


def test_the_peak_of_a_peer_is_its_result_alone_whatever_ran_before_it(rows):
    assert rows["peer"]["status"] == "ok", rows["peer"]
    assert rows["peer"]["peak_bytes"] == 4 * N


def test_short_work_has_the_host_s_time_and_a_graph_s(rows):
    for provider in ("default", "peer"):
        if rows[provider]["median_us"] < 20:
            assert 0 < rows[provider]["graph_us"] < 50 and 0 < rows[provider]["call_us"] < 200


def test_a_contest_leaves_no_memory_behind(clock, cuda, rows):
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    declaration = declare(N)
    bench = Benchmark(declaration, gpu_of(cuda), cuda, clock, Tuned({"best": [], "trials": []}), None, 0.01, 20)
    bench.rows("forward", declaration.cases(None)[0])
    assert torch.cuda.memory_allocated() == before
