"""A killed run resumes where it stopped, and nothing is measured twice nor taken for something else."""

import contextlib
import dataclasses
import functools
import json
import multiprocessing
import os
import resource
import signal
import threading
import time
from pathlib import Path

import pytest
import tuning_fakes as fakes
from atlas.errors import AtlasError
from atlas.tuning import tuner
from atlas.tuning.candidates import Candidate
from atlas.tuning.journal import Journal, entries
from atlas.tuning.outcome import Outcome
from atlas.tuning.session import Session
from atlas.tuning.strategies import STRATEGIES

OK = Outcome("ok", "", 10.0, 9.0, 11.0, 5, samples_us=(9.0, 9.5, 10.0, 10.5, 11.0))


def journal(folder, context=None, timeout=20.0):
    return Journal(folder / "journal.jsonl", context or {"kernel_digest": "a"}, timeout)


def first():
    (problem,) = fakes.problems()
    return problem, problem.candidates[0]


def fill(folder, *outcomes, **opened):
    """Write one finished measurement after the other, of the first candidates."""
    (problem,) = fakes.problems()
    with journal(folder, **opened) as book:
        for candidate, outcome in zip(problem.candidates, outcomes, strict=False):
            book.add(problem, candidate, "screen 5", outcome)


def test_what_was_added_is_found_by_the_next_run(tmp_path):
    fill(tmp_path, OK)
    with journal(tmp_path) as book:
        assert book.find(*first(), "screen 5") == OK
        assert book.reused == 1 and book.damaged == 0


@pytest.mark.parametrize(
    "changed",
    [
        {"kernel_digest": "b"},
        {"kernel_digest": "a", "device": {"power_cap_w": 500}},
        {"kernel_digest": "a", "ptxas": "13.0"},
    ],
    ids=["kernel", "power cap", "ptxas"],
)
def test_a_measurement_holds_for_its_context_alone(tmp_path, changed):
    fill(tmp_path, OK)
    with journal(tmp_path, context=changed) as book:
        assert book.find(*first(), "screen 5") is None


THEN = {"forward.plain": "p", "forward.other": "o", "inputs": "i", "references": "r", "cases": "c", "peers": "t"}


@pytest.mark.parametrize(
    ("changed", "lost"),
    [
        ("forward.plain", {"screen 5", "check", "certify"}),
        ("forward.other", set()),
        ("inputs", {"screen 5", "check", "certify"}),
        ("references", {"check", "certify"}),
        ("cases", {"certify"}),
        ("peers", set()),
    ],
)
def test_a_measurement_holds_for_the_code_that_it_depends_on(tmp_path, changed, lost):
    """Whatever the kernel's digest, which an edit of another variant changes."""
    (problem,) = fakes.problems()
    candidate, path, ways = problem.candidates[0], tmp_path / "journal.jsonl", ("screen 5", "check", "certify")
    with Journal(path, {"kernel_digest": "a"}, 20.0, THEN) as book:
        for way in ways:
            book.add(problem, candidate, way, OK)
    with Journal(path, {"kernel_digest": "b"}, 20.0, THEN | {changed: "another"}) as book:
        assert {way for way in ways if not book.has(problem, candidate, way)} == lost


def test_a_measurement_holds_for_its_case_config_and_way_of_measuring_alone(tmp_path):
    fill(tmp_path, OK)
    problem, candidate = first()
    (other,) = fakes.problems(sizes=(2000,))
    with journal(tmp_path) as book:
        assert book.find(problem, candidate, "screen 15") is None
        assert book.find(other, candidate, "screen 5") is None
        assert book.find(problem, problem.candidates[1], "screen 5") is None


@pytest.mark.parametrize("other", ["pass", "dtype", "variant"])
def test_a_measurement_holds_for_its_pass_dtype_and_variant_alone(tmp_path, other):
    # Both passes of a kernel, and two variants, often have one name and one space.
    fill(tmp_path, OK)
    problem, candidate = first()
    if other == "pass":
        problem = dataclasses.replace(problem, direction="backward")
    elif other == "dtype":
        problem = dataclasses.replace(problem, case=dataclasses.replace(problem.case, dtype="bf16"))
    else:
        candidate = Candidate.of("tiled", candidate.config)
    with journal(tmp_path) as book:
        assert book.find(problem, candidate, "screen 5") is None


def test_the_real_context_names_all_that_a_measurement_depends_on():
    device = {"device_name": "NVIDIA H200", "driver": "580", "power_cap_w": 700, "max_sm_clock_mhz": 1980}
    context = tuner.context("digest", fakes.DEVICE, device)
    assert context["device"] == {"device_name": "NVIDIA H200", "driver": "580", "power_cap_w": 700}
    assert context["kernel_digest"] == "digest" and context["protocol"] == tuner.PROTOCOL
    assert context["triton"] and context["ptxas"]
    assert "calls" not in context, "so that journals of kernels that call none hold"
    assert tuner.context("digest", fakes.DEVICE, device, {"matmul": "1"})["calls"] == {"matmul": "1"}


def test_a_line_that_was_cut_off_is_reported_and_spoils_neither_neighbour(tmp_path):
    fill(tmp_path, OK, OK, OK)
    path = tmp_path / "journal.jsonl"
    path.write_bytes(path.read_bytes()[:-40])
    problem, _ = first()
    with journal(tmp_path) as book:
        assert book.damaged == 1
        assert [book.find(problem, c, "screen 5") for c in problem.candidates[:3]] == [OK, OK, None]
        book.add(problem, problem.candidates[2], "screen 5", OK)
    with journal(tmp_path) as book:
        assert book.damaged == 0, "the next start repairs it"
        assert book.find(problem, problem.candidates[2], "screen 5") == OK


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"median_us": 10.0', b'"median_us": 11.0'),  # still JSON, and a figure that nobody measured
        (b'"median_us": 10.0', b'"median_us": null'),
        (b'"status": "ok"', b'"status": "oj"'),
        (b'{"key"', b"[" * 2000 + b'{"key"'),
        (b'"config"', b'"co\x00fig"'),
    ],
    ids=["another figure", "no figure", "another status", "too deep", "a zero byte"],
)
def test_a_garbled_line_in_the_middle_costs_that_line_only(tmp_path, old, new):
    fill(tmp_path, OK, OK, OK)
    path = tmp_path / "journal.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    assert old in lines[2]
    path.write_bytes(b"".join([*lines[:2], lines[2].replace(old, new), *lines[3:]]))
    problem, _ = first()
    with journal(tmp_path) as book:
        assert book.damaged == 1
        assert [book.find(problem, c, "screen 5") for c in problem.candidates[:3]] == [OK, None, OK]


def test_a_line_of_an_earlier_release_without_samples_and_checksum_still_counts(tmp_path):
    fill(tmp_path, OK)
    path = tmp_path / "journal.jsonl"
    context, line = (json.loads(line) for line in path.read_text().splitlines())
    del line["samples_us"], line["crc"]
    path.write_text(f"{json.dumps(context)}\n{json.dumps(line)}\n")
    with journal(tmp_path) as book:
        assert book.find(*first(), "screen 5") == Outcome("ok", "", 10.0, 9.0, 11.0, 5)


def test_a_journals_samples_can_be_read_without_opening_it_for_a_run(tmp_path):
    fill(tmp_path, OK, Outcome("timeout", "no answer"))
    found = list(entries(tmp_path / "journal.jsonl"))
    assert [(entry["method"], entry["status"]) for entry in found] == [("screen 5", "ok"), ("screen 5", "timeout")]
    assert found[0]["samples_us"] == [9.0, 9.5, 10.0, 10.5, 11.0]


@contextlib.contextmanager
def room(path, more):
    """A disk with room for so many bytes more in this file, as far as this process can tell."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + more, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_is_told_with_the_remedy_and_leaves_whole_lines(tmp_path):
    fill(tmp_path, OK)
    path = tmp_path / "journal.jsonl"
    problem, _ = first()
    with (
        pytest.raises(AtlasError, match=r"journal\.jsonl: .*File too large; .* last whole line.*; free space"),
        journal(tmp_path) as book,
        room(path, 500),  # for one line and a part of the next
    ):
        for candidate in problem.candidates[1:]:
            book.add(problem, candidate, "screen 5", OK)
    assert path.read_bytes().endswith(b"}\n")
    with journal(tmp_path) as book:
        assert book.damaged == 0
        assert [book.has(problem, c, "screen 5") for c in problem.candidates[:4]] == [True, True, False, False]


def test_after_a_failed_write_no_thread_writes_another_line(tmp_path):
    # A shorter line might still fit, and would then be kept by a run that has been told to stop.
    fill(tmp_path, OK)
    path = tmp_path / "journal.jsonl"
    problem, _ = first()
    with journal(tmp_path) as book:
        with room(path, 100), pytest.raises(AtlasError):
            book.add(problem, problem.candidates[1], "screen 5", OK)
        size = path.stat().st_size
        with pytest.raises(AtlasError, match="free space"):
            book.add(problem, problem.candidates[2], "screen 5", OK)
    assert path.stat().st_size == size


def test_a_disk_that_is_full_at_the_start_leaves_no_lock_behind(tmp_path):
    fill(tmp_path, OK)
    path = tmp_path / "journal.jsonl"
    before = path.read_bytes()
    with room(path, 0), pytest.raises(AtlasError, match="free space"):
        journal(tmp_path).__enter__()
    assert path.read_bytes() == before
    with journal(tmp_path) as book:
        assert book.has(*first(), "screen 5")


def test_threads_that_share_a_journal_lose_and_mix_no_line(tmp_path):
    (problem,) = fakes.problems()
    with journal(tmp_path) as book:

        def work(turn):
            for candidate in problem.candidates:
                book.add(problem, candidate, f"screen {turn}", OK)
                assert book.find(problem, candidate, f"screen {turn}") == OK

        threads = [threading.Thread(target=work, args=(turn,)) for turn in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert book.reused == 8 * len(problem.candidates)
    with journal(tmp_path) as book:
        assert book.damaged == 0
        assert all(book.has(problem, c, f"screen {turn}") for c in problem.candidates for turn in range(8))


def test_bytes_that_are_no_text_count_as_damage_and_nothing_more(tmp_path):
    fill(tmp_path, OK)
    with (tmp_path / "journal.jsonl").open("ab") as file:
        file.write(b"\xff\xfe\x00garbage\n[1, 2]\n")
    with journal(tmp_path) as book:
        assert book.damaged == 2
        assert book.find(*first(), "screen 5") == OK


def test_a_time_out_counts_again_under_the_same_or_a_shorter_limit_only(tmp_path):
    fill(tmp_path, Outcome("timeout", "no answer within 20 s"), timeout=20.0)
    for limit, known in ((20.0, True), (5.0, True), (60.0, False)):
        with journal(tmp_path, timeout=limit) as book:
            assert book.has(*first(), "screen 5") is known


def test_a_lack_of_memory_is_tried_again(tmp_path):
    # Another process may have held it.
    fill(tmp_path, Outcome("out_of_memory", "CUDA out of memory"))
    with journal(tmp_path) as book:
        assert not book.has(*first(), "screen 5")


@pytest.mark.parametrize(("signal_name", "again"), [("SIGKILL", True), ("SIGSEGV", False)])
def test_a_trial_whose_worker_somebody_killed_is_tried_again_and_one_that_crashed_is_not(tmp_path, signal_name, again):
    # Kernels end by SIGSEGV, SIGABRT or an exit status; SIGKILL is a person's, or that of a host short of memory.
    fill(tmp_path, Outcome("crashed", f"the process ended by {signal_name}"))
    with journal(tmp_path) as book:
        assert book.has(*first(), "screen 5") is not again


def test_two_runs_at_once_are_refused_with_the_journals_name(tmp_path):
    with journal(tmp_path), pytest.raises(AtlasError, match=r"journal\.jsonl: another autotune run"):
        journal(tmp_path).__enter__()
    with journal(tmp_path):  # and the lock is free again
        pass


class Dry(Session):
    """A session that answers a fixed number of requests from the surface, without a process, and then is cut off."""

    left = 10**6

    def _ask(self, problem, request, timeout_seconds):
        if not self.left:
            raise KeyboardInterrupt
        self.left -= 1
        self.measured += 1
        candidates = getattr(request, "candidates", None) or (request.candidate,)
        costs = [fakes.cost_us(c.config, problem.case["n"]) for c in candidates]
        limit = getattr(request, "limit_us", None)
        if limit is not None and costs[0] > limit:
            return (Outcome("stopped", "far behind", costs[0], costs[0], costs[0], 1),)
        return tuple(Outcome("ok", "", cost, cost, cost, getattr(request, "samples", 100)) for cost in costs)


def dry_run(monkeypatch, folder, left=10**6, **declared):
    monkeypatch.setattr(Dry, "left", left)
    monkeypatch.setattr(Dry, "begin", lambda self: None)
    monkeypatch.setattr(tuner, "Session", Dry)
    options = tuner.Options(STRATEGIES["halving"], None, 20.0, jobs=0)
    with journal(folder) as book:
        return tuner.tune(fakes.problems(**declared), fakes.DEVICE, fakes.setting(), book, options, "test")


def without_times(document):
    trials = [{k: v for k, v in row.items() if k != "at_seconds"} for row in document["trials"]]
    return document["best"], trials, document["trials_by_status"]


@pytest.mark.parametrize("cut", [0, 1, 20, 40, 50], ids=lambda cut: f"after {cut} requests")
def test_a_resumed_run_ends_as_an_undisturbed_one_and_measures_only_the_rest(tmp_path, monkeypatch, cut):
    sizes = (1000, 2000)
    whole = dry_run(monkeypatch, tmp_path / "whole", sizes=sizes)
    assert whole["journal"]["measured"] > 50  # so that every cut is one
    with pytest.raises(KeyboardInterrupt):
        dry_run(monkeypatch, tmp_path / "cut", left=cut, sizes=sizes)
    resumed = dry_run(monkeypatch, tmp_path / "cut", sizes=sizes)
    assert without_times(resumed) == without_times(whole)
    assert resumed["journal"]["measured"] == whole["journal"]["measured"] - cut


@pytest.mark.parametrize("more", [700, 5000], ids=lambda more: f"after {more} bytes")
def test_a_run_whose_disk_fills_is_told_so_and_the_next_ends_as_an_undisturbed_one(tmp_path, monkeypatch, more):
    whole = dry_run(monkeypatch, tmp_path / "whole")
    path = tmp_path / "full" / "journal.jsonl"
    path.parent.mkdir()
    path.touch()
    with room(path, more), pytest.raises(AtlasError, match="free space"):
        dry_run(monkeypatch, path.parent)
    kept = len(list(entries(path)))
    assert kept
    resumed = dry_run(monkeypatch, path.parent)
    assert without_times(resumed) == without_times(whole)
    assert resumed["journal"]["measured"] == whole["journal"]["measured"] - kept
    assert resumed["journal"]["damaged_lines"] == 0


def test_a_changed_space_measures_only_what_is_new(tmp_path, monkeypatch):
    dry_run(monkeypatch, tmp_path, tiles=fakes.TILES[:-1])
    wider = dry_run(monkeypatch, tmp_path, tiles=fakes.TILES)
    fresh = dry_run(monkeypatch, tmp_path / "fresh", tiles=fakes.TILES)
    assert without_times(wider) == without_times(fresh)
    # The new tile's four configs, and what they push past a rung.
    assert len(fakes.WARPS) <= wider["journal"]["measured"] < fresh["journal"]["measured"] / 4


def test_a_run_with_nothing_new_starts_no_worker(tmp_path, monkeypatch):
    dry_run(monkeypatch, tmp_path)

    def started(self):
        raise AssertionError("a worker was started")

    monkeypatch.setattr(Dry, "_ask", started)
    monkeypatch.setattr(tuner.Session, "begin", started)
    options = tuner.Options(STRATEGIES["halving"], None, 20.0, jobs=0)
    with journal(tmp_path) as book:
        tuner.tune(fakes.problems(), fakes.DEVICE, fakes.setting(), book, options, "test")


def endless(folder):
    """What the killed process runs: the real thing, which comes to a standstill in its midst."""
    options = tuner.Options(STRATEGIES["halving"], None, 20.0, jobs=0)
    declared = {"faults": (("all", "hangs after a while"),)}
    with journal(folder) as book:
        tuner.tune(fakes.problems(**declared), fakes.DEVICE, fakes.setting(**declared), book, options, "test")


def test_a_run_killed_outright_resumes_from_its_journal_and_leaves_no_worker(tmp_path):
    process = multiprocessing.get_context("spawn").Process(target=endless, args=(tmp_path,))
    process.start()
    path = tmp_path / "journal.jsonl"
    until = time.monotonic() + 240
    while not path.exists() or path.read_text().count('"key"') < 5:
        assert time.monotonic() < until
        time.sleep(0.05)
    workers = descendants_of(process.pid)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert workers
    until = time.monotonic() + 240
    while any(alive(pid) for pid in workers):
        assert time.monotonic() < until
        time.sleep(0.05)
    with journal(tmp_path) as book:  # the lock went with the process
        problem, default = first()
        assert book.find(problem, default, "screen 5").median_us == pytest.approx(30, rel=0.01)


def test_a_worker_that_somebody_kills_while_it_starts_is_started_again(tmp_path):
    problem, candidate = first()
    with journal(tmp_path) as book, Session(fakes.setting(), book, 30.0) as session:
        session.begin()
        os.kill(session.worker_pid, signal.SIGKILL)
        assert session.screen(problem, candidate, 5, None).status == "ok"


def declare_fatal(marker):
    """The fake kernel; the first to draw its inputs is killed meanwhile."""
    declaration = fakes.declare()

    def inputs(problem, device, generator):
        if not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return declaration.forward.inputs(problem, device, generator)

    return dataclasses.replace(declaration, forward=dataclasses.replace(declaration.forward, inputs=inputs))


def test_a_worker_that_somebody_kills_while_it_draws_inputs_costs_no_trial(tmp_path):
    # Inputs that cannot be drawn are the end of all trials of a problem, so whose fault it was must be told.
    problem, candidate = first()
    marker = tmp_path / "drawn"
    setting = dataclasses.replace(fakes.setting(), load=functools.partial(declare_fatal, marker))
    with journal(tmp_path) as book, Session(setting, book, 30.0) as session:
        assert session.screen(problem, candidate, 5, None).status == "ok"
    assert marker.exists()


def descendants_of(pid):
    children = [int(word) for path in Path(f"/proc/{pid}/task").glob("*/children") for word in path.read_text().split()]
    return children + [below for child in children for below in descendants_of(child)]


def alive(pid):
    """Whether a process runs; one that nobody has buried yet does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_every_line_can_be_read_by_itself(tmp_path):
    fill(tmp_path, OK, Outcome("timeout", "no answer"))
    lines = [json.loads(line) for line in (tmp_path / "journal.jsonl").read_text().splitlines()]
    assert lines[0]["context"] == {"kernel_digest": "a"}
    assert lines[1]["config"] == {"tile": 16, "warps": 2} and lines[1]["method"] == "screen 5"
    assert lines[2]["timeout_seconds"] == 20.0
