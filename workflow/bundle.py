"""One archive for a host without a package index: what git tracks, the wheels it needs there, and their checksums.

``make bundle`` runs it.  On the other host: ``tar xf`` it, and ``./install-offline``.  It carries all extras:
``make server`` and ``pip install '.[slurm]'`` work there, too.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Collection, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TOOLS = ("pip==26.3", "setuptools==84.2.1")
"""What installs the wheels, and the project itself."""


def main(words: Sequence[str] | None = None) -> None:
    """Write the archive; says its path, how many wheels it holds, and its size."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--python", default="3.11", help="Python of the other host, such as 3.12 (default: 3.11)")
    parser.add_argument(
        "--platform", default="x86_64", choices=("x86_64", "aarch64"), help="its processor, under Linux"
    )
    parser.add_argument("--output", type=Path, default=Path(), help="folder for the archive (default: here)")
    asked = parser.parse_args(words)
    commit = _said("git", "rev-parse", "--short=12", "HEAD").strip()
    name = f"kernel-atlas-{commit}-py{asked.python}-{asked.platform}"
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / name
        wheels = tree / "wheels"
        wheels.mkdir(parents=True)
        with tempfile.NamedTemporaryFile(suffix=".tar") as archive:
            _said("git", "archive", "--output", archive.name, "HEAD")
            with tarfile.open(archive.name) as tracked:
                tracked.extractall(tree, filter="tar")
        collect(wheels, asked.python, asked.platform)
        (wheels / "PYTHON").write_text(f"{asked.python} {asked.platform}\n")
        files = sorted(path for path in tree.rglob("*") if path.is_file() and not path.is_symlink())
        sums = "".join(f"{_digest(path)}  {path.relative_to(tree)}\n" for path in files)
        (tree / "SHA256SUMS").write_text(sums)
        asked.output.mkdir(parents=True, exist_ok=True)
        written = asked.output / f"{name}.tar"
        with tarfile.open(written, "w") as bundle:
            bundle.add(tree, name)
        count = len(list(wheels.glob("*.whl")))
    print(f"{written}: {count} wheels, {written.stat().st_size / 2**20:.0f} MiB, sha256 {_digest(written)}")


def collect(wheels: Path, python: str, platform: str) -> None:
    """Download the wheels that the project and its extras need on a Python and a platform, as constraints.txt has them.

    A package that is published as source alone is built here, which does for one without compiled parts.
    Raises SystemExit that names a package which has some.
    """
    target = ["--python-version", python, "--implementation", "cp"]
    for policy in ("manylinux_2_28", "manylinux_2_27", "manylinux_2_26", "manylinux_2_17", "manylinux2014"):
        target += ["--platform", f"{policy}_{platform}"]
    pinned = constraints((ROOT / "constraints.txt").read_text())
    # torch pins its CUDA packages itself, so it comes with what it needs; so do peers, which build on them.
    resolved = [f"torch=={pinned['torch']}", *unpinned((ROOT / "pyproject.toml").read_text(), pinned)]
    _pip("download", *target, "--only-binary", ":all:", "--dest", str(wheels), *resolved,
         "--constraint", str(ROOT / "constraints.txt"))  # fmt: skip
    there = {_name(path) for path in wheels.glob("*.whl")}
    rest = [f"{name}=={version}" for name, version in pinned.items() if name not in there]
    _pip("download", *target, "--no-deps", "--dest", str(wheels), *TOOLS, *rest)
    for source in [path for path in wheels.iterdir() if path.suffix != ".whl"]:
        _pip("wheel", "--no-deps", "--wheel-dir", str(wheels), str(source))
        source.unlink()
    for wheel in wheels.glob("*linux_*.whl"):
        if "manylinux" not in wheel.name:
            raise SystemExit(f"{_name(wheel)} has no wheel for Python {python} on {platform}, and is not pure Python")


def constraints(text: str) -> dict[str, str]:
    """Versions by normalised name, as constraints.txt pins them."""
    lines = (line.partition("#")[0].strip() for line in text.splitlines())
    return {_normal(name): version for name, _, version in (line.partition("==") for line in lines if line)}


def unpinned(project: str, pinned: Collection[str]) -> list[str]:
    """What the extras of a pyproject.toml ask for, and constraints.txt does not pin, such as ``cuda-core==1.2.2``."""
    extras = tomllib.loads(project)["project"]["optional-dependencies"]
    return [pin for pins in extras.values() for pin in pins if _normal(pin.partition("==")[0]) not in pinned]


def _name(wheel: Path) -> str:
    return _normal(wheel.name.partition("-")[0])


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _pip(*words: str) -> None:
    command = [sys.executable, "-m", "pip", *words, "--quiet", "--disable-pip-version-check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"pip {words[0]} failed:\n{done.stderr.strip()}")


def _said(*words: str) -> str:
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    main()
