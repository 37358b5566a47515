"""Where runs go: errors name the server without its password, and the interface's port."""

import contextlib
import socket
import sqlite3
import subprocess
import sys

import pytest
import sample_documents as sample
from atlas import cli
from atlas.errors import AtlasError
from atlas.stages import ui
from atlas.tracking import served
from atlas.tracking import store as stores


@pytest.fixture
def taken_port():
    """A port that is bound and listened on."""
    with socket.socket() as server:
        server.bind((ui.HOST, 0))
        server.listen()
        yield server.getsockname()[1]


def test_a_server_that_does_not_answer_is_named_without_its_password(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv(stores.VARIABLE, "http://somebody:secret@127.0.0.1:9")  # the discard port: nothing listens
    sample.put(tmp_path, sample.validate("softmax", "h200"))
    assert cli.main(["track", "--results", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert "http://127.0.0.1:9" in error and "nothing answers there" in error and stores.VARIABLE in error
    assert "secret" not in error and "somebody" not in error
    assert len(error.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("uri", "shown"),
    [
        ("http://me:secret@host:5000/path", "http://host:5000/path"),
        ("postgresql+psycopg2://me:secret@host/db", "postgresql+psycopg2://host/db"),
        ("https://host/path?token=secret", "https://host/path"),
        ("sqlite:////home/x/mlflow.db", "sqlite:////home/x/mlflow.db"),
    ],
)
def test_credentials_are_taken_out_of_what_is_shown(uri, shown):
    assert stores.redact(uri) == shown
    assert stores.redact(f"cannot reach {uri} now") == f"cannot reach {shown} now"


def test_an_sqlite_uri_gets_its_artifacts_beside_it_not_in_the_working_folder(tmp_path, monkeypatch):
    monkeypatch.setenv(stores.VARIABLE, f"sqlite:///{tmp_path}/team.db")
    assert stores.store_of(tmp_path / "results").artifacts == (tmp_path / "artifacts").as_uri()


def test_a_taken_port_is_named_with_a_free_one(taken_port, tmp_path, capsys):
    (tmp_path / "mlflow").mkdir()
    (tmp_path / "mlflow" / "mlflow.db").touch()
    assert cli.main(["ui", "--results", str(tmp_path), "--port", str(taken_port)]) == 2
    error = capsys.readouterr().err
    assert f"port {taken_port} on 127.0.0.1 is in use" in error
    free = int(error.split("port ")[2].split(" is free")[0])
    assert free != taken_port and f"make ui PORT={free}" in error


def test_the_interface_needs_something_tracked(tmp_path, capsys):
    assert cli.main(["ui", "--results", str(tmp_path)]) == 2
    assert "nothing is tracked yet; run" in capsys.readouterr().err


def test_a_server_has_its_own_interface(tmp_path, monkeypatch):
    monkeypatch.setenv(stores.VARIABLE, "https://me:secret@tracking.example")
    with pytest.raises(AtlasError, match=r"open https://tracking\.example$"):
        ui.command(stores.store_of(tmp_path), 5000)


def test_a_teams_database_is_served_by_make_server_which_names_it_to_no_other_process(tmp_path, monkeypatch):
    monkeypatch.setenv(stores.VARIABLE, "postgresql://me:secret@db/atlas")
    with pytest.raises(AtlasError, match="run `make server`"):
        ui.command(stores.store_of(tmp_path), 5000)
    environment = {served.DATABASE_VARIABLE: "postgresql://me:secret@db/atlas", served.PASSWORD_VARIABLE: "hidden"}
    words, _ = served.command(served.Place(tmp_path), environment)
    assert "basic-auth" in words and not any("secret" in word or "hidden" in word for word in words)


@pytest.mark.parametrize(
    ("host", "names", "environment", "said"),
    [
        ("0.0.0.0", ("atlas.example:5000",), {}, "MLFLOW_AUTH_ADMIN_PASSWORD"),
        ("10.0.0.7", (), {served.PASSWORD_VARIABLE: "hidden"}, "--allowed-hosts"),
        ("atlas.example", (), {}, "MLFLOW_AUTH_ADMIN_PASSWORD"),
    ],
)
def test_a_server_for_others_asks_for_passwords_and_knows_its_names(tmp_path, host, names, environment, said):
    with pytest.raises(AtlasError, match=said):
        served.check(served.Place(tmp_path, host, 5000, names), environment)


def test_a_server_is_for_this_host_alone_unless_told_otherwise(tmp_path, monkeypatch, capsys):
    place = served.Place(tmp_path)
    served.check(place, {})
    words, added = served.command(place, {})
    assert words[words.index("--host") + 1] == "127.0.0.1" and "basic-auth" not in words
    assert added[stores.ARTIFACTS_VARIABLE] == str(tmp_path / "artifacts"), "no folder in the working one"
    monkeypatch.delenv(served.DATABASE_VARIABLE, raising=False)
    assert cli.main(["server", "--folder", str(tmp_path)]) == 2
    assert "MLFLOW_BACKEND_STORE_URI is not set; name the database" in capsys.readouterr().err


def test_the_interface_is_for_this_host_alone(tmp_path):
    (tmp_path / "mlflow").mkdir()
    (tmp_path / "mlflow" / "mlflow.db").touch()
    store = stores.store_of(tmp_path)
    command = ui.command(store, 0)
    assert command[command.index("--host") + 1] == "127.0.0.1"
    assert command[command.index("--default-artifact-root") + 1] == store.artifacts, "no folder in the working one"


def test_two_at_once_wait_for_each_other(tmp_path):
    store = stores.store_of(tmp_path)
    probe = (
        "import fcntl, sys\n"
        "try: fcntl.flock(open(sys.argv[1], 'w'), fcntl.LOCK_EX | fcntl.LOCK_NB)\n"
        "except BlockingIOError: print('waits')"
    )
    with stores.writing(store):
        other = subprocess.run(
            [sys.executable, "-c", probe, str(store.folder / ".lock")], capture_output=True, text=True
        )
    assert other.stdout == "waits\n"


@pytest.fixture
def limited():
    """Lets no file of this process become larger: a disk that is full, to whoever writes."""
    resource = pytest.importorskip("resource")

    @contextlib.contextmanager
    def limit(most):
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, before[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)

    return limit


def sentences(said):
    """The command's own lines of stderr; in a process that made a database before, MLflow logs to it as well."""
    return [line for line in said.splitlines() if line.startswith("atlas ")]


@pytest.mark.parametrize("most", [20_000, 200_000])
def test_a_disk_that_fills_while_the_database_is_made_is_a_sentence_and_the_next_run_makes_it(
    small, limited, capfd, most
):
    (small.results / "mlflow" / "mlflow.db").unlink()
    with limited(most):
        assert cli.main(["track", "--results", str(small.results), "--experiment", "kernels"]) == 2
    (said,) = sentences(capfd.readouterr().err)
    assert said.startswith("atlas track: MLflow at sqlite:")
    assert "free space there, or raise the quota, and run again" in said
    assert not list((small.results / "mlflow").glob("mlflow.db*")), "no half of a database is left"
    assert len(small.track()["added"]) == 3


def test_a_disk_that_fills_while_runs_are_written_is_a_sentence_and_the_next_run_writes_them(small, limited, capfd):
    size = (small.results / "mlflow" / "mlflow.db").stat().st_size
    with limited(size + 16_384):
        assert cli.main(["track", "--results", str(small.results), "--experiment", "kernels"]) == 2
    (said,) = sentences(capfd.readouterr().err)
    assert "free space there, or raise the quota, and run again" in said
    done = small.track()
    assert len(done["added"]) + len(done["replaced"]) + done["unchanged"] == 3
    assert len(small.runs("tags.`atlas.digest` LIKE '%'")) == 3


def test_a_database_whose_making_an_older_release_left_half_done_is_made_again(small):
    database = small.results / "mlflow" / "mlflow.db"
    with contextlib.closing(sqlite3.connect(database)) as connection:
        connection.execute(
            "UPDATE alembic_version SET version_num = '451aebb31d03'"
        )  # the first, with all tables there
        connection.commit()
    assert len(small.track()["added"]) == 3
