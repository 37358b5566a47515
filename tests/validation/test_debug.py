"""The debug command: what it says of planted faults, and walking through a program with a scripted pdb."""

import io
import re
import sys

import pytest
from atlas import catalog, cli

from .planting import EXEMPLAR, planted

STORE = "tl.store(y_ptr + row * n + offs, x * rstd, mask=mask)"


@pytest.fixture
def debug(tmp_path, monkeypatch, capsys):
    """Debug the row kernel with faults planted; gives the exit status and what was printed."""

    def run(*words, faults=(), dtype="fp32", case="m=5,n=33", keys=""):
        declaration = planted(tmp_path, *faults)
        monkeypatch.setattr(catalog, "load", lambda name, interpret=False: declaration)
        monkeypatch.setattr(catalog, "KERNELS", EXEMPLAR.parent)
        monkeypatch.setattr(sys, "stdin", io.StringIO(keys))
        words = [*words, "--dtype", dtype, "--case", case]
        status = cli.main(["debug", "row_kernel", "--gpu", "cpu", *words])
        captured = capsys.readouterr()
        return status, captured.out + captured.err

    return run


def test_a_wrong_value_is_traced_to_the_program_and_the_line_that_stored_it(debug):
    fault = (STORE, STORE.replace("x * rstd", "tl.where((row == 3) & (offs > 30), 7.0, x * rstd)"))
    status, text = debug("--variant", "rows", "--direction", "forward", "--check", "values", faults=[fault])
    assert status == 1
    assert "config    BLOCK=32" in text and "seed      0" in text
    assert re.search(r"y\[3, 31\] +\S+ +7 ", text), "a row of the sheet: index, expected, got"
    assert "y[3, 31]: program (3, 0, 0) of _forward_kernel stored 7, expected" in text
    line = next(i for i, row in enumerate((EXEMPLAR).read_text().splitlines(), 1) if STORE in row)
    assert f"at planted.py:{line} in _forward_kernel: tl.store(" in text


def test_elements_that_no_program_stores_are_told_with_the_program_next_to_them(debug):
    fault = (STORE, STORE.replace("mask=mask", "mask=offs < n - 1"))
    _, text = debug("--variant", "rows", "--direction", "forward", "--check", "values", faults=[fault])
    assert "y[0, 32]: no program stores it" in text
    assert "nearest: y[0, 31] is stored by program (0, 0, 0) of _forward_kernel" in text
    assert "y: no program stores 5 of 165 elements: column 32 of every row" in text


def test_a_store_outside_names_its_program_line_and_distance(debug):
    fault = (STORE, STORE.replace(", mask=mask", ""))
    _, text = debug("--variant", "rows", "--direction", "forward", "--check", "written_once_and_inside", faults=[fault])
    assert (
        "program (4, 0, 0) of _forward_kernel stores outside: 31 element(s) past the end of y, the first 1 past" in text
    )
    assert "in _forward_kernel: tl.store(y_ptr + row * n + offs, x * rstd)" in text


def test_a_load_outside_is_told_although_nothing_was_stored_there(debug):
    fault = ("offs * stride_xn, mask=mask, other=0.0)", "offs * stride_xn)")
    _, text = debug("--variant", "rows", "--direction", "forward", "--check", "values", faults=[fault])
    assert "program (4, 0, 0) of _forward_kernel loads outside: 31 element(s) past the end of input x" in text


def test_a_wild_store_is_told_and_does_not_end_the_process(debug):
    # As an overflowing 32-bit offset would have it; validate itself would die of a segmentation fault.
    fault = (STORE, STORE.replace("row * n", "(row - 2**31 * (row == 3)) * n"))
    _, text = debug("--variant", "rows", "--direction", "forward", "--check", "empty", faults=[fault])
    assert "nothing was checked" in text  # a variant has no such check: nothing ran
    from atlas.debugging import reproduction
    from atlas.declaration import case
    from atlas.validation.findings import Finding, Subject

    declaration = catalog.load("row_kernel")
    subject = Subject("rows", "forward", case("fp32", m=5, n=33), {"BLOCK": 32})
    run = reproduction.reproduce(declaration, Finding("values", subject, "fail", seed=0), "cpu")
    told = "\n".join(reproduction.explanation(run))
    assert (
        "program (3, 0, 0) of _forward_kernel: store of 32 element(s) in memory of no tensor, not carried out" in told
    )
    assert "y: no program stores 33 of 165 elements: row 3" in told


def test_an_element_stored_twice_shows_both_stores(debug):
    again = "\n        tl.store(y_ptr + row * n + offs, 2 * x * rstd, mask=mask & (row == 2))"
    _, text = debug("--variant", "rows", "--direction", "forward", "--check", "values", faults=[(STORE, STORE + again)])
    assert "y[2, 0]: program (2, 0, 0) of _forward_kernel stored" in text
    assert "before that program (2, 0, 0) of _forward_kernel stored" in text


def test_planted_nan_and_the_public_functions_gradient_are_explained_too(debug):
    swallowed = [("squares += x * x", "squares += tl.where(x == x, x * x, 0.0)"),
                 ("x * rstd, mask", "tl.where(x == x, x, 0.0) * rstd, mask")]  # fmt: skip
    _, text = debug("--variant", "rows", "--direction", "forward", "--check", "nan_inf", faults=swallowed)
    assert "launched with NaN in x[" in text
    wrong = ("dy - x * rstd * rstd * dot", "dy - x * rstd * dot")
    _, text = debug("--variant", "public", "--check", "gradients", faults=[wrong])
    assert "gradient of x[0, 0]: program (0, 0, 0) of _backward_kernel stored" in text


WORSE = "{5: 1.5, 2: 3.0}.get(x.stride(1), 1.0)"
"""A fault of two layouts: wrong of the transposed input, which is tried first, and more so of every second element."""


@pytest.mark.parametrize(
    ("check", "fault", "what"),
    [
        (
            "non_contiguous",
            ("EPS=EPS, BLOCK=config", f"EPS=EPS * {WORSE}, BLOCK=config"),
            "inputs every second element",
        ),
        ("gradients", ("x.contiguous(), dy.contiguous()", "x.contiguous(), dy"), "transposed in memory dY"),
    ],
)
def test_what_is_watched_is_the_launch_that_the_sheet_is_of(debug, check, fault, what):
    _, text = debug("--variant", "public", "--check", check, faults=[fault])
    assert re.search(rf"what +with {what}: ", text)
    assert re.findall(r"launched (.*)", text) == [f"with {what}"]
    ((label, stored),) = re.findall(r"^  (.*\]): program .* stored (\S+), expected", text, re.M)
    sheet = {line[2:26].strip(): line.split()[-2] for line in text.splitlines() if re.match(r"  \S.{16,}\S$", line)}
    assert sheet[label] == stored, "the value that the story tells stands in the table"


def test_what_passes_says_so_and_exits_0(debug):
    status, text = debug("--variant", "rows", "--direction", "forward", "--config", '{"BLOCK": 16}', case="m=2,n=19")
    assert status == 0
    assert "values: variant rows, forward m=2 n=19 fp32, BLOCK=16, seed 0: pass" in text


def test_stepping_stops_at_the_first_line_of_the_program_that_went_wrong(debug):
    fault = (STORE, STORE.replace("x * rstd", "tl.where(row == 3, 7.0, x * rstd)"))
    status, text = debug("--variant", "rows", "--direction", "forward", "--check", "values", "--step",
                         faults=[fault], keys="p n\nn\np row\nn\nc\n")  # fmt: skip
    assert status == 1
    assert "program (3, 0, 0) of _forward_kernel, grid (5, 1, 1)" in text
    stops = re.findall(r"> .*planted\.py\((\d+)\)_forward_kernel\(\)", text)
    first = next(i for i, row in enumerate(EXEMPLAR.read_text().splitlines(), 1) if "row = tl.program_id(0)" in row)
    assert [int(number) for number in stops[:3]] == [first, first + 1, first + 2], text
    assert re.search(r"\(Pdb\) array\(\[33\]", text), "an argument of the kernel"
    assert re.search(r"\(Pdb\) array\(\[3\]", text), "the program's own row"


def test_stepping_can_be_sent_to_another_program_and_left(debug):
    words = ["--variant", "rows", "--direction", "forward", "--check", "values", "--step"]
    status, text = debug(*words, "--program", "1", keys="n\np row\nq\n")
    assert status == 0, "a kernel that is right can be walked through, too"
    assert "program (1, 0, 0) of _forward_kernel" in text and re.search(r"\(Pdb\) array\(\[1\]", text)
    status, text = debug(*words, "--program", "77")
    assert status == 2
    assert "no launch has it; the grids are _forward_kernel (5, 1, 1)" in text


def test_stepping_ends_with_its_program(debug):
    keys = "n\n" * 40
    _, text = debug("--variant", "rows", "--direction", "forward", "--check", "values", "--step", "--program", "4",
                    case="m=5,n=7", keys=keys)  # fmt: skip
    assert "--Return--" in text
    assert "interpreter.py(" not in text, "Triton's own frames are skipped"


def test_a_case_too_large_to_interpret_is_answered_with_the_smallest_that_fails_too(debug):
    fault = (STORE, STORE.replace("x * rstd", "2 * x * rstd"))
    status, text = debug(
        "--variant", "rows", "--direction", "forward", "--check", "values", faults=[fault], case="m=8192,n=8192"
    )
    assert status == 1
    assert "too large to interpret (costs the interpreter" in text
    assert "the smallest declared case that fails too is m=1 n=7 fp32" in text
    assert "python -m atlas debug row_kernel --gpu cpu --check values --variant rows --direction forward" in text
    assert "--case m=1,n=7 --config '{\"BLOCK\":32}' --seed 0 --step" in text


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--variant", "row"], "row_kernel has public, rows"),
        (["--check", "valves"], "values"),
        (["--program", "1"], "give --step as well"),
    ],
)
def test_a_mistake_is_named_with_what_would_be_right(debug, words, complaint):
    status, text = debug(*words)
    assert status == 2 and complaint in text


@pytest.mark.parametrize(
    ("case", "complaint"),
    [
        ("m=5", "'m=5': case m=5 fp32 has no size 'n'; row_kernel has m, n"),
        ("m=5,n=33,k=2", "unknown size 'k'; row_kernel has m, n"),
        ("m=five,n=33", "m cannot be 'five'; give a whole number, 0 or more"),
        ("m=-5,n=33", "m cannot be -5"),
        ("m=5.5,n=33", "m cannot be 5.5"),
        ("m 5", "give sizes as name=value"),
    ],
)
def test_a_case_that_the_kernel_cannot_have_is_refused_in_a_line(debug, case, complaint):
    status, text = debug(case=case)
    assert status == 2 and complaint in text and len(text.splitlines()) == 1
