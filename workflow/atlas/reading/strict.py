"""Read a file that somebody else wrote: bounded in size and depth, finite, each key once; or say what is wrong, where.

For documents, configs and tuned configs alike, and for their patterns of a driver's device name: regular expressions
that are known beforehand to take no time worth a word.  Imports nothing but the standard library: a user's model reads
its tuned configs through this, too.
"""

from __future__ import annotations

import json
import math
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MOST_BYTES = 32 * 2**20
"""Of one file; the largest document of a record has not a thirtieth of it."""

MOST_DEPTH = 32
"""Of mappings and lists in one another; documents have seven."""

MOST_INTEGER = 2**63 - 1
"""What a column of a table holds."""

MOST_VALUES = 2_000_000
"""In one file: a few lines of YAML whose aliases name one another have billions."""


class Unreadable(ValueError):
    """What is wrong with a file's content, and where in it; the reader adds the file's name and the remedy."""


class Repeated(dict):
    """A mapping whose text names ``key`` twice."""

    key: str


def text(path: Path, most: int = MOST_BYTES) -> str:
    """The file's text; :class:`Unreadable` for what is no file, is too large or not UTF-8.

    A file that is not there stays a FileNotFoundError.
    """
    return decoded(content(path, most))


def decoded(found: bytes) -> str:
    """The text of bytes that are UTF-8; :class:`Unreadable` of others."""
    try:
        return found.decode()
    except UnicodeDecodeError as error:
        raise Unreadable(f"not UTF-8 at byte {error.start}") from None


def content(path: Path, most: int = MOST_BYTES) -> bytes:
    """The same of a file's bytes."""
    try:
        found = path.stat()
        if stat.S_ISDIR(found.st_mode):
            raise Unreadable("is a folder, not a file")
        if not stat.S_ISREG(found.st_mode):
            raise Unreadable("is no regular file")  # a pipe would be waited for
        if found.st_size > most:
            raise Unreadable(f"has {found.st_size} bytes, of which {most} are read at most")
        return path.read_bytes()
    except FileNotFoundError:
        raise
    except OSError as error:
        raise Unreadable(f"cannot be read: {error.strerror or error}") from None


def load_json(path: Path) -> Any:
    """The JSON file's content, of which :func:`trouble` has nothing to say; raises as :func:`text`."""
    return parse(text(path))


def parse(content: str) -> Any:
    """What a JSON text says, of which :func:`trouble` has nothing to say; :class:`Unreadable` for any other."""
    try:
        value = json.loads(content, object_pairs_hook=_once)
    except json.JSONDecodeError as error:
        raise Unreadable(f"cut off or not JSON ({error})") from None
    except RecursionError:
        raise Unreadable(f"{_deep(content)}: nested more than {MOST_DEPTH} deep") from None
    except ValueError:  # Python reads no integer of more than 4300 digits
        value = json.loads(content, object_pairs_hook=_once, parse_int=_integer)
    if said := trouble(value):
        raise Unreadable(said)
    return value


def trouble(value: Any) -> str:
    """The first thing in a parsed file that no reader of it expects, with its place; ``""`` where there is none.

    Numbers that are not finite or larger than 64 bits, text that cannot be written, keys that are no text or stand
    there twice, and more of anything than :data:`MOST_DEPTH` and :data:`MOST_VALUES`.
    """
    if _fine(value):
        return ""
    for place, said in _found(value, MOST_DEPTH, [MOST_VALUES]):
        key = ".".join(reversed(place))
        return f"key {shown(key)}: {said}" if key else said
    return ""


def shown(value: Any, most: int = 80) -> str:
    """A value as Python writes it, cut to ``most`` characters."""
    try:
        words = repr(value)
    except (ValueError, RecursionError):  # an integer of thousands of digits; a list that holds itself
        words = f"a {type(value).__name__}"
    return words if len(words) <= most else f"{words[: most - 1]}…"


def _fine(value: Any) -> bool:
    """Whether :func:`_found` has nothing to say: the same questions without the places, in a quarter of the time."""
    level, count = [value], 0
    for _ in range(MOST_DEPTH + 1):
        count += len(level)
        if not level or count > MOST_VALUES:
            break
        below: list[Any] = []
        for one in level:
            kind = type(one)
            if kind is str:
                if not one.isascii() and not _writable(one):
                    return False
            elif kind is float:
                if not math.isfinite(one):
                    return False
            elif kind is int:
                if not -MOST_INTEGER <= one <= MOST_INTEGER:
                    return False
            elif kind is dict:
                if not all(type(key) is str and (key.isascii() or _writable(key)) for key in one):
                    return False
                below.extend(one.values())
            elif kind is list:
                below.extend(one)
            elif isinstance(one, dict | list):
                return False
            if len(below) > MOST_VALUES:
                return False
        level = below
    return not level


def _found(value: Any, depth: int, left: list[int]) -> Iterator[tuple[list[str], str]]:
    """Troubles with their places, the innermost key first."""
    left[0] -= 1
    kind = type(value)
    if kind is float:
        if not math.isfinite(value):
            yield [], f"{value} is not a finite number"
    elif kind is int:
        if abs(value) > MOST_INTEGER:
            yield [], "an integer of more than 64 bits"
    elif kind is str:
        if not value.isascii() and not _writable(value):
            yield [], "text with half a character (a lone surrogate)"
    elif isinstance(value, dict | list):
        if not depth:
            yield [], f"nested more than {MOST_DEPTH} deep"
            return
        if kind is Repeated:
            yield [], f"key {shown(value.key)} stands there twice; which of them is meant?"
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            if left[0] < 0:
                yield [], f"holds more than {MOST_VALUES} values"
                return
            if isinstance(value, dict):
                if not isinstance(key, str):
                    yield [], f"key {shown(key)} is no text; write it in quotes"
                    continue
                yield from _found(key, depth, left)
            for place, said in _found(item, depth - 1, left):
                yield [*place, str(key)], said


def _writable(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) == len(pairs):
        return made
    seen: set[str] = set()
    repeated = Repeated(made)
    repeated.key = next(key for key, _ in pairs if key in seen or seen.add(key))
    return repeated


def _integer(digits: str) -> int:
    return int(digits) if len(digits) < 100 else 10**100


def _deep(content: str) -> str:
    """Line and column at which the text is nested deeper than it may be."""
    depth = 0
    for found in re.finditer(r'"(?:[^"\\]|\\.)*"|[\[{]|[\]}]', content):
        depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(found[0], 0)
        if depth > MOST_DEPTH:
            line = content.count("\n", 0, found.start()) + 1
            return f"line {line}, column {found.start() - content.rfind(chr(10), 0, found.start())}"
    return "somewhere"


# A search that fails has gone through every way in which the pattern could match, and nothing ends it: ``(A+)+$`` on a
# name of forty letters takes hours.  So what can match in several ways is counted in the pattern's text, and no group
# may be repeated, which would multiply the ways by themselves.
MOST_STEPS = 10_000_000
"""Of one search: about a second.  One ``.*`` comes to 4,656, three to 3.9 million."""

MOST_CHARACTERS = 200
"""Of a pattern."""

NAME_CHARACTERS = 96
"""Of a device's name, of which more is not looked at; the longest known has 40."""


def pattern_trouble(pattern: Any) -> str:
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


def pattern_found(pattern: str, device_name: str) -> bool:
    """Whether a pattern that has no :func:`trouble` is found in the name."""
    return re.search(pattern, device_name[:NAME_CHARACTERS]) is not None
