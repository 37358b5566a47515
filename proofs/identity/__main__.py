"""``python -m proofs.identity``: are the kernels what they were?  See the package's own words."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path
from typing import Any

from atlas.identity import kernel, today
from atlas.results import documents, files

from . import added, comparing, listing, records

ROOT = Path(__file__).parents[2]
KEPT = ROOT / ".identity"
"""What workers found and Triton compiled, so that a run that was cut off goes on; git leaves it out."""

Chosen = Sequence[Collection[str] | None]
"""GPUs and kernels by name; None: all of them."""

_WORKER = Path(__file__).with_name("worker.py")
_TURNS = 6
"""How often what was compiled to something else is compiled again."""


def main() -> int:
    """Compare; with an option also write."""
    parser = argparse.ArgumentParser(prog="python -m proofs.identity", description=__doc__)
    parser.add_argument("--list", metavar="COMMIT", help="make the list anew from a commit's source and its records, "
                        "of all or of --kernels on --gpus")  # fmt: skip
    parser.add_argument("--rekey", action="store_true", help="write today's identities into the records, the tuned "
                        "configs and the list, where they are proved to be of the same code")  # fmt: skip
    parser.add_argument("--kernels", help="these alone, with commas between")
    parser.add_argument("--gpus", help="records of these alone, with commas between")
    parser.add_argument("--jobs", type=int, default=2, help="kernels at a time (default: 2)")
    arguments = parser.parse_args()
    os.chdir(ROOT)
    chosen = [word.split(",") if word else None for word in (arguments.gpus, arguments.kernels)]
    if arguments.list:
        _list(arguments.list, arguments.jobs, chosen)
        return 0
    listed = listing.read()
    names = [name for name in listed["kernels"] if _is_of(name, chosen)]
    identities = {name: today.of_kernel(ROOT / "kernels", name.split()[1]) for name in names}
    with ThreadPoolExecutor(arguments.jobs) as pool:
        answers = dict(zip(names, pool.map(lambda name: _answer(name, listed, identities[name]), names), strict=True))
    found = {name: comparing.proved(listed["kernels"][name], identities[name], answers[name]) for name in names}
    lost = _say(found)
    if arguments.rekey:
        _rekey(listed, found, identities)
    return int(lost)


def _say(found: Mapping[str, Mapping[str, list[str]]]) -> bool:
    """Print what is not as it was; whether a variant is among it."""
    lost = False
    same = sum(not differences for own in found.values() for differences in own.values())
    print(f"{same} of {sum(map(len, found.values()))} identities are of the same code as when the records were made")
    untold: dict[tuple[str, str], list[str]] = {}
    for name, own in found.items():
        for identity, differences in own.items():
            if differences and "." in identity:
                lost = True
                more = f" (and {len(differences) - 1} more)" if len(differences) > 1 else ""
                print(f"  {name} {identity}: not proved: {differences[0]}{more}")
            elif differences:
                untold.setdefault((identity, differences[0]), []).append(name)
    for (identity, difference), names in untold.items():
        print(f"  {identity} of {', '.join(names)}: not proved: {difference}")
    return lost


def _answer(name: str, listed: Mapping[str, Any], identities: Mapping[str, str]) -> dict[str, Any]:
    """The worker's answer for today's source: of what has another identity than the list says."""
    own = listed["kernels"][name]
    changed = [one for one, found in own["variants"].items() if found["identity"] != identities.get(one)]
    parts = [one for one, (then, _) in own["parts"].items() if then != identities.get(one)]
    if not changed and not parts:
        return {"variants": {}, "parts": {}}
    gpu, kernel_name = name.split()
    configs = _configs(documents.load(files.found(Path("results", "recorded", gpu, kernel_name), "benchmark")))
    answer = _ask(ROOT, kernel_name, gpu, configs, changed, dict(identities))
    for turn in range(_TURNS):
        if not (variants := comparing.compiled_otherwise(own, answer)):
            break
        again = _ask(ROOT, kernel_name, gpu, configs, variants, dict(identities), turn + 1)
        answer = comparing.with_matches(own, answer, again)
    return answer


def _configs(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The configs of variants that a GPU's benchmark of a kernel timed."""
    return [
        {"direction": row["direction"], "variant": row["provider"]}
        | {key: row[key] for key in ("dtype", "sizes", "config")}
        for row in document["rows"]
        if row["provider_kind"] in ("variant", "default") and row.get("config")
    ]


def _ask(
    tree: Path, name: str, gpu: str, configs: list[dict[str, Any]], variants: list[str], identities: dict[str, str],
    turn: int = 0, new: Mapping[str, Any] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Have a kernel of a source tree compiled; asked again of the same code, the answer is the one that is kept.

    In another ``turn`` everything is compiled anew.  Of ``new`` variants come those of their cases that they take.
    """
    asked = json.dumps({"kernel": name, "gpu": gpu, "configs": configs, "variants": variants} |
                       ({"added": new} if new else {}))  # fmt: skip
    key = hashlib.sha256(
        json.dumps([asked, identities, _WORKER.read_text(), turn], sort_keys=True).encode()
    ).hexdigest()[:16]
    answer = KEPT / f"{gpu}-{name}-{key}.json"
    if not answer.exists():
        KEPT.mkdir(exist_ok=True)
        question = answer.with_suffix(".asked")
        question.write_text(asked)
        environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
        environment |= {
            "PYTHONPATH": f"{tree / 'workflow'}{os.pathsep}{tree}",
            "TRITON_CACHE_DIR": str(KEPT / f"triton{turn or ''}"),
        }
        unfinished = answer.with_suffix(".part")
        done = subprocess.run(
            [sys.executable, str(_WORKER), str(question), str(unfinished)],
            cwd=tree, env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            sys.exit(f"{name} for {gpu} in {tree}: the worker ended with {done.returncode}:\n{done.stderr[-3000:]}")
        unfinished.replace(answer)
        print(f"  {gpu} {name}: compiled", flush=True)
    return json.loads(answer.read_text())


def _is_of(name: str, chosen: Chosen) -> bool:
    return all(asked is None or word in asked for word, asked in zip(name.split(), chosen, strict=True))


def _list(commit: str, jobs: int, chosen: Chosen) -> None:
    """Make the list of a commit's source, of what is ``chosen`` alone: the rest stays as it is."""
    commit = subprocess.run(["git", "rev-parse", "--verify", f"{commit}^{{commit}}"], capture_output=True, text=True,
                            check=True).stdout.strip()  # fmt: skip
    others = {name: one for name, one in listing.read()["kernels"].items() if not _is_of(name, chosen)}
    archive = subprocess.run(
        ["git", "archive", commit, "kernels", "workflow", "config"], capture_output=True, check=True
    )
    with tempfile.TemporaryDirectory(prefix="identity.") as folder:
        tree = Path(folder)
        with tarfile.open(fileobj=BytesIO(archive.stdout)) as archived:
            archived.extractall(tree, filter="data")
        code = today.code_of(tree / "kernels", tree / "workflow" / "atlas")
        tracked = subprocess.run(["git", "ls-tree", "-r", "--name-only", commit, "results/recorded"],
                                 capture_output=True, text=True, check=True).stdout.split()  # fmt: skip
        paths = [Path(path) for path in tracked if files.name_of(Path(path)) == "benchmark" and files.HOST not in path]
        names = sorted(name for path in paths if _is_of(name := f"{path.parts[2]} {path.parts[3]}", chosen))

        known = {name: kernel.identities(code, name.split()[1]) for name in names}  # one thread reads the source

        def made(name: str) -> tuple[dict[str, Any], str]:
            gpu, own = name.split()
            identities = known[name]
            document = records.at(commit, Path("results", "recorded", gpu, own), "benchmark") or {}
            configs = _configs(document)
            variants = [one for one in identities if "." in one]
            answer = _ask(tree, own, gpu, configs, variants, {"of": commit} | identities)
            return listing.entry(commit, identities, answer), answer["triton"]

        with ThreadPoolExecutor(jobs) as pool:
            found = dict(zip(names, pool.map(made, names), strict=True))
    (triton,) = {version for _, version in found.values()}
    entries = others | {name: one for name, (one, _) in found.items()}
    listing.write({"triton": triton, "kernels": dict(sorted(entries.items()))})


def _rekey(listed: dict[str, Any], found: Mapping[str, Any], identities: Mapping[str, Mapping[str, str]]) -> None:
    """Write the records, the tuned configs and the list."""
    earlier, stated, commits = {}, {}, {}
    for name, own in found.items():
        before = listed["kernels"][name]
        then = {one: part[0] for one, part in before["parts"].items()}
        then |= {one: variant["identity"] for one, variant in before["variants"].items()}
        gpu, kernel_name = name.split()
        earlier[gpu, kernel_name] = then
        stated[gpu, kernel_name] = {one: identities[name][one] if not own[one] else then[one] for one in then}
        commits[gpu, kernel_name] = before["source"]
        for one, differences in own.items():
            if not differences and one in before["variants"]:
                before["variants"][one]["identity"] = identities[name][one]
            elif not differences:
                before["parts"][one][0] = identities[name][one]
    for how, paths in records.write_records(commits, earlier, stated).items():
        print(f"records {how}: {len(paths)}")
    for path, count in records.write_tuned(earlier, stated).items():
        print(f"{path}: {count} entries state an identity of the list")
    listing.write(listed)

    def taken(gpu: str, own: str, cases: Mapping[str, added.Cases]) -> Mapping[str, added.Cases]:
        return _ask(ROOT, own, gpu, [], [], dict(identities[f"{gpu} {own}"]), new=cases)["added"]

    for path, variants in added.write(found, identities, taken).items():
        print(f"{path}: has no case for {', '.join(variants)}, which came or changed since")


if __name__ == "__main__":
    sys.exit(main())
