"""Which kernels Triton's cache on disk holds already: found out in milliseconds, without compiling or loading any.

Triton itself computes the key and opens the cache: its ``compile`` is called with a cache manager that says whether the
entry is there and goes no further.  That holds for any manager and for every version with ``knobs.cache``; besides it
reaches into ``JITFunction._do_compile`` and the ``compile`` of a function, the same in Triton 3.6 and 3.7.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import triton
from triton.runtime.cache import FileCacheManager
from triton.runtime.jit import JITFunction

from ..compilation.offline import compile_only
from ..declaration import GPU


class Requests:
    """The kernels asked for since :meth:`clear`, none of them compiled."""

    def __init__(self) -> None:
        self.keys: list[str] = []
        self._lookups: dict[str, bool] = {}

    def clear(self) -> None:
        """Forget what was asked for, not what the cache was found to hold."""
        self.keys.clear()

    @property
    def cached(self) -> bool:
        """Whether the cache holds all of them; False where nothing was asked for."""
        return bool(self.keys) and all(self._lookups.get(key, False) for key in self.keys)

    def seen(self, key: str) -> bool:
        """Whether this kernel was looked up before; notes that it is asked for."""
        self.keys.append(key)
        return key in self._lookups

    def note(self, found: bool) -> None:
        """What the look-up of the kernel asked for last came to."""
        self._lookups[self.keys[-1]] = found


class _Answer(Exception):
    """Carries the answer out of Triton's ``compile``."""

    def __init__(self, found: bool):
        super().__init__()
        self.found = found


@contextlib.contextmanager
def looked_up(gpu: GPU, requests: Requests | None = None) -> Iterator[Requests]:
    """Inside, every launch is looked up in the cache as a launch on ``gpu`` would be, and neither compiled nor run.

    ``requests`` are those of an earlier time, which remember what was found.  Raises what
    :func:`~atlas.compilation.offline.compile_only` raises.
    """
    requests = requests or Requests()
    knobs = triton.knobs
    manager = knobs.cache.manager_class or FileCacheManager

    class Asked(manager):
        """Tells whether the entry is there."""

        def get_group(self, filename: str) -> dict[str, str] | None:
            group = super().get_group(filename) or {}
            raise _Answer(filename in group)

    do_compile = JITFunction._do_compile

    def look_up(self: JITFunction, *args: Any, **kwargs: Any) -> None:
        compile_ = self.compile

        def ask(*asked: Any, **options: Any) -> None:
            if knobs.compilation.always_compile:
                raise _Answer(False)
            compile_(*asked, **options)

        self.compile = ask
        try:
            do_compile(self, *args, **kwargs)
        except _Answer as answer:
            requests.note(answer.found)
        finally:
            self.compile = compile_

    with compile_only(gpu) as asked, knobs.cache.scope():
        note = knobs.runtime.jit_cache_hook

        def noted(**kwargs: Any) -> bool:
            note(**kwargs)
            return requests.seen(asked[-1].key)  # True: Triton goes no further

        knobs.runtime.jit_cache_hook = noted
        knobs.cache.manager_class = Asked
        JITFunction._do_compile = look_up
        try:
            yield requests
        finally:
            JITFunction._do_compile = do_compile
