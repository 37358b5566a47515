"""dropout on the interpreter: which elements are kept and what becomes of them, seeds, gradients, torch.compile."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import triton
import triton.language as tl
from atlas.declaration import case
from atlas.declaration.hardware import INTERPRETER
from atlas.host.gpus import gpu
from atlas.reading.config import load_gpus
from defaults_under_test import assert_default_fits
from torch._subclasses.fake_tensor import FakeTensorMode

from kernels.dropout import DECLARATION, ROUNDS, _backward, _forward, dropout

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
GPUS = {name: gpu(name, block) for name, block in load_gpus().items() if block.get("build", "match" in block)}


def randn(*shape, dtype=torch.float32, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@triton.jit
def _four_numbers_kernel(out_ptr, seed, ROUNDS: tl.constexpr, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    a, b, c, d = tl.randint4x(seed, offs, ROUNDS)
    tl.store(out_ptr + 4 * offs, a.to(tl.int32, bitcast=True))
    tl.store(out_ptr + 4 * offs + 1, b.to(tl.int32, bitcast=True))
    tl.store(out_ptr + 4 * offs + 2, c.to(tl.int32, bitcast=True))
    tl.store(out_ptr + 4 * offs + 3, d.to(tl.int32, bitcast=True))


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)  # 16-bit threads make two calls at a time, fp32 ones one
@pytest.mark.parametrize("seed", [0, 5, 2**40 + 3, -1])  # the upper half of the seed counts, its sign too
def test_the_numbers_are_those_of_tritons_philox_four_a_call(dtype, seed):
    numbers = torch.empty(4096, dtype=torch.int32)
    _four_numbers_kernel[(1,)](numbers, seed, ROUNDS=ROUNDS, BLOCK=1024)
    kept = dropout(torch.ones(4000, dtype=dtype), 0.3, seed=seed) != 0
    share = (numbers[:4000].long() + 2**31).double() / 2**32  # in [0, 1)
    assert torch.equal(kept, share >= 0.3)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])  # one call of Philox at a time, and two
def test_every_config_and_both_passes_keep_the_same_elements(dtype):
    x, problem = torch.ones(3, 500, dtype=DTYPES[dtype]), case(dtype, m=3, n=500)
    expected = dropout(x, 0.4, seed=11) != 0
    for direction, inputs in (("forward", {"x": x, "residual": None}), ("backward", {"dout": x})):
        (variant,) = DECLARATION.passes[direction].variants
        blocks = {config["BLOCK"]: config for config in variant.configs(problem, INTERPRETER)}
        assert len(blocks) > 3  # warps do not matter to the interpreter
        for config in blocks.values():
            assert torch.equal(variant.launch(**inputs, p=0.4, seed=11, config=config) != 0, expected), config


def test_the_mask_hangs_on_the_position_alone():
    x = torch.ones(6, 50)
    kept = dropout(x, seed=3) != 0
    assert torch.equal(dropout(x.bfloat16(), seed=3) != 0, kept)
    assert torch.equal(dropout(x.view(2, 3, 50), seed=3).view(6, 50) != 0, kept)
    assert torch.equal(dropout(torch.ones(50, 6).t(), seed=3) != 0, kept)  # in row-major order, however it lies
    assert torch.equal(dropout(x[:2], seed=3) != 0, kept[:2])
    assert not torch.equal(dropout(x, seed=4) != 0, kept)


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
def test_what_is_kept_is_scaled_and_added_to_the_residual(dtype):
    x, residual = randn(7, 90, dtype=dtype), randn(7, 90, dtype=dtype, seed=1)
    kept = dropout(torch.ones(7, 90), 0.25, seed=6) != 0
    expected = residual.double() + torch.where(kept, x.double(), 0) / 0.75
    tolerance = {torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}[dtype]
    found = dropout(x, 0.25, residual=residual, seed=6)
    assert found.dtype == dtype
    torch.testing.assert_close(found.double(), expected, rtol=tolerance, atol=tolerance)


def test_what_is_dropped_is_zero_even_where_it_was_nan_or_infinite():
    kept = dropout(torch.ones(400), 0.5, seed=1) != 0
    x = torch.where(kept, 1.0, torch.tensor([float("nan"), float("inf")]).repeat(200))
    assert torch.equal(dropout(x, 0.5, seed=1), 2.0 * kept)


def test_p_of_one_drops_all_and_p_of_zero_nothing():
    x, residual = randn(9, 30).requires_grad_(), randn(9, 30, seed=1)
    out = dropout(x, 1.0)
    assert not out.any()
    out.sum().backward()
    assert not x.grad.any()
    assert torch.equal(dropout(x, 1, residual=residual), residual)
    assert torch.equal(dropout(x, 0.0, residual=residual), x + residual)
    assert dropout(x, 0) is x  # as in torch


def test_without_training_nothing_is_dropped():
    x, residual = randn(9, 30), randn(9, 30, seed=1)
    assert dropout(x, 0.7, training=False) is x
    assert torch.equal(dropout(x, 0.7, False, residual), x + residual)
    assert dropout(x, 1.0, training=False) is x


def test_the_keep_rate_is_that_of_p():
    for p in (0.1, 0.5, 0.9):
        kept = int((dropout(torch.ones(2**14), p, seed=8) != 0).sum())
        assert abs(kept - 2**14 * (1 - p)) < 6 * (2**14 * p * (1 - p)) ** 0.5  # six standard deviations


def test_neighbouring_seeds_and_elements_are_not_correlated():
    kept = torch.stack([dropout(torch.ones(2**12), seed=seed) != 0 for seed in range(8)]).double() - 0.5
    across = torch.corrcoef(kept) - torch.eye(8)
    along = torch.corrcoef(torch.stack([kept[0, lag : lag - 8] for lag in range(8)])) - torch.eye(8)
    assert across.abs().max() < 6 / 2**6 and along.abs().max() < 6 / 2**6  # six standard deviations


def test_without_a_seed_torchs_cpu_generator_gives_one():
    x = torch.ones(500)
    torch.manual_seed(5)
    first, second = dropout(x), dropout(x)
    torch.manual_seed(5)
    assert torch.equal(dropout(x), first) and not torch.equal(first, second)
    with torch.random.fork_rng():
        dropout(x)
    assert torch.equal(dropout(x), second)  # the generator stands where it stood


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
def test_gradients_are_scaled_where_kept(dtype):
    x, residual = (randn(5, 41, dtype=dtype, seed=seed).requires_grad_() for seed in range(2))
    dout = randn(41, 5, dtype=dtype, seed=2).t()  # a layout that is not the output's
    kept = dropout(torch.ones(5, 41), 0.3, seed=9) != 0
    dropout(x, 0.3, residual=residual, seed=9).backward(dout)
    expected = torch.where(kept, dout.double(), 0) / 0.7
    torch.testing.assert_close(x.grad.double(), expected, rtol=8e-3 if dtype == torch.bfloat16 else 1e-3, atol=0)
    assert torch.equal(residual.grad, dout)


def test_the_gradient_is_linear_so_its_derivative_has_the_same_mask():
    x, v = randn(60).requires_grad_(), randn(60, seed=1)
    weight = randn(60, seed=2).requires_grad_()
    (first,) = torch.autograd.grad(dropout(x, 0.5, seed=2), x, weight, create_graph=True)
    (second,) = torch.autograd.grad(first, weight, v)
    assert torch.equal(second, dropout(v, 0.5, seed=2))


def test_empty_tensors_give_an_empty_tensor():
    x = torch.empty(0, 4, requires_grad=True)
    dropout(x, residual=torch.empty(0, 4)).sum().backward()
    assert x.grad.shape == (0, 4)
    assert dropout(torch.tensor(2.0), 0.5, seed=0) in (
        torch.tensor(0.0),
        torch.tensor(4.0),
    )  # no dimensions: one element


def test_arguments_that_have_no_meaning_are_refused_by_name():
    x = torch.ones(2, 3)
    for p in (-0.1, 1.1, float("nan")):
        with pytest.raises(ValueError, match="probability"):
            dropout(x, p)
    with pytest.raises(TypeError, match="float64"):
        dropout(x.double())
    with pytest.raises(TypeError, match="float16"):
        dropout(x, residual=x.half())
    with pytest.raises(ValueError, match=r"\(2, 1\)"):  # nothing is broadcast
        dropout(x, residual=x[:, :1])
    with pytest.raises(ValueError, match="64 bits"):
        dropout(x, seed=2**63)


def test_a_compiled_function_takes_seeds_as_they_come_and_agrees_with_the_eager_one():
    x, residual = randn(80).requires_grad_(), randn(80, seed=1)

    def function(x, seed):
        return dropout(x.sin(), 0.3, residual=residual, seed=seed)

    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    with torch._dynamo.config.patch(error_on_recompile=False):
        for seed in (3, 4):  # the second shows that it varies
            compiled(x, seed)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for seed in (5, -(2**40)):
            found = torch.autograd.grad(compiled(x, seed).sum(), x)[0]
            torch.testing.assert_close(found, torch.autograd.grad(function(x, seed).sum(), x)[0])


def test_a_compiled_function_without_a_seed_draws_another_at_each_call_and_repeats_it_in_backward():
    def function(x):
        return dropout(x, 0.5), dropout(x, 0.5)

    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    x = torch.ones(400, requires_grad=True)
    masks = []
    for _ in range(2):
        for out in compiled(x):
            (dx,) = torch.autograd.grad(out.sum(), x, retain_graph=True)
            assert torch.equal(dx, out)  # of ones, both are the mask, scaled
            masks.append(out.detach())
    assert len({tuple(mask.tolist()) for mask in masks}) == 4
    torch.manual_seed(1)
    first = compiled(x)[0]
    torch.manual_seed(1)
    assert torch.equal(compiled(x)[0], first)


def test_the_operators_keep_torchs_rules():
    torch.library.opcheck(_forward.op, (randn(4, 10).requires_grad_(), randn(4, 10, seed=1), 0.5, 7))
    torch.library.opcheck(_backward.op, (randn(4, 10).requires_grad_(), 0.5, 7))


@pytest.mark.parametrize("name", GPUS)
def test_defaults_are_points_of_the_space_that_fit(name):
    for work in DECLARATION.passes.values():
        for problem in (*DECLARATION.cases(GPUS[name]), *DECLARATION.edge_cases):
            (variant,) = work.variants
            assert_default_fits(variant, problem, GPUS[name])


@pytest.mark.parametrize("mode", [torch.inference_mode, FakeTensorMode], ids=["inference", "fake tensors"])
def test_a_first_draw_in_a_mode_spoils_none_after_it(mode):
    def first_in_a_mode():
        with mode():
            inside = dropout(torch.ones(4, 8), 0.5)
        return inside, dropout(torch.ones(4, 8), 0.5)

    with ThreadPoolExecutor(1) as thread:  # a thread that has drawn nothing yet
        inside, after = thread.submit(first_in_a_mode).result()
    assert inside.shape == after.shape == (4, 8)
    assert set(after.unique().tolist()) <= {0.0, 2.0}
