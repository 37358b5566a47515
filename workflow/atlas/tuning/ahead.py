"""Compile what the search will ask for, on all cores, while the device times what is done already.

The result is in Triton's cache on disk, under the key that the launch asks for.  Of configs and cases that give the
same binary one is compiled; the order is that in which the search comes to them.  What the cache holds already (a build
has usually compiled the whole space) is not compiled again, and where that is everything no process is started.
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

    Any thread may ask.  A candidate that is not asked for, or whose kernels were in the cache, is ready at once and has
    no result.
    """

    def __init__(self, load: Callable[[], Declaration], gpu: GPU, wanted: Iterable[Wanted], jobs: int):
        self.tasks, self._index, self.cached = _distinct(load, gpu, wanted)
        """The distinct compilations, in the order they are begun; and how many the cache held."""
        self._jobs = jobs
        self._done: dict[int, Compiled] = {}
        self._changed = threading.Condition()
        self._failure: BaseException | None = None
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="compile ahead", daemon=True)

    def __enter__(self) -> Ahead:
        if self.tasks:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        if self.tasks:
            self._thread.join(_CLOSING_SECONDS)  # it ends with the next compilation that does

    def close(self) -> None:
        """Begin no more, and let nobody wait: who does gets :class:`Closed`."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()

    def ready(self, problem: Problem, candidate: Candidate) -> bool:
        """Whether it can be launched, or is known not to compile."""
        index = self._index.get((problem.direction, problem.case, candidate))
        with self._changed:
            return index is None or index in self._done

    def result(self, problem: Problem, candidate: Candidate) -> Compiled | None:
        """How the compilation ended; None where it has not, or where there is none."""
        index = self._index.get((problem.direction, problem.case, candidate))
        with self._changed:
            return None if index is None else self._done.get(index)

    def wait_for_any(self, problem: Problem, candidates: Iterable[Candidate]) -> float:
        """Wait until one of the candidates is ready; gives the seconds that took."""
        indices = {self._index.get((problem.direction, problem.case, candidate)) for candidate in candidates}
        since = time.perf_counter()
        with self._changed:
            self._changed.wait_for(
                lambda: (
                    self._failure is not None or self._stopping or None in indices or not indices.isdisjoint(self._done)
                )
            )
            if self._failure is not None:
                raise self._failure
            if self._stopping:
                raise Closed
        return time.perf_counter() - since

    def _run(self) -> None:
        try:
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


def _distinct(
    load: Callable[[], Declaration], gpu: GPU, wanted: Iterable[Wanted]
) -> tuple[list[Task], dict[tuple[str, object, Candidate], int], int]:
    """One task for each distinct set of kernels that Triton's cache lacks; which task serves each wanted candidate; and
    how many distinct sets the cache holds."""
    declaration = load()
    tasks: list[Task] = []
    known: dict[frozenset[str], int] = {}
    index: dict[tuple[str, object, Candidate], int] = {}
    cached: set[frozenset[str]] = set()
    with looked_up(gpu) as requests:
        for problem, group in itertools.groupby(wanted, key=lambda pair: pair[0]):
            work = declaration.passes[problem.direction]
            inputs = meta_inputs(work, problem.case)
            for _, candidate in group:
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
                    known[keys] = len(tasks)
                    tasks.append(Task(load, problem.direction, candidate.variant, problem.case, candidate.config, gpu))
                index[problem.direction, problem.case, candidate] = known[keys]
    return tasks, index, len(cached)
