"""Predict: on GPUs that nobody has at hand, each case's time and config, from a GPU that was tuned.  Nothing runs."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import catalog
from ..errors import AtlasError
from ..host import gpus
from ..identity import today
from ..reading.config import GPUS_FILE, load_gpus
from ..results import documents, files
from . import frame

if TYPE_CHECKING:
    from ..prediction.knowledge import Known


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``python -m atlas predict``: several kernels and GPUs take little longer than one."""
    parser.add_argument("kernel", help="kernels with commas between, or all")
    parser.add_argument("--gpu", required=True, help="blocks of gpus.yaml with commas between, or all")
    parser.add_argument("--gpus-file", type=Path, default=GPUS_FILE, help="default: config/gpus.yaml")
    parser.add_argument("--results", type=Path, default=Path("results"), help="results folder (default: results)")
    parser.add_argument("--missing", action="store_true", help="leave out kernels of which the GPU was timed itself")


def run(arguments: argparse.Namespace) -> None:
    """Write ``results/measured/<gpu>/<kernel>/predict.json`` for each pair."""
    blocks = load_gpus(arguments.gpus_file)
    names = gpus.names_of(_listed(arguments.gpu), blocks, "--gpu", "command line")
    kernels = catalog.names() if arguments.kernel == "all" else arguments.kernel.split(",")
    for kernel in kernels:
        catalog.check_name(kernel)
    if arguments.gpu != "all" and (strangers := [name for name in names if gpus.functional(blocks[name])]):
        raise AtlasError(f"--gpu {strangers[0]}: the interpreter has no speed to predict; name a GPU, or leave it out")
    evidence = Evidence(arguments.results, blocks)
    pairs = [(name, kernel) for name in names if not gpus.functional(blocks[name]) for kernel in kernels]
    with today.held():
        for name, kernel in pairs:
            if arguments.missing and evidence.timed(name, kernel):
                continue
            job = frame.Job("predict", kernel, name, blocks[name], arguments.results, arguments)
            empty = {"protocol": _protocol(), "from_gpu": None, "roofs": None, "rows": []}
            document = frame.write_document(job, empty, lambda job: body(job, evidence), kind="predicted")
            frame.print_outcome(job, document)


def _listed(words: str) -> str | list[str]:
    return words if words == "all" else words.split(",")


def _protocol() -> str:
    from ..prediction.predicted import PROTOCOL

    return PROTOCOL


class Evidence:
    """The surveys and autotune documents under a results folder that real GPUs wrote; measured ones before recorded."""

    def __init__(self, results: Path, blocks: Mapping[str, Mapping[str, Any]]):
        self._results, self.blocks = results, {k: b for k, b in blocks.items() if not gpus.functional(b)}
        self._read: dict[tuple[str, ...], dict[str, Any] | None] = {}

    def surveyed(self) -> list[str]:
        """The GPUs whose roofs were measured."""
        return [name for name in self.blocks if self.survey(name) is not None]

    def survey(self, gpu: str) -> dict[str, Any] | None:
        """A GPU's survey; None where there is none that ended ok."""
        return self._document(gpu, "survey")

    def tuned(self, gpu: str, kernel: str) -> dict[str, Any] | None:
        """What a GPU timed of a kernel's configs; None where it did not."""
        return self._document(gpu, kernel, "autotune")

    def timed(self, gpu: str, kernel: str) -> bool:
        """Whether a GPU timed a kernel itself."""
        return self.tuned(gpu, kernel) is not None

    def build(self, gpu: str, kernel: str) -> dict[str, Any] | None:
        """What was compiled of a kernel for a GPU; None for nothing."""
        return self._document(gpu, kernel, "build")

    def source(self, gpu: str, kernel: str) -> str | None:
        """The GPU to predict from, of those that were surveyed and timed the kernel; None for none.

        One of the same target, else of the same vendor; of several the one that timed most kernels.
        """
        target = self.blocks[gpu]["target"]
        found = [name for name in self.surveyed() if name != gpu and self.timed(name, kernel)]
        return min(
            found,
            key=lambda n: (
                self.blocks[n]["target"] != target,
                self.blocks[n]["target"].keys() != target.keys(),
                -len({path.parent.name for path in files.listed(self._results, f"*/{n}/*/autotune")}),
            ),
            default=None,
        )

    def known(self, gpu: str, own: bool = True) -> Known:
        """What is known of a GPU's speed; without its ``own`` survey, from its datasheet alone."""
        from ..prediction import knowledge

        others = {
            name: (block, survey)
            for name, block in self.blocks.items()
            if name != gpu and (survey := self.survey(name)) is not None
        }
        block = self.blocks[gpu]
        return knowledge.known(gpus.gpu(gpu, block), block, self.survey(gpu) if own else None, others)

    def _document(self, *place: str) -> dict[str, Any] | None:
        if place not in self._read:
            self._read[place] = next(self._documents(*place), None)
        return self._read[place]

    def _documents(self, *place: str) -> Iterator[dict[str, Any]]:
        for folder in ("measured", "recorded"):
            path = files.found(self._results.joinpath(folder, *place[:-1]), place[-1])
            if path.exists():
                document = documents.read(path, place[-1])
                if document["status"] == "ok" and document["kind"] in ("measured", "compiled"):
                    yield document


def body(job: frame.Job, evidence: Evidence) -> dict[str, Any]:
    """The fields of a document: where the timings are from, what the target's roofs are by, and the rows."""
    from ..prediction import predicted

    source = evidence.source(job.gpu_name, job.kernel)
    if source is None:
        raise frame.Stop("skipped", f"no other GPU timed {job.kernel}: tune it on one, or take a record from git")
    target = evidence.known(job.gpu_name)
    made = predicted.rows(
        job.declaration(),
        evidence.tuned(source, job.kernel),
        evidence.build(job.gpu_name, job.kernel),
        evidence.known(source),
        target,
    )
    fields = {
        "protocol": predicted.PROTOCOL,
        "from_gpu": source,
        "roofs": {"how": target.how, "spread": round(target.spread, 4)} | _rounded(target.survey.roofs),
        "rows": [predicted.with_rates(row) for row in made],
    }
    if not any(row["status"] == "ok" for row in fields["rows"]):
        reasons = dict.fromkeys(row["reason"] for row in fields["rows"])
        fields |= {"status": "unsupported", "reason": next(iter(reasons), f"{job.gpu_name} has room for no case")}
    return fields


def _rounded(roofs: Mapping[str, float]) -> dict[str, float]:
    return {name: round(value, 2) for name, value in roofs.items()}
