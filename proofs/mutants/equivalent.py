"""Generated faults that nobody can observe, or that validation cannot: which, and why.

A fault that no check runs is recognised by planting an error in its place (:mod:`.attempts`) and needs no line here.
"""

from __future__ import annotations

import re

REASONS = {
    r"mask dropped \d+: tl\.load\(": "what is read past the end is not used: only a memory checker shows it",
    r"_?add: dtype narrowed": "one sum of two 16-bit numbers rounds alike in 16 bits and in 32",
    r"(multiply_add|drop|rotate_lanes|target_of|forward_tile|backward_rows_kernel): dtype narrowed": "what it meets "
    "next is fp32, so it becomes fp32",
    r"phi: bound off by one \d+: x > 0": "both ways give the same at 0",
    r"drop: bound off by one \d+: .*>= threshold": "one mask in 2^32 differs",
    r"bound off by one \d+: .*(first|first_m|start|pid).* <= .* < ": "a full block may take the tail's way",
}
"""By a pattern of a fault's name, why it cannot be caught."""


def reason(name: str) -> str:
    """Why a generated fault of this name cannot be caught; ``""`` where nothing says so."""
    return next((why for pattern, why in REASONS.items() if re.search(pattern, name)), "")
