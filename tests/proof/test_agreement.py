"""Which cases are compared, how ncu's list of launches is read, and what counts as agreement."""

import argparse
import contextlib
import json
import os
import sys
from pathlib import Path

import pytest
from atlas import catalog, documents
from atlas.cli import main
from atlas.config import GPUS_FILE, load_gpus
from atlas.declaration import case
from atlas.errors import AtlasError
from atlas.proof import agreement, ncu
from atlas.proof.agreement import Candidate, Ours, Theirs
from atlas.stages import frame

GPU = "h200"

# What ncu 2025.3 prints with --csv --page raw --print-units base into its log.
RAW_PAGE = """==PROF== Connected to process 4711 (/usr/bin/python3.12)
==PROF== Profiling "atlas_marker" - 0: 0%....50%....100% - 1 pass
==PROF== Disconnected from process 4711
"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size","Device","CC","gpu__time_duration.sum"
"","","","","","","","","","","","ns"
"0","4711","python3.12","127.0.0.1","atlas_marker","1","7","(32, 1, 1)","(1, 1, 1)","0","9.0","1,312"
"1","4711","python3.12","127.0.0.1","_one_pass_kernel(int, int)","1","7","(128, 1, 1)","(8192, 1, 1)","0","9.0","66,848"
"""  # noqa: E501


def test_the_raw_page_is_read_in_microseconds_without_arguments_and_thousands_separators():
    assert ncu.parse(RAW_PAGE) == [
        ncu.Launch("atlas_marker", pytest.approx(1.312)),
        ncu.Launch("_one_pass_kernel", pytest.approx(66.848)),
    ]


@pytest.mark.parametrize(("unit", "scale"), [("nsecond", 1e-3), ("us", 1.0), ("msecond", 1e3)])
def test_units_are_those_of_the_table(unit, scale):
    first = ncu.parse(RAW_PAGE.replace('"ns"', f'"{unit}"'))[0]
    assert first.microseconds == pytest.approx(1312 * scale)


def test_a_page_without_launches_quotes_what_ncu_said():
    with pytest.raises(RuntimeError, match="No kernels were profiled"):
        ncu.parse("==PROF== Connected to process 1\n==WARNING== No kernels were profiled.\n")


def test_without_ncu_the_user_is_told_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setattr(ncu.shutil, "which", lambda name: None)
    monkeypatch.setattr(ncu.os, "access", lambda path, mode: False)
    with pytest.raises(AtlasError, match="install NVIDIA Nsight Compute"):
        ncu.find()


@pytest.fixture
def fake_ncu(tmp_path, monkeypatch):
    """Puts a script named ncu on PATH; the body sees ``log`` and ``words``, the profiled command."""

    def put(body):
        script = tmp_path / "bin" / "ncu"
        script.parent.mkdir(exist_ok=True)
        script.write_text(
            f"#!{sys.executable}\nimport json, sys\n"
            "at = sys.argv.index('--log-file') + 1\n"
            "log, words = sys.argv[at], sys.argv[at + 1:]\n" + body
        )
        script.chmod(0o755)
        monkeypatch.setenv("PATH", f"{script.parent}{os.pathsep}{os.environ['PATH']}")

    return put


def test_counters_that_are_not_permitted_are_the_user_s_to_permit(fake_ncu, tmp_path):
    fake_ncu("print('==ERROR== ERR_NVGPUCTRPERM - The user does not have permission'); sys.exit(1)\n")
    with pytest.raises(AtlasError, match="NVreg_RestrictProfilingToAdminUsers"):
        ncu.profile(["true"], dict(os.environ), tmp_path / "log.csv")


def test_a_watched_process_that_fails_is_quoted(fake_ncu, tmp_path):
    fake_ncu("print('torch.OutOfMemoryError: tried to allocate', file=sys.stderr); sys.exit(9)\n")
    with pytest.raises(RuntimeError, match="ended with 9: .*tried to allocate"):
        ncu.profile(["true"], dict(os.environ), tmp_path / "log.csv")


def launches(*calls):
    """A marker of 1 us and the kernels of each call."""
    made = []
    for kernels in calls:
        made += [ncu.Launch("atlas_marker", 1.0), *(ncu.Launch("work", us) for us in kernels)]
    return made


def test_launches_are_sorted_by_call_and_the_kernels_of_a_call_added_up():
    empty_us, found = agreement.sort_out(
        launches([10.0], [11.0], [30.0], [8.0], [8.2], [8.1], *[[5.0, 7.0]] * 3, *[[4.0, 6.0]] * 3), cases=2, repeats=3
    )
    assert empty_us == 1.0
    assert found == [Theirs(1, 11.0, pytest.approx(8.1)), Theirs(2, 12.0, 10.0)]


@pytest.mark.parametrize("calls", [[[10.0]] * 5, [[10.0]] * 5 + [[]]])  # one missing; one without a kernel
def test_a_list_of_launches_that_is_not_of_the_cases_is_refused(calls):
    with pytest.raises(RuntimeError, match="6 were made"):
        agreement.sort_out(launches(*calls), cases=1, repeats=3)


def candidate(us, kernel="softmax", direction="forward", **sizes):
    return Candidate(kernel, direction, case("bf16", **(sizes or {"us": us})), "one_pass", {"BLOCK": 1}, us)


class Instruments:
    """Measures what the tuner measured; ``throttled`` names medians that are."""

    def __init__(self, throttled=()):
        self.throttled, self.measured = throttled, []

    def __call__(self, job):
        return self

    def ours(self, asked):
        self.measured.append(asked.tuned_us)
        us = asked.tuned_us
        unfit = "the board lowered its clock (power cap)" if us in self.throttled else ""
        return Ours(us, 0.9 * us, us * 1.01 if us >= 200 else None, unfit)

    def empties_us(self, count):
        return 2.3 + count

    def release(self):
        pass


def test_kernels_and_directions_take_turns_longest_first_then_shortest_then_between():
    softmax = [candidate(us) for us in (5.0, 25.0, 60.0, 300.0, 650.0)]
    back = [candidate(us, direction="backward") for us in (40.0, 400.0)]
    chosen, notes = agreement.choose([*softmax, *back], Instruments())
    assert [c.tuned_us for c in chosen] == [650.0, 400.0, 25.0, 40.0, 60.0, 300.0, 5.0]
    assert not notes


def test_ten_long_cases_are_taken_and_four_short_ones_beside_them():
    long = [candidate(30.0 + i, kernel) for kernel in ("a", "b", "c") for i in range(6)]
    short = [candidate(us, kernel) for kernel in ("a", "b", "c", "d", "e") for us in (4.0, 9.0)]
    chosen, _ = agreement.choose(long + short, Instruments())
    assert sum(c.tuned_us > 20 for c in chosen) == 10
    assert [c.kernel for c in chosen if c.tuned_us <= 20] == ["a", "b", "c", "d"]
    assert all(c.tuned_us == 4.0 for c in chosen if c.tuned_us <= 20)


def test_a_throttled_case_gives_way_to_the_next_and_is_named():
    chosen, notes = agreement.choose([candidate(us) for us in (50.0, 100.0, 1400.0)], Instruments(throttled=(1400.0,)))
    assert sorted(c.tuned_us for c in chosen) == [50.0, 100.0]
    assert len(notes) == 1 and "us=1400.0" in notes[0] and "power cap" in notes[0]


def test_a_watched_call_starts_from_a_flush_that_is_not_counted_itself(tmp_path, monkeypatch):
    from atlas.proof import launches as watched

    seen = []

    class Device:
        def __init__(self, name):
            self.name, self.index = name, 0

        def flush(self):
            seen.append(self.name)

        def soak(self, board):
            seen.append("soak")

    monkeypatch.setattr(watched.runtime, "device_of", lambda name, block: "cuda:0")
    monkeypatch.setattr(watched, "CudaDevice", lambda device: Device("flush"))
    monkeypatch.setattr(watched, "CleanDevice", lambda device: Device("clean"))
    monkeypatch.setattr(watched, "board_of", lambda index: None)
    monkeypatch.setattr(watched, "mark", lambda: seen.append("marker"))
    monkeypatch.setattr(watched, "thunk", lambda asked, device: lambda: seen.append(asked["kernel"]))
    monkeypatch.setattr(watched.torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(watched.torch.cuda.profiler, "start", lambda: seen.append("start"))
    monkeypatch.setattr(watched.torch.cuda.profiler, "stop", lambda: seen.append("stop"))
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({"gpu": GPU, "gpus_file": str(GPUS_FILE), "repeats": 1, "cases": [{"kernel": "k"}]}))
    watched.main(plan)
    assert seen[:4] == ["soak", "marker", "k", "k"]  # nothing of this is counted
    counted = [["start", "marker", "stop"], ["start", "k", "stop"]]
    assert seen[4:] == [word for flush in ("flush", "clean") for part in counted for word in [flush, *part]]


def compared(us, ncu_us, kernels=1, bench=None):
    return candidate(us), Ours(us, us, bench), Theirs(kernels, ncu_us, ncu_us)


def test_figures_within_three_per_cent_of_both_hold_every_claim():
    found = [compared(100.0 + 50 * i, 98.0 + 50 * i, bench=(101.0 + 50 * i) if i > 2 else None) for i in range(10)]
    proof = agreement.evidence(found, {1: 2.0}, 1.3, [])
    assert proof.holds
    assert len(proof.rows) == 10
    assert proof.rows[0]["ncu %"] == pytest.approx(100 * 2 / 98)
    assert proof.rows[0]["less bracket %"] == pytest.approx(0.0)


def test_the_bracket_is_that_of_as_many_kernels_as_the_call_launches():
    rows = agreement.evidence([compared(54.0, 50.0, kernels=3)], {1: 2.0, 3: 4.0}, 1.3, []).rows
    assert rows[0]["less bracket %"] == pytest.approx(0.0)


@pytest.mark.parametrize(
    ("figures", "broken"),
    [
        ((60.0, 50.0, None), "less the bracket"),  # 8 us more than the launch explains
        ((300.0, 289.0, 300.0), "bracket included"),  # within 3 % without the bracket, not with it
        ((300.0, 298.0, 320.0), "do_bench"),
    ],
)
def test_each_claim_breaks_on_its_own_figure(figures, broken):
    fine = [compared(500.0 + i, 499.0 + i, bench=500.0 + i) for i in range(10)]
    us, ncu_us, bench = figures
    proof = agreement.evidence([*fine, compared(us, ncu_us, bench=bench)], {1: 2.5}, 1.3, [])
    assert [broken in claim.text for claim in proof.broken] == [True]


def test_fewer_than_ten_cases_prove_nothing():
    proof = agreement.evidence([compared(300.0, 299.0, bench=300.0)], {1: 1.0}, 1.3, [])
    assert [claim.found for claim in proof.broken] == [1]


def test_short_cases_are_shown_and_not_claimed():
    fine = [compared(500.0 + i, 499.0 + i, bench=500.0 + i) for i in range(10)]
    proof = agreement.evidence([*fine, compared(5.0, 2.0)], {1: 1.0}, 1.3, [])
    assert proof.holds
    assert proof.rows[0]["ours us"] == 5.0


PAGES = """
plan = json.loads(open(words[-1]).read())
assert words[1:3] == ["-m", "atlas.proof.launches"]
names = ["ID", "Process ID", "Kernel Name", "gpu__time_duration.sum"]
rows = [names, ["", "", "", "ns"]]
for case in plan["cases"]:
    for clean in (False, True):
        for _ in range(plan["repeats"]):
            us = (0.9 if clean else 1.0) * case["sizes"]["n"] - 2.0
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


def test_the_whole_proof_compares_what_is_tuned_with_what_ncu_says(job, fake_ncu, monkeypatch):
    fake_ncu(PAGES)
    monkeypatch.setattr(frame, "leased", lambda job: contextlib.nullcontext())
    monkeypatch.setattr(agreement, "Instruments", Instruments())
    proof = agreement.run(job)
    assert proof.holds, proof.broken
    assert len(proof.rows) == 11  # ten long cases and the shortest
    assert all(abs(row["less bracket %"]) < 0.2 for row in proof.rows[1:])  # 0.3 us of the bracket are not in the fake
    assert any("2.30 us for 1" in note for note in proof.notes)


def test_a_tuning_of_another_kernel_file_is_left_out_and_said(job):
    put(job, kernel_digest="0" * 64)
    candidates, notes = agreement.at_hand(job)
    assert not candidates
    assert "another version of kernels/vector_add.py" in notes[0]


def test_the_interpreter_has_no_clocks_to_agree(tmp_path, capsys):
    assert main(["prove", "agreement", "--gpu", "cpu", "--results", str(tmp_path)]) == 2
    assert "interpreter has none" in capsys.readouterr().err
