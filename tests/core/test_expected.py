"""What is expected of a config at a case nobody tuned: the arithmetic, how sure it is, and how long it takes."""

import functools
import json
import math
import random
import sys
import warnings
from collections import Counter
from statistics import median

import numpy as np
import pytest
from atlas import ROOT, catalog
from atlas.declaration import GPU, Case, choice, expected, likeness, timings
from atlas.declaration.expected import estimates
from atlas.declaration.likeness import alike, near
from atlas.declaration.timings import Timed, Timings

H200 = GPU("h200", "cuda", 90, 132, 232448, 2**37, 2**25, device_name="NVIDIA H200")
SLOW, FAST = ("v", {"BLOCK": 64, "num_warps": 4}), ("v", {"BLOCK": 64, "num_warps": 8})
OTHER = ("w", {"BLOCK": 64})


def timed(*cases, configs=(SLOW, FAST, OTHER)) -> Timings:
    return Timings(tuple(configs), tuple(Timed("bf16", {"n": n}, 0, dict(enumerate(us))) for n, us in cases))


def one(found: Timings, n: int, candidate=FAST, default=SLOW):
    return estimates(found, "bf16", {"n": n}, default, [candidate])[0]


def test_a_timing_of_the_very_case_is_believed_but_for_its_noise():
    told = one(timed((1024, (100.0, 90.0))), 1024)
    assert told.log_ratio == pytest.approx(math.log(0.9), rel=0.1) and told.error < 0.01


def test_the_farther_the_timings_the_less_sure():
    found = timed((1024, (100.0, 90.0)))
    errors = [one(found, n).error for n in (1024, 2048, 8192, 2**20)]
    assert errors == sorted(errors) and errors[-1] > 5 * errors[0]
    assert abs(one(found, 2**20).log_ratio) < abs(one(found, 1024).log_ratio)


def test_timings_of_another_variant_tell_nothing_of_the_gain_over_the_default():
    told = one(timed((1024, (100.0, 90.0)), configs=(SLOW, FAST)), 1024, candidate=OTHER)
    assert told.log_ratio == 0 or abs(told.log_ratio) < abs(math.log(0.9))
    assert told.error > 0.3
    assert alike(SLOW, OTHER) == 0


def test_how_slow_the_slow_ones_are_says_little():
    twice, ten = (one(timed((1024, (us, 90.0))), 1024).log_ratio for us in (180.0, 900.0))
    assert twice == pytest.approx(ten, abs=0.01) and twice == pytest.approx(-likeness.SATURATES, abs=0.02)


def test_configs_are_alike_by_what_their_numbers_are_called():
    config = {"BLOCK": 64, "num_warps": 4, "num_stages": 2, "EVEN": True, "RING": 0}

    def changed(**settings):
        return alike(("v", config), ("v", config | settings))

    assert changed() == 1
    assert changed(num_stages=4) < changed(num_warps=8) < changed(EVEN=False) < changed(BLOCK=128) < 1
    assert changed(BLOCK=256) < changed(BLOCK=128) and changed(BLOCK=32) == pytest.approx(changed(BLOCK=128))
    assert 0 < changed(RING=8) < 1, "of 0 there is no logarithm"


def test_configs_of_a_space_that_had_another_parameter_are_as_far_apart_from_either_side():
    new, old = ("v", {"BLOCK": 64}), ("v", {"BLOCK": 64, "RING": 0})
    assert alike(new, old) == alike(old, new) < 1
    # Where one side alone counted the difference, covariances were none: a call raised "math domain error".
    configs = [("v", {"BLOCK": block} | more) for more in ({"RING": 0}, {}) for block in (64, 128)]
    cases = [(n, (100.0, 90.0) + (None,) * 2) for n in (1024, 2048)] + [(1024, (None,) * 2 + (100.0, 91.0))]
    found = Timings(
        tuple(configs),
        tuple(
            Timed("bf16", {"n": n}, next(i for i, one in enumerate(us) if one), {i: t for i, t in enumerate(us) if t})
            for n, us in cases
        ),
    )
    told = estimates(found, "bf16", {"n": 1024}, configs[2], [configs[3]])[0]
    assert told.log_ratio == pytest.approx(math.log(0.91), abs=0.03) and told.error < 0.05


def test_cases_are_near_by_sizes_flags_and_dtype():
    def to(dtype="bf16", **sizes):
        return near(
            "bf16", {"m": 64, "n": 64, "causal": True}, Timed(dtype, {"m": 64, "n": 64, "causal": True} | sizes, 0, {})
        )

    assert to() == 1
    assert to(causal=False) < to(n=1024) < to(n=128) < to(dtype="fp16") < 1
    assert to(m=128, n=128) > to(n=256), "two sizes a little off are nearer than one far off"
    assert to(k=1) == to(causal=False), "a size that only one of both has is a flag"
    assert (
        near("bf16", {"layout": "TN"}, Timed("bf16", {}, 0, {}))
        < near("bf16", {"layout": "NN"}, Timed("bf16", {}, 0, {}))
        == 1
    )


def test_timings_of_another_gpu_are_less_than_a_doubling_away():
    case = {"n": 1024}
    here, there = (Timed("bf16", {"n": n}, 0, {}, gpu) for n, gpu in ((2048, ""), (1024, "h100")))
    assert near("bf16", case, here) < near("bf16", case, there) < 1
    assert near("bf16", case, there, "h100") == 1


def test_timings_of_several_gpus_are_joined_by_config():
    own, other = timed((512, (10.0, 9.0, 12.0))), timed((1024, (7.0, 8.0)), configs=(OTHER, FAST))
    found = timings.joined(own, ("h100", other))
    assert found.configs == own.configs and [case.gpu for case in found.cases] == ["", "h100"]
    assert found.cases[1].us == {2: 7.0, 1: 8.0} and found.cases[1].default == 2
    assert timings.joined(None, ("h100", other)).configs == other.configs


def test_an_estimate_is_that_of_the_process_as_linear_algebra_has_it():
    found = timed((512, (10.0, 9.0, 12.0)), (1024, (20.0, 19.0, 21.0)), (4096, (80.0, 60.0, 70.0)))
    trials = found.trials
    assert len(trials) == 6 <= expected.TELLING
    covariance = np.array([[found.covariance(a, b) for b in trials] for a in trials])
    case = {"n": 3000}
    for candidate in (FAST, OTHER):
        shared = np.array([
            likeness.SCALE**2 * near("bf16", case, found.cases[t.case])
            * sum(sign * alike(c, found.configs[place]) for sign, c, place in
                  ((1, candidate, t.config), (-1, candidate, t.default), (-1, SLOW, t.config), (1, SLOW, t.default)))
            for t in trials
        ])  # fmt: skip
        weights = np.linalg.solve(covariance, shared)
        told = one(found, 3000, candidate)
        assert told.log_ratio == pytest.approx(weights @ [t.log_ratio for t in trials])
        variance = 2 * likeness.SCALE**2 * (1 - alike(candidate, SLOW)) - weights @ shared
        ratios = np.array([t.log_ratio for t in trials])
        surprise = max(1.0, ratios @ np.linalg.solve(covariance, ratios) / len(trials))
        assert told.error == pytest.approx(math.sqrt(variance * surprise))


def test_timings_that_contradict_each_other_are_less_sure():
    steady = timed(*((n, (100.0, 90.0)) for n in (512, 1024, 2048, 4096)))
    to_and_fro = timed(*((n, (100.0, us)) for n, us in ((512, 90.0), (1024, 130.0), (2048, 90.0), (4096, 130.0))))
    assert one(to_and_fro, 1500).error > 1.5 * one(steady, 1500).error


def test_of_many_timings_an_estimate_rests_on_those_that_tell_most_of_it():
    found = timed(*((2**power, (100.0, 90.0)) for power in range(20)))
    told = one(found, 2**4 + 1)
    assert len(told.told_by) == expected.TELLING and told.told_by[0].sizes == {"n": 2**4}
    assert max(case.sizes["n"] for case in told.told_by) < 2**10


def test_a_default_that_nobody_timed_is_compared_by_its_likeness():
    unknown = ("v", {"BLOCK": 128, "num_warps": 4})
    told = one(timed((1024, (100.0, 90.0))), 1024, default=unknown)
    assert told.log_ratio == pytest.approx(math.log(0.9), rel=0.1)


GOOD = {"form": 1, "passes": {"forward": {
    "configs": [{"variant": "v", "config": {"BLOCK": 64}}],
    "cases": [{"dtype": "bf16", "sizes": {"n": 8}, "default": 0, "us": [5.0]}],
}}}  # fmt: skip


def broken(place: str, **changes):
    content = json.loads(json.dumps(GOOD))
    work = content["passes"]["forward"]
    work[place] = [work[place][0] | changes]
    return content


WRONG = {
    "cut off": ('{"form": 1', "cut off or not JSON"),
    "a list": ([], "is no file of timings of form 1"),
    "another form": (GOOD | {"form": 2}, "is no file of timings of form 1"),
    "no passes": ({"form": 1}, "key 'passes': None is no mapping"),
    "another pass": ({"form": 1, "passes": {"sideways": {}}}, "key 'passes'"),
    "no cases": ({"form": 1, "passes": {"forward": {"configs": []}}}, "key 'passes.forward.cases': None is no list"),
    "a nested setting": (broken("configs", config={"BLOCK": [1]}), "key 'passes.forward.configs.0'"),
    "a negative size": (broken("cases", sizes={"n": -1}), "key 'passes.forward.cases.0.sizes'"),
    "no time": (broken("cases", us=[0]), "key 'passes.forward.cases.0.us': [0] are not times"),
    "certified by a word": (broken("configs", certified="bf16"), "key 'passes.forward.configs.0.certified'"),
    "too many times": (broken("cases", us=[5.0, 6.0]), "is no list of 1 times"),
    "a default elsewhere": (broken("cases", default=1), "key 'passes.forward.cases.0.default': 1 is not the place"),
    "a default without a time": (broken("cases", us=[None]), "key 'passes.forward.cases.0.default'"),
}


@pytest.mark.parametrize(("content", "says"), WRONG.values(), ids=WRONG)
def test_a_file_of_another_form_is_told_and_gives_nothing(tmp_path, content, says):
    path = tmp_path / "toy.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    found, fault = timings.read(path)
    assert found == {} and says in fault
    choice._timings.cache_clear()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert choice._timings(path) == choice._timings(path) == {}
    assert len(caught) == 1 and "run default configs" in str(caught[0].message)


def test_no_file_is_no_fault(tmp_path):
    assert timings.read(tmp_path / "none.json") == ({}, "")


FILES = sorted((ROOT / "kernels" / "tuned" / "timings").glob("*.json"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_files_that_were_exported_have_no_fault(path):
    found, fault = timings.read(path)
    assert found and not fault


def entered(function):
    """The result, and how many functions of Python were entered for it: what it costs on any host."""
    events = Counter()
    sys.setprofile(lambda frame, event, argument: events.update([event]))
    try:
        result = function()
    finally:
        sys.setprofile(None)
    return result, events["call"]


def test_a_choice_is_made_in_some_thousand_steps_and_can_be_launched():
    """The slowest of the kernels, which has most configs and cases, at shapes of between half and twice its own.

    A call may wait for 5 ms: 4,200 took 1.9 ms on one host, 5,300 took 2.1 on another.
    """
    declaration, drawing, steps = catalog.load("matmul"), random.Random(0), []
    _, entries = choice.exported("NVIDIA H200")
    found, _ = timings.read(choice.timings_file("h200", "matmul"))
    others = {"h100": found}  # another GPU's file as large
    for case in found["forward"].cases:
        sizes = {n: max(1, int(v * drawing.uniform(0.5, 2))) if type(v) is int else v for n, v in case.sizes.items()}
        case = Case(case.dtype, tuple(sizes.items()))
        made, count = entered(
            functools.partial(
                choice.explained, declaration, "forward", case, H200, entries, lambda: found, lambda: others
            )
        )
        steps.append(count)
        assert not made.variant.unsupported(case, H200)
        assert made.estimate is None or not made.variant.fits(made.config, case, H200)
    assert median(steps) < 6000
