"""Which edge cases vouch for a config, and on which of them hard inputs are tried."""

import dataclasses

import pytest
import torch
from atlas import catalog
from atlas.declaration.hardware import INTERPRETER
from atlas.host import gpus
from atlas.reading.config import GPUS_FILE, load_gpus
from atlas.validation import cases as choice
from atlas.validation import certification, certify

from .planting import planted
from .test_randomness import DROPOUT

CPU = torch.device("cpu")
IGNORES_NAN = [
    ("squares += x * x", "squares += tl.where((x == x) | (BLOCK != 16), x * x, 0.0)"),
    ("x * rstd, mask", "tl.where((x == x) | (BLOCK != 16), x, 0.0) * rstd, mask"),
]
"""A fault of one config alone, which the default (32) does not have."""


def rows(folder, *faults, **changes):
    """The row kernel with faults planted, and its one forward variant with fields changed."""
    declaration = planted(folder, *faults)
    return declaration, dataclasses.replace(declaration.forward.variants[0], **changes)


def chosen(declaration, variant, dtype="fp32"):
    found, _ = certification.certifying_cases(
        declaration, declaration.forward, variant, {"BLOCK": 16}, dtype, INTERPRETER
    )
    return found


def certified(declaration, variant, seeds=(0,)):
    return certify(declaration, "forward", variant, {"BLOCK": 16}, "fp32", CPU, seeds)


def validated(declaration, dtype):
    """The case on which validation tries hard inputs."""
    (found,) = choice.small_cases(declaration.forward, [case for case in declaration.edge_cases if case.dtype == dtype])
    return found


def only_at(n):
    """A ``fits`` or ``handles`` of rows of n elements."""
    return lambda *asked: "" if asked[-2]["n"] == n else "rows of another length"


@pytest.mark.parametrize("variant", ["tiled", "descriptor"])
def test_a_right_config_is_not_refused_for_an_infinity_behind_a_mask(variant):
    """Of +inf in dout the reference makes NaN in dv of keys that its query does not see; blocks of them are skipped."""
    config = {"KEYS_M": 32, "KEYS_N": 64, "KEYS_WARPS": 4, "KEYS_STAGES": 2,
              "QUERIES_M": 64, "QUERIES_N": 32, "QUERIES_WARPS": 8, "QUERIES_STAGES": 2}  # fmt: skip
    declaration = catalog.load("attention", interpret=True)
    found = certify(declaration, "backward", variant, config, "bf16", CPU, [0])
    assert (found.reason, found.cases) == ("", certification.CASES)
    asked = declaration, declaration.backward, declaration.backward.variant(variant), config, "bf16", INTERPRETER
    assert "hard inputs reach all queries alike" in certification.certifying_cases(*asked)[0][0].reason


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_hard_inputs_of_attentions_kernels_for_hopper_meet_no_mask(direction, dtype):
    """They take no heads of 16, as the first case for hard inputs has: on an H200 a right config was called wrong."""
    declaration, block = catalog.load("attention", interpret=True), load_gpus(GPUS_FILE)["h200"]
    work = declaration.passes[direction]
    for variant in work.variants:
        for config in variant.configs(declaration.edge_cases[0], gpus.gpu("h200", block)):
            asked = declaration, work, variant, config, dtype, gpus.gpu("h200", block)
            first = certification.certifying_cases(*asked)[0][0]
            assert not first["causal"] and min(choice.sizes_of(first)) > 2, f"{variant.name} {config} {first}"


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_hard_inputs_under_a_window_are_those_of_a_case_whose_window_holds_all_keys(direction, dtype):
    """A count of 0, for no window, is below 3: such a case would not be taken, but the smallest window would."""
    declaration = catalog.load("attention_masked", interpret=True)
    work = declaration.passes[direction]
    for variant in work.variants:
        config = next(iter(variant.configs(declaration.edge_cases[0], INTERPRETER)))
        first = certification.certifying_cases(declaration, work, variant, config, dtype, INTERPRETER)[0][0]
        assert first["left"] >= first["s"] and first["right"] >= first["s"], f"{variant.name} {first}"


def test_a_right_config_under_a_window_is_not_refused_for_a_key_that_no_query_of_a_block_sees():
    """Of NaN in a value outside the window the reference makes 0 times NaN; blocks outside are skipped."""
    declaration = catalog.load("attention_masked", interpret=True)
    config = {"BLOCK_M": 64, "BLOCK_N": 32, "num_warps": 4, "num_stages": 2}
    found = certify(declaration, "forward", "tiled", config, "bf16", CPU, [0])
    assert (found.reason, found.cases) == ("", certification.CASES)


def test_hard_inputs_are_tried_on_the_case_that_validation_takes_though_the_config_be_not_worth_a_trial_there(tmp_path):
    declaration, variant = rows(tmp_path, fits=only_at(33))
    for dtype in declaration.dtypes:
        assert [case["n"] for case in chosen(declaration, variant, dtype)] == [64, 33]
        assert chosen(declaration, variant, dtype)[0] == validated(declaration, dtype)
    found = certified(declaration, variant)
    assert (found.reason, found.cases) == ("", 2)
    # values, written, unchanged, repeatable on each case; NaN and infinities, magnitudes and an offset on one of them.
    assert found.checks == 2 * 4 + 3


def test_the_case_for_hard_inputs_comes_on_top_of_the_others(tmp_path):
    more = [f'({m}, {n}, "one more")' for m, n in ((9, 65), (7, 129), (20, 64), (3, 5))]
    declaration, variant = rows(tmp_path, ('(4, 64, "whole blocks")', ", ".join(['(4, 64, "whole blocks")', *more])))
    variant = dataclasses.replace(variant, fits=lambda config, case, gpu: "small" if case["n"] < 33 else "")
    found = [(case["m"], case["n"]) for case in chosen(declaration, variant)]
    assert found[0] == (3, 5) and len(found) == len(set(found)) == certification.CASES + 1


@pytest.mark.parametrize("fits", [lambda *_: "", only_at(33), only_at(7)])
def test_a_config_that_ignores_nan_is_refused_wherever_it_fits(tmp_path, fits):
    declaration, variant = rows(tmp_path, *IGNORES_NAN, fits=fits)
    found = certified(declaration, variant)
    assert found.status == "fail" and found.reason.startswith("nan_inf: ")
    assert "n=64" in found.reason and "BLOCK=16" in found.reason and "with NaN in x[" in found.reason


def test_a_variant_that_takes_no_case_of_several_rows_has_hard_inputs_tried_on_the_first_it_takes(tmp_path):
    declaration, variant = rows(tmp_path, *IGNORES_NAN, handles=lambda case, gpu: "several" if case["m"] > 1 else "")
    assert [case["n"] for case in chosen(declaration, variant)] == [7]
    found = certified(declaration, variant)
    assert found.status == "fail" and found.reason.startswith("nan_inf: ") and "n=7" in found.reason


def test_where_that_case_asks_for_too_much_hard_inputs_are_tried_on_the_next(tmp_path):
    full = "from triton.runtime.errors import OutOfResources\n"
    raising = f"    m, n = x.shape\n    {full}    if n == 64:\n        raise OutOfResources(300000, 232448, 'shared')\n"
    declaration, variant = rows(tmp_path, *IGNORES_NAN, ("    m, n = x.shape\n", raising))
    found = certified(declaration, variant)
    assert found.status == "fail" and found.reason.startswith("nan_inf: ") and "n=64" not in found.reason


def test_a_certificate_launches_what_is_compiled_ahead_for_it(tmp_path, monkeypatch):
    declaration, variant = rows(tmp_path, fits=only_at(33))
    launched = []
    check = certification.variants.check_variant

    def noted(problem, *how, **more):
        launched.append(problem.case)
        return check(problem, *how, **more)

    monkeypatch.setattr(certification.variants, "check_variant", noted)
    certified(declaration, variant)
    assert launched == chosen(declaration, variant)  # by the function that the tuner asks, without a device


def test_a_random_pass_s_mask_is_looked_at_where_it_has_most_elements(tmp_path):
    """2 % show among 40 000 elements, and not among the 165 of the case for hard inputs."""
    for fault, status in (((">= p", ">= p + 0.0"), "pass"), ((">= p", ">= p + 0.018"), "fail")):
        declaration = planted(tmp_path, fault, of=DROPOUT)
        found = certify(declaration, "forward", "rows", {"BLOCK": 8192}, "fp32", CPU, [0])
        assert found.status == status, found.reason
    assert found.reason.startswith("keep_rate: ") and "of 40000 elements" in found.reason
