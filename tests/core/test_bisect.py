"""``python -m atlas bisect``: git's own bisect over a history, with a script that reads times instead of a clock."""

import json
import subprocess
import sys

import pytest
from atlas import cli, timing
from atlas.bisecting import measure, search
from atlas.bisecting.judging import Question, Subject, Unmeasured, judged
from atlas.errors import AtlasError
from atlas.timing import Timing

FAKE = """
import json, pathlib, sys
asked = json.loads(sys.argv[1])
text = pathlib.Path("speed").read_text()
if text == "broken":
    sys.exit("no such kernel")
calls = pathlib.Path(asked["calls"])
number = len(calls.read_text()) if calls.exists() else 0
calls.write_text("x" * (number + 1))
median = float(text) * (1 + 0.001 * (number % 3))  # runs of one tree differ, as processes do
print("a word before")
print(json.dumps({"median_us": median, "q1_us": median, "q3_us": median, "peers": {"torch": 200.0}}))
"""
"""Stands for ``atlas/bisecting/measure.py``: the tree's file ``speed`` is its clock."""


def git(folder, *words):
    identity = ("-c", "user.name=a", "-c", "user.email=a@b")
    done = subprocess.run(["git", *identity, *words], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def history(tmp_path):
    """``history(speeds)``: a checkout with a commit a speed; the checkout, and the commits."""

    def make(speeds):
        checkout = tmp_path / "checkout"
        checkout.mkdir()
        git(checkout, "init", "-q")
        commits = []
        for number, speed in enumerate(speeds):
            (checkout / "speed").write_text(str(speed))
            (checkout / "number").write_text(str(number))
            git(checkout, "add", ".")
            git(checkout, "commit", "-qm", f"commit {number}")
            commits.append(git(checkout, "rev-parse", "HEAD"))
        return checkout, commits

    return make


@pytest.fixture
def question(tmp_path):
    """``question(good tree)``: five runs a side by the fake script."""
    script = tmp_path / "fake.py"
    script.write_text(FAKE)
    asked = {"calls": str(tmp_path / "calls")}
    return lambda tree, runs=5: Question(asked, Subject(str(tree), sys.executable), runs, script=str(script))


def bisect(checkout, commits, question):
    said = []
    with search.worktrees(checkout, commits[0], commits[-1]) as (good, searched):
        found = search.commits(question(good), searched, commits[0], commits[-1], said.append)
    return found, "\n".join(said)


def test_the_first_slower_commit_is_found_and_the_checkout_is_left_as_it_was(history, question):
    checkout, commits = history([100, 100.4, 100.2, 103.5, 103.3, 104])
    found, said = bisect(checkout, commits, question)
    assert found == f"{commits[3]} commit 3"
    assert "slower" in said and "same" in said
    assert git(checkout, "rev-parse", "HEAD") == commits[-1] and not git(checkout, "status", "--porcelain")
    assert len(git(checkout, "worktree", "list").splitlines()) == 1
    assert not git(checkout, "for-each-ref", "refs/bisect")


def test_commits_that_cannot_be_timed_are_passed_over(history, question):
    checkout, commits = history([100, "broken", 100, 104, 104])
    found, _ = bisect(checkout, commits, question)
    assert found == f"{commits[3]} commit 3"


def test_what_hides_behind_commits_that_cannot_be_timed_is_not_guessed(history, question):
    checkout, commits = history([100, "broken", "broken", 104])
    found, said = bisect(checkout, commits, question)
    assert found is None
    assert "cannot be timed: no such kernel" in said


def test_ends_of_which_the_last_is_not_slower_are_refused(history, question):
    checkout, commits = history([100, 100, 100.1])
    with pytest.raises(AtlasError, match="is same against"):
        bisect(checkout, commits, question)


@pytest.mark.parametrize(
    ("good", "bad", "said"), [("nothing", "HEAD", "--good nothing"), ("HEAD", "HEAD~1", "ancestor")]
)
def test_names_that_are_no_ends_are_refused(history, good, bad, said):
    checkout, _ = history([100, 104])
    with pytest.raises(AtlasError, match=said), search.worktrees(checkout, good, bad):
        pass


def test_both_sides_are_timed_in_turns(tmp_path, question):
    trees = [tmp_path / name for name in ("good", "bad")]
    for tree, speed in zip(trees, (100, 105), strict=True):
        tree.mkdir()
        (tree / "speed").write_text(str(speed))
    found = judged(question(trees[0]), Subject(str(trees[1]), sys.executable))
    assert found.verdict == "slower" and found.peer_step == pytest.approx(1.0)
    assert len((tmp_path / "calls").read_text()) == 10
    (trees[1] / "speed").write_text("broken")
    with pytest.raises(Unmeasured, match="no such kernel"):
        judged(question(trees[0]), Subject(str(trees[1]), sys.executable))


def test_environments_are_halved(tmp_path, question):
    # Interpreters that set the speed of the same tree: stand-ins for other versions of Triton.
    tree = tmp_path / "tree"
    tree.mkdir()
    names = []
    for number, speed in enumerate([100, 100.2, 100.1, 104, 104, 104.2]):
        name = tmp_path / f"python-{number}"
        name.write_text(f"#!/bin/sh\necho {speed} | tr -d '\\n' > speed\nexec {sys.executable} \"$@\"\n")
        name.chmod(0o755)
        names.append(str(name))
    said = []
    assert search.environments(question(tree, runs=3), names, said.append) == names[3]
    assert 2 <= len(said) <= 3, "halved, not tried in turn"
    with pytest.raises(AtlasError, match="same against"):
        search.environments(question(tree, runs=3), names[:3], said.append)


class FakeClock:
    """Calls each thunk once, and reads 3 us for every thunk before it."""

    def __init__(self, device):
        self.device = device

    def warm_up(self):
        pass

    def interleave(self, thunks, **limits):
        for name, thunk in thunks.items():
            assert name == "" or thunk() is not None
        return {name: Timing(3.0 * place, 1.0, 9.0, (1.0,)) for place, name in enumerate(thunks, 1)}


@pytest.mark.parametrize("variant", [None, "one_pass"])
def test_a_tree_is_asked_for_what_a_call_runs_or_for_one_variant(monkeypatch, variant):
    monkeypatch.setenv("TRITON_INTERPRET", "1")  # or calls on the host are refused
    # On the CPU nothing is launched: the choice, the inputs and torch's way are real, the clock is not.
    monkeypatch.setattr(timing, "Clock", FakeClock)
    asked = {"kernel": "softmax", "direction": "forward", "dtype": "fp32", "sizes": {"m": 8, "n": 16}}
    found = measure.measured(asked | {"variant": variant, "config": None}, "cpu")
    assert found["variant"] == "one_pass" and found["config"]["BLOCK_M"] >= 1
    assert (found["median_us"], found["peers"], found["throttled"]) == (3.0, {"torch": 6.0}, False)


CASE = ("softmax", "--gpu", "h200", "--dtype", "bf16", "--case", "m=4096,n=4096")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (CASE, "give --good COMMIT to search commits, or --pythons"),
        ((*CASE, "--good", "a", "--pythons", "b,c"), "give --good COMMIT to search commits, or --pythons"),
        ((*CASE, "--pythons", "b"), "give two or more"),
        ((*CASE, "--good", "a", "--variant", "none"), "--variant none: softmax forward has"),
        ((*CASE, "--good", "a", "--config", "{}"), "give --variant as well"),
        (("softmax", "--gpu", "cpu", *CASE[3:], "--good", "a"), "no speeds"),
    ],
)
def test_a_mistake_is_told_in_a_sentence(capsys, words, said):
    assert cli.main(["bisect", *words]) == 2
    assert said in capsys.readouterr().err


def test_a_question_survives_its_way_to_another_process(tmp_path):
    asked = Question({"kernel": "a", "config": None}, Subject("tree", "python"), 5, environment={"A": "b"})
    assert Question.of_json(asked.to_json()) == asked
    assert json.loads(asked.to_json())["runs"] == 5
