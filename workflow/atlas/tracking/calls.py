"""A tree by MLflow's own calls: for servers, and for databases that are neither SQLite nor PostgreSQL.

A call makes one run, so a tree that is cut off is half there.  It has no digest then; whoever comes next writes it anew
and deletes the half (:mod:`.roots`).  MLflow repeats a call whose answer was lost, and so may make a run twice: before
a tree gets its digest, runs below it that nobody knows of are deleted.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from .artifacts import staged
from .roots import BEAT, BEAT_SECONDS, DIGEST, KEY, STAMP, WRITER, Root, Watch, author
from .runs import Run, Tree
from .words import BUSY, PARENT, UNCHANGED, curves, limited, tags_of

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run as StoredRun

_BATCH_METRICS, _BATCH_WORDS = 900, 90  # MLflow refuses more than 1000 in all, and 100 params or tags
_AT_ONCE = 8  # calls that wait for a server
_PAUSE_SECONDS = 2.0  # before the second attempt at a tree


def search(client: MlflowClient, experiment_id: str, query: str) -> Iterator[StoredRun]:
    """All runs that a filter finds and that are not deleted."""
    token = None
    while True:
        page = client.search_runs([experiment_id], query, max_results=1000, page_token=token)
        yield from page
        token = page.token
        if not token:
            return


class Calls:
    """A store by MLflow's calls, several at once where it is a server."""

    def __init__(self, client: MlflowClient, experiment_id: str, force: bool = False):
        """With ``force`` what is there is written anew."""
        self._client = client
        self._experiment = experiment_id
        self._force = force
        self._watch = Watch()
        self._pool = ThreadPoolExecutor(_AT_ONCE if client.tracking_uri.startswith("http") else 1)

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown()

    def write(self, tree: Tree) -> str:
        """Write a tree unless it is there; returns what was done, see :mod:`.words`."""
        found = self._roots(tree.key)
        state = self._watch.state(found)
        if not self._force and state.current is not None and state.current.digest == tree.digest:
            self.delete(state.surplus)
            return UNCHANGED
        if state.busy:
            return BUSY
        try:
            self._put(tree)
        except _failures():
            time.sleep(_PAUSE_SECONDS)
            self._put(tree)
        self.delete(self._watch.state(self._roots(tree.key)).surplus)
        return "replaced" if found else "added"

    def delete(self, roots: Sequence[str]) -> None:
        """Delete these roots and all below them, as MLflow deletes: hidden until they are restored."""
        generation = list(roots)
        while generation:
            below = self._below(generation)
            list(self._pool.map(self._client.delete_run, generation))
            generation = below

    def _below(self, parents: Sequence[str]) -> list[str]:
        queries = [f"tags.`{PARENT}` = '{parent}'" for parent in parents]
        found = self._pool.map(lambda query: list(search(self._client, self._experiment, query)), queries)
        return [run.info.run_id for runs in found for run in runs]

    def _delete_strangers(self, parents: Sequence[str], known: set[str]) -> None:
        for run_id in set(self._below(parents)) - known:
            self._client.delete_run(run_id)

    def _roots(self, key: str) -> list[Root]:
        found = search(self._client, self._experiment, f"tags.`{KEY}` = '{key}'")
        return [Root(run.info.run_id, run.data.tags) for run in found]

    def _put(self, tree: Tree) -> None:
        """One attempt: all runs, then the stamp, then the digest, which fails where somebody took us for dead."""
        writer = author()
        self._watch.own.add(writer)
        root = None
        try:
            root = self._create(tree.root, {KEY: tree.key, WRITER: writer})
            self._fill(tree.root, root)
            beat = _Beat(self._client, root)
            generation = [(child, root) for child in tree.root.children]
            while generation:
                ids = list(self._pool.map(lambda one: self._child(*one, beat), generation))
                generation = [
                    (child, run_id) for (run, _), run_id in zip(generation, ids, strict=True) for child in run.children
                ]
            stamp = self._watch.state(self._roots(tree.key)).stamp
            self._client.set_tag(root, STAMP, str(stamp))
            self._client.set_tag(root, DIGEST, tree.digest)
        except BaseException:
            if root is not None:
                with contextlib.suppress(*_failures()):
                    self.delete([root])
            raise
        finally:
            self._watch.own.discard(writer)

    def _child(self, run: Run, parent: str, beat: _Beat) -> str:
        run_id = self._create(run, {PARENT: parent})
        self._fill(run, run_id)
        beat.raised()
        return run_id

    def _create(self, run: Run, extra: dict[str, str]) -> str:
        made = self._client.create_run(
            self._experiment, start_time=run.span[0], tags=tags_of(run, extra), run_name=limited(run.name, 250)
        )
        return made.info.run_id

    def _fill(self, run: Run, run_id: str) -> None:
        from mlflow.entities import Metric, Param

        metrics = [Metric(name, point.value, point.milliseconds, point.step) for name, point in curves(run)]
        params = [Param(name, limited(value, 6000)) for name, value in run.params.items()]
        while metrics or params:
            self._client.log_batch(run_id, metrics[:_BATCH_METRICS], params[:_BATCH_WORDS], synchronous=True)
            metrics, params = metrics[_BATCH_METRICS:], params[_BATCH_WORDS:]
        if run.tables or run.files:
            with staged(run) as folder:
                self._client.log_artifacts(run_id, folder)
        self._client.set_terminated(run_id, "FAILED" if run.failed else "FINISHED", end_time=run.span[1])


class _Beat:
    """Says on a root now and then that its writer lives."""

    def __init__(self, client: MlflowClient, root: str):
        self._client, self._root = client, root
        self._lock = threading.Lock()
        self._count, self._last = 0, time.monotonic()

    def raised(self) -> None:
        """Raise the beat if it is time."""
        with self._lock:
            if time.monotonic() - self._last < BEAT_SECONDS:
                return
            self._count, self._last = self._count + 1, time.monotonic()
            count = self._count
        self._client.set_tag(self._root, BEAT, str(count))


def _failures() -> tuple[type[Exception], ...]:
    """What a call that failed raises; MLflow is imported by then."""
    import requests
    from mlflow.exceptions import MlflowException

    return MlflowException, requests.RequestException, OSError
