"""Which GPUs of a run have software of their own: an interpreter that their block names, or the run's config."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from ..host import gpus, interpreters
from ..reading.config import GPUS_FILE


def versions(
    config: Mapping[str, Any],
    blocks: Mapping[str, Mapping[str, Any]],
    places: Mapping[str, gpus.Place],
    where: str,
) -> dict[str, dict[str, str]]:
    """By GPU what its interpreter has; the jobs are told of them.  ``where`` is the name of the config.

    Those of a node of a cluster are not asked: they need not be there on this host.  Raises
    :class:`~atlas.errors.AtlasError` for an interpreter that cannot be used.
    """
    given = config.get(interpreters.KEY) or {}
    pythons = interpreters.settle(blocks, given, list(places), where)
    interpreters.publish(pythons)
    return {
        name: interpreters.versions(python, _named_by(name, given, where))
        for name, python in pythons.items()
        if places[name].where != gpus.CLUSTER
    }


def _named_by(gpu: str, given: Mapping[str, Any], where: str) -> str:
    """The file and the key that name a GPU's interpreter."""
    if gpu in given:
        return f"{where}: key {f'{interpreters.KEY}.{gpu}'!r}"
    return f"{os.path.relpath(GPUS_FILE)}: key {f'{gpu}.{interpreters.KEY}'!r}"


def by_versions(
    blocks: Mapping[str, Mapping[str, Any]], software: Mapping[str, Mapping[str, str]]
) -> dict[str, dict[str, Any]]:
    """The blocks with the versions in the place of the interpreter, whose path is no reason to measure again."""
    named = {
        name: {key: value for key, value in block.items() if key != interpreters.KEY} for name, block in blocks.items()
    }
    for name, found in software.items():
        named[name]["software"] = dict(found)
    return named
