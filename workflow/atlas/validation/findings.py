"""What single checks find, and the document's rows: one for each (check, variant, direction, case, config)."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ..declaration import Case, Config
from ..results.subject import PassCase, as_json, label
from .judging import Judgement

PASS, UNSUPPORTED, ERROR, FAIL = "pass", "unsupported", "error", "fail"
_SEVERITY = (PASS, UNSUPPORTED, ERROR, FAIL)

REFERENCE, PROCESS = "reference", "process"
"""Errors that are no single check's: inputs or reference that cannot be had, and a process that ended or hung."""


@dataclass(frozen=True)
class Subject:
    """What is checked: a variant with a config, or with ``variant`` "" the public function."""

    variant: str
    direction: str
    case: Case
    config: Config | None = None

    @property
    def key(self) -> tuple[Any, ...]:
        """Equal for equal subjects."""
        config = None if self.config is None else as_json(dict(self.config))
        return self.variant, PassCase.at(self.direction, self.case), config

    def __str__(self) -> str:
        who = f"variant {self.variant}" if self.variant else "the public function"
        config = "" if self.config is None else f", {label(self.config)}"
        return f"{who}, {PassCase.at(self.direction, self.case)}{config}"


@dataclass(frozen=True)
class Finding:
    """The outcome of one check of one subject with one seed."""

    check: str
    subject: Subject
    status: str
    reason: str = ""
    seed: int | None = None
    judgement: Judgement | None = None
    seeds: int = 1
    """How many seeds the check was made with, where this is the worst finding of them."""
    exhausted: bool = False
    """An error that says that the launch asked for more of the GPU than there is."""

    def __str__(self) -> str:
        seed = "" if self.seed is None else f", seed {self.seed}"
        text = f"{self.check}: {self.subject}{seed}: {self.status}"
        if self.reason:
            return f"{text}: {self.reason}"
        used = self.judgement and f" (tolerance used {self.judgement.tolerance_used:.3g})"
        return text + (used or "")

    @property
    def severity(self) -> tuple[int, float, float]:
        """Sorts the worse of two findings last."""
        used, over = (
            (self.judgement.tolerance_used, self.judgement.error_over_torch or 0.0) if self.judgement else (0, 0)
        )
        return _SEVERITY.index(self.status), used, over


def judged(check: str, subject: Subject, judgement: Judgement, seed: int, prefix: str = "") -> Finding:
    """The finding of a comparison."""
    reason = f"{prefix}{judgement.reason}" if judgement.reason else ""
    return Finding(check, subject, FAIL if reason else PASS, reason, seed, judgement)


def stated(check: str, subject: Subject, reason: str, seed: int | None) -> Finding:
    """The finding of a check that is right where there is nothing to say."""
    return Finding(check, subject, FAIL if reason else PASS, reason, seed)


def worst(findings: Iterable[Finding]) -> list[Finding]:
    """The worst finding of each check and subject over all seeds, in the order of first appearance.

    Errors are taken over seeds together: the figures are of the seed that used most of the tolerance.
    """
    groups: dict[tuple[Any, ...], list[Finding]] = {}
    for finding in findings:
        groups.setdefault((finding.check, finding.subject.key), []).append(finding)
    return [
        dataclasses.replace(max(group, key=lambda f: f.severity), seeds=len({f.seed for f in group}))
        for group in groups.values()
    ]


def row(finding: Finding, kernel: str, gpu: str) -> dict[str, Any]:
    """The finding as the document holds it."""
    subject, judgement = finding.subject, finding.judgement
    fields: dict[str, Any] = {
        "check": finding.check,
        "variant": subject.variant,
        **PassCase.at(subject.direction, subject.case).to_json(),
        "config": None if subject.config is None else dict(subject.config),
        "case_reason": subject.case.reason,
        "status": finding.status,
        "reason": finding.reason,
        "seed": finding.seed,
        "seeds": finding.seeds,
    }
    if judgement is not None:
        fields |= {
            "max_abs_error": judgement.max_abs_error,
            "max_rel_error": judgement.max_rel_error,
            "rtol": judgement.rtol,
            "atol": judgement.atol,
            "tolerance_used": judgement.tolerance_used,
            "error_over_torch": judgement.error_over_torch,
        }
    if finding.status in (FAIL, ERROR):
        fields["replay"] = replay(finding, kernel, gpu)
    return fields


def replay(finding: Finding, kernel: str, gpu: str) -> str:
    """The command that repeats just this check."""
    subject = finding.subject
    words = ["python", "-m", "atlas", "debug", kernel, "--gpu", gpu]
    if finding.check not in (REFERENCE, PROCESS):  # else all checks of the case
        words += ["--check", finding.check, "--variant", subject.variant or "public"]
    words += ["--direction", subject.direction, "--dtype", subject.case.dtype]
    words += ["--case", ",".join(f"{key}={value}" for key, value in subject.case.sizes)]
    if subject.config is not None:
        words += ["--config", as_json(dict(subject.config))]
    if finding.seed is not None:
        words += ["--seed", str(finding.seed)]
    return shlex.join(words)


def summary(findings: Iterable[Finding], lost: str = "") -> tuple[str, str]:
    """The document's status and reason: ``wrong`` before ``failed``, and the first finding that says so.

    ``lost`` is what took the device down: what was not checked then, nobody knows, so the status is ``failed``.
    """
    findings = list(findings)
    first = {status: next((f for f in findings if f.status == status), None) for status in _SEVERITY}
    if first[FAIL]:
        status, reason = "wrong", str(first[FAIL])
    elif first[ERROR]:
        status, reason = "failed", str(first[ERROR])
    elif findings and not first[PASS]:
        status, reason = "unsupported", str(first[UNSUPPORTED])
    else:
        status, reason = "ok", ""
    return ("failed", f"the device was lost in {lost}") if lost else (status, reason)
