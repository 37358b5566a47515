"""A SLURM of Debian's packages on this host alone: a controller, and a slurmd for each node of the simulated cluster.

``python tests/slurm/cluster.py FOLDER`` starts one, says what to export, and stops it at Ctrl-C.  It needs slurmctld,
slurmd and munged (``apt-get install slurm-wlm munge``), no other SLURM, and no rights beyond the user's own.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

DAEMONS = ("munged", "slurmctld", "slurmd", "sbatch")
_TIMEOUT_SECONDS = 60


@dataclass(frozen=True)
class Node:
    """A simulated node; ``model`` is the type of its one GPU, empty for a CPU node."""

    name: str
    partition: str
    model: str = ""
    cpus: int = 4


CPU_AND_A100 = (Node("c1", "cpu"), Node("g1", "a100", "a100"))
"""Two nodes, a partition each; the first is the default."""


def missing() -> list[str]:
    """The programs of SLURM that this host lacks."""
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])
    return [name for name in DAEMONS if shutil.which(name, path=path) is None]


@dataclass
class Cluster:
    """A running SLURM; as a context manager it starts and stops."""

    folder: Path
    nodes: Sequence[Node] = CPU_AND_A100
    _daemons: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict, init=False)

    @property
    def environment(self) -> Mapping[str, str]:
        """What a process of the cluster needs in its environment."""
        path = os.pathsep.join([str(self.folder / "bin"), os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])
        return {"SLURM_CONF": str(self.folder / "slurm.conf"), "PATH": path}

    def __enter__(self) -> Cluster:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start all daemons and wait until every node is idle; RuntimeError where that takes a minute."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.folder.chmod(0o755)
        for name in ("bin", "state", *(f"spool.{node.name}" for node in self.nodes)):
            (self.folder / name).mkdir(exist_ok=True)
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        self._configure()
        of_munge = [f"--{kind}-file={self.folder}/munge.{kind}" for kind in ("key", "pid", "log", "seed")]
        self._spawn("munged", "munged", "--foreground", "--force", f"--socket={self.folder}/munge.socket", *of_munge)
        wait_until((self.folder / "munge.socket").exists, "munged gave no socket")
        self.start_controller()
        for node in self.nodes:
            self.start_node(node.name)

    def stop(self) -> None:
        """End all jobs and daemons."""
        for node in self.nodes:
            self.kill_node(node.name)
        for name in reversed([*self._daemons]):
            self._end(name, signal.SIGKILL)

    def start_controller(self) -> None:
        """Start slurmctld, with the state of an earlier one."""
        self._spawn("slurmctld", "slurmctld", "-D")
        wait_until(lambda: self.said("scontrol", "ping").find("UP") >= 0, "slurmctld does not answer")

    def kill_controller(self) -> None:
        """Kill slurmctld outright; jobs that run do not notice."""
        self._end("slurmctld", signal.SIGKILL)

    def start_node(self, name: str) -> None:
        """Start a node's slurmd, as after a reboot, and wait until jobs can be placed on it."""
        self._spawn(name, "slurmd", "-D", "-N", name)
        wait_until(lambda: self.state(name) in ("idle", "mixed", "allocated"), f"node {name} does not come up")

    def kill_node(self, name: str) -> None:
        """Cut a node's power: slurmd and all processes of its jobs are gone at once."""
        self._end(name, signal.SIGKILL)
        spool = self.folder / f"spool.{name}"
        jobs = {path.name.removeprefix(f"{name}_").partition(".")[0] for path in spool.glob(f"{name}_*.*")}
        for pid in _processes(f"SLURM_CONF={self.folder}/slurm.conf"):
            if _is_of(pid, name, jobs):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def state(self, name: str) -> str:
        """A node's state in SLURM's words, such as ``idle`` or ``down``."""
        return self.said("sinfo", "-h", "-n", name, "-o", "%T").strip().rstrip("*~#!%$@^-")

    def said(self, *words: str) -> str:
        """What a command of SLURM prints; ``""`` where it fails."""
        environment = {**os.environ, **self.environment}
        return subprocess.run(words, env=environment, capture_output=True, text=True, check=False).stdout

    def jobs(self) -> list[dict[str, str]]:
        """The jobs that SLURM knows of, each with what ``squeue`` says of it."""
        names = ("id", "state", "node", "partition", "gpus", "begin", "end", "comment")
        lines = self.said("squeue", "-h", "-t", "all", "-o", "%i|%T|%N|%P|%b|%S|%e|%k").splitlines()
        return [dict(zip(names, line.split("|", len(names) - 1), strict=True)) for line in lines]

    def _configure(self) -> None:
        ports = _free_ports(1 + len(self.nodes))
        user, host = getpass.getuser(), socket.gethostname()
        lines = [
            "ClusterName=atlas",
            f"SlurmctldHost={host}(127.0.0.1)",
            f"SlurmctldPort={ports[0]}",
            "AuthType=auth/munge",
            "CredType=cred/munge",
            f"AuthInfo=socket={self.folder}/munge.socket",
            f"SlurmUser={user}",
            f"SlurmdUser={user}",
            f"StateSaveLocation={self.folder}/state",
            f"SlurmdSpoolDir={self.folder}/spool.%n",
            f"SlurmctldPidFile={self.folder}/slurmctld.pid",
            f"SlurmdPidFile={self.folder}/slurmd.%n.pid",
            f"SlurmctldLogFile={self.folder}/slurmctld.log",
            f"SlurmdLogFile={self.folder}/slurmd.%n.log",
            "ProctrackType=proctrack/linuxproc",
            "TaskPlugin=task/none",
            "MpiDefault=none",
            "SelectType=select/cons_tres",
            "SelectTypeParameters=CR_CPU_Memory",
            "SlurmdParameters=config_overrides",  # the host has fewer cores than its nodes together
            "SchedulerParameters=sched_interval=2,sched_min_interval=200000,bf_interval=5",
            "ReturnToService=2",
            "SlurmdTimeout=10",  # seconds until a node that is gone is down
            "KillWait=3",
            "MinJobAge=7200",  # or squeue forgets a job before Snakemake, or a test, asks for it
            "GresTypes=gpu",
            "AccountingStorageType=accounting_storage/none",
            "JobAcctGatherType=jobacct_gather/none",
        ]
        gres = []
        for node, port in zip(self.nodes, ports[1:], strict=True):
            gpu = f" Gres=gpu:{node.model}:1" if node.model else ""
            lines.append(
                f"NodeName={node.name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs={node.cpus}"
                f" RealMemory=64000{gpu}"
            )
            if node.model:
                gres.append(f"NodeName={node.name} Name=gpu Type={node.model} File=/dev/null")
        partitions = dict.fromkeys(node.partition for node in self.nodes)
        for number, partition in enumerate(partitions):
            names = ",".join(node.name for node in self.nodes if node.partition == partition)
            default = "YES" if number == 0 else "NO"
            lines.append(f"PartitionName={partition} Nodes={names} Default={default} MaxTime=INFINITE State=UP")
        (self.folder / "slurm.conf").write_text("\n".join(lines) + "\n")
        (self.folder / "gres.conf").write_text("\n".join(gres) + "\n")
        # snakemake-executor-plugin-slurm-jobstep 0.6.1 hides SLURM_CONF from srun, as if it were a job's own variable.
        srun = self.folder / "bin" / "srun"
        srun.write_text(f'#!/bin/sh\nSLURM_CONF={self.folder}/slurm.conf exec {shutil.which("srun")} "$@"\n')
        srun.chmod(0o755)

    def _spawn(self, name: str, *words: str) -> None:
        with (self.folder / f"{name}.out").open("ab") as output:
            self._daemons[name] = subprocess.Popen(
                words,
                env={**os.environ, **self.environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def _end(self, name: str, number: int) -> None:
        daemon = self._daemons.pop(name, None)
        if daemon is not None:
            daemon.send_signal(number)
            daemon.wait()


def wait_until(happens: Callable[[], object], else_said: str, seconds: float = _TIMEOUT_SECONDS) -> None:
    """Wait until ``happens()`` is true; RuntimeError with ``else_said`` after ``seconds``."""
    end = time.monotonic() + seconds
    while not happens():
        if time.monotonic() > end:
            raise RuntimeError(f"{else_said} within {seconds:.0f} s")
        time.sleep(0.2)


def _processes(setting: str) -> Iterator[int]:
    """The processes in whose environment a setting stands."""
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if setting.encode() in (folder / "environ").read_bytes().split(b"\0"):
                yield int(folder.name)


def _is_of(pid: int, node: str, jobs: Collection[str]) -> bool:
    """Whether a process runs on a node: by its environment, or as the slurmstepd of a job that has a socket there."""
    folder = Path("/proc", str(pid))
    with contextlib.suppress(OSError):
        if f"SLURMD_NODENAME={node}".encode() in (folder / "environ").read_bytes().split(b"\0"):
            return True
        found = re.match(r"slurmstepd: \[(\d+)\.", (folder / "cmdline").read_text(errors="replace"))
        return found is not None and found[1] in jobs
    return False


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


if __name__ == "__main__":
    if missing():
        sys.exit(f"not found: {', '.join(missing())}; install them with: apt-get install slurm-wlm munge")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with Cluster(Path(sys.argv[1]).absolute()) as cluster:
        print(f"export SLURM_CONF={cluster.environment['SLURM_CONF']}", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            signal.pause()
