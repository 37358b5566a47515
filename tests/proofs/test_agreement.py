"""Which cases are compared, how ncu's list of launches is read, and what counts as agreement."""

import argparse
import contextlib
import types
from pathlib import Path

import pytest
from atlas import catalog
from atlas.declaration import case
from atlas.profiling import ncu
from atlas.reading.config import GPUS_FILE, load_gpus
from atlas.results import documents
from atlas.stages import frame

from proofs.__main__ import main
from proofs.measuring import agreement
from proofs.measuring.agreement import Candidate, Ours, Theirs

GPU = "h200"


def launch(kernel, us):
    return ncu.Launch(kernel, {ncu.DURATION: us})


def launches(*calls):
    """A marker of 1 us and the kernels of each call."""
    made = []
    for kernels in calls:
        made += [launch("atlas_marker", 1.0), *(launch("work", us) for us in kernels)]
    return made


def test_launches_are_sorted_by_call_and_the_kernels_of_a_call_added_up():
    found = agreement.sort_out(launches([10.0], [11.0], [30.0], *[[5.0, 7.0]] * 3), cases=2, repeats=3)
    assert found == [Theirs(1, 11.0), Theirs(2, 12.0)]


@pytest.mark.parametrize("calls", [[[10.0]] * 2, [[10.0]] * 2 + [[]]])  # one missing; one without a kernel
def test_a_list_of_launches_that_is_not_of_the_cases_is_refused(calls):
    with pytest.raises(RuntimeError, match="3 were made"):
        agreement.sort_out(launches(*calls), cases=1, repeats=3)


def candidate(us, kernel="softmax", direction="forward", **sizes):
    return Candidate(kernel, direction, case("bf16", **(sizes or {"us": us})), "one_pass", {"BLOCK": 1}, us)


class Instruments:
    """Measures what the tuner measured, ``off`` more; ``throttled`` names medians that are."""

    def __init__(self, throttled=(), off=0.0):
        self.throttled, self.off = throttled, off

    def __call__(self, job):
        return self

    def ours(self, asked):
        us = asked.tuned_us + self.off
        unfit = "the board lowered its clock (power cap)" if asked.tuned_us in self.throttled else ""
        return Ours(us, us * 1.01 if us >= 200 else None, unfit)

    def release(self):
        pass


def taken(*candidates, **instruments):
    return [c.tuned_us for c in agreement.choose(candidates, Instruments(**instruments))[0]]


def test_kernels_and_directions_take_turns_and_lengths_lie_far_apart():
    softmax = [candidate(us) for us in (205.0, 250.0, 300.0, 650.0)]
    back = [candidate(us, direction="backward") for us in (210.0, 400.0)]
    assert taken(*softmax, *back) == [650.0, 210.0, 400.0, 300.0, 250.0, 205.0]


def test_ten_long_cases_are_taken_and_six_short_ones_beside_them():
    kernels = ("a", "b", "c", "d", "e", "f")
    chosen, _ = agreement.choose(
        [candidate(us, kernel) for kernel in kernels for us in (4.0, 9.0, 40.0, 199.0, 300.0, 800.0)], Instruments()
    )
    short = [c for c in chosen if c.tuned_us < 200]
    assert len(chosen) - len(short) == 10
    assert {c.kernel for c in short} == set(kernels)
    assert {c.tuned_us for c in short} == {4.0, 9.0, 40.0, 199.0}  # not only the shortest of each


def test_the_same_cases_are_chosen_again():
    cases = [candidate(us, kernel) for kernel in ("a", "b") for us in (5.0, 5.0, 300.0, 300.0)]
    assert taken(*cases) == taken(*cases)


def test_a_case_that_is_no_longer_as_long_as_when_it_was_tuned_gives_way_to_the_next():
    assert taken(candidate(900.0), candidate(200.5), candidate(400.0), off=-1.0) == [900.0, 400.0]


def test_a_throttled_case_gives_way_to_the_next_and_is_named():
    cases = [candidate(us) for us in (50.0, 300.0, 1400.0)]
    chosen, notes = agreement.choose(cases, Instruments(throttled=(1400.0,)))
    assert sorted(c.tuned_us for c in chosen) == [50.0, 300.0]
    assert len(notes) == 1 and "us=1400.0" in notes[0] and "power cap" in notes[0]


def compared(us, ncu_us, kernels=1, bench=None):
    return candidate(us), Ours(us, bench), Theirs(kernels, ncu_us)


FINE = [compared(500.0 + i, 497.0 + i, bench=501.0 + i) for i in range(10)] + [compared(8.0, 5.0)]


def test_long_cases_within_three_per_cent_and_short_ones_within_launching_hold_every_claim():
    proof = agreement.evidence(FINE, [])
    assert proof.holds
    assert proof.rows[0]["over ncu us"] == pytest.approx(3.0)
    assert proof.rows[1]["over ncu %"] == pytest.approx(100 * 3 / 497)
    assert proof.rows[1]["over do_bench %"] == pytest.approx(-100 / 501)


@pytest.mark.parametrize(
    ("figures", "broken"),
    [
        ((300.0, 290.0, 300.0), "from ncu, %"),
        ((300.0, 310.0, 300.0), "from ncu, %"),
        ((300.0, 298.0, 320.0), "from do_bench, %"),
        ((110.0, 104.0, None), "most that ours is over"),  # 6 us more than the kernel takes
        ((29.0, 29.5, None), "least that ours is over"),  # less than the kernel takes
    ],
)
def test_each_claim_breaks_on_its_own_figure(figures, broken):
    us, ncu_us, bench = figures
    proof = agreement.evidence([*FINE, compared(us, ncu_us, bench=bench)], [])
    assert [broken in claim.text for claim in proof.broken] == [True]


@pytest.mark.parametrize("factor", [0.9, 1.1])
def test_a_clock_that_runs_a_tenth_slow_or_fast_breaks_a_claim_on_short_cases_alone(factor):
    short = [compared(factor * (us + 3.0), us) for us in (2.0, 12.0, 58.0, 170.0)]
    proof = agreement.evidence([*FINE, *short], [])
    assert all(claim.text.startswith("shorter") for claim in proof.broken) and proof.broken


def test_what_launching_may_cost_is_within_the_limit_of_a_long_case():
    assert agreement.LAUNCHING_US <= agreement.LIMIT / 100 * (agreement.LONG_US - agreement.LAUNCHING_US)


def test_nine_long_cases_or_no_short_one_prove_nothing():
    assert [claim.found for claim in agreement.evidence(FINE[1:], []).broken] == [9]
    assert [claim.found for claim in agreement.evidence(FINE[:-1], []).broken] == [None, None]


def test_the_table_needs_one_line_a_case(capsys):
    from proofs import __main__ as prove

    longest = Candidate(
        "layer_norm", "backward", case("bf16", m=4096, n=14336, k=14336), "persistent_rows", {"BLOCK": 1}, 1.0
    )
    found = [(longest, Ours(1234.5678, 1234.5678), Theirs(3, 1235.5678)), *FINE]
    rows = agreement.evidence(found, []).rows
    document = {"proof": "agreement", "gpu": GPU, "claims": [], "notes": [], "status": "ok", "rows": rows}
    prove.show(document)
    printed = capsys.readouterr().out
    assert agreement.label(longest) in printed
    assert "over do_bench %" in printed


PAGES = """
plan = json.loads(open(words[-1]).read())
assert words[1:3] == ["-m", "atlas.profiling.launches"]
names = ["ID", "Process ID", "Kernel Name", "gpu__time_duration.sum"]
rows = [names, ["", "", "", "ns"]]
for case in plan["cases"]:
    for _ in range(plan["repeats"]):
        us = case["sizes"]["n"] - 2.0
        rows += [["0", "1", "atlas_marker", "1000"], ["0", "1", "work(int)", f"{1000 * us:,.0f}"]]
with open(log, "w") as out:
    for row in rows:
        print(",".join(f'"{cell}"' for cell in row), file=out)
"""


@pytest.fixture
def job(tmp_path):
    """A job on a GPU where vector_add was tuned, n elements in n microseconds."""
    arguments = argparse.Namespace(
        gpu=GPU, gpus_file=GPUS_FILE, results=tmp_path / "results", kernels="vector_add", scratch=tmp_path / "kept"
    )
    made = frame.Job("prove", None, GPU, load_gpus(GPUS_FILE)[GPU], tmp_path / "results", arguments)
    put(made)
    return made


def put(job, **changes):
    best = [
        {"direction": "forward", "dtype": "fp32", "sizes": {"n": n}, "variant": "blocks",
         "config": {"BLOCK": 512, "num_warps": 2}, "median_us": float(n)}
        for n in (4, 9, *range(250, 1250, 100))
    ]  # fmt: skip
    document = {
        "stage": "autotune", "schema_version": documents.VERSIONS["autotune"], "kernel": "vector_add", "gpu": GPU,
        "kind": "measured", "status": "ok", "reason": "", "software": {}, "device": {}, "seconds": 0.0,
        "kernel_digest": catalog.digest("vector_add"), "protocol": "timing/2", "strategy": "halving",
        "budget_seconds": None, "seconds_by_phase": {}, "trials_by_status": {}, "best": best, "trials": [],
    } | changes  # fmt: skip
    path = Path(job.results) / "measured" / GPU / "vector_add" / "autotune.json"
    documents.write(path, document)


@pytest.mark.parametrize(
    ("by_clock", "by_bench", "unfit"),
    [((), (), ""), (("power cap",), (), "under ncu"), ((), ("power cap",), "under do_bench")],
    ids=["steady", "throttled by the clock", "throttled by do_bench"],
)
def test_a_case_that_throttles_under_either_is_unfit(monkeypatch, by_clock, by_bench, unfit):
    timing = types.SimpleNamespace(median_us=600.0, throttled=bool(by_clock), throttled_by=by_clock, queued=True)
    instruments = object.__new__(agreement.Instruments)
    instruments._device = None
    instruments._clock = types.SimpleNamespace(measure=lambda thunk: timing, throttled_by=lambda: by_bench)
    instruments._launches = types.SimpleNamespace(thunk=lambda case, device: lambda: None)
    monkeypatch.setattr("triton.testing.do_bench", lambda thunk, **options: 0.6)
    found = instruments.ours(candidate(600.0))
    assert unfit in found.unfit and bool(unfit) == bool(found.unfit)


def test_the_whole_proof_compares_what_is_tuned_with_what_ncu_says(job, fake_ncu, monkeypatch):
    fake_ncu(PAGES)
    monkeypatch.setattr(frame, "leased", lambda job: contextlib.nullcontext())
    monkeypatch.setattr(agreement, "Instruments", Instruments())
    proof = agreement.run(job)
    assert proof.holds, proof.broken
    assert len(proof.rows) == 12  # ten long cases and the two short ones
    assert all(row["over ncu us"] == pytest.approx(2.0) for row in proof.rows)


def test_a_tuning_of_another_kernel_file_is_left_out_and_said(job):
    put(job, kernel_digest="0" * 64)
    candidates, notes = agreement.at_hand(job)
    assert not candidates
    assert "another version of vector_add" in notes[0]


def test_the_interpreter_has_no_clocks_to_agree(tmp_path, capsys):
    assert main(["agreement", "--gpu", "cpu", "--results", str(tmp_path)]) == 2
    assert "interpreter has none" in capsys.readouterr().err
