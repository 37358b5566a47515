"""Result documents: what every stage writes, checked against its JSON Schema when written and when read."""

from __future__ import annotations

import functools
import json
import math
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema

from .config import explain, schema
from .errors import AtlasError, unwritable

VERSIONS = {"survey": 1, "build": 1, "validate": 1, "autotune": 1, "benchmark": 1, "profile": 1, "prove": 1, "cuda": 1}
"""The schema version of each stage's document: raised when a reader of the old form would misread the new one."""


class DocumentError(AtlasError):
    """A document that is cut off, of another schema version, or does not fit its schema."""


def _fits(validator: Any, value: Any, subschema: Any) -> bool:
    """Whether ``value`` is of the type that is all ``subschema`` asks for; False where it asks for more."""
    if not isinstance(subschema, dict) or not subschema.keys() <= {"type", "description"} or "type" not in subschema:
        return False
    types = subschema["type"]
    return any(validator.is_type(value, kind) for kind in ([types] if isinstance(types, str) else types))


def _properties(validator: Any, properties: Any, instance: Any, schema: Any) -> Iterator[Any]:
    if isinstance(instance, dict):
        properties = {
            name: subschema
            for name, subschema in properties.items()
            if name in instance and not _fits(validator, instance[name], subschema)
        }
    yield from jsonschema.Draft202012Validator.VALIDATORS["properties"](validator, properties, instance, schema)


def _items(validator: Any, items: Any, instance: Any, schema: Any) -> Iterator[Any]:
    if isinstance(instance, list) and not isinstance(items, bool):
        # One of each Python type stands for the others; but of floats the whole ones alone are integers.
        alike = float not in map(type, instance) or "integer" not in items.get("type", ())
        some = {type(value): value for value in instance}.values() if alike else instance
        if all(_fits(validator, value, items) for value in some):
            return
    yield from jsonschema.Draft202012Validator.VALIDATORS["items"](validator, items, instance, schema)


# Most of a document are numbers of which nothing but the type is asked, and jsonschema makes a validator for each: the
# records of 21 kernels took 11 s, in every view.  What is not at once seen to fit is left to jsonschema's own.
_Validator = jsonschema.validators.extend(jsonschema.Draft202012Validator, {"properties": _properties, "items": _items})


@functools.cache
def _validator(stage: str) -> Any:
    envelope, body = schema("document"), schema(stage)
    merged = {
        "type": "object",
        "required": envelope["required"] + body.get("required", []),
        "properties": envelope["properties"] | body["properties"],
        "additionalProperties": False,
    }
    return _Validator(merged)


def _finite(value: Any) -> Any:
    """The same value with NaN and infinities as None: JSON has neither."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


def check(document: Any, stage: str, where: str) -> None:
    """Raise :class:`DocumentError` unless ``document`` is a ``stage`` document of today's version."""
    if not isinstance(document, dict) or document.get("stage") != stage:
        raise DocumentError(f"{where}: not a document of stage {stage!r}")
    if document.get("schema_version") != VERSIONS[stage]:
        raise DocumentError(
            f"{where}: key 'schema_version' is {document.get('schema_version')!r}, this release reads "
            f"{VERSIONS[stage]}; measure it again, or read it with the release that wrote it"
        )
    error = jsonschema.exceptions.best_match(_validator(stage).iter_errors(document))
    if error is not None:
        raise DocumentError(f"{where}: {explain(error)}; delete the file to have it made again")


def write(path: Path, document: dict[str, Any]) -> None:
    """Check ``document`` and put it at ``path`` in one step: a reader sees the old file or the new one, whole."""
    document = _finite(document)
    check(document, document["stage"], str(path))
    write_text(path, json.dumps(document, indent=1, allow_nan=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write a file by renaming a finished one into place; :class:`AtlasError` where that is not possible.

    Whatever happens, ``path`` holds the old text or the new one, whole; of two writers at once the last one's.  On a
    failure nothing else is left behind.
    """
    # Unique, so that two runs which write one document do not write one file.
    finished = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with finished.open("x") as file:
                file.write(text)
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
        document = json.loads(path.read_text())
    except FileNotFoundError:
        raise DocumentError(f"{path}: no such document; run the {stage} stage first") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise DocumentError(
            f"{path}: cut off or not JSON ({error}); delete the file to have it made again, or restore it from git"
        ) from None
    check(document, stage, str(path))
    return document
