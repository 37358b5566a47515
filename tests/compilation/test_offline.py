"""Compiling without a GPU leaves no trace, and makes what a launch asks for."""

import inside
import pytest
from atlas import catalog


@pytest.mark.parametrize("fail", [False, True], ids=["at its end", "after an exception"])
def test_driver_hooks_and_compilations_in_memory_are_restored(compiling, fail):
    arch_inside, same = compiling(inside.state_around_compile_only, fail)
    assert arch_inside == 75
    assert same


@pytest.mark.parametrize("kernel", catalog.names())
def test_meta_tensors_ask_for_the_compilations_that_real_memory_does(compiling, kernel):
    on_meta = compiling(inside.keys_asked_for, kernel, "fp32", False)
    assert on_meta
    assert on_meta == compiling(inside.keys_asked_for, kernel, "fp32", True)


def test_what_was_compiled_once_comes_from_the_cache(compiling):
    first, second = compiling(inside.compile_twice)
    assert first > 0
    assert second is None


def test_where_kernels_are_interpreted_it_says_what_to_unset(compiling):
    assert "unset" in compiling(inside.interpreted)


@pytest.mark.gpu
def test_a_launch_takes_from_the_cache_what_was_compiled_ahead(on_gpu):
    seen = on_gpu(inside.launch_after_compiling)
    assert seen["right"]
    assert seen["hits"] == [True]
    ahead, loaded = seen["registers"]
    assert ahead == loaded
    computed, of_driver = seen["occupancy"]
    assert computed == of_driver
