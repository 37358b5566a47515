"""The judge of torch's samples notices what it is there for: each wrong function here fails, each refusal is one."""

import pytest
import torch
from torch.nn import functional

from .comparison import compare
from .functions import Call, Operation
from .samples import Sample

SOFTMAX = Operation("softmax")


def a_sample(kind="sample", dtype=torch.float32, dim=-1):
    x = torch.randn(4, 33, generator=torch.Generator().manual_seed(1)).to(dtype).requires_grad_()
    return Sample(Call((x, dim)), kind, 0, dtype)


def outcome(function, sample=None, operation=SOFTMAX, torchs=torch.softmax):
    return compare(function, torchs, operation, sample or a_sample())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_torch_s_own_function_passes(dtype):
    assert outcome(torch.softmax, a_sample(dtype=dtype)).outcome == "passed"


class DoubledGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, dy):
        return 2 * dy


def overwriting(x, dim):
    y = torch.softmax(x, dim)
    x.data.zero_()
    return y


def raising(error):
    def function(x, dim):
        raise error

    return function


WRONG = {
    "a value": lambda x, dim: torch.softmax(x, dim) + torch.eye(4, 33) * 1e-4,
    "one NaN": lambda x, dim: torch.softmax(x, dim).index_fill(1, torch.tensor([3]), torch.nan),
    "the other dimension": lambda x, dim: torch.softmax(x, 0),
    "the gradient": lambda x, dim: DoubledGradient.apply(torch.softmax(x, dim)),
    "no gradient": lambda x, dim: torch.softmax(x, dim).detach(),
    "the dtype": lambda x, dim: torch.softmax(x, dim).double(),
    "the shape": lambda x, dim: torch.softmax(x, dim)[None],
    "the device": lambda x, dim: torch.softmax(x, dim).detach().to("meta").requires_grad_(),
    "two results": lambda x, dim: (torch.softmax(x, dim), x),
    "an overwritten input": overwriting,
    "an error that is no refusal": raising(AttributeError("no dtype")),
}


@pytest.mark.parametrize("function", WRONG.values(), ids=WRONG)
def test_what_differs_from_torch_fails(function):
    assert outcome(function).outcome == "failed"


def test_what_the_library_says_it_does_not_take_is_refused_with_its_message_less_numbers():
    found = outcome(raising(NotImplementedError("takes rows up to 32, not (4, 33)\nand so on")))
    assert (found.outcome, found.what) == ("refused", "NotImplementedError: takes rows up to #, not (…)")


def test_where_torch_raises_a_result_fails_and_an_error_passes():
    beyond = a_sample(dim=2)
    assert outcome(lambda x, dim: torch.softmax(x, -1), beyond).outcome == "failed"
    assert outcome(raising(IndexError("no such dim")), beyond).outcome == "passed"
    assert outcome(raising(AttributeError("no dtype")), beyond).outcome == "failed"


def test_what_torch_s_list_calls_an_error_must_be_one():
    assert outcome(torch.softmax, a_sample(kind="error")).outcome == "failed"


DROPOUT = Operation("nn.functional.dropout", random=True)


@pytest.mark.parametrize(
    ("function", "right"),
    [
        (functional.dropout, "passed"),
        (lambda x, p: functional.dropout(x, p) * (1 - p), "failed"),  # not scaled
        (lambda x, p: DoubledGradient.apply(functional.dropout(x, p)), "failed"),
        (lambda x, p: functional.dropout(x, p) + 1e-3, "failed"),
    ],
    ids=["torch's", "unscaled", "gradient", "values"],
)
def test_dropout_is_judged_by_the_elements_that_it_kept(function, right):
    x = torch.randn(16, 16, generator=torch.Generator().manual_seed(2)).requires_grad_()
    sample = Sample(Call((x,), {"p": 0.3}), "sample", 0, torch.float32)
    assert outcome(function, sample, DROPOUT, functional.dropout).outcome == right


def test_weights_of_scores_in_the_hundreds_are_judged_by_what_fp32_can_tell_of_them():
    # of all that softmax gives away the largest are 1, as torch's samples of attention have it; off by 1e-3 is wrong
    sample = Sample(Call((200 * a_sample().call.args[0].detach(), -1)), "sample", 0, torch.float32)
    assert outcome(torch.softmax, sample).outcome == "passed"
    assert outcome(lambda x, dim: torch.softmax(x, dim) * 1.001, sample).outcome == "failed"
