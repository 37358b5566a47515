"""Compile what the search will ask for, on all cores, while the device times what is done already.

The result is in Triton's cache on disk, under the key that the launch asks for.  Of configs and cases that give the
same binary one is compiled; the order is that in which the search comes to them.  What the cache holds already (a build
has usually compiled the whole space) is not compiled again, and where that is everything no process is started.  The
cache is asked problem by problem, so that the search of the first begins while the others are looked up.  What a
certificate needs comes last, once it is known who won.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias

from ..compilation.compiled import Compiled
from ..compilation.pool import Task, compile_all
from ..declaration import GPU, Case, Declaration
from ..host.runtime import meta_inputs
from ..validation.certification import certifying_cases
from .cached import Requests, looked_up
from .candidates import Candidate, Problem

Wanted: TypeAlias = tuple[Problem, Candidate]

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
        self._further: list[tuple[tuple[str, str, Candidate], Task]] = []
        self._requests = Requests()
        self._due: Counter[tuple[str, str, Candidate]] = Counter()
        self._changed = threading.Condition()
        self._failure: BaseException | None = None
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="compile ahead", daemon=True)

    def __enter__(self) -> Ahead:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
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

    def prepare(self, problem: Problem, candidate: Candidate) -> None:
        """Compile what certifying a winner launches, once the search has all it wanted; twice does nothing."""
        subject = _subject(problem, candidate)
        with self._changed:
            if subject not in self._due:
                tasks = [self._task(problem, candidate, case) for case in self._certifying(problem, candidate)]
                self._due[subject] = len(tasks)
                self._further += [(subject, task) for task in tasks]
                self._changed.notify_all()

    def wait_for_prepared(self, problem: Problem, candidate: Candidate) -> float:
        """Wait for what :meth:`prepare` was asked for, however it ended; gives the seconds that took."""
        return self._wait(lambda: self._due[_subject(problem, candidate)] == 0)

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
            for index, compiled in compile_all(self.look_up(), self._jobs):
                with self._changed:
                    self._done[index] = compiled
                    self._changed.notify_all()
                    if self._stopping:
                        return
            self._compile_further()
        except BaseException as error:  # it belongs to the thread that waits
            with self._changed:
                self._failure = error
                self._changed.notify_all()

    def _compile_further(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._stopping or self._further)
                if self._stopping:
                    return
                batch, self._further = self._further, []
            tasks = (task for _, task in batch)
            for index, _ in compile_all(tasks, self._jobs):
                with self._changed:
                    self._due[batch[index][0]] -= 1
                    self._changed.notify_all()
                    if self._stopping:
                        return

    def look_up(self) -> Iterator[Task]:
        """One task for each distinct set of kernels that the cache lacks, found problem by problem."""
        declaration = self._load()
        known: dict[frozenset[str], int] = {}
        cached: set[frozenset[str]] = set()
        for problem, candidates in self._wanted:
            before = len(self.tasks)
            index = self._look_up(declaration, problem, candidates, known, cached)
            with self._changed:
                self._index |= index
                self._unknown.discard(_name(problem))
                self.cached = len(cached)
                self._changed.notify_all()
                if self._stopping:
                    return
            yield from self.tasks[before:]

    def _look_up(
        self,
        declaration: Declaration,
        problem: Problem,
        candidates: Iterable[Candidate],
        known: dict[frozenset[str], int],
        cached: set[frozenset[str]],
    ) -> dict[tuple[str, object, Candidate], int]:
        """Which task serves each candidate; adds to ``tasks``, ``known`` and ``cached``."""
        index: dict[tuple[str, object, Candidate], int] = {}
        work = declaration.passes[problem.direction]
        inputs = meta_inputs(work, problem.case)
        with looked_up(self._gpu, self._requests) as requests:
            for candidate in candidates:
                requests.clear()
                try:
                    work.variant(candidate.variant).launch(config=candidate.config, **inputs)
                    keys = frozenset(requests.keys)
                except Exception:  # the compilation will meet it again, and say what it is
                    keys = frozenset([f"{problem} {candidate}"])
                    requests.clear()
                if keys in cached or requests.cached:
                    cached.add(keys)
                    continue
                if keys not in known:
                    known[keys] = len(self.tasks)
                    self.tasks.append(self._task(problem, candidate))
                index[_key(problem, candidate)] = known[keys]
        return index

    def _task(self, problem: Problem, candidate: Candidate, case: Case | None = None) -> Task:
        return Task(self._load, problem.direction, candidate.variant, case or problem.case, candidate.config, self._gpu)

    def _certifying(self, problem: Problem, candidate: Candidate) -> list[Case]:
        declaration = self._load()
        work = declaration.passes[problem.direction]
        variant = work.variant(candidate.variant)
        return certifying_cases(declaration, work, variant, candidate.config, problem.case.dtype, self._gpu)[0]


def _name(problem: Problem) -> tuple[str, object]:
    return problem.direction, problem.case


def _key(problem: Problem, candidate: Candidate) -> tuple[str, object, Candidate]:
    return problem.direction, problem.case, candidate


def _subject(problem: Problem, candidate: Candidate) -> tuple[str, str, Candidate]:
    return problem.direction, problem.case.dtype, candidate
