"""Results folders with sample documents, and a database that is made once for all tests."""

import json
import shutil
from pathlib import Path

import once
import pytest
import sample_documents as sample
from atlas import cli
from atlas.results import collection
from atlas.tracking import store as stores


@pytest.fixture(autouse=True)
def kernels_of_today(monkeypatch):
    """The sample's kernels need not exist: their identities are today's."""
    monkeypatch.setattr(collection, "_today", lambda kernel: sample.IDENTITIES)
    monkeypatch.delenv(stores.VARIABLE, raising=False)


class Tracked:
    """A results folder, tracked into its own database, in the experiment ``kernels``."""

    def __init__(self, results: Path, database: Path):
        self.results = results
        (results / "mlflow").mkdir(parents=True)
        shutil.copy(database, results / "mlflow" / "mlflow.db")

    def track(self, *options: str) -> dict:
        """Run ``atlas track``; returns its summary."""
        assert cli.main(["track", "--results", str(self.results), "--experiment", "kernels", *options]) == 0
        return self.summary()

    def summary(self) -> dict:
        return json.loads((self.results / "mlflow" / "tracked.json").read_text())

    @property
    def client(self):
        from mlflow import MlflowClient

        return MlflowClient(stores.store_of(self.results).uri)

    def experiment(self):
        return self.client.get_experiment_by_name("kernels")

    def runs(self, query: str = "") -> list:
        """The runs that a filter finds."""
        return list(self.client.search_runs([self.experiment().experiment_id], query, max_results=5000))

    def run(self, name: str):
        """The one run of a name."""
        (found,) = self.runs(f"attributes.run_name = '{name}'")
        return found


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory):
    """A database with its tables, which takes seconds to make."""
    stores.quiet()
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv(stores.VARIABLE, raising=False)  # whoever runs the tests may have a server
        return stores.store_of(once.made(tmp_path_factory, "empty", _empty)).database


def _empty(folder):
    from atlas.tracking.writer import put

    put(stores.store_of(folder), "empty", [])


@pytest.fixture(scope="session")
def atlas(tmp_path_factory, empty_database):
    """Two kernels measured on the H200, one of them recorded on the H100 and interpreted: tracked once, to be read."""
    results = tmp_path_factory.mktemp("atlas") / "results"
    sample.put_gpu(results, "h200", ("softmax", "matmul"))
    sample.put_gpu(results, "h100", ("softmax",), "recorded")
    sample.put_interpreted(results, ("softmax",))
    sample.put(results, sample.build("softmax", "t4"))
    failed = {"protocol": "timing/1", "rows": [], "status": "failed", "reason": "RuntimeError: no memory"}
    sample.put(results, sample.envelope("benchmark", "softmax", "a100") | failed)
    listing = results / "measured" / "h200" / "softmax" / "listings" / "blocks.ptx"
    listing.parent.mkdir()
    listing.write_text(".version 8.5\n")
    (results / "figures").mkdir()
    (results / "figures" / "throughput-softmax.svg").write_text("<svg/>")
    (results / "figures" / "throughput-matmul_softmax.svg").write_text("<svg/>")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(collection, "_today", lambda kernel: sample.IDENTITIES)
        patch.delenv(stores.VARIABLE, raising=False)
        tracked = Tracked(results, empty_database)
        tracked.track("--trial-runs", "3")
    return tracked


@pytest.fixture
def small(tmp_path, empty_database):
    """One kernel on two GPUs, not tracked yet: three trees with the one survey, to be changed by a test."""
    results = tmp_path / "results"
    sample.put_gpu(results, "h200", ("softmax",))
    for stage in (sample.validate, sample.benchmark):
        sample.put(results, stage("softmax", "t4"))
    return Tracked(results, empty_database)
