"""A PostgreSQL of Debian's package on this host alone, with a password, and MLflow's server before it.

It refuses to run as root; then it runs as ``postgres``.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from atlas import ROOT

USER, PASSWORD = "atlas", secrets.token_hex(8)
_TIMEOUT_SECONDS = 120


def programs() -> Path | None:
    """The folder of PostgreSQL's programs, the newest there is; None where there is none."""
    beside = shutil.which("initdb")
    if beside:
        return Path(beside).resolve().parent
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: float(path.parts[4]))
    return found[-1].parent if found else None


def free_port() -> int:
    """A port of 127.0.0.1 that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Postgres:
    """A running PostgreSQL; as a context manager it starts and stops."""

    def __init__(self) -> None:
        self.port = free_port()
        self._folder = Path(tempfile.mkdtemp(prefix="atlas-postgres-"))
        self._as = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"] if os.geteuid() == 0 else []

    def __enter__(self) -> Postgres:
        password = self._folder / "password"
        password.write_text(PASSWORD)
        if self._as:
            for path in (self._folder, password):
                shutil.chown(path, "postgres", "postgres")
        self._run("initdb", "-D", "data", "-U", USER, "-A", "scram-sha-256", "--pwfile", "password")
        listening = f"-p {self.port} -c listen_addresses=127.0.0.1 -c unix_socket_directories=''"
        self._run("pg_ctl", "-D", "data", "-o", listening, "-l", "log", "-w", "start")
        return self

    def __exit__(self, *_: object) -> None:
        self._run("pg_ctl", "-D", "data", "-m", "immediate", "-w", "stop")
        shutil.rmtree(self._folder, ignore_errors=True)

    def database(self, name: str) -> str:
        """Make a database; returns its URI."""
        environment = os.environ | {"PGPASSWORD": PASSWORD}
        words = [str(programs() / "createdb"), "-h", "127.0.0.1", "-p", str(self.port), "-U", USER, name]
        subprocess.run(words, env=environment, check=True)
        return f"postgresql://{USER}:{PASSWORD}@127.0.0.1:{self.port}/{name}"

    def _run(self, program: str, *words: str) -> None:
        command = [*self._as, str(programs() / program), *words]
        done = subprocess.run(command, cwd=self._folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        assert done.returncode == 0, done.stderr


def environment(**more: str) -> dict[str, str]:
    """What a command of this checkout needs, without this process's own MLflow and tests' variables."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("MLFLOW_", "PYTEST_"))}
    path = os.pathsep.join([str(ROOT / "workflow"), str(ROOT), os.environ.get("PYTHONPATH", "")])
    return kept | {"PYTHONPATH": path} | more


@contextlib.contextmanager
def served(uri: str, folder: Path, *words: str, port: int | None = None, **more: str) -> Iterator[str]:
    """``atlas server`` on a database; yields its address."""
    port = port or free_port()
    command = [sys.executable, "-m", "atlas", "server", "--folder", str(folder), "--port", str(port), *words]
    variables = environment(MLFLOW_BACKEND_STORE_URI=uri, **more)
    with (folder.parent / "server.log").open("a") as log:
        running = subprocess.Popen(command, env=variables, stdout=log, stderr=log, start_new_session=True)
    try:
        _wait(f"http://127.0.0.1:{port}/health", running, folder.parent / "server.log")
        yield f"http://127.0.0.1:{port}"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(running.pid, 9)
        running.wait()


def _wait(url: str, running: subprocess.Popen[bytes], log: Path) -> None:
    for _ in range(4 * _TIMEOUT_SECONDS):
        assert running.poll() is None, log.read_text()[-3000:]
        with contextlib.suppress(urllib.error.URLError, OSError):
            urllib.request.urlopen(url, timeout=5)
            return
        time.sleep(0.25)
    raise AssertionError(f"no server after {_TIMEOUT_SECONDS} s: {log.read_text()[-3000:]}")
