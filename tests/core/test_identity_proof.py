"""The proof that kernels are what they were when the records were made: what it tells apart, and what it writes."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from atlas import ROOT, catalog
from atlas.identity import kernel
from atlas.results import documents, files

from proofs.identity import added, comparing, listing, records

WORKER = ROOT / "proofs" / "identity" / "worker.py"
NAME = "forward.blocks"
ASKED = {
    "kernel": "vector_add",
    "gpu": "h200",
    "variants": [NAME],
    "added": {NAME: [["fp32", {"n": 2**20}], ["fp32", {"n": 2**31}]]},
    "configs": [
        {"direction": "forward", "variant": "blocks", "dtype": "fp32", "sizes": {"n": 2**20},
         "config": {"BLOCK": 512, "num_warps": 2}},
    ],
}  # fmt: skip


@pytest.fixture(scope="module")
def answer(tmp_path_factory):
    """Asks the worker about vector_add in a tree with edits."""
    folder = tmp_path_factory.mktemp("trees")
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}

    def answer(*edits):
        tree = folder / f"tree{len(list(folder.iterdir()))}"
        for part in ("workflow", "kernels", "config"):
            shutil.copytree(ROOT / part, tree / part, ignore=shutil.ignore_patterns("__pycache__"))
        path = tree / "kernels" / "vector_add.py"
        for old, new in edits:
            assert old in path.read_text(), old
            path.write_text(path.read_text().replace(old, new))
        (tree / "asked").write_text(json.dumps(ASKED))
        paths = {"PYTHONPATH": f"{tree / 'workflow'}{os.pathsep}{tree}", "TRITON_CACHE_DIR": str(tree / "triton")}
        command = [sys.executable, str(WORKER), "asked", "answer"]
        done = subprocess.run(command, cwd=tree, env=environment | paths, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return json.loads((tree / "answer").read_text())

    return answer


@pytest.fixture(scope="module")
def before(answer):
    return answer()


def test_the_worker_compiles_the_recorded_configs_and_every_default(before):
    found = before["variants"][NAME]["configs"]
    assert "fp32 n=1048576 BLOCK=512 num_warps=2" in found
    assert len(found) == len(catalog.load("vector_add").cases(_h200())) + 1
    assert not any(one.startswith("error") for one in found.values())
    assert all(before["parts"].values()), "the sweep, costs, cases and inputs can be told by running them"


def test_the_worker_tells_which_cases_a_variant_takes(before):
    assert before["added"] == {NAME: ASKED["added"][NAME]}, "vector_add's only variant takes any"


def _h200():
    from atlas.host import gpus
    from atlas.reading.config import GPUS_FILE, load_gpus

    return gpus.gpu("h200", load_gpus(GPUS_FILE)["h200"])


def test_a_kernel_renamed_and_moved_down_its_file_is_the_same(answer, before):
    after = answer(("_add_kernel", "_added"), ("import torch\n", "import torch\n\n# Lines\n# more\n"))
    assert after["variants"] == before["variants"] and after["parts"] == before["parts"]


@pytest.mark.parametrize(
    ("edit", "expected"),
    [
        pytest.param(
            ("out_ptr + offs, x + y", "out_ptr + offs, x - y"), "was compiled to something else", id="device code"
        ),
        pytest.param(
            ("grid = (triton", "grid = (1 + triton"),
            "was compiled to something else",
            id="the grid",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            ('{"BLOCK": 1024, "num_warps": 4}', '{"BLOCK": 512, "num_warps": 4}'),
            "its space, a default",
            id="the default",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_what_runs_otherwise_is_told(answer, before, edit, expected):
    after = answer(edit)
    differences = comparing.variant_differences(before["variants"][NAME], after["variants"][NAME])
    assert any(expected in one for one in differences), differences


def test_an_identity_is_proved_by_itself_or_by_what_it_comes_to():
    configs = {"fp32 n=1": "a"}
    listed = {"variants": {NAME: {"identity": "v", "space": "s", "configs": configs}},
              "parts": {"sweep": ["w", "fact"], "references": ["r", None]}}  # fmt: skip
    none = {"variants": {}, "parts": {}}
    same = {NAME: "v", "sweep": "w", "references": "r"}
    assert comparing.proved(listed, same, none) == {NAME: [], "sweep": [], "references": []}
    changed = dict.fromkeys(same, "new")
    run = {"variants": {NAME: {"space": "s", "configs": configs | {"fp32 n=2": "b"}}}, "parts": {"sweep": "fact"}}
    assert comparing.proved(listed, changed, run) == {
        NAME: [],
        "sweep": [],
        "references": ["it cannot be told by running it"],
    }
    failed = {"variants": {NAME: {"space": "s", "configs": {"fp32 n=1": "error 12"}}}, "parts": {"sweep": "other"}}
    found = comparing.proved(listed, changed, failed)
    assert found[NAME] == ["fp32 n=1: error 12"] and found["sweep"] == ["it comes to something else"]
    assert comparing.proved(listed, {}, none)[NAME] == ["it is gone"]


def test_a_binary_that_is_one_of_several_by_chance_is_proved_by_any_turn():
    """As of kernels whose warps Triton specialises: a config comes out as listed in a later turn."""
    listed = {"variants": {NAME: {"identity": "v", "space": "s", "configs": {"a": "1", "b": "2"}}}, "parts": {}}

    def compiled(a, b, space="s"):
        return {"variants": {NAME: {"space": space, "configs": {"a": a, "b": b}}}, "parts": {}}

    first = compiled("1", "other")
    assert comparing.compiled_otherwise(listed, first) == [NAME]
    unlike = comparing.with_matches(listed, first, compiled("another", "third"))
    assert unlike == first
    alike = comparing.with_matches(listed, unlike, compiled("another", "2"))
    assert comparing.proved(listed, {NAME: "new"}, alike) == {NAME: []}
    assert not comparing.compiled_otherwise(listed, compiled("1", "other", space="changed")), "no turn would help"


UNTIMED = "forward.spare"
"""A variant of the records that the list does not name: nothing was timed of it."""


@pytest.fixture
def committed(tmp_path, monkeypatch):
    """A repository with two records and tuned configs of them, of which one is stale."""
    monkeypatch.chdir(tmp_path)
    for name, own in (("toy", "earlier"), ("old", "of another time")):
        path = Path("results", "recorded", "h200", name, "autotune.json")
        path.parent.mkdir(parents=True)
        stated = {NAME: own, UNTIMED: "u"}
        document = {"stage": "autotune", "kernel": name, "gpu": "h200", "kernel_digest": kernel.digest(stated),
                    "identities": stated, "best": [{"us": 1.5}]}  # fmt: skip
        path.write_text(json.dumps(document))
    Path("kernels", "tuned").mkdir(parents=True)
    entries = [
        {"kernel": name, "direction": "forward", "variant": "blocks", "identity": identity, "median_us": 1.0}
        for name, identity in (("toy", "earlier"), ("old", "of another time"))
    ]
    Path("kernels", "tuned", "h200.json").write_text(json.dumps({"gpu": "h200", "entries": entries}))
    identify = ("-c", "user.name=A", "-c", "user.email=a@example.org")
    for words in (["init", "-q"], ["add", "."], [*identify, "commit", "-qm", "Records"]):
        subprocess.run(["git", *words], check=True)


STATED = {("h200", "toy"): {NAME: "v", "inputs": "i", "sweep": "s", "peers": "p"}, ("h200", "old"): {NAME: "o"}}
EARLIER = {key: dict.fromkeys(own, "earlier") for key, own in STATED.items()}
LISTED = dict.fromkeys(STATED, "HEAD")
TOY, OLD = (Path("results", "recorded", "h200", name, "autotune.json") for name in ("toy", "old"))


def test_a_record_of_the_listed_source_states_what_its_stage_needs(committed):
    found = records.write_records(LISTED, EARLIER, STATED)
    assert found["written"] == [TOY]
    packed = TOY.with_name("autotune.json.xz")
    document = documents.load(packed)
    assert not TOY.exists() and document["identities"] == {UNTIMED: "u", NAME: "v", "inputs": "i", "sweep": "s"}
    assert document["kernel_digest"] == kernel.digest(document["identities"]) and document["best"] == [{"us": 1.5}]
    assert packed in records.write_records(LISTED, EARLIER, STATED)["unchanged"], "the same again"


def test_a_record_that_was_stale_stays_so_and_one_of_a_kernel_that_nobody_asked_for_is_not_touched(committed):
    before = OLD.read_text()
    assert records.write_records(LISTED, EARLIER, STATED)["unchanged"] == [OLD] and OLD.read_text() == before
    assert records.write_records({}, EARLIER, STATED) == {"written": [], "unchanged": [], "other": []}


def test_each_kernel_is_listed_from_a_commit_of_its_own(committed):
    """What was recorded anew is listed anew; the rest of the list stays as it is, and is restated as before."""
    first = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    TOY.write_text(TOY.read_text().replace("1.5", "1.4"))
    assert records.write_records(LISTED, EARLIER, STATED)["other"] == [TOY], "measured since"
    identify = ("-c", "user.name=A", "-c", "user.email=a@example.org")
    subprocess.run(["git", *identify, "commit", "-qam", "Again"], check=True)
    then = LISTED | {("h200", "toy"): first}
    assert records.write_records(then, EARLIER, STATED)["other"] == [TOY]
    assert records.write_records(LISTED | {("h200", "old"): first}, EARLIER, STATED)["written"] == [TOY]


def test_an_identity_that_is_not_the_listed_source_s_stays(committed):
    """A public function that changed behind the validation is due again, whatever the list has of it."""
    then = EARLIER | {("h200", "toy"): EARLIER["h200", "toy"] | {NAME: "of the list"}}
    records.write_records(LISTED, then, STATED)
    assert documents.load(TOY.with_name("autotune.json.xz"))["identities"][NAME] == "earlier"


def test_a_record_measured_since_is_left_alone(committed):
    TOY.write_text(TOY.read_text().replace("1.5", "1.4"))
    assert records.write_records(LISTED, EARLIER, STATED)["written"] == []


def test_tuned_entries_state_their_variants_identity(committed):
    assert records.write_tuned(EARLIER, STATED) == {"kernels/tuned/h200.json": 1}
    toy, old = json.loads(Path("kernels", "tuned", "h200.json").read_text())["entries"]
    assert toy["identity"] == "v" and old["identity"] == "of another time", "one was stale before"
    assert records.write_tuned(STATED, STATED) == {"kernels/tuned/h200.json": 1}, "the same again"


@pytest.mark.parametrize(
    ("stage", "taken", "stated"),
    [
        pytest.param("autotune", [], True, id="it takes none of the record's cases"),
        pytest.param("autotune", [["fp16", {"n": 8}]], True, id="it takes a case of another record alone"),
        pytest.param("autotune", [["fp16", {"n": 4}]], False, id="it takes one, so the record would be another"),
        pytest.param("validate", [], False, id="validation tries it at edge cases, which no row holds"),
    ],
)
def test_a_new_variant_is_stated_where_it_takes_no_case(tmp_path, monkeypatch, stage, taken, stated):
    monkeypatch.chdir(tmp_path)
    path = Path("results", "recorded", "h200", "toy", f"{stage}.json")
    path.parent.mkdir(parents=True)
    row = {"direction": "forward", "variant": "blocks", "dtype": "fp16", "sizes": {"n": 4}, "us": 1.5}
    refused = row | {"variant": "idle", "status": "unsupported"}
    others = [{"direction": "backward", "dtype": "fp16", "sizes": {"n": 16}}, {"direction": "forward"}, refused]
    document = {"stage": stage, "kernel": "toy", "gpu": "h200", "kernel_digest": "a" * 64,
                "identities": {NAME: "old", "forward.idle": "older"}, "trials": [row, *others]}  # fmt: skip
    path.write_text(json.dumps(document))
    asked = []

    def ask(gpu, own, cases):
        asked.append((gpu, own, cases))
        return dict.fromkeys(cases, taken)

    today = {"h200 toy": {NAME: "changed", "forward.idle": "now", "forward.late": "new", "inputs": "i"}}
    found = added.write(["h200 toy"], today, ask)
    assert found == ({path: ["forward.idle", "forward.late"]} if stated else {})
    cases = {name: [["fp16", {"n": 4}]] for name in ("forward.idle", "forward.late")}
    assert asked == ([("h200", "toy", cases)] if stage == "autotune" else [])
    assert path.exists() != stated, "a document lies there in one form"
    if stated:
        written = documents.load(path.with_name(f"{stage}.json.xz"))
        identities = {NAME: "old", "forward.idle": "now", "forward.late": "new"}
        assert written["identities"] == identities, "what changed and has a row stays as it is stated"
        assert written["kernel_digest"] == kernel.digest(written["identities"]) and written["trials"][0] == row


def test_the_committed_list_reads_back_as_it_was_written(tmp_path, monkeypatch):
    monkeypatch.setattr(listing, "LIST", tmp_path / "identity.json")
    own = {"source": "c", "parts": {"sweep": ["w", "f"]}, "variants": {
        name: {"identity": "v", "space": "s", "configs": {"a": "1", "b": "2"}} for name in ("x", "y")}}  # fmt: skip
    made = {"triton": "3", "kernels": {"h200 a": own, "h200 b": own}}
    listing.write(made)
    assert listing.read() == made


def test_the_list_covers_every_recorded_kernel_and_variant():
    listed = listing.read()["kernels"]
    benchmarks = files.listed(ROOT / "results" / "recorded", "*/*/benchmark")
    assert {f"{path.parts[-3]} {path.parts[-2]}" for path in benchmarks} == set(listed)
    for name, own in listed.items():
        gpu, kernel = name.split()
        document = documents.load(files.found(ROOT / "results/recorded" / gpu / kernel, "benchmark"))
        rows = [row for row in document["rows"] if row["config"]]  # a variant for no case of the sweep has no config
        recorded = {f"{row['direction']}.{row['provider']}" for row in rows if row["provider_kind"] != "peer"}
        assert recorded <= set(own["variants"]), f"{name}: python -m proofs.identity --list HEAD --kernels {kernel}"
        assert all(found["configs"] for found in own["variants"].values()), name
