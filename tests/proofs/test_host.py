"""What calls cost the host, beside torch's."""

import pytest
import torch
from atlas.errors import AtlasError
from atlas.results.pieces import Pieces
from proof_doubles import job

import kernels
from proofs.measuring import host
from proofs.measuring.host import PAIRS, Pair, evidence, rows_of


def row(mode="call", us=10.0, torchs=8.0):
    return {"function": "f", "mode": mode, "case": "c", "us": us, "torch_us": torchs, "reason": "" if us else "why"}


def test_calls_may_take_microseconds_more_and_steps_a_share_more():
    found = evidence([row(us=13.0), row("step", 96.0, 80.0)], ["how"])
    assert found.holds and [claim.found for claim in found.claims] == [0, 5.0, pytest.approx(1.2)]
    assert found.rows[0]["over"] == 5.0 and found.rows[1]["times"] == pytest.approx(1.2) and found.notes == ["how"]


@pytest.mark.parametrize("worst", [row(us=13.1), row("step", 96.1, 80.0), row(us=None)], ids=["call", "step", "failed"])
def test_the_worst_counts(worst):
    found = evidence([row(us=8.0), row("step", 60.0, 80.0), worst])
    assert len(found.broken) == 1 and len(found.rows) == 3


def test_ways_take_turns_and_the_middle_row_counts(monkeypatch):
    clock, order = iter(range(10**6)), []
    monkeypatch.setattr(host.time, "perf_counter", lambda: next(clock) * 40e-6)
    found = host.in_turns([lambda: order.append("a"), lambda: order.append("b")], torch.device("cpu"))
    assert found == pytest.approx([1.0, 1.0])
    rows = "".join(order)[2 * host.CALLS :: host.CALLS]
    assert rows == "abba" * (host.ROUNDS // 2) + "ab"


def test_a_pair_is_timed_as_a_call_and_as_a_step_and_a_failure_is_a_row(monkeypatch):
    monkeypatch.setattr(host, "ROUNDS", 1)
    monkeypatch.setattr(host, "CALLS", 2)

    def doubled(inputs):
        assert inputs["x"].shape == (4, 8) and inputs["fixed"].shape == (8, 3) and not inputs["fixed"].requires_grad
        seen.append((torch.is_grad_enabled(), inputs["x"].requires_grad))
        return 2 * inputs["x"]

    def failing(inputs):
        raise ValueError("not so")

    seen = []
    pair = Pair("double", {"x": ("m", "n"), "fixed": ("n", 3)}, doubled, doubled, kept=("fixed",))
    found = rows_of(pair, 4, 8, torch.float32, torch.device("cpu"))
    assert [one["mode"] for one in found] == ["call", "step"] and all(one["us"] > 0 for one in found)
    assert set(seen) == {(False, False), (True, True)}
    found = rows_of(Pair("none", {"x": ("m",)}, failing, doubled), 4, 8, torch.float32, torch.device("cpu"))
    assert [one["us"] for one in found] == [None, None] and "not so" in found[0]["reason"]


def test_every_pair_is_of_a_public_function():
    names = [pair.name for pair in PAIRS]
    assert len(set(names)) == len(names) and set(names) <= set(kernels.__all__)
    assert [pair.name for pair in host.chosen("softmax, gelu")] == ["gelu", "softmax"]
    with pytest.raises(AtlasError, match="unknown sofmax; there are gelu"):
        host.chosen("sofmax")


def test_a_proof_that_was_cut_off_goes_on_from_its_rows(monkeypatch, tmp_path):
    tried = []
    monkeypatch.setattr(host, "rows_of", lambda pair, m, n, dtype, device: tried.append(pair.name) or [row()])
    pairs = host.chosen("gelu, softmax")
    for asked, expected in ((pairs[:1], ["gelu"] * 2), (pairs, ["gelu"] * 2 + ["softmax"] * 2)):
        kept = Pieces(tmp_path / "host.jsonl", {"gpu": "g"})
        assert len(host.measured(asked, [(4, 8)], torch.device("cpu"), kept)) == 2 * len(asked)
        assert tried == expected


def test_the_interpreter_is_refused_in_one_sentence(tmp_path):
    with pytest.raises(AtlasError, match="claims of speed; name a GPU"):
        host.run(job(host, tmp_path, gpu="cpu"))
