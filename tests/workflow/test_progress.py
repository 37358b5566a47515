"""What a run says while it goes on: a line a job, with what came of it and how long the others may take."""

import json
import logging
from types import SimpleNamespace

import pytest
from atlas.host import gpus
from atlas.plan import progress
from snakemake_interface_logger_plugins.common import LogEvent

BLOCKS = {"h200": {"match": "H200", "target": {"cuda": 90}}, "cpu": {"target": {"cpu": "interpreter"}}}


@pytest.fixture
def lines(tmp_path, monkeypatch):
    """Lines of a run of two kernels, on an H200 that is here and on the interpreter, four cores."""
    now = SimpleNamespace(seconds=100.0)
    monkeypatch.setattr(progress.time, "monotonic", lambda: now.seconds)
    plan = SimpleNamespace(
        kernels=["matmul", "softmax"],
        gpus=["h200", "cpu"],
        blocks=BLOCKS,
        places={name: SimpleNamespace(where=gpus.HERE) for name in BLOCKS},
        stages=lambda gpu: ("validate",) if gpu == "cpu" else ("build", "validate"),
    )
    made = progress.Lines(plan, 4, tmp_path)
    made.now = now
    return made


def record(event, **fields):
    return logging.makeLogRecord({"event": event, "msg": None, **fields})


def job(lines, number, rule, seconds=0.0, **wildcards):
    """A job begins, takes its time and ends."""
    lines.emit(record(LogEvent.JOB_INFO, jobid=number, rule_name=rule, wildcards=wildcards))
    lines.now.seconds += seconds
    lines.emit(record(LogEvent.JOB_FINISHED, job_id=number))


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))


def test_a_line_says_which_job_of_how_many_what_came_of_it_and_how_long_is_left(lines, tmp_path, capsys):
    write(tmp_path / "benchmarks/h200/matmul/build.tsv", "s\th:m:s\n40.0\t0:00:40\n")
    write(tmp_path / "recorded/h200/softmax/build.json", {"seconds": 20.0})
    write(tmp_path / "benchmarks/cpu/matmul/validate.tsv", "s\th:m:s\n120.0\t0:02:00\n")
    configs = [{"status": "ok"}] * 296 + [{"status": "pruned"}] * 13
    write(tmp_path / "measured/h200/matmul/build.json", {"status": "ok", "reason": "", "configs": configs})
    lines.emit(record(LogEvent.RUN_INFO, stats={"build": 2, "report": 1, "reproduce": 1, "total": 4}))
    lines.take_over()
    job(lines, 1, "build", 30.0, kernel="matmul", gpu="h200")
    write(tmp_path / "logs/report.log", "a warning\nresults/report.html, 3.1 MB\n")
    # 30 s of a mean of 40 and 20 as expected; 30 s and the report's 20 are left.
    assert capsys.readouterr().err == "[1/3] build matmul h200 · 296 ok, 13 pruned · 30 s · about 50 s left\n"
    job(lines, 3, "report", 2.0)
    assert capsys.readouterr().err.startswith("[2/3] report · results/report.html, 3.1 MB · 2 s · about ")
    job(lines, 2, "build", 20.0, kernel="softmax", gpu="h200")
    assert capsys.readouterr().err == "[3/3] build softmax h200 · 20 s\n", "its document is not there"
    job(lines, 4, "reproduce")
    assert capsys.readouterr().err == ""


def test_what_is_cut_off_says_so(lines, tmp_path, capsys):
    write(tmp_path / "logs/track.log", f"16 documents in sqlite:///{'/folder' * 20}\n")
    lines.emit(record(LogEvent.RUN_INFO, stats={"track": 1, "total": 1}))
    lines.take_over()
    job(lines, 1, "track")
    said = capsys.readouterr().err.split(" · ")[1]
    assert len(said) == progress._TOLD and said.endswith("…")


def test_a_job_on_the_interpreter_takes_one_core_of_several(lines, tmp_path):
    write(tmp_path / "benchmarks/cpu/matmul/validate.tsv", "s\th:m:s\n120.0\t0:02:00\n")
    write(tmp_path / "benchmarks/h200/matmul/validate.tsv", "s\th:m:s\n10.0\t0:00:10\n")
    lines.emit(record(LogEvent.RUN_INFO, stats={"validate": 4, "total": 4}))
    assert lines._rest() == pytest.approx(2 * 10 + 2 * 120 / 4)


def test_what_is_wrong_is_told_and_nothing_is_before_the_run_begins(lines, tmp_path, capsys):
    write(tmp_path / "measured/cpu/matmul/validate.json", {"status": "wrong", "reason": "y[0]: 1 for 2\nmore"})
    lines.emit(record(LogEvent.RUN_INFO, stats={"validate": 1, "total": 1}))
    job(lines, 1, "validate", kernel="matmul", gpu="cpu")
    assert capsys.readouterr().err == "", "a dry run"
    lines.emit(record(LogEvent.RUN_INFO, stats={"validate": 1, "total": 1}))
    lines.take_over()
    job(lines, 1, "validate", kernel="matmul", gpu="cpu")
    assert "· WRONG: y[0]: 1 for 2 ·" in capsys.readouterr().err


@pytest.mark.parametrize(("seconds", "words"), [(41, "41 s"), (1320, "22 min"), (11100, "3 h 5 min")])
def test_times_are_told_as_people_do(seconds, words):
    assert progress.in_words(seconds) == words
