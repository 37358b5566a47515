"""Some faults of ``python -m proofs mutants``, of those that the interpreter shows, each where it is expected.

One of each kernel: all of them take a quarter of an hour, which is what the command itself is for.
"""

import argparse
import dataclasses
from pathlib import Path

import pytest
import torch
from atlas import catalog
from atlas.declaration.hardware import INTERPRETER
from atlas.stages import frame

from proofs import inspecting
from proofs.mutants import attempts, equivalent, generated, planting
from proofs.mutants import proof as mutants
from proofs.mutants.handmade import MUTANTS
from proofs.mutants.planting import Edit, Mutant

CPU = torch.device("cpu")
SEEDS = (0, 1)  # two: what is kept from an earlier call shows in the second alone

SHOWN = [
    mutant
    for kernel in catalog.names()
    for mutant in [m for m in MUTANTS if m.kernel == kernel and m.shows(functional=True)][:1]
]

HARMLESS = Mutant(
    "vector_add", "operands in the other order", "harmless", (Edit("x + y", "y + x", "_add"),),
    "values", "forward", "blocks", "fp32",
)  # fmt: skip


def failure(declaration, mutant):
    """The first failed finding of the mutant's expected check, or None."""
    for _, task in inspecting.expected(declaration, INTERPRETER, CPU, SEEDS, mutant):
        for wrong in task().wrong:
            if wrong.status == "fail":
                return wrong
    return None


@pytest.mark.parametrize("mutant", SHOWN, ids=lambda mutant: f"{mutant.kernel}: {mutant.name}")
def test_the_expected_check_condemns_the_mutant_and_acquits_the_kernel_at_the_same_place(mutant, tmp_path):
    wrong = failure(planting.load(planting.plant(tmp_path, mutant.kernel, mutant), interpret=True), mutant)
    assert wrong is not None, f"{mutant.caught_by} finds nothing"
    assert wrong.check == mutant.caught_by
    true = catalog.load(mutant.kernel, interpret=True)
    if wrong.subject is None:  # a certificate
        assert failure(true, mutant) is None
        return
    subject = wrong.subject
    tasks = inspecting.inspection(
        true, INTERPRETER, CPU, SEEDS, check=wrong.check, variant=subject.variant or "public",
        direction=subject.direction, dtype=subject.case.dtype, sizes=subject.case.sizes, config=subject.config,
    )  # fmt: skip
    steps = [task() for _, task in tasks]
    assert sum(step.checks for step in steps)
    assert [wrong.reason for step in steps for wrong in step.wrong] == []


GENERATED = {
    # of vector_add, by operator: what becomes of it
    "store dropped": {"caught"},
    "index off by one": {"caught"},
    "bound off by one": {"caught", "survived"},  # of the mask, and of the way that full blocks take
}


def test_generated_faults_are_caught_but_for_those_that_change_nothing(tmp_path):
    block = {"target": {"cpu": "interpreter"}, "match": "^$"}
    job = frame.Job("prove", "vector_add", "cpu", block, tmp_path, argparse.Namespace())
    found = {kind: set() for kind in GENERATED}
    for mutant in generated.mutants(["vector_add"]):
        if mutant.kind in GENERATED:
            piece = attempts.attempt(job, CPU, tmp_path, mutant, SEEDS)
            found[mutant.kind].add(piece["status"])
            assert piece["status"] == "caught" or equivalent.reason(mutant.name), mutant.name
    assert found == GENERATED


def prove(monkeypatch, list_of_mutants, only=None):
    """The evidence of the proof itself, of vector_add with these mutants, in processes of its own."""
    monkeypatch.setattr(mutants, "MUTANTS", list_of_mutants)
    arguments = argparse.Namespace(kernels="vector_add", only=only, seeds=2, jobs=2, generated="0", scratch=None)
    block = {"target": {"cpu": "interpreter"}, "match": "^$"}
    return mutants.run(frame.Job("prove", None, "cpu", block, Path("results"), arguments))


def test_a_mutant_that_nothing_catches_breaks_the_claim_and_the_kernel_as_it_is_does_not(monkeypatch):
    elsewhere = dataclasses.replace(HARMLESS, name="elsewhere", gpu_only="a reason")
    evidence = prove(monkeypatch, (HARMLESS, elsewhere))
    status = {row["mutant"]: (row["status"], row["caught_by"]) for row in evidence.rows}
    # The look and the whole inspection were made in vain: "missed" is no lack of trying.
    checks = {row["mutant"]: row["checks"] for row in evidence.rows}
    assert status == {"": ("clean", ""), HARMLESS.name: ("missed", ""), "elsewhere": ("not here", "")}
    assert checks[HARMLESS.name] > checks[""] > 50
    broken = {claim.text: claim.found for claim in evidence.broken}
    assert broken["mutants that show here and that no check caught"] == 1
    assert "true kernels with a finding of fail or error" not in broken
    assert len({tuple(row) for row in evidence.rows}) == 1  # the rows are one table


def test_a_mutant_that_ends_its_process_is_caught_as_a_lost_device(monkeypatch):
    fatal = dataclasses.replace(
        HARMLESS,
        name="killed at the first launch",
        edits=(Edit("out = torch.empty_like(x)", "import os\nos.abort()", "_launch"),),
    )
    evidence = prove(monkeypatch, (fatal,), only=fatal.name)
    assert evidence.holds
    (row,) = evidence.rows
    assert (row["status"], row["caught_by"]) == ("caught", "device lost")
    assert "SIGABRT" in row["reason"] and "n=7" in row["reason"]


def test_a_mutant_that_merely_raises_is_not_caught(monkeypatch):
    raising = dataclasses.replace(
        HARMLESS,
        name="raises",
        edits=(Edit("out = torch.empty_like(x)", "raise RuntimeError('no')", "_launch"),),
    )
    evidence = prove(monkeypatch, (raising,), only=raising.name)
    assert not evidence.holds
    assert evidence.rows[0]["status"] == "missed"
    assert evidence.rows[0]["reason"].startswith("errors only: ")
