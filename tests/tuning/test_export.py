"""What ``atlas export`` writes is what the kernels' public functions then run."""

import json

import pytest
import yaml
from atlas import catalog
from atlas.cli import main
from atlas.declaration import GPU, case, choice
from atlas.declaration.hardware import pretend
from atlas.identity.needs import needed
from atlas.results import documents

BLOCKS = "forward.blocks"

H200 = GPU(
    "h200", "cuda", 90, sms=132, shared_bytes=232448, memory_bytes=2**37, l2_bytes=2**25, device_name="NVIDIA H200"
)

CERTIFICATE = {"protocol": "validation/2", "cases": 9, "checks": 60, "seeds": 5}


@pytest.fixture
def place(tmp_path, monkeypatch):
    """An empty kernels/tuned, a gpus.yaml of three blocks, and a way to put documents under results/."""
    tuned = tmp_path / "kernels" / "tuned"
    monkeypatch.setattr(choice, "TUNED", tuned)
    choice._entries.cache_clear()
    choice._choose.cache_clear()
    block = {
        "description": "a GPU", "match": "NVIDIA H200$", "target": {"cuda": 90}, "memory_gib": 141, "sms": 132,
        "shared_memory_kib": 227, "l2_mib": 60,
        "datasheet": {"source": "x", "bandwidth_gb_per_s": 1, "tflop_per_s": {"fp32": 1}},
    }  # fmt: skip
    blocks = {
        "h200": block,
        "t4": block | {"match": "Tesla T4"},
        "cpu": {"description": "x", "target": {"cpu": "interpreter"}},
    }
    (tmp_path / "gpus.yaml").write_text(yaml.safe_dump(blocks))
    yield tmp_path
    choice._entries.cache_clear()
    choice._choose.cache_clear()


def best(n, block, warps=4, dtype="fp32"):
    return {"direction": "forward", "dtype": dtype, "sizes": {"n": n}, "variant": "blocks", "median_us": 12.34567,
            "config": {"BLOCK": block, "num_warps": warps}, "certificate": CERTIFICATE}  # fmt: skip


def uncertified(n, block):
    return {name: value for name, value in best(n, block).items() if name != "certificate"}


def trial(n, block, us, warps=4, **more):
    return {"direction": "forward", "dtype": "fp32", "sizes": {"n": n}, "variant": "blocks", "median_us": us,
            "config": {"BLOCK": block, "num_warps": warps}, "status": "ok", "reason": ""} | more  # fmt: skip


def put(folder, *bests, gpu="h200", kind="measured", status="ok", where="measured", plain=None, trials=(),
        stage="autotune", **more):  # fmt: skip
    document = {
        "stage": stage, "schema_version": documents.VERSIONS[stage], "kernel": "vector_add", "gpu": gpu,
        "kind": kind, "status": status, "reason": "" if status == "ok" else "no config works", "device": {},
        "kernel_digest": catalog.digest("vector_add"), "software": {"torch": "2.11.0", "triton": "3.6.0"},
        "seconds": 1.0, "protocol": "timing/1", "strategy": "halving", "budget_seconds": None, "seconds_by_phase": {},
        "trials_by_status": {}, "best": list(bests), "trials": list(trials),
        "identities": needed(stage, catalog.identities("vector_add")) | ({BLOCKS: plain} if plain else {}),
    } | more  # fmt: skip
    documents.write(folder / "results" / where / gpu / "vector_add" / f"{stage}.json", document)


def export(folder, *words):
    return main(["export", "--results", str(folder / "results"), "--gpus-file", str(folder / "gpus.yaml"), *words])


def chosen(n, dtype="fp32"):
    declaration = catalog.load("vector_add")
    with pretend(H200):
        return choice.choose(declaration, "forward", case(dtype, n=n), "cpu")[1]


def test_a_call_of_a_tuned_case_runs_what_won_there(place):
    put(place, best(2**12, 512, 2), best(2**24, 8192, 16))
    assert export(place, "--gpu", "h200") == 0
    assert chosen(2**12) == {"BLOCK": 512, "num_warps": 2}
    assert chosen(2**24) == {"BLOCK": 8192, "num_warps": 16}
    assert chosen(2**24, "bf16") == {"BLOCK": 1024, "num_warps": 4}  # nothing was tuned for it: the default


def test_the_file_says_what_it_is_for_and_where_it_is_from(place):
    put(place, best(2**12, 512))
    export(place)
    document = json.loads((place / "kernels" / "tuned" / "h200.json").read_text())
    assert document["gpu"] == "h200" and document["match"] == "NVIDIA H200$"
    assert document["generated_by"] == "python -m atlas export --gpu h200"
    assert document["software"] == {"torch": "2.11.0", "triton": "3.6.0"}
    (entry,) = document["entries"]
    assert entry == {
        "kernel": "vector_add", "direction": "forward", "dtype": "fp32", "sizes": {"n": 4096}, "variant": "blocks",
        "config": {"BLOCK": 512, "num_warps": 4}, "median_us": 12.346, "certificate": CERTIFICATE,
        "identity": catalog.identities("vector_add")[BLOCKS],
    }  # fmt: skip


def test_without_a_gpu_named_all_that_were_tuned_are_written(place, capsys):
    put(place, best(2**12, 512))
    put(place, best(2**12, 1024), gpu="t4", where="recorded")
    assert export(place) == 0
    assert sorted(p.name for p in (place / "kernels" / "tuned").glob("*.json")) == ["h200.json", "t4.json"]
    assert "kernels/tuned/t4.json: vector_add (1 cases, recorded)" in capsys.readouterr().out


@pytest.mark.parametrize(
    "document",
    [{"status": "failed"}, {"status": "wrong"}, {"gpu": "cpu", "kind": "functional"}],
    ids=["failed", "wrong", "functional"],
)
def test_only_what_a_gpu_measured_and_found_right_is_exported(place, capsys, document):
    put(place, best(2**12, 512), **document)
    assert export(place) == 2
    assert "no autotune document of status ok that any GPU measured" in capsys.readouterr().err
    assert not (place / "kernels").exists()


def test_what_was_measured_here_wins_over_a_record(place):
    put(place, best(2**12, 512), where="recorded")
    put(place, best(2**12, 2048))
    export(place)
    assert chosen(2**12)["BLOCK"] == 2048


def test_a_document_of_an_older_variant_is_exported_with_its_identity_and_named(place, capsys):
    put(place, best(2**12, 512), plain="another")
    assert export(place) == 0
    assert "changed since: forward `blocks`: tune it again" in capsys.readouterr().out
    document = json.loads((place / "kernels" / "tuned" / "h200.json").read_text())
    assert document["entries"][0]["identity"] == "another"


def test_each_entry_is_one_line_so_that_a_new_tuning_reads_well_as_a_diff(place):
    put(place, *(best(2**n, 512) for n in range(10, 15)))
    export(place)
    text = (place / "kernels" / "tuned" / "h200.json").read_text()
    assert sum('"kernel": "vector_add"' in line for line in text.splitlines()) == 5


def test_what_is_not_certified_is_left_out_and_named_with_the_remedy(place, capsys):
    put(place, best(2**12, 512), uncertified(2**14, 2048), best(2**24, 8192) | {"certificate": None})
    assert export(place) == 0
    document = json.loads((place / "kernels" / "tuned" / "h200.json").read_text())
    assert [entry["sizes"]["n"] for entry in document["entries"]] == [2**12]
    shown = capsys.readouterr()
    assert "vector_add (1 cases, measured)" in shown.out
    assert "left out: 2 of 3 cases of vector_add have no certificate" in shown.err
    assert "python -m atlas autotune vector_add --gpu h200" in shown.err
    assert chosen(2**14)["BLOCK"] == 1024  # the default


def test_a_case_whose_default_is_a_newer_variant_is_left_out_and_named_with_the_remedy(place, capsys):
    # Nobody timed the default beside what won there: a product of fp32 took 3.0 ms tuned, and 1.2 by a newer variant.
    put(place, best(2**12, 512), identities={"forward.rows": "of a variant that was timed"})
    put(place, best(2**12, 512), gpu="t4")
    assert export(place) == 0
    shown = capsys.readouterr()
    assert "1 of 1 cases of vector_add have by default a variant that has come since" in shown.err
    assert "python -m atlas autotune vector_add --gpu h200" in shown.err
    assert "vector_add (1 cases, measured)" in shown.out and "h200.json" not in shown.out
    assert chosen(2**12)["BLOCK"] == 1024  # the default


def test_a_record_from_before_there_were_certificates_is_refused_with_the_remedy(place, capsys):
    put(place, uncertified(2**12, 512), where="recorded")
    assert export(place) == 2
    shown = capsys.readouterr().err
    assert "nothing can be exported" in shown and "run it again: python -m atlas autotune vector_add" in shown
    assert not (place / "kernels").exists()


def written(place):
    return json.loads((place / "kernels" / "tuned" / "timings" / "h200-vector_add.json").read_text())


def default_of(n):
    work = catalog.load("vector_add").forward
    return choice.untuned(work, case("fp32", n=n), H200)[1]


def test_what_winners_and_defaults_took_at_every_case_is_written(place):
    own = default_of(2**20)
    trials = [
        trial(2**20, own["BLOCK"], 20.0, own["num_warps"]), trial(2**20, 512, 18.0004), trial(2**20, 256, 30.0),
        trial(2**21, own["BLOCK"], 40.0, own["num_warps"]), trial(2**21, 512, None, status="out_of_resources"),
    ]  # fmt: skip
    put(place, best(2**20, 512), best(2**21, own["BLOCK"], own["num_warps"]), trials=trials)
    assert export(place, "--gpu", "h200") == 0
    passes = written(place)["passes"]
    assert written(place)["board"] == "cuda 90, 132 sms"
    assert passes["forward"]["configs"] == [
        {"variant": "blocks", "config": {"BLOCK": 512, "num_warps": 4}, "certified": ["fp32"]},
        {"variant": "blocks", "config": own, "certified": ["fp32"]},
    ], "256 won nowhere and is no default"
    assert passes["forward"]["cases"] == [
        {"dtype": "fp32", "sizes": {"n": 2**20}, "default": 1, "us": [18.0, 20.0]},
        {"dtype": "fp32", "sizes": {"n": 2**21}, "default": 1, "us": [None, 40.0]},
    ]


def test_what_export_wrote_is_what_calls_between_the_cases_choose_by(place):
    own = default_of(2**20)
    trials = [
        one
        for n in (2**20, 2**21, 2**22)
        for one in (trial(n, own["BLOCK"], n / 1e3, own["num_warps"]), trial(n, 512, n / 1.2e3))
    ]
    put(place, best(2**20, 512), trials=trials)
    assert export(place, "--gpu", "h200") == 0
    assert chosen(2**21 + 4096) == {"BLOCK": 512, "num_warps": 4}


def test_timings_of_what_the_kernel_no_longer_has_and_of_cases_without_a_default_are_left_out(place):
    own = default_of(2**20)
    trials = [
        trial(2**20, own["BLOCK"], 20.0, own["num_warps"]), trial(2**20, 500, 18.0), trial(2**20, 512, 19.0),
        trial(2**20, 512, 17.0, variant="gone"), trial(2**21, 512, 40.0),
    ]  # fmt: skip
    put(place, best(2**20, 512), best(2**21, 500), trials=trials)
    export(place, "--gpu", "h200")
    work = written(place)["passes"]["forward"]
    assert [one["config"]["BLOCK"] for one in work["configs"]] == [512, own["BLOCK"]]
    assert [one["sizes"]["n"] for one in work["cases"]] == [2**20]


def test_a_config_and_a_case_are_a_line_each_of_the_timings(place):
    own = default_of(2**20)
    put(place, best(2**20, 512), trials=[trial(2**20, own["BLOCK"], 20.0, own["num_warps"]), trial(2**20, 512, 19.0)])
    export(place, "--gpu", "h200")
    lines = (place / "kernels" / "tuned" / "timings" / "h200-vector_add.json").read_text().splitlines()
    assert sum('"variant"' in line for line in lines) == 2 and sum('"sizes"' in line for line in lines) == 1


def test_a_sample_adds_cases_and_timings_and_overrules_no_search_of_a_tuned_case(place):
    put(place, best(1024, 512), trials=[trial(1024, 512, 5.0), trial(1024, 1024, 6.0)])
    drawn = [trial(5000, 2048, 5.0, 8), trial(5000, 512, 5.5), trial(5000, 1024, 6.0)]
    put(place, best(5000, 2048, 8), best(1024, 4096), trials=drawn, stage="sample", seed=0, cases=2)
    assert export(place) == 0
    assert chosen(1024)["BLOCK"] == 512 and chosen(5000) == {"BLOCK": 2048, "num_warps": 8}
    written = json.loads((place / "kernels" / "tuned" / "timings" / "h200-vector_add.json").read_text())
    cases = {one["sizes"]["n"]: one["us"] for one in written["passes"]["forward"]["cases"]}
    assert set(cases) == {1024, 5000} and 5.5 in cases[5000], "what won elsewhere was timed there, too"
