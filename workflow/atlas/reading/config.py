"""Load and check ``config/config.yaml`` and ``config/gpus.yaml``; imports neither torch nor mlflow."""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jsonschema
import yaml

from .. import ROOT
from ..errors import AtlasError
from . import strict

SCHEMAS = ROOT / "workflow" / "schemas"
VARIABLE = "KERNEL_ATLAS_CONFIG"
"""Names the folder ``config`` of a project that uses the workflow from a repository; the workflow sets it."""


def config_file(name: str) -> Path:
    """A file of the folder ``config``: the user's own where there is one, else this checkout's."""
    own = Path(os.environ.get(VARIABLE) or ROOT / "config", name)
    return own if own.exists() else ROOT / "config" / name


GPUS_FILE = config_file("gpus.yaml")
CONFIG_FILE = config_file("config.yaml")


def schema(name: str) -> dict[str, Any]:
    """The JSON Schema ``workflow/schemas/<name>.schema.json``."""
    return json.loads((SCHEMAS / f"{name}.schema.json").read_text())


MOST_BYTES = 2**20
"""Of a config file."""


class _Loader(yaml.SafeLoader):
    """YAML in which a mapping has each key once; what is merged in by ``<<`` may be overridden, as YAML has it."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """The mapping; MarkedYAMLError at the line of a key that stands there twice."""
        seen: set[tuple[str, str]] = set()
        for key, _ in node.value:
            named = (key.tag, getattr(key, "value", ""))
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.constructor.ConstructorError(None, None, "a key is no text", key.start_mark)
            if named in seen and key.tag != "tag:yaml.org,2002:merge":
                said = f"key {key.value!r} stands there twice; which of them is meant?"
                raise yaml.constructor.ConstructorError(None, None, said, key.start_mark)
            seen.add(named)
        return super().construct_mapping(node, deep)


def _integer(loader: _Loader, node: yaml.ScalarNode) -> int:
    if len(node.value) > 100:  # more than Python reads in a time worth a word
        raise yaml.constructor.ConstructorError(None, None, "an integer of more than 64 bits", node.start_mark)
    return loader.construct_yaml_int(node)


_Loader.add_constructor("tag:yaml.org,2002:int", _integer)


def load_yaml(path: Path) -> Any:
    """The content of a YAML file; :class:`AtlasError` names the file and the line or key where it cannot be used.

    Each key stands once and is text, numbers are finite, and nothing is larger or deeper than a config can be.
    """
    try:
        value = yaml.load(strict.text(path, MOST_BYTES), Loader=_Loader)
    except FileNotFoundError:
        raise AtlasError(f"{path}: no such file") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}, line {mark.line + 1}" if mark else str(path)
        said = getattr(error, "problem", None) or next(iter(str(error).splitlines()), "no reason given")
        raise AtlasError(f"{where}: not YAML that can be used: {said}") from None
    except RecursionError:
        raise AtlasError(f"{path}: nested more than {strict.MOST_DEPTH} deep") from None
    except (ValueError, OverflowError) as error:  # strict.Unreadable; an integer or a date that is none
        raise AtlasError(f"{path}: {error}") from None
    if said := strict.trouble(value):
        raise AtlasError(f"{path}: {said}")
    return value


def check(document: Any, schema_name: str, where: str) -> None:
    """Raise :class:`AtlasError` with one sentence (file, key, remedy) unless ``document`` fits the schema."""
    if said := strict.trouble(document):
        raise AtlasError(f"{where}: {said}")
    checker = jsonschema.Draft202012Validator.FORMAT_CHECKER
    validator = jsonschema.Draft202012Validator(schema(schema_name), format_checker=checker)
    errors = list(validator.iter_errors(document))
    # A mistyped key is unknown and leaves another one missing: the first is what the user did.
    unknown = [error for error in errors if error.validator == "additionalProperties"]
    error = unknown[0] if unknown else jsonschema.exceptions.best_match(errors)
    if error is not None:
        raise AtlasError(f"{where}: {explain(error)}")


_LIMITS = {
    "minimum": "less than the minimum of",
    "maximum": "more than the maximum of",
    "exclusiveMinimum": "not more than",
}


def explain(error: jsonschema.ValidationError | None) -> str:
    """One schema error as a sentence that names the key, the value and what would be right.

    None is what one of two validators found and the other did not.
    """
    if error is None:
        return "does not fit its schema"
    key = ".".join(str(part) for part in error.absolute_path)
    prefix = f"key {key!r}: " if key else ""
    if error.validator == "additionalProperties" and isinstance(error.instance, Mapping):
        known = list(error.schema.get("properties", {}))
        unknown = sorted(str(name) for name in error.instance if name not in known)
        near = difflib.get_close_matches(unknown[0], known, n=1) if unknown else []
        hint = f"did you mean {near[0]!r}?" if near else f"known keys are {', '.join(known)}"
        return f"{prefix}unknown key {unknown[0]!r}; {hint}" if unknown else prefix + error.message
    if error.validator == "required":
        missing = [name for name in error.validator_value if name not in error.instance]
        return f"{prefix}missing key {missing[0]!r}"
    value = strict.shown(error.instance)
    if error.validator == "enum":
        near = difflib.get_close_matches(str(error.instance), [str(v) for v in error.validator_value], n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"use one of {', '.join(map(str, error.validator_value))}"
        return f"{prefix}{value} is not allowed; {hint}"
    meant = f": {error.schema['description']}" if "description" in error.schema else ""
    if error.validator == "type":
        wanted = error.validator_value
        wanted = " or ".join(wanted) if isinstance(wanted, list) else wanted
        return f"{prefix}{value} is of the wrong type; give a value of type {wanted}{meant}"
    if error.validator in _LIMITS:
        return f"{prefix}{value} is {_LIMITS[error.validator]} {error.validator_value}{meant}"
    if error.validator == "format":
        return f"{prefix}{value} is not a valid {error.validator_value}"
    if error.validator in ("anyOf", "pattern") and "description" in error.schema:
        return f"{prefix}{value} does not fit; give {error.schema['description']}"
    return prefix + (error.message if len(error.message) < 300 else f"{value} does not fit: {error.validator}")


def load_gpus(path: Path = GPUS_FILE) -> dict[str, dict[str, Any]]:
    """The blocks of ``config/gpus.yaml`` by name, checked."""
    blocks = load_yaml(path)
    check(blocks, "gpus", str(path))
    for name, block in blocks.items():
        if "match" in block and (said := strict.pattern_trouble(block["match"])):
            raise AtlasError(f"{path}: key {f'{name}.match'!r}: {strict.shown(block['match'])} {said}")
    return blocks


def load_config(path: Path = CONFIG_FILE) -> dict[str, Any]:
    """The content of a config file as far as it can be told alone: a mapping whose keys are config.yaml's.

    Which of them it lacks the command line or another file may say.
    """
    config = load_yaml(path)
    if not isinstance(config, dict):
        raise AtlasError(f"{path}: {strict.shown(config)} is no mapping; give keys such as `kernels: all`")
    return config


def check_config(config: Mapping[str, Any], where: str) -> None:
    """Raise :class:`AtlasError` unless ``config`` fits the schema of ``config/config.yaml``."""
    check(dict(config), "config", where)


def read_words(config: Mapping[str, Any]) -> dict[str, Any]:
    """``config`` with numbers and booleans of its sections read where the schema wants them and there are words.

    Snakemake leaves what stands in braces on its command line, ``--config 'profile={run: true}'``, as words.
    """
    sections = schema("config")["properties"]
    return {
        name: {key: _read(value, sections[name]["properties"].get(key, {})) for key, value in section.items()}
        if isinstance(section, Mapping) and "properties" in sections.get(name, {})
        else section
        for name, section in config.items()
    }


def _read(value: Any, wanted: Mapping[str, Any]) -> Any:
    if not isinstance(value, str) or wanted.get("type") not in ("boolean", "integer", "number"):
        return value
    try:
        found = yaml.safe_load(value)
    except (yaml.YAMLError, ValueError, RecursionError):
        return value
    return found if isinstance(found, (bool, int, float)) else value
