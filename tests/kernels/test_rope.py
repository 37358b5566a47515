"""rope and rope_qk on the interpreter: both layouts of pairs, layouts in memory, tables, gradients, in place."""

import pytest
import torch
from atlas.declaration.hardware import INTERPRETER
from atlas.host.gpus import gpu
from atlas.reading.config import load_gpus
from defaults_under_test import assert_default_fits

from kernels import rope, rope_qk
from kernels.rope import DECLARATION, in_place_operator, rope_operator, rope_qk_operator

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
GPUS = {name: gpu(name, block) for name, block in load_gpus().items() if block.get("build", "match" in block)}
LAYOUTS = [(i, h) for i in (False, True) for h in (False, True)]
LAYOUT_IDS = [f"{'pairs' if i else 'halves'}-{'heads first' if h else 'tokens first'}" for i, h in LAYOUTS]


def randn(*shape, dtype=torch.float32, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def tables(seq, half, dtype=torch.float32, batch=None):
    """Cosine and sine of angles of which no two are alike."""
    angles = randn(*(() if batch is None else (batch,)), seq, half, seed=9).double() * 3
    return angles.cos().to(dtype), angles.sin().to(dtype)


def rotated(x, cos, sin, interleaved=False, heads_first=False):
    """By complex numbers, in float64, from tables of half the width."""
    turn = torch.complex(cos.double(), sin.double()).unsqueeze(-3 if heads_first else -2)
    half = x.shape[-1] // 2
    first, second = (x[..., ::2], x[..., 1::2]) if interleaved else (x[..., :half], x[..., half:])
    out = torch.complex(first.double(), second.double()) * turn
    parts = (out.real, out.imag)
    return torch.stack(parts, -1).flatten(-2) if interleaved else torch.cat(parts, -1)


def assert_close(found, expected, dtype=torch.float32):
    """By twice the unit roundoff of the dtype: the interpreter truncates where GPUs round to bf16."""
    tolerance = {torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 1e-2}[dtype]
    assert found.dtype == dtype
    torch.testing.assert_close(found.double(), expected.double(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
@pytest.mark.parametrize(("interleaved", "heads_first"), LAYOUTS, ids=LAYOUT_IDS)
def test_values_and_gradients_agree_with_complex_rotation_in_float64(interleaved, heads_first, dtype):
    q, k = randn(2, 5, 5, 24, dtype=dtype), randn(2, 5, 5, 24, dtype=dtype, seed=1)
    k = k[:, :2] if heads_first else k[:, :, :2]  # fewer heads; as many heads as tokens in q
    cos, sin = tables(5, 12, dtype)
    flags = {"interleaved": interleaved, "heads_first": heads_first}
    leaves = [t.clone().requires_grad_() for t in (q, k)]
    exact = [t.double().requires_grad_() for t in (q, k)]
    found = rope_qk(*leaves, cos, sin, **flags)
    expected = [rotated(t, cos, sin, **flags) for t in exact]
    upstream = [randn(*t.shape, dtype=dtype, seed=7) for t in (q, k)]
    for ours, reference in zip(found, expected, strict=True):
        assert_close(ours, reference, dtype)
    torch.autograd.backward(found, upstream)
    torch.autograd.backward(expected, [dy.double() for dy in upstream])
    for ours, reference in zip(leaves, exact, strict=True):
        assert_close(ours.grad, reference.grad, dtype)
    assert torch.equal(rope(q, cos, sin, **flags), found[0])


@pytest.mark.parametrize("interleaved", [False, True], ids=["halves", "pairs"])
def test_tables_may_be_whole_in_fp32_or_a_batch_of_them(interleaved):
    x = randn(3, 4, 2, 16, dtype=torch.bfloat16)
    cos, sin = tables(4, 8)
    expected = rotated(x, cos, sin, interleaved)
    whole = [t.repeat_interleave(2, -1) if interleaved else torch.cat((t, t), -1) for t in (cos, sin)]
    for c, s in ((cos, sin), whole, (cos[None], sin[None]), (cos.t().contiguous().t(), sin)):
        assert_close(rope(x, c, s, interleaved=interleaved), expected, torch.bfloat16)
    cos, sin = tables(4, 8, batch=3)
    assert_close(rope(x, cos, sin, interleaved=interleaved), rotated(x, cos, sin, interleaved), torch.bfloat16)


def test_rows_of_a_wider_projection_are_read_where_they_are(monkeypatch):
    projected = randn(2, 6, 8, 16)  # 4 heads of q, 2 of k, 2 of v
    cos, sin = tables(6, 8)
    monkeypatch.setattr(torch.Tensor, "contiguous", lambda self: pytest.fail("copied"))
    q, k = rope_qk(projected[:, :, :4], projected[:, :, 4:6], cos, sin)
    expected = rotated(projected[:, :, :6], cos, sin)
    assert_close(q, expected[:, :, :4])
    assert_close(k, expected[:, :, 4:])
    turned = projected.transpose(1, 2)  # as Llama has it: heads first by strides alone
    assert rope(turned, cos, sin, heads_first=True).stride() == turned.stride()
    assert_close(rope(turned, cos, sin, heads_first=True), rotated(turned, cos, sin, heads_first=True))
    monkeypatch.undo()
    gaps = randn(2, 6, 3, 32)[..., ::2]
    assert_close(rope(gaps, cos, sin), rotated(gaps, cos, sin))


def test_a_rotation_keeps_lengths_and_the_gradient_turns_back():
    x = randn(1, 5, 3, 8)
    cos, sin = tables(5, 4)
    leaf = x.clone().requires_grad_()
    out = rope(leaf, cos, sin)
    torch.testing.assert_close(out.norm(dim=-1), x.norm(dim=-1))
    out.backward(out.detach())
    torch.testing.assert_close(leaf.grad, x)


def test_in_place_writes_over_x_alone_and_tells_autograd():
    cos, sin = tables(5, 4)
    for flags in ({}, {"interleaved": True}):
        wide = randn(2, 5, 4, 8)
        before, x = wide.clone(), wide[:, :, 1:3]
        version = x._version
        assert rope(x, cos, sin, inplace=True, **flags) is x
        assert x._version > version
        assert_close(x, rotated(before[:, :, 1:3], cos, sin, **flags))
        assert torch.equal(wide[:, :, ::3], before[:, :, ::3])  # its neighbours
    saved = randn(1, 5, 1, 8).requires_grad_()
    middle = saved * 1.0
    product = middle * middle  # keeps middle for its gradient
    with torch.no_grad():
        rope(middle, cos, sin, inplace=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.sum().backward()


def test_in_place_is_refused_where_a_gradient_is_wanted_or_rows_have_gaps():
    cos, sin = tables(5, 4)
    with pytest.raises(RuntimeError, match="no gradient"):
        rope(randn(1, 5, 1, 8).requires_grad_() * 1.0, cos, sin, inplace=True)
    with pytest.raises(RuntimeError, match="consecutive elements"):
        rope(randn(1, 5, 1, 16)[..., ::2], cos, sin, inplace=True)


def test_gradients_of_one_result_alone_and_of_gradients():
    cos, sin = tables(3, 4)
    q, k = randn(1, 3, 2, 8).requires_grad_(), randn(1, 3, 1, 8, seed=1).requires_grad_()
    rope_qk(q, k, cos, sin)[0].sum().backward()
    assert_close(q.grad, rotated(torch.ones_like(q), cos, -sin))
    assert k.grad is None or not k.grad.any()
    x, v = randn(1, 3, 2, 8).requires_grad_(), randn(1, 3, 2, 8, seed=2)
    (first,) = torch.autograd.grad((rope(x, cos, sin) ** 3).sum(), x, create_graph=True)
    (found,) = torch.autograd.grad(first, x, v)
    exact = x.detach().double().requires_grad_()
    (first,) = torch.autograd.grad((rotated(exact, cos, sin) ** 3).sum(), exact, create_graph=True)
    torch.testing.assert_close(found.double(), torch.autograd.grad(first, exact, v.double())[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape", [(0, 3, 2, 8), (2, 0, 2, 8), (2, 3, 0, 8)], ids=str)
def test_empty_inputs_give_empty_results_and_gradients(shape):
    x = torch.empty(shape, requires_grad=True)
    out = rope(x, *tables(shape[1], 4))
    out.sum().backward()
    assert out.shape == shape and x.grad.shape == shape


def test_compiled_functions_are_one_graph_and_agree_forward_backward_and_in_place():
    cos, sin = tables(3, 4)

    def block(q, k, scratch):
        q, k = rope_qk(q, k, cos, sin)
        rope(scratch, cos, sin, interleaved=True, inplace=True)
        return (rope(q, cos, sin) * k * scratch).sum()

    compiled = torch.compile(block, fullgraph=True, backend="aot_eager")
    found, expected = [], []
    for function, kept in ((compiled, found), (block, expected)):
        q, k = randn(1, 3, 2, 8).requires_grad_(), randn(1, 3, 2, 8, seed=1).requires_grad_()
        scratch = randn(1, 3, 2, 8, seed=2)
        out = function(q, k, scratch)
        out.backward()
        kept += [out.detach(), q.grad, k.grad, scratch]
    for ours, eager in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, eager)


@pytest.mark.parametrize("repeats", [1, 2], ids=["half", "whole"])
def test_tables_of_a_module_compile_for_heads_of_unknown_size(repeats):
    model = torch.nn.Module()  # whose buffers have known sizes, where those of x are not known
    model.cos, model.sin = (torch.nn.Buffer(table.repeat(2, 1, repeats)) for table in tables(3, 4))
    model.forward = lambda x: rope(x, model.cos, model.sin)
    compiled = torch.compile(model, fullgraph=True, dynamic=True, backend="aot_eager")
    x = randn(2, 3, 2, 8)
    torch.testing.assert_close(compiled(x), model.forward(x))


def test_operators_keep_torchs_rules():
    x, k = randn(1, 3, 2, 8), randn(1, 3, 1, 8, seed=1)
    cos, sin = tables(3, 4)
    torch.library.opcheck(rope_operator.operator.op, (x.clone().requires_grad_(), cos, sin, False, False, False))
    torch.library.opcheck(rope_qk_operator.operator.op, (x, k, cos, sin, True, False, True))
    torch.library.opcheck(in_place_operator.op, (x, cos, sin, False, False))


X, COS = torch.ones(1, 3, 2, 8), torch.ones(3, 4)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: rope(X.double(), COS, COS), TypeError, "float64"),
        (lambda: rope(X, COS.half(), COS.half()), TypeError, "float16"),
        (lambda: rope(X, COS, COS.half()), TypeError, "float16"),
        (lambda: rope(X[0], COS, COS), ValueError, "4 dimensions"),
        (lambda: rope(X[..., :7], COS, COS), ValueError, "even size"),
        (lambda: rope(X, COS, COS, heads_first=True), ValueError, "heads_first=True"),
        (lambda: rope(X, COS[:, :3], COS[:, :3]), ValueError, "head_dim / 2"),
        (lambda: rope(X, COS, COS[:1]), ValueError, "sin"),
        (lambda: rope(X, COS.expand(2, 3, 4), COS.expand(2, 3, 4)), ValueError, "cos"),
        (lambda: rope(X, COS.clone().requires_grad_(), COS), ValueError, "detach"),
        (lambda: rope_qk(X, X.half(), COS, COS), TypeError, "one dtype"),
        (lambda: rope_qk(X, X[..., :4], COS, COS), ValueError, "dimension 2"),
        (lambda: rope_qk(X, X[:, :2], COS, COS), ValueError, "dimension 2"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(call, error, message):
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize("interleaved", [False, True], ids=["halves", "pairs"])
def test_every_config_gives_the_same_results(interleaved):
    problem = next(c for c in DECLARATION.edge_cases if c.dtype == "fp16" and c["interleaved"] == interleaved)
    inputs = DECLARATION.forward.inputs(problem, "cpu", torch.Generator().manual_seed(1))
    variant = DECLARATION.forward.preferred(problem, INTERPRETER)
    # warps and vectors come to the same tiles
    configs = [c for c in variant.configs(problem, INTERPRETER) if c["num_warps"] == 2 or c["VECTORS"] == 2]
    found = [variant.launch(**inputs, config=config) for config in configs]
    assert len(found) > 3
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], rtol=0, atol=0)


@pytest.mark.parametrize("name", GPUS)
def test_defaults_are_points_of_the_space_that_fit(name):
    for work in DECLARATION.passes.values():
        for problem in (*DECLARATION.cases(GPUS[name]), *DECLARATION.edge_cases):
            for variant in work.variants:
                assert_default_fits(variant, problem, GPUS[name])
