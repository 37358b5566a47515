"""`python -m atlas new`: what it refuses, what it writes, and that the documentation shows just that."""

import argparse
import dataclasses
import re

import pytest
from atlas import ROOT, catalog
from atlas.declaration import Declaration, Pass, Variant
from atlas.errors import AtlasError
from atlas.stages import new

PAGE = (ROOT / "docs" / "adding-a-kernel.md").read_text()


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("vector_add", "there already"),
        ("gelu", "function of kernels/activation/"),  # two files with one public name: one would hide the other
        ("relu", "torch has a relu"),
        ("one_hot", "torch has a one_hot"),  # of torch.nn.functional
        ("common", "for something else"),
        ("class", "no name"),
        ("match", "no name"),
        ("2x", "no name"),
        ("a-b", "no name"),
        ("../x", "no name"),
        ("_x", "no name"),  # such files are no kernels
        ("", "no name"),
    ],
)
def test_a_name_that_a_kernel_cannot_have_is_refused_and_nothing_is_written(name, reason, tmp_path, monkeypatch):
    init = (catalog.KERNELS / "__init__.py").read_text()
    with pytest.raises(AtlasError, match=reason):
        new.run(argparse.Namespace(name=name, like="elementwise"))
    assert (catalog.KERNELS / "__init__.py").read_text() == init


@pytest.mark.parametrize("name", ["aaa", "gated", "zzz"], ids=["first", "in the middle", "last"])
def test_the_function_is_listed_in_its_place_among_the_others(name):
    text = (catalog.KERNELS / "__init__.py").read_text()
    listed = new.registered(text, name)
    for pattern, entry in ((r"^    from \.(\w+) import .*$", name), (r'^    "\w+": "(\w+)",$', name)):
        families = re.findall(pattern, listed, re.MULTILINE)
        assert entry in families and families == sorted(families)
    added = [line for line in listed.splitlines() if line not in text.splitlines()]
    assert added == [f"    from .{name} import {name}", f'    "{name}": "{name}",']
    assert len(listed.splitlines()) == len(text.splitlines()) + 2


def test_an_init_that_lists_no_functions_is_refused():
    with pytest.raises(AtlasError, match="FUNCTIONS"):
        new.registered("import x\n", "gated")


@pytest.mark.parametrize(("like", "most"), [("elementwise", 60), ("rows", 90), ("matmul", 130)])
def test_what_is_written_is_short_and_bears_the_name_alone(like, most):
    text = new.listing(like, "gated")
    assert len(text.splitlines()) <= most
    assert new.PLACE not in text and text.count("def gated(") == 1
    compile(text, like, "exec")


def test_the_page_begins_with_what_the_command_writes():
    shown = re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert shown[1] == new.listing("elementwise", "gated")


@pytest.mark.parametrize("kind", [Declaration, Pass, Variant], ids=lambda kind: kind.__name__)
def test_the_page_names_every_field(kind):
    section = re.search(rf"^## {kind.__name__}$(.*?)(?=^## )", PAGE, re.MULTILINE | re.DOTALL)[1]
    named = {name for row in re.findall(r"^\| (`.*?) \|", section, re.MULTILINE) for name in re.findall(r"`(\w+)", row)}
    assert named == {field.name for field in dataclasses.fields(kind) if field.init}


def test_the_page_is_at_most_1200_words_long():
    assert len(PAGE.split()) <= 1200
