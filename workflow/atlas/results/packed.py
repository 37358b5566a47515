"""The form in which a record travels: a document's tables by column, its samples as characters, all of it in xz.

What it holds is JSON, of which ``xz -dc`` shows the text::

    {"form": 1, "document": {the document, with null for each table}, "tables": {"rows": TABLE, ...}}

A TABLE is ``{"rows": count, "shapes": [keys, ...], "shape": which of them each row has, "columns": {key: COLUMN}}``.  A
COLUMN holds the values of the rows that have the key, in order, in the first of these forms that fits:

- ``{"values": [...], "at": "..."}`` of few distinct values: a character a row says which;
- a TABLE, of mappings;
- ``{"runs": [[first, step, gap, ...], ...], "lengths": COLUMN, "text": "..."}`` of lists of numbers with at most three
  decimals, as samples are: each list's distinct values in thousandths, and a character a sample that says which;
- the values themselves.

Equal documents give equal bytes.  Reading is bounded: in the memory of the decompressor, in bytes, and in values.
"""

from __future__ import annotations

import itertools
import json
import lzma
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from ..reading import strict

FORM = 1
_FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "dict_size": 4 * 2**20, "pb": 0}]
_MEMORY = 64 * 2**20
"""What a decompressor may take: of a dictionary of 4 MiB it takes 5."""

_FIRST, _FEW = 35, 90
"""The character of the first of a column's distinct values, and how many of them are few."""
_LOWEST, _MOST_DISTINCT = 32, 250
"""The same of a list of samples."""
_SCALE = 1000
"""Samples are thousandths of a microsecond."""


def pack(document: Mapping[str, Any]) -> bytes:
    """A document, whose values are JSON's, as the content of a file."""
    tables = {key: _table(value) for key, value in document.items() if _mappings(value)}
    packed = {"form": FORM, "document": {k: None if k in tables else v for k, v in document.items()}, "tables": tables}
    text = json.dumps(packed, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return lzma.compress(text.encode(), lzma.FORMAT_XZ, lzma.CHECK_CRC32, filters=_FILTERS)


def unpack(content: bytes) -> Any:
    """The document of a file's content; :class:`~atlas.reading.strict.Unreadable` says what is wrong with it."""
    text = strict.decoded(inflate(content))
    packed = strict.parse(text)
    if not isinstance(packed, dict) or packed.get("form") != FORM:
        said = strict.shown(packed.get("form")) if isinstance(packed, dict) else "missing"
        raise strict.Unreadable(f"key 'form' is {said}, of which this release reads {FORM}")
    try:
        document, tables = packed["document"], packed["tables"]
        reader = _Reader(strict.MOST_BYTES - len(text))
        return dict(document) | {key: reader.table(table) for key, table in tables.items()}
    except (KeyError, TypeError, IndexError, ValueError, AttributeError) as error:
        if isinstance(error, strict.Unreadable):
            raise
        raise strict.Unreadable(f"its tables are damaged ({type(error).__name__}: {error})") from None


def pack_lines(text: str) -> bytes:
    """The lines of a journal, each a mapping of JSON, as the content of a file."""
    return pack({"lines": [json.loads(line) for line in text.splitlines()]})


def unpack_lines(content: bytes) -> bytes:
    """The same lines; raises as :func:`unpack`."""
    return "".join(json.dumps(line) + "\n" for line in unpack(content)["lines"]).encode()


def inflate(content: bytes, most: int = strict.MOST_BYTES) -> bytes:
    """What an xz file of one stream holds; :class:`~atlas.reading.strict.Unreadable` for more than ``most`` bytes."""
    reader = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_MEMORY)
    try:
        found = reader.decompress(content, most + 1)
    except lzma.LZMAError as error:
        raise strict.Unreadable(f"not xz, or damaged ({error})") from None
    if len(found) > most:
        raise strict.Unreadable(f"holds more than the {most} bytes that are read at most")
    if not reader.eof:
        raise strict.Unreadable("cut off: its xz stream has no end")
    if reader.unused_data:
        raise strict.Unreadable(f"has {len(reader.unused_data)} bytes behind the end of its xz stream")
    return found


def beginning(content: bytes, most: int) -> str:
    """The first ``most`` bytes of what the beginning of a file holds; ``""`` for what is no xz."""
    try:
        found = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_MEMORY).decompress(content, most)
    except (lzma.LZMAError, EOFError):
        return ""
    return found.decode(errors="replace")


# --- Packing -------------------------------------------------------------------------------------------------------


def _mappings(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(item, dict) for item in value)


def _table(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    shapes: dict[tuple[str, ...], int] = {}
    which = [shapes.setdefault(tuple(row), len(shapes)) for row in rows]
    columns: dict[str, list[Any]] = {}
    for row in rows:
        for key, value in row.items():
            columns.setdefault(key, []).append(value)
    return {
        "rows": len(rows),
        "shapes": list(map(list, shapes)),
        "shape": _column(which),
        "columns": {key: _column(values) for key, values in columns.items()},
    }


def _column(values: list[Any]) -> Any:
    texts = [json.dumps(value) for value in values]  # 1, 1.0 and true are three values
    places = {text: place for place, text in enumerate(dict.fromkeys(texts))}
    if len(places) <= _FEW and 3 * len(places) <= len(values):
        return {"values": list(map(json.loads, places)), "at": "".join(chr(_FIRST + places[text]) for text in texts)}
    if _mappings(values):
        return _table(values)
    return _runs(values) or values


def _runs(values: Sequence[Any]) -> dict[str, Any] | None:
    """Lists of samples in their form; None for what is not just that."""
    runs, text = [], []
    for samples in values:
        if not isinstance(samples, list) or not all(type(sample) is float for sample in samples):
            return None
        whole = [round(sample * _SCALE) for sample in samples if abs(sample) < 1e9]
        if [one / _SCALE for one in whole] != samples or len(set(whole)) > _MOST_DISTINCT:
            return None
        distinct = sorted(set(whole))
        gaps = [after - before for before, after in itertools.pairwise(distinct)]
        step = math.gcd(*gaps) or 1
        runs.append([*distinct[:1], step, *(gap // step for gap in gaps)] if distinct else [])
        places = {one: chr(_LOWEST + place) for place, one in enumerate(distinct)}
        text += [places[one] for one in whole]
    return {"runs": runs, "lengths": _column([len(samples) for samples in values]), "text": "".join(text)}


# --- Unpacking -----------------------------------------------------------------------------------------------------


class _Reader:
    """Makes tables of their columns, up to so many values and ``size`` bytes of text more than the file has."""

    def __init__(self, size: int):
        self._values, self._bytes = strict.MOST_VALUES, size

    def table(self, table: Mapping[str, Any]) -> list[dict[str, Any]]:
        count, shapes = table["rows"], [tuple(keys) for keys in table["shapes"]]
        self._spend(count)
        which = self._column(table["shape"], count)
        of_shape = Counter(which)
        lengths: Counter[str] = Counter()
        for shape, used in of_shape.items():
            lengths.update(dict.fromkeys(shapes[shape], used))
        columns = {key: self._column(table["columns"][key], length) for key, length in lengths.items()}
        if len(of_shape) == 1:
            keys = shapes[which[0]]
            own = [columns[key] for key in keys]
            return [dict(zip(keys, row, strict=True)) for row in zip(*own, strict=True)] if keys else [{}] * count
        waiting = {key: iter(values) for key, values in columns.items()}
        return [{key: next(waiting[key]) for key in shapes[shape]} for shape in which]

    def _column(self, column: Any, count: int) -> list[Any]:
        if isinstance(column, list):
            values = column
            self._spend(len(values))
        elif "at" in column:
            values = self._few(column["values"], column["at"])
        elif "runs" in column:
            values = self._samples(column["runs"], self._column(column["lengths"], count), column["text"])
        else:
            values = self.table(column)
        if len(values) != count:
            raise strict.Unreadable(f"its tables are damaged (a column of {len(values)} values for {count} rows)")
        return values

    def _few(self, values: Sequence[Any], at: str) -> list[Any]:
        used = Counter(at)
        for place, value in enumerate(values):
            times = used.get(chr(_FIRST + place), 0)
            self._spend(times * _count(value), times * len(json.dumps(value)))
        known = {chr(_FIRST + place): value for place, value in enumerate(values)}
        if not any(isinstance(value, dict | list) for value in values):
            return [known[one] for one in at]
        return [_fresh(known[one]) for one in at]

    def _samples(self, runs: Sequence[Sequence[int]], lengths: Sequence[int], text: str) -> list[list[float]]:
        self._spend(len(text))
        values, begin = [], 0
        for run, length in zip(runs, lengths, strict=True):
            known = {}
            if run:
                first, step, *gaps = run
                at = itertools.accumulate((step * gap for gap in gaps), initial=first)
                known = {chr(_LOWEST + place): one / _SCALE for place, one in enumerate(at)}
            if length < 0:
                raise strict.Unreadable("its tables are damaged (a length below 0)")
            values.append([known[one] for one in text[begin : begin + length]])
            begin += length
        if begin != len(text):
            raise strict.Unreadable(f"its tables are damaged ({len(text)} samples, {begin} told)")
        return values

    def _spend(self, values: int, size: int = 0) -> None:
        self._values -= values
        self._bytes -= size
        if values < 0 or self._values < 0 or self._bytes < 0:
            raise strict.Unreadable(f"holds more than {strict.MOST_VALUES} values or {strict.MOST_BYTES} bytes")


def _count(value: Any) -> int:
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + sum(map(_count, items))


def _fresh(value: Any) -> Any:
    """A copy, so that no two rows share what somebody may change."""
    if isinstance(value, dict):
        return {key: _fresh(item) for key, item in value.items()}
    return [_fresh(item) for item in value] if isinstance(value, list) else value
