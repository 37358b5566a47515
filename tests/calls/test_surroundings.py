"""What a program may have around a call: deterministic mode, inference mode, hooks on saved tensors, checkpointing."""

import contextlib
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import kernels

from .table import CALLS, DIFFERENTIABLE, assert_near, repeats, weighted


@contextlib.contextmanager
def deterministic():
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)  # which also fills what is allocated and not yet written with NaN
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)


@contextlib.contextmanager
def default_dtype(dtype):
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def gradients(call, device, run):
    """Results and gradients of a call that ``run`` makes."""
    inputs = call.leaves(call.draw(device))
    results = run(inputs)
    weighted(results).backward()
    return [x.detach() for x in results], [inputs[name].grad for name in call.wanting]


def assert_equal(found, expected):
    for x, y in zip(found, expected, strict=True):
        assert x.dtype == y.dtype and torch.equal(x, y)


MODES = {
    "deterministic": deterministic,
    "inference": torch.inference_mode,
    "no gradients": torch.no_grad,
    "default dtype": lambda: default_dtype(torch.float64),
}


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.label)
def test_a_mode_changes_no_result(call, mode, device):
    inputs = call.draw(device)
    expected = [call.run(inputs) for _ in repeats(device)][-1]
    with mode():
        found = [call.run(call.draw(device) if mode is torch.inference_mode else inputs) for _ in repeats(device)][-1]
    assert_equal(found, expected)
    assert_equal(call.run(inputs), expected)


@pytest.mark.parametrize("call", DIFFERENTIABLE, ids=lambda call: call.label)
def test_gradients_are_the_same_in_deterministic_mode(call, device):
    plain = gradients(call, device, call.run)
    with deterministic():
        for _ in repeats(device):
            found = gradients(call, device, call.run)
    assert_equal(found[0] + found[1], plain[0] + plain[1])


@pytest.mark.parametrize("call", DIFFERENTIABLE, ids=lambda call: call.label)
def test_saved_tensors_may_be_moved_away_and_back(call, device):
    seen = []

    def pack(x):
        seen.append(x)
        return x.detach().to("cpu", copy=True), x.device

    plain = gradients(call, device, call.run)
    for _ in repeats(device):
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda kept: kept[0].to(kept[1])):
            found = gradients(call, device, call.run)
        assert_equal(found[0] + found[1], plain[0] + plain[1])


@pytest.mark.parametrize("reentrant", [False, True], ids=["", "reentrant"])
@pytest.mark.parametrize("call", DIFFERENTIABLE, ids=lambda call: call.label)
def test_checkpointing_gives_the_same_gradients(call, reentrant, device):
    plain = gradients(call, device, call.run)
    names = list(call.shapes)

    def run(inputs):
        given = [inputs[name] for name in names]
        again = lambda *values: call.run(inputs | dict(zip(names, values, strict=True)))  # noqa: E731
        return checkpoint(again, *given, use_reentrant=reentrant)

    found = gradients(call, device, run)
    # Near and not equal: where no gradient is wanted, a kernel that keeps nothing for one may round otherwise.
    assert_near(found[0], plain[0], call, call.dtype)
    assert_near(found[1], plain[1], call, call.dtype, "gradient")


IN_PLACE = ("layer_norm", "layer_norm, residual", "layer_norm_linear", "rms_norm", "linear", "matmul", "bmm", "sum",
            "mean", "sum, rows", "mean, rows", "max, rows", "cross_entropy", "linear_cross_entropy", "vector_add",
            "swiglu", "dropout", "embedding", "rope", "grouped_mm")  # fmt: skip
"""Calls whose first result torch's function lets be changed in place before backward."""


@pytest.mark.parametrize("call", [c for c in DIFFERENTIABLE if c.label in IN_PLACE], ids=lambda call: call.label)
def test_a_result_may_be_changed_in_place(call, device):
    """As in ``hidden = norm(x); hidden += skipped`` and ``loss /= steps``: at the first call of a shape, too."""
    plain = [3.0 * x for x in gradients(call, device, lambda inputs: call.run(inputs)[:1])[1]]

    def run(inputs):
        result = call.run(inputs)[0]
        result *= 3.0
        return [result]

    for _ in repeats(device):
        assert_near(gradients(call, device, run)[1], plain, call, call.dtype, "gradient")


@pytest.mark.parametrize("call", DIFFERENTIABLE, ids=lambda call: call.label)
def test_a_result_that_was_computed_without_gradients_may_take_some_in_place(call, device):
    """As of a frozen encoder, to whose result trained embeddings are added."""
    for _ in repeats(device):
        with torch.no_grad():
            result = call.run(call.draw(device))[0]
        trained = torch.ones(result.shape, device=device, dtype=result.dtype, requires_grad=True)
        result += trained
        result.sum().backward()
        assert torch.equal(trained.grad, torch.ones_like(trained))


RESHAPED = {
    "narrower values under a mask": lambda x: kernels.masked_attention(x, x, x[..., :16], x[0, :, :, 0] > 0)[0],
    "narrower values in a window": lambda x: kernels.scaled_dot_product_attention(x, x, x[..., :16], window=(2, 0)),
    "wider values under a mask": lambda x: kernels.masked_attention(x[..., :16], x[..., :16], x, x[0, :, :, 0] > 0)[0],
    "lse without a batch": lambda x: kernels.attention_with_lse(x[0], x[0], x[0])[1],
    "a loss for each place": lambda x: kernels.cross_entropy(x, x[:, 0].argmax(1)[:, None].expand(2, 5, 32) % 5,
                                                             reduction="none"),
    "axes in another order": lambda x: kernels.gelu(x.transpose(1, 2)),
}  # fmt: skip
"""Calls whose results come out of the kernel in another shape."""


@pytest.mark.parametrize("run", RESHAPED.values(), ids=RESHAPED)
def test_a_result_in_another_shape_is_no_view_without_gradients(run, device):
    x = torch.randn(2, 5, 5, 32, generator=torch.Generator().manual_seed(0)).to(device)
    for _ in repeats(device):
        with torch.no_grad():
            result = run(x)
        trained = torch.ones((), device=device, requires_grad=True)
        result += trained
        result.sum().backward()
        assert trained.grad == result.numel()


def test_threads_compute_what_one_does(device):
    """Grids of other sizes at once: the interpreter, which has one grid index, must not mix their blocks."""
    inputs = [torch.randn(40 + more, 64, device=device) for more in range(4)]

    def run(x):
        return kernels.layer_norm(kernels.softmax(x, dim=-1), [64])

    alone = [run(x) for x in inputs]
    with ThreadPoolExecutor(4) as threads:
        assert_equal([*threads.map(run, inputs * 2)], alone * 2)
