"""`atlas record check`: which records are of today's code, whose they are, and two hosts of one GPU apart."""

import subprocess

import pytest
import sample_documents as sample
from atlas import catalog, cli
from atlas.identity.needs import needed
from atlas.results import collection, records, sides
from atlas.results.verdict import verdicts


def atlas(folder, *words):
    return cli.main([*words, "--results", str(folder)])


def driven(folder, driver, factor=1.0):
    """An H200 of a host with another driver, as fast as the factor says."""
    sample.put_gpu(folder, "h200", ("softmax",))
    benchmark = sample.benchmark("softmax", "h200")
    benchmark["device"] |= {"driver": driver}
    benchmark["software"] |= {"date": f"2026-11-2{len(driver)}T10:00:00+00:00"}
    for row in benchmark["rows"]:
        if row["provider_kind"] == "peer":
            continue
        for key in ("median_us", "q1_us", "q3_us"):
            row[key] = row[key] * factor if row.get(key) else None
    sample.put(folder, benchmark)


@pytest.fixture
def two_hosts(tmp_path, capsys):
    """The records of two hosts, and nothing measured."""
    for driver, words in (("580", []), ("5811", ["--host", "lab2"])):
        driven(tmp_path, driver, 1.0 if not words else 2.0)
        assert atlas(tmp_path, "record", "--gpu", "h200", *words) == 0
    for path in (tmp_path / "measured").rglob("*.json"):
        path.unlink()
    capsys.readouterr()
    return tmp_path


def test_a_fresh_record_is_told_with_its_provenance_and_ends_well(tmp_path, capsys):
    driven(tmp_path, "580.1")
    atlas(tmp_path, "record", "--gpu", "h200")
    capsys.readouterr()
    assert atlas(tmp_path, "record", "check", "--gpu", "h200") == 0
    said = capsys.readouterr().out
    assert "h200 (first host): 5 documents, 0.01 of 2 MiB" in said and "fresh: softmax" in said
    for words in ("driver", "580.1", "torch", "Triton", "code: 0123456789ab; schema 1", "measured 2026-11-2"):
        assert words in said, words


def test_a_stale_record_names_what_changed_and_where_and_fails(tmp_path, capsys, monkeypatch):
    now = catalog.identities("softmax")
    monkeypatch.setattr(collection, "_today", lambda kernel: now)
    for stage in (sample.build, sample.benchmark):
        sample.put(tmp_path, stage("softmax", "h200", identities=needed(stage.__name__, now)), "recorded")
    assert atlas(tmp_path, "record", "check") == 0
    then = needed("benchmark", now) | {"forward.online": "older", "backward.gone": "was"}
    sample.put(tmp_path, sample.benchmark("softmax", "h200", identities=then), "recorded")
    capsys.readouterr()
    assert atlas(tmp_path, "record", "check") == 1
    said = capsys.readouterr().out
    assert "stale: softmax: changed: forward `online`; gone: backward `gone` (benchmark)" in said
    assert "fresh: none" in said


def test_a_validation_that_its_public_function_makes_due_is_told_of_a_stale_kernel_too(tmp_path, capsys, monkeypatch):
    """It was told of fresh kernels alone, so one that stood beside a stale benchmark was counted as fresh."""
    now = catalog.identities("softmax")
    monkeypatch.setattr(collection, "_today", lambda kernel: now)
    for stage, other in ((sample.validate, {"public": "older"}), (sample.benchmark, {"forward.online": "older"})):
        stated = needed(stage.__name__, now) | other
        sample.put(tmp_path, stage("softmax", "h200", identities=stated), "recorded")
    assert atlas(tmp_path, "record", "check") == 1
    said = capsys.readouterr().out
    assert "stale: softmax: changed: forward `online` (benchmark)" in said
    assert "validation due again, its public function changed: softmax" in said


def test_a_record_that_is_broken_and_one_that_is_missing_are_mistakes(tmp_path, capsys):
    assert atlas(tmp_path, "record", "check", "--gpu", "h200") == 2
    assert "no record of h200; record or pull one" in capsys.readouterr().err
    driven(tmp_path, "580")
    atlas(tmp_path, "record", "--gpu", "h200")
    path = tmp_path / "recorded" / "h200" / "softmax" / "benchmark.json.xz"
    path.write_bytes(path.read_bytes()[:-30])
    assert atlas(tmp_path, "record", "check") == 2
    assert "benchmark.json.xz: cut off" in capsys.readouterr().err


def test_two_hosts_of_a_gpu_are_gpus_apart_in_every_view(two_hosts, capsys):
    assert atlas(two_hosts, "record", "check", "--gpu", "h200") == 0
    said = capsys.readouterr().out
    assert "h200 (first host)" in said and "h200@lab2 (host lab2)" in said and "driver 5811" in said
    entries = collection.collect(two_hosts, gpus=["h200"])
    rows = {row["gpu"]: row for row in verdicts(entries)}
    assert rows["h200@lab2"]["median_us"] == pytest.approx(2 * rows["h200"]["median_us"])
    assert {entry.document["gpu"] for entry in entries} == {"h200"}, "one GPU, by its block"


def test_two_hosts_are_compared_and_their_runs_never_mixed(two_hosts, capsys):
    recorded = two_hosts / "recorded"
    assert len(sides.of_path(two_hosts)) == len(sides.of_path(recorded)) == 1, "the first host's alone"
    assert cli.main(["compare", str(recorded / "h200"), str(recorded / "h200@lab2")]) == 1
    said = capsys.readouterr().out
    assert "slower" in said and "580" in said and "5811" in said


def test_a_commit_holds_the_first_hosts_runs_and_the_history_both_apart(two_hosts, monkeypatch):
    project = two_hosts.parent / "project"
    project.mkdir()
    (two_hosts / "recorded").rename(project / "recorded")
    monkeypatch.chdir(project)
    identify = ("-c", "user.name=A", "-c", "user.email=a@example.org")
    for words in (["init", "-q"], ["add", "."], [*identify, "commit", "-qm", "Records"]):
        subprocess.run(["git", *words], check=True)
    (found,) = sides.of_commit("HEAD")
    assert found.document["device"]["driver"] == "580" and found.path.name == "benchmark.json.xz"
    told = {entry.gpu: entry.document["device"]["driver"] for _, entry in sides.history(["softmax"], ["h200"])}
    assert told == {"h200": "580", "h200@lab2": "5811"}


@pytest.mark.parametrize("host", ["../up", "a/b", "", "x" * 41, "a b", "@"])
def test_a_host_is_a_word(tmp_path, capsys, host):
    driven(tmp_path, "580")
    code = atlas(tmp_path, "record", "--gpu", "h200", "--host", host)
    assert (code, "--host is" in capsys.readouterr().err) == ((0, False) if not host else (2, True))


def test_records_beyond_the_limit_fail_and_say_what_to_do(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(records, "MOST_BYTES", 1000)
    driven(tmp_path, "580")
    assert atlas(tmp_path, "record", "--gpu", "h200") == 1
    assert "Too large to be committed" in capsys.readouterr().out


def test_a_record_of_another_driver_that_replaces_one_says_so(tmp_path, capsys):
    for driver in ("580", "5811"):
        driven(tmp_path, driver)
        assert atlas(tmp_path, "record", "--gpu", "h200") == 0
    said = capsys.readouterr().out
    assert "Replaced records: driver 580 before, now 5811. If that is another host, --host LABEL" in said


def test_a_document_that_does_not_say_where_it_is_from_is_no_record(tmp_path, capsys):
    driven(tmp_path, "580")
    document = sample.benchmark("softmax", "h200")
    document["software"] |= {"commit": None, "triton": None}
    sample.put(tmp_path, document)
    assert atlas(tmp_path, "record", "--gpu", "h200") == 1
    assert "benchmark.json: does not say its triton; run it again" in capsys.readouterr().out
    assert atlas(tmp_path, "record", "--gpu", "h200", "--force") == 0
