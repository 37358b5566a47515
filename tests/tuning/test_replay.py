"""A recorded journal stands in for the GPU: the same answers as live, on a simulated clock."""

import argparse
import json
import subprocess
import sys
from types import SimpleNamespace

import pytest
from atlas import ROOT
from atlas.errors import AtlasError
from atlas.tuning.journal import Journal
from atlas.tuning.outcome import Outcome
from atlas.tuning.search import search
from atlas.tuning.strategies import STRATEGIES
from atlas.tuning.strategies.halving import HALVING
from atlas.tuning.strategies.strategy import EXHAUSTIVE
from tuning_landscapes import Noisy, crowded, landscape, problem_of

from proofs.tuning import recording, replay, strategies

CONTEXT = {"gpu": "fake", "kernel_digest": "abcdef", "device": {"driver": "580"}, "torch": "2", "triton": "3"}
UNLIMITED = SimpleNamespace(over=False)


class Live(Noisy):
    """Noise that keeps a journal, as a session does."""

    def __init__(self, times, seed, book):
        super().__init__(times, seed)
        self.book = book

    def screen(self, problem, candidate, samples, limit_us):
        outcome = super().screen(problem, candidate, samples, limit_us)
        self.book.add(problem, candidate, f"screen {samples}", outcome)
        return outcome

    def check(self, problem, candidate):
        outcome = super().check(problem, candidate)
        self.book.add(problem, candidate, "check validation/1", outcome)
        return outcome


class Still(Live):
    """Without noise, so that a live search and a replayed one are told the same."""

    def timed(self, candidate, count, limit_us=None):
        t = self.times[candidate]
        if t is None:
            return Outcome("out_of_resources", "shared memory")
        if limit_us is not None and t > limit_us:
            return Outcome("stopped", "far behind", t, t, t, 1, samples_us=(t,))
        return Outcome("ok", "", t, t, t, count, samples_us=(t,) * count)


def record(path, *landscapes, context=CONTEXT, strategy=EXHAUSTIVE, live=Live):
    """Search each landscape live under the journal; returns what was found."""
    found = []
    with Journal(path, context, 20.0) as book:
        for size, times in enumerate(landscapes, 1):
            found.append(search(problem_of(times, size=size), strategy, live(times, size, book), UNLIMITED))
    return found


@pytest.fixture
def journal(tmp_path):
    """Of two problems, one of them with configs that fail."""
    path = tmp_path / "journal.jsonl"
    some = dict(list(landscape(3, 20.0).items())[::9])
    record(path, crowded(1, 50.0), some)
    return path


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_replay_decides_as_the_live_search_does(tmp_path, name):
    times = {c: round(t, 3) if t else None for c, t in list(landscape(5, 40.0).items())[::11]}
    path = tmp_path / "journal.jsonl"
    record(path, times, live=Still)
    (recorded,) = recording.read(path).problems
    (live,) = record(tmp_path / "live.jsonl", times, strategy=STRATEGIES[name], live=Still)
    replayed = replay.Replayed(recorded)
    again = search(recorded.problem, STRATEGIES[name], replayed, UNLIMITED)
    assert again.ranking == live.ranking
    assert {c: (t.outcome.status, t.rung) for c, t in again.trials.items()} == {
        c: (t.outcome.status, t.rung) for c, t in live.trials.items()
    }


def test_a_replay_is_the_same_each_time_and_another_under_another_seed(journal):
    (recorded, _) = recording.read(journal).problems
    runs = [replay.replay(recorded, HALVING, seed) for seed in (0, 0, 1)]
    assert runs[0] == runs[1]
    assert runs[0].curve != runs[2].curve


def test_an_answer_does_not_depend_on_what_was_asked_before(journal):
    (recorded, _) = recording.read(journal).problems
    first, second, *_ = recorded.problem.candidates
    one, other = replay.Replayed(recorded, 7), replay.Replayed(recorded, 7)
    other.screen(recorded.problem, second, 5, None)
    assert one.screen(recorded.problem, first, 5, None) == other.screen(recorded.problem, first, 5, None)


def test_a_screening_is_of_neighbouring_samples_and_stops_like_the_clock(journal):
    (recorded, _) = recording.read(journal).problems
    candidate = recorded.problem.candidates[0]
    there = recorded.screened[candidate].samples_us
    outcome = replay.Replayed(recorded).screen(recorded.problem, candidate, 5, None)
    assert outcome.samples_us in [(there + there)[i : i + 5] for i in range(len(there))]
    stopped = replay.Replayed(recorded).screen(recorded.problem, candidate, 5, 1.0)
    assert stopped.status == "stopped" and stopped.samples == 1


def test_the_clock_counts_the_untimed_call_each_sample_and_the_trial(journal):
    (recorded, _) = recording.read(journal).problems
    replayed = replay.Replayed(recorded)
    outcome = replayed.screen(recorded.problem, recorded.problem.candidates[0], 5, None)
    expected = replay.TRIAL_SECONDS + 6 * replay.SAMPLE_SECONDS + 1e-6 * sum(outcome.samples_us)
    assert replayed.elapsed_seconds == pytest.approx(expected)


def test_a_budget_in_simulated_seconds_ends_the_search(journal):
    (recorded, _) = recording.read(journal).problems
    whole = replay.replay(recorded, HALVING)
    cut = replay.replay(recorded, HALVING, budget_seconds=whole.seconds / 10)
    assert cut.trials < whole.trials and cut.winner is not None


def test_the_optimum_and_its_regret_are_those_of_all_samples(journal):
    (recorded, _) = recording.read(journal).problems
    run = replay.replay(recorded, EXHAUSTIVE)
    assert run.regret == 0.0
    assert run.default_regret > 0.0
    assert run.curve[-1] == (run.seconds, 0.0)


def test_a_config_recorded_as_wrong_neither_wins_nor_counts_as_the_optimum(tmp_path):
    times = crowded(1, 50.0)
    fastest = min(times, key=times.get)
    path = tmp_path / "journal.jsonl"
    record(path, times)
    with Journal(path, CONTEXT, 20.0) as book:
        book.add(problem_of(times), fastest, "check validation/1", Outcome("wrong", "y[0] is 3"))
    (recorded,) = recording.read(path).problems
    run = replay.replay(recorded, HALVING)
    assert run.winner != fastest and run.regret < 0.05


def test_a_failed_certificate_holds_for_all_sizes(tmp_path):
    times = crowded(1, 50.0)
    fastest = min(times, key=times.get)
    path = tmp_path / "journal.jsonl"
    record(path, times)
    with Journal(path, CONTEXT, 20.0) as book:
        book.add(problem_of(times).without_sizes, fastest, "certify validation/1, 5 seeds", Outcome("wrong", "n=1"))
    (recorded,) = recording.read(path).problems
    assert replay.replay(recorded, EXHAUSTIVE).winner != fastest


def test_a_comparison_has_chance_with_as_many_trials_beside_what_leaves_configs_out(tmp_path):
    path = tmp_path / "journal.jsonl"
    record(path, dict(list(landscape(3, 60.0).items())[::4]))
    runs = strategies.compare(recording.read(path), [HALVING, STRATEGIES["guided"]], seeds=2)
    rows = {name: strategies.standing(name, runs) for name in dict.fromkeys(run.strategy for run in runs)}
    assert list(rows) == ["exhaustive", "halving", "guided", "random, trials of guided"]
    assert rows["exhaustive"].share == 1.0 and rows["guided"].share < rows["halving"].share < 0.6
    assert rows["random, trials of guided"].trials == rows["guided"].trials < 0.5 * rows["halving"].trials
    assert rows["guided"].lost == 0 and rows["guided"].regret_worst < 0.05


def test_a_percentile_is_a_regret_that_occurs_and_the_worse_where_it_lies_between_two():
    regrets = [i / 100 for i in range(1, 11)]  # the 95th percentile lies between the ninth and the last
    expected = {"regret_median": 0.06, "regret_p95": 0.10, "regret_worst": 0.10}
    assert strategies.spread(regrets) == expected
    assert strategies.spread(regrets[::-1]) == expected
    assert set(strategies.spread([]).values()) == {None}


def arguments(path, **given):
    asked = {"context": None, "strategy": "halving", "seeds": 1, "output": None, "budget_seconds": None}
    return argparse.Namespace(journal=path, **{**asked, **given})


def test_the_command_prints_the_standings_and_writes_the_curves(journal, tmp_path, capsys):
    output = tmp_path / "replay.json"
    strategies.run(arguments(journal, output=output))
    shown = capsys.readouterr().out
    assert "halving" in shown and "exhaustive" in shown and "the default, untuned" in shown
    document = json.loads(output.read_text())
    assert {run["strategy"] for run in document["runs"]} == {"exhaustive", "halving"}
    assert all(run["best_so_far"][-1][1] == run["regret"] for run in document["runs"])
    assert document["context"] == CONTEXT


def test_the_last_context_is_replayed_unless_another_is_chosen(tmp_path):
    path = tmp_path / "journal.jsonl"
    record(path, crowded(1, 50.0))
    record(path, crowded(2, 90.0), context=CONTEXT | {"kernel_digest": "123456"})
    assert recording.read(path).context["kernel_digest"] == "123456"
    assert recording.read(path, "1").context["kernel_digest"] == "abcdef"
    assert recording.read(path, "abc").context["kernel_digest"] == "abcdef"
    with pytest.raises(AtlasError, match=r"no context for --context 'zz'; give a number, there are 1: kernel abcdef"):
        recording.read(path, "zz")


def test_a_context_that_measured_nothing_is_passed_over(tmp_path):
    path = tmp_path / "journal.jsonl"
    record(path, crowded(1, 50.0))
    record(path, context=CONTEXT | {"kernel_digest": "123456"})
    assert recording.read(path).context["kernel_digest"] == "abcdef"


def test_damaged_lines_are_left_out_and_counted(journal):
    content = journal.read_bytes()
    garbled = b'{"key": "x", "direction": "forward"}\n[1]\n\xff\n'
    journal.write_bytes(content + garbled + content.splitlines()[5][:40])
    recorded = recording.read(journal)
    assert recorded.damaged == 4 and len(recorded.problems) == 2


def test_a_journal_that_was_not_exhaustive_says_so(tmp_path, capsys):
    path = tmp_path / "journal.jsonl"
    record(path, crowded(1, 50.0), strategy=HALVING)
    strategies.run(arguments(path))
    assert "1 of 1 problems were not searched exhaustively" in " ".join(capsys.readouterr().out.split())


def test_all_strategies_are_asked_for_in_one_word():
    assert strategies._asked("all") == list(STRATEGIES.values())
    assert [one.name for one in strategies._asked("guided, halving")] == ["guided", "halving"]


@pytest.mark.parametrize(
    "content, said",
    [
        (None, "cannot be read: No such file"),
        ("", "holds no measurement; give the journal.jsonl of an autotune run"),
        ("not a journal\n", r"holds no measurement \(1 damaged lines\)"),
        ('{"context": {"gpu": "fake"}}\n', "holds no measurement"),
    ],
    ids=["missing", "empty", "another file", "nothing measured"],
)
def test_what_cannot_be_replayed_is_refused_with_its_name_and_the_remedy(tmp_path, content, said):
    path = tmp_path / "journal.jsonl"
    if content is not None:
        path.write_text(content)
    with pytest.raises(AtlasError, match=said) as refused:
        recording.read(path)
    assert str(path) in str(refused.value)


def test_a_journal_without_samples_is_refused(tmp_path):
    times = crowded(1, 50.0)
    path = tmp_path / "old.jsonl"
    with Journal(path, CONTEXT, 20.0) as book:
        for candidate in times:
            book.add(problem_of(times), candidate, "screen 60", Outcome("ok", "", 50.0, 49.0, 51.0, 60))
    with pytest.raises(AtlasError, match=r"lack samples_us.*autotune --strategy exhaustive"):
        recording.read(path)


def test_an_unknown_strategy_and_no_seed_are_refused(journal):
    with pytest.raises(AtlasError, match="unknown strategy 'halfing'"):
        strategies.run(arguments(journal, strategy="guided,halfing"))
    done = replayed(journal, "--seeds", "0")
    assert done.returncode == 2 and "--seeds is 0; give 1 or more" in done.stderr


def replayed(*words):
    command = [sys.executable, "-m", strategies.__name__, *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)


def test_the_command_line_replays_a_kernel_that_is_not_there(journal):
    before = sorted((ROOT / "results").iterdir())
    done = replayed(journal, "--seeds", "1")
    assert done.returncode == 0, done.stderr
    assert "of fake, replayed" in " ".join(done.stdout.split()) and "halving" in done.stdout
    assert sorted((ROOT / "results").iterdir()) == before, "nothing is written there"
