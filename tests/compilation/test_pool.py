"""Workers: one that fails, crashes or hangs costs its own row and no other."""

import inside
import pytest


@pytest.fixture(scope="module")
def results(compiling):
    return compiling(inside.compile_misfits, ["hang", "broken", "good", "crash", "good"])


def test_a_kernel_that_does_not_compile_is_a_failed_result_with_the_compilers_message(results):
    broken = results["broken"]
    assert broken.status == "failed"
    assert "line 2 of the kernel" in broken.reason or "line 3 of the kernel" in broken.reason
    assert "shape" in broken.reason  # 128 and 256 elements do not broadcast
    assert "/" not in broken.reason.replace("and/or", "")  # no path of this machine


def test_a_compiler_that_crashes_is_a_failed_result_with_its_signal(results):
    assert results["crash"].status == "failed"
    assert "SIGABRT" in results["crash"].reason


def test_a_compiler_that_hangs_is_ended_after_its_time(results):
    assert results["hang"].status == "failed"
    assert results["hang"].reason == "not compiled within 120 s"


def test_the_others_are_compiled_all_the_same(results):
    assert results["good"].status == "ok"
    assert len(results) == 4
