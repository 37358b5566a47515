"""MLflow for a team: writers at once, killed, cut off, on a real PostgreSQL.  ``make test-server`` runs it.

Every test ends alike: each tree is there once and whole, with all its trials, and nothing else is.
"""

import base64
import collections
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from atlas import ROOT, catalog

from tests.tracking import sample_documents as sample

from .postgres import PASSWORD, Postgres, environment, programs, served

pytest.importorskip("psycopg2", reason="pip install -c constraints.txt '.[server]'")
pytest.importorskip("flask_wtf", reason="pip install -c constraints.txt '.[server]'")
if programs() is None:
    pytest.skip("no PostgreSQL: apt-get install postgresql", allow_module_level=True)

pytestmark = [pytest.mark.server, pytest.mark.timeout(1800)]

EXPERIMENT = "team"
SECRET = "correct-horse-battery"


@pytest.fixture(scope="module")
def postgres():
    """A PostgreSQL of this module's own."""
    with Postgres() as running:
        yield running


@pytest.fixture
def uri(postgres, request):
    """A fresh database."""
    return postgres.database(f"db{abs(hash(request.node.name))}")


def trials(kernel: str, many: int) -> dict:
    """A search with so many trials of the headline case."""
    document = sample.autotune(kernel, "h200")
    made = []
    for index in range(many):
        median = 100.0 + (7919 * index) % many
        config = {"BLOCK": 512 << index % 4, "GROUP": 8, "num_warps": 2 << index % 3, "num_stages": index}
        trial = {"direction": "forward", "dtype": "bf16", "sizes": sample.SIZES[-1], "variant": "blocks"}
        trial |= {"config": config, "status": "ok", "reason": "", "median_us": median, "rung": 1, "samples": 20}
        made.append(trial | {"q1_us": 0.99 * median, "q3_us": 1.01 * median, "at_seconds": 0.5 * index})
    return document | {"trials": made}


def results(folder: Path, kernels: int, many: int) -> Path:
    """Documents of so many kernels on one GPU, with so many trials each."""
    for kernel in catalog.names()[:kernels]:
        for document in (trials(kernel, many), sample.benchmark(kernel, "h200"), sample.validate(kernel, "h200")):
            sample.put(folder, document)
    return folder


def writer(folder: Path, store: str, **more: str) -> subprocess.Popen:
    """``atlas track``, started: every trial becomes a run."""
    command = [sys.executable, "-m", "atlas", "track", "--results", str(folder), "--experiment", EXPERIMENT]
    variables = environment(MLFLOW_TRACKING_URI=store, **more)
    return subprocess.Popen(
        [*command, "--trial-runs", "100000"],
        env=variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def ended(process: subprocess.Popen, status: int = 0) -> str:
    """What a writer said; it must have ended so."""
    said, _ = process.communicate(timeout=900)
    assert process.returncode == status, said
    assert PASSWORD not in said and SECRET not in said
    return said


def rows(uri: str, sql: str) -> list[tuple]:
    """What a database answers."""
    import psycopg2

    connection = psycopg2.connect(uri)
    try:
        with connection.cursor() as cursor:
            cursor.execute(sql)
            return cursor.fetchall()
    finally:
        connection.close()


def written(uri: str) -> int:
    """How many runs there are; none where there is no table yet."""
    if not rows(uri, "SELECT 1 FROM information_schema.tables WHERE table_name = 'runs'"):
        return 0
    return rows(uri, "SELECT count(*) FROM runs")[0][0]


def check(uri: str, kernels: int, many: int) -> None:
    """Nothing lost, nothing double: every tree once and whole, each trial of each kernel once, and no other run."""
    active = "FROM runs r JOIN tags t USING (run_uuid) WHERE r.lifecycle_stage = 'active' AND r.status <> 'RUNNING'"
    names = catalog.names()[:kernels]
    roots = rows(uri, f"SELECT t.value {active} AND t.key = 'atlas.key'")
    assert sorted(key for (key,) in roots) == [f"{name}/h200" for name in names]
    assert len(rows(uri, f"SELECT 1 {active} AND t.key = 'atlas.digest'")) == kernels
    parents = "JOIN tags p ON p.run_uuid = r.run_uuid AND p.key = 'mlflow.parentRunId'"
    parents += " JOIN runs up ON up.run_uuid = p.value AND up.lifecycle_stage = 'active'"
    ranked = rows(
        uri,
        "SELECT k.value, n.value FROM runs r JOIN tags k ON k.run_uuid = r.run_uuid AND k.key = 'kernel'"
        " JOIN tags n ON n.run_uuid = r.run_uuid AND n.key = 'rank'"
        " JOIN tags l ON l.run_uuid = r.run_uuid AND l.key = 'level' AND l.value = 'trial'"
        f" {parents} WHERE r.lifecycle_stage = 'active' AND r.status = 'FINISHED'",
    )
    assert collections.Counter(ranked) == {(name, str(rank)): 1 for name in names for rank in range(1, many + 1)}
    of_a_tree = 1 + 3 + many + len(sample.PEERS) + 2  # root, stages, trials, peers, the variant tuned and not
    levels = collections.Counter(level for (level,) in rows(uri, f"SELECT t.value {active} AND t.key = 'level'"))
    if "matmul" not in names:
        assert sum(levels.values()) == kernels * of_a_tree, levels
    assert rows(uri, "SELECT count(*) FROM runs WHERE lifecycle_stage = 'active'")[0][0] == sum(levels.values())
    assert rows(uri, f"SELECT count(*) FROM experiments WHERE name = '{EXPERIMENT}'")[0][0] == 1


def test_ten_thousand_trials_of_two_writers_at_once_on_the_same_documents(uri, tmp_path):
    first = results(tmp_path / "first", 20, 500)
    second = shutil.copytree(first, tmp_path / "second")
    began = time.monotonic()
    both = [writer(folder, uri, MLFLOW_ARTIFACTS_DESTINATION=str(tmp_path / "artifacts")) for folder in (first, second)]
    said = [ended(process) for process in both]
    print(f"\n10,000 trials from two writers into PostgreSQL: {time.monotonic() - began:.1f} s", *said, sep="\n")
    check(uri, 20, 500)


def test_writers_killed_in_mid_write_over_and_over_and_then_repeated(uri, tmp_path):
    folder = results(tmp_path / "results", 6, 300)
    artifacts = {"MLFLOW_ARTIFACTS_DESTINATION": str(tmp_path / "artifacts")}
    for attempt in range(3):
        before, running = written(uri), writer(folder, uri, **artifacts)
        while written(uri) == before and running.poll() is None:
            time.sleep(0.02)
        time.sleep(0.1 * attempt)
        os.killpg(running.pid, signal.SIGKILL)
        running.communicate()
        print(f"killed with {written(uri)} runs there")
    ended(writer(folder, uri, **artifacts))
    check(uri, 6, 300)
    assert "6 unchanged" in ended(writer(folder, uri, **artifacts))


def test_two_writers_through_the_server_and_one_beside_it(uri, tmp_path):
    folders = [results(tmp_path / str(number), 4, 12) for number in range(3)]
    artifacts = str(tmp_path / "artifacts")
    with served(uri, tmp_path / "server", MLFLOW_ARTIFACTS_DESTINATION=artifacts) as address:
        three = [writer(folder, address) for folder in folders[:2]]
        three.append(writer(folders[2], uri, MLFLOW_ARTIFACTS_DESTINATION=artifacts))
        print("", *(ended(process) for process in three), sep="\n")
        check(uri, 4, 12)
        downloads = [name for (name,) in rows(uri, "SELECT artifact_uri FROM runs WHERE lifecycle_stage = 'active'")]
        kept = [Path(artifacts, name.removeprefix("mlflow-artifacts:/")) for name in downloads]
        assert sum((path / "autotune.json").exists() for path in kept) == 4


def test_a_writer_through_the_server_is_killed_and_repeated(uri, tmp_path):
    folder = results(tmp_path / "results", 3, 20)
    with served(uri, tmp_path / "server") as address:
        for more in (3, 15):
            before, running = written(uri), writer(folder, address)
            while written(uri) < before + more and running.poll() is None:
                time.sleep(0.05)
            os.killpg(running.pid, signal.SIGKILL)
            running.communicate()
            print(f"killed with {written(uri)} runs there")
        ended(writer(folder, address))
        check(uri, 3, 20)
        assert "3 unchanged" in ended(writer(folder, address))


def test_a_server_that_goes_in_mid_write_is_told_and_caught_up_with(uri, tmp_path):
    folder = results(tmp_path / "results", 3, 20)
    with served(uri, tmp_path / "server") as address:
        port = int(address.rpartition(":")[2])
        running = writer(folder, address)
        while written(uri) < 10:
            time.sleep(0.05)
    began = time.monotonic()
    assert "cannot be used" in ended(running, 2)
    print(f"told {time.monotonic() - began:.0f} s after the server went")
    with served(uri, tmp_path / "server", port=port):
        ended(writer(folder, address))
    check(uri, 3, 20)


def test_what_was_tracked_into_sqlite_comes_over_from_the_documents(uri, tmp_path):
    folder = results(tmp_path / "results", 3, 20)
    before = f"sqlite:///{tmp_path / 'old' / 'mlflow.db'}"
    (tmp_path / "old").mkdir()
    subprocess.run([sys.executable, "-m", "mlflow", "db", "upgrade", before], env=environment(), check=True)
    ended(writer(folder, before))
    ended(writer(folder, uri, MLFLOW_ARTIFACTS_DESTINATION=str(tmp_path / "artifacts")))
    check(uri, 3, 20)
    assert contents(before) == contents(uri)


def contents(store: str) -> list:
    """All that a store has of its runs, less ids, places and times of writing."""
    code = (
        "import json, sys\nfrom mlflow import MlflowClient\nclient = MlflowClient(sys.argv[1])\n"
        f"number = client.get_experiment_by_name({EXPERIMENT!r}).experiment_id\n"
        "found = []\n"
        "for run in client.search_runs([number], max_results=5000):\n"
        "    tags = {k: v for k, v in run.data.tags.items() if k not in ('atlas.written', 'mlflow.parentRunId')}\n"
        "    found.append([run.info.run_name, run.info.status, run.info.start_time, run.info.end_time, tags,\n"
        "                  run.data.params, run.data.metrics])\n"
        "print(json.dumps(sorted(found, key=json.dumps)))"
    )
    done = subprocess.run([sys.executable, "-c", code, store], env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def asked(address: str, user: str = "", host: str = "", origin: str = "") -> int:
    """The status of a request to search experiments; a POST, as from a browser, where there is an origin."""
    headers = {"Authorization": "Basic " + base64.b64encode(user.encode()).decode()} if user else {}
    headers |= {"Host": host} if host else {}
    path = f"{address}/api/2.0/mlflow/experiments/search"
    if origin:
        headers |= {"Origin": origin, "Content-Type": "application/json"}
        request = urllib.request.Request(path, b'{"max_results": 1}', headers)
    else:
        request = urllib.request.Request(f"{path}?max_results=1", headers=headers)
    try:
        return urllib.request.urlopen(request, timeout=60).status
    except urllib.error.HTTPError as error:
        return error.code


def test_passwords_names_and_secrets(uri, tmp_path):
    folder = results(tmp_path / "results", 1, 3)
    names = ("--allowed-hosts", "atlas.example:5000,127.0.0.1:*")
    with served(uri, tmp_path / "server", *names, MLFLOW_AUTH_ADMIN_PASSWORD=SECRET) as address:
        assert [asked(address), asked(address, "admin:wrong"), asked(address, f"admin:{SECRET}")] == [401, 401, 200]
        known, other = {"host": "atlas.example:5000"}, {"host": "evil.example"}
        assert asked(address, f"admin:{SECRET}", **known) == 200
        assert asked(address, f"admin:{SECRET}", **other) == 403
        assert asked(address, f"admin:{SECRET}", origin="http://atlas.example:5000", **known) == 200
        assert asked(address, f"admin:{SECRET}", origin="http://evil.example", **known) == 403
        lines = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()]
        assert not any(SECRET.encode() in line or PASSWORD.encode() in line for line in lines)
        assert "401" in ended(writer(folder, address), 2)
        member = ("MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD")
        ended(writer(folder, address, **dict(zip(member, ("admin", SECRET), strict=True))))
        register(address, "bob", "another-long-password")
        sample.put(folder, sample.validate(catalog.names()[0], "h200", status="wrong", reason="row 3: nan"))
        said = ended(writer(folder, address, **dict(zip(member, ("bob", "another-long-password"), strict=True))))
        assert "1 replaced" in said, "another's runs can be replaced by whoever has a password"
    check(uri, 1, 3)
    for path in (tmp_path / "server").rglob("*"):
        assert path.is_dir() or not {SECRET.encode(), PASSWORD.encode()} & set(path.read_bytes().split()), path
        assert path.stat().st_mode & 0o077 == 0 or path.is_symlink(), f"{path} can be read by others"
    log = (tmp_path / "server.log").read_text()
    assert SECRET not in log and PASSWORD not in log
    with served(uri, tmp_path / "server", *names) as address:
        assert asked(address) == 401, "once there are users, a start without the password asks for one, too"


def register(address: str, user: str, password: str) -> None:
    """Make a user, as the form at /signup does."""
    code = "import sys\nfrom mlflow.server.auth.client import AuthServiceClient\n"
    code += "AuthServiceClient(sys.argv[1]).create_user(sys.argv[2], sys.argv[3])"
    variables = environment(MLFLOW_TRACKING_USERNAME="admin", MLFLOW_TRACKING_PASSWORD=SECRET)
    subprocess.run([sys.executable, "-c", code, address, user, password], env=variables, check=True, cwd=ROOT)
