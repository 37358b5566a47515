"""What a call would choose at a case that is left out of the records."""

import pytest
from atlas import catalog
from atlas.declaration import GPU, case, choice
from atlas.declaration.timings import Timed
from atlas.errors import AtlasError
from atlas.identity.needs import needed
from atlas.results import documents
from atlas.tuning.summary import EMPTY
from proof_doubles import document, job

from proofs.tuning import choice as proof

H200 = GPU("h200", "cuda", 90, 132, 232448, 2**37, 2**25)
CERTIFICATE = {"protocol": "validation/3", "cases": 4, "checks": 60, "seeds": 5}
SIZES = [2**power for power in range(18, 26)]
FAST, SPECIAL = {"BLOCK": 512, "num_warps": 4}, {"BLOCK": 1024, "num_warps": 8}


def default_of(n):
    return dict(choice.untuned(catalog.load("vector_add").forward, case("fp32", n=n), H200)[1])


def tuned(results, times, gpu="h200", stage="autotune", **more):
    """Puts a document of autotune or sample there: by n the microseconds of the default and of other configs."""
    trials, bests = [], []
    for n, (default, *others) in times.items():
        common = {"direction": "forward", "dtype": "fp32", "sizes": {"n": n}, "variant": "blocks"}
        own = [(default_of(n), default), *others]
        trials += [common | {"config": c, "median_us": us, "status": "ok", "reason": ""} for c, us in own]
        config, us = min(own, key=lambda one: one[1])
        bests.append(common | {"config": config, "median_us": us, "certificate": CERTIFICATE})
    fields = EMPTY | {"protocol": "p", "strategy": "s", "best": bests, "trials": trials}
    fields |= {"identities": needed(stage, catalog.identities("vector_add"))} | more
    path = results / "measured" / gpu / "vector_add" / f"{stage}.json"
    documents.write(path, document(stage, "vector_add", fields, gpu=gpu))


def rows(evidence):
    return {row["left out"]: row for row in evidence.rows if row["kernel"] == "all"}


def test_a_config_that_is_faster_everywhere_is_chosen_where_it_is_left_out(tmp_path):
    tuned(tmp_path, {n: (n / 1e3, (FAST, n / 1.25e3)) for n in SIZES})
    found = proof.run(job(proof, tmp_path))
    row = rows(found)["the case"]
    assert row["chosen: regret %, median"] == row["chosen: worst"] == 0 and row["default: worst"] == 25
    assert row["chosen: % over default"] == -20 and row["cases"] == row["not the default"] == len(SIZES)
    assert found.holds or [one.text for one in found.broken if "ms of processor" not in one.text] == []


def test_a_sample_tells_of_the_kernels_own_cases_and_has_rows_of_its_own(tmp_path):
    tuned(tmp_path, {SIZES[3]: (1e3, (FAST, 1e3), (SPECIAL, 500))})
    assert rows(proof.run(job(proof, tmp_path)))["the case"]["chosen: worst"] == 100
    drawn = {n + 1: (n / 1e3, (FAST, n / 1e3), (SPECIAL, n / 2e3)) for n in SIZES}
    tuned(tmp_path, drawn, stage="sample", seed=0, cases=len(SIZES))
    found = rows(proof.run(job(proof, tmp_path)))
    assert found["the case"]["cases"] == 1 and found["the case"]["chosen: worst"] == 0
    assert found[proof.SAMPLE]["cases"] == len(SIZES)


def test_what_won_nowhere_but_at_the_case_that_is_left_out_is_not_known(tmp_path):
    odd = SIZES[3]
    times = {n: (n / 1e3, (FAST, n / 1.25e3), (SPECIAL, n / 1e3)) for n in SIZES}
    times[odd] = (odd / 1e3, (FAST, odd / 1e3), (SPECIAL, odd / 2e3))
    tuned(tmp_path, times)
    row = rows(proof.run(job(proof, tmp_path)))["the case"]
    assert row["chosen: worst"] == row["nearest: worst"] == row["default: worst"] == 100


def test_the_nearest_case_by_the_rule_of_before_stands_beside(tmp_path):
    # What wins at one size is slow at the next one.
    times = {n: (n / 1e3, (FAST, n / (1.1e3 if place % 2 else 0.5e3))) for place, n in enumerate(SIZES)}
    tuned(tmp_path, times)
    row = rows(proof.run(job(proof, tmp_path)))["the case"]
    assert row["nearest: worst"] > 90 and row["nearest: % over default"] > 10
    assert row["chosen: % over default"] <= 0.01 and row["not the default"] == 0


def test_another_gpu_of_the_same_kind_tells_of_this_one(tmp_path):
    tuned(tmp_path, {n: (n / 1e3, (FAST, n / 1.25e3)) for n in SIZES})
    tuned(tmp_path, {n: (n / 0.9e3, (FAST, n / 1.1e3)) for n in SIZES}, gpu="h100")
    found = rows(proof.run(job(proof, tmp_path)))
    assert found["all but h100"]["cases"] == len(SIZES) and found["all but h100"]["chosen: worst"] == 0
    assert found["the case, h100 known"]["chosen: worst"] == 0


def test_what_a_call_could_choose_at_best_stands_beside(tmp_path):
    tuned(tmp_path, {n: (n / 1e3, (FAST, n / (1.25e3 if n > SIZES[2] else 0.8e3)), (SPECIAL, n / 2e3)) for n in SIZES})
    row = rows(proof.run(job(proof, tmp_path)))["the case"]
    assert row["choosable: worst"] == 0 <= row["chosen: worst"] <= row["default: worst"]


def test_cases_whose_default_was_not_timed_are_left_out(tmp_path):
    times = {n: (n / 1e3, (FAST, n / 1.25e3)) for n in SIZES}
    tuned(tmp_path, times)
    path = tmp_path / "measured" / "h200" / "vector_add" / "autotune.json"
    content = documents.read(path, "autotune")
    content["trials"] = [one for one in content["trials"] if one["sizes"]["n"] > SIZES[0] or one["config"] == FAST]
    documents.write(path, content)
    assert rows(proof.run(job(proof, tmp_path)))["the case"]["cases"] == len(SIZES) - 1


def test_a_shape_class_is_all_dtypes_and_flags_within_two_doublings():
    assert proof.shape_class(Timed("fp16", {"m": 64, "n": 64, "causal": True}, 0, {}), "bf16", {"m": 128, "n": 32})
    assert not proof.shape_class(Timed("bf16", {"m": 64, "n": 64}, 0, {}), "bf16", {"m": 256, "n": 32})
    assert not proof.itself(Timed("fp16", {"m": 64}, 0, {}), "bf16", {"m": 64})


def test_without_records_and_in_the_interpreter_it_says_so(tmp_path):
    with pytest.raises(AtlasError, match="no autotune document of h200"):
        proof.run(job(proof, tmp_path))
    with pytest.raises(AtlasError, match="claims of speed"):
        proof.run(job(proof, tmp_path, gpu="cpu"))
