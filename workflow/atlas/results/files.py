"""Which file holds a document: ``<stage>.json``, or of a record ``<stage>.json.xz``, in ``<gpu>`` or ``<gpu>@<host>``.

Of a document in both forms the packed one counts.  ``results/recorded/h200/`` is the H200's first host's,
``h200@lab2/`` that of another host with the same GPU; views show it as a GPU of its own.  Imports only pathlib.
"""

from __future__ import annotations

import re
from pathlib import Path, PurePath

PACKED, PLAIN = ".json.xz", ".json"
DUE = ".due"
"""Suffix of a file beside a restored document that is to be made anew, newer than that one."""
HOST = "@"
"""Stands before the host in the name of a folder of records."""

STAGES = (
    "survey", "build", "validate", "autotune", "sample", "benchmark", "beyond", "profile", "energy", "predict", "cuda",
)  # fmt: skip
"""Whose documents are named after them; proofs have names of their own."""

_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,39}")


def found(folder: Path, name: str) -> Path:
    """The file of a document, packed where it is there so; else the plain one, whether it is there or not."""
    packed = folder / f"{name}{PACKED}"
    return packed if packed.exists() else folder / f"{name}{PLAIN}"


def listed(folder: Path, pattern: str) -> list[Path]:
    """The documents' files below a folder that fit a pattern without suffix, such as ``*/*/benchmark``; sorted."""
    by_name = {path.with_name(name_of(path)): path for form in (PLAIN, PACKED) for path in folder.glob(pattern + form)}
    return [path for _, path in sorted(by_name.items())]


def name_of(path: PurePath) -> str:
    """``benchmark`` of either of a benchmark's files."""
    return path.name.removesuffix(".xz").removesuffix(PLAIN)


def is_document(path: PurePath) -> bool:
    """Whether a file's name is that of a stage's document, or of a proof."""
    return path.name.endswith((PACKED, PLAIN)) and (name_of(path) in STAGES or path.parent.name == "proof")


def gpu_of(folder: str) -> str:
    """``h200`` of ``h200@lab2``."""
    return folder.partition(HOST)[0]


def folder_of(gpu: str, host: str) -> str:
    """The name of the folder of a GPU's records; ``host`` is empty for the first one's."""
    return f"{gpu}{HOST}{host}" if host else gpu


def hosts(recorded: Path, gpu: str) -> list[Path]:
    """The folders of a GPU's records that are there, the first host's first."""
    return [path for path in (recorded / gpu, *sorted(recorded.glob(f"{gpu}{HOST}*"))) if path.is_dir()]


def is_label(host: str) -> bool:
    """Whether a host may be called so."""
    return _LABEL.fullmatch(host) is not None
