"""What may befall a run, and what must come of it: one function a scenario, each giving one row of the proof."""

from __future__ import annotations

import functools
import json
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import kernel, laboratory
from .laboratory import Laboratory, Run

KILLS = 5
"""How often a worker is killed, and how often a run."""

SEVERAL = 3
"""Problems of the runs that are killed, so that there is something to be in the midst of."""

NOISE = 0.02
"""A best config that was this close to the undisturbed run's best may win as well."""

_DISK_BYTES = 2**20
_PAGE = 4096


@dataclass
class Result:
    """One scenario's outcome.

    ``lost`` counts sound trials that did not end as in an undisturbed run; ``kills`` how often something was killed;
    ``vanished`` what was finished and is not in the journal any more; ``again`` what was measured though it was
    finished; ``left`` the worker processes that outlived their run; ``other_best`` problems whose best config is not
    one of the undisturbed run's best; ``ending_seconds`` what it took to end the process of an endless kernel.
    """

    scenario: str
    expected: str
    found: str = ""
    holds: bool = True
    lost: int = 0
    kills: int = 0
    vanished: int = 0
    again: int = 0
    left: int = 0
    other_best: int = 0
    ending_seconds: float | None = None
    resumed: bool = False
    seconds: float = 0.0

    def row(self) -> dict[str, Any]:
        """The scenario as a row of the proof's table."""
        return {
            "scenario": self.scenario,
            "expected": self.expected,
            "found": self.found,
            "trials_lost": self.lost,
            "seconds": round(self.seconds, 1),
        }


@dataclass
class Trials:
    """All scenarios on one GPU; ``functional`` says that the interpreter runs them, whose times mean nothing."""

    laboratory: Laboratory
    functional: bool
    seed: int = 0
    notes: list[str] = field(default_factory=list)

    @functools.cached_property
    def undisturbed(self) -> Run:
        """The run of several problems that nothing disturbs."""
        run = self.laboratory.run(self.laboratory.folder("undisturbed"), cases=SEVERAL)
        if not run.ok:
            raise RuntimeError(f"the undisturbed run ended with {run.status}: {run.said}")
        return run

    def scenarios(self) -> dict[str, Callable[[], Result]]:
        """Every scenario by name, in the order to run them."""
        faults = [fault for fault in kernel.FAULTS if kernel.possible(fault, self.functional)]
        of_configs = {f"config-{fault}": functools.partial(self.bad_configs, [fault]) for fault in faults}
        return {
            **of_configs,
            "configs-together": functools.partial(self.bad_configs, faults),
            "worker-killed": self.worker_killed,
            "run-killed": self.run_killed,
            "disk-full-limit": self.file_limit,
            "disk-full-tmpfs": self.full_tmpfs,
            "journal-cut-off": functools.partial(self.damaged, "journal-cut-off", _cut_off),
            "journal-garbled": functools.partial(self.damaged, "journal-garbled", _garbled),
            "two-runs": self.two_runs,
        }

    def run(self, name: str) -> Result:
        """One scenario, timed; whatever it raises is its finding."""
        self.undisturbed  # noqa: B018  so that it is in nobody's seconds
        since = time.perf_counter()
        try:
            result = self.scenarios()[name]()
        except Exception as error:
            result = Result(name, "an end", f"{type(error).__name__}: {error}", holds=False)
        result.scenario, result.seconds = name, time.perf_counter() - since
        return result

    def bad_configs(self, faults: Sequence[str]) -> Result:
        """Sound configs and bad ones in one space."""
        expected = {fault: kernel.expected(fault, self.functional) for fault in faults}
        name = "-".join(faults)
        run = self.laboratory.run(self.laboratory.folder(name), faults)
        statuses = {trial[3]: status for trial, status in run.statuses.items() if trial[3] != "sound"}
        found = ", ".join(f"{fault} {statuses.get(fault)}" for fault in faults)
        result = Result(name, ", ".join(f"{fault} {status}" for fault, status in expected.items()), found)
        result.lost = self._lost(run)
        result.holds = run.ok and statuses == expected and not result.lost
        if not run.ok:
            result.found = _end(run)
        elif faults == [kernel.ENDLESS]:
            lost = run.fields["seconds_by_phase"].get("lost", 0.0)
            result.ending_seconds = max(0.0, lost - self.laboratory.timeout_seconds)
            result.found += f"; its process was gone {result.ending_seconds:.1f} s after the time-out"
        return self._closed(result, run)

    def worker_killed(self) -> Result:
        """``kill -9`` of the worker at random moments of one run; what that cost is tried again by the next."""
        random_ = random.Random(self.seed)
        moments = [0, *self._moments(random_, KILLS - 1)]
        killed: set[int] = set()
        since: dict[int, float] = {}
        wait = random_.uniform(0, 1)

        def strike(run: Run, pid: int) -> bool:
            nonlocal wait
            for worker in laboratory.workers_of(pid):
                if worker in killed or _count(run.folder) < moments[len(killed)]:
                    continue
                if time.monotonic() - since.setdefault(worker, time.monotonic()) >= wait and laboratory.kill(worker):
                    killed.add(worker)
                    wait = random_.uniform(0, 0.03)
                    break
            return len(killed) == KILLS

        folder = self.laboratory.folder("worker-killed")
        run = self.laboratory.run(folder, cases=SEVERAL, meanwhile=strike)
        result = Result("", f"{KILLS} kills, at most {KILLS} trials lost; the next run tries them again")
        result.kills, result.lost = len(killed), self._lost(run, SEVERAL)
        before = laboratory.finished(folder)
        rerun = self.laboratory.run(folder, cases=SEVERAL)
        self._resumed(result, rerun, before, extra_allowed=True)
        end = "" if run.ok else f" and it {_end(run)}"
        result.found = f"{result.kills} kills cost {result.lost} trials{end}; {result.found}"
        result.holds &= run.ok and result.lost <= result.kills == KILLS
        return self._closed(result, run, rerun)

    def run_killed(self) -> Result:
        """``kill -9`` of a run at a random moment, and of the runs that resume it; then one that completes."""
        random_ = random.Random(self.seed + 1)
        folder = self.laboratory.folder("run-killed")
        runs, before, vanished = [], [], 0
        for moment in [0, *self._moments(random_, KILLS - 1)]:
            wait = random_.uniform(0, 2) if not moment else random_.uniform(0, 0.03)
            runs.append(self.laboratory.run(folder, cases=SEVERAL, meanwhile=_killer(moment, wait)))
            after = laboratory.finished(folder)
            vanished += len({entry["key"] for entry in before} - {entry["key"] for entry in after})
            before = after
        rerun = self.laboratory.run(folder, cases=SEVERAL)
        kills = sum(run.status == -9 for run in runs)
        result = Result("", f"{KILLS} kills; the last run completes as an undisturbed one", kills=kills)
        result.vanished = vanished
        self._resumed(result, rerun, before)
        result.found = f"{kills} kills, {len(before)} measurements kept; {result.found}"
        result.holds &= kills == KILLS and not vanished
        return self._closed(result, *runs, rerun)

    def file_limit(self) -> Result:
        """A journal that may not grow further, as on a disk that is full or a quota that is used up."""
        folder = self.laboratory.folder("disk-full-limit")
        path = folder / "journal.jsonl"
        # The limit holds for all files that the run writes, so it has to be one that the others stay below.
        line = json.dumps({"context": {"earlier": "x" * 1000}}) + "\n"
        path.write_text(line * (_DISK_BYTES // len(line)))
        limit = path.stat().st_size + self._journal_bytes() // 2
        full = self.laboratory.run(folder, cases=SEVERAL, more=["--file-limit", limit])
        before = laboratory.finished(folder)
        rerun = self.laboratory.run(folder, cases=SEVERAL)
        return self._disk(full, rerun, before, path.read_bytes().endswith(b"\n"))

    def full_tmpfs(self) -> Result:
        """A small file system of its own that is full; then something is deleted there."""
        folder, disk = self.laboratory.folder("disk-full-tmpfs"), self.laboratory.folder("tmpfs")
        shell = _namespace(disk)
        if shell is None:
            self.notes.append("disk-full-tmpfs was not tried: mounting a tmpfs is not permitted here.")
            return Result("", "a full tmpfs", "not tried: no tmpfs may be mounted here")
        room = max(_PAGE, self._journal_bytes() // 2 // _PAGE * _PAGE)
        runs = [self.laboratory.command(disk, folder / f"{name}.json", (), SEVERAL) for name in ("full", "freed")]
        script = (
            f'mount -t tmpfs -o size={_DISK_BYTES} tmpfs "$1" || exit 9; '
            f'head -c {_DISK_BYTES - room} /dev/zero > "$1/filler"; '
            '"${@:4:$3}"; echo $? > "$2/full.status"; cp "$1/journal.jsonl" "$2/before.jsonl"; rm "$1/filler"; '
            '"${@:4+$3}"; echo $? > "$2/freed.status"; cp "$1/journal.jsonl" "$2/"'
        )
        words = [disk, folder, len(runs[0]), *runs[0], *runs[1]]
        with (folder / "log").open("wb") as log:
            subprocess.run(
                [*shell, "bash", "-c", script, "bash", *map(str, words)],
                env=laboratory.environment(), stdout=log, stderr=log, timeout=2 * laboratory.RUN_SECONDS, check=False,
            )  # fmt: skip
        said = (folder / "log").read_text(errors="replace")
        full = Run(folder, int((folder / "full.status").read_text()), said)
        rerun = Run(folder, int((folder / "freed.status").read_text()), said.strip().rpartition("\n")[2])
        if rerun.status == 0:
            rerun.fields = json.loads((folder / "freed.json").read_text())
        whole = (folder / "before.jsonl").read_bytes()
        (folder / "earlier").mkdir()
        shutil.copy(folder / "before.jsonl", folder / "earlier" / "journal.jsonl")
        result = self._disk(full, rerun, laboratory.finished(folder / "earlier"), whole.endswith(b"\n"))
        result.found += f" ({' '.join(shell)})"
        return result

    def damaged(self, name: str, damage: Callable[[bytes, random.Random], bytes]) -> Result:
        """A journal of which one line was spoiled while nobody ran."""
        folder = self.laboratory.folder(name)
        whole = (self.undisturbed.folder / "journal.jsonl").read_bytes()
        (folder / "journal.jsonl").write_bytes(damage(whole, random.Random(self.seed + 2)))
        before = laboratory.finished(folder)
        rerun = self.laboratory.run(folder, cases=SEVERAL)
        result = Result(name, "1 line is damaged, and only what it held is measured again")
        self._resumed(result, rerun, before)
        if rerun.ok:
            counts = rerun.fields["journal"]
            result.found = f"{counts['damaged_lines']} damaged, {counts['measured']} measured; {result.found}"
            result.holds &= counts["damaged_lines"] == 1 and counts["measured"] == 1
        return self._closed(result, rerun)

    def two_runs(self) -> Result:
        """A second run on the journal of one that is under way."""
        folder = self.laboratory.folder("two-runs")
        path = folder / "journal.jsonl"
        second: list[Run] = []
        untouched = False

        def intrude(run: Run, pid: int) -> bool:
            nonlocal untouched
            if not path.exists() or not path.stat().st_size:
                return False
            os.kill(pid, signal.SIGSTOP)  # or it might have ended before the second has begun
            try:
                before = path.read_bytes()
                second.append(self.laboratory.run(folder, cases=SEVERAL))
                untouched = path.read_bytes() == before
            finally:
                os.kill(pid, signal.SIGCONT)
            return True

        first = self.laboratory.run(folder, cases=SEVERAL, meanwhile=intrude)
        result = Result("", "the second is refused and writes nothing; the first completes")
        self._resumed(result, first, [])
        refused = bool(second) and second[0].status == 2 and "another autotune run" in second[0].said
        how = f"refused after {second[0].seconds:.1f} s" if refused else "not refused"
        result.found = f"{how}, {'nothing' if untouched else 'something'} written; {result.found}"
        result.holds &= refused and untouched
        return self._closed(result, first, *second)

    def _disk(self, full: Run, rerun: Run, before: list[dict[str, Any]], whole: bool) -> Result:
        result = Result("", "one sentence with the remedy, whole lines; with space again the next run completes")
        self._resumed(result, rerun, before)
        told = full.status == 2 and "cannot be written" in full.said and "free space" in full.said
        first = "told what to do" if told else _end(full)
        lines = "" if whole else "the last line is cut off; "
        result.found = f"{first}, {len(before)} measurements kept; {lines}{result.found}"
        result.holds &= told and whole and bool(before)
        return self._closed(result, full, rerun)

    def _resumed(self, result: Result, run: Run, before: list[dict[str, Any]], extra_allowed: bool = False) -> None:
        """Compare a run that ended with an undisturbed one, and its journal with what was there before."""
        result.resumed = True
        entries = laboratory.finished(run.folder)
        result.vanished += len({entry["key"] for entry in before} - {entry["key"] for entry in entries})
        result.again += len(laboratory.again(entries))
        difference = laboratory.difference(run, self.undisturbed)
        # A trial that was lost had its place in the comparison of the finalists, which is then another one.
        if extra_allowed and run.ok and difference.endswith("of something else"):
            difference = ""
        result.holds &= not (difference or result.vanished or result.again)
        result.found = difference if difference else "the same as undisturbed"
        if result.again:
            result.found += f", {result.again} measured again"

    def _closed(self, result: Result, *runs: Run) -> Result:
        """Look for workers left behind, and for a best config that is not one."""
        result.left = len(laboratory.gone({pid for run in runs for pid in run.workers}))
        if runs and not self.functional:
            result.other_best = self._other_best(runs[-1] if runs[-1].ok else runs[0])
        result.holds &= not (result.left or result.other_best)
        if result.left:
            result.found += f"; {result.left} workers left behind"
        if result.other_best:
            result.found += "; another config is the best"
        return result

    def _lost(self, run: Run, cases: int = 1) -> int:
        """Sound trials that are not as in the undisturbed run, of its ``cases`` smallest problems."""
        sizes = sorted(self.undisturbed.best(), key=lambda text: json.loads(text)["n"])[:cases]
        sound = {trial: status for trial, status in self.undisturbed.statuses.items() if trial[2] in sizes}
        return sum(run.statuses.get(trial) != status for trial, status in sound.items())

    def _other_best(self, run: Run) -> int:
        reference = self.undisturbed.best()
        others = [(found, reference[sizes]) for sizes, found in run.best().items() if found[0] != reference[sizes][0]]
        return sum(found[1] > (1 + NOISE) * best[1] for found, best in others)

    def _moments(self, random_: random.Random, count: int) -> list[int]:
        """Numbers of finished measurements, spread over an undisturbed run less its end, which none must miss."""
        total = _count(self.undisturbed.folder)
        return sorted(random_.sample(range(1, max(count + 1, 3 * total // 4)), count))

    def _journal_bytes(self) -> int:
        return (self.undisturbed.folder / "journal.jsonl").stat().st_size


def _killer(moment: int, wait: float) -> Callable[[Run, int], bool]:
    """Kills the run ``wait`` seconds after its journal holds ``moment`` measurements."""
    reached: list[float] = []

    def strike(run: Run, pid: int) -> bool:
        if not reached and _count(run.folder) >= moment:
            reached.append(time.monotonic())
        return bool(reached) and time.monotonic() - reached[0] >= wait and laboratory.kill(pid)

    return strike


def _count(folder: Path) -> int:
    """Measurements in a journal; cheap enough to be asked all the time."""
    try:
        return (folder / "journal.jsonl").read_bytes().count(b'{"key"')
    except FileNotFoundError:
        return 0


def _cut_off(content: bytes, random_: random.Random) -> bytes:
    last = content.rindex(b"\n", 0, len(content) - 1) + 1
    return content[: random_.randrange(last + 1, len(content) - 1)]


def _garbled(content: bytes, random_: random.Random) -> bytes:
    """Some bytes in the middle of one measurement made by a single config replaced by any others but line ends."""
    lines = content.split(b"\n")
    chosen = random_.choice([i for i, line in enumerate(lines) if b'"method": "screen' in line])
    place = random_.randrange(1, len(lines[chosen]) - 16)
    noise = random_.randbytes(16).replace(b"\n", b"\0")
    lines[chosen] = lines[chosen][:place] + noise + lines[chosen][place + 16 :]
    return b"\n".join(lines)


def _end(run: Run) -> str:
    return f"ended with {run.status}: {run.said}"


def _namespace(folder: Path) -> list[str] | None:
    """The words before a command that let it mount a tmpfs nobody else sees; None where that is not permitted."""
    if shutil.which("unshare") is None or shutil.which("bash") is None:
        return None
    for words in (["unshare", "-m"], ["unshare", "-rm"]):
        probe = [*words, "mount", "-t", "tmpfs", "-o", f"size={_PAGE}", "tmpfs", os.fspath(folder)]
        if subprocess.run(probe, capture_output=True, check=False).returncode == 0:
            return words
    return None
