"""A tuned file is somebody else's: what is wrong with it is one warning and the default config, never an exception."""

import dataclasses
import json
import os
import time
import warnings

import preloaded
import pytest
import test_choice
import torch
from atlas import ROOT
from atlas.declaration import case, choice, choose, tuned
from atlas.declaration.hardware import pretend
from atlas.reading import strict
from test_choice import declaration, entry  # noqa: F401

GOOD = entry(1024, "short", 256)


@pytest.fixture
def chosen(declaration, tmp_path, monkeypatch):  # noqa: F811
    """The block that a call of n = 1024 runs with a file of this content, and what was warned."""
    monkeypatch.setattr(choice, "TUNED", tmp_path)
    monkeypatch.delenv(choice.VARIABLE, raising=False)

    def ask(content, name="h200.json", dtype="fp32"):
        text = content if isinstance(content, str | bytes) else json.dumps(content)
        (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
        return again(dtype)

    def again(dtype="fp32"):
        choice._entries.cache_clear()
        choice._choose.cache_clear()
        with warnings.catch_warnings(record=True) as caught, pretend(test_choice.SMALL):
            warnings.simplefilter("always")
            for n in (1025, 1024):
                _, config = choose(declaration, "forward", case(dtype, n=n), torch.device("cpu"))
        return config["BLOCK"], [str(one.message) for one in caught]

    ask.again = again
    yield ask
    choice._entries.cache_clear()
    choice._choose.cache_clear()


def file(*entries, match="NVIDIA H200$"):
    return {"gpu": "h200", "match": match, "entries": list(entries)}


def test_a_good_file_is_used_without_a_word(chosen):
    assert chosen(file(GOOD)) == (256, [])


FILES = {
    "empty": ("", "cut off or not JSON"),
    "cut off": ('{"match": "NVIDIA H200$", "entries": [', "cut off or not JSON"),
    "no mapping": ("[1, 2]", "is [1, 2], no mapping with the keys 'match' and 'entries'"),
    "null": ("null", "is None, no mapping"),
    "not UTF-8": (b"\xff\xfe", "not UTF-8 at byte 0"),
    "deep": ("[" * 3000 + "]" * 3000, "nested more than 32 deep"),
    "no match": (file(GOOD, match=None), "key 'match': None is no pattern"),
    "a match that is none": (file(GOOD, match="(H200"), "key 'match': '(H200' is not a valid regex"),
    "a match that takes hours": (file(GOOD, match="(A+)+$"), "key 'match': '(A+)+$' is a regex that repeats a group"),
    "no entries": ({"match": "NVIDIA H200$"}, "key 'entries': None is no list"),
    "entries by name": (file() | {"entries": {"toy": GOOD}}, "is no list of at most"),
}


@pytest.mark.parametrize(("content", "says"), FILES.values(), ids=FILES)
def test_a_file_that_cannot_be_used_is_one_warning_and_the_default(chosen, content, says):
    block, warned = chosen(content)
    assert block == 128 and len(warned) == 1
    assert says in warned[0] and "h200.json: " in warned[0] and "default configs" in warned[0]


WRONG = {
    "null": (None, "key 'entries.0': None is no entry"),
    "a list": ([], "key 'entries.0': [] is no entry"),
    "no variant": ({k: v for k, v in GOOD.items() if k != "variant"}, "key 'entries.0': key 'variant' is missing"),
    "sizes of text": (GOOD | {"sizes": "n=1024"}, "key 'entries.0.sizes': 'n=1024' is not a mapping of sizes"),
    "sizes nested": (GOOD | {"sizes": {"n": {"n": 1}}}, "key 'entries.0.sizes'"),
    "a size that is null": (GOOD | {"sizes": {"n": None}}, "key 'entries.0.sizes'"),
    "a negative size": (GOOD | {"sizes": {"n": -1024}}, "key 'entries.0.sizes'"),
    "a config of a list": (GOOD | {"config": [256]}, "key 'entries.0.config'"),
    "a setting that is null": (GOOD | {"config": {"BLOCK": None}}, "key 'entries.0.config'"),
    "a setting that is nested": (GOOD | {"config": {"BLOCK": [256]}}, "key 'entries.0.config'"),
    "a direction that is none": (GOOD | {"direction": ["forward"]}, "key 'entries.0.direction'"),
    "a kernel that is a number": (GOOD | {"kernel": 5}, "key 'entries.0.kernel': 5 is not a kernel's name"),
    "a certificate that is a word": (GOOD | {"certificate": "yes"}, "key 'entries.0.certificate': 'yes' is not a cert"),
    "a certificate of nothing": (GOOD | {"certificate": {"cases": 0}}, "key 'entries.0.certificate'"),
    "no time": (GOOD | {"median_us": 0}, "key 'entries.0.median_us': 0 is not a time in microseconds"),
}


@pytest.mark.parametrize(("wrong", "says"), WRONG.values(), ids=WRONG)
def test_an_entry_of_another_form_is_one_warning_and_the_others_are_used(chosen, wrong, says):
    block, warned = chosen(file(wrong))
    assert block == 128 and len(warned) == 1 and says in warned[0]
    block, warned = chosen(file(wrong, GOOD, 5))
    assert block == 256 and len(warned) == 1 and says in warned[0] and "and 1 more" in warned[0]


@pytest.mark.parametrize("value", [256.0, True, "256", 0, -256, 3, 10**9, 255])
def test_a_setting_that_is_not_of_the_variants_space_in_its_type_gives_the_default(chosen, value):
    assert chosen(file(GOOD | {"config": {"BLOCK": value}})) == (128, [])


def test_a_setting_of_one_is_neither_a_float_nor_true(declaration):  # noqa: F811
    variant = dataclasses.replace(declaration.forward.variants[0], space={"STAGES": (1, 2), "SPLIT": (True, False)})
    assert choice._in_space({"STAGES": 1, "SPLIT": True}, variant)
    for config in ({"STAGES": 1.0, "SPLIT": True}, {"STAGES": True, "SPLIT": True}, {"STAGES": 1, "SPLIT": 1}):
        assert not choice._in_space(config, variant)


@pytest.mark.parametrize("sizes", [{"n": 1024.0}, {"n": True}, {"n": "1024"}, {"n": 0}, {}])
def test_sizes_of_another_kind_are_another_case(chosen, sizes):
    assert chosen(file(GOOD | {"sizes": sizes})) == (128, [])


def test_the_file_that_the_environment_names_is_read_as_carefully(chosen, tmp_path, monkeypatch):
    monkeypatch.setenv(choice.VARIABLE, str(tmp_path / "elsewhere" / "gone.json"))
    block, warned = chosen(file(GOOD))
    assert block == 256 and len(warned) == 1 and "gone.json: no such file" in warned[0]
    monkeypatch.setenv(choice.VARIABLE, str(tmp_path))
    block, warned = chosen.again()
    assert block == 256 and len(warned) == 1 and f"{tmp_path}: is a folder, not a file" in warned[0]


def test_a_file_whose_name_alone_is_a_files_is_a_warning(chosen, tmp_path):
    (tmp_path / "h100.json").mkdir()
    block, warned = chosen(file(GOOD))
    assert block == 256 and len(warned) == 1 and "h100.json: is a folder" in warned[0]


@pytest.mark.parametrize("path", sorted((ROOT / "kernels" / "tuned").glob("*.json")), ids=lambda path: path.stem)
def test_the_files_that_were_exported_have_no_fault_and_are_read_at_once(path):
    start = time.process_time()
    pattern, entries, faults = tuned.read(path)
    assert pattern and entries and not faults
    assert time.process_time() - start < 2, "0.01 s on the machine this was written on"


def test_importing_kernels_loads_no_library_and_nothing_that_a_first_call_wants():
    libraries = {
        "jsonschema",
        "yaml",
        "rich",
        "atlas.declaration.expected",
        "atlas.declaration.likeness",
        "atlas.declaration.timings",
    }
    code = f"import sys\nfrom kernels import softmax\nprint({libraries} & set(sys.modules))"
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": f"{ROOT / 'workflow'}:{ROOT}"}
    done = preloaded.run(code, environment, ROOT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "set()"


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("(A+)+$", "repeats a group"),
        ("(a|a)*b", "repeats a group"),
        ("(a?){50}b", "repeats a group"),
        ("a?" * 30 + "a" * 30, "30 choices"),
        (".*" * 4 + "x", "4 repeats"),
        ("(?=a)a", "looks around"),
        (r"(a)\1", "refers to its groups"),
        ("(a", "not a valid regex"),
        ("", "no pattern"),
        ("a" * 500, "500 characters"),
    ],
)
def test_a_pattern_that_could_take_long_is_told_from_its_text(pattern, why):
    assert why in strict.pattern_trouble(pattern)


@pytest.mark.parametrize(
    "pattern", [".*.*.*x", ".*.*(a|a)(a|a)(a|a)(a|a)(a|a)(a|a)b", "(a|a)" * 16 + "b", "[^x]+a{2,}$"]
)
def test_the_slowest_patterns_that_are_taken_end_in_a_second(pattern):
    assert strict.pattern_trouble(pattern) == ""
    start = time.process_time()
    strict.pattern_found(pattern, "a" * 10_000)
    assert time.process_time() - start < 5
