"""Every kind of fault that validation claims to find, planted in a kernel that is right."""

import pytest
from atlas.validation.findings import summary

from .planting import inspect, planted

FORWARD_STORE = "tl.store(y_ptr + row * n + offs, x * rstd, mask=mask)"
RETURN_Y = "    return y\n"

FAULTS = {
    # name: (replacements, check that must fail, words its reason must hold)
    "a mask one element short": (
        [(FORWARD_STORE, FORWARD_STORE.replace("mask=mask", "mask=offs < n - 1"))],
        "written_once_and_inside",
        "y is not written in 5 of 165 elements: column 32 of every row",
    ),
    "a store without its mask": (
        [(FORWARD_STORE, FORWARD_STORE.replace(", mask=mask", ""))],
        "written_once_and_inside",
        "stored outside y: 31 element(s) past its end, the first 1 past it",
    ),
    "a store one element early": (
        [(FORWARD_STORE, FORWARD_STORE.replace("row * n + offs", "row * n + offs - 1"))],
        "written_once_and_inside",
        "stored outside y: 1 element(s) before its start",
    ),
    "a last row that no program owns": (
        [("_forward_kernel[(m,)]", "_forward_kernel[(max(m - 1, 1),)]")],
        "written_once_and_inside",
        "y is not written in 33 of 165 elements: row 4",
    ),
    "a result kept from an earlier call": (
        [(RETURN_Y, "    return RESULTS.setdefault((m, n, x.dtype), y)\n")],
        "values",
        "error is",
    ),
    "an input overwritten": (
        [(FORWARD_STORE, FORWARD_STORE + "\n        tl.store(x_ptr + row * stride_xm + offs, x * rstd, mask=mask)")],
        "inputs_unchanged",
        "input x is changed in all 165 elements",
    ),
    "a mean over the wrong count": ([("/ n + EPS)\n    for", "/ (n - 1) + EPS)\n    for")], "values", "all"),
    "a result twice too large": ([("x * rstd, mask", "2 * x * rstd, mask")], "values", "the result is 2 times"),
    "a loop that forgets its tail": (
        [("squares = tl.zeros((BLOCK,), tl.float32)\n    for start in range(0, n, BLOCK)",
          "squares = tl.zeros((BLOCK,), tl.float32)\n    for start in range(0, n - BLOCK + 1, BLOCK)")],
        "values",
        "error is",
    ),
    "a load without its mask": (
        [("offs * stride_xn, mask=mask, other=0.0)", "offs * stride_xn)")],
        "values",
        "",
    ),
    "NaN swallowed": (
        [("squares += x * x", "squares += tl.where(x == x, x * x, 0.0)"),
         ("x * rstd, mask", "tl.where(x == x, x, 0.0) * rstd, mask")],
        "nan_inf",
        "with NaN in x[",
    ),
    "strides swapped": ([("x.stride(0), x.stride(1)", "x.stride(1), x.stride(0)")], "values", ""),
    "epsilon dropped": ([("/ n + EPS)\n    for", "/ n)\n    for")], "values", "error is"),
    "sums kept in fp16": (
        [("tl.zeros((BLOCK,), tl.float32)", "tl.zeros((BLOCK,), x_ptr.dtype.element_ty)"),
         ("squares += x * x", "squares += (x * x).to(x_ptr.dtype.element_ty)")],
        "large_magnitudes",
        "error is",
    ),
    "another result each time": (
        [(RETURN_Y, "    CALLS.append(1)\n    if x.numel():\n        y.view(-1)[0] *= 1 + 2**-9 * (len(CALLS) % 2)\n"
                    + RETURN_Y)],
        "repeatable",
        "two runs on the same inputs differ in 1 of 256 elements: y[0, 0] is",  # the small case: it is launched twice
    ),
    "a wrong gradient": ([("dy - x * rstd * rstd * dot", "dy - x * rstd * dot")], "gradients", "gradient of x["),
    "a gradient that takes dY for contiguous": (
        [("dy.contiguous()", "dy")],
        "gradients",
        "dY: error is",
    ),
    "a result for contiguous inputs alone": (
        [("row * stride_xm + offs * stride_xn", "row * n + offs")],
        "non_contiguous",
        "with inputs transposed in memory",
    ),
    "an output of another dtype": (
        [("y = torch.empty((m, n), dtype=x.dtype", "y = torch.empty((m, n), dtype=torch.float32")],
        "public_function",
        "y is of dtype torch.float32, torch gives torch.float16",
    ),
    "an output of another shape": (
        [(RETURN_Y, "    return y.reshape(-1)\n")],
        "values",
        "y has shape (165,), expected (5, 33)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found_by_the_check_that_claims_to_find_it(fault, tmp_path):
    replacements, check, words = FAULTS[fault]
    # A fault is the same in every dtype, save those of fp16's own range and precision.
    dtype = (
        "fp16" if fault in ("sums kept in fp16", "another result each time", "an output of another dtype") else "fp32"
    )
    findings = inspect(planted(tmp_path, *replacements), dtype=dtype)
    failed = [finding for finding in findings if finding.status == "fail"]
    assert check in {finding.check for finding in failed}
    assert any(words in finding.reason for finding in failed if finding.check == check), [str(f) for f in failed]
    status, reason = summary(findings)
    assert status == "wrong"
    assert reason == str(failed[0])


def test_the_kernel_the_faults_are_planted_in_is_right(tmp_path):
    findings = inspect(planted(tmp_path), seeds=5)
    assert [str(finding) for finding in findings if finding.status != "pass"] == []
    # Every check there is was made, or the faults above would be found by luck.
    assert {finding.check for finding in findings} == {
        "values", "written_once_and_inside", "inputs_unchanged", "repeatable", "nan_inf", "large_magnitudes",
        "common_offset", "public_function", "gradients", "non_contiguous", "empty",
    }  # fmt: skip


def test_a_variant_that_declares_itself_non_deterministic_may_differ_between_runs(tmp_path):
    replacements, _, _ = FAULTS["another result each time"]
    declaration = planted(tmp_path, *replacements, ("_variant(_launch)", "_variant(_launch, deterministic=False)"))
    findings = inspect(declaration, direction="forward", variant="rows", dtype="fp16")
    assert "repeatable" not in {finding.check for finding in findings}


def test_a_launcher_that_raises_is_an_error_of_its_case_and_leaves_the_others(tmp_path):
    declaration = planted(tmp_path, ("    m, n = x.shape\n", "    m, n = x.shape\n    assert n != 33, 'no 33'\n"))
    findings = inspect(declaration, direction="forward", variant="rows", dtype="fp32")
    errors = [finding for finding in findings if finding.status == "error"]
    assert {dict(finding.subject.case.sizes)["n"] for finding in errors} == {33}
    assert "AssertionError: no 33" in errors[0].reason
    assert any(f.status == "pass" for f in findings)
    assert summary(findings)[0] == "failed"


def test_a_case_a_variant_does_not_handle_is_unsupported_and_not_wrong(tmp_path):
    refusal = 'handles=lambda problem, gpu: "rows of 33" if problem["n"] == 33 else ""'
    declaration = planted(tmp_path, ("_variant(_launch)", f"_variant(_launch, {refusal})"))
    findings = inspect(declaration, direction="forward", dtype="fp32")
    refused = {(f.subject.variant, f.reason) for f in findings if f.status == "unsupported"}
    assert ("rows", "rows of 33") in refused
    assert summary(findings)[0] == "ok"


def test_a_layout_the_public_function_refuses_is_unsupported(tmp_path):
    refusal = 'def normalize(x):\n    if not x.is_contiguous():\n        raise ValueError("contiguous inputs only")\n'
    findings = inspect(planted(tmp_path, ("def normalize(x):\n", refusal)), check="non_contiguous")
    assert any(f.status == "unsupported" and "contiguous inputs only" in f.reason for f in findings)
    assert summary(findings)[0] in ("ok", "unsupported")


def test_an_empty_input_that_raises_is_an_error(tmp_path):
    findings = inspect(
        planted(tmp_path, ("def normalize(x):\n", "def normalize(x):\n    1 // x.numel()\n")), check="empty"
    )
    assert {f.status for f in findings} == {"error"}
    assert "ZeroDivisionError" in findings[0].reason


def test_a_reference_that_raises_is_an_error_named_as_such(tmp_path):
    findings = inspect(planted(tmp_path, ("    return x * torch.rsqrt(", "    return x @ torch.rsqrt(")), dtype="fp32")
    assert ("reference", "error") in {(f.check, f.status) for f in findings}
