"""``python -m atlas compare``: sides out of files, folders and commits; its exit status, files and figure."""

import copy
import csv
import json
import subprocess

import pytest
import synthetic
from atlas import cli

SOFTMAX = synthetic.KERNELS[1]


def benchmark(ours=1.0, hour=10, **changes):
    """A simulated benchmark whose variants take ``ours`` times as long, of its own hour."""
    document = copy.deepcopy(synthetic.benchmark(SOFTMAX, "h200")) | changes
    document["software"] |= {"date": f"2026-11-20T{hour:02}:00:00+00:00"}
    for row in document["rows"]:
        if row["provider_kind"] != "peer" and row.get("median_us"):
            row |= {key: ours * row[key] for key in ("q1_us", "median_us", "q3_us")}
    return document


def measured(folder, *documents):
    """A folder with a run a document; its path as the user gives it."""
    for number, document in enumerate(documents):
        synthetic.write(folder / f"run-{number}" if len(documents) > 1 else folder, "measured", document)
    return str(folder)


@pytest.fixture
def compare(kernels, tmp_path, monkeypatch):
    """``compare(*words)`` in an empty folder; the exit status."""
    monkeypatch.chdir(tmp_path)
    return lambda *words: cli.main(["compare", *words])


def test_the_exit_status_says_whether_anything_is_slower(compare, tmp_path, capsys):
    before, same, slow, fast = (
        measured(tmp_path / name, benchmark(ours, hour)) for hour, (name, ours) in
        enumerate((("before", 1.0), ("same", 1.0), ("slow", 1.5), ("fast", 0.5)))
    )  # fmt: skip
    assert compare(before, same) == 0
    assert compare(before, fast) == 0
    capsys.readouterr()
    assert compare(before, slow) == 1
    shown = capsys.readouterr().out
    assert "softmax on h200: 16 slower, 0 faster, 0 undecided, 0 same (1 and 1 run)" in shown
    assert "0.667x" in shown and "temperature" not in shown


def test_cases_that_are_the_same_are_shown_on_demand(compare, tmp_path, capsys):
    before, after = (measured(tmp_path / name, benchmark(hour=hour)) for hour, name in enumerate(("a", "b")))
    compare(before, after)
    assert "m=8192" not in capsys.readouterr().out
    compare(before, after, "--all")
    assert "m=8192" in capsys.readouterr().out


def test_runs_of_a_side_lie_in_a_folder_or_are_joined_by_commas(compare, tmp_path, capsys):
    before = measured(tmp_path / "before", *(benchmark(1.0, hour) for hour in range(5)))
    names = [measured(tmp_path / f"after-{hour}", benchmark(1.03, 10 + hour)) for hour in range(5)]
    assert compare(before, names[0]) in (0, 1)
    assert "(5 and 1 run)" in capsys.readouterr().out
    assert compare(before, ",".join(names)) == 1
    assert "(5 and 5 runs)" in capsys.readouterr().out


def test_files_hold_every_case_with_its_interval_and_what_changed(compare, tmp_path):
    before = measured(tmp_path / "before", benchmark())
    after = benchmark(1.5, 11)
    after["device"] |= {"driver": "590.1", "power_cap_w": 500.0}
    after["software"] |= {"triton": "3.9.0"}
    after["identities"] = {**after["identities"], "forward.naive": "another"}
    words = ("--output", str(tmp_path / "out.json"), "--plot", str(tmp_path / "out.svg"))
    assert compare(before, measured(tmp_path / "after", after), *words) == 1
    found = json.loads((tmp_path / "out.json").read_text())
    assert found["verdicts"] == {"slower": 16, "faster": 0, "undecided": 0, "same": 0}
    assert len(found["cases"]) == 16 and all(row["low"] < row["step"] < row["high"] for row in found["cases"])
    changed = {one["what"]: (one["before"], one["after"]) for one in found["changed"]}
    assert changed["driver"] == ("580.95.05", "590.1") and changed["triton"] == ("3.7.1", "3.9.0")
    assert changed["power cap w"] == ("700", "500") and "forward `naive` is new" in changed["code"][1]
    assert (tmp_path / "out.svg").read_text().startswith("<?xml")
    compare(before, str(tmp_path / "after"), "--output", str(tmp_path / "out.csv"))
    rows = list(csv.DictReader((tmp_path / "out.csv").open()))
    assert len(rows) == 16 and json.loads(rows[0]["sizes"]) and float(rows[0]["step"]) < 1


def test_a_plot_that_cannot_be_written_is_named(compare, tmp_path, capsys):
    (tmp_path / "out.svg").mkdir()
    before, after = measured(tmp_path / "before", benchmark()), measured(tmp_path / "after", benchmark(1.5, 11))
    assert compare(before, after, "--plot", str(tmp_path / "out.svg")) == 2
    assert "out.svg: cannot be written: Is a directory" in capsys.readouterr().err


def test_a_single_document_is_a_side(compare, tmp_path):
    paths = [synthetic.write(tmp_path / name, "measured", benchmark(hour=hour)) for hour, name in enumerate("ab")]
    assert compare(*map(str, paths)) == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["one"], "give two, before and after"),
        (["one", "nowhere"], "nowhere: no file, folder or git commit"),
        (["one", "one"], "hold the very same runs"),
        (["one", "other"], "share no timed case"),
        (["one", "elsewhere"], "two GPUs are compared by `python -m atlas report`"),
        (["one", "empty"], "no benchmark.json in this folder"),
        (["one", "one", "--output", "out.txt"], "end the name in .json or .csv"),
        (["--history"], "name the --kernels"),
    ],
)
def test_bad_input_is_told_in_a_sentence_with_status_2(compare, tmp_path, capsys, words, said):
    measured(tmp_path / "one", benchmark())
    measured(tmp_path / "other", synthetic.benchmark(synthetic.KERNELS[2], "h200"))
    measured(tmp_path / "elsewhere", synthetic.benchmark(SOFTMAX, "h100"))
    (tmp_path / "empty").mkdir()
    assert compare(*words) == 2
    assert said in capsys.readouterr().err


def test_times_of_the_interpreter_are_refused(compare, tmp_path, capsys):
    document = next(one for one in synthetic.interpreted(SOFTMAX) if one["stage"] == "benchmark")
    synthetic.write(tmp_path / "one", "measured", document)
    assert compare("one", "one") == 2
    assert "no speeds" in capsys.readouterr().err


@pytest.fixture
def checkout(tmp_path):
    """A checkout with three records of softmax: the second is slower, the third a copy of it with other identities."""

    def git(*words):
        done = subprocess.run(["git", "-C", str(tmp_path), *words], capture_output=True, text=True, check=True)
        return done.stdout.strip()

    git("init", "-q")
    commits = []
    for document in (benchmark(hour=1), benchmark(1.5, 2), benchmark(1.5, 2, identities={"*": "rekeyed"})):
        synthetic.write(tmp_path / "results", "recorded", document)
        git("add", "results")
        git("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "record")
        commits.append(git("rev-parse", "--short", "HEAD"))
    return commits


def test_commits_are_compared_by_their_records(compare, checkout, capsys):
    assert compare(checkout[0], checkout[1]) == 1
    assert "16 slower" in capsys.readouterr().out
    assert compare(checkout[1], checkout[2]) == 2, "the same measurement under other identities"


def test_a_history_compares_each_record_with_the_one_before(compare, checkout, capsys, tmp_path):
    out, plot = tmp_path / "h.json", tmp_path / "h.png"
    assert compare("--history", "--kernels", "softmax", "--output", str(out), "--plot", str(plot)) == 1
    rows = json.loads(out.read_text())["history"]
    assert len(rows) == 32, "two measurements of 16 cases"
    assert {(row["at"], row["verdict"]) for row in rows} == {(checkout[0], None), (checkout[1], "slower")}
    assert plot.stat().st_size > 1000
    assert checkout[1] in capsys.readouterr().out


def test_a_history_over_folders_is_in_the_order_of_their_dates(compare, tmp_path):
    names = [measured(tmp_path / name, benchmark(ours, hour)) for name, ours, hour in
             (("late", 0.5, 12), ("early", 1.0, 1), ("middle", 1.4, 5))]  # fmt: skip
    out = tmp_path / "h.json"
    assert compare("--history", *names, "--output", str(out)) == 0, "the last one is faster"
    rows = [row for row in json.loads(out.read_text())["history"] if row["direction"] == "forward"]
    assert list(dict.fromkeys(row["at"].split("/")[-1] for row in rows)) == ["early", "middle", "late"]
