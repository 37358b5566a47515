"""The pages of documentation: short enough to be read, and true of the files, links and commands that they name."""

from __future__ import annotations

import argparse
import importlib.util
import re
from pathlib import Path

import pytest
from atlas import ROOT, cli

import proofs

GENERATED = ROOT / "docs" / "kernel_log.md"
PAGES = sorted(
    {ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "config" / "README.md", *(ROOT / "docs").rglob("*.md")}
    - {GENERATED}
)
MOST_WORDS = 30_200
RETIRED = ("contest", "crew", "desk", "dealing", "tape", "rouse", "mend", "bury")
"""Pictures for what has a name in the field: comparison, pool, worker, recording, warm up, repair."""

FOLDERS = r"(?:config|docs|kernels|profiles|proofs|results/recorded|tests|workflow)/"

every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def _code(page: Path) -> str:
    """What a page shows as code: spans, fenced and indented blocks, a line a piece."""
    text = page.read_text()
    blocks = re.findall(r"^```\w*\n(.*?)^```", text, re.M | re.S)
    text = re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)
    return "\n".join([*blocks, *re.findall(r"^    (.*)", text, re.M), *_spans(text)])


def _spans(text: str) -> list[str]:
    """Code within lines; one may go on in the next line, but not in the next paragraph."""
    return [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", text)]


def _anchors(page: Path) -> set[str]:
    """Where a link into a page may lead, by GitHub's rule: lower case, hyphens for spaces, no punctuation."""
    headings = re.findall(r"^#+ (.*)", page.read_text(), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_all_pages_together_stay_short_enough_to_be_read():
    words = {str(page.relative_to(ROOT)): len(page.read_text().split()) for page in PAGES}
    longest = ", ".join(f"{name} {words[name]}" for name in sorted(words, key=words.get, reverse=True)[:5])
    assert sum(words.values()) <= MOST_WORDS, f"{sum(words.values())} words; cut what readers skip. Longest: {longest}"


@every_page
def test_a_page_begins_with_what_it_is_for(page):
    heading, _, rest = page.read_text().partition("\n\n")
    first = rest.split("\n\n")[0]
    assert re.fullmatch(r"# \S.*", heading), "a page begins with one heading and an empty line"
    assert re.match(r"[\w`\[]", first), "then come sentences: a reader who came by a link must see where he is"
    assert len(first.split()) <= 60, "two lines; a longer start is skipped"


@every_page
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        assert there.exists(), f"{target}: no such file"
        if anchor:
            assert anchor in _anchors(there), f"{target}: no such heading"


@every_page
def test_paths_exist(page):
    for path in re.findall(rf"`({FOLDERS}[\w./*-]*)`", page.read_text()):
        assert list(ROOT.glob(path.rstrip("/"))), f"{path}: moved or removed?"


def _parser(command: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser()
    importlib.import_module(f"atlas.stages.{command}").add_arguments(parser)
    return parser


@every_page
def test_commands_of_atlas_exist_with_their_options(page):
    for command, rest in re.findall(r"python -m atlas ([a-z][\w-]*)([^&#\n|]*)", _code(page)):
        assert command in cli.COMMANDS, f"python -m atlas {command}"
        known = _parser(command).format_help()
        for option in re.findall(r"--[a-z][a-z-]*", rest):
            assert re.search(rf"{option}\b", known), f"python -m atlas {command} {option}"


@every_page
def test_proofs_exist(page):
    for module, name in re.findall(r"python -m (proofs[\w.]*)(?: ([a-z][\w-]*))?", _code(page)):
        assert importlib.util.find_spec(module), f"python -m {module}"
        if module == "proofs" and name:
            assert name in proofs.PROOFS, f"python -m proofs {name}"


@every_page
def test_targets_of_make_exist(page):
    targets = re.search(r"^\.PHONY: (.*)", (ROOT / "Makefile").read_text(), re.M)[1].split()
    for target in re.findall(r"^make ([\w-]+)", _code(page), re.M):
        assert target in targets, f"make {target}"


@every_page
def test_words_are_the_fields_own(page):
    for word in RETIRED:
        assert not re.search(rf"\b{word}", page.read_text(), re.I), f"{word}: the field has a word for it"
