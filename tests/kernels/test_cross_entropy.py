"""Cross-entropy on the interpreter: arguments, special values, gradients kept apart and in place, refusals."""

import pytest
import torch
from atlas.declaration import case
from atlas.declaration.choice import untuned
from atlas.declaration.hardware import INTERPRETER
from atlas.host.gpus import gpu
from atlas.reading.config import load_gpus
from atlas.validation.problems import Problem
from defaults_under_test import assert_defaults_fit
from torch.nn import functional

from kernels.cross_entropy import DECLARATION, _forward, cross_entropy
from kernels.cross_entropy.total import launch_total, total_of

CPU = torch.device("cpu")
GPUS = {name: gpu(name, block) for name, block in load_gpus().items() if block.get("build", "match" in block)}
PLAIN = {"ignore_index": -100, "reduction": "mean", "label_smoothing": 0.0, "z_loss": 0.0}


def randn(*shape, dtype=torch.float32, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def targets(m, n, seed=3):
    return torch.randint(0, n, (m,), generator=torch.Generator().manual_seed(seed))


def close(found, expected, tolerance=3e-6):
    torch.testing.assert_close(found.double(), expected, rtol=tolerance, atol=tolerance * 0.1, equal_nan=True)


def launched(variant, x, target, gradient, **arguments):
    m, n = x.shape
    config = variant.default(case("fp32", m=m, n=n, gradient=gradient), INTERPRETER)
    return variant.launch(x, target, *(PLAIN | arguments).values(), gradient, config=config)


@pytest.mark.parametrize("smoothing", [0.0, 0.2, 1.0])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_every_reduction_and_smoothing_has_torch_s_value_and_gradient(reduction, smoothing):
    x, target = randn(5, 67).requires_grad_(), targets(5, 67)
    target[1] = 7
    exact = x.detach().double().requires_grad_()
    arguments = {"ignore_index": 7, "reduction": reduction, "label_smoothing": smoothing}
    loss, expected = cross_entropy(x, target, **arguments), functional.cross_entropy(exact, target, **arguments)
    dloss = randn(*loss.shape, seed=1)
    loss.backward(dloss)
    expected.backward(dloss.double())
    close(loss.detach(), expected.detach())
    close(x.grad, exact.grad)


@pytest.mark.parametrize("n", [1, 2, 5, 7, 13, 64, 127, 129, 260])
@pytest.mark.parametrize("apart", [0, 3], ids=["", "rows apart"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_of_rows_of_few_classes_are_torch_s_wherever_a_row_begins(n, apart, dtype):
    x, target = randn(301, n + apart, dtype=dtype)[:, :n], targets(301, n)
    target[::3] = -100
    ours, theirs = x.detach().requires_grad_(), x.double().requires_grad_()
    cross_entropy(ours, target, label_smoothing=0.1, reduction="none").backward(randn(301, dtype=dtype))
    expected = functional.cross_entropy(theirs, target, label_smoothing=0.1, reduction="none")
    expected.backward(randn(301, dtype=dtype).double())
    close(ours.grad, theirs.grad, 3e-6 if dtype == torch.float32 else 1e-2)


@pytest.mark.parametrize("m", [16_384, 16_385, 300_001])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_the_total_of_however_many_rows_is_their_sum_over_those_that_count(m, reduction):
    rows, target, scale, again = torch.rand(m), targets(m, 5), torch.empty(1), torch.empty(1)
    target[::3] = -100
    count = (target != -100).sum().double() if reduction == "mean" else torch.ones((), dtype=torch.float64)
    loss = total_of(rows, target, scale, -100, reduction, torch.float32)
    close(loss, rows.double().sum() / count)
    close(scale[0], 1 / count)
    launch_total(rows, target, rows, again, -100, reduction, total=False)
    assert torch.equal(scale, again)
    launch_total(rows, target, loss.zero_(), again, -100, reduction, total=True)
    close(loss, rows.double().sum() / count)


@pytest.mark.parametrize(
    ("name", "n", "apart"),
    [("held", 1, 3), ("held", 2, 3), ("held", 13, 3), ("held", 16, 3)]
    + [("strips", n, apart) for n, apart in ((1, 0), (2, 3), (13, 0), (13, 3), (40, 4), (101, 0), (257, 6))],
)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_rows_that_threads_hold_leave_what_one_pass_does(name, n, apart, reduction):
    x, target = randn(1001, n + apart)[:, :n], targets(1001, n)
    x[4], target[::3], target[5] = -float("inf"), -100, n if reduction == "none" else 0
    x[6] = float("nan")
    target[4] = target[6] = -100
    parameters = {"reduction": reduction, "label_smoothing": 0.1, "z_loss": 0.01}
    found, expected = (
        launched(DECLARATION.passes["forward"].variant(one), x, target, False, **parameters)
        for one in (name, "one_pass")
    )
    for one, other in zip(found, expected, strict=True):
        close(one, other.double())


def test_the_z_loss_is_the_mean_of_squares_over_the_rows_that_count():
    x, target = randn(4, 30).requires_grad_(), torch.tensor([3, -100, 29, 0])
    exact = x.detach().double().requires_grad_()
    squares = torch.logsumexp(exact, -1).square()[target >= 0]
    expected = functional.cross_entropy(exact, target) + 0.01 * squares.mean()
    loss = cross_entropy(x, target, z_loss=0.01)
    (2 * loss).backward()
    (2 * expected).backward()
    close(loss.detach(), expected.detach())
    close(x.grad, exact.grad)


def test_few_rows_of_few_classes_are_one_program_s():
    shapes = ((35, 20), (250, 10), (4, 32), (1000, 20), (64, 250), (64, 1000), (1, 40_000))
    found = [untuned(DECLARATION.forward, case("bf16", m=m, n=n), GPUS["h200"])[0].name for m, n in shapes]
    assert found == ["whole"] * 3 + ["one_pass"] * 3 + ["split"]


@pytest.mark.parametrize(
    ("dtype", "m", "n", "forward", "backward"),
    [
        ("bf16", 1_000_000, 13, "held", "flat"),
        ("bf16", 1_000_000, 16, "strips", "strips"),
        ("bf16", 8192, 100, "strips", "strips"),
        ("fp32", 131_072, 257, "strips", "strips"),
        ("bf16", 65_536, 1000, "strips", "blocks"),
        ("bf16", 8192, 1000, "one_pass", "blocks"),
        ("fp32", 65_536, 1000, "one_pass", "blocks"),
        ("bf16", 4096, 100, "one_pass", "flat"),
    ],
)
def test_many_short_rows_are_held_by_a_thread_or_a_few(dtype, m, n, forward, backward):
    found = [work.preferred(case(dtype, m=m, n=n), GPUS["h200"]).name for work in DECLARATION.passes.values()]
    assert found == [forward, backward]


@pytest.mark.parametrize("gpu_name", ["t4", "a100", "h200"])
@pytest.mark.parametrize("dtype", ["fp32", "fp16"])
def test_any_few_rows_have_a_default_in_both_directions(dtype, gpu_name):
    """For five rows or fewer of 33 to 128 classes the gradient found no config."""
    for m in (1, 2, 3, 5, 8):
        for n in (1, 3, 32, 33, 50, 64, 65, 79, 127, 128, 129, 1000):
            for work in DECLARATION.passes.values():
                variant, config = untuned(work, case(dtype, m=m, n=n), GPUS[gpu_name])
                assert config.keys() == variant.space.keys()


@pytest.mark.parametrize(("m", "n"), [(1, 79), (2, 64), (3, 41), (1, 128), (5, 49)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_few_rows_of_classes_beyond_a_warp_have_a_gradient(m, n, dtype):
    x, target = randn(m, n).to(dtype).requires_grad_(), targets(m, n)
    exact = x.detach().double().requires_grad_()
    cross_entropy(x, target, label_smoothing=0.1).backward()
    functional.cross_entropy(exact, target, label_smoothing=0.1).backward()
    torch.testing.assert_close(x.grad.double(), exact.grad, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("variant", DECLARATION.forward.variants, ids=lambda v: v.name)
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_every_variant_sums_the_losses_of_rows_that_count(variant, reduction):
    x, target = randn(9, 33), targets(9, 33)
    target[::4] = -100
    x[4] = float("nan")
    exact = x.double().requires_grad_()
    expected = functional.cross_entropy(exact, target, reduction=reduction, label_smoothing=0.1)
    expected.backward()
    only = {"stream_gradient": [True], "split": [False], "stream": [False], "held": [False], "strips": [False]}
    for gradient in only.get(variant.name, [False, True]):
        arguments = {"reduction": reduction, "label_smoothing": 0.1}
        loss, saved, scale = launched(variant, x, target, gradient, **arguments)
        close(loss, expected.detach())
        assert scale == (1 if reduction == "sum" else 1 / (target >= 0).sum().float())
        if gradient:
            close(saved, torch.where((target >= 0)[:, None], exact.grad, 0.0))


@pytest.mark.parametrize("variant", DECLARATION.forward.variants, ids=lambda v: v.name)
@pytest.mark.parametrize("n", [33, 2100], ids=["one block", "two blocks"])
def test_infinities_and_impossible_targets_make_their_row_what_torch_makes_of_it(variant, n):
    gradient, n = variant.name == "stream_gradient", 13 if variant.name == "held" else n
    x, target = randn(8, n), targets(8, n)
    x[0, 3] = float("nan")
    x[1, 5] = float("inf")
    x[2, :] = float("-inf")  # no finite value: NaN
    x[3, :-1] = float("-inf")  # a running maximum that stays at -inf until the last element
    x[4] = torch.finfo(torch.float32).min  # the value a running maximum starts from
    x[5, target[5]] = float("-inf")  # an infinite loss and a finite gradient
    x[6] += 1e4  # lse is rounded to its own size here, the loss to its own
    target[7] = n  # out of range: NaN, and nothing read outside the row
    loss, saved, _ = launched(variant, x, target, gradient, reduction="none")
    target[7] = 0
    exact = x.double().requires_grad_()
    expected = functional.cross_entropy(exact, target, reduction="none")
    expected.sum().backward()
    assert loss[7].isnan() and saved[7].isnan().all()
    close(loss[:7], expected[:7].detach())
    if gradient:
        close(saved[:7], exact.grad[:7])


def test_a_nan_in_an_ignored_row_reaches_neither_loss_nor_gradient():
    x, target = randn(3, 20), torch.tensor([4, -100, 2])
    x[1] = float("nan")
    x.requires_grad_()
    loss = cross_entropy(x, target)
    loss.backward()
    close(loss.detach(), functional.cross_entropy(x.detach().double()[::2], target[::2]))
    assert (x.grad[1] == 0).all()


@pytest.mark.parametrize("factor", [float("inf"), float("-inf"), float("nan")])
def test_an_infinite_gradient_of_the_loss_leaves_signs_and_ignored_rows(factor):
    x, target = randn(3, 21).requires_grad_(), torch.tensor([4, -100, 2])  # 21: whole lanes and edges
    (cross_entropy(x, target) * factor).backward()
    own = functional.one_hot(target[::2], 21)
    close(x.grad[::2], factor * (torch.softmax(x.detach()[::2].double(), -1) - own))
    assert (x.grad[1] == 0).all()


def test_nothing_that_counts_gives_nan_for_the_mean_and_0_for_the_sum_as_in_torch():
    x, target = randn(3, 20).requires_grad_(), torch.full((3,), -100)
    assert cross_entropy(x, target).isnan()
    loss = cross_entropy(x, target, reduction="sum")
    loss.backward()
    assert loss == 0 and (x.grad == 0).all()


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("flags", [{}, {"gradient": True}], ids=["plain", "gradient"])
def test_every_config_gives_the_same_rows(direction, flags):
    problem = case("fp16", m=3, n=4104, **flags)  # a tail block
    drawn = Problem(DECLARATION, direction, problem, CPU, seed=2)
    for variant in DECLARATION.passes[direction].variants:
        if not variant.unsupported(problem, INTERPRETER):
            shapes = {
                tuple(v for k, v in c.items() if k != "num_warps"): c for c in variant.configs(problem, INTERPRETER)
            }
            for config in shapes.values():
                assert not drawn.judge(variant.launch(**drawn.inputs, config=config)).reason, (variant.name, config)


def test_rows_apart_are_read_where_they_lie_and_other_layouts_copied():
    base, target = randn(9, 80), targets(4, 40)
    for x in (base[:4, :57], base[1:5, 3:43], base[:8:2, 30:], base.t()[:4, :9], base[:1, :40].expand(4, 40)):
        leaf, exact = x.detach().requires_grad_(), x.double().requires_grad_()
        within = target % x.shape[1]
        loss, expected = cross_entropy(leaf, within), functional.cross_entropy(exact, within)
        loss.backward()
        expected.backward()
        close(loss.detach(), expected.detach())
        close(leaf.grad, exact.grad)


def test_one_row_without_a_batch_and_no_rows_at_all_are_as_in_torch():
    x, target = randn(11), torch.tensor(4)
    for reduction in ("mean", "none"):
        close(cross_entropy(x, target, reduction=reduction), functional.cross_entropy(x.double(), target))
    empty, none = torch.empty(0, 5), torch.empty(0, dtype=torch.int64)
    assert cross_entropy(empty, none).isnan()
    assert cross_entropy(empty, none, reduction="sum", z_loss=0.1) == 0
    assert cross_entropy(empty, none, reduction="none").shape == (0,)


def test_the_loss_has_the_dtype_of_the_logits():
    for dtype in (torch.float16, torch.bfloat16):
        x, target = randn(4, 100, dtype=dtype).requires_grad_(), targets(4, 100)
        loss = cross_entropy(x, target)
        loss.backward()
        assert loss.dtype == x.grad.dtype == dtype
        close(loss.detach(), functional.cross_entropy(x.detach().double(), target), 2e-2)


@pytest.mark.parametrize(("shape", "factor"), [((6, 70), 1.0), ((6, 70), 3.0), ((3, 20_001), 0.5)], ids=str)
def test_in_place_the_gradient_takes_the_place_of_the_logits(shape, factor):
    leaf, target = randn(*shape).requires_grad_(), targets(*shape)
    logits = leaf * 1.0
    given = logits.detach().clone()
    loss = cross_entropy(logits, target, label_smoothing=0.1, inplace_gradient=True)
    assert not torch.equal(logits.detach(), given)
    (loss * factor).backward()
    exact = given.double().requires_grad_()
    (functional.cross_entropy(exact, target, label_smoothing=0.1) * factor).backward()
    close(leaf.grad, exact.grad)


def test_in_place_whoever_saved_the_logits_is_told_that_they_are_gone():
    leaf, target = randn(4, 10).requires_grad_(), targets(4, 10)
    logits = leaf * 1.0
    other = logits.square().sum()
    loss = cross_entropy(logits, target, inplace_gradient=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        (loss + other).backward()


def test_in_place_a_second_backward_is_refused():
    logits = randn(4, 10).requires_grad_() * 1.0
    loss = cross_entropy(logits, targets(4, 10), inplace_gradient=True)
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_in_place_changes_nothing_where_no_gradient_is_wanted():
    x, target = randn(4, 10), targets(4, 10)
    close(cross_entropy(x, target, inplace_gradient=True), functional.cross_entropy(x.double(), target))
    assert torch.equal(x, randn(4, 10))


def test_in_place_needs_logits_that_may_be_overwritten():
    leaf, target = randn(4, 10).requires_grad_(), targets(4, 10)
    with pytest.raises(ValueError, match="leaf"):
        cross_entropy(leaf, target, inplace_gradient=True)
    with pytest.raises(ValueError, match="strides"):
        cross_entropy((leaf * 1.0).t(), targets(10, 4), inplace_gradient=True)
    with pytest.raises(NotImplementedError, match="none"):
        cross_entropy(leaf * 1.0, target, reduction="none", inplace_gradient=True)


def test_second_derivatives_agree_with_float64_autograd():
    x, v, target = randn(3, 9), randn(3, 9, seed=2), targets(3, 9)

    def second(function, x, v):
        x = x.requires_grad_()
        (first,) = torch.autograd.grad(function(x, target, label_smoothing=0.1), x, create_graph=True)
        return torch.autograd.grad(first, x, v)[0]

    close(second(cross_entropy, x, v), second(functional.cross_entropy, x.double(), v.double()))


def test_compiled_it_is_one_graph_with_the_same_values():
    x, target = randn(4, 50).requires_grad_(), targets(4, 50)
    exact = x.detach().double().requires_grad_()
    compiled = torch.compile(lambda x, t: 2 * cross_entropy(x, t), fullgraph=True, backend="aot_eager")
    loss, expected = compiled(x, target), 2 * functional.cross_entropy(exact, target)
    loss.backward()
    expected.backward()
    close(loss.detach(), expected.detach())
    close(x.grad, exact.grad)


@pytest.mark.parametrize("wide_loss", [False, True], ids=["", "a loss in fp32, as under autocast"])
def test_the_operator_keeps_torch_s_rules(wide_loss):
    x, target = randn(4, 10).to(torch.bfloat16).requires_grad_(), targets(4, 10)
    torch.library.opcheck(_forward.op, (x, target, *PLAIN.values(), wide_loss))


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"weight": torch.ones(9)}, ValueError, "each of 10 classes"),
        ({"weight": torch.ones(10, requires_grad=True)}, NotImplementedError, "class weights"),
        ({"size_average": True}, NotImplementedError, "reduction"),
        ({"target": torch.rand(4, 10), "ignore_index": 3}, ValueError, "negative"),
        ({"target": torch.rand(4, 9)}, ValueError, "a target a row"),
        ({"input": torch.zeros(4, 10, 3)}, ValueError, "a target a row"),
        ({"target": torch.zeros(4, 1, dtype=torch.int64)}, ValueError, "a target a row"),
        ({"target": torch.zeros(3, dtype=torch.int64)}, ValueError, "a target a row"),
        ({"input": torch.zeros(4, 10, dtype=torch.float64)}, TypeError, "float64"),
        ({"target": torch.zeros(4, dtype=torch.int32)}, TypeError, "int32"),
        ({"reduction": "average"}, ValueError, "average"),
        ({"label_smoothing": 1.5}, ValueError, "1.5"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_is_not_supported_is_refused_in_words(arguments, error, words):
    with pytest.raises(error, match=words):
        cross_entropy(**({"input": torch.zeros(4, 10), "target": torch.zeros(4, dtype=torch.int64)} | arguments))


@pytest.mark.parametrize("name", GPUS)
def test_defaults_are_points_of_the_space_that_fit(name):
    assert_defaults_fit(DECLARATION, GPUS[name])


@pytest.mark.parametrize("way", ["meta", "lazily negated", "under a transform"])
def test_a_gradient_is_not_put_where_there_is_no_such_memory(way):
    """Where the logits cannot be written over, ``inplace_gradient`` changes nothing."""
    x, target = randn(4, 10), targets(4, 10)

    def loss(x):
        return cross_entropy(x * 1 if way != "lazily negated" else x, target.to(x.device), inplace_gradient=True)

    if way == "meta":
        assert loss(x.to("meta").requires_grad_()).is_meta
        return
    if way == "lazily negated":
        lazy = torch.complex(torch.zeros_like(x), -x).conj().imag
        assert lazy.is_neg()
        x = lazy.requires_grad_()
    found = torch.func.grad(loss)(x) if way == "under a transform" else torch.autograd.grad(loss(x), x)[0]
    leaf = x.detach().clone().requires_grad_()
    (expected,) = torch.autograd.grad(torch.nn.functional.cross_entropy(leaf, target), leaf)
    torch.testing.assert_close(found.resolve_neg(), expected)
