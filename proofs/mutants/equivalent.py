"""Generated faults that nobody can observe, or that validation cannot: which, and why.

A fault that no check runs is recognised by planting an error in its place (:mod:`.attempts`) and needs no line here.
"""

from __future__ import annotations

import re

REASONS = {
    r"mask dropped \d+: tl\.load\(": "what is read past the end is not used: only a memory checker shows it",
    r"_?add: dtype narrowed": "one sum of two 16-bit numbers rounds alike in 16 bits and in 32",
    r"bound off by one \d+: .*(first|start|pid).* <= .* < ": "a block that is just full may take the way of a tail",
}
"""By a pattern of a fault's name, why it cannot be caught."""


def reason(name: str) -> str:
    """Why a generated fault of this name cannot be caught; ``""`` where nothing says so."""
    return next((why for pattern, why in REASONS.items() if re.search(pattern, name)), "")
