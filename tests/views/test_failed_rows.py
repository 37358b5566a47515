"""A failure is a result: whatever row of a document failed, every view is made, and says so."""

import copy
import json

import every_view
import pytest
import synthetic
from atlas import ROOT, catalog
from atlas.results import documents, files
from atlas.results.verdict import verdicts
from atlas.stages import log
from atlas.tables import rows as made
from atlas.tables import store
from atlas.tracking.described import trees

ROWS = {"survey": "roofs", "build": "configs", "validate": "checks", "autotune": "trials", "benchmark": "rows"}
"""Where the rows with a status are."""

LISTED = {stage: {"validate": "validation", "autotune": "trials"}.get(stage, stage) for stage in ROWS}
"""The table of each."""

WHY = "why [/it] is [so], & <b>not</b> otherwise"
"""Words that are markup to a terminal or to a browser."""

KERNEL = synthetic.Kernel(
    "softmax", [{"m": 64, "n": 64}, {"m": 4096, "n": 1024}], dtypes=("bf16",), variants={"tiled": 0.9, "naive": 0.7},
    peers={"torch": 0.5, "liger": 0.8},
)  # fmt: skip


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A document of each stage with all its figures, and its file."""
    root = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(catalog, "KERNELS", synthetic.use_catalog(root / "kernels", [KERNEL]))
        every = [synthetic.survey("h200"), synthetic.build(KERNEL, "h200", sample=True)]
        every += [document for document in synthetic.on_gpu(KERNEL, "h200") if document["stage"] in ROWS]
        return {document["stage"]: (document, synthetic.write(root, "measured", document)) for document in every}


def row_schema(stage: str) -> dict:
    """What the schema says of a stage's rows, which another stage's rows may share."""
    schema = documents._schema(stage)
    rows = schema["properties"][ROWS[stage]]
    if "$ref" in rows:
        rows = schema["$defs"][rows["$ref"].removeprefix("#/$defs/")]
    return rows["items"]


def statuses(stage: str) -> list[str]:
    """What a row of this stage may be beside well."""
    words = row_schema(stage)["properties"]["status"]["enum"]
    return [word for word in words if word not in ("ok", "pass")]


def fail(document: dict, status: str, chosen) -> dict:
    """A copy in which the chosen rows have a status and a reason instead of figures, and the document says so."""
    document = copy.deepcopy(document)
    stage = document["stage"]
    required = row_schema(stage)["required"]
    for row in document[ROWS[stage]]:
        if chosen(row):
            for key in row.keys() - {*required, "samples_us"}:
                del row[key]
            row |= {"status": status, "reason": WHY} | ({"value": None} if stage == "survey" else {})
            if "samples_us" in row:
                row["samples_us"] = []
    if stage == "autotune":
        timed = [(t["direction"], t["dtype"], t["sizes"]) for t in document["trials"] if t["status"] == "ok"]
        document["best"] = [b for b in document["best"] if (b["direction"], b["dtype"], b["sizes"]) in timed]
    document |= {"status": "failed", "reason": WHY}
    documents.check(document, stage, "the test's document")
    return document


def selections(stage: str, rows: list[dict]):
    """Which rows fail together: each alone, all of a provider, all of one sort in a case, one sort, every one."""
    name = {"benchmark": "provider", "survey": "name"}.get(stage, "variant")
    sort = {"benchmark": "provider_kind", "validate": "check", "build": "default"}.get(stage, name)
    yield from ((f"row {i}", lambda row, own=own: row is own or row == own) for i, own in enumerate(rows[:3]))
    for value in {row[name]: None for row in rows}:
        yield f"all of {value}", lambda row, value=value: row[name] == value
    for value in {row[sort]: None for row in rows}:
        yield f"every {value}", lambda row, value=value: row[sort] == value
        if "sizes" in rows[0]:
            first = rows[0]["sizes"]
            yield f"{value} at {first}", lambda row, is_=(value, first): (row[sort], row["sizes"]) == is_
    yield "all", lambda row: True


@pytest.mark.parametrize("share", [2, pytest.param(1, marks=pytest.mark.slow)], ids=["every second", "all"])
@pytest.mark.parametrize("stage", ROWS)
def test_whichever_rows_of_a_stage_fail_every_view_is_made_and_the_failure_stands_in_it(whole, stage, share):
    document, path = whole[stage]
    # Each way to fail once with every selection would be the same code over and over: they take turns.
    ways = statuses(stage)
    for turn, (what, chosen) in list(enumerate(selections(stage, document[ROWS[stage]])))[::-share]:
        status = ways[turn % len(ways)]
        failed = fail(document, status, chosen)
        others = [every_view.entry(*whole[name]) for name in ("survey", "benchmark") if name != stage]
        said = every_view.told([*others, every_view.entry(failed, path)])
        assert status in set(said["tables"][LISTED[stage]].status), what
        assert WHY in set(said["tables"]["coverage"].reason), what
        assert "why [/it] is [so], &amp; &lt;b&gt;not&lt;/b&gt; otherwise" in said["report"], what
        if stage == "survey":
            continue  # a GPU's, and no kernel's
        assert "why [/it] is" in said["verdict"], what
        (run,) = [run for run in said["runs"] if run.name.endswith(f" · {stage}")]
        assert run.failed and (stage == "autotune" or f"{ROWS[stage]}_{status}" in run.metrics), what


@pytest.mark.parametrize("status", statuses("benchmark"))
def test_a_tuned_variant_that_failed_beside_a_default_that_is_right_is_a_rung_without_a_win(whole, status):
    document, path = whole["benchmark"]
    failed = fail(document, status, lambda row: row["provider_kind"] == "variant")
    entries = [every_view.entry(failed, path)]
    rungs = {row["variant"]: row for row in made.ladder(entries)}
    assert rungs["tiled"]["cases"] == 2 and rungs["tiled"]["figure"] > 0, "the default was timed at both"
    assert rungs["tiled"]["fastest"] == 0, "nothing is known of what tuning brings it"
    page = log.page(entries)
    assert (f"- **{status}**: `tiled` with its tuned config at m=64 n=64 bf16 (one of 2 cases): why" in page) == (
        status != "unsupported"
    )


@pytest.mark.parametrize("stage", ROWS)
def test_figures_are_laid_out_whatever_failed(whole, stage):
    document, path = whole[stage]
    others = [every_view.entry(*whole[name]) for name in whole if name != stage]
    for turn, (_, chosen) in enumerate(list(selections(stage, document[ROWS[stage]]))[-4:]):
        ways = statuses(stage)
        failed = every_view.entry(fail(document, ways[turn % len(ways)], chosen), path)
        every_view.drawn(every_view.tables.frames([*others, failed], [], every_view.BLOCKS), "softmax")


RECORDED = files.listed(ROOT / "results" / "recorded", "*/*/benchmark")


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: "-".join(path.parts[-3:-1]))
def test_a_record_whose_tuned_configs_or_peers_all_failed_is_still_told(path):
    document = documents.read(path, "benchmark")
    for kind in ("variant", "default", "peer"):
        failed = json.loads(json.dumps(document))
        for row in failed["rows"]:
            if row["provider_kind"] == kind:
                for key in ("median_us", "q1_us", "q3_us", "gb_per_s", "tflop_per_s", "speedup", "verdict"):
                    row.pop(key, None)
                row |= {"status": "wrong", "reason": "y[0]: expected 1, got 2"}
        entries = [every_view.entry(failed, path, "recorded")]
        store.frame("ladder", made.ladder(entries))
        assert (verdicts(entries)[0]["figure"] is None) == (kind == "variant")
        assert trees(entries, 3, path.parent) and "`" in log.page(entries)
