"""Distinct compilations: what counts as one, what is sampled, what is refused."""

from collections import Counter

import inside


def test_cases_that_give_the_same_binary_are_one_compilation(compiling):
    found = compiling(inside.space_of_copies, "a100")
    plain = [c for c in found.compilations if c.variant == "plain" and c.dtype == "fp16"]
    # 8 configs, each for the sizes that are multiples of 16 and for the one that is not
    assert len(plain) == 16
    assert Counter(tuple(case["n"] for case in c.cases) for c in plain) == {(512, 4096, 65536): 8, (4099,): 8}


def test_configs_that_differ_in_the_grid_alone_share_their_kernels(compiling):
    found = compiling(inside.space_of_copies, "a100")
    plain = [c for c in found.compilations if c.variant == "plain" and c.dtype == "fp16"]
    assert len({c.keys for c in plain}) == 8  # WAVES does not reach the kernel
    assert len({tuple(c.config.items()) for c in plain}) == 8


def test_dtypes_are_compiled_apart(compiling):
    found = compiling(inside.space_of_copies, "a100")
    of = {dtype: {c.keys for c in found.compilations if c.dtype == dtype} for dtype in ("fp16", "fp32")}
    assert not of["fp16"] & of["fp32"]


def test_a_default_is_marked_and_compiled_for_a_case_it_is_the_default_of(compiling):
    found = compiling(inside.space_of_copies, "a100")
    defaults = [c for c in found.compilations if c.default and c.variant == "plain" and c.dtype == "fp16"]
    # BLOCK 256 below 1000 elements, 512 above; 4099 elements are a compilation of their own
    assert [(c.config["BLOCK"], c.case["n"]) for c in defaults] == [(256, 512), (512, 4096), (512, 4099)]


def test_a_variant_whose_needs_the_gpu_lacks_is_refused_with_the_reason(compiling):
    found = compiling(inside.space_of_copies, "a100")
    assert {(r.variant, r.dtype) for r in found.refusals} == {("descriptors", "fp16"), ("descriptors", "fp32")}
    assert all(r.reason == "a100 has no hardware tensor descriptors (TMA)" for r in found.refusals)
    assert compiling(inside.space_of_copies, "h200").refusals == ()


def test_cases_a_variant_does_not_handle_are_left_out(compiling):
    found = compiling(inside.space_of_copies, "a100")
    assert {case["n"] for c in found.compilations if c.variant == "short" for case in c.cases} == {512}


def test_a_sample_is_every_default_and_further_configs_of_each_pass(compiling):
    chosen = compiling(inside.sample_of_copies, "h200", 2)
    # defaults are what an untuned call runs, so a GPU's build compiles all of them
    assert Counter((c.variant, c.dtype) for c in chosen if c.default) == {
        (variant, dtype): 1 for variant in ("plain", "descriptors", "short") for dtype in ("fp16", "fp32")
    }
    assert len([c for c in chosen if not c.default]) == 2
    # all for the case with the most traffic that the variant handles
    assert {(c.variant, c.case["n"]) for c in chosen} == {("plain", 65536), ("descriptors", 65536), ("short", 512)}


def test_a_sample_is_the_same_each_time_and_another_for_another_seed(compiling):
    drawn = [
        [c.config for c in compiling(inside.sample_of_copies, "h200", 4, seed) if not c.default]
        for seed in ("kernel a100", "kernel a100", "kernel h100")
    ]
    assert drawn[0] == drawn[1]  # a repeated build compares with the one before
    assert drawn[0] != drawn[2]  # GPUs together show more of the space


def test_a_sample_larger_than_the_space_is_the_space_of_its_cases(compiling):
    chosen = compiling(inside.sample_of_copies, "h200", 100)
    assert set(Counter((c.variant, c.dtype) for c in chosen).values()) == {8}
