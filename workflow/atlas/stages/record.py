"""record: a GPU's measured documents to ``results/recorded/``, to be committed and travel, and back."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from ..errors import AtlasError
from ..host import devices, environment, gpus
from ..reading import strict
from ..reading.config import GPUS_FILE, load_gpus
from ..results import documents, files, freshness, packed, pulling, records, restoring
from ..results.records import RecordResult
from ..results.restoring import Here, Restored


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Without a word behind ``record`` the GPU and its host are what is recorded."""
    _common(parser, None)
    parser.add_argument("--host", default="", help="label of another host with this GPU, whose record is kept apart")
    parser.add_argument("--force", action="store_true", help="record also what is not ok or of an older kernel")
    actions = parser.add_subparsers(dest="action", metavar="check | restore | pull | pack | show")
    checking = actions.add_parser("check", help="which records are of today's code; exit 1 if one is not")
    _common(checking, argparse.SUPPRESS)
    restoring_ = actions.add_parser("restore", help="bring a record back as measured, for a run to renew what is due")
    _common(restoring_, argparse.SUPPRESS)
    restoring_.add_argument("--host", default=argparse.SUPPRESS, help="label of the host whose record it is")
    restoring_.add_argument(
        "--force",
        action="store_true",
        default=argparse.SUPPRESS,
        help="also of other versions, devices and stages' code",
    )
    pulling_ = actions.add_parser("pull", help="bring in somebody else's record, as data")
    pulling_.add_argument("source", help="a document, folder, zip or tar; its http or https URL; or mlflow:RUN")
    _common(pulling_, argparse.SUPPRESS)
    pulling_.add_argument("--host", default=argparse.SUPPRESS, help="label under which it is kept apart")
    pulling_.add_argument(
        "--force", action="store_true", default=argparse.SUPPRESS,
        help="replace a record that is there, which goes to results/replaced; take also what is not ok",
    )  # fmt: skip
    packing = actions.add_parser("pack", help="pack records that are plain JSON")
    _common(packing, argparse.SUPPRESS)
    showing = actions.add_parser("show", help="print a record's text, for git diff")
    showing.add_argument("file", type=Path)


def _common(parser: argparse.ArgumentParser, default: str | None) -> None:
    known = {"default": default} if default is not None else {}
    parser.add_argument("--gpu", help="a block of gpus.yaml", **known)
    parser.add_argument("--gpus-file", type=Path, help="default: config/gpus.yaml", **(known or {"default": GPUS_FILE}))
    parser.add_argument(
        "--results", type=Path, help="results folder (default: results)", **(known or {"default": Path("results")})
    )


def run(arguments: argparse.Namespace) -> int:
    """Do it, and say of each file what became of it; 1 where something was refused or is stale."""
    if arguments.action == "show":
        return _show(arguments.file)
    blocks = load_gpus(arguments.gpus_file)
    if arguments.gpu is not None:
        gpus.names_of([arguments.gpu], blocks, "--gpu", "command line")
    if arguments.host and not files.is_label(arguments.host):
        said = strict.shown(arguments.host)
        raise AtlasError(f"command line: --host is {said}; give a word of letters, digits, - and _")
    if arguments.action == "check":
        return _check(arguments.results, [arguments.gpu] if arguments.gpu else list(blocks))
    if arguments.action == "pull":
        wanted = pulling.Wanted([arguments.gpu] if arguments.gpu else None, arguments.host, arguments.force)
        return _told(pulling.pull(arguments.source, arguments.results, blocks, wanted))
    if arguments.action == "pack":
        return _pack(arguments.results / "recorded" / (arguments.gpu or ""))
    if arguments.gpu is None:
        raise AtlasError("command line: --gpu is missing; name the block of the GPU whose documents are meant")
    if arguments.action == "restore":
        here = _here(blocks[arguments.gpu])
        return _restored(restoring.restore(arguments.results, arguments.gpu, here, arguments.host, arguments.force))
    outcome = records.record(arguments.results, arguments.gpu, arguments.force, arguments.host)
    code = _told(outcome)
    if outcome.refused:
        print("A kernel is recorded whole or not at all; --force records it as it is.")
    return code | _size(arguments.results / "recorded" / files.folder_of(arguments.gpu, arguments.host))


def _told(outcome: RecordResult) -> int:
    for path, size in outcome.written.items():
        print(f"recorded  {path} ({size / 1024:.0f} KiB)")
    for path in outcome.unchanged:
        print(f"unchanged {path}")
    for path, reason in outcome.refused.items():
        print(f"refused   {path}: {reason}")
    if outcome.devices:
        print(
            f"Replaced records: {'; '.join(outcome.devices)}. If that is another host, --host LABEL keeps both apart."
        )
    return 1 if outcome.refused else 0


def _here(block: Mapping[str, Any]) -> Here:
    own = next((device.uuid for device in devices.visible() if gpus.matches(block, device.name)), None)
    return Here(environment.software(), environment.device(own) if own else {})


def _restored(outcome: Restored) -> int:
    for kernel in outcome.kernels:
        because: dict[str, list[str]] = {}
        for stage, reason in outcome.left.get(kernel, {}).items():
            because.setdefault(reason, []).append(stage)
        parts = [
            f"restored {', '.join(outcome.written[kernel])}" if kernel in outcome.written else "",
            f"measured here {', '.join(outcome.there[kernel])}" if kernel in outcome.there else "",
            *(f"due {', '.join(stages)}: {reason}" for reason, stages in because.items()),
        ]
        print(f"{kernel}: {'; '.join(filter(None, parts))}")
    written, left = (sum(len(documents) for documents in found.values()) for found in (outcome.written, outcome.left))
    print(f"{written} documents restored, {left} are due; the next run makes those, and what was never recorded.")
    return 0


def _size(folder: Path) -> int:
    """Say how large the records of a GPU are; 1 where they are larger than they may be."""
    size, most = records.size(folder), records.MOST_BYTES
    print(f"{folder}: {size / 2**20:.2f} of {most / 2**20:g} MiB")
    if size > most:
        print("Too large to be committed: git keeps it for ever. Leave kernels or journals out.")
    return int(size > most)


def _check(results: Path, names: list[str]) -> int:
    console = Console(highlight=False, markup=False, emoji=False, width=None if sys.stdout.isatty() else 120)
    found = [one for name in names for one in freshness.standings(results, name)]
    if not found:
        raise AtlasError(f"{results / 'recorded'}: no record of {', '.join(names)}; record or pull one")
    for one in found:
        for line in freshness.lines(one):
            console.print(line, soft_wrap=True)
    return int(any(one.stale or one.size > records.MOST_BYTES for one in found))


def _pack(folder: Path) -> int:
    found = records.pack(folder)
    for path, (before, after) in found.items():
        print(f"packed    {path} ({before / 1024:.0f} to {after / 1024:.0f} KiB)")
    print(f"{len(found)} files packed; each read back as it was")
    return 0


def _show(path: Path) -> int:
    """Print either form of a document, or a journal; of any other file what is in it."""
    try:
        if path.name.endswith(".jsonl.xz"):
            sys.stdout.write(packed.unpack_lines(strict.content(path)).decode())
        else:
            sys.stdout.write(records.text_of(documents.load(path)))
    except FileNotFoundError:
        raise AtlasError(f"{path}: no such file; name a record's, such as benchmark.json.xz") from None
    except (strict.Unreadable, KeyError, TypeError, AttributeError) as error:
        raise AtlasError(f"{path}: {error}; name a record's file") from None
    return 0
