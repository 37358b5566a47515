"""What a proof comes to: claims with their limits and figures, and the rows these rest on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Claim:
    """One thing that must hold: what was found, against what limit, in the unit that ``text`` names."""

    text: str
    found: float | int | str | None
    limit: float | int | str | None
    holds: bool


@dataclass(frozen=True)
class Evidence:
    """A proof's outcome.

    ``rows`` are plain dictionaries with the same keys, printed as a table under those keys.  ``notes`` are sentences
    on how the figures were found and what they leave out.
    """

    claims: Sequence[Claim]
    rows: Sequence[Mapping[str, Any]] = ()
    notes: Sequence[str] = field(default_factory=tuple)

    @property
    def holds(self) -> bool:
        """True where every claim does; without claims nothing was proved."""
        return bool(self.claims) and all(claim.holds for claim in self.claims)

    @property
    def broken(self) -> list[Claim]:
        """The claims that do not hold."""
        return [claim for claim in self.claims if not claim.holds]


def at_most(text: str, found: float | None, limit: float) -> Claim:
    """The claim that a figure is there and does not exceed ``limit``."""
    return Claim(text, found, limit, found is not None and found <= limit)


def at_least(text: str, found: float | None, limit: float) -> Claim:
    """The claim that a figure is there and reaches ``limit``."""
    return Claim(text, found, limit, found is not None and found >= limit)


def none_of(text: str, found: Iterable[Any]) -> Claim:
    """The claim that something did not happen: the count of ``found`` is 0."""
    count = len(list(found))
    return Claim(text, count, 0, count == 0)
