"""Operators: what is recorded of a call, when it is repeated, and what torch is told of it.

The kernel is a stand-in that remembers its launches, so that recordings can be made and repeated without a GPU; that
true kernels compute the same either way is validation's to say.
"""

import contextvars
import types

import pytest
import torch
from atlas.operators import launch, launching, plan
from operator_doubles import Kernel, a_cpu_that_counts_as_a_gpu, doubling, operator  # noqa: F401 - the fixture is of each test
from torch.overrides import TorchFunctionMode

VARYING = {"do_not_specialize": True, "annotation_type": "i64"}


def test_a_second_call_repeats_the_launch_with_its_own_tensors():
    kernel = Kernel()
    double = operator(doubling(kernel))
    first, x = torch.randn(4, 6), torch.randn(4, 6)
    double(first)
    out = double(x)
    assert len(kernel.launched) == 1
    assert kernel.repeated == [
        (3, 1, 1, "stream", "function", "metadata", None, None, None, x.data_ptr(), out.data_ptr(), 24, 0)
    ]
    assert out.shape == x.shape and out.data_ptr() != x.data_ptr()


@pytest.mark.parametrize(
    "other",
    [
        torch.randn(4, 7),
        torch.randn(6, 4).t(),  # the same shape with other strides
        torch.randn(4, 6).to(torch.float16),
        torch.randn(25)[1:].view(4, 6),  # no longer on 16 bytes: kernels are compiled for that
    ],
    ids=["shape", "strides", "dtype", "alignment"],
)
def test_tensors_of_another_kind_are_recorded_anew(other):
    kernel = Kernel()
    double = operator(doubling(kernel))
    double(torch.randn(4, 6))
    double(other)
    assert len(kernel.launched) == 2 and not kernel.repeated


def test_what_a_launcher_reads_of_torchs_state_is_part_of_what_a_recording_is_of():
    kernel, state = Kernel(), types.SimpleNamespace(value="ieee")
    double, x = operator(doubling(kernel), state=lambda x: state.value), torch.randn(4, 6)
    for state.value in ("tf32", "ieee", "tf32"):
        double(x)
    assert len(kernel.launched) == 2 and len(kernel.repeated) == 1


def test_scalars_are_part_of_what_a_recording_is_of():
    kernel = Kernel()

    def run(x, seed):
        out = torch.empty_like(x)
        launch(kernel, (1,), x, out, x.numel(), seed=seed)
        return out

    scaled = operator(run, "(Tensor x, int seed) -> Tensor", fake=lambda x, seed: torch.empty_like(x))
    x = torch.randn(8)
    for seed in (1, 2, 1):
        scaled(x, seed)
    assert len(kernel.launched) == 2 and [words[-1] for words in kernel.repeated] == [1]


def varying(kernel):
    def run(x, seed):
        out = torch.empty_like(x)
        launch(kernel, (1,), x, out, x.numel(), seed)
        return out

    return operator(run, "(Tensor x, int seed) -> Tensor", lambda x, seed: torch.empty_like(x), varying=("seed",))


def test_a_varying_argument_is_passed_on_and_not_recorded():
    kernel = Kernel(**VARYING)
    drop, x = varying(kernel), torch.randn(8)
    for seed in (5, 6, 7):
        drop(x, seed)
    assert len(kernel.launched) == 1 and [words[-1] for words in kernel.repeated] == [6, 7]


def test_a_kernel_compiled_for_values_of_what_varies_is_not_repeated():
    kernel = Kernel()  # seed 16 would be compiled as a multiple of 16, and 1 as a constant
    drop, x = varying(kernel), torch.randn(8)
    for seed in (16, 5, 1):
        drop(x, seed)
    assert len(kernel.launched) == 3
    assert "do_not_specialize" in " ".join(drop.obstacles)


def test_arithmetic_on_what_varies_is_refused_while_recording():
    def run(x, seed):
        return torch.empty_like(x), seed + 1

    drop = operator(run, "(Tensor x, int seed) -> Tensor", lambda x, seed: torch.empty_like(x), varying=("seed",))
    with pytest.raises(TypeError, match="varies"):
        drop(torch.randn(3), 1)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (lambda x, out: out.mul_(2), "mul_"),
        (lambda x, out: x.sum().item(), "sum"),
        (lambda x, out: x, "did not allocate"),
    ],
    ids=["arithmetic", "reading data", "returning an input"],
)
def test_a_launcher_that_does_more_is_run_each_time_and_says_why(more, said):
    kernel = Kernel()

    def run(x):
        out = torch.empty_like(x)
        launch(kernel, (1,), x, out, x.numel())
        result = more(x, out)
        return result if isinstance(result, torch.Tensor) else out

    careless = operator(run)
    for _ in range(5):
        careless(torch.randn(8))
    assert len(kernel.launched) == 5
    assert said in " ".join(careless.obstacles)


def test_what_torch_computes_between_launches_is_repeated_in_its_order():
    """Products, into views of what is allocated, too; neither gradients nor autocast get in between."""
    kernel = Kernel()

    def run(x, w):
        both = torch.empty((2, 4, 8))
        torch.mm(x[:4], w.t(), out=both[0])
        launch(kernel, (1,), both[0], both[1], 1)
        both[1].copy_(both[0])
        product = torch.addmm(w.sum(dim=1), x[4:], w.t())
        launch(kernel, (1,), product, both, 1)
        return both.to(torch.float16), product.view(2, -1), x.new_empty(0)

    fake = lambda x, w: (x.new_empty(2, 4, 8, dtype=torch.float16), x.new_empty(2, 16), x.new_empty(0))  # noqa: E731
    mixed = operator(run, "(Tensor x, Tensor w) -> (Tensor, Tensor, Tensor)", fake)
    for _ in range(3):
        x, w = torch.randn(8, 6), torch.randn(8, 6, requires_grad=True)
        with torch.autocast("cpu", torch.bfloat16):
            found = mixed(x, w)
        torch.testing.assert_close(found[0], (x[:4] @ w.t()).half().expand(2, 4, 8))
        torch.testing.assert_close(found[1], (w.sum(1) + x[4:] @ w.t()).detach().view(2, 16))
        assert found[2].shape == (0,) and not any(y.requires_grad for y in found)
    assert not mixed.obstacles and len(kernel.launched) == 2 and len(kernel.repeated) == 4


@pytest.mark.parametrize(
    "run",
    [lambda x, y: x.add_(y), lambda x, y: torch.mm(x, torch.ones(4, 4)), lambda x, y: x.view(torch.int32) @ y],
    ids=["on an input", "with a tensor of its own", "of another dtype"],
)
def test_what_torch_computes_with_other_memory_is_not_repeated(run):
    own = operator(lambda x, y: run(x, y).clone(), "(Tensor x, Tensor y) -> Tensor", lambda x, y: torch.empty_like(x))
    x, y = torch.zeros(4, 4), torch.zeros(4, 4, dtype=torch.int32)
    for _ in range(3):
        own(x, y)
    assert own.obstacles


def test_views_scratch_and_several_outputs_are_told_by_their_memory():
    kernel = Kernel()

    def run(x):
        both = torch.empty((2, *x.shape), dtype=torch.float32)
        scratch = torch.empty(16, dtype=torch.int32)
        launch(kernel, (1,), x[1:], both[1], 1)
        launch(kernel, (2, 3), scratch, both, 1)
        return both.view(-1), both[1]

    split = operator(
        run, "(Tensor x) -> (Tensor, Tensor)", lambda x: (x.new_empty(2 * x.numel()), x.new_empty(x.shape))
    )
    split(torch.randn(4, 6))
    x = torch.randn(4, 6)
    flat, second = split(x)
    assert flat.shape == (48,) and second.shape == (4, 6)
    assert second.data_ptr() == flat.data_ptr() + 96
    one, two = kernel.repeated
    assert one[9:11] == (x.data_ptr() + 24, second.data_ptr())
    assert two[:3] == (2, 3, 1) and two[10] == flat.data_ptr()
    assert two[9] not in (x.data_ptr(), flat.data_ptr())


def test_inputs_that_share_memory_are_told_apart_by_where_they_begin():
    kernel = Kernel()

    def run(gate, up):
        out = torch.empty(gate.shape)
        launch(kernel, (1,), gate, up, 1)
        return out

    glu = operator(run, "(Tensor gate, Tensor up) -> Tensor", lambda gate, up: torch.empty(gate.shape))
    for _ in range(2):
        both = torch.randn(4, 16)
        gate, up = both.chunk(2, dim=1)
        glu(gate, up)
    assert kernel.repeated[0][9:11] == (gate.data_ptr(), up.data_ptr())


def adding(kernel, *parts):
    """An operator whose kernel reads these ``parts`` of x and y, functions of one tensor."""

    def run(x, y):
        out = torch.empty(x.shape)
        launch(kernel, (1,), *(part(tensor) for part, tensor in zip(parts, (x, y), strict=True)), 1)
        return out

    return operator(run, "(Tensor x, Tensor y) -> Tensor", lambda x, y: torch.empty(x.shape))


def test_one_tensor_given_twice_has_a_recording_of_its_own():
    kernel = Kernel()
    add, x, y = adding(kernel, lambda x: x, lambda y: y), torch.randn(8), torch.randn(8)
    for pair in ((x, x), (x, x), (x, y), (x, y), (y, y)):
        add(*pair)
    assert not add.obstacles and len(kernel.launched) == 2
    assert [words[9:11] for words in kernel.repeated] == [
        (x.data_ptr(), x.data_ptr()), (x.data_ptr(), y.data_ptr()), (y.data_ptr(), y.data_ptr()),
    ]  # fmt: skip


def test_views_of_one_memory_are_told_apart_by_the_input_that_they_are_of():
    """Where two inputs share memory, an address says nothing of which one a later call has there."""
    kernel = Kernel()
    add = adding(kernel, lambda x: x, lambda y: y[4:])
    shared = torch.randn(20)
    add(shared[4:12], shared[:8])  # y[4:] begins where x does
    x, y = torch.randn(8), torch.randn(8)
    add(x, y)
    assert not add.obstacles and len(kernel.launched) == 1
    assert kernel.repeated[0][9:11] == (x.data_ptr(), y.data_ptr() + 16)


def test_kernels_get_scratch_unless_the_caller_has_an_allocator_and_it_is_not_recorded():
    kernel = Kernel()
    mine = object()

    def check():
        launching.allow_scratch()
        assert launching._allocation._allocator.get() is launching._scratch
        plan.triton.set_allocator(mine)
        launching.allow_scratch()
        assert launching._allocation._allocator.get() is mine

    contextvars.Context().run(check)

    class Scratching(Kernel):
        def __getitem__(self, grid):
            torch.empty(99)
            return super().__getitem__(grid)

    kernel = Scratching()
    double = operator(doubling(kernel))
    double(torch.randn(8))
    x = torch.randn(8)
    out = double(x)
    assert kernel.repeated[0][9:11] == (x.data_ptr(), out.data_ptr())


def test_somebody_who_watches_allocations_sees_them():
    kernel = Kernel()
    double, x = operator(doubling(kernel)), torch.randn(8)
    double(x)

    class Watch(TorchFunctionMode):
        seen = 0

        def __torch_function__(self, function, types, args=(), kwargs=None):
            Watch.seen += function is torch.empty_like
            return function(*args, **(kwargs or {}))

    with Watch():
        double(x)
    assert Watch.seen == 1 and not kernel.repeated


def test_a_default_device_watches_nothing():
    """It is a mode of torch functions as well; whoever sets one must not pay for the launcher at every call."""
    kernel = Kernel()
    double, x = operator(doubling(kernel)), torch.randn(8)
    with torch.device("cpu"):
        double(x)
        double(x)
    assert len(kernel.launched) == len(kernel.repeated) == 1
