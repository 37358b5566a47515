"""Documents: written whole or not at all, and never read unchecked."""

import json
import math
import multiprocessing

import jsonschema
import pytest
from atlas import ROOT
from atlas.errors import AtlasError
from atlas.results import documents, files
from atlas.results.documents import DocumentError


def survey(**changes) -> dict:
    envelope = {
        "stage": "survey", "schema_version": 1, "kernel": None, "gpu": "t4", "kind": "measured", "status": "ok",
        "reason": "", "kernel_digest": None, "software": {}, "device": {}, "seconds": 1.0,
    }  # fmt: skip
    roofs = [{"name": "copy", "value": 250.0, "unit": "GB/s", "how": "torch copy_"}]
    return envelope | {"protocol": "timing/1", "properties": {}, "roofs": roofs} | changes


def test_what_is_written_is_read_back(tmp_path):
    path = tmp_path / "deep" / "survey.json"
    documents.write(path, survey())
    assert documents.read(path, "survey") == survey()
    assert [p.name for p in path.parent.iterdir()] == ["survey.json"], "no temporary file is left"


def test_a_document_that_does_not_fit_is_refused_before_the_old_one_is_touched(tmp_path):
    path = tmp_path / "survey.json"
    documents.write(path, survey())
    with pytest.raises(DocumentError, match="kind"):
        documents.write(path, survey(kind="guessed"))
    assert documents.read(path, "survey")["kind"] == "measured"


def test_nan_and_infinity_become_null_since_json_has_neither(tmp_path):
    path = tmp_path / "survey.json"
    roof = {"name": "copy", "value": math.nan, "unit": "GB/s", "how": "", "median_us": math.inf}
    documents.write(path, survey(roofs=[roof]))
    read = json.loads(path.read_text())["roofs"][0]
    assert read["value"] is None and read["median_us"] is None


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "cut off"),
        ('{"stage": "survey", "sch', "cut off"),
        ("[]", "not a document of stage 'survey'"),
        (json.dumps(survey(schema_version=7)), "'schema_version' is 7, this release reads 1"),
        (json.dumps(survey(roofs="none")), "key 'roofs'"),
        (json.dumps(survey(extra=1)), "unknown key 'extra'"),
        (json.dumps({k: v for k, v in survey().items() if k != "gpu"}), "missing key 'gpu'"),
    ],
)
def test_a_broken_document_is_named_with_key_and_remedy(tmp_path, text, says):
    path = tmp_path / "survey.json"
    path.write_text(text)
    with pytest.raises(DocumentError) as caught:
        documents.read(path, "survey")
    assert str(path) in str(caught.value) and says in str(caught.value)
    assert path.read_text() == text


def test_a_missing_document_names_the_stage_to_run(tmp_path):
    with pytest.raises(DocumentError, match="run the build stage first"):
        documents.read(tmp_path / "build.json", "build")


def places(value, path=()):
    """Where everything in a document lies, of a list its first and its last."""
    yield path
    inner = value.items() if isinstance(value, dict) else list(enumerate(value))[:: max(1, len(value) - 1)]
    for key, item in inner if isinstance(value, dict | list) else ():
        if isinstance(item, dict | list):
            yield from places(item, (*path, key))
        else:
            yield (*path, key)


def put(document, path, value):
    """A copy with another value there."""
    if not path:
        return value
    changed = dict(document) if isinstance(document, dict) else list(document)
    changed[path[0]] = put(changed[path[0]], path[1:], value)
    return changed


@pytest.mark.parametrize("stage", ["benchmark", "autotune"])
def test_both_validators_say_the_same_fits(stage):
    """One says whether, the other what is wrong: a document that only one refuses would pass, or have no message."""
    document = documents.load(files.found(ROOT / "results" / "recorded" / "h200" / "vector_add", stage))
    document = {key: value[:1] if isinstance(value, list) else value for key, value in document.items()}
    fast, telling = documents._validator(stage), jsonschema.Draft202012Validator(documents._schema(stage))
    assert fast.is_valid(document) and telling.is_valid(document)
    wrong = 0
    for path in places(document):
        for value in (None, True, 3, 3.0, 2.5, "word", [1, 2.5], [1, "2"], {"new": 1}):
            changed = put(document, path, value)
            assert fast.is_valid(changed) == telling.is_valid(changed), f"{value!r} at {path}"
            wrong += not fast.is_valid(changed)
    assert wrong > 100


def overwrite(path, seconds):
    """What one of two runs at once does."""
    for _ in range(50):
        documents.write(path, survey(seconds=seconds))


def test_of_two_runs_that_write_one_document_at_once_the_last_wins_and_no_reader_sees_a_mixture(tmp_path):
    path = tmp_path / "survey.json"
    documents.write(path, survey())
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=overwrite, args=(path, seconds)) for seconds in (2.0, 3.0)]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        assert documents.read(path, "survey")["seconds"] in (1.0, 2.0, 3.0)
    assert [writer.exitcode for writer in writers] == [0, 0]
    assert documents.read(path, "survey")["seconds"] in (2.0, 3.0)
    assert [p.name for p in tmp_path.iterdir()] == ["survey.json"]


def test_a_disk_that_fills_while_a_document_is_written_leaves_the_old_one_and_says_what_to_do(tmp_path):
    resource = pytest.importorskip("resource")
    path = tmp_path / "survey.json"
    documents.write(path, survey())
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with pytest.raises(AtlasError, match=r"survey\.json: .*what was there before is unchanged; free space"):
            documents.write(path, survey(reason="x" * 5000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert documents.read(path, "survey") == survey()
    assert [p.name for p in tmp_path.iterdir()] == ["survey.json"]


def test_a_full_disk_leaves_the_old_document_and_no_litter(tmp_path, monkeypatch):
    path = tmp_path / "survey.json"
    documents.write(path, survey())
    old = path.read_text()

    def full(self, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pathlib.Path.replace", full)
    with pytest.raises(AtlasError, match="No space left"):
        documents.write(path, survey(seconds=2.0))
    assert path.read_text() == old
    assert [p.name for p in tmp_path.iterdir()] == ["survey.json"]
