"""Harness mutants: faults planted in the code that measures and judges, one at a time.  Do its tests notice?

``make mutants`` runs this.  Each ``<room>.toml`` beside this file lists faults of one room of ``workflow/atlas``: one
change of text each, and the tests that should fail for it.  The tree is copied to a scratch folder, where one fault at
a time is planted and its tests run; the checkout itself is never changed.

These are not the kernel mutants of ``python -m proofs mutants`` (``proofs/mutants/planted/``).  Those are
faults in kernels, and ask whether *validation* catches them; these are faults in the harness, and ask whether the
*tests* do.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]

CAUGHT, SURVIVED, STALE, BROKEN, HUNG, ALREADY = "caught", "survived", "stale", "broken", "hung", "fails anyway"
"""What may come of a mutant.  Only the first counts as caught, only the first two as tried."""

MEANING = {
    SURVIVED: "no test noticed; write the one that does",
    STALE: "its old text is not in the file exactly once; mend the list",
    BROKEN: "the tests could not be run with it; a fault that nothing imports past teaches nothing",
    HUNG: "its tests did not end in time",
    ALREADY: "the test that failed fails without the fault, too; mend that first",
}

INTERPRETED = ("tests/kernels", "tests/validation")
"""Folders whose tests need a process of their own: see ``tests/conftest.py``."""


class ListError(Exception):
    """A list of mutants that cannot be used; says which file and what to do."""


@dataclass(frozen=True)
class Mutant:
    """One fault: ``old`` text of ``file`` replaced by ``new``, and the tests that should notice.

    ``harm`` says what it would do to a user.
    """

    name: str
    room: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    harm: str

    def planted(self, text: str) -> str:
        """The file's text with the fault; ValueError where its old text is not there exactly once."""
        count = text.count(self.old)
        if count != 1:
            raise ValueError(f"{self.file} holds the old text {count} times")
        return text.replace(self.old, self.new)

    def stale(self, root: Path) -> str:
        """Why it cannot be planted in the tree at ``root``, or ``""``."""
        try:
            self.planted((root / self.file).read_text())
        except (ValueError, OSError) as error:
            return str(error)
        missing = [test for test in self.tests if not (root / test.partition("::")[0]).exists()]
        return f"no such test: {', '.join(missing)}" if missing else ""


@dataclass(frozen=True)
class Result:
    """What came of one mutant, the test that failed or what is amiss, and the seconds it took."""

    mutant: Mutant
    outcome: str
    what: str = ""
    seconds: float = 0.0


def read(folder: Path = HERE) -> list[Mutant]:
    """The mutants of every list in ``folder``; :class:`ListError` for one that is not as it should be."""
    found: dict[str, Mutant] = {}
    for path in sorted(folder.glob("*.toml")):
        try:
            listed = tomllib.loads(path.read_text())
        except tomllib.TOMLDecodeError as error:
            raise ListError(f"{path.name}: {error}") from None
        for position, entry in enumerate(listed.get("mutant", ()), 1):
            mutant = _mutant(entry, path, position, listed.get("tests"))
            if mutant.name in found:
                raise ListError(f"{path.name}: there are two mutants named {mutant.name!r}; rename one")
            found[mutant.name] = mutant
    return list(found.values())


def _mutant(entry: dict[str, object], path: Path, position: int, tests: object) -> Mutant:
    where = f"{path.name}: mutant {entry.get('name', position)!r}"
    given = {"tests": tests} | entry
    wanted = {"name", "file", "old", "new", "tests", "harm"}
    empty = {key for key, value in given.items() if not value and key != "new"}  # a fault may be that text is gone
    if given.keys() != wanted or empty:
        amiss = sorted((wanted ^ given.keys()) | empty)
        raise ListError(f"{where}: it has keys missing, empty or unknown: {', '.join(amiss)}")
    if given["old"] == given["new"]:
        raise ListError(f"{where}: old and new text are the same")
    return Mutant(room=path.stem, **given | {"tests": tuple(given["tests"])})


@contextlib.contextmanager
def copy_of(root: Path) -> Iterator[Path]:
    """A scratch copy of the tree at ``root`` as it lies there: what git tracks, and new files it does not ignore."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=root,
        capture_output=True,
        check=True,
    )
    with tempfile.TemporaryDirectory(prefix="atlas-harness-mutants.") as folder:
        copy = Path(folder) / "tree"
        for name in filter(None, listed.stdout.decode().split("\0")):
            if (root / name).is_file():
                (copy / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(root / name, copy / name)
        yield copy


@dataclass(frozen=True)
class Tested:
    """How pytest ended: its exit status (None where it was ended), the tests that failed, and its last words."""

    status: int | None
    failed: tuple[str, ...]
    last_words: str


def test(tree: Path, tests: Sequence[str], seconds: float, first_failure: bool = True) -> Tested:
    """Run these tests in a tree, up to the first that fails; interpreted and compiled ones in turn."""
    interpreted = [name for name in tests if name.startswith(INTERPRETED)]
    compiled = [name for name in tests if name not in interpreted]
    ended = Tested(0, (), "")
    for group in filter(None, (compiled, interpreted)):
        ran = _pytest(tree, group, seconds, first_failure)
        ended = Tested(ran.status or ended.status, ended.failed + ran.failed, ran.last_words)
        if ran.status is None or (ran.status and first_failure):
            return ran
    return ended


_running: set[subprocess.Popen[str]] = set()
"""The pytest processes at work, each the leader of a group of its own."""


def _end(process: subprocess.Popen[str]) -> None:
    """End a run of tests with all that it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _pytest(tree: Path, tests: Sequence[str], seconds: float, first_failure: bool) -> Tested:
    # No bytecode: Python takes a .pyc for current by the second and the size, and a fault may change neither.
    environment = os.environ | {
        "PYTHONPATH": f"{tree / 'workflow'}{os.pathsep}{tree}",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    cache = tree.parent / "pytest-cache"
    shutil.rmtree(cache, ignore_errors=True)
    command = [sys.executable, "-m", "pytest", "-q", "--no-header", "-p", "no:xdist", "-o", f"cache_dir={cache}"]
    process = subprocess.Popen(
        [*command, *(["-x"] if first_failure else []), *tests],
        cwd=tree, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
    )  # fmt: skip
    _running.add(process)
    try:
        output, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        _end(process)
        process.communicate()
        return Tested(None, (), "")
    finally:
        _running.discard(process)
    known = cache / "v" / "cache" / "lastfailed"
    failed = tuple(json.loads(known.read_text())) if known.exists() else ()
    return Tested(process.returncode, failed, output.strip().rpartition("\n")[2])


def try_one(mutant: Mutant, tree: Path, seconds: float) -> Result:
    """Plant, test, take back."""
    reason = mutant.stale(tree)
    if reason:
        return Result(mutant, STALE, reason)
    path, began = tree / mutant.file, time.monotonic()
    right = path.read_text()
    path.write_text(mutant.planted(right))
    try:
        ran = test(tree, mutant.tests, seconds)
    finally:
        path.write_text(right)
    took = time.monotonic() - began
    if ran.status is None:
        return Result(mutant, HUNG, f"{seconds:g} s", took)
    if ran.status == 0:
        return Result(mutant, SURVIVED, "", took)
    if ran.status == 1 and ran.failed:
        return Result(mutant, CAUGHT, ran.failed[0], took)
    return Result(mutant, BROKEN, f"pytest ended with {ran.status}: {ran.last_words}", took)


def try_all(mutants: Sequence[Mutant], root: Path, jobs: int, seconds: float) -> list[Result]:
    """Try each, in so many copies of the tree; then the tests that caught one, on the tree as it is."""
    results: dict[str, Result] = {}
    with contextlib.ExitStack() as copies, ThreadPoolExecutor(jobs) as pool:
        free: queue.SimpleQueue[Path] = queue.SimpleQueue()
        for _ in range(jobs):
            free.put(copies.enter_context(copy_of(root)))

        def work(mutant: Mutant) -> Result:
            tree = free.get()
            try:
                return try_one(mutant, tree, seconds)
            finally:
                free.put(tree)

        try:
            for done in as_completed([pool.submit(work, mutant) for mutant in mutants]):
                result = done.result()
                results[result.mutant.name] = result
                print(f"[{len(results)}/{len(mutants)}] {_line(result)}", flush=True)
        except BaseException:  # Ctrl-C among them, which the tests' process groups do not see
            pool.shutdown(wait=False, cancel_futures=True)
            for process in list(_running):
                _end(process)
            raise
        results |= {
            result.mutant.name: result for result in _failing_anyway(list(results.values()), free.get(), seconds)
        }
    return [results[mutant.name] for mutant in mutants]


def _failing_anyway(results: Sequence[Result], tree: Path, seconds: float) -> list[Result]:
    """Of the mutants that count as caught, those whose test fails on the tree as it is: such a test tells nothing."""
    tests = list(dict.fromkeys(result.what for result in results if result.outcome == CAUGHT))
    if not tests:
        return []
    ran = test(tree, tests, seconds, first_failure=False)
    if ran.status is not None and ran.status > 1:
        raise ListError(f"the tests that caught a fault cannot be run on the tree as it is: {ran.last_words}")
    bad = set(tests) if ran.status is None else set(ran.failed)
    return [
        Result(result.mutant, ALREADY, result.what, result.seconds)
        for result in results
        if result.outcome == CAUGHT and result.what in bad
    ]


def _line(result: Result) -> str:
    named = f"{result.mutant.room}: {result.mutant.name}"
    return f"{result.outcome:<12} {result.seconds:5.0f} s  {named}  {result.what}".rstrip()


def report(results: Sequence[Result]) -> str:
    """A line for each room, then all that was not caught and why it matters, then caught of planted."""
    rooms: dict[str, Counter[str]] = {}
    for result in results:
        rooms.setdefault(result.mutant.room, Counter())[result.outcome] += 1
    lines = ["", f"{'room':<14} planted  caught  survived  other"]
    for room, counts in rooms.items():
        other = counts.total() - counts[CAUGHT] - counts[SURVIVED]
        lines.append(f"{room:<14} {counts.total():>7} {counts[CAUGHT]:>7} {counts[SURVIVED]:>9} {other:>6}")
    for result in results:
        if result.outcome != CAUGHT:
            lines += [
                "",
                f"{result.outcome.upper()}: {result.mutant.name} ({result.mutant.file}): {MEANING[result.outcome]}",
            ]
            lines += [f"  {result.what}"] if result.what else []
            lines += [f"  harm: {result.mutant.harm}"]
    caught = sum(result.outcome == CAUGHT for result in results)
    return "\n".join([*lines, "", f"{caught} of {len(results)} planted faults caught"])


def ended(results: Sequence[Result], share: float) -> int:
    """The exit status: 0 where enough were caught and every fault could be tried."""
    caught = sum(result.outcome == CAUGHT for result in results)
    tried = all(result.outcome in (CAUGHT, SURVIVED) for result in results)
    return 0 if tried and caught >= share * len(results) else 1


def main(words: Sequence[str] | None = None, folder: Path = HERE, root: Path = ROOT) -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="make mutants", description="Plant faults in the harness; do its tests notice?"
    )
    parser.add_argument("--only", metavar="NAME", action="append", help="this mutant; may be repeated")
    parser.add_argument("--room", metavar="ROOM", action="append", help="mutants of this room; may be repeated")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="so many at a time (default: 1)")
    parser.add_argument(
        "--share", type=float, default=0.95, metavar="X", help="the least share to catch (default: 0.95)"
    )
    parser.add_argument(
        "--seconds", type=float, default=900.0, metavar="S", help="for one mutant's tests (default: 900)"
    )
    parser.add_argument("--list", action="store_true", help="say which there are and which are stale; run nothing")
    arguments = parser.parse_args(words)
    try:
        mutants = read(folder)
        for option, key in (("only", "name"), ("room", "room")):
            asked, known = getattr(arguments, option), {getattr(mutant, key) for mutant in mutants}
            unknown = set(asked or ()) - known
            if unknown:
                raise ListError(
                    f"--{option} {', '.join(sorted(unknown))}: unknown; there are {', '.join(sorted(known))}"
                )
            mutants = [mutant for mutant in mutants if not asked or getattr(mutant, key) in asked]
        if arguments.list:
            stale = {mutant.name: mutant.stale(root) for mutant in mutants}
            print("\n".join(f"{m.room}: {m.name}{'  STALE: ' * bool(stale[m.name])}{stale[m.name]}" for m in mutants))
            return int(any(stale.values()))
        results = try_all(mutants, root, max(1, arguments.jobs), arguments.seconds)
    except ListError as error:
        print(error, file=sys.stderr)
        return 2
    print(report(results))
    return ended(results, arguments.share)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))  # as by Ctrl-C: with its tests and its scratch folders
    sys.exit(main())
