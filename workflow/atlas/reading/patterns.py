"""Patterns for a driver's device name: regular expressions that are known beforehand to take no time worth a word.

A search that fails has gone through every way in which the pattern could match, and nothing ends it: ``(A+)+$`` on a
name of forty letters takes hours.  So what can match in several ways is counted in the pattern's text, and no group may
be repeated, which would multiply the ways by themselves.
"""

from __future__ import annotations

import math
import re
from typing import Any

MOST_STEPS = 10_000_000
"""Of one search: about a second.  One ``.*`` comes to 4,656, three to 3.9 million."""

MOST_CHARACTERS = 200
"""Of a pattern."""

NAME_CHARACTERS = 96
"""Of a device's name, of which more is not looked at; the longest known has 40."""


def trouble(pattern: Any) -> str:
    """Why a pattern cannot be searched for in a device's name; ``""`` for one that can."""
    if not isinstance(pattern, str) or not pattern:
        return "is no pattern; give a regex, such as 'NVIDIA H200$'"
    if len(pattern) > MOST_CHARACTERS:
        return f"is a regex of {len(pattern)} characters; give one of {MOST_CHARACTERS} at most"
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        return f"is not a valid regex: {error}"
    bare = re.sub(r"\\[^1-9]|\[\^?\]?[^\]]*\]", "x", pattern)  # an escape, or a set, stands for one character
    if re.search(r"\)[*+{]", bare):
        return "is a regex that repeats a group, which may take hours; repeat single characters, as in 'A100.*80GB'"
    if "\\" in bare or re.search(r"\(\?(?!:|i\))", bare):
        return "is a regex that refers to its groups or looks around; give one without"
    repeats, choices = len(re.findall(r"[*+{]", bare)), len(re.findall(r"[|?]", bare))
    if math.comb(NAME_CHARACTERS + repeats, repeats + 1) * 2**choices > MOST_STEPS:
        return f"is a regex with {repeats} repeats and {choices} choices, which may take minutes; give one with fewer"
    return ""


def found(pattern: str, device_name: str) -> bool:
    """Whether a pattern that has no :func:`trouble` is found in the name."""
    return re.search(pattern, device_name[:NAME_CHARACTERS]) is not None
