"""Benchmarks are read back out of MLflow, to be compared."""

import pytest
from atlas import cli
from atlas.errors import AtlasError
from atlas.tracking import fetched


def test_a_kernels_run_has_its_benchmark_below_it(atlas):
    run = next(run for run in atlas.runs() if (run.data.tags["level"], run.data.tags["gpu"]) == ("kernel", "h200"))
    (found,) = fetched.benchmarks(run.info.run_id, atlas.results)
    assert found.document["stage"] == "benchmark" and found.kernel == run.data.tags["kernel"]
    uri = fetched.store_of(atlas.results).uri
    assert fetched.benchmarks(f"{uri}/{run.info.run_id}", atlas.results)[0].document == found.document


def test_a_run_without_a_benchmark_says_so(atlas):
    run = next(run for run in atlas.runs() if run.data.tags.get("level") == "survey")
    with pytest.raises(AtlasError, match=r"no benchmark\.json on this run"):
        fetched.benchmarks(run.info.run_id, atlas.results)


def test_a_run_that_there_is_none_of_is_a_mistake_told_in_a_sentence(atlas, capsys):
    words = ["mlflow:0123456789abcdef0123456789abcdef"] * 2
    assert cli.main(["compare", *words, "--results", str(atlas.results)]) == 2
    assert "cannot be used" in capsys.readouterr().err


def test_without_a_database_nothing_is_made(tmp_path):
    with pytest.raises(AtlasError, match="run python -m atlas track"):
        fetched.benchmarks("0123", tmp_path)
    assert not (tmp_path / "mlflow").exists()


def test_a_runs_documents_are_pulled_as_a_record(atlas, tmp_path, capsys):
    run = next(run for run in atlas.runs() if (run.data.tags["level"], run.data.tags["gpu"]) == ("kernel", "h200"))
    source = f"mlflow:{fetched.store_of(atlas.results).uri}/{run.info.run_id}"
    assert cli.main(["record", "pull", source, "--results", str(tmp_path)]) == 0
    folder = tmp_path / "recorded" / "h200" / run.data.tags["kernel"]
    stages = ("build", "validate", "autotune", "benchmark")
    assert {path.name for path in folder.iterdir()} == {f"{stage}.json.xz" for stage in stages}
    capsys.readouterr()
    assert cli.main(["record", "pull", "mlflow:0123", "--results", str(tmp_path / "empty")]) == 2
    assert "run python -m atlas track" in capsys.readouterr().err
