"""A bundle for hosts without a package index: what it pins, and what its installer says where it cannot go on."""

import importlib.util
import shutil
import subprocess

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
