"""One list of versions: environment.yml, constraints.txt and pyproject.toml say the same."""

import re
import tomllib

import pytest
import yaml
from atlas import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
CONSTRAINTS = (ROOT / "constraints.txt").read_text()
PINS = [
    pin
    for pins in [PROJECT["project"]["dependencies"], *PROJECT["project"]["optional-dependencies"].values()]
    for pin in pins
]


def _key(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _locked() -> dict[str, str]:
    lines = [line for line in CONSTRAINTS.splitlines() if line and not line.startswith("#")]
    return {_key(name): version for name, version in (line.split("==") for line in lines)}


@pytest.mark.parametrize("pin", PINS)
def test_every_direct_dependency_is_pinned_exactly(pin):
    assert re.fullmatch(r"[A-Za-z0-9._-]+==[^,;*]+", pin)


def test_what_the_pins_resolved_to_agrees_with_them():
    locked = _locked()
    for pin in PROJECT["project"]["dependencies"]:
        name, version = pin.split("==")
        assert locked[_key(name)] == version, f"constraints.txt has another {name}"
    for extra in ("test", "lint"):
        for pin in PROJECT["project"]["optional-dependencies"][extra]:
            name, version = pin.split("==")
            assert locked[_key(name)] == version, f"constraints.txt has another {name}"


def test_the_constraints_name_no_cuda_package_and_no_local_build():
    # torch pins its CUDA packages itself; "+cpu" would keep a GPU host from getting them.
    assert not re.search(r"^(nvidia-(?!ml-py)|cuda)|\+cpu| @ ", CONSTRAINTS, re.M)


def test_conda_installs_this_project_and_lists_no_versions_of_its_own():
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    (python,) = [d for d in environment["dependencies"] if isinstance(d, str) and d.startswith("python=")]
    least = re.search(r">=3\.(\d+)", PROJECT["project"]["requires-python"])[1]
    assert int(python.removeprefix("python=3.")) >= int(least)
    (pip,) = [d["pip"] for d in environment["dependencies"] if isinstance(d, dict)]
    assert pip == ["--constraint constraints.txt", "--editable .[test,lint]"]
    assert "==" not in (ROOT / "environment.yml").read_text(), "pyproject.toml is the one list of versions"


def test_every_package_and_data_file_of_the_code_is_installed():
    atlas = ROOT / "workflow" / "atlas"
    packages = {"atlas"} | {
        ".".join(("atlas", *path.parent.relative_to(atlas).parts)) for path in atlas.glob("*/**/__init__.py")
    }
    listed = PROJECT["tool"]["setuptools"]["packages"]
    packages |= {
        "kernels",
        "kernels.tuned",
        "kernels.tuned.timings",
    }  # of data alone; unlisted, setuptools warns of it at every install
    packages |= {f"kernels.{path.parent.name}" for path in (ROOT / "kernels").glob("*/__init__.py")}
    packages |= {".".join(path.parent.relative_to(ROOT).parts) for path in (ROOT / "proofs").rglob("__init__.py")}
    assert packages == set(listed)
    data = PROJECT["tool"]["setuptools"]["package-data"]
    for path in [
        *(p for p in atlas.rglob("*") if p.is_file()),
        *(ROOT / "kernels" / "tuned").rglob("*.json"),
        *(ROOT / "kernels" / "cuda").glob("*.cu*"),
    ]:
        if path.suffix not in (".py", ".pyc"):
            base = ROOT if ROOT / "kernels" in path.parents else atlas.parent
            package, name = ".".join(path.parent.relative_to(base).parts), path.name
            parent = next(p for p in (package, package.rpartition(".")[0]) if p in listed)
            patterns = data.get(parent, [])
            relative = path.relative_to(base / parent.replace(".", "/")).as_posix()
            assert any(path.match(pattern) for pattern in patterns), (
                f"{relative} is not in package-data of {parent}: {name}"
            )
