"""Calls at drawn shapes: what is drawn, what a row says, and what the claims are of."""

import dataclasses
import signal
import subprocess
import sys

import pytest
import torch
from atlas import catalog
from atlas.benchmarking import beyond
from atlas.declaration import Case, eager
from atlas.declaration.hardware import INTERPRETER
from atlas.host import gpus
from atlas.host.runtime import draw, meta_inputs, sweep
from atlas.reading.config import load_gpus
from atlas.results import collection, documents
from atlas.results.beyond import OURS
from atlas.sampling import domains, drawing
from atlas.timing import Clock
from atlas.validation.device import DeviceLost
from atlas.workers.process import NotEnded
from proof_doubles import job, validated

from proofs.unseen import ahead, calls, chunks, proof
from proofs.unseen import beyond as written


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


def test_a_call_that_no_peer_does_says_nothing_unless_ours_went_wrong():
    """Steps of losses whose peers return gradients with them stood in the sweep's table as if something had failed."""
    ours, refused = {"status": "ok"}, {"status": "unsupported"}
    assert not proof.tells([])
    assert not proof.tells([ours, refused, refused])
    assert proof.tells([ours, refused, {"status": "ok"}])
    assert proof.tells([ours, refused, {"status": "failed"}]), "a peer that breaks down is worth knowing"
    assert proof.tells([{"status": "failed"}, refused])
    assert proof.tells([{"status": "wrong"}, refused])


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


def stalling(takes_fp32=True):
    """A bench of vector_add whose peer of torch halves 16-bit sums, as torch's loss of [b, n, s] stops adding."""
    declaration = catalog.load("vector_add")

    def add(x, y):
        if x.dtype == torch.float32 and not takes_fp32:
            raise NotImplementedError("no fp32")
        return (x + y) * (1.0 if x.dtype == torch.float32 else 0.5)

    forward = dataclasses.replace(declaration.forward, peers={"torch": eager(add)})
    return beyond.Bench(
        dataclasses.replace(declaration, forward=forward), INTERPRETER, torch.device("cpu"), Clock("cpu")
    )


def test_whoever_is_off_torchs_16_bits_is_held_against_torch_in_fp32():
    """A right loss was called wrong on an H200: in 16 bits torch counted 2048 rows as 256."""
    bench = stalling()
    one = Case("bf16", (("n", 300),))
    drawn = draw(bench.declaration.forward, one, bench.device, 0)
    right = drawn["x"] + drawn["y"]
    assert bench.differing([right], [right * 0.5], one, "forward") == ""
    assert "off torch's" in bench.differing([right.roll(1)], [right * 0.5], one, "forward"), "a mistake is one"
    assert "off torch's" in stalling(takes_fp32=False).differing([right], [right * 0.5], one, "forward")


class Laboratory:
    """Prepares in 10 s a call and times in 2, by a clock of its own; ``slow`` calls take as many seconds."""

    def __init__(self, folder, seed=1, slow=()):
        self.time, self.slow, self.prepared, self.timed = 0.0, dict(slow), [], []
        self.kept = calls.Kept(folder, ["a", "b"], seed, lambda name: {"kernel": name})

    def prepare(self, waiting, wanted, left, tell):
        done = []
        while len(done) < wanted and left(len(done)) >= 10:
            self.time += 10
            done.append(waiting[len(done)])
            tell(done[-1], len(done))
        self.prepared += done
        return done

    def measure(self, call):
        self.time += self.slow.get(call, 2)
        self.timed.append(call)
        return calls.failed(call, "") | {"us": 1.0, "ratio": 1.5}

    def run(self, seconds, turns):
        ends = self.time + seconds
        said = []
        made = chunks.Chunks(self.prepare, self.measure, self.kept, ends, now=lambda: self.time, say=said.append)
        made.run(turns)
        assert self.time <= ends
        return made.notes, said


def turns_of(count):
    return [[calls.Call(k, Case("fp32", (("n", n),)), "forward") for k in ("a", "b")] for n in range(count)]


def test_a_run_ends_in_time_says_what_is_left_and_the_next_goes_on_from_there(tmp_path):
    turns = turns_of(8)
    first = Laboratory(tmp_path)
    notes, said = first.run(100, turns)
    assert first.timed == first.prepared == [call for one in turns for call in one][: len(first.timed)]
    assert 6 <= len(first.timed) < 10 and notes == [f"out of time: {16 - len(first.timed)} of 16 calls were not begun"]
    assert said[:2] == ["prepared 2 calls in 20 s", "timed 2 in 4 s; geometric mean of 2 so far: 1.500"]
    second = Laboratory(tmp_path)
    notes, said = second.run(1000, turns)
    assert not {*first.timed} & {*second.timed, *second.prepared} and not notes
    assert said[0] == f"{len(first.timed)} of 16 calls were timed before"
    every = [call for one in turns for call in one]
    assert len(second.kept.rows(every)) == 16
    assert not Laboratory(tmp_path, seed=2).kept.rows(every), "other shapes"


@pytest.mark.parametrize(
    ("stopped_by", "said"), [(chunks.Ended, "ended by SIGTERM"), (DeviceLost("gone"), "the device was lost: gone")]
)
def test_what_is_timed_when_a_run_ends_early_is_kept(tmp_path, stopped_by, said):
    lab, turns = Laboratory(tmp_path), turns_of(2)
    measure = lab.measure

    def ended(call):
        if lab.timed:
            raise stopped_by
        return measure(call)

    lab.measure = ended
    notes, _ = lab.run(1000, turns)
    assert notes[0].startswith(said)
    rows = Laboratory(tmp_path).kept.rows([call for one in turns for call in one])
    assert [row["us"] for row in rows] == ([1.0, None] if "device" in said else [1.0]), "a lost device is a failure"


def test_a_worker_that_does_not_end_costs_no_row_that_is_timed(tmp_path):
    lab, turns = Laboratory(tmp_path), turns_of(8)
    prepare = lab.prepare

    def stuck(*arguments):
        if lab.timed:
            raise NotEnded("process 7 cannot be ended")
        return prepare(*arguments)

    lab.prepare = stuck
    notes, _ = lab.run(1000, turns)
    timed = len(lab.timed)
    assert timed and notes[0].startswith("process 7 cannot be ended")
    assert notes[1] == f"out of time: {16 - timed} of 16 calls were not begun"
    assert len(Laboratory(tmp_path).kept.rows([call for one in turns for call in one])) == timed


def test_sigterm_ends_what_is_measured_and_nothing_else_does_afterwards():
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(chunks.Ended), chunks.told_to_end():
        signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) == before


def test_calls_that_fail_in_preparation_are_timed_all_the_same_and_memory_is_respected():
    first, second, large = [call for one in turns_of(2) for call in one][:3]
    queue = ahead.Queue([first, large, second], lambda call: call, lambda call: 8 if call == large else 1, 8)
    jobs = enumerate(queue)
    assert next(jobs) == (0, first) and next(jobs) == (1, second), "the large one does not fit beside the first"
    assert callable(next(jobs)[1]) and queue.ended(2) is None, "a nap"
    queue.ended(0), queue.ended(1)
    assert next(jobs) == (3, large)
    queue = ahead.Queue([first, second, large], lambda call: call, lambda call: 1, 8)
    events = ((number, RuntimeError("lost")) for number, _ in enumerate(queue))
    assert ahead.prepared(events, queue, [first, second], lambda done: 100.0) == [first, second]
    assert next(events, None) is None, "closed, which ends the workers"


def test_no_more_is_prepared_than_can_be_timed():
    every = [call for one in turns_of(3) for call in one]
    queue = ahead.Queue(every, lambda call: call, lambda call: 1, 8)
    events = ((number, None) for number, _ in enumerate(queue))
    assert ahead.prepared(events, queue, every, lambda done: 3 - done) == every[:3]


def test_the_scratch_folder_keeps_the_seed(tmp_path):
    assert calls.seed_of(tmp_path, None, 5) == 5 == calls.seed_of(tmp_path, None, 6)
    assert calls.seed_of(tmp_path, 7, 8) == 7 == calls.seed_of(tmp_path, None, 9)


def test_a_kernels_calls_become_its_document_without_those_that_the_tuner_saw(tmp_path):
    """A sweep takes a GPU ten minutes; the stage would take as long again for the same calls."""
    bench = stalling(takes_fp32=False)
    ours = job(proof, tmp_path, gpu="cpu")
    fresh, tuned = Case("fp32", (("n", 1001),)), sweep(bench.declaration, ours.gpu())[0]
    rows = [proof._row_of(bench, calls.Call("vector_add", case, "forward")) for case in (fresh, tuned)]
    assert all(row["seconds"] > 0 for row in rows)
    assert written.write(ours, None, bench.declaration, 7, rows) is None, "it was not validated here"
    validated(tmp_path, "vector_add", gpu="cpu", kind="functional")
    path = written.write(
        ours, None, bench.declaration, 7, [*rows, calls.failed(calls.Call("k", fresh, "step"), "lost")]
    )
    found = documents.read(path, "beyond")
    assert path == tmp_path / "measured/cpu/vector_add/beyond.json" and (found["kind"], found["seed"]) == (
        "functional",
        7,
    )
    assert {row["sizes"]["n"] for row in found["rows"]} == {1001} and found["rows"][0]["provider"] == OURS
    assert not collection.differences(found), "it is of today's code"
    assert written.write(ours, None, bench.declaration, 7, rows[1:]) is None


def test_any_beginning_of_the_calls_has_kernels_of_all_kinds(h200):
    names = ("vector_add", "softmax", "rope")
    declarations = {name: catalog.load(name) for name in names}
    turns = calls.rounds(declarations, h200, 3, 4)
    assert len(turns) == 4 and all({call.kernel for call in one} == {*names} for one in turns)
    assert turns == calls.rounds(declarations, h200, 3, 4)
    assert len({tuple(dict.fromkeys(call.kernel for call in one)) for one in turns}) > 1, "in turns of another order"
