"""A bundle for hosts without a package index: what it pins, and what its installer says where it cannot go on."""

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import zipfile

import pytest
from atlas import ROOT

INSTALLER = ROOT / "install-offline"


def _bundle():
    spec = importlib.util.spec_from_file_location("bundle", ROOT / "workflow" / "bundle.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_package_that_the_project_asks_for_is_pinned_by_its_normalised_name():
    pinned = _bundle().constraints((ROOT / "constraints.txt").read_text())
    assert {"torch", "snakemake", "mlflow", "pytest", "annotated-doc", "pyyaml"} <= set(pinned)
    assert _bundle().constraints("# why\nA_b==1.0  # because\n\n") == {"a-b": "1.0"}


def test_extras_whose_packages_are_not_pinned_come_along():
    project = (ROOT / "pyproject.toml").read_text()
    pinned = _bundle().constraints((ROOT / "constraints.txt").read_text())
    found = {pin.partition("==")[0] for pin in _bundle().unpinned(project, pinned)}
    assert found == {"cuda-core", "liger-kernel"}, "constraints.txt has what torch, tests, servers and clusters need"


PYTHON = """#!/bin/sh
case "$*" in
  -c*) echo "3.4 x86_64" ;;
  *venv*) mkdir -p .venv/bin && cp "$0" .venv/bin/python ;;
  *) echo "$*" >>installed ;;
esac
"""


def test_what_is_installed_later_comes_from_the_wheels_and_from_no_index(tmp_path):
    folder = tmp_path / "a bundle"
    (folder / "wheels").mkdir(parents=True)
    shutil.copy(INSTALLER, folder)
    (folder / "wheels/PYTHON").write_text("3.4 x86_64\n")
    (folder / "SHA256SUMS").write_text(f"{hashlib.sha256(b'3.4 x86_64' + bytes([10])).hexdigest()}  wheels/PYTHON\n")
    with zipfile.ZipFile(folder / "wheels/extra-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("extra-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: extra\nVersion: 1.0\n")
        wheel.writestr("extra-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr("extra-1.0.dist-info/RECORD", "")
    (tmp_path / "python").write_text(PYTHON)
    (tmp_path / "python").chmod(0o755)
    subprocess.run([folder / "install-offline"], env={**os.environ, "PYTHON": str(tmp_path / "python")}, check=True)
    assert "--editable .[test,lint]" in (folder / "installed").read_text()
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    words = [sys.executable, "-m", "pip", "download", "--no-deps", "--dest", tmp_path / "got", "extra"]
    by_its_pip = inherited | {
        "PIP_CONFIG_FILE": str(folder / ".venv/pip.conf"),
        "PIP_INDEX_URL": "https://other.invalid",
    }
    subprocess.run(words, env=by_its_pip, check=True)
    assert (tmp_path / "got/extra-1.0-py3-none-any.whl").exists()


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({}, "this is not a bundle"),
        ({"wheels/PYTHON": "3.4 x86_64\n"}, "no python3.4"),
        ({"wheels/PYTHON": "3.4 x86_64\n", "PYTHON": "python3"}, "the wheels are for Python 3.4"),
    ],
)
def test_the_installer_says_why_it_cannot_go_on_and_changes_nothing(tmp_path, files, said):
    shutil.copy(INSTALLER, tmp_path)
    (tmp_path / "wheels").mkdir()
    python = files.get("PYTHON")
    for name in files.keys() - {"PYTHON"}:
        (tmp_path / name).write_text(files[name])
    command = [*(["env", f"PYTHON={python}"] if python else ["env", "-u", "PYTHON"]), tmp_path / "install-offline"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and said in done.stderr
    assert not (tmp_path / ".venv").exists()
