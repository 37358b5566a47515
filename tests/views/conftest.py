"""Scenes: results folders filled with simulated documents, and the views made of them."""

import shutil
from collections.abc import Callable
from pathlib import Path

import once
import pytest
import synthetic
from atlas import catalog, cli
from atlas.results import documents

KERNELS = (synthetic.KERNELS[1], synthetic.KERNELS[2])
"""Softmax and matmul: one bound by memory with two directions, one by arithmetic with tl.dot."""


@pytest.fixture
def kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[synthetic.Kernel, ...]:
    """Two kernels whose files exist in a catalog of this test's own."""
    monkeypatch.setattr(catalog, "KERNELS", synthetic.use_catalog(tmp_path / "kernels", KERNELS))
    return KERNELS


@pytest.fixture
def atlas() -> Callable[..., int]:
    """``atlas("tables", results)`` runs a command as its user would; returns the exit status."""
    return lambda command, results: cli.main([command, "--results", str(results)])


NAMES = ("none", "one", "five")
"""The scenes: of nothing, of one measured GPU among built ones, and of five GPUs of every kind."""


@pytest.fixture(scope="session")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Documents and tables of each scene."""
    root = once.made(tmp_path_factory, "scenes", _documents_and_tables)
    return {name: root / name for name in NAMES}


def _documents_and_tables(root: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(catalog, "KERNELS", synthetic.use_catalog(root / "kernels", KERNELS))
        made = {name: root / name for name in NAMES}
        synthetic.write_everything(made["none"], kernels=(), functional=False)
        synthetic.write_everything(made["one"], KERNELS, measured=["h200"], built=["a100", "t4"])
        used = {"configs": "autotune of this run", "sha256": "0123456789ab" + 52 * "0"}
        calling = synthetic.benchmark(KERNELS[1], "h200") | {"calls": {"softmax": used}}
        synthetic.write(made["one"], "measured", calling)
        synthetic.write_everything(made["five"], KERNELS, measured=["h200"], recorded=["a100", "h100", "l40s", "t4"])
        synthetic.write(made["five"], "measured", synthetic.validate(KERNELS[0], "h200", wrong="naive"))
        for folder, gpu, worst in (("measured", "h200", 0.031), ("recorded", "a100", 0.015)):
            documents.write(
                made["five"] / folder / gpu / "proof" / "repeatability.json", synthetic.proof(gpu, worst=worst)
            )
        for results in made.values():
            assert cli.main(["tables", "--results", str(results)]) == 0


@pytest.fixture(scope="session")
def pages(tmp_path_factory: pytest.TempPathFactory, scenes: dict[str, Path]) -> dict[str, Path]:
    """The same folders with figures and report."""
    once.made(tmp_path_factory, "pages", lambda _: _figures_and_reports(scenes))
    return scenes


def _figures_and_reports(scenes: dict[str, Path]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(catalog, "KERNELS", scenes["none"].parent / "kernels")
        for name, results in scenes.items():
            if name == "five":  # half a minute to draw, and a page takes any: the tests of figures draw what they read
                shutil.copytree(scenes["one"] / "figures", results / "figures")
            else:
                assert cli.main(["figures", "--results", str(results)]) == 0
            assert cli.main(["report", "--results", str(results)]) == 0
