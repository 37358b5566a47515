"""Two software stacks of one GPU are never taken for one: tables, report and verdict set them apart."""

import synthetic
from atlas.reporting import pages
from atlas.results import collection
from atlas.results.stacks import told_apart
from atlas.tables import store

SOFTMAX, MATMUL = synthetic.KERNELS[1:3]
OLD = {"triton": "3.2.0", "torch": "2.6.0", "date": "2026-11-01T10:00:00+00:00"}


def on_two_stacks(results):
    """Everything of one GPU by today's software; of softmax the search and the benchmark by an older one."""
    synthetic.write_everything(results, (SOFTMAX, MATMUL), measured=["h200"], built=["t4"], functional=False)
    for made in (synthetic.autotune, synthetic.benchmark):
        document = made(SOFTMAX, "h200")
        synthetic.write(results, "measured", document | {"software": document["software"] | OLD})


def test_what_another_stack_timed_has_a_name_of_its_own(kernels, tmp_path):
    on_two_stacks(tmp_path)
    named = {
        (entry.kernel, entry.stage): entry.gpu for entry in told_apart(collection.collect(tmp_path, gpus=["h200"]))
    }
    other = f"h200 (Triton 3.2.0, torch {OLD['torch']})"
    assert {key for key, gpu in named.items() if gpu == other} == {("softmax", "autotune"), ("softmax", "benchmark")}
    assert {gpu for key, gpu in named.items() if gpu != other} == {"h200"}


def test_nothing_is_renamed_where_there_is_one_stack(kernels, tmp_path):
    synthetic.write_everything(tmp_path, (SOFTMAX, MATMUL), measured=["h200"], built=["t4"], functional=False)
    entries = collection.collect(tmp_path)
    build = next(entry for entry in entries if (entry.stage, entry.gpu) == ("build", "h200"))
    build.document["software"]["triton"] = "3.9.0"  # compiled elsewhere, as for a record
    assert told_apart(entries) == entries


def test_no_view_puts_both_into_one_group(kernels, tmp_path, atlas, capsys):
    on_two_stacks(tmp_path)
    assert atlas("tables", tmp_path) == 0
    tables = store.read(tmp_path / "tables")
    groups = tables["benchmark"].groupby("gpu").triton.nunique()
    assert len(groups) == 2 and set(groups) == {1}
    assert atlas("verdict", tmp_path) == 0 and "h200 (Triton 3.2.0" in capsys.readouterr().out
    shown = dict(pages.pages(tables, told_apart(collection.collect(tmp_path)), [], None))
    assert "h200 (Triton 3.2.0" in shown["report.html"]


def test_a_run_of_another_stack_than_its_record_says_so(kernels, tmp_path, atlas, capsys):
    document = synthetic.benchmark(SOFTMAX, "h200")
    synthetic.write(tmp_path, "measured", document)
    synthetic.write(tmp_path, "recorded", document | {"software": document["software"] | OLD})
    assert atlas("tables", tmp_path) == atlas("verdict", tmp_path) == 0
    assert f"Triton 3.2.0 to {document['software']['triton']}" in capsys.readouterr().out.replace("\n", " ")
    assert set(store.read(tmp_path / "tables")["changes"].software.str[:12]) == {"Triton 3.2.0"}
