"""Result documents: what every stage writes, checked against its JSON Schema when written and when read."""

from __future__ import annotations

import functools
import json
import math
import os
import re
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema
import jsonschema_rs

from ..errors import AtlasError, unwritable
from ..reading import strict
from ..reading.config import explain, schema
from . import packed

VERSIONS = {
    **{"survey": 1, "build": 1, "validate": 1, "autotune": 1, "sample": 1, "benchmark": 1, "beyond": 1, "profile": 1},
    **{"energy": 1, "predict": 1, "prove": 1, "cuda": 1},
}
"""The schema version of each stage's document: raised when a reader of the old form would misread the new one."""


class DocumentError(AtlasError):
    """A document that is cut off, of another schema version, or does not fit its schema."""


@functools.cache
def _schema(stage: str) -> dict[str, Any]:
    envelope, body = schema("document"), schema(stage)
    return {
        "type": "object",
        "required": envelope["required"] + body.get("required", []),
        "properties": envelope["properties"] | body["properties"],
        "additionalProperties": False,
        "$defs": envelope["$defs"],
    }


@functools.cache
def _validator(stage: str) -> jsonschema_rs.Draft202012Validator:
    return jsonschema_rs.Draft202012Validator(_schema(stage))


def _complaint(document: Any, stage: str) -> str:
    """What is wrong with a document that does not fit, or ``""``.

    Whether it fits is asked of the fast one of two libraries: the records of 21 kernels are read by every view, and
    take the other, which knows what to say, 11 s.
    """
    if _validator(stage).is_valid(_with_few_samples(document)):
        return ""
    errors = jsonschema.Draft202012Validator(_schema(stage)).iter_errors(document)
    return explain(jsonschema.exceptions.best_match(errors))


def _with_few_samples(document: Any) -> Any:
    """The document with the least and the largest of its samples, which fit the schema where all do.

    There are a hundred to each other value of a benchmark.
    """
    rows = document.get("rows")
    if not isinstance(rows, list):
        return document
    return document | {"rows": [_of_few_samples(row) for row in rows]}


def _of_few_samples(row: Any) -> Any:
    samples = row.get("samples_us") if isinstance(row, dict) else None
    if type(samples) is not list or not 2 < len(samples) < 1000 or not {*map(type, samples)} <= {int, float}:
        return row
    return row | {"samples_us": [min(samples), max(samples)]}


def _finite(value: Any) -> Any:
    """The same value with NaN and infinities as None, and halves of characters as ``?``: JSON has none of them.

    What is a kind of text or of number, as torch's version is, becomes just that.
    """
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, str):
        return str(value) if value.isascii() else value.encode(errors="replace").decode()
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


def check(document: Any, stage: str, where: str) -> None:
    """Raise :class:`DocumentError` unless ``document`` is a ``stage`` document of today's version."""
    if said := strict.trouble(document):
        raise DocumentError(f"{where}: {said}; delete the file to have it made again")
    _check_form(document, stage, where)


def _check_form(document: Any, stage: str, where: str) -> None:
    if not isinstance(document, dict) or document.get("stage") != stage:
        raise DocumentError(f"{where}: not a document of stage {stage!r}")
    if document.get("schema_version") != VERSIONS[stage]:
        raise DocumentError(
            f"{where}: key 'schema_version' is {document.get('schema_version')!r}, this release reads "
            f"{VERSIONS[stage]}; measure it again, or read it with the release that wrote it"
        )
    if complaint := _complaint(document, stage):
        raise DocumentError(f"{where}: {complaint}; delete the file to have it made again")


def write(path: Path, document: dict[str, Any]) -> None:
    """Check ``document`` and put it at ``path`` in one step: a reader sees the old file or the new one, whole."""
    document = _finite(document)
    check(document, document["stage"], str(path))
    write_text(path, json.dumps(document, indent=1, allow_nan=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """:func:`write_bytes` of a text."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file by renaming a finished one into place; :class:`AtlasError` where that is not possible.

    Whatever happens, ``path`` holds the old content or the new one, whole; of two writers at once the last one's.  On a
    failure nothing else is left behind.
    """
    # Unique, so that two runs which write one document do not write one file.
    finished = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with finished.open("xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())  # or a name could outlive a power cut that its content does not
            finished.replace(path)
        finally:
            finished.unlink(missing_ok=True)
    except OSError as error:
        raise unwritable(path, error, "what was there before is unchanged") from None


def read(path: Path, stage: str) -> dict[str, Any]:
    """The ``stage`` document at ``path``, checked; :class:`DocumentError` says what is wrong with it and what to do."""
    try:
        return parse(strict.content(path), stage, str(path))
    except FileNotFoundError:
        raise DocumentError(f"{path}: no such document; run the {stage} stage first") from None
    except strict.Unreadable as error:
        raise DocumentError(f"{path}: {error}; {_REMEDY}") from None


_REMEDY = "delete the file to have it made again, or restore it from git"


def parse(content: bytes, stage: str | None, name: str) -> dict[str, Any]:
    """The same of a file's content; ``name`` is what messages call it, and its end says in which form it is.

    ``stage`` None: of whatever stage the document says.
    """
    try:
        document = packed.unpack(content) if name.endswith(".xz") else strict.parse(strict.decoded(content))
    except strict.Unreadable as error:
        raise DocumentError(f"{name}: {error}; {_REMEDY}") from None
    if stage is None:
        stage = document.get("stage") if isinstance(document, dict) else None
        if not isinstance(stage, str) or stage not in VERSIONS:
            raise DocumentError(f"{name}: key 'stage' is {strict.shown(stage)}: no result document; leave it out")
    _check_form(document, stage, name)  # whose values were looked at while it was read
    return document


def load(path: Path) -> Any:
    """What a file of either form holds, bounded, and not compared with a schema.

    Raises :class:`~atlas.reading.strict.Unreadable`, and FileNotFoundError where there is none.
    """
    return packed.unpack(strict.content(path)) if path.suffix == ".xz" else strict.load_json(path)


_ENVELOPE_BYTES = 8192
"""Documents begin with their envelope, which is a few thousand bytes long."""

_WORD = r'"{}"\s*:\s*"([^"]*)"'
_WORDS = {key: re.compile(_WORD.format(key)) for key in ("stage", "status", "date", "code")}
_IDENTITIES = re.compile(r'"identities"\s*:\s*(\{[^}]*\})')
_SECONDS = re.compile(r'"seconds"\s*:\s*([0-9.eE+-]+)')


@dataclass(frozen=True)
class Envelope:
    """A document's stage, status, date, the identities it is true of, that of the code which wrote it, and its seconds.

    None where it does not state one, or cannot be read: the stages that read it whole say what is wrong with it.
    """

    stage: str | None = None
    status: str | None = None
    date: str | None = None
    identities: dict[str, str] | None = None
    code: str | None = None
    seconds: float | None = None


def read_envelope(path: Path) -> Envelope:
    """The head of the document at ``path``; of one that is missing, empty."""
    if not path.is_file():
        return Envelope()
    try:
        if path.suffix == ".xz":
            with path.open("rb") as packed_file:
                text = packed.beginning(packed_file.read(_ENVELOPE_BYTES), _ENVELOPE_BYTES)
        else:
            with path.open(errors="replace") as file:
                text = file.read(_ENVELOPE_BYTES)
    except OSError:
        return Envelope()
    seconds = _SECONDS.search(text)
    if seconds is None:  # an envelope in another order, or one with a very long reason
        return _envelope_of_all(path)
    found = {key: match[1] for key, pattern in _WORDS.items() if (match := pattern.search(text))}
    identities = _IDENTITIES.search(text)
    try:
        own = json.loads(identities[1]) if identities else None
        return Envelope(**found, identities=own, seconds=float(seconds[1]))
    except ValueError:
        return _envelope_of_all(path)


def _envelope_of_all(path: Path) -> Envelope:
    try:
        document = load(path)
        found = {key: document.get(key) for key in ("stage", "status", "identities", "code", "seconds")}
        return Envelope(**found, date=document["software"].get("date"))
    except (strict.Unreadable, FileNotFoundError, KeyError, TypeError, AttributeError):
        return Envelope()
