"""Cross-entropy with class weights, of probabilities, and of classes along any axis; on the interpreter."""

import itertools

import pytest
import torch
from atlas.declaration import case
from atlas.declaration.hardware import INTERPRETER
from atlas.host.gpus import gpu
from atlas.reading.config import load_gpus
from atlas.validation.problems import Problem
from torch.nn import functional as F

import kernels.nn
from kernels.cross_entropy import cross_entropy
from kernels.weighted_cross_entropy import DECLARATION
from kernels.weighted_cross_entropy.tiling import tile_of
from kernels.weighted_cross_entropy.total import total_of

N = 7


def randn(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


LOGITS = {
    "one row": randn(N),
    "by columns": randn(N, 5).t(),
    "each second": randn(5, 2 * N)[:, ::2],
    "sequences": randn(2, N, 5),
    "sequences, classes last": randn(2, 5, N).transpose(1, 2),
    "images": randn(2, N, 3, 4),
    "channels last": randn(2, N, 3, 4).to(memory_format=torch.channels_last),
    "images with gaps": randn(2, N, 3, 6)[..., :4],
    "expanded": randn(1, N, 1).expand(3, N, 4),
}
WEIGHT = torch.linspace(0.1, 2.0, N)


def assert_as_torch(x, target, weight, **options):
    """Loss and gradients against torch's in float64."""
    ours, theirs = x.detach().requires_grad_(), x.detach().double().requires_grad_()
    leaves = [(ours, theirs)]
    wanted = target
    if target.is_floating_point():
        target, wanted = target.detach().requires_grad_(), target.detach().double().requires_grad_()
        leaves.append((target, wanted))
    found = cross_entropy(ours, target, weight, **options)
    expected = F.cross_entropy(theirs, wanted, None if weight is None else weight.double(), **options)
    torch.testing.assert_close(found, expected.float(), rtol=1e-5, atol=1e-5)
    upstream = randn(*found.shape, seed=3)
    found.backward(upstream), expected.backward(upstream.double())
    for one, other in leaves:
        torch.testing.assert_close(one.grad, other.grad.float(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("x", LOGITS.values(), ids=LOGITS)
def test_loss_and_gradients_are_torch_s_in_every_layout(x):
    classes = 1 if x.dim() > 1 else 0
    places = [size for axis, size in enumerate(x.shape) if axis != classes]
    index = torch.randint(0, N, places, generator=torch.Generator().manual_seed(1))
    for weight, (reduction, smoothing) in zip(
        (None, WEIGHT, WEIGHT), (("mean", 0.0), ("none", 0.1), ("mean", 0.1)), strict=True
    ):
        options = {"reduction": reduction, "label_smoothing": smoothing}
        assert_as_torch(x, index, weight, ignore_index=3 if places else -100, **options)
        assert_as_torch(x, torch.softmax(randn(*x.shape, seed=2), classes), weight, **options)


@pytest.mark.parametrize("n", [60, 5004], ids=["one block a program", "several"])
def test_blocks_of_a_row_are_a_program_s_or_many_programs(n):
    x, index = randn(3, n), torch.tensor([0, n - 1, 7])
    assert_as_torch(x, index, torch.linspace(0.1, 2.0, n))
    assert_as_torch(x, torch.softmax(randn(3, n, seed=2), 1), None, label_smoothing=0.1)


@pytest.mark.parametrize("n", [301, 521], ids=["by few lanes of a warp", "by a program"])
@pytest.mark.parametrize(("step", "gap"), [(1, 0), (1, 3), (2, 0)], ids=["odd rows", "padded", "each second class"])
def test_rows_that_begin_anywhere_are_read_in_whole_lanes(n, step, gap):
    """Logits and targets alike, and with targets that begin elsewhere in a lane."""
    x, weight = randn(5, step * n + gap)[:, ::step][:, :n], torch.linspace(0.1, 2.0, n)
    for target in (randn(*x.shape, seed=2), randn(5, n + 5, seed=2)[:, 1 : n + 1]):
        assert_as_torch(x, torch.softmax(target, 1), None, reduction="none")
        assert_as_torch(x, target.softmax(1).as_strided(x.shape, (n, 1)), weight, label_smoothing=0.1)
    index = torch.tensor([0, n - 1, -100, 7, 8])
    assert_as_torch(x, index, weight)
    assert_as_torch(x, index, weight, label_smoothing=0.1, reduction="none")


@pytest.mark.parametrize(
    ("direction", "sizes", "probabilities", "expected"),
    [
        ("forward", (512, 50257, 1), True, "lanes"),
        ("backward", (512, 50257, 1), True, "lanes"),
        ("forward", (512, 50304, 1), True, "stream"),
        ("forward", (844, 100277, 1), False, "lanes"),
        ("backward", (844, 100277, 1), False, "lanes"),
        ("forward", (32, 50257, 1), False, "stream"),
        ("backward", (2048, 129, 1), False, "blocks"),
        ("forward", (1_000_000, 13, 1), False, "strips"),
        ("backward", (65536, 257, 1), False, "strips"),
        ("forward", (4096, 257, 1), False, "lanes"),
        ("forward", (262144, 100, 1), True, "strips"),
        ("backward", (262144, 100, 1), True, "flat"),
        ("forward", (262144, 301, 1), True, "lanes"),
        ("backward", (3, 2, 65536), True, "held"),
        ("backward", (8, 4, 65536), True, "blocks"),
        ("backward", (8, 19, 524288), False, "held"),
        ("backward", (16, 10, 4096), False, "blocks"),
    ],
)
def test_each_layout_of_the_loss_has_its_variant(direction, sizes, probabilities, expected):
    h200 = gpu("h200", load_gpus()["h200"])
    flags = {"last": sizes[2] == 1, "weight": False, "probabilities": probabilities}
    problem = case("bf16", **dict(zip("bns", sizes, strict=True)), **flags)
    assert DECLARATION.passes[direction].preferred(problem, h200).name == expected


@pytest.mark.parametrize("programs", [16_384, 16_385, 300_001])
def test_the_total_of_however_many_parts_is_their_sum(programs):
    parts, scale = torch.rand(2 * programs), torch.empty(1)
    loss, _, _ = total_of(parts, None, scale, programs, "mean", torch.float32)
    total, divisor = parts.double().view(2, -1).sum(1)
    torch.testing.assert_close(loss.double(), total / divisor, rtol=3e-6, atol=0.0)
    torch.testing.assert_close(scale[0].double(), 1 / divisor, rtol=3e-6, atol=0.0)


def test_untuned_rows_of_few_classes_fill_the_vectors_of_a_program():
    h200 = gpu("h200", load_gpus()["h200"])
    problem = case("bf16", b=1_000_000, n=13, s=1, last=True, weight=True, probabilities=False)
    for work in DECLARATION.passes.values():
        assert work.variants[-1].default(problem, h200)["BLOCK_M"] == 64


@pytest.mark.parametrize("n", [3, 8, 13, 21, 50, 100, 257])
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("direction", DECLARATION.passes)
def test_every_variant_takes_rows_and_columns_of_few_classes(direction, dtype, n):
    """70 of them: more than one program of any variant has, the last not full."""
    work, cpu = DECLARATION.passes[direction], torch.device("cpu")
    for weight, probabilities in ((False, False), (True, False), (True, True)):
        for sizes, flags in (
            ({"b": 70, "s": 1, "last": True}, {"ignored": True}),
            ({"b": 35, "s": 2, "last": True}, {"gap": 3, "smoothing": 0.1, "reduction": "none"}),
            ({"b": 2, "s": 36, "last": False}, {"z_loss": 0.01, "smoothing": 0.1}),
        ):
            problem = case(dtype, n=n, weight=weight, probabilities=probabilities, **sizes, **flags)
            drawn = Problem(DECLARATION, direction, problem, cpu, seed=2)
            for variant in work.variants:
                if not variant.unsupported(problem, INTERPRETER):
                    out = variant.launch(**drawn.inputs, config=variant.default(problem, INTERPRETER))
                    assert not drawn.judge(out).reason, (variant.name, str(problem))


def test_rows_that_share_elements_may_all_end_where_the_logits_do():
    """As many as two programs have, so that one that is not the last reads the end, too."""
    target = torch.arange(300) % 101
    for x in (randn(1, 101).expand(300, 101), randn(400).unfold(0, 101, 1)):
        for weight in (None, torch.ones(101)):
            found, expected = cross_entropy(x, target, weight), F.cross_entropy(x, target, weight)
            torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_loss_has_torch_s_dtype(dtype):
    x, index = randn(4, N, 3).to(dtype), torch.zeros(4, 3, dtype=torch.int64)
    assert cross_entropy(x, index, WEIGHT.to(dtype)).dtype == dtype
    for of_target, of_weight in itertools.product((dtype, torch.float32), repeat=2):
        target, weight = torch.softmax(x.float(), 1).to(of_target), WEIGHT.to(of_weight)
        found, expected = cross_entropy(x, target, weight), F.cross_entropy(x, target, weight)
        assert found.dtype == expected.dtype
        torch.testing.assert_close(found.float(), expected.float(), rtol=2e-2, atol=2e-2)


def test_an_ignored_place_is_not_read_and_an_impossible_target_is_nan():
    x, index = randn(2, N, 3), torch.zeros(2, 3, dtype=torch.int64)
    index[0, 1] = -100
    x[0, :, 1] = float("nan")
    x.requires_grad_()
    cross_entropy(x, index, WEIGHT).backward()
    assert bool(x.grad.isfinite().all()) and not x.grad[0, :, 1].any()
    index[1, 2] = N
    loss = cross_entropy(x.detach().nan_to_num(), index, reduction="none")
    assert loss.isnan().nonzero().tolist() == [[1, 2]]


def test_second_derivatives_go_through_torch():
    x, target = randn(3, N, 2).double().requires_grad_(), torch.softmax(randn(3, N, 2, seed=1), 1)

    def second(loss, x):
        (first,) = torch.autograd.grad(loss, x, create_graph=True)
        return torch.autograd.grad(first.square().sum(), x)[0]

    ours = x.detach().float().requires_grad_()
    found = second(cross_entropy(ours, target, WEIGHT), ours)
    torch.testing.assert_close(found, second(F.cross_entropy(x, target.double(), WEIGHT.double()), x).float())


def test_the_module_passes_its_weight():
    x, index = randn(2, N, 3), torch.ones(2, 3, dtype=torch.int64)
    ours = kernels.nn.CrossEntropyLoss(weight=WEIGHT, label_smoothing=0.2)
    torch.testing.assert_close(ours(x, index), F.cross_entropy(x, index, WEIGHT, label_smoothing=0.2))


def test_in_place_gradients_are_for_rows_and_indices_alone():
    x = (randn(2, N, 3).requires_grad_() * 1).requires_grad_()
    with pytest.raises(NotImplementedError, match="inplace_gradient"):
        cross_entropy(x, torch.zeros(2, 3, dtype=torch.int64), inplace_gradient=True)


def test_layouts_are_read_as_they_lie(monkeypatch):
    seen = []
    monkeypatch.setattr(torch.Tensor, "contiguous", lambda x: seen.append(x.shape) or torch.clone(x))
    for name in ("by columns", "sequences", "images", "channels last"):
        x = LOGITS[name]
        cross_entropy(x, torch.zeros(x.shape[:1] + x.shape[2:], dtype=torch.int64))
    assert not [shape for shape in seen if N in shape]


@pytest.mark.parametrize("name", ["h100", "t4"])
@pytest.mark.parametrize(("b", "n", "s"), [(4, 256, 50176), (8, 19, 524288), (64, 1000, 196), (1, 1000, 20)])
def test_untuned_lanes_that_share_a_row_of_the_loss_hold_one_vector_each(name, b, n, s):
    """More spill: 4 x 256 x 50176 took 264 us on an H100 where 86 is possible."""
    problem = case("bf16", b=b, n=n, s=s, last=False, weight=True, probabilities=False)
    config = DECLARATION.forward.variant("stream").default(problem, gpu(name, load_gpus()[name]))
    lanes, _ = tile_of(config, n, 2)
    assert config["VECTORS"] == 1 or lanes == 1


@pytest.mark.parametrize("direction", DECLARATION.passes)
def test_untuned_few_short_rows_of_the_loss_are_dealt_out_to_every_sm(direction):
    """422 rows of 66 classes, 8 a program: 53 programs, and each SM of an H200 can have one."""
    h200 = gpu("h200", load_gpus()["h200"])
    problem = case("bf16", b=422, n=66, s=1, last=True, weight=True, probabilities=False)
    config = DECLARATION.passes[direction].preferred(problem, h200).default(problem, h200)
    assert 422 // config["BLOCK_M"] >= h200.sms


@pytest.mark.parametrize(("sizes", "last"), [((15, 30522, 1), True), ((16, 21, 196), False)])
def test_untuned_gradients_of_few_logits_are_cut_into_small_blocks(sizes, last):
    h200 = gpu("h200", load_gpus()["h200"])
    problem = case("fp16", **dict(zip("bns", sizes, strict=True)), last=last, weight=False, probabilities=False)
    config = DECLARATION.backward.preferred(problem, h200).default(problem, h200)
    assert (config["VECTORS"], config["num_warps"]) == (1, 4)


def test_untuned_lanes_of_the_loss_share_no_row_of_few_classes_and_are_all_at_work():
    h200 = gpu("h200", load_gpus()["h200"])
    for b, n, s in ((64, 10, 3136), (32, 10, 3136), (2, 10, 16384), (16, 21, 196)):
        problem = case("fp16", b=b, n=n, s=s, last=False, weight=False, probabilities=False)
        config = DECLARATION.forward.preferred(problem, h200).default(problem, h200)
        lanes, _ = tile_of(config, n, 2)
        assert (lanes == 1) == (b * s >= h200.sms * 512)
        assert config["num_warps"] == 4  # eight have room for more classes than there are


def test_untuned_gradients_of_many_rows_and_classes_have_eight_warps_of_four_vectors():
    """8 x 256 x 65536 of bf16: 192 us, and 234 by four warps of two (H200); of 150 classes, 34 x 3136 rows are few."""
    h200 = gpu("h200", load_gpus()["h200"])
    warps = []
    for b, n, s in ((8, 256, 65536), (34, 150, 3136)):
        problem = case("bf16", b=b, n=n, s=s, last=False, weight=False, probabilities=False)
        warps.append(DECLARATION.backward.preferred(problem, h200).default(problem, h200)["num_warps"])
    assert warps == [8, 4]


@pytest.mark.parametrize(
    ("sizes", "dtype", "probabilities", "expected"),
    [
        ((22, 150, 65536), "bf16", True, (512, 2, 4)),  # 324 us for 385 (H200, all of these)
        ((16, 40, 65536), "bf16", True, (512, 2, 4)),  # 67.9 for 85.6
        ((16, 300, 16384), "bf16", True, (512, 2, 4)),  # 119 for 145
        ((22, 150, 65536), "bf16", False, (1024, 4, 8)),
        ((8, 21, 262144), "bf16", True, (1024, 4, 4)),  # not measured, as in fp32
        ((22, 150, 65536), "fp32", True, (512, 4, 8)),
    ],
)
def test_untuned_gradients_of_columns_of_probabilities_have_two_vectors_a_thread(sizes, dtype, probabilities, expected):
    h200 = gpu("h200", load_gpus()["h200"])
    sizes = dict(zip("bns", sizes, strict=True))
    problem = case(dtype, **sizes, last=False, weight=False, probabilities=probabilities)
    config = DECLARATION.backward.preferred(problem, h200).default(problem, h200)
    assert tuple(config.values()) == expected


def test_it_compiles_into_one_graph():
    x, exact = randn(3, N, 5).requires_grad_(), randn(3, N, 5).requires_grad_()

    def function(x, loss):
        return loss(x.sin(), x.softmax(1), WEIGHT, label_smoothing=0.1)

    torch.compile(function, fullgraph=True, backend="aot_eager")(x, cross_entropy).backward()
    function(exact, F.cross_entropy).backward()
    torch.testing.assert_close(x.grad, exact.grad)


def test_the_peers_are_given_rows_as_rows(monkeypatch):
    """Of [b, n, 1] in bf16 torch's sum on a GPU stalls."""
    seen, loss = [], F.cross_entropy
    monkeypatch.setattr(
        F, "cross_entropy", lambda x, *rest, **options: seen.append(x.dim()) or loss(x, *rest, **options)
    )
    flags = {"weight": True, "probabilities": False}
    for size, probabilities in itertools.product((1, 3), (False, True)):
        problem = case("bf16", b=4, n=N, s=size, last=True, **flags | {"probabilities": probabilities})
        inputs = DECLARATION.forward.inputs(problem, torch.device("cpu"), torch.Generator().manual_seed(0))
        assert DECLARATION.forward.peers["torch"].prepare(**inputs)().shape == ()
    assert seen == [2, 2, 3, 3]
