"""Cases of more than 2^31 elements: compared piece by piece with torch, run only where they fit."""

import dataclasses

import pytest
import torch
from atlas import catalog
from atlas.declaration.hardware import GPU, INTERPRETER
from atlas.validation import Inspection, Selection, huge
from atlas.validation.findings import worst

from .planting import planted

H200 = GPU("h200", "cuda", 90, sms=132, shared_bytes=232448, memory_bytes=139 * 2**30, l2_bytes=50 * 2**20)


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    monkeypatch.setattr(huge, "_CHUNK", 7)


def compare(output, expected, dtype="fp32"):
    return huge.compare("y", output, expected, dtype, reduction=1)


def test_torchs_own_result_passes_and_so_does_one_that_is_rounded_otherwise():
    expected = torch.randn(6, 5, generator=torch.Generator().manual_seed(0))
    assert compare(expected, expected).reason == ""
    assert compare(torch.nextafter(expected, expected + 1), expected).reason == ""


def test_wrong_elements_are_counted_across_pieces_with_the_first_of_them():
    expected = torch.ones(6, 5)
    output = expected.clone()
    output[2:5, 3] = 4
    reason = compare(output, expected).reason
    assert reason.startswith("differs from torch in 3 of 30 elements, from element 13 to 23, counted row by row")
    assert "y[2, 3] is 4, expected 1; y[3, 3] is 4, expected 1" in reason


@pytest.mark.parametrize("got", [float("nan"), float("inf")])
def test_nan_and_infinity_are_wrong_where_torch_has_a_number_and_right_where_it_has_them(got):
    expected = torch.ones(30)
    output = expected.clone()
    output[20] = got
    assert "1 of 30" in compare(output, expected).reason
    assert "1 of 30" in compare(expected, output).reason
    assert compare(output, output.clone()).reason == ""


IN_CHUNKS = "linear_cross_entropy"  # no tensor of its own grows with rows times vocabulary: that is its purpose


@pytest.mark.parametrize("name", [name for name in catalog.names() if name != IN_CHUNKS])
def test_every_kernel_declares_one_that_overflows_32_bits_and_fits_an_80_gb_gpu(name):
    declaration = catalog.load(name, interpret=True)
    assert declaration.huge_cases
    for case in declaration.huge_cases:
        for work in declaration.passes.values():
            tensors = work.inputs(case, "meta", None).values()
            # Of these one is the output.
            outputs = [2**31 + 1] if name in ("matmul", "matmul_8bit", "grouped_matmul") else []
            sizes = [t.numel() for t in tensors if isinstance(t, torch.Tensor)] + outputs
            assert max(sizes) > 2**31 and case.reason
            assert huge.needed_bytes(work, case) < 70 * 2**30
        # Not all need: some are for flags or row lengths that no case of this size has.
        assert any(not v.unsupported(case, H200) for v in declaration.forward.variants), "a variant takes it"


def inspected(declaration, device="cpu", gpu=INTERPRETER, **selected):
    inspection = Inspection(declaration, gpu, torch.device(device), [0], Selection(**selected))
    return worst(f for task in inspection.tasks() for f in inspection.run(task)), inspection.left_out


def test_the_interpreter_and_a_small_gpu_say_where_it_would_run(tmp_path, monkeypatch):
    declaration = planted(tmp_path)
    declaration = dataclasses.replace(
        declaration, huge_cases=(dataclasses.replace(declaration.edge_cases[0], sizes=(("m", 2**18 + 1), ("n", 8192))),)
    )
    sizes = (("m", 2**18 + 1), ("n", 8192))
    findings, left_out = inspected(declaration, sizes=sizes, variant="rows")
    assert findings == []
    assert {entry["direction"] for entry in left_out} == {"forward", "backward"}
    assert "for a GPU with about" in left_out[0]["reason"] and "not the interpreter" in left_out[0]["reason"]
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (14 * 2**30, 15 * 2**30))
    t4 = dataclasses.replace(H200, name="t4", arch=75)
    _, left_out = inspected(declaration, gpu=t4, sizes=sizes, variant="rows", direction="forward")
    assert left_out[0]["reason"].endswith("14 GiB are free")


@pytest.mark.parametrize(
    ("fault", "check", "words"),
    [
        (None, None, ""),
        (("row * n + offs, x * rstd", "row * n + offs, tl.where(row == 4, 0.0, x * rstd)"), "values", "differs from"),
        (("x * rstd, mask=mask)", "x * rstd)"), "written_once_and_inside", "stored outside y"),
    ],
)
def test_a_case_that_fits_is_compared_with_torch_on_the_first_seed(tmp_path, monkeypatch, fault, check, words):
    """At a size that the interpreter can take: what is huge of it is pretended."""
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (100 * 2**30, 139 * 2**30))
    declaration = planted(tmp_path, *([fault] if fault else []))
    case = dataclasses.replace(declaration.edge_cases[0], sizes=(("m", 6), ("n", 33)), reason="huge")
    declaration = dataclasses.replace(declaration, edge_cases=(), huge_cases=(case,))
    findings, left_out = inspected(declaration, gpu=H200, variant="rows", direction="forward")
    assert left_out == []
    assert {f.check for f in findings} == {"values", "written_once_and_inside", "inputs_unchanged"}
    failed = {f.check: f.reason for f in findings if f.status == "fail"}
    assert set(failed) >= ({check} if check else set()) and words in failed.get(check, "")
    assert bool(failed) == bool(check)
