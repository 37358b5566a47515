"""gelu, silu and swiglu on the interpreter: values, layouts, gradients, torch.compile, refusals."""

import pytest
import torch
from atlas.declaration import case
from atlas.declaration.hardware import INTERPRETER
from atlas.host.gpus import gpu
from atlas.reading.config import load_gpus
from defaults_under_test import assert_defaults_fit
from torch.nn import functional

from kernels import activation, gelu, silu, swiglu
from kernels.activation import DECLARATION

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
GPUS = {name: gpu(name, block) for name, block in load_gpus().items() if block.get("build", "match" in block)}
UNARY = {
    "silu": (silu, functional.silu),
    "gelu": (gelu, functional.gelu),
    "gelu_tanh": (
        lambda x: gelu(x, approximate="tanh"),
        lambda x: functional.gelu(x, approximate="tanh"),
    ),
}


def randn(*shape, dtype=torch.float32, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def exact_swiglu(gate, up):
    return functional.silu(gate.double()) * up.double()


def assert_close(found, expected, dtype=torch.float32):
    """By twice the unit roundoff of the dtype: the interpreter truncates where GPUs round to bf16."""
    tolerance = {torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 1e-2}[dtype]
    assert found.dtype == dtype
    torch.testing.assert_close(found.double(), expected.double(), rtol=tolerance, atol=tolerance, equal_nan=True)


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
@pytest.mark.parametrize("kind", UNARY)
def test_values_and_gradients_agree_with_float64_from_minus_12_to_12(kind, dtype):
    ours, torchs = UNARY[kind]
    x, dy = torch.linspace(-12, 12, 2001).to(dtype).requires_grad_(), randn(2001, dtype=dtype)
    exact = x.detach().double().requires_grad_()
    out, expected = ours(x), torchs(exact)
    out.backward(dy)
    expected.backward(dy.double())
    assert_close(out, expected, dtype)
    assert_close(x.grad, exact.grad, dtype)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_the_tail_of_16_bit_gelu_keeps_its_relative_accuracy(dtype):
    # What 1 + erf leaves of a value near -1 has no digit left at -5.6; here it is closer than a rounding to 16 bits.
    x = torch.linspace(-4, -1, 301).to(dtype)
    expected = functional.gelu(x.double())
    roundoff = {torch.float16: 2**-11, torch.bfloat16: 2**-7}[dtype]
    relative = (gelu(x).double() - expected).abs() / expected.abs()
    # fp16's numbers lie farther apart below 6e-5
    assert (relative * (expected.abs() > 6e-5)).max() <= 1.2 * roundoff


@pytest.mark.parametrize("kind", UNARY)
def test_nan_and_infinities_come_out_as_in_torch(kind):
    ours, torchs = UNARY[kind]
    for dtype in DTYPES.values():
        x = torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 300.0, -300.0], dtype=dtype)
        assert_close(ours(x), torchs(x.double()), dtype)


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
def test_swiglu_and_its_gradients_agree_with_float64(dtype):
    gate, up, dy = (randn(5, 131, dtype=dtype, seed=seed) for seed in range(3))
    leaves = [t.clone().requires_grad_() for t in (gate, up)]
    exact = [t.double().requires_grad_() for t in (gate, up)]
    out, expected = swiglu(*leaves), exact_swiglu(*exact)
    assert_close(out, expected, dtype)
    out.backward(dy)
    expected.backward(dy.double())
    for found, reference in zip(leaves, exact, strict=True):
        assert_close(found.grad, reference.grad, dtype)


@pytest.mark.parametrize("n", [24, 134, 131], ids=["halves on 16 bytes", "halves on 8", "odd halves"])
def test_halves_of_one_tensor_are_read_where_they_are_and_give_one_gradient(n, monkeypatch):
    both, dy = randn(2, 3, 2 * n), randn(2, 3, n, seed=1)
    monkeypatch.setattr(torch.Tensor, "contiguous", lambda self: pytest.fail("copied"))
    assert_close(swiglu(both), exact_swiglu(*both.chunk(2, -1)))
    assert_close(swiglu(*both.chunk(2, -1)), exact_swiglu(*both.chunk(2, -1)))
    monkeypatch.undo()
    exact = both.double().requires_grad_()
    exact_swiglu(*exact.chunk(2, -1)).backward(dy.double())
    for ours in (lambda x: swiglu(x), lambda x: swiglu(*x.chunk(2, -1))):
        leaf = both.clone().requires_grad_()
        ours(leaf).backward(dy)
        assert_close(leaf.grad, exact.grad)


COMPILE = """
import json, re, sys
from atlas.compilation.offline import compile_only
from atlas.declaration import case
from atlas.host.gpus import gpu
from atlas.host.runtime import meta_inputs
from atlas.reading.config import load_gpus
from kernels.activation import DECLARATION

on, found = gpu("h200", load_gpus()["h200"]), {}
for n in (384, 386, 388, 387):
    problem = case("bf16", kind="swiglu", strided=True, m=4096, n=n)
    for direction, work in DECLARATION.passes.items():
        variant = work.variant("rows")
        with compile_only(on) as requests:
            variant.launch(**meta_inputs(work, problem), config=variant.default(problem, on))
        ptx = requests[0].kernel.asm["ptx"]
        accesses = re.findall(r"(?:ld|st)\\.global\\S*?(?:\\.v(\\d))?\\.b(\\d+)", ptx)
        found[f"{n} {direction}"] = sorted({int(many or 1) * int(bits) for many, bits in accesses})
json.dump(found, sys.stdout)
"""


def test_halves_are_read_by_the_widest_vectors_that_their_rows_consist_of(printed_apart):
    bits = {384: 128, 386: 32, 388: 64, 387: 16}
    found = printed_apart(COMPILE)
    assert found == {f"{n} {direction}": [bits[n]] for n in bits for direction in ("forward", "backward")}


def test_a_gate_with_gaps_goes_with_an_up_without():
    gate, up = randn(7, 64)[:, :40], randn(7, 40, seed=1)
    assert_close(swiglu(gate, up), exact_swiglu(gate, up))
    assert_close(swiglu(up, gate), exact_swiglu(up, gate))
    assert_close(swiglu(up, up), exact_swiglu(up, up))  # one memory for both


def test_permuted_tensors_keep_their_layout_and_other_layouts_are_read_rightly():
    images = randn(2, 5, 3, 4).to(memory_format=torch.channels_last)
    assert_close(silu(images), functional.silu(images.double()))
    assert silu(images).stride() == images.stride()
    base = randn(40, 30)
    for x in (base.t(), base[::3], base[:, ::2], base[:, 3:17], base[:, None].expand(40, 2, 30), base[3, 4]):
        assert_close(silu(x), functional.silu(x.double()))
        assert_close(swiglu(x, x), exact_swiglu(x, x))


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 4)], ids=str)
def test_empty_inputs_give_empty_results_and_gradients(shape):
    x = torch.empty(shape, requires_grad=True)
    for out in (silu(x), gelu(x), swiglu(x, x), swiglu(x)):
        out.sum().backward()
        assert not out.numel() and x.grad.shape == shape


@pytest.mark.parametrize("kind", UNARY)
def test_second_derivatives_agree_with_float64_autograd(kind):
    ours, torchs = UNARY[kind]
    x, dy, v = randn(40), randn(40, seed=1), randn(40, seed=2)

    def second(function, x, dy, v):
        x = x.clone().requires_grad_()
        (first,) = torch.autograd.grad(function(x), x, dy, create_graph=True)
        return torch.autograd.grad(first, x, v)[0]

    assert_close(second(ours, x, dy, v), second(torchs, x.double(), dy.double(), v.double()))


def test_second_derivatives_of_swiglu_agree_with_float64_autograd():
    def second(function, gate, up):
        gate, up = gate.clone().requires_grad_(), up.clone().requires_grad_()
        out = function(gate, up)
        first = torch.autograd.grad(out, (gate, up), torch.ones_like(out), create_graph=True)
        return torch.autograd.grad(first[0].sum() + 2 * first[1].sum(), (gate, up))

    gate, up = randn(4, 9), randn(4, 9, seed=1)
    pairs = zip(second(swiglu, gate, up), second(exact_swiglu, gate.double(), up.double()), strict=True)
    for found, expected in pairs:
        assert_close(found, expected)


def test_compiled_functions_are_one_graph_and_agree_forward_and_backward():
    def block(x, both):
        return gelu(x, approximate="tanh").sum() + (swiglu(silu(x), gelu(x)) * swiglu(both)).sum()

    compiled = torch.compile(block, fullgraph=True, backend="aot_eager")
    found, expected = [], []
    for function, kept in ((compiled, found), (block, expected)):
        x, both = randn(3, 20).requires_grad_(), randn(3, 40, seed=1).requires_grad_()
        out = function(x, both)
        out.backward()
        kept += [out.detach(), x.grad, both.grad]
    for ours, eager in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, eager)


def test_operators_keep_torchs_rules():
    x, up, dy = randn(3, 16), randn(3, 16, seed=1), randn(3, 16, seed=2)
    gated = [t.clone().requires_grad_() for t in (x, up)]
    torch.library.opcheck(activation._forward.operator.op, (x.clone().requires_grad_(), "gelu"))
    torch.library.opcheck(activation._forward.operator.op, (x, "swiglu"))
    torch.library.opcheck(activation._gated.operator.op, tuple(gated))
    torch.library.opcheck(activation._gated_backward.op, (x, up, dy))
    torch.library.opcheck(activation._backward.op, (x, dy, "silu"))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: silu(torch.ones(3, dtype=torch.float64)), TypeError, "silu takes .*float64"),
        (lambda: gelu(torch.ones(3, dtype=torch.int32)), TypeError, "gelu takes .*int32"),
        (lambda: gelu(torch.ones(3), approximate="erf"), ValueError, "approximate"),
        (lambda: swiglu(torch.ones(3), torch.ones(3).half()), TypeError, "one dtype"),
        (lambda: swiglu(torch.ones(3).long(), torch.ones(3).long()), TypeError, "int64"),
        (lambda: swiglu(torch.ones(2, 3), torch.ones(2)), ValueError, "can be broadcast"),
        (lambda: swiglu(torch.ones(2, 3)), ValueError, "even number of columns"),
        (lambda: swiglu(torch.tensor(1.0)), ValueError, "even number of columns"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_every_config_gives_the_same_results():
    for problem in DECLARATION.edge_cases:
        if problem.dtype != "fp16" or (problem["kind"], problem["m"]) not in (("swiglu", 37), ("swiglu", 5)):
            continue  # the two with a tail, flat and in rows
        for work in DECLARATION.passes.values():
            inputs = work.inputs(problem, "cpu", torch.Generator().manual_seed(1))
            variant = work.preferred(problem, INTERPRETER)
            found = [variant.launch(**inputs, config=config) for config in variant.configs(problem, INTERPRETER)]
            for other in found[1:]:
                torch.testing.assert_close(other, found[0], rtol=0, atol=0)


@pytest.mark.parametrize("name", GPUS)
def test_defaults_are_points_of_the_space_that_fit(name):
    assert_defaults_fit(DECLARATION, GPUS[name])


@pytest.mark.parametrize("strided", [False, True])
def test_untuned_threads_take_one_vector_but_of_many_elements_of_gelu(strided):
    """Gelu is bound by instructions, and its gradient by memory, as all others."""
    for kind, m, vectors in (("gelu", 8192, 2), ("gelu", 32, 1), ("silu", 8192, 1)):
        problem = case("bf16", kind=kind, strided=strided, m=m, n=16384)
        for direction, work in DECLARATION.passes.items():
            config = work.preferred(problem, GPUS["h200"]).default(problem, GPUS["h200"])
            taken = vectors if direction == "forward" else 1
            assert config["BLOCK"] == taken * 8 * 32 * config["num_warps"], (kind, m, direction)


def test_gradients_of_few_elements_in_rows_that_lie_apart_take_half_a_vector_a_thread():
    sizes = {"few": ("bf16", 5, 1408), "nearly as many as SMs": ("fp16", 8, 16384), "more": ("bf16", 9, 16384),
             "few, odd": ("bf16", 4, 5803), "few in 32 bits": ("fp32", 5, 1408)}  # fmt: skip
    blocks = {"few": (1024, 512), "nearly as many as SMs": (1024, 512), "more": (1024, 1024), "few, odd": (512, 512),
              "few in 32 bits": (512, 512)}  # fmt: skip
    for name, (dtype, m, n) in sizes.items():
        problem = case(dtype, kind="swiglu", strided=True, m=m, n=n)
        for block, work in zip(blocks[name], (DECLARATION.forward, DECLARATION.backward), strict=True):
            config = work.variant("rows").default(problem, GPUS["h200"])
            assert config == {"BLOCK": block, "num_warps": 4}, name
            assert config in list(work.variant("rows").configs(problem, GPUS["h200"])), name


@pytest.mark.parametrize("dynamic", [False, True], ids=["", "of unknown sizes"])
@pytest.mark.parametrize("lie", [lambda x: x[:, :10], lambda x: x.t(), lambda x: x[:, ::2]])
def test_layouts_compile_into_one_graph(lie, dynamic):
    """Sorting strides that torch.compile does not know broke the graph."""
    x = lie(torch.randn(8, 20, generator=torch.Generator().manual_seed(0)))
    compiled = torch.compile(lambda x: gelu(x), fullgraph=True, dynamic=dynamic, backend="aot_eager")
    assert torch.equal(compiled(x), gelu(x))
