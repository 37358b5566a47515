"""Compile a kernel's CUDA C++ peers for a GPU's architecture by nvcc, on any host, and say what ptxas made of them."""

from __future__ import annotations

import argparse
import hashlib
import tempfile
from pathlib import Path
from typing import Any

from ..cuda import nvcc
from ..cuda.nvcc import usage
from ..errors import AtlasError
from . import frame

CUBIN = "cuda.cubin"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``python -m atlas cuda``."""
    frame.add_common_arguments(parser)


def run(arguments: argparse.Namespace) -> None:
    """Write ``cuda.json`` into ``results/measured/<gpu>/<kernel>``, and ``cuda.cubin``, empty if nothing was built."""
    job = frame.job("cuda", arguments)
    if job.functional:
        raise AtlasError(f"GPU {job.gpu_name!r} is the interpreter, which runs no CUDA C++; build for another GPU")
    if not nvcc.sources(job.kernel):
        raise AtlasError(f"kernel {job.kernel!r} has no peers in CUDA C++: there is no kernels/cuda/{job.kernel}.cu")
    job.folder.mkdir(parents=True, exist_ok=True)
    (job.folder / CUBIN).write_bytes(b"")
    document = frame.write_document(job, _nothing(job), _build, kind="compiled")
    if document["reason"]:
        print(f"atlas cuda: {job.kernel} for {job.gpu_name}: {document['status']}: {document['reason']}")


def _target(job: frame.Job) -> dict[str, Any]:
    ((backend, arch),) = job.block["target"].items()
    return {"backend": backend, "arch": arch}


def _nothing(job: frame.Job) -> dict[str, Any]:
    return {
        "target": _target(job),
        "source_sha256": nvcc.source_digest(job.kernel),
        "nvcc": None,
        "cubin": None,
        "kernels": [],
    }


def _build(job: frame.Job) -> dict[str, Any]:
    target = _target(job)
    if target["backend"] != "cuda":
        raise frame.Stop("skipped", f"{job.gpu_name} is a {target['backend']} target, which runs no CUDA C++")
    compiler = nvcc.find()
    if compiler is None:
        raise frame.Stop("skipped", nvcc.NOWHERE)
    fields = _nothing(job) | {"nvcc": {"version": nvcc.version(compiler), "flags": nvcc.flags(target["arch"])}}
    with tempfile.TemporaryDirectory() as folder:
        built = Path(folder, CUBIN)
        outcome = nvcc.compile_cubin(compiler, nvcc.source_of(job.kernel), target["arch"], built)
        if outcome.reason:
            return fields | {"status": "failed", "reason": outcome.reason}
        binary = built.read_bytes()
    (job.folder / CUBIN).write_bytes(binary)
    cubin = {"file": CUBIN, "bytes": len(binary), "sha256": hashlib.sha256(binary).hexdigest()}
    return fields | {"cubin": cubin, "kernels": usage(outcome.said)}
