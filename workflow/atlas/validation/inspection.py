"""The whole inspection of a kernel: which checks to make, in tasks that can be counted, selected and repeated."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ..declaration import GPU, Case, Config, Declaration, Variant
from ..errors import in_a_line
from ..host.runtime import meta_inputs
from . import cases as choice
from . import device as devices
from . import huge, public, randomness, specials, turns, variants
from .findings import ERROR, REFERENCE, UNSUPPORTED, Finding, Subject
from .problems import NoReference, Problem

_SPREAD_GPU, _SPREAD_INTERPRETER = 16, 3
_PIECE = 4
"""Of the spread, configs in one task: none of another is compiled there, so several processes can share them out."""


@dataclass(frozen=True)
class Selection:
    """What to check; None means everything.  ``variant`` "public" selects the public function."""

    check: str | None = None
    variant: str | None = None
    direction: str | None = None
    dtype: str | None = None
    sizes: tuple[tuple[str, Any], ...] | None = None
    config: Config | None = None

    def takes_case(self, case: Case) -> bool:
        """Whether the case's dtype and sizes are selected; the order of sizes does not matter."""
        return self.dtype in (None, case.dtype) and (self.sizes is None or dict(self.sizes) == dict(case.sizes))

    def takes(self, finding: Finding) -> bool:
        """Whether a finding is one that was asked for; a fault of the reference always is."""
        who = finding.subject.variant or "public"
        if finding.check == REFERENCE:
            return True
        # A launch that raises is reported as an error of the values, whatever was to be checked of it.
        return self.variant in (None, who) and (self.check in (None, finding.check) or finding.status == ERROR)

    def wants(self, *checks: str) -> bool:
        """Whether any of the checks is selected."""
        return self.check is None or self.check in checks

    def wants_variant(self, name: str) -> bool:
        """Whether a variant, or "public", is selected."""
        return self.variant in (None, name)


_VARIANT_CHECKS = (variants.VALUES, variants.WRITTEN, variants.UNCHANGED, variants.REPEATABLE)
_SPECIAL_CHECKS = (variants.NAN_INF, variants.LARGE, variants.OFFSET)
CHECKS = (
    *_VARIANT_CHECKS,
    *_SPECIAL_CHECKS,
    *randomness.CHECKS,
    public.FUNCTION,
    public.GRADIENTS,
    public.NON_CONTIGUOUS,
    public.EMPTY,
)
"""Every check by the name it has in documents."""


@dataclass(frozen=True)
class Task:
    """One problem and the checks to make on it."""

    about: Subject
    """The problem, without a variant."""
    run: Callable[[], Iterable[Finding]]
    further: bool = False
    """A repetition with another seed: what the interpreter leaves out when its time is spent."""
    group: str = ""
    """Equal for tasks that launch the same compiled kernels."""
    memory_bytes: float = 0.0
    """Of the device, about."""
    alone: bool = False
    """Takes what memory there is: not to run beside others on the device."""

    @property
    def label(self) -> str:
        """``forward m=4 n=7 fp32``."""
        return f"{self.about.direction} {self.about.case}"


def free_inputs(problem: Problem) -> set[str] | None:
    """Inputs whose values are free: of the backward pass only the incoming gradients, named d….

    Its other inputs depend on one another (a saved mean belongs to its x), and a NaN in one alone has no meaning.
    """
    if problem.direction == "forward":
        return None
    known = meta_inputs(problem.declaration.forward, problem.case)
    return {name for name in problem.inputs if name.startswith("d") and name not in known}


def _apart(subjects: list[tuple[Variant, Config]]) -> tuple[list[tuple[Variant, Config]], ...]:
    """The first config of each variant, which is its default or the one asked for, and the others."""
    names = [variant.name for variant, _ in subjects]
    is_first = [name not in names[:index] for index, name in enumerate(names)]
    return [s for s, first in zip(subjects, is_first, strict=True) if first], [
        s for s, first in zip(subjects, is_first, strict=True) if not first
    ]


class Inspection:
    """Plans the checks of one kernel on one device, and makes them."""

    def __init__(
        self,
        declaration: Declaration,
        gpu: GPU,
        device: torch.device,
        seeds: Iterable[int],
        selection: Selection = Selection(),
        neighbours: int = 1,
    ):
        """``neighbours`` is how many processes share the device, this one among them."""
        self.declaration, self.gpu, self.device = declaration, gpu, device
        self.seeds, self.selection = list(seeds), selection
        self.left_out: list[dict[str, Any]] = []
        self.spent_seconds = 0.0
        """CPU time of the tasks so far; whoever shares them out counts those of others in."""
        self._neighbours = neighbours

    def tasks(self) -> list[Task]:
        """Every task of the selection, in the order to run them.

        Variants by case, hard inputs, the public function; on the interpreter each with its first seed, then further.
        """
        planned = []
        for direction in self.declaration.passes:
            if self.selection.direction in (None, direction):
                planned += [*self._value_tasks(direction), *self._special_tasks(direction)]
                planned += [*self._random_tasks(direction), *self._huge_tasks(direction)]
        if self.selection.direction in (None, "forward") and self.selection.wants_variant("public"):
            planned += self._public_tasks()
        return sorted(planned, key=lambda task: task.further) if self.gpu.functional else planned

    def run(self, task: Task) -> list[Finding]:
        """The selected findings of a task; what cannot be compared is left out.  Raises DeviceLost."""
        return list(self.each(task))

    def each(self, task: Task) -> Iterator[Finding]:
        """As :meth:`run`, one by one, as they are found."""
        if self.gpu.functional and task.further and self.spent_seconds > choice.INTERPRETER_SECONDS:
            return
        since = time.process_time()
        # The interpreter computes in NumPy, which would warn of every NaN and infinity that was planted.
        with np.errstate(all="ignore"):
            yield from (finding for finding in task.run() if self.selection.takes(finding))
        devices.release(self.device, neighbours=self._neighbours)
        self.spent_seconds += time.process_time() - since

    def _cases(self, direction: str) -> list[Case]:
        """The affordable cases of a pass; the others are noted in ``left_out``."""
        selection, work = self.selection, self.declaration.passes[direction]
        found = []
        for case in self._named_cases():
            if not selection.takes_case(case):
                continue
            reason = "" if selection.sizes else choice.too_costly(work, case, self.gpu, self.device)
            if reason:
                self._leave_out(direction, case, reason)
            else:
                found.append(case)
        return found

    def _in_turn(self, direction: str) -> list[Case]:
        """The cases to check values on: on the interpreter one dtype of each, unless sizes are asked for.

        A backward pass begins with another dtype, for the public function's gradients follow the forward pass.
        """
        cases = self._cases(direction)
        if not self.gpu.functional or self.selection.sizes:
            return cases
        passes = self.declaration.passes
        kept = turns.in_turn(passes[direction], cases, self.gpu, start=list(passes).index(direction))
        for case in cases:
            if case not in kept:
                others = ", ".join(other.dtype for other in kept if other.sizes == case.sizes)
                self._leave_out(direction, case, f"the interpreter checks values of these sizes in {others}")
        return kept

    def _named_cases(self) -> list[Case]:
        declared = choice.candidates(self.declaration, self.gpu)
        selection = self.selection
        known = [*declared, *self.declaration.huge_cases]
        if selection.sizes is None or any(selection.takes_case(case) for case in known):
            return declared
        return [Case(dtype, selection.sizes, "asked for") for dtype in self.declaration.dtypes]

    def _leave_out(self, direction: str, case: Case, reason: str) -> None:
        entry = {"direction": direction, **case.to_json(), "reason": reason}
        if entry not in self.left_out:
            self.left_out.append(entry)

    def _problem_task(
        self,
        direction: str,
        case: Case,
        seed: int,
        body: Callable[[Problem], Iterator[Finding]],
        obstacle: Callable[[], str] | None = None,
        group: str = "",
    ) -> Task:
        """``obstacle`` says of a huge case, when the task's turn has come, why it is left out, or ``""``.

        ``group`` is that of all tasks of this name and case.
        """
        about = Subject("", direction, case)

        def run() -> Iterator[Finding]:
            try:
                reason = obstacle() if obstacle else ""
                if reason:
                    self._leave_out(direction, case, reason)
                    return
                yield from body(Problem(self.declaration, direction, case, self.device, seed))
            except (NoReference, huge.NotComparable) as error:
                self._leave_out(direction, case, str(error))
            except torch.OutOfMemoryError as error:
                self._leave_out(direction, case, in_a_line(error))
            except devices.DeviceLost:
                raise
            except Exception as error:
                finding = Finding(REFERENCE, about, ERROR, in_a_line(error), seed)
                devices.check_alive(self.device, f"{direction}, {case}", error, finding)
                yield finding

        return Task(
            about,
            run,
            further=seed != self.seeds[0],
            group=f"{group or direction} {case}",
            memory_bytes=self._memory_bytes(direction, case),
            alone=obstacle is not None,
        )

    def _memory_bytes(self, direction: str, case: Case) -> float:
        """Of a task, about; the public function's gradients take a backward pass too, so it counts with the forward."""
        passes = self.declaration.passes
        works = list(passes.values()) if direction == "forward" else [passes[direction]]
        return 0.0 if self.gpu.functional else sum(choice.reference_bytes(work, case) for work in works)

    def _subjects(self, direction: str, case: Case, spread: int) -> tuple[list[tuple[Variant, Config]], list[Finding]]:
        """Variants with the configs to check them with, and why others are not checked."""
        work, selection = self.declaration.passes[direction], self.selection
        subjects, refused = [], []
        for variant in work.variants:
            if not selection.wants_variant(variant.name):
                continue
            reason = variant.unsupported(case, self.gpu)
            if reason:
                subject = Subject(variant.name, direction, case)
                refused.append(Finding(variants.VALUES, subject, UNSUPPORTED, reason))
                continue
            configs = [dict(variant.default(case, self.gpu))]
            if selection.config is not None:
                configs = [dict(selection.config)]
            elif spread:
                configs += [c for c in choice.evenly_spaced(variant, case, self.gpu, spread) if c not in configs]
            subjects += [(variant, config) for config in configs]
        return subjects, refused

    def _value_tasks(self, direction: str) -> Iterator[Task]:
        if not self.selection.wants(*_VARIANT_CHECKS) or self.selection.variant == "public":
            return
        cases = self._in_turn(direction)
        small = self._small(direction, cases)
        # What a config changes is the blocks, for every dtype alike: the interpreter, being slow, tries them on one.
        spread_on = small[: 1 if self.gpu.functional else None]
        for case in cases:
            for seed in self.seeds:
                first = seed == self.seeds[0]
                count = (_SPREAD_INTERPRETER if self.gpu.functional else _SPREAD_GPU) if case in spread_on else 0
                subjects, refused = self._subjects(direction, case, count if first else 0)
                if not subjects:  # inputs of a dtype that the GPU lacks may not even be drawn there
                    yield self._refusal(direction, case, refused)
                    continue

                # The interpreter is one thread: that it repeats itself on the small cases is enough to know.
                twice = not self.gpu.functional or (first and case in small)

                def body(problem: Problem, subjects, refused=(), twice=twice) -> Iterator[Finding]:
                    yield from refused
                    for variant, config in subjects:
                        yield from variants.check_variant(problem, variant, config, twice)

                defaults, others = _apart(subjects)
                whole = functools.partial(body, subjects=defaults, refused=refused)
                yield self._problem_task(direction, case, seed, whole)
                for number, start in enumerate(range(0, len(others), _PIECE)):
                    piece = functools.partial(body, subjects=others[start : start + _PIECE])
                    yield self._problem_task(direction, case, seed, piece, group=f"{direction}, piece {number},")

    def _refusal(self, direction: str, case: Case, refused: list[Finding]) -> Task:
        """A task that only says why nothing is tried."""
        return Task(Subject("", direction, case), lambda: refused, group=f"{direction} {case}")

    def _small(self, direction: str, cases: list[Case]) -> list[Case]:
        work = self.declaration.passes[direction]
        return cases if self.selection.sizes else choice.small_cases(work, cases)

    def _special_tasks(self, direction: str) -> Iterator[Task]:
        if not self.selection.wants(*_SPECIAL_CHECKS) or self.selection.variant == "public":
            return
        for case in self._small(direction, self._cases(direction)):
            subjects, _ = self._subjects(direction, case, 0)
            for seed in (self.seeds[:1] if self.gpu.functional else self.seeds) if subjects else ():

                def body(problem: Problem, subjects=subjects) -> Iterator[Finding]:
                    names = specials.plantable(problem.inputs, free_inputs(problem))
                    for variant, config in subjects if names else ():
                        yield from variants.check_specials(problem, variant, config, names)

                yield self._problem_task(direction, case, seed, body)

    def _random_tasks(self, direction: str) -> Iterator[Task]:
        """Masks of a pass that draws random numbers, on the case with the most elements: it sees the most."""
        work, selection = self.declaration.passes[direction], self.selection
        if work.random is None or not selection.wants(*randomness.CHECKS) or selection.variant == "public":
            return
        largest: dict[str, Case] = {}
        for case in sorted(self._cases(direction), key=lambda case: -sum(work.bytes(case).values())):
            largest.setdefault(case.dtype, case)
        for case in largest.values():
            subjects, _ = self._subjects(direction, case, _SPREAD_INTERPRETER)
            configs: dict[str, tuple[Variant, list[Config]]] = {}
            for variant, config in subjects:
                configs.setdefault(variant.name, (variant, []))[1].append(config)
            for seed in (self.seeds[:1] if self.gpu.functional else self.seeds) if configs else ():

                def body(problem: Problem, configs=configs) -> Iterator[Finding]:
                    for variant, tried in configs.values():
                        yield from randomness.check_random(problem, variant, tried)
                        ahead = self._ahead(problem)
                        if ahead is not None:
                            yield from randomness.check_agreement(problem, ahead, (variant, tried[0]))

                yield self._problem_task(direction, case, seed, body)

    def _ahead(self, problem: Problem) -> tuple[Variant, Config] | None:
        """The forward variant, with its default config, whose mask a backward pass must draw again."""
        forward = self.declaration.forward
        if problem.direction == "forward" or forward.random is None:
            return None
        variant = forward.preferred(problem.case, self.gpu)
        return variant and (variant, variant.default(problem.case, self.gpu))

    def _huge_tasks(self, direction: str) -> Iterator[Task]:
        """More than 2^31 elements, where there is memory for them; one seed."""
        work, selection = self.declaration.passes[direction], self.selection
        if not selection.wants(*_VARIANT_CHECKS[:3]) or selection.variant == "public":
            return
        for case in filter(selection.takes_case, self.declaration.huge_cases):
            subjects, refused = self._subjects(direction, case, 0)
            if not subjects:
                yield self._refusal(direction, case, refused)
                continue

            def body(problem: Problem, subjects=subjects, refused=refused) -> Iterator[Finding]:
                yield from refused
                yield from huge.check(problem, subjects)

            yield self._problem_task(
                direction,
                case,
                self.seeds[0],
                body,
                lambda case=case: huge.left_out(work, case, self.gpu.functional, self.device),
            )

    def _public_tasks(self) -> Iterator[Task]:
        work, cases = self.declaration.forward, self._in_turn("forward")
        small = self._small("forward", cases)
        # A layout is the same for every dtype: the interpreter, being slow, tries them on one.
        laid_out = small[: 1 if self.gpu.functional else None]
        for case in cases:
            if work.preferred(case, self.gpu) is None:
                yield self._refusal("forward", case, self._public_refusals(case))
                continue
            for seed in self.seeds:

                def body(problem: Problem, hard=case in laid_out and seed == self.seeds[0]) -> Iterator[Finding]:
                    if self.selection.wants(public.FUNCTION):
                        yield from public.check_function(problem)
                    if self.selection.wants(public.GRADIENTS):
                        yield from public.check_gradients(problem, every_layout=hard)
                    if hard and self.selection.wants(public.NON_CONTIGUOUS):
                        yield from public.check_strides(problem)

                yield self._problem_task("forward", case, seed, body, group="public")
        if self.selection.wants(public.EMPTY):
            kept = [case for case in small if work.preferred(case, self.gpu) is not None]
            empties = [c for case in kept for c in public.empty_cases(self.declaration, case)]
            if self.selection.sizes:
                empties = [case for case in cases if 0 in dict(case.sizes).values()]
            for case in dict.fromkeys(empties):
                yield self._problem_task("forward", case, self.seeds[0], public.check_empty, group="public")

    def _public_refusals(self, case: Case) -> list[Finding]:
        """Why the public function cannot take this case on this GPU: no variant of the forward pass does."""
        work = self.declaration.forward
        reason = "; ".join(dict.fromkeys(variant.unsupported(case, self.gpu) for variant in work.variants))
        checks = [public.FUNCTION, *([public.GRADIENTS] if self.declaration.differentiable else [])]
        subject = Subject("", "forward", case)
        return [Finding(check, subject, UNSUPPORTED, reason) for check in checks if self.selection.wants(check)]
