"""Whole inspections in a worker: what validation finds of a kernel, step by step, whatever becomes of the worker.

The worker says which step it begins and what each found, so its parent knows where one hung or died.  It wakes the
device before it is asked for anything; the next one can do so while another is at work.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atlas import catalog
from atlas.host import gpus
from atlas.workers.process import TRITON, Died, Process, TimedOut

from .mutants import planting
from .mutants.planting import CERTIFICATE, Mutant

if TYPE_CHECKING:
    import torch
    from atlas.declaration import GPU, Declaration
    from atlas.stages import frame
    from atlas.validation.findings import Finding, Subject

DEVICE_LOST = "device lost"
"""The check that a crash, a hang or a device that answers no more counts as."""

START_SECONDS = 300.0
"""What a worker is given to import torch and wake its device: on a busy host, minutes."""


@dataclass(frozen=True)
class Wrong:
    """One finding that is not right; ``status`` is ``fail`` or ``error``, ``subject`` None where it has none."""

    check: str
    status: str
    reason: str
    subject: Subject | None = None


@dataclass(frozen=True)
class Step:
    """What one task of an inspection came to.

    ``used`` and ``over_torch`` are the largest shares of the tolerance and of torch's error, each with its subject;
    None where the task compared nothing.
    """

    checks: int
    wrong: tuple[Wrong, ...] = ()
    used: tuple[float, str] | None = None
    over_torch: tuple[float, str] | None = None


Task = tuple[str, Callable[[], Step]]
"""A label, and what is to be done under it."""


@dataclass(frozen=True)
class Request:
    """What a worker shall inspect.

    ``path`` is a planted copy, None for the kernel itself.  ``looks`` are mutants of which to make the expected check
    first; ``whole`` lists the seeds of every whole inspection after that.  ``stop`` ends it at the first wrong result.
    """

    kernel: str
    path: Path | None
    looks: tuple[Mutant, ...]
    whole: tuple[tuple[int, ...], ...]
    stop: bool


@dataclass
class Outcome:
    """What a worker found; ``lost`` says how it was lost, ``failed`` what kept it from inspecting at all."""

    steps: list[Step] = field(default_factory=list)
    lost: str = ""
    failed: str = ""
    seconds: float = 0.0

    @property
    def checks(self) -> int:
        """How many checks were made."""
        return sum(step.checks for step in self.steps)

    @property
    def wrong(self) -> list[Wrong]:
        """All that is not right, in the order found; a lost worker last."""
        found = [wrong for step in self.steps for wrong in step.wrong]
        return [*found, Wrong(DEVICE_LOST, "fail", self.lost)] if self.lost else found


def tasks(declaration: Declaration, gpu: GPU, device: torch.device, request: Request) -> Iterator[Task]:
    """Every task of a request, in order."""
    seeds = request.whole[0] if request.whole else (0,)
    for mutant in request.looks:
        yield from expected(declaration, gpu, device, seeds, mutant)
    for seeds in request.whole:
        yield from inspection(declaration, gpu, device, seeds)


def inspection(declaration: Declaration, gpu: GPU, device: torch.device, seeds: Iterable[int], **chosen) -> list[Task]:
    """The tasks of a whole inspection, or of the selection that ``chosen`` makes."""
    from atlas.validation import Inspection, Selection

    inspected = Inspection(declaration, gpu, device, seeds, Selection(**chosen))
    return [(task.label, lambda task=task: _step(inspected.run(task))) for task in inspected.tasks()]


def expected(
    declaration: Declaration, gpu: GPU, device: torch.device, seeds: Iterable[int], mutant: Mutant
) -> list[Task]:
    """The tasks of the one check that should find a mutant's fault, where it should find it."""
    if mutant.config is not None:
        return [(f"certificate of {dict(mutant.config)}", lambda: _certify(declaration, device, seeds, mutant))]
    public = mutant.variant == "public"
    chosen: dict[str, Any] = {"check": mutant.caught_by, "variant": mutant.variant, "dtype": mutant.dtype}
    # Gradients through autograd belong to the public function, whose checks are those of the forward pass.
    chosen["direction"] = "forward" if public else mutant.direction
    where = [mutant.sizes and tuple(mutant.sizes.items())]
    if mutant.huge:
        where = [case.sizes for case in declaration.huge_cases]
    return [task for sizes in where for task in inspection(declaration, gpu, device, seeds, **chosen, sizes=sizes)]


def _certify(declaration: Declaration, device: torch.device, seeds: Iterable[int], mutant: Mutant) -> Step:
    from atlas.validation import certify

    certificate = certify(
        declaration, mutant.direction, mutant.variant, dict(mutant.config), mutant.dtype, device, seeds
    )
    if not certificate.reason:
        return Step(certificate.checks)
    # A config that could not be tried has shown nothing, as if its launch had raised.
    status = "fail" if certificate.status == "fail" else "error"
    return Step(certificate.checks, (Wrong(CERTIFICATE, status, certificate.reason),))


def _step(findings: list[Finding]) -> Step:
    wrong = tuple(Wrong(f.check, f.status, str(f), f.subject) for f in findings if f.status in ("fail", "error"))
    compared = [f for f in findings if f.judgement is not None]
    used = max(((f.judgement.tolerance_used, _where(f)) for f in compared), default=None)
    over = max(
        ((f.judgement.error_over_torch, _where(f)) for f in compared if f.judgement.error_over_torch is not None),
        default=None,
    )
    return Step(len(findings), wrong, used, over)


def _where(finding: Finding) -> str:
    seed = "" if finding.seed is None else f", seed {finding.seed}"
    return f"{finding.check}: {finding.subject}{seed}"


def worker(job: frame.Job, name: str) -> Process:
    """A worker that is not started, on the job's device."""
    # Triton's own functions (tl.cdiv) read it when Triton is imported, whoever imports it first.
    environment = {"TRITON_INTERPRET": "1"} if job.functional else {}
    return Process(serve, job.gpu_name, dict(job.block), name=name, environment=environment, imported=TRITON)


def serve(connection: Connection, gpu_name: str, block: Mapping[str, Any]) -> None:
    """In the worker: get ready, then answer one request."""
    functional = gpus.functional(block)
    import torch
    from atlas import validation
    from atlas.host import runtime

    if functional:
        torch.set_num_threads(1)  # as the validate stage does
    device, gpu = runtime.device_of(gpu_name, block), gpus.gpu(gpu_name, block)
    torch.empty(1, device=device)
    connection.send(("ready", None))
    request: Request | None = connection.recv()
    if request is None:
        return
    try:
        if request.path is None:
            declaration = catalog.load(request.kernel, interpret=functional)
        else:
            declaration = planting.load(request.path, interpret=functional)
        for label, task in tasks(declaration, gpu, device, request):
            connection.send(("begins", label))
            step = task()
            connection.send(("found", step))
            if request.stop and any(wrong.status == "fail" for wrong in step.wrong):
                break
        connection.send(("ended", None))
    except validation.DeviceLost as error:
        connection.send(("lost", str(error)))
    except Exception as error:
        connection.send(("failed", f"{type(error).__name__}: {error}"))


def ready(process: Process) -> None:
    """Wait until a worker is; Died or TimedOut where it never is."""
    process.receive(START_SECONDS)


def follow(process: Process, request: Request, silence_seconds: float) -> Outcome:
    """Have a ready worker answer a request.  One step that takes longer than ``silence_seconds`` counts as hung."""
    outcome, label, since = Outcome(), "its start", time.perf_counter()
    process.send(request)
    while True:
        try:
            kind, content = process.receive(silence_seconds)
        except TimedOut:
            outcome.lost = f"hung: no answer within {silence_seconds:g} s, at {label}"
            break
        except Died as error:
            outcome.lost = f"{error}, at {label}"
            break
        if kind == "begins":
            label = content
        elif kind == "found":
            outcome.steps.append(content)
        else:
            if kind in ("lost", "failed"):
                setattr(outcome, kind, content)
            break
    outcome.seconds = time.perf_counter() - since
    return outcome
