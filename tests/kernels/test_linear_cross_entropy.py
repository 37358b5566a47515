"""Linear cross-entropy on the interpreter: chunks, which gradients are computed when, memory, refusals."""

import pytest
import torch
from atlas.declaration import case
from atlas.declaration.hardware import GPU, INTERPRETER, pretend
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from kernels.linear_cross_entropy import DECLARATION, _operator, linear_cross_entropy
from kernels.linear_cross_entropy.chunks import chunk_rows_of, small_logits

LAUNCH = DECLARATION.forward.variants[0].launch
PARAMETERS = (-100, "mean", 0.0, 0.0)


def randn(*shape, dtype=torch.float32, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def problem(m, k, n, dtype=torch.float32, bias=True):
    """(hidden, weight, bias, target), the third target ignored."""
    target = torch.randint(0, n, (m,), generator=torch.Generator().manual_seed(3))
    target[2:3] = -100
    parameters = (randn(m, k, dtype=dtype), randn(n, k, dtype=dtype, seed=1), randn(n, dtype=dtype, seed=2))
    return *parameters[:2], parameters[2] if bias else None, target


def in_torch(hidden, weight, bias, target, **arguments):
    return functional.cross_entropy(functional.linear(hidden, weight, bias), target, **arguments)


def close(found, expected, tolerance=5e-6):
    torch.testing.assert_close(found.double(), expected, rtol=tolerance, atol=tolerance)


def both(arguments, wanted=(True, True, True), factor=1.0, **options):
    """Loss and gradients of the function and of float64, which ``wanted`` says of hidden, weight and bias."""
    *tensors, target = arguments
    leaves = [t if t is None else t.detach().clone().requires_grad_(w) for t, w in zip(tensors, wanted, strict=True)]
    exact = [t if t is None else t.detach().double().requires_grad_() for t in tensors]
    loss = linear_cross_entropy(leaves[0], leaves[1], target, linear_bias=leaves[2], **options)
    expected = in_torch(*exact, target, **options)
    dloss = randn(*loss.shape, seed=4) if loss.dim() else torch.tensor(factor)
    loss.backward(dloss)
    expected.backward(dloss.double())
    close(loss.detach(), expected.detach())
    return [(leaf, other) for leaf, other in zip(leaves, exact, strict=True) if leaf is not None]


@pytest.mark.parametrize("factor", [1.0, -2.5])  # 1 leaves the gradients as the forward pass made them
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_loss_and_gradients_agree_with_float64(reduction, factor):
    for leaf, exact in both(problem(7, 5, 37), factor=factor, reduction=reduction, label_smoothing=0.1):
        close(leaf.grad, exact.grad)


@pytest.mark.parametrize("wanted", [(True, False, False), (False, True, False), (False, False, True)], ids=str)
def test_a_frozen_tensor_gets_no_gradient_and_the_others_theirs(wanted):
    for leaf, exact in both(problem(6, 4, 11), wanted):
        assert (leaf.grad is not None) == leaf.requires_grad
        if leaf.requires_grad:
            close(leaf.grad, exact.grad)


def test_16_bits_are_kept_and_summed_in_fp32():
    for dtype in (torch.float16, torch.bfloat16):
        for leaf, exact in both_rounded(problem(5, 8, 300, dtype, bias=False)):
            assert leaf.grad.dtype == dtype
            close(leaf.grad, exact.grad, 2e-2)


def test_the_bias_is_added_to_the_product_in_fp32():
    hidden, weight = torch.full((3, 4), 10.0), torch.full((37, 4), 5.0)  # logits of 200, where bf16 has whole numbers
    bias, target = randn(37, dtype=torch.bfloat16), torch.tensor([4, 36, 0])
    leaf, exact = bias.clone().requires_grad_(), bias.double().requires_grad_()
    loss = linear_cross_entropy(hidden.bfloat16(), weight.bfloat16(), target, linear_bias=leaf, reduction="none")
    expected = in_torch(hidden.double(), weight.double(), exact, target, reduction="none")
    loss.sum().backward()
    expected.sum().backward()
    close(loss.detach(), expected.detach(), 1e-2)
    close(leaf.grad, exact.grad, 2e-2)


def both_rounded(arguments):
    hidden, weight, bias, target = arguments
    leaves, exact = (
        [t.detach().to(to).requires_grad_() for t in (hidden, weight)] for to in (hidden.dtype, torch.float64)
    )
    linear_cross_entropy(*leaves, target).backward()
    in_torch(*exact, bias, target).backward()
    return zip(leaves, exact, strict=True)


@pytest.mark.parametrize("chunk", [1, 3, 4, 8, 9])  # single rows, a tail of two, of none, all
def test_chunks_of_any_length_add_up_to_the_same(chunk):
    hidden, weight, bias, target = problem(8, 5, 21)
    config = DECLARATION.forward.variants[0].default(case("fp32", m=8, k=5, n=21), INTERPRETER)
    loss, *found = LAUNCH(hidden, weight, bias, target, None, *PARAMETERS, True, True, chunk, config=config)
    exact = [t.double().requires_grad_() for t in (hidden, weight, bias)]
    expected = in_torch(*exact, target)
    expected.backward()
    close(loss, expected.detach())
    for gradient, tensor in zip(found, exact, strict=True):
        close(gradient, tensor.grad)


def test_a_chunk_s_logits_are_as_large_as_the_weight_and_chunks_of_one_length():
    row = 2 * 128_000  # bytes of a row of logits, of which a few fill a chunk
    assert chunk_rows_of(8192, 4096, row) == 4096
    assert chunk_rows_of(9000, 4096, row) == 3072  # three chunks, in whole tiles of 128 rows
    assert chunk_rows_of(16384, 512, row) == 1024  # small layers fill the GPU all the same
    assert chunk_rows_of(700, 64, row) == 700
    # What is summed up in fp32 is there twice in the end, so one chunk may as well have twice the rows.
    assert chunk_rows_of(8192, 4096, row, adds_in_fp32=True) == 8192
    assert chunk_rows_of(8193, 4096, row, adds_in_fp32=True) == 2816
    for m, k in ((5000, 1024), (16385, 2048), (4097, 4096)):
        assert chunk_rows_of(m, k, row) <= max(k, 1024)


def test_small_logits_are_one_chunk_for_each_costs_the_host_launches():
    assert chunk_rows_of(4096, 1024, 2 * 1024) == 4096
    assert chunk_rows_of(4096, 1024, 4 * 1024) == 4096
    assert chunk_rows_of(2**20, 64, 2 * 1024) * 2 * 1024 <= 2**25


def test_a_gpu_with_much_memory_takes_larger_chunks():
    row, m, k = 2 * 32_000, 8192, 1024
    assert chunk_rows_of(m, k, row, adds_in_fp32=True) == 1024
    with pretend(GPU("roomy", "cuda", 90, sms=132, shared_bytes=232448, memory_bytes=80 * 2**30, l2_bytes=2**25)):
        small = small_logits("cuda")
    assert small == 80 * 2**30 // 256 and chunk_rows_of(m, k, row, adds_in_fp32=True, small=small) == m
    assert small_logits("cpu") == 2**25, "a small one does not"


class Largest(TorchDispatchMode):
    """The elements of the largest floating tensor that any operation returns."""

    elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple) else (result,):
            if isinstance(tensor, torch.Tensor) and tensor.is_floating_point():
                self.elements = max(self.elements, tensor.numel())
        return result


def test_no_tensor_holds_all_the_logits():
    hidden, weight, bias, target = problem(40, 6, 64)
    config = DECLARATION.forward.variants[0].default(case("fp32", m=40, k=6, n=64), INTERPRETER)
    with Largest() as seen:
        LAUNCH(hidden, weight, bias, target, None, *PARAMETERS, True, True, 10, config=config)
    assert seen.elements == 10 * 64  # a chunk's


def test_without_gradients_nothing_is_computed_but_the_loss():
    hidden, weight, bias, target = problem(6, 4, 11)
    outputs = _operator(hidden, weight, bias, target, None, *PARAMETERS, False, False, 0, False)
    assert [output.numel() for output in outputs] == [1, 0, 0, 0]
    close(outputs[0], in_torch(hidden.double(), weight.double(), bias.double(), target))


def test_a_second_backward_is_refused_since_the_gradients_are_made_once():
    hidden, weight, _, target = problem(6, 4, 11)
    loss = linear_cross_entropy(hidden.requires_grad_(), weight, target)
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_second_derivatives_agree_with_float64_autograd():
    hidden, weight, _, target = problem(3, 4, 9)

    def second(function, *tensors):
        tensors = [t.requires_grad_() for t in tensors]
        first = torch.autograd.grad(function(*tensors, target), tensors, create_graph=True)
        return torch.autograd.grad(sum(g.square().sum() for g in first), tensors)

    exact = second(lambda h, w, t: in_torch(h, w, None, t), hidden.double(), weight.double())
    for found, expected in zip(second(linear_cross_entropy, hidden, weight), exact, strict=True):
        close(found, expected)


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_compiled_it_is_one_graph_with_the_same_gradients(reduction):
    hidden, weight, bias, target = problem(6, 4, 11)
    leaves = [t.clone().requires_grad_() for t in (hidden, weight, bias)]
    exact = [t.double().requires_grad_() for t in (hidden, weight, bias)]

    def mean(h, w, b, t):
        return (3 * linear_cross_entropy(h, w, t, linear_bias=b, reduction=reduction)).mean()

    torch.compile(mean, fullgraph=True, backend="aot_eager")(*leaves, target).backward()
    (3 * in_torch(*exact, target, reduction=reduction)).mean().backward()
    for leaf, other in zip(leaves, exact, strict=True):
        close(leaf.grad, other.grad)


@pytest.mark.parametrize("wide_loss", [False, True], ids=["", "a loss in fp32, as under autocast"])
def test_the_operator_keeps_torch_s_rules(wide_loss):
    hidden, weight, bias, target = problem(6, 4, 11)
    hidden, weight, bias = (tensor.to(torch.bfloat16) for tensor in (hidden, weight, bias))
    hidden.requires_grad_()
    torch.library.opcheck(_operator.op, (hidden, weight, bias, target, None, *PARAMETERS, True, False, 0, wide_loss))


def test_layouts_are_copied_and_no_rows_are_as_in_torch():
    hidden, weight, bias, target = problem(6, 4, 11)
    found = linear_cross_entropy(hidden.t().contiguous().t(), weight.repeat(1, 2)[:, :4], target, linear_bias=bias)
    close(found, in_torch(hidden.double(), weight.double(), bias.double(), target))
    assert linear_cross_entropy(hidden[:0], weight, target[:0]).isnan()
    assert linear_cross_entropy(hidden[:0], weight, target[:0], reduction="sum") == 0


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"weight": torch.ones(10)}, NotImplementedError, "class weights"),
        ({"target": torch.rand(4, 10)}, NotImplementedError, "probabilities"),
        ({"options": object()}, NotImplementedError, "chunk_rows"),
        ({"input": torch.zeros(2, 4, 6)}, NotImplementedError, r"input \[m, k\]"),
        ({"input": torch.zeros(4, 6, dtype=torch.float64)}, TypeError, "float64"),
        ({"linear_weight": torch.zeros(10, 6, dtype=torch.float16)}, TypeError, "float16"),
        ({"target": torch.zeros(4, dtype=torch.int32)}, TypeError, "int32"),
        ({"linear_weight": torch.zeros(10, 5)}, ValueError, "do not fit"),
        ({"linear_bias": torch.zeros(9)}, ValueError, "do not fit"),
        ({"reduction": "average"}, ValueError, "average"),
        ({"chunk_rows": -1}, ValueError, "-1"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_is_not_supported_is_refused_in_words(arguments, error, words):
    good = {
        "input": torch.zeros(4, 6), "linear_weight": torch.zeros(10, 6), "target": torch.zeros(4, dtype=torch.int64)
    }  # fmt: skip
    with pytest.raises(error, match=words):
        linear_cross_entropy(**good | arguments)
