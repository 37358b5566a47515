"""Which dtypes of a case the interpreter checks: few enough to wait for, and nothing that fits is never met."""

import dataclasses

import pytest
import torch
from atlas import catalog
from atlas.declaration import GPU
from atlas.validation import Inspection, Selection, cases, turns

from .planting import INTERPRETER, planted

T4 = GPU("t4", "cuda", 75, sms=40, shared_bytes=2**16, memory_bytes=2**34, l2_bytes=2**22)


def affordable(declaration, work):
    return [case for case in declaration.edge_cases if not cases.too_costly(work, case, INTERPRETER, None)]


def fitting(work, chosen, of):
    """What each variant meets: pairs of its name and ``of(case)``."""
    return {(one.name, of(case)) for case in chosen for one in work.variants if not one.unsupported(case, INTERPRETER)}


@pytest.mark.parametrize("name", catalog.names())
def test_every_variant_meets_every_dtype_and_all_sizes_that_it_takes(name):
    declaration = catalog.load(name, interpret=True)
    for start, work in enumerate(declaration.passes.values()):
        every = affordable(declaration, work)
        chosen = turns.in_turn(work, every, INTERPRETER, start)
        assert fitting(work, chosen, lambda case: case.dtype) == fitting(work, every, lambda case: case.dtype)
        assert fitting(work, chosen, lambda case: case.sizes) == fitting(work, every, lambda case: case.sizes)
        assert set(cases.small_cases(work, every)) <= set(chosen)  # hard inputs are tried on these, in all dtypes


def dtypes_by_sizes(chosen):
    found = {}
    for case in chosen:
        found.setdefault(case.sizes, []).append(case.dtype)
    return found


def test_sizes_take_one_dtype_in_turn_and_small_ones_all():
    declaration = catalog.load("activation", interpret=True)
    work = declaration.forward
    every = affordable(declaration, work)
    small = {case.sizes for case in cases.small_cases(work, every)}
    chosen = dtypes_by_sizes(turns.in_turn(work, every, INTERPRETER))
    assert len(small) == 1 and all(set(chosen[sizes]) == set(declaration.dtypes) for sizes in small)
    others = [dtypes for sizes, dtypes in chosen.items() if sizes not in small]
    assert {len(dtypes) for dtypes in others} == {1}  # no variant takes one dtype alone
    assert {dtype for (dtype,) in others} == set(declaration.dtypes)
    # the other pass begins with another dtype, so that sizes are met in two
    later = dtypes_by_sizes(turns.in_turn(work, every, INTERPRETER, start=1))
    assert all(later[sizes] != chosen[sizes] for sizes in chosen if sizes not in small)


def inspection(declaration, gpu, **selected):
    chosen = Selection(check="values", direction="forward", **selected)
    declaration = dataclasses.replace(declaration, huge_cases=())
    return Inspection(declaration, gpu, torch.device("cpu"), [0], chosen)


def test_what_waits_for_its_turn_is_listed_with_the_reason(tmp_path):
    declaration = catalog.load("softmax", interpret=True)
    inspected = inspection(declaration, INTERPRETER)
    done = [task.about.case for task in inspected.tasks()]
    every = affordable(declaration, declaration.forward)
    reasons = inspected.left_out
    left = {case: one["reason"] for case in every for one in reasons if case.to_json().items() <= one.items()}
    assert set(left) == set(every) - set(done)
    for case, reason in left.items():
        (instead,) = {other.dtype for other in done if other.sizes == case.sizes}
        assert reason == f"the interpreter checks values of these sizes in {instead}"


def test_who_asks_for_sizes_or_a_dtype_gets_all_of_them():
    declaration = catalog.load("softmax", interpret=True)
    sizes = affordable(declaration, declaration.forward)[-1].sizes
    asked = inspection(declaration, INTERPRETER, sizes=sizes).tasks()
    assert {task.about.case.dtype for task in asked} == set(declaration.dtypes)
    of_dtype = inspection(declaration, INTERPRETER, dtype="bf16").tasks()
    every = [case for case in affordable(declaration, declaration.forward) if case.dtype == "bf16"]
    assert {task.about.case for task in of_dtype} == set(every)


def test_a_gpu_checks_every_case_in_every_dtype(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (2**34, 2**34))
    declaration = planted(tmp_path)
    inspected = inspection(declaration, T4)
    assert set(declaration.edge_cases) <= {task.about.case for task in inspected.tasks()}
    assert inspected.left_out == []
