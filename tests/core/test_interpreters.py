"""A GPU's own interpreter: who names it, what it must have, and that commands of the GPU go on under it."""

import functools
import os
import subprocess
import sys

import pytest
import torch
from atlas import catalog
from atlas.compilation import older
from atlas.errors import AtlasError
from atlas.host import gpus, interpreters
from atlas.host.older_triton import Missing, strictly
from atlas.plan import software
from atlas.reading.config import load_gpus

BLOCKS = {"t4": {"target": {"cuda": 75}, "python": "/opt/t4/bin/python"}, "h200": {"target": {"cuda": 90}}}


@pytest.fixture(autouse=True)
def nothing_published(monkeypatch):
    monkeypatch.delenv(interpreters.VARIABLE, raising=False)


def interpreter(folder, answer):
    """A program that answers as an interpreter would, or prints how it was started where it is not asked."""
    path = folder / "python"
    path.write_text(f'#!/bin/sh\nif [ "$1" = -c ]; then cat <<\'END\'\n{answer}\nEND\nelse echo "$@"; env; fi\n')
    path.chmod(0o755)
    return path


def having(missing=(), **versions):
    found = {"python": "3.12.1", "torch": "2.6.0+cu124", "triton": "3.2.0"} | versions
    return str([found, list(missing)]).replace("'", '"').replace("None", "null")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, {"t4": "/opt/t4/bin/python"}),
        ({"t4": "/other/python"}, {"t4": "/other/python"}),
        ({"t4": None}, {}),
        ({"h200": "/opt/nightly/bin/python"}, {"t4": "/opt/t4/bin/python", "h200": "/opt/nightly/bin/python"}),
    ],
)
def test_the_config_goes_before_the_block(given, expected):
    found = interpreters.settle(BLOCKS, given, ["t4", "h200"], "config.yaml")
    assert {name: str(path) for name, path in found.items()} == expected


def test_a_gpu_without_a_block_is_told():
    with pytest.raises(
        AtlasError, match=r"config.yaml: key 'python.t5': no such block in gpus.yaml; there are t4, h200"
    ):
        interpreters.settle(BLOCKS, {"t5": "/x"}, ["t4"], "config.yaml")


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (having(triton=None), r"lacks triton; run .*python -m pip install triton$"),
        (having(["yaml", "rich"], torch=None), r"lacks torch, yaml, rich; run .* -m pip install torch pyyaml rich$"),
        (having(triton="3.1.0"), r"has triton 3.1.0; make it an environment of 3.2 or later"),
        (having(torch="2.5.1+cu124"), r"has torch 2.5.1\+cu124; make it"),
        (having(python="3.9.2"), r"has python 3.9.2; make it an environment of 3.11 or later"),
        ("hello", r"is no Python that can be used"),
    ],
)
def test_an_interpreter_that_will_not_do_is_told_with_the_remedy(tmp_path, answer, said):
    with pytest.raises(AtlasError, match=f"^gpus.yaml: key 't4.python': {tmp_path}/python {said}"):
        interpreters.versions(interpreter(tmp_path, answer), "gpus.yaml: key 't4.python'")


def test_one_that_is_not_there_is_told(tmp_path):
    with pytest.raises(
        AtlasError, match=r"^k: .*/gone cannot be run: No such file or directory; make that environment"
    ):
        interpreters.versions(tmp_path / "gone", "k")


def test_this_interpreter_will_do(monkeypatch):
    import triton

    assert interpreters.versions(interpreters.Path(sys.executable), "k")["triton"] == triton.__version__


def test_versions_are_a_reason_to_measure_again_and_the_path_is_none(tmp_path, monkeypatch):
    monkeypatch.setenv(interpreters.VARIABLE, "")  # so that it is put back
    places = {"t4": gpus.Place(gpus.HERE)}
    digests = []
    for name, triton in (("a", "3.2.0"), ("b", "3.2.0"), ("c", "3.3.1")):
        (tmp_path / name).mkdir()
        path = interpreter(tmp_path / name, having(triton=triton))
        blocks = {"t4": {"python": str(path)}}
        found = software.versions({}, blocks, places, "config.yaml")
        digests.append(software.by_versions(blocks, found))
        assert os.environ[interpreters.VARIABLE] == f"t4={path}"
    assert digests[0] == digests[1] != digests[2]


def test_a_node_of_a_cluster_is_not_asked(monkeypatch):
    monkeypatch.setenv(interpreters.VARIABLE, "")
    assert software.versions({}, BLOCKS, {"t4": gpus.Place(gpus.CLUSTER)}, "config.yaml") == {}


def test_a_command_of_the_gpu_goes_on_under_its_interpreter_and_others_do_not(tmp_path):
    path = interpreter(tmp_path, having())
    environment = os.environ | {interpreters.VARIABLE: f"t4={path}", "VIRTUAL_ENV": "/own", "PYTHONHOME": ""}
    run = functools.partial(subprocess.run, env=environment, capture_output=True, text=True, check=False)
    words = ["-m", "atlas", "build", "softmax", "--gpu=t4", "--jobs", "2"]
    handed, _, rest = run([sys.executable, *words]).stdout.partition("\n")
    assert handed == " ".join(words)
    told = dict(line.partition("=")[::2] for line in rest.splitlines())
    assert told[interpreters.VARIABLE] == "" and "VIRTUAL_ENV" not in told, "it hands nothing over itself"
    assert told["PATH"].startswith(f"{tmp_path}:")
    assert (
        "no such kernel" not in handed
        and "unknown kernel" in run([sys.executable, "-m", "atlas", "build", "no_such", "--gpu", "h200"]).stderr
    )


def test_the_blocks_file_may_name_one_and_a_command_by_hand_finds_it(tmp_path):
    text = interpreters.ROOT.joinpath("config/gpus.yaml").read_text()
    (tmp_path / "gpus.yaml").write_text(text.replace("t4:\n", "t4:\n  python: ~/t4/bin/python\n"))
    assert load_gpus(tmp_path / "gpus.yaml")["t4"]["python"] == "~/t4/bin/python"
    found = interpreters.of("t4", str(tmp_path / "gpus.yaml"))
    assert found == interpreters.Path.home() / "t4/bin/python"
    assert interpreters.of("h200", str(tmp_path / "gpus.yaml")) is None


def test_what_is_missing_can_be_imported_and_decorate():
    gluon = Missing("triton.experimental.gluon")

    @gluon.jit
    def kernel():
        return 1

    @gluon.constexpr_function
    def helper():
        return 1

    assert isinstance(kernel, Missing) and helper() == 1
    assert gluon.language.constexpr.__name__ == "triton.experimental.gluon.language.constexpr"
    assert not hasattr(gluon, "__wrapped__") and not isinstance(1, gluon.TensorDescriptor)
    for use in (lambda: kernel[1](2), lambda: 3 // gluon.WIDTH):
        with pytest.raises(NotImplementedError, match=r"^Triton [\d.]+ has no triton.experimental.gluon"):
            use()
    gluon.language.Layout([1])
    with strictly(), pytest.raises(NotImplementedError, match=r"has no triton.experimental.gluon.language.Layout$"):
        gluon.language.Layout([1])


def test_a_variant_that_this_triton_does_not_compile_says_so_and_others_are_as_they_were(monkeypatch):
    declaration = catalog.load("vector_add")
    (variant,) = declaration.forward.variants
    gpu = gpus.gpu("t4", load_gpus()["t4"])
    fp32, bf16 = (next(case for case in declaration.cases(gpu) if case.dtype == dtype) for dtype in ("fp32", "bf16"))
    launch, handles = variant.launch, variant.handles

    def launched(config, x, **inputs):
        if x.dtype == torch.bfloat16:
            Missing("triton.tools.tensor_descriptor.TensorDescriptor")(x)
        return launch(config=config, x=x, **inputs)

    try:
        object.__setattr__(variant, "launch", launched)
        older.mark(declaration)
        assert variant.unsupported(fp32, gpu) == ""
        assert "does not compile it: NotImplementedError: Triton" in variant.unsupported(bf16, gpu)
    finally:
        object.__setattr__(variant, "launch", launch)
        object.__setattr__(variant, "handles", handles)
