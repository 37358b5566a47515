"""The search strategies there are, by name."""

from __future__ import annotations

import difflib

from ...errors import AtlasError
from .guided import GUIDED
from .halving import HALVING
from .strategy import EXHAUSTIVE, Strategy

STRATEGIES = {one.name: one for one in (HALVING, EXHAUSTIVE, GUIDED)}


def strategy(name: str) -> Strategy:
    """The strategy of this name; :class:`AtlasError` names those there are."""
    if name not in STRATEGIES:
        near = difflib.get_close_matches(name, STRATEGIES, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(STRATEGIES)}"
        raise AtlasError(f"command line: --strategy: unknown strategy {name!r}; {hint}")
    return STRATEGIES[name]
