"""Calls at drawn shapes: what is drawn, what a row says, and what the claims are of."""

import subprocess
import sys

import pytest
import torch
from atlas import catalog
from atlas.benchmarking import beyond
from atlas.host import gpus
from atlas.host.runtime import meta_inputs
from atlas.reading.config import load_gpus
from atlas.results import documents
from atlas.results.beyond import OURS
from atlas.sampling import domains, drawing
from proof_doubles import validated

from proofs.unseen import proof


@pytest.fixture(scope="module")
def h200():
    return gpus.gpu("h200", load_gpus()["h200"])


def test_every_kernel_has_a_domain():
    assert set(domains.DOMAINS) == set(catalog.names())


@pytest.mark.slow
@pytest.mark.parametrize("kernel", catalog.names())
def test_drawn_cases_are_calls_that_the_kernel_takes(kernel, h200):
    declaration = catalog.load(kernel)
    cases = drawing.drawn(declaration, h200, seed=3, count=5)
    assert len(cases) == 5, "so many different ones there are"
    assert (
        cases == drawing.drawn(declaration, h200, seed=3, count=5) != drawing.drawn(declaration, h200, seed=4, count=5)
    )
    for case in cases:
        assert case.dtype in declaration.dtypes, case
        meta_inputs(declaration.forward, case)  # has the sizes and flags that inputs are drawn by
        assert any(not variant.unsupported(case, h200) for variant in declaration.forward.variants), case


def test_calls_are_timed_beside_their_peers_forward_and_in_a_step(tmp_path):
    validated(tmp_path, "vector_add", gpu="cpu", kind="functional")
    words = (
        "beyond",
        "vector_add",
        "--gpu",
        "cpu",
        "--results",
        str(tmp_path),
        "--cases",
        "1",
        "--seed",
        "38",
    )  # few elements
    done = subprocess.run([sys.executable, "-m", "atlas", *words], capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr
    found = documents.read(tmp_path / "measured/cpu/vector_add/beyond.json", "beyond")
    assert found["status"] == "ok" and found["seed"] == 38
    for mode in ("forward", "step"):
        own = [row for row in found["rows"] if row["mode"] == mode]
        assert [row["provider"] for row in own[:2]] == [OURS, "torch"]
        assert all(row["status"] == "ok" and row["median_us"] > 0 for row in own[:2]), own


def test_a_wrong_result_has_no_ratio_and_breaks_a_claim():
    ours = {"provider": "public", "mode": "forward", "sizes": {"n": 7}, "dtype": "bf16", "status": "wrong",
            "reason": "output 0 is 1 off torch's", "median_us": 5.0}  # fmt: skip
    row = proof.summary(
        "vector_add", [ours, ours | {"provider": "torch", "status": "ok", "reason": "", "median_us": 9.0}]
    )
    assert row["ratio"] is None and row["case"] == "n=7 bf16"
    assert not proof.evidence([row], []).claims[0].holds


def test_the_fastest_peer_counts_and_losses_come_worst_first():
    def row(us, **peers):
        shared = {"mode": "forward", "sizes": {"n": 7}, "dtype": "bf16", "status": "ok", "reason": ""}
        return proof.summary("k", [
            shared | {"provider": "public", "median_us": us},
            *(shared | {"provider": name, "median_us": found} for name, found in peers.items()),
        ])  # fmt: skip

    rows = [row(10.0, torch=20.0, compiled=8.0), row(10.0, torch=6.0), row(10.0, torch=40.0)]
    assert [one["ratio"] for one in rows] == [0.8, 0.6, 4.0]
    evidence = proof.evidence(rows, [])
    found = {claim.text: claim for claim in evidence.claims}
    assert found["geometric mean of the fastest peer's time over ours"].found == pytest.approx(
        (0.8 * 0.6 * 4) ** (1 / 3)
    )
    assert found["share of 3 calls below 0.9"].found == pytest.approx(2 / 3) and not evidence.holds
    assert [one["peer over ours"] for one in evidence.rows[1:]] == [0.6, 0.8], "after the kernels' means"


def test_difference_passes_rounding_and_finds_a_mistake():
    expected = [torch.randn(64, 64)]
    assert beyond.difference([expected[0] * (1 + 1e-4)], expected, "bf16") == ""
    assert "off torch's" in beyond.difference([expected[0].roll(1)], expected, "bf16")
    assert "off torch's" in beyond.difference([torch.full((64, 64), float("nan"))], expected, "bf16")
