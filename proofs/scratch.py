"""Where a proof puts what it makes on the way: its folder, stages run there, and what its pieces hold for.

A long proof that was cut off goes on from its pieces instead of starting again.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from atlas import ROOT, catalog
from atlas.errors import AtlasError
from atlas.host import gpus, interpreters
from atlas.host.environment import python_path
from atlas.results import documents, files
from atlas.stages import frame

_OWN = ("TRITON_INTERPRET", gpus.PLACES_VARIABLE, interpreters.VARIABLE)
"""Variables that a process sets for itself and its children; a fresh one settles them anew."""

CHECKOUT = ("Snakefile", "workflow", "kernels", "config", "profiles", "environment.yml", "results/recorded")
"""What a user's checkout has; records among it, since they say which job is long and begins first."""

_LAST_WORDS = 3
"""Lines of a failed command's output that are quoted."""


def add_arguments(parser: argparse.ArgumentParser, kernels: str = "") -> None:
    """``--kernels`` (``kernels`` by default, or all) and ``--scratch``."""
    parser.add_argument("--kernels", default=kernels, metavar="A,B", help=f"default: {kernels or 'all'}")
    add_folder(parser)


def add_folder(parser: argparse.ArgumentParser) -> None:
    """``--scratch``."""
    parser.add_argument("--scratch", type=Path, metavar="FOLDER", help="keep what is measured on the way here, and go "
                        "on from it where an earlier run was cut off (default: a temporary folder)")  # fmt: skip


def add_cores(parser: argparse.ArgumentParser) -> None:
    """``--cores``."""
    parser.add_argument("--cores", type=int, metavar="N", help="default: all that this process may use")


def kernels_of(arguments: argparse.Namespace) -> list[str]:
    """The kernels that ``--kernels`` names, all where it names none; :class:`AtlasError` for an unknown one."""
    names = [name.strip() for name in arguments.kernels.split(",") if name.strip()]
    for name in names:
        catalog.check_name(name)
    return names or catalog.names()


def cores_of(arguments: argparse.Namespace) -> int:
    """The cores that ``--cores`` gives, or all that this process may use."""
    if arguments.cores is not None and arguments.cores < 1:
        raise AtlasError(f"command line: --cores is {arguments.cores}; give 1 or more")
    return arguments.cores or len(os.sched_getaffinity(0))


@contextlib.contextmanager
def folder(job: frame.Job) -> Iterator[Path]:
    """The absolute path of the scratch folder that the user gave, or of a temporary one."""
    given = job.arguments.scratch
    if given is None:
        with tempfile.TemporaryDirectory(prefix="atlas-proof.") as made:
            yield Path(made)
        return
    try:
        given.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise AtlasError(f"command line: --scratch {given}: cannot be made: {error.strerror}") from None
    yield given.resolve()


def earlier(job: frame.Job, kernel: str, stage: str) -> tuple[str, dict[str, Any]]:
    """The document an earlier stage wrote of a kernel, and its kind: ``measured`` here, else ``recorded``."""
    places = [
        ("measured", job.results / "measured"),
        ("recorded", job.results / "recorded"),
        ("recorded", ROOT / "results" / "recorded"),
    ]
    for kind, place in places:
        path = files.found(place / job.gpu_name / kernel, stage)
        if path.exists():
            return kind, documents.read(path, stage)
    raise AtlasError(
        f"{places[0][1] / job.gpu_name / kernel / f'{stage}.json'}: no such document, and none recorded; "
        f"run python -m atlas {stage} {kernel} --gpu {job.gpu_name} first"
    )


def put(job: frame.Job, kernel: str, stages: Iterable[str], results: Path) -> None:
    """Copy the earlier documents of a kernel to where a stage that is given ``--results`` looks for them."""
    for stage in stages:
        _, document = earlier(job, kernel, stage)
        documents.write(results / "measured" / job.gpu_name / kernel / f"{stage}.json", document)


def common(job: frame.Job) -> list[str]:
    """The options that name this GPU to a stage, whatever its working folder."""
    return ["--gpu", job.gpu_name, "--gpus-file", str(job.arguments.gpus_file.resolve())]


def copy_checkout(job: frame.Job, root: Path, parts: Iterable[str] = CHECKOUT) -> None:
    """Make ``root`` a copy of this checkout, in the place of what was there; its GPUs are those of the job."""
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    for part in parts:
        if (ROOT / part).is_dir():
            shutil.copytree(ROOT / part, root / part, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(ROOT / part, root / part)
    shutil.copyfile(job.arguments.gpus_file, root / "config" / "gpus.yaml")


def run(module: str, words: Sequence[object], environment: Mapping[str, str], log: Path, cwd: Path = ROOT) -> float:
    """Run ``python -m module words…`` of the checkout ``cwd`` in a fresh process; its wall seconds, start-up included.

    Its output goes to ``log``.  Raises RuntimeError that quotes its last words where it fails.
    """
    inherited = {name: value for name, value in os.environ.items() if name not in _OWN}
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w") as output:
        since = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-m", module, *map(str, words)],
            cwd=cwd, env=inherited | {"PYTHONPATH": python_path(cwd)} | dict(environment),
            stdout=output, stderr=subprocess.STDOUT, check=False,
        )  # fmt: skip
        seconds = time.perf_counter() - since
    if done.returncode:
        lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
        said = " / ".join(lines[-_LAST_WORDS:])
        raise RuntimeError(f"python -m {module} {' '.join(map(str, words[:2]))} ended with {done.returncode}: {said}")
    return seconds


def require_ok(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """The document; RuntimeError where its stage did not end ``ok``."""
    if document["status"] != "ok":
        raise RuntimeError(
            f"{document['stage']} of {document['kernel']} ended {document['status']}: {document['reason']}"
        )
    return document


def context(job: frame.Job, kernel: str) -> dict[str, Any]:
    """What a piece holds for: another version of the kernel, GPU, torch or Triton measures anew."""
    versions = {name: importlib.metadata.version(name) for name in ("torch", "triton")}
    return {"kernel_digest": catalog.digest(kernel), "gpu": job.gpu_name, **versions}


def context_of_all(job: frame.Job) -> dict[str, Any]:
    """As :func:`context`, of what all kernels together are measured for."""
    return {name: context(job, name) for name in catalog.names()}
