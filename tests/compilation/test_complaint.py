"""Compilers' complaints in one line."""

import pytest
from atlas.compilation.compiled import complaint, death, with_printed


def test_the_innermost_cause_is_told():
    try:
        try:
            raise ValueError("num_warps must be a power of 2")
        except ValueError as inner:
            raise RuntimeError("at 5:10:\n    x = f(y)\n    ^") from inner
    except RuntimeError as error:
        assert complaint(error) == "ValueError: num_warps must be a power of 2"


def test_ptxas_is_quoted_with_its_own_words_and_no_path():
    error = RuntimeError(
        "Internal Triton PTX codegen error\n`ptxas` stderr:\n"
        "ptxas /tmp/tmpabc/k.ptx, line 9; error   : Arguments mismatch for instruction 'mma'\n"
        "Repro command: /opt/triton/bin/ptxas -v /tmp/tmpabc/k.ptx\n"
    )
    assert complaint(error) == "RuntimeError: Arguments mismatch for instruction 'mma'"


def test_what_mlir_printed_completes_an_exception_that_says_little():
    printed = "/home/me/kernels/softmax.py:12:3: error: 'tt.reduce' op is not supported\nmodule {\n}\n"
    assert with_printed("RuntimeError: PassManager::run failed", printed) == (
        "RuntimeError: PassManager::run failed ('tt.reduce' op is not supported)"
    )
    assert with_printed("ValueError: no", "nothing of note\n") == "ValueError: no"


@pytest.mark.parametrize(
    ("code", "printed", "told"),
    [
        (-11, "", "the compiler crashed (SIGSEGV)"),
        (-6, "python: x.cpp:7: void f(): Assertion `n > 0' failed.\n#0 0x1\n", "Assertion `n > 0' failed."),
        (3, "killed\n", "ended with status 3: killed"),
    ],
)
def test_a_death_is_told_with_its_signal_and_last_words(code, printed, told):
    assert told in death(code, printed)
