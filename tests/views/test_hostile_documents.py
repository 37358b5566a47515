"""A record is somebody else's data: what a document may not hold is refused in one sentence, and the rest is shown."""

import copy
import json
import math
import os

import every_view
import pytest
import synthetic
from atlas import catalog, cli
from atlas.results import collection, documents
from atlas.results.documents import DocumentError

KERNEL = synthetic.Kernel(
    "softmax", [{"m": 64, "n": 64, "causal": True}], dtypes=("bf16",), variants={"tiled": 0.9}, peers={"torch": 0.5}
)

STAGES = ("survey", "build", "validate", "autotune", "benchmark", "profile", "prove")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A document of each stage, with two of each of its rows, and its file."""
    root = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(catalog, "KERNELS", synthetic.use_catalog(root / "kernels", [KERNEL]))
        every = [synthetic.survey("h200"), synthetic.build(KERNEL, "h200", sample=True), synthetic.proof("h200")]
        every += synthetic.on_gpu(KERNEL, "h200")
        used = {"configs": "autotune of this run", "sha256": "0123456789ab" + 52 * "0"}
        for document in every:
            if document["stage"] in ("autotune", "benchmark", "profile"):
                document["calls"] = {"matmul": used}
            for key in ("trials", "checks", "configs"):
                if key in document:
                    document[key] = document[key][:2]
        return {document["stage"]: (document, synthetic.write(root, "measured", document)) for document in every}


def places(value, path=()):
    """Where everything in a document lies, of a list its first and its last."""
    if path:
        yield path
    inner = value.items() if isinstance(value, dict) else list(enumerate(value))[:: max(1, len(value) - 1)]
    for key, item in inner if isinstance(value, dict | list) else ():
        if isinstance(item, dict | list):
            yield from places(item, (*path, key))
        else:
            yield (*path, key)


def at(document, path):
    """What lies there; None where the way ends before."""
    for key in path:
        inside = (isinstance(document, dict) and key in document) or (
            isinstance(document, list) and key < len(document)
        )
        document = document[key] if inside else None
    return document


def put(document, path, value):
    """A copy with another value there."""
    changed = copy.deepcopy(document)
    holder = at(changed, path[:-1])
    holder[path[-1]] = value
    return changed


ODD = (
    *(None, True, -1, 0, 1e-300, 1e308, 2**60, 10**400, math.nan),
    *("", "[/it] & <b>", "x" * 300, "../../../x", "\ud800", [], {}, {"a": {"b": 1}}, {"a b/c'": 1}),
)
"""What somebody else's program, a hand, or a broken disk may leave in any place."""


def told(whole, stage, document):
    """All views of a changed document among those of the other stages."""
    path = whole[stage][1]
    others = [every_view.entry(*whole[name]) for name in ("survey", "benchmark") if name != stage]
    own = every_view.entry(document, path)
    if stage == "prove":
        return every_view.told(others, proofs=[own])
    pairs = [(own, every_view.entry(*whole[stage], "recorded"))] if stage == "benchmark" else []
    return every_view.told([*others, own], pairs)


@pytest.mark.parametrize("share", [3, pytest.param(1, marks=pytest.mark.slow)], ids=["a third", "all"])
@pytest.mark.parametrize("stage", STAGES)
def test_whatever_stands_anywhere_is_refused_with_its_place_or_shown_by_every_view(whole, stage, share):
    """A third of the values for each stage, another third for the next: views take seconds for each."""
    document, path = whole[stage]
    refused = shown = 0
    for value in ODD[STAGES.index(stage) % share :: share]:
        # One value in every place that may hold it: place by place the views would be made a thousand times.
        everywhere = document
        for place in places(document):
            changed = put(document, place, value)
            try:
                documents.check(changed, stage, str(path))
            except DocumentError as error:
                said = str(error)
                assert said.startswith(f"{path}: ") and len(said) < 700 and "\n" not in said, (place, value)
                refused += 1
                continue
            if place in (("gpu",), ("kernel",)):
                continue  # the folder's name, which the collection holds them to
            if at(everywhere, place) is not None:  # else it has given way to the value already
                everywhere = put(everywhere, place, value)
            shown += 1
        told(whole, stage, everywhere)
    assert shown > 30 / share and refused > 300 / share


def text_of(document, path, words):
    """The document's JSON with ``words`` in place of the value there."""
    return json.dumps(put(document, path, "PUT IT HERE")).replace('"PUT IT HERE"', words)


@pytest.fixture
def record(tmp_path, whole):
    """Writes a benchmark as a record, with these words as the first row's time."""
    document, _ = whole["benchmark"]
    path = tmp_path / "recorded" / "h200" / "softmax" / "benchmark.json"
    path.parent.mkdir(parents=True)

    def write(words=None, key="median_us", content=None):
        if content is None:
            content = text_of(document, ("rows", 0, key), words)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


DEEP = 3000 * "[" + 3000 * "]"

BAD = {
    "NaN": ("NaN", "key 'rows.0.median_us': nan is not a finite number"),
    "Infinity": ("-Infinity", "key 'rows.0.median_us': -inf is not a finite number"),
    "a number too large for a float": ("1e999", "key 'rows.0.median_us': inf is not a finite number"),
    "zero": ("0", "key 'rows.0.median_us': 0 is less than the minimum of 1e-06: microseconds, more than 0"),
    "a negative time": ("-3.5", "key 'rows.0.median_us': -3.5 is less than the minimum"),
    "an integer of 400 digits": (400 * "9", "key 'rows.0.median_us': an integer of more than 64 bits"),
    "one that Python refuses": (9000 * "9", "key 'rows.0.median_us': an integer of more than 64 bits"),
    "text": ('"fast"', "key 'rows.0.median_us': 'fast' is of the wrong type"),
    "true": ("true", "key 'rows.0.median_us': True is of the wrong type"),
    "a list 30 deep": (30 * "[" + 30 * "]", "nested more than 32 deep"),
    "a list 3000 deep": (DEEP, "nested more than 32 deep"),
    "a key twice": ('1.5, "median_us": 2.5', "key 'rows.0': key 'median_us' stands there twice"),
    "half a character": ('"\\ud800"', "key 'rows.0.median_us': text with half a character"),
}


@pytest.mark.parametrize(("words", "says"), BAD.values(), ids=BAD)
def test_a_record_with_a_value_that_is_none_is_refused_with_file_and_place(record, words, says):
    path = record(words)
    with pytest.raises(DocumentError) as caught:
        collection.collect(path.parents[3])
    said = str(caught.value)
    assert (said.startswith(f"{path}: ") and says in said and "restore it from git" in said) or "made again" in said
    assert "\n" not in said and len(said) < 600


@pytest.mark.parametrize(
    ("key", "words", "says"),
    [
        ("bytes", "-1", "key 'rows.0.bytes': -1 is less than the minimum of 0"),
        ("peak_bytes", "-1", "key 'rows.0.peak_bytes': -1 is less than the minimum of 0: a whole number, 0 or more"),
        (
            "sizes",
            '{"m": {"n": 1}}',
            "key 'rows.0.sizes.m': {'n': 1} is of the wrong type; give a value of type number",
        ),
        ("sizes", '{"m": [1]}', "key 'rows.0.sizes.m': [1] is of the wrong type"),
        ("config", '{"BLOCK": {}}', "key 'rows.0.config.BLOCK': {} is of the wrong type"),
        ("samples_us", "[1.0, 0]", "key 'rows.0.samples_us.1': 0 is less than the minimum"),
        ("samples_us", "[1.0, 2.0, 0, 3.0]", "key 'rows.0.samples_us.2': 0 is less than the minimum"),
        ("samples_us", "[1.0, 2.0, true, 3.0]", "key 'rows.0.samples_us.2': True is of the wrong type"),
        ("speedup", "0", "key 'rows.0.speedup': 0 is less than the minimum"),
    ],
)
def test_a_figure_that_no_clock_and_no_case_gives_is_refused(record, key, words, says):
    path = record(words, key)
    with pytest.raises(DocumentError) as caught:
        documents.read(path, "benchmark")
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("content", "says"),
    [(b"\xff\xfe{}", "not UTF-8 at byte 0"), (b"", "cut off"), (b"\0\0", "cut off or not JSON"), (b"nul", "cut off")],
)
def test_what_is_no_json_is_refused(record, content, says):
    path = record(content=content)
    with pytest.raises(DocumentError, match=says):
        collection.collect(path.parents[3])


def test_a_folder_a_pipe_and_a_huge_file_of_a_documents_name_are_refused(tmp_path):
    def said(name):
        with pytest.raises(DocumentError) as caught:
            documents.read(tmp_path / name, "benchmark")
        return str(caught.value)

    (tmp_path / "folder.json").mkdir()
    assert "folder.json: is a folder, not a file" in said("folder.json")
    os.mkfifo(tmp_path / "pipe.json")
    assert "pipe.json: is no regular file" in said("pipe.json")
    with (tmp_path / "huge.json").open("wb") as file:
        file.truncate(2**36)
    assert "huge.json: has 68719476736 bytes, of which 33554432 are read at most" in said("huge.json")


@pytest.mark.parametrize("view", ["tables", "verdict", "log", "track", "report", "record --gpu h200"])
def test_every_command_that_reads_documents_says_so_in_one_sentence(record, capsys, view):
    path = record("NaN")
    command, *options = view.split()
    assert cli.main([command, "--results", str(path.parents[3]), *options]) == 2
    said = capsys.readouterr().err
    assert f"{path}: key 'rows.0.median_us': nan is not a finite number" in said and said.count("\n") == 1


def test_what_a_stage_cannot_write_as_json_becomes_null_or_a_question_mark(tmp_path, whole):
    document, _ = whole["benchmark"]
    document = put(put(document, ("rows", 0, "median_us"), math.nan), ("reason",), "half \udc80 a character")
    documents.write(tmp_path / "benchmark.json", document)
    read = documents.read(tmp_path / "benchmark.json", "benchmark")
    assert read["rows"][0]["median_us"] is None and read["reason"] == "half ? a character"


class Version(str):
    """As torch's own is."""


def test_a_kind_of_text_or_of_number_is_written_as_what_it_is(tmp_path, whole):
    document, _ = whole["benchmark"]
    documents.write(tmp_path / "benchmark.json", put(document, ("software", "torch"), Version("2.13.0")))
    assert documents.read(tmp_path / "benchmark.json", "benchmark")["software"]["torch"] == "2.13.0"
