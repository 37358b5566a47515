"""Which kernels there are, and which of them call one another."""

import pytest
from atlas import catalog
from atlas.errors import AtlasError


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A kernels/ folder of a file, a package, and the folders beside the kernels."""
    files = {
        "family/__init__.py": "",
        "family/backward.py": "",
        "other.py": "OTHER = 1\n",
        "common/__init__.py": "",
        "common/part.py": "",
        "nn/__init__.py": "",
        "tuned/t4.json": "{}",
        "__init__.py": "",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(catalog, "KERNELS", tmp_path)
    return tmp_path


def test_a_kernel_is_a_file_or_a_package_and_what_families_share_is_none(folder):
    assert catalog.names() == ["family", "other"]
    assert [catalog.home(name) for name in catalog.names()] == ["kernels/family/", "kernels/other.py"]
    assert [path.name for path in catalog.files("family")] == ["__init__.py", "backward.py"]
    assert catalog.files("other") == [folder / "other.py"]


def test_a_kernel_s_functions_are_those_it_lists_and_else_the_one_of_its_name(folder):
    (folder / "family" / "__init__.py").write_text('__all__ = [\n    "product",\n    "sum",\n]\n')
    assert catalog.public("family") == ["product", "sum"]
    assert catalog.public("other") == ["other"]


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
        ("from kernels.common.part import run\n", ["other"]),
        ("from kernels.common import part\n", ["other"]),
        ("from kernels.other.public import product\n", ["other"]),
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
    (folder / "common" / "part.py").write_text("from kernels.other import product\n")
    (folder / "family" / "backward.py").write_text(text)
    assert catalog.called("family") == expected


def test_the_kernels_call_one_another_where_their_launches_do_and_nowhere_else():
    """linear's gradients are products of matmul; all others share launchers and helpers alone."""
    assert {name: catalog.called(name) for name in catalog.names() if catalog.called(name)} == {
        "matmul_epilogue": ["matmul"]
    }
