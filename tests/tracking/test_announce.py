"""The table at the start of a run."""

import subprocess
import sys

import pytest
import sample_documents as sample
from atlas import ROOT, catalog
from atlas.host import gpus
from atlas.identity.needs import needed
from atlas.identity.today import of_stage
from atlas.plan.announce import announce, reasons
from atlas.reading import config
from atlas.results import documents, files
from atlas.results.documents import Envelope, read_envelope

STAGES = {"cpu": ("validate", "benchmark")} | dict.fromkeys(("h200", "a100"), ("build", "sample", "beyond"))


def said(capsys, recorded, kernels=("vector_add",), **places):
    """The lines announced for places, by GPU."""
    announce(config.load_gpus(), places, kernels, STAGES.get, recorded)
    captured = capsys.readouterr()
    assert captured.out == "", "standard output belongs to Snakemake"
    return {line.split()[0]: line for line in captured.err.splitlines() if line.strip()}


def test_each_place_says_what_will_happen_there(capsys, tmp_path):
    lines = said(
        capsys,
        tmp_path,
        h200=gpus.Place(gpus.HERE, "NVIDIA H200"),
        a100=gpus.Place(gpus.CLUSTER),
        t4=gpus.Place(gpus.ABSENT),
        cpu=gpus.Place(gpus.HERE, "Triton interpreter"),
    )
    assert "NVIDIA H200" in lines["h200"] and "measured: survey, build, sample, beyond" in lines["h200"]
    assert "cluster" in lines["a100"] and "jobs the executor places" in lines["a100"]
    assert "cross-compiled for sm_75, nothing runs" in lines["t4"]
    assert "functional: validate and benchmark in" in lines["cpu"] and "measured" not in lines["cpu"]


def test_a_record_is_dated_and_its_stale_kernels_are_named(capsys, tmp_path):
    now = needed("validate", catalog.identities("vector_add"))
    sample.put(tmp_path, sample.validate("vector_add", "h100", identities=now), "recorded")
    place = gpus.Place(gpus.RECORDED)
    line = said(capsys, tmp_path / "recorded", h100=place)["h100"]
    assert "record of 2026-11-21 shown; cross-compiled for sm_90" in line
    then = needed("benchmark", catalog.identities("vector_add")) | {"forward.blocks": "another", "peers": "others"}
    sample.put(tmp_path, sample.benchmark("vector_add", "h100", identities=then), "recorded")
    line = said(capsys, tmp_path / "recorded", h100=place)["h100"]
    assert "1 stale, changed since: vector_add (forward `blocks`, the peers)" in line


def test_of_many_stale_kernels_the_names_are_enough(capsys, tmp_path):
    kernels = ("softmax", "layer_norm", "rms_norm", "vector_add")
    for kernel in kernels:
        now = needed("benchmark", catalog.identities(kernel))
        sample.put(tmp_path, sample.benchmark(kernel, "h100", identities=now | {"peers": "others"}), "recorded")
    announce(config.load_gpus(), {"h100": gpus.Place(gpus.RECORDED)}, kernels, STAGES.get, tmp_path / "recorded")
    said = " ".join(capsys.readouterr().err.split())
    assert "4 stale: softmax, layer_norm, rms_norm and vector_add; `python -m atlas record check` says what" in said
    assert "the peers" not in said


def test_what_is_due_again_is_said_with_its_reason(tmp_path):
    now = catalog.identities("vector_add")
    own = {"gpu": "h200", "kernel": "vector_add"}
    for document in (sample.validate(**own, identities=needed("validate", now), code=of_stage("validate")),
                     sample.autotune(**own, identities=needed("autotune", now) | {"forward.blocks": "another"}),
                     sample.benchmark(**own, identities=needed("benchmark", now) | {"forward.blocks": "another"},
                                      code="another")):  # fmt: skip
        sample.put(tmp_path, document)
    stages = ("build", "validate", "autotune", "benchmark")
    found = reasons({("h200", "vector_add"): stages}, results=tmp_path / "measured")
    assert found == [
        "vector_add: forward `blocks` changed: autotune, benchmark (h200)",
        "the code of benchmark changed: benchmark (h200)",
    ]


def test_a_record_that_is_no_json_is_stale_rather_than_the_end_of_the_run(capsys, tmp_path):
    path = sample.put(tmp_path, sample.validate("vector_add", "h100"), "recorded")
    path.write_text("<<<<<<< HEAD")
    assert "stale" in said(capsys, tmp_path / "recorded", h100=gpus.Place(gpus.RECORDED))["h100"]


def test_the_head_process_imports_nothing_heavy_for_it():
    probe = (
        "import sys; import atlas.plan.announce; "
        "print([name for name in ('torch', 'mlflow', 'pandas', 'numpy', 'triton') if name in sys.modules])"
    )
    environment = {"PYTHONPATH": f"{ROOT / 'workflow'}:{ROOT}"}
    done = subprocess.run([sys.executable, "-c", probe], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("content", [None, 3000 * "[" + 3000 * "]"], ids=["a folder", "3000 lists deep"])
def test_a_record_that_no_reader_can_read_does_not_stop_the_announcement(tmp_path, content):
    path = tmp_path / "benchmark.json"
    path.mkdir() if content is None else path.write_text(content)
    assert read_envelope(path) == Envelope()


def test_a_block_that_is_not_as_the_driver_said_is_told_at_the_start_of_the_next_run(capsys, tmp_path):
    document = sample.survey("h200")
    recorded = documents.load(files.found(ROOT / "results" / "recorded" / "h200", "survey"))
    document["properties"] = recorded["properties"] | {"sms": 114}
    sample.put(tmp_path, document)
    here, elsewhere = gpus.Place(gpus.HERE, "NVIDIA H200"), gpus.Place(gpus.ABSENT)
    for places, told in (({"h200": here}, True), ({"h200": elsewhere}, False)):
        announce(config.load_gpus(), places, ("vector_add",), STAGES.get, tmp_path / "recorded")
        assert ("sms 132 (driver: 114)" in capsys.readouterr().err) == told
