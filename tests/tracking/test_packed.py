"""The packed form of a record: nothing is lost in it, equal content has equal bytes, and a bomb is refused."""

import json
import lzma
import random

import pytest
import sample_documents as sample
from atlas import ROOT, cli
from atlas.reading import strict
from atlas.reading.strict import Unreadable
from atlas.results import documents, files, packed, records


def rows(count=300):
    draws = random.Random(1)
    return [
        {"name": f"row {draws.random()}", "config": {"BLOCK": 2 ** (place % 3)}, "whole": place, "flag": place % 2 == 0}
        | ({"samples_us": [round(draws.gauss(7, 0.4), 3) for _ in range(place % 5)]} if place % 4 else {})
        for place in range(count)
    ]


TWINS = [1, 1.0, True, None, "1", -0.0, 0.0] * 20
ODD = ['"', "\\", "\u00e9\u4e2d", "\x7f", ""] * 20


@pytest.mark.parametrize(
    "document",
    [
        {"stage": "x", "rows": rows(), "seconds": 1.5, "empty": [], "nothing": {}, "words": ["a", "b"]},
        {"rows": [{"value": value} for value in TWINS], "more": [{"value": value} for value in ODD]},
        {"rows": [{"samples_us": values} for values in ([5.0, 12.345], [], [0.001], [1e300, 2.5], [1, 2.0], [-3.25])]},
        {"rows": [{}, {}, {"a": {}}, {"a": {"b": [{"c": 1}]}}], "again": [{"a": {"n": n, "m": [n]}} for n in range(9)]},
        {"rows": [{"deep": {"one": {"n": n % 2, "x": n}, "many": [n, 1.5]}} for n in range(400)]},
    ],
    ids=["rows of two shapes", "values that are equal and are not", "samples", "nested", "tables in tables"],
)
def test_what_is_packed_is_read_back_to_the_letter(document):
    content = packed.pack(document)
    assert json.dumps(packed.unpack(content)) == json.dumps(document), "with the order of keys"
    assert packed.pack(json.loads(json.dumps(document))) == content


def test_no_two_rows_share_what_somebody_may_change():
    first, second, *_ = packed.unpack(packed.pack({"rows": [{"config": {"BLOCK": 1}}] * 100}))["rows"]
    first["config"]["BLOCK"] = 2
    assert second["config"] == {"BLOCK": 1}


def xz(text):
    return lzma.compress(text if isinstance(text, bytes) else json.dumps(text).encode())


def table(count, column, **more):
    return {"rows": count, "shapes": [["a"]], "shape": [0] * min(count, 9), "columns": {"a": column}} | more


def holding(**tables):
    return xz({"form": 1, "document": dict.fromkeys(tables), "tables": tables})


MANY = {"values": [0], "at": "#" * 3_000_000}


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b'{"stage": "benchmark"}', "not xz"),
        (xz({"form": 1})[:-20], "cut off"),
        (xz({}) + b"more", "4 bytes behind the end"),
        (xz(b" " * (strict.MOST_BYTES + 1)), "holds more than the 33554432 bytes"),
        (lzma.compress(b"{}", filters=[{"id": lzma.FILTER_LZMA2, "dict_size": 2**28}]), "not xz, or damaged"),
        (xz({"form": 2}), "key 'form' is 2, of which this release reads 1"),
        (xz(b'{"form": 1, "form": 1}'), "stands there twice"),
        (holding(rows=table(3, [1, 2])), "a column of 2 values for 3 rows"),
        (holding(rows=table(1, {"values": [1], "at": "z"})), "damaged"),
        (holding(rows=table(-1, [])), "damaged|more than"),
        (holding(rows=table(1, {"runs": [[1, 1]], "lengths": [1], "text": "  "})), "2 samples, 1 told"),
        (holding(rows={"rows": 3_000_000, "shapes": [[]], "shape": MANY, "columns": {}}), "holds more than 2000000"),
        (holding(rows=table(9, {"values": ["x" * 10_000_000], "at": "#" * 9})), "holds more than .* bytes"),
    ],
    ids=["plain", "cut", "tail", "bomb", "memory", "form", "twice", "short", "unknown", "negative", "samples", "rows",
         "copies"],
)  # fmt: skip
def test_what_is_no_record_is_refused_with_its_reason(tmp_path, content, says):
    with pytest.raises(Unreadable, match=says):
        packed.unpack(content)
    path = tmp_path / "benchmark.json.xz"
    path.write_bytes(content)
    with pytest.raises(documents.DocumentError, match=r"benchmark\.json\.xz: .*restore it from git"):
        documents.read(path, "benchmark")


def test_a_plain_record_still_reads_and_is_packed_when_asked(tmp_path, capsys):
    document = records.slim(sample.benchmark("softmax", "h200"))
    path = sample.put(tmp_path, document, "recorded")
    assert documents.read(files.found(path.parent, "benchmark"), "benchmark") == document
    assert cli.main(["record", "pack", "--results", str(tmp_path), "--gpu", "h200"]) == 0
    assert "1 files packed" in capsys.readouterr().out and not path.exists()
    after = files.found(path.parent, "benchmark")
    assert after.suffix == ".xz" and documents.read(after, "benchmark") == document
    assert cli.main(["record", "show", str(after)]) == 0
    assert json.loads(capsys.readouterr().out) == document


def test_a_journal_is_packed_line_by_line(tmp_path):
    folder = tmp_path / "recorded" / "h200" / "journals"
    folder.mkdir(parents=True)
    lines = "".join(json.dumps(row) + "\n" for row in rows(50))
    (folder / "softmax.jsonl").write_text(lines)
    records.pack(folder)
    assert packed.unpack_lines((folder / "softmax.jsonl.xz").read_bytes()).decode() == lines


@pytest.mark.parametrize("folder", sorted((ROOT / "results" / "recorded").iterdir()), ids=lambda path: path.name)
def test_the_committed_records_of_a_gpu_are_packed_and_stay_below_two_mebibytes(folder):
    assert records.size(folder) < records.MOST_BYTES
    assert not [path for path in folder.rglob("*") if path.is_file() and path.suffix != ".xz"]
