"""What a kernel's records are true of: its file, and all it builds upon."""

import pytest
from atlas import catalog
from atlas.errors import AtlasError


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A kernels/ folder of a family that builds upon another and upon a file for one architecture."""
    (tmp_path / "hopper").mkdir()
    (tmp_path / "family.py").write_text(
        "import torch\nfrom kernels.other import OTHER\nimport kernels.hopper.part as part\n"
    )
    (tmp_path / "other.py").write_text("OTHER = 1\n")
    (tmp_path / "hopper" / "part.py").write_text("import kernels.other\nPART = 1\n")
    monkeypatch.setattr(catalog, "KERNELS", tmp_path)
    return tmp_path


def test_a_file_in_a_folder_is_no_kernel(folder):
    assert catalog.names() == ["family", "other"]


@pytest.mark.parametrize(("name", "owner"), [("linear", "matmul_epilogue"), ("int_mm", "matmul_8bit")])
def test_a_public_function_given_for_a_kernel_is_answered_with_the_kernel(name, owner):
    with pytest.raises(AtlasError, match=f"unknown kernel '{name}'.*a function of the kernel '{owner}'"):
        catalog.check_name(name)


PRODUCT = '__all__ = ["product", "product_of_three"]\n'


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("from kernels.other import _helper, product\n", ["other"]),
        ("from kernels.other import (\n    _helper,  # (no config)\n    product_of_three as triple,\n)\n", ["other"]),
        ("def late():\n    from kernels.other import product\n", ["other"]),
        ("from kernels._part import run\n", ["other"]),
        ("import kernels.hopper.part as part\n", ["other"]),
        ("from kernels.between import between\n", ["between", "other"]),
        ("from kernels.between import _launch\n", []),
        ("from kernels.other import _launch, products\n", []),
        ("from kernels.other import launch as product\n", []),
        ("import kernels.other\nproduct = kernels.other._helper\n", []),
        ("from kernels.family import family\n", []),
    ],
)
def test_a_kernel_calls_those_whose_public_functions_it_or_its_parts_import(folder, text, expected):
    (folder / "other.py").write_text(PRODUCT)
    (folder / "between.py").write_text("from kernels.other import product\n")
    for part in ("_part.py", "hopper/part.py"):
        (folder / part).write_text("from kernels.other import product\n")
    (folder / "family.py").write_text(text)
    assert catalog.called("family") == expected


def test_the_kernels_call_one_another_where_their_launches_do_and_nowhere_else():
    """linear's gradients are products of matmul; all others share launchers and helpers alone."""
    assert {name: catalog.called(name) for name in catalog.names() if catalog.called(name)} == {
        "matmul_epilogue": ["matmul"]
    }
