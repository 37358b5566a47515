"""What the extension in C++ is told of a call, and when there is none."""

import types

import pytest
import torch
from atlas.operators import (
    building,
    direct,
    native,
)
from atlas.operators.native import Extension, kept_by
from atlas.operators.recording import Described, Geometry, Launch, Source, Unrepeatable, VaryingInput
from operator_doubles import a_map, replace


def setup(ctx, inputs, output):
    x, ctx.scale, ctx.seed = inputs
    ctx.save_for_backward(x, None, output)
    ctx.set_materialize_grads(False)


def test_what_a_context_keeps_is_told_by_where_it_stands():
    x, y = torch.randn(3, requires_grad=True), torch.randn(3)
    kept = kept_by(setup, (x, 0.5, 7), y, varying={2})
    assert kept == (((1, 0), (0, 0), (2, 0)), 0, False, (2,), (True, False, False), ({"scale": 0.5}, ("seed",)))


@pytest.mark.parametrize(
    ("keeps", "said"),
    [
        (lambda ctx, inputs, output: ctx.save_for_backward(inputs[0] + 1), "neither an argument nor an output"),
        (lambda ctx, inputs, output: setattr(ctx, "x", inputs[0]), "a Parameter as x"),
        (lambda ctx, inputs, output: setattr(ctx, "all", inputs[1:]), "a Varying as all"),
    ],
    ids=["another tensor", "a tensor as an attribute", "what varies among others"],
)
def test_a_context_that_keeps_anything_else_is_left_to_python(keeps, said):
    with pytest.raises(Unrepeatable, match=said):
        kept_by(keeps, (torch.nn.Parameter(torch.randn(3)), 7), torch.randn(3), varying={1})


class CudaLauncher:
    launch_pdl = global_scratch_size = profile_scratch_size = 0
    launch_cooperative_grid = False


CudaLauncher.__module__ = "triton.backends.nvidia.driver"


def compiled(kinds, run=None, metadata=(4, 1, 512)):
    return types.SimpleNamespace(
        run=run or CudaLauncher(), packed_metadata=metadata, function=99, src=types.SimpleNamespace(signature=kinds)
    )


KINDS = {"x": "*fp32", "out": "*fp32", "n": "i32", "eps": "fp32", "BLOCK": "constexpr", "seed": "i64"}
VALUES = (Source(False, 0, 8), Source(True, 0), -3, 0.5, 128, VaryingInput(2))


@pytest.fixture
def driver(monkeypatch):
    """A driver that tells these sizes of a kernel's parameters."""
    sizes = [8, 8, 4, 4, 8, 8, 8]

    def ask(function, number, offset, size):
        assert function == 99
        if number >= len(sizes):
            return 1
        size._obj.value = sizes[number]
        return 0

    monkeypatch.setattr(direct, "_driver", lambda: types.SimpleNamespace(cuFuncGetParamInfo=ask))
    return sizes


def test_a_launch_is_told_in_numbers(driver):
    geometry = Geometry((4, 6), (6, 1), torch.float16)
    allocations, launches, outputs, single, kept = direct.direct(
        [Launch(compiled(KINDS), (3, 1, 1), VALUES)], {0: geometry}, [(Source(True, 0, 4), geometry)], True, ()
    )
    ((of_torch, (function, grid, threads, shared, cooperative, early, cluster, slots, maps), dropped),) = launches
    assert (function, grid, threads, shared) == (99, (3, 1, 1), 128, 512)
    assert not cooperative and not early and cluster == 1
    assert not of_torch and not maps and not dropped
    assert slots == ((0, 0, 8, 0), (1, 0, 0, 0), (3, 0, 0, 0xFFFFFFFD), (3, 0, 0, 0x3F000000), (2, 2, 0, 0),
                     (3, 0, 0, 0), (3, 0, 0, 0))  # fmt: skip
    assert allocations == (((4, 6), (6, 1), torch.float16, False),)
    assert outputs == ((0, False, (4, 6), (6, 1), 2),) and single and not kept


@pytest.mark.parametrize(
    ("attribute", "told"),
    [("launch_cooperative_grid", (True, False)), ("launch_pdl", (False, True))],
    ids=["cooperative", "early"],
)
def test_how_a_kernel_is_launched_is_told(attribute, told, driver):
    run = CudaLauncher()
    setattr(run, attribute, True)
    _, launches, *_ = direct.direct([Launch(compiled(KINDS, run), (1, 1, 1), VALUES)], {}, [], True, ())
    assert launches[0][1][4:6] == told


def test_programs_are_told_one_by_one_and_the_size_of_their_clusters(driver):
    clustered = Launch(compiled(KINDS, metadata=(4, 3, 512)), (5, 2, 1), VALUES)
    told = direct.direct([clustered], {}, [], True, ())[1][0][1]
    assert told[1] == (15, 2, 1) and told[6] == 3


@pytest.mark.parametrize(
    "other",
    [
        {"run": types.SimpleNamespace()},
        {"metadata": (4, 2, 512, 0)},
        {"kinds": KINDS | {"x": "tensordesc<fp32[4,4]>"}},
        {"kinds": KINDS | {"n": "i64"}},  # the driver says 4 bytes
    ],
    ids=["another launcher", "another Triton's metadata", "a descriptor", "another size"],
)
def test_what_is_not_known_for_certain_is_launched_by_triton(other, driver):
    with pytest.raises(direct.Indirect):
        direct.direct([Launch(compiled(**{"kinds": KINDS} | other), (1, 1, 1), VALUES)], {}, [], True, ())


def test_what_is_not_returned_is_allocated_at_once(driver):
    row, square = Geometry((3,), (1,), torch.float32), Geometry((4, 6), (6, 1), torch.float32)
    values = (Source(True, 0, 8), Source(True, 2), -3, 0.5, 128, VaryingInput(2))
    two = [Launch(compiled(KINDS), (1, 1, 1), given) for given in (values, (Source(True, 1), *values[1:]))]
    allocations, launches, outputs, _, _ = direct.direct(
        two, {0: row, 1: square, 2: square}, [(Source(True, 1, 4), row)], True, (),
    )  # fmt: skip
    assert allocations == (((4, 6), (6, 1), torch.float32, False), ((1024,), (1,), torch.uint8, False))
    assert [launch[1][7][:2] for launch in launches] == [
        ((1, 1, 8, 0), (1, 1, 512, 0)), ((1, 0, 0, 0), (1, 1, 512, 0))
    ]  # fmt: skip
    assert [output[0] for output in outputs] == [0] and outputs[0][4] == 1


class Maps(dict):
    def __missing__(self, address):
        return address


def test_a_map_is_a_template_where_the_driver_makes_another_of_it(monkeypatch):
    monkeypatch.setattr(direct, "_driver", lambda: types.SimpleNamespace(cuTensorMapReplaceAddress=replace))
    monkeypatch.setattr(direct, "_bytes", a_map)
    assert direct._template(Maps())[16:24] == direct._ONE.to_bytes(8, "little")
    for other in (lambda address: a_map(3), lambda address: a_map(address)[::-1]):
        monkeypatch.setattr(direct, "_bytes", other)
        with pytest.raises(direct.Indirect):
            direct._template(Maps())
    monkeypatch.setattr(direct, "_driver", lambda: types.SimpleNamespace())  # before CUDA 12
    with pytest.raises(direct.Indirect):
        direct._template(Maps())
    monkeypatch.undo()
    with pytest.raises(direct.Indirect):
        direct._bytes(torch.empty(1))  # another Triton's


def test_a_descriptor_becomes_a_map_sizes_and_strides(driver, monkeypatch):
    driver[:] = [128, 4, 4, 8, 8, 8, 8]
    form = types.SimpleNamespace(shape=(4, 6), strides=(6, 1))
    monkeypatch.setattr(direct, "unwrapped", lambda run, described: (run, [({}, (4, 6, 6, 1))]))
    monkeypatch.setattr(direct, "_template", lambda filled: a_map(0))
    described = Launch(compiled({"x": "tensordesc<fp32[4,6]>"}), (1, 1, 1), (Described(Source(False, 1, 32), form),))
    slots, maps = direct.direct([described], {}, [], True, ())[1][0][1][-2:]
    assert slots == ((4, 0, 0, 0), (3, 0, 0, 4), (3, 0, 0, 6), (3, 0, 0, 6), (3, 0, 0, 1), (3, 0, 0, 0), (3, 0, 0, 0))
    assert maps == (((0, 1, 32, 0), a_map(0)),)


def test_without_a_compiler_python_makes_all_calls(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(building, "compiler", lambda: None)
    monkeypatch.setenv(native.VARIABLE, "wait")
    extension = Extension()
    assert not extension.ready(torch.device("cpu"))
    assert "install g++" in extension.reason and extension.module is None


def test_the_environment_may_do_without(monkeypatch):
    monkeypatch.setenv(native.VARIABLE, "off")
    extension = Extension()
    assert not extension.ready(torch.device("cpu")) and extension.reason == "KERNEL_ATLAS_NATIVE=off"
    monkeypatch.setenv(native.VARIABLE, "never")
    with pytest.raises(ValueError, match="one of auto, wait, off: 'never'"):
        Extension().wanted(torch.device("cpu"))


def test_a_compilation_that_fails_says_what_the_compiler_said(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    failing = tmp_path / "g++"
    failing.write_text("#!/bin/sh\necho 'host.cpp:1: error: no such thing' >&2\nexit 3\n")
    failing.chmod(0o755)
    monkeypatch.setattr(building, "compiler", lambda: str(failing))
    with pytest.raises(building.Unbuilt, match="ended 3: host.cpp:1: error: no such thing"):
        building.build()
    assert building.built() is None
