"""What becomes of a fault that is planted: caught, survived, or a list that needs mending."""

import subprocess

import harness_mutants as mutants
import pytest

CODE = "def double(x):\n    return 2 * x\n\n\ndef label(x):\n    return f'{double(x)} of 2 * {x}'\n"
TESTS = """
import time
import code_here

def test_doubles():
    assert code_here.double(3) == 6

def test_ends():
    while code_here.double(1) > 2:
        time.sleep(0.1)

def test_is_broken_anyway():
    assert code_here.label(1) == "2 of 2 * 1" and code_here.double(2) == 5
"""
LIST = """
tests = ["test_code.py::test_doubles"]

[[mutant]]
name = "triples"
file = "code_here.py"
old = "return 2 * x"
new = "return 3 * x"
harm = "Three times as much."

[[mutant]]
name = "unlabelled"
file = "code_here.py"
old = " of 2 * {x}'"
new = "'"
harm = "Nobody knows of what."

[[mutant]]
name = "said twice"
file = "code_here.py"
old = "2 * "
new = "4 * "
harm = "None."

[[mutant]]
name = "cannot be imported"
file = "code_here.py"
old = "def double(x):"
new = "def double(x)"
harm = "None."

[[mutant]]
name = "for ever"
file = "code_here.py"
old = "return 2 * x"
new = "return 5 * x"
tests = ["test_code.py::test_ends"]
harm = "Hangs."

[[mutant]]
name = "caught by a test that fails anyway"
file = "code_here.py"
old = "return 2 * x"
new = "return 2 + x"
tests = ["test_code.py::test_is_broken_anyway"]
harm = "None."
"""


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """A checkout of one module with its tests, and a list of faults for it."""
    root = tmp_path_factory.mktemp("tree")
    subprocess.run(["git", "init", "--quiet"], cwd=root, check=True)
    for name, text in {"code_here.py": CODE, "test_code.py": TESTS, "lists/room.toml": LIST}.items():
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text(text)
    return root


def test_each_fault_ends_as_what_it_is_and_the_checkout_stays_as_it_was(tree):
    listed = [mutant for mutant in mutants.read(tree / "lists") if mutant.name != "for ever"]
    results = {one.mutant.name: one for one in mutants.try_all(listed, tree, jobs=2, seconds=400)}
    assert {name: result.outcome for name, result in results.items()} == {
        "triples": "caught",
        "unlabelled": "survived",
        "said twice": "stale",
        "cannot be imported": "broken",
        "caught by a test that fails anyway": "fails anyway",
    }
    assert results["triples"].what == "test_code.py::test_doubles"
    assert "holds the old text 2 times" in results["said twice"].what
    assert (tree / "code_here.py").read_text() == CODE


def test_tests_that_do_not_end_are_ended_and_catch_nothing(tree):
    (endless,) = [mutant for mutant in mutants.read(tree / "lists") if mutant.name == "for ever"]
    with mutants.copy_of(tree) as copy:
        assert mutants.try_one(endless, copy, seconds=2).outcome == "hung"
        assert (copy / "code_here.py").read_text() == CODE


def results(*outcomes):
    mutant = mutants.Mutant("a", "room", "f.py", "old", "new", ("t.py",), "Somebody is harmed.")
    return [mutants.Result(mutant, outcome) for outcome in outcomes]


@pytest.mark.parametrize(
    ("outcomes", "status"),
    [
        (["caught"] * 19 + ["survived"], 0),  # 95 %
        (["caught"] * 18 + ["survived"] * 2, 1),
        (["caught"] * 99 + ["stale"], 1),  # a list that is not of this tree proves nothing
        (["caught"] * 99 + ["broken"], 1),
        (["caught"] * 99 + ["hung"], 1),
        (["caught"] * 99 + ["fails anyway"], 1),
    ],
)
def test_it_fails_where_too_few_are_caught_or_one_could_not_be_tried(outcomes, status):
    assert mutants.ended(results(*outcomes), share=0.95) == status


def test_what_survives_is_reported_with_the_harm_it_would_do():
    said = mutants.report(results("caught", "survived", "stale"))
    assert "SURVIVED: a (f.py): no test noticed; write the one that does" in said
    assert "harm: Somebody is harmed." in said
    assert said.splitlines()[2].split() == ["room", "3", "1", "1", "1"]
    assert said.endswith("1 of 3 planted faults caught")


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (('harm = "Three times as much."', ""), "room.toml: mutant 'triples': .* harm"),
        (('old = "return 2 * x"\nnew = "return 3 * x"', 'old = "x"\nnew = "x"'), "'triples': old and new text are the"),
        (('name = "unlabelled"', 'name = "triples"'), "two mutants named 'triples'"),
        (('name = "triples"', 'nane = "triples"'), "room.toml: mutant 1: .* name, nane"),
        (("[[mutant]]", "[[mutant"), "room.toml: "),
    ],
    ids=["no harm", "no change", "one name twice", "misspelt key", "no TOML"],
)
def test_a_list_that_is_not_as_it_should_be_is_named_with_the_place(tmp_path, change, complaint):
    (tmp_path / "room.toml").write_text(LIST.replace(*change))
    with pytest.raises(mutants.ListError, match=complaint):
        mutants.read(tmp_path)


@pytest.mark.parametrize("words", [["--only", "tripels"], ["--room", "rooms"]])
def test_an_unknown_name_or_room_is_answered_with_those_there_are(tree, capsys, words):
    assert mutants.main(words, tree / "lists", tree) == 2
    assert "unknown; there are" in capsys.readouterr().err


def test_every_fault_of_the_atlas_can_be_planted_in_the_tree_as_it_is():
    # Fails where a line that a fault replaces was edited: give the list the new text, or another fault of its kind.
    listed = mutants.read()
    assert len(listed) >= 75
    assert {m.name: reason for m in listed if (reason := m.stale(mutants.ROOT))} == {}
