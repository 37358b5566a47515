"""``python -m proofs``: its documents, and that the product can do without it."""

import ast
import re

import pytest
from atlas import ROOT
from atlas.results import documents

from proofs import PROOFS
from proofs.__main__ import main
from proofs.evidence import Evidence, at_most
from proofs.measuring import overhead

PRODUCT = [*(ROOT / "workflow").rglob("*.py"), *(ROOT / "kernels").rglob("*.py")]


def named_modules(tree):
    """What a file imports, and what its strings name as a module, to be run or imported by its name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield node.module
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and re.fullmatch(r"[\w.]+", node.value):
            yield node.value if "." in node.value else ""


@pytest.mark.parametrize("path", PRODUCT, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_product_neither_imports_nor_runs_a_proof(path):
    named = set(named_modules(ast.parse(path.read_text())))
    assert not {name for name in named if name.partition(".")[0] == "proofs"}


def test_the_scan_would_see_an_import():
    text = "from proofs.evidence import Claim\nimport proofs\nrun('-m', 'proofs.tuning.finals')"
    assert {name for name in named_modules(ast.parse(text)) if name} == {
        "proofs.evidence", "proofs", "proofs.tuning.finals",
    }  # fmt: skip


@pytest.mark.parametrize(("found", "status"), [(1.0, 0), (3.0, 1)], ids=["holds", "broken"])
def test_the_evidence_is_kept_as_a_document_and_a_broken_claim_is_the_exit_status(
    found, status, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(overhead, "run", lambda job: Evidence([at_most("a figure", found, 2.0)], [{"x": 1}], ["why"]))
    assert main(["overhead", "--gpu", "cpu", "--results", str(tmp_path)]) == status
    document = documents.read(tmp_path / "measured" / "cpu" / "proof" / "overhead.json", "prove")
    assert document["proof"] == "overhead" and document["claims"][0]["holds"] == (status == 0)
    assert document["reason"] == ("" if status == 0 else "a figure: 3, limit 2")
    assert "a figure" in capsys.readouterr().out


def test_an_unknown_proof_is_answered_with_those_there_are(capsys):
    with pytest.raises(SystemExit):
        main(["nosuch"])
    said = capsys.readouterr().err
    assert all(name in said for name in PROOFS)
