"""``python -m atlas build`` as it is called."""

import json
import os
import subprocess
import sys

import pytest
from atlas import ROOT, cli
from atlas.results import documents


def build(*words, cache):
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    environment |= {"PYTHONPATH": f"{ROOT / 'workflow'}{os.pathsep}{ROOT}", "TRITON_CACHE_DIR": str(cache)}
    command = [sys.executable, "-m", "atlas", "build", *map(str, words)]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """What a sampled build of vector_add for a T4 leaves; a listing of an earlier build lay there before."""
    results = tmp_path_factory.mktemp("results")
    folder = results / "measured" / "t4" / "vector_add"
    (folder / "listings").mkdir(parents=True)
    (folder / "listings" / "forward-gone-fp32-old_kernel.ptx").write_text("")
    done = build("vector_add", "--gpu", "t4", "--sample", 2, "--jobs", 2, "--results", results, cache=results / "cache")
    assert done.returncode == 0, done.stderr
    return folder


def test_the_document_fits_its_schema_and_is_of_kind_compiled(folder):
    document = documents.read(folder / "build.json", "build")
    assert (document["kind"], document["status"], document["device"]) == ("compiled", "ok", {})
    assert document["target"] == {"backend": "cuda", "arch": 75}


def test_a_sample_says_how_much_of_the_space_it_is(folder):
    document = documents.read(folder / "build.json", "build")
    assert document["scope"]["mode"] == "sample"
    assert document["scope"]["compiled"] == len(document["configs"]) == 5  # three dtypes' defaults, two more
    assert document["scope"]["total"] > 5


def test_the_ptx_of_each_default_lies_beside_the_document_and_old_listings_do_not(folder):
    document = documents.read(folder / "build.json", "build")
    named = [kernel.get("listing") for row in document["configs"] for kernel in row["kernels"] if row["default"]]
    assert sorted(path.name for path in (folder / "listings").iterdir()) == sorted(named)
    text = (folder / "listings" / named[0]).read_text()
    assert ".target sm_75" in text
    assert str(ROOT) not in text


def test_no_path_of_this_machine_is_in_the_document(folder):
    assert str(ROOT) not in (folder / "build.json").read_text()


def test_the_whole_space_is_compiled_without_a_sample_and_sass_is_kept(tmp_path):
    done = build("vector_add", "--gpu", "h200", "--jobs", 2, "--results", tmp_path, cache=tmp_path / "cache")
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "measured" / "h200" / "vector_add"
    document = json.loads((folder / "build.json").read_text())
    assert document["scope"] == {"mode": "all", "total": len(document["configs"]), "compiled": len(document["configs"])}
    assert {path.suffix for path in (folder / "listings").iterdir()} == {".ptx", ".sass"}


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--gpu", "cpu"], "the interpreter"),
        (["--gpu", "t4", "--sample", "0"], "--sample is 0"),
        (["--gpu", "t4", "--jobs", "0"], "--jobs is 0"),
    ],
)
def test_a_mistake_is_one_sentence_and_leaves_no_document(tmp_path, capsys, words, told):
    assert cli.main(["build", "vector_add", *words, "--results", str(tmp_path)]) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert told in said
    assert not list(tmp_path.rglob("build.json"))
