"""``python -m proofs NAME --gpu G``: try a claim of the measuring core on this machine, print and keep the evidence."""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import sys
from pathlib import Path
from typing import Any

from atlas import cli
from atlas.stages import frame

from . import PROOFS
from .evidence import Claim, Evidence


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """One subcommand a proof, each with its own arguments."""
    proofs = parser.add_subparsers(dest="proof", required=True, metavar="PROOF")
    for name, (_, summary) in PROOFS.items():
        shown = summary.replace("%", "%%")  # argparse formats what it shows
        proof = proofs.add_parser(name, help=shown, description=shown)
        frame.add_common_arguments(proof, kernel=False)
        _module(name).add_arguments(proof)


def run(arguments: argparse.Namespace) -> int:
    """Write ``results/measured/<gpu>/proof/<name>.json`` and print it; 1 where a claim does not hold."""
    job = frame.job("prove", arguments)
    document = frame.write_document(
        job, {"proof": arguments.proof, "claims": [], "rows": [], "notes": []}, _body, output=_output(job)
    )
    show(document)
    return 0 if document["status"] == "ok" else 1


def _output(job: frame.Job) -> Path:
    return job.folder / "proof" / f"{job.arguments.proof}.json"


def _module(name: str) -> Any:
    return importlib.import_module(f"{__package__}.{PROOFS[name][0]}")


def _body(job: frame.Job) -> dict[str, Any]:
    name = job.arguments.proof
    evidence: Evidence = _module(name).run(job)
    fields = {
        "proof": name,
        "claims": [dataclasses.asdict(claim) for claim in evidence.claims],
        "rows": [dict(row) for row in evidence.rows],
        "notes": list(evidence.notes),
    }
    if not evidence.holds:
        reason = "; ".join(map(_sentence, evidence.broken)) or "nothing was tried"
        fields |= {"status": "failed", "reason": reason}
    return fields


def _sentence(claim: Claim) -> str:
    return f"{claim.text}: {_text(claim.found)}, limit {_text(claim.limit)}"


def _text(value: Any) -> str:
    return "nothing" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


def show(document: dict[str, Any]) -> None:
    """The document as tables on the terminal."""
    from rich.console import Console
    from rich.table import Table

    console = Console(width=160, markup=False)
    if document["rows"]:
        table = Table(*document["rows"][0], title=f"{document['proof']} on {document['gpu']}")
        for row in document["rows"]:
            table.add_row(*map(_text, row.values()))
        console.print(table)
    claims = Table("claim", "found", "limit", "")
    for claim in document["claims"]:
        claims.add_row(
            claim["text"], _text(claim["found"]), _text(claim["limit"]), "holds" if claim["holds"] else "BROKEN"
        )
    console.print(claims)
    for note in document["notes"]:
        console.print(note)
    if document["status"] != "ok":
        console.print(f"{document['status']}: {document['reason']}")


def main(words: list[str] | None = None) -> int:
    """Try one proof; the exit status: 1 where a claim does not hold, 2 for a mistake of the user's."""
    words = sys.argv[1:] if words is None else words
    return cli.run("proofs", f"{__package__}.__main__", __doc__ or "", words)


if __name__ == "__main__":
    raise SystemExit(main())
