"""Compile what the search will ask for, on all cores, while the device times what is done already.

The result is in Triton's cache on disk, under the key that the launch asks for.  Of configs and cases that give the
same binary one is compiled; the order is that in which the search comes to them.  What the cache holds already (a build
has usually compiled the whole space) is not compiled again, and where that is everything no process is started.  The
cache is asked problem by problem, so that the search of the first begins while the others are looked up.
"""

from __future__ import annotations

import itertools
import multiprocessing
import threading
import time
from collections.abc import Callable, Iterable
from typing import TypeAlias

from ..compilation.compiled import Compiled, meta_inputs
from ..compilation.pool import compile_all
from ..compilation.worker import Task
from ..declaration import GPU, Declaration
from .cached import looked_up
from .candidates import Candidate, Problem

Wanted: TypeAlias = tuple[Problem, Candidate]

_PRELOAD = ["torch", "triton", "atlas.compilation.worker"]
_CLOSING_SECONDS = 5.0


class Closed(Exception):
    """The compilations were ended while somebody waited for one."""


class Ahead:
    """Compilations under way; use it as a context manager.  ``load`` gives the declaration, here and there.

    Any thread may ask.  A candidate that was not ``wanted``, or whose kernels were in the cache, is ready at once and
    has no result.
    """

    def __init__(self, load: Callable[[], Declaration], gpu: GPU, wanted: Iterable[Wanted], jobs: int):
        self.tasks: list[Task] = []
        """The distinct compilations, in the order they are begun; complete once every candidate is looked up."""
        self.cached = 0
        """How many distinct ones the cache held."""
        self._load, self._gpu, self._jobs = load, gpu, jobs
        self._wanted = [
            (problem, [candidate for _, candidate in pairs])
            for problem, pairs in itertools.groupby(wanted, key=lambda pair: pair[0])
        ]
        self._unknown = {_name(problem) for problem, _ in self._wanted}
        self._index: dict[tuple[str, object, Candidate], int] = {}
        self._done: dict[int, Compiled] = {}
        self._changed = threading.Condition()
        self._failure: BaseException | None = None
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="compile ahead", daemon=True)

    def __enter__(self) -> Ahead:
        if self._wanted:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        if self._wanted:
            self._thread.join(_CLOSING_SECONDS)  # it ends with the next look-up or compilation that does

    def close(self) -> None:
        """Begin no more, and let nobody wait: who does gets :class:`Closed`."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()

    def ready(self, problem: Problem, candidate: Candidate) -> bool:
        """Whether it can be launched, or is known not to compile."""
        with self._changed:
            return self._is_ready(problem, candidate)

    def result(self, problem: Problem, candidate: Candidate) -> Compiled | None:
        """How the compilation ended; None where it has not, or where there is none."""
        with self._changed:
            index = self._index.get(_key(problem, candidate))
            return None if index is None else self._done.get(index)

    def wait_for_look_up(self, problem: Problem) -> float:
        """Wait until it is known what the cache lacks for this problem; gives the seconds that took."""
        return self._wait(lambda: _name(problem) not in self._unknown)

    def wait_for_any(self, problem: Problem, candidates: Iterable[Candidate]) -> float:
        """Wait until one of the candidates is ready; gives the seconds that took."""
        candidates = list(candidates)
        return self._wait(lambda: any(self._is_ready(problem, candidate) for candidate in candidates))

    def _wait(self, over: Callable[[], bool]) -> float:
        since = time.perf_counter()
        with self._changed:
            self._changed.wait_for(lambda: self._failure is not None or self._stopping or over())
            if self._failure is not None:
                raise self._failure
            if self._stopping:
                raise Closed
        return time.perf_counter() - since

    def _is_ready(self, problem: Problem, candidate: Candidate) -> bool:
        if _name(problem) in self._unknown:
            return False
        index = self._index.get(_key(problem, candidate))
        return index is None or index in self._done

    def _run(self) -> None:
        try:
            self.look_up()
            if not self.tasks or self._stopping:
                return
            # Not fork: this process has threads.  The server imports torch and Triton once for all of its children.
            multiprocessing.set_forkserver_preload(_PRELOAD)
            for index, compiled in compile_all(self.tasks, self._jobs, start_method="forkserver"):
                with self._changed:
                    self._done[index] = compiled
                    self._changed.notify_all()
                    if self._stopping:
                        return
        except BaseException as error:  # it belongs to the thread that waits
            with self._changed:
                self._failure = error
                self._changed.notify_all()

    def look_up(self) -> None:
        """Make one task of each distinct set of kernels that the cache lacks; the context manager's thread does it."""
        declaration = self._load()
        known: dict[frozenset[str], int] = {}
        cached: set[frozenset[str]] = set()
        with looked_up(self._gpu) as requests:
            for problem, candidates in self._wanted:
                work = declaration.passes[problem.direction]
                inputs = meta_inputs(work, problem.case)
                index: dict[tuple[str, object, Candidate], int] = {}
                for candidate in candidates:
                    requests.clear()
                    try:
                        work.variant(candidate.variant).launch(config=candidate.config, **inputs)
                        keys = frozenset(requests.keys)
                    except Exception:  # the compilation will meet it again, and say what it is
                        keys = frozenset([f"{problem} {candidate}"])
                        requests.clear()
                    if requests.cached:
                        cached.add(keys)
                        continue
                    if keys not in known:
                        known[keys] = len(self.tasks)
                        self.tasks.append(self._task(problem, candidate))
                    index[_key(problem, candidate)] = known[keys]
                with self._changed:
                    self._index |= index
                    self._unknown.discard(_name(problem))
                    self.cached = len(cached)
                    self._changed.notify_all()
                    if self._stopping:
                        return

    def _task(self, problem: Problem, candidate: Candidate) -> Task:
        return Task(self._load, problem.direction, candidate.variant, problem.case, candidate.config, self._gpu)


def _name(problem: Problem) -> tuple[str, object]:
    return problem.direction, problem.case


def _key(problem: Problem, candidate: Candidate) -> tuple[str, object, Candidate]:
    return problem.direction, problem.case, candidate
