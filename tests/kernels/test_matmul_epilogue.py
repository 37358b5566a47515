"""A linear layer with its epilogue, on the interpreter: values, options, gradients, layouts, refusals."""

import itertools

import pytest
import torch
from atlas.declaration import case
from atlas.declaration.hardware import INTERPRETER
from atlas.host.gpus import gpu
from atlas.reading.config import load_gpus
from atlas.validation.problems import Problem
from defaults_under_test import assert_default_fits
from torch.nn import functional

import kernels.nn
from kernels.common import padded
from kernels.matmul_epilogue import DECLARATION, few_rows, linear, pull
from kernels.matmul_epilogue.cases import backward_reference
from kernels.matmul_epilogue.hopper import parts_of_last

CPU = torch.device("cpu")
GPUS = {name: gpu(name, block) for name, block in load_gpus().items() if block.get("build", "match" in block)}
TORCH = {
    None: lambda z: z,
    "relu": torch.relu,
    "gelu": functional.gelu,
    "gelu_tanh": lambda z: functional.gelu(z, approximate="tanh"),
    "silu": functional.silu,
}


def randn(*shape, seed=0, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def drawn(shape=(2, 5, 24), n=20, has_bias=True, has_residual=True):
    """(input, weight, bias, residual) that want gradients; None where there is none."""
    wanted = ((shape, True), ((n, shape[-1]), True), ((n,), has_bias), ((*shape[:-1], n), has_residual))
    return [randn(*size, seed=seed).requires_grad_() if there else None for seed, (size, there) in enumerate(wanted)]


def call(tensors, **options):
    return linear(*tensors[:3], residual=tensors[3], **options)


def twin(tensors, activation=None, scale=1.0):
    """The same by torch's operations, one after the other."""
    x, weight, bias, residual = tensors
    z = scale * functional.linear(x, weight)
    y = TORCH[activation](z if bias is None else z + bias)
    return y if residual is None else y + residual


def exact(tensors):
    return [t if t is None else t.detach().double().requires_grad_() for t in tensors]


def assert_close(found, expected, tolerance=2e-5):
    torch.testing.assert_close(found.double(), expected.double(), rtol=tolerance, atol=tolerance)


def assert_gradients_agree(given, **options):
    reference = exact(given)
    expected = twin(reference, **options)
    y = call(given, **options)
    assert_close(y, expected.detach())
    dy = randn(*y.shape, seed=9)
    y.backward(dy)
    expected.backward(dy.double())
    for found, like in zip(given, reference, strict=True):
        if found is not None:
            assert_close(found.grad, like.grad)


# Tails in m and n, and more columns than half a tile's; `validate` goes through all edge cases.
@pytest.mark.parametrize("activation", ["relu", "gelu_tanh"])
@pytest.mark.parametrize("variant", ["tiled", "descriptor", "persistent"])
def test_variants_agree_with_float64_and_keep_what_backward_needs(variant, activation):
    problem = case("fp16", activation=activation, bias=True, residual=True, m=140, n=264, k=72)
    given = Problem(DECLARATION, "forward", problem, CPU, seed=1)
    variant = DECLARATION.forward.variant(variant)
    y, z = variant.launch(**given.inputs, keep=True, config=variant.default(problem, INTERPRETER))
    assert not given.judge(y).reason
    x, weight, bias = (given.inputs[name].double() for name in ("x", "weight", "bias"))
    assert_close(z, x @ weight.t() + bias, 5e-3)


@pytest.mark.parametrize("first", [0, 8, 3])
@pytest.mark.parametrize(("m", "n"), [(5, 37), (37, 5)])
def test_odd_rows_of_w_or_of_x_are_multiplied_where_they_lie(m, n, first):
    problem = case("fp16", activation="gelu_tanh", bias=True, residual=True, m=m, n=n, k=301)
    given = Problem(DECLARATION, "forward", problem, CPU, seed=1)
    inputs = dict(given.inputs)
    for name in ("x", "weight"):
        wide = torch.zeros(inputs[name].shape[0], 315, dtype=torch.float16)
        wide[:, first : first + 301] = inputs[name]
        inputs[name] = wide[:, first : first + 301]
    config = {"BLOCK_N": 32, "BLOCK_K": 128, "SPLITS": 2, "COPIES": 1, "num_warps": 4}
    y, z = DECLARATION.forward.variant("staggered").launch(**inputs, keep=True, config=config)
    assert not given.judge(y).reason
    x, weight, bias = (inputs[name].double() for name in ("x", "weight", "bias"))
    assert_close(z, x @ weight.t() + bias, 5e-3)


@pytest.mark.parametrize("activation", TORCH)
def test_every_activation_forward_and_backward(activation):
    assert_gradients_agree(drawn(), activation=activation)


@pytest.mark.parametrize("has", [(False, True), (True, False)], ids=str)  # relu keeps z only beside a residual
def test_bias_and_residual_are_optional_forward_and_backward(has):
    assert_gradients_agree(drawn(has_bias=has[0], has_residual=has[1]), activation="relu")


@pytest.mark.parametrize("activation", [None, "relu", "silu"])  # g is dy itself, then z is known by y, then kept
def test_scale_is_applied_before_the_bias(activation):
    assert_gradients_agree(drawn(), activation=activation, scale=0.25)


def test_a_plain_call_is_torchs_linear():
    x, weight, bias, _ = drawn()
    assert_close(linear(x, weight, bias), functional.linear(x.double(), weight.double(), bias.double()))
    assert linear(x[0, 0], weight).shape == (20,)


def test_gradients_only_of_what_wants_them():
    x, weight, bias, residual = (t.detach() for t in drawn())
    bias.requires_grad_()
    linear(x, weight, bias, activation="silu", residual=residual).sum().backward()
    assert bias.grad is not None and x.grad is None


def test_the_result_may_have_another_dtype_and_so_may_bias_and_residual():
    x, weight = randn(6, 16, dtype=torch.float16), randn(8, 16, seed=1, dtype=torch.float16)
    given = [x.requires_grad_(), weight, randn(8, seed=2), randn(6, 8, seed=3)]
    y = call(given, activation="gelu", out_dtype=torch.float32)
    assert y.dtype == torch.float32
    assert_close(y, twin(exact(given), "gelu"), 1e-4)  # not rounded to 16 bits on the way
    y.sum().backward()
    assert x.grad.dtype == torch.float16


def test_nan_passes_relu_as_in_torch_and_its_gradient_is_torchs():
    x = torch.tensor([[float("nan")], [1.0], [-1.0]], requires_grad=True)
    y = linear(x, torch.ones(1, 1), activation="relu")
    assert y[0].isnan() and y[1:].tolist() == [[1.0], [0.0]]
    (found,) = torch.autograd.grad(y, x, torch.tensor([[1.0], [1.0], [float("nan")]]))
    assert found.tolist()[1:] == [[1.0], [0.0]]


def test_second_derivatives_agree_with_float64_autograd():
    def second(function, tensors):
        (first,) = torch.autograd.grad(
            function(tensors, activation="silu").square().sum(), tensors[0], create_graph=True
        )
        return torch.autograd.grad(first.square().sum(), tensors[:2])

    given = drawn((3, 8), 4)
    for found, expected in zip(second(call, given), second(twin, exact(given)), strict=True):
        torch.testing.assert_close(found.double(), expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("activation", ["relu", "silu"])  # an operator with one output, and with two
def test_torch_compile_takes_it_whole_forward_and_backward(activation):
    given = drawn((6, 16), 8, has_residual=False)
    compiled = torch.compile(lambda *t: call(t, activation=activation), fullgraph=True, backend="aot_eager")
    y = compiled(*given)
    assert_close(y, twin(exact(given), activation).detach())
    y.sum().backward()
    assert all(tensor.grad is not None for tensor in given[:3])


def test_torch_finds_nothing_wrong_with_the_operators():
    x, weight, bias, residual = drawn((4, 16), 8)
    operators = torch.ops.kernel_atlas
    arguments = (x, weight, bias, residual, "silu", 2.0, "fp32")
    torch.library.opcheck(operators.linear_kept.default, arguments)
    torch.library.opcheck(operators.linear.default, (x, weight, bias, None, "relu", 2.0, "fp32"))
    z = randn(4, 8, seed=7)
    few = (z, z, x.detach(), weight.detach())
    torch.library.opcheck(operators.linear_few_rows.default, (*few, "silu", 2.0, True, True, True))
    many = [tensor.repeat(20, 1) for tensor in few[:3]]
    torch.library.opcheck(operators.linear_pull.default, (*many, few[3], "silu", 2.0, True))
    odd = (randn(65, 131).half(), randn(65, 131, seed=1).half(), randn(65, 16).half(), randn(131, 16, seed=2).half())
    for rest in (("silu", 2.0, True), ("none", 1.0, True)):
        torch.library.opcheck(operators.linear_pull.default, (*odd, *rest))
    nothing_else = ("test_schema", "test_faketensor")  # without a bias, one output has no meaning
    torch.library.opcheck(operators.linear_pull.default, (*odd, "none", 1.0, False), test_utils=nothing_else)


@pytest.mark.parametrize("activation", [None, "gelu"])
@pytest.mark.parametrize("has_bias", [False, True])
def test_a_gradient_with_rows_off_16_bytes_is_copied_once_for_both_products(activation, has_bias, monkeypatch):
    copies, original = [], padded.padded_rows
    monkeypatch.setattr(padded, "padded_rows", lambda *x: copies.append(x[0].shape) or original(*x))
    given = [randn(70, 24).half(), randn(131, 24, seed=1).half(), randn(131, seed=2).half() if has_bias else None]
    given = [tensor if tensor is None else tensor.requires_grad_() for tensor in given]
    like = [tensor if tensor is None else tensor.detach().double().requires_grad_() for tensor in given]
    dy = randn(70, 131, seed=3).half()
    y = linear(*given, activation=activation)
    copies.clear()
    y.backward(dy)
    assert sum(shape[1:] == (70, 131) for shape in copies) == 1
    z = functional.linear(*like)
    (functional.gelu(z) if activation else z).backward(dy.double())
    for one, other in zip(given, like, strict=True):
        if one is not None:
            torch.testing.assert_close(one.grad.double(), other.grad, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("sizes", [(1, 1, 1), (5, 70, 33), (17, 264, 40), (64, 8, 129)])
@pytest.mark.parametrize("splits", [1, 4])
def test_gradients_of_few_rows_are_one_launch_of_what_is_wanted(sizes, splits):
    m, n, k = sizes
    x, weight, z, dy = randn(m, k), randn(n, k, seed=1), randn(m, n, seed=2), randn(m, n, seed=3)
    expected = backward_reference(*exact((x, weight, z[0], None, z, dy)), "gelu", 0.5)
    config = DECLARATION.backward.variant("few_rows").default(case("fp16", m=m, n=n, k=k), GPUS["h200"])
    config |= {"STEP_N": 32, "SPLITS": splits}
    for wanted in itertools.product((False, True), repeat=3):
        has_bias, *products = wanted
        if any(products):
            found = few_rows.launch_gradients(z, dy, x, weight, "gelu", 0.5, has_bias, *products, config=config)
            for one, other, given in zip(found, expected, (*products, has_bias), strict=True):
                if given:
                    assert_close(one, other)


@pytest.mark.parametrize(
    ("activation", "sizes", "splits"),
    [
        ("none", (64, 2048, 2048), 4),
        ("none", (64, 2048, 6144), None),  # two products take less
        ("none", (64, 2048, 6146), 2),  # for which these would copy W
        ("none", (32, 2048, 6144), 2),
        ("none", (32, 2048, 8192), 1),  # 128 programs sum dx
        ("relu", (64, 2048, 2048), 4),
        ("relu", (32, 2048, 6144), None),
    ],
)
def test_gradients_of_few_rows_are_one_launch_up_to_a_size_of_w(activation, sizes, splits):
    m, n, k = sizes
    problem = case("bf16", m=m, n=n, k=k, activation=activation, bias=False, residual=False)
    variant = DECLARATION.backward.preferred(problem, GPUS["h200"])
    default = variant.default(problem, GPUS["h200"])
    assert (variant.name, default.get("SPLITS")) == ("few_rows" if splits else "pull", splits)
    assert default in list(variant.configs(problem, GPUS["h200"]))


@pytest.mark.parametrize("wanted", [(True, False, False), (False, True, False), (True, True, True)])
def test_gradients_of_few_rows_in_16_bits_reach_what_asks_for_them(wanted):
    x, weight, bias = randn(3, 5, 24).half(), randn(24, 40, seed=1).half().t(), randn(40, seed=2).half()
    given = [tensor.requires_grad_(one) for tensor, one in zip((x, weight, bias), wanted, strict=True)]
    linear(*given, activation="silu").float().square().sum().backward()
    like = [tensor.detach().double().requires_grad_(one) for tensor, one in zip(given, wanted, strict=True)]
    functional.silu(functional.linear(*like)).square().sum().backward()
    for one, other in zip(given, like, strict=True):
        assert (one.grad is None) == (other.grad is None)
        if one.grad is not None:
            torch.testing.assert_close(one.grad.double(), other.grad, rtol=2e-2, atol=2e-2)


def test_layouts_that_are_not_contiguous_and_empty_inputs_are_taken():
    x, weight, residual = randn(16, 12).t(), randn(16, 8, seed=1).t(), randn(8, 12, seed=2).t()
    assert_close(linear(x, weight, residual=residual), twin([x.double(), weight.double(), None, residual.double()]))
    assert linear(torch.empty(0, 16), weight).shape == (0, 8)
    assert linear(torch.empty(3, 0), torch.empty(2, 0), torch.ones(2), activation="relu").tolist() == [[1.0, 1.0]] * 3


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        ((torch.ones(2, 3, dtype=torch.float64), torch.ones(4, 3)), {}, TypeError, "float64"),
        ((torch.ones(2, 3), torch.ones(4, 3).half()), {}, TypeError, "one dtype"),
        ((torch.ones(2, 3), torch.ones(3, 4)), {}, ValueError, "weight"),
        ((torch.ones(2, 3), torch.ones(4, 3), torch.ones(3)), {}, ValueError, "bias of shape"),
        ((torch.ones(2, 3), torch.ones(4, 3)), {"residual": torch.ones(4)}, ValueError, "residual of shape"),
        ((torch.ones(2, 3), torch.ones(4, 3)), {"activation": "tanh"}, ValueError, "'tanh'"),
        ((torch.ones(2, 3), torch.ones(4, 3)), {"out_dtype": torch.int32}, TypeError, "int32"),
    ],
    ids=["float64", "mixed dtypes", "W transposed", "long bias", "residual to broadcast", "activation", "out_dtype"],
)
def test_what_does_not_fit_is_refused_by_name(arguments, options, error, message):
    with pytest.raises(error, match=message):
        linear(*arguments, **options)


def test_the_module_is_torchs_with_an_activation():
    module, like = kernels.nn.Linear(16, 8, activation="gelu"), torch.nn.Linear(16, 8)
    module.load_state_dict(like.state_dict())
    x = randn(3, 16)
    assert_close(module(x), functional.gelu(like(x)))
    assert "activation='gelu'" in repr(module) and repr(kernels.nn.Linear(2, 3)) == repr(torch.nn.Linear(2, 3))


@pytest.mark.parametrize("name", GPUS)
def test_defaults_are_points_of_the_space_that_fit(name):
    for problem in (*DECLARATION.cases(GPUS[name]), *DECLARATION.edge_cases):
        for work in DECLARATION.passes.values():
            for variant in work.variants:
                if not variant.unsupported(problem, GPUS[name]):
                    config = variant.default(problem, GPUS[name])
                    reason = variant.fits(config, problem, GPUS[name])
                    if any(other in reason for other in ("should end sooner", "`swizzled`", "in the last round")):
                        continue  # left to another variant
                    assert_default_fits(variant, problem, GPUS[name])


@pytest.mark.parametrize(("m", "n", "rows"), [(512, 512, 16), (512, 14336, 32), (4096, 4096, 32), (8192, 4096, 128)])
def test_strips_of_the_backward_pass_are_no_shorter_than_four_for_each_sm_ask(m, n, rows):
    problem = case("bf16", activation="relu", bias=True, residual=False, m=m, n=n, k=64)
    assert DECLARATION.backward.variant("pull").default(problem, GPUS["h200"])["ROWS"] == rows


@pytest.mark.parametrize(
    ("dtype", "m", "bias", "config"),
    [
        ("fp16", 76, True, (128, 128, 32, 4)),  # 6912 columns 2.6 us, in strips of 16 rows 6.1
        ("bf16", 128, True, (128, 128, 32, 4)),
        ("bf16", 64, True, (64, 64, 64, 4)),
        ("bf16", 20, True, (32, 32, 128, 4)),
        ("bf16", 16, True, (16, 16, 256, 4)),
        ("bf16", 128, False, (16, 16, 256, 8)),  # 896 columns 3.0 us, by four warps 4.7
        ("bf16", 129, True, (16, 16, 256, 4)),
        ("fp32", 76, True, (16, 16, 256, 8)),
    ],
)
def test_few_rows_with_a_bias_are_one_strip_whose_sums_are_its_gradient(dtype, m, bias, config):
    problem = case(dtype, activation="gelu", bias=bias, residual=False, m=m, n=6912, k=6912)
    way = DECLARATION.backward.variant("pull")
    chosen = way.default(problem, GPUS["h200"])
    assert tuple(chosen.values()) == config and not way.fits(chosen, problem, GPUS["h200"])


@pytest.mark.parametrize(("rows", "block_n"), [(32, 128), (64, 64), (128, 32), (128, 64)])
@pytest.mark.parametrize("n", [200, 77])
def test_a_single_strip_makes_the_gradients_without_a_second_kernel(rows, block_n, n):
    z, dy = (torch.randn(rows - 3, n, dtype=torch.bfloat16) for _ in range(2))
    config = {"ROWS": rows, "BLOCK_M": rows, "BLOCK_N": block_n, "num_warps": 4}
    g, dbias = pull.launch_pull(z, dy, "relu", 1.0, True, z, config=config)
    want = torch.where(z > 0, dy, 0)
    assert torch.equal(g, want)
    torch.testing.assert_close(dbias.float(), want.float().sum(0), atol=0.05, rtol=0.01)


@pytest.mark.parametrize(
    ("m", "n", "residual", "variant"),
    [
        (128, 14336, False, "split_descriptor"),  # 40.1 us; 41.5 by `alternating`
        (128, 14336, True, "alternating"),
        (136, 11008, True, "specialized"),
        (80, 11008, False, "split_descriptor"),
    ],
)
def test_one_row_of_tiles_for_one_round_needs_no_groups_of_warps(m, n, residual, variant):
    problem = case("bf16", activation="none", bias=True, residual=residual, m=m, n=n, k=4096)
    assert DECLARATION.forward.preferred(problem, GPUS["h200"]).name == variant


@pytest.mark.parametrize(
    ("dtype", "sizes", "variant"),
    [
        ("fp32", (1024, 1024, 1024), "bf16x6"),
        ("fp32", (1024, 1024, 1022), "bf16x6"),
        ("fp32", (512, 512, 512), "swizzled"),  # few tiles: parts of K
        ("fp32", (512, 512, 510), "swizzled"),  # rows that no descriptor describes: padded copies
        ("fp32", (16, 1024, 1024), "few_rows"),
        ("tf32", (1024, 1024, 1024), "split_descriptor"),
        ("tf32", (4096, 4096, 1024), "tiled"),
    ],
)
def test_fp32_goes_to_tensor_cores_in_terms_of_bf16_to_the_swizzled_loop_or_to_that_of_few_rows(dtype, sizes, variant):
    problem = case(dtype, activation="relu", bias=True, residual=False, **dict(zip("mnk", sizes, strict=True)))
    assert DECLARATION.forward.preferred(problem, GPUS["h200"]).name == variant


@pytest.mark.parametrize(
    ("tiles", "most", "parts"),
    [
        (448, 2, 2),  # 52 tiles are left for 132 programs
        (448, 4, 2),
        (5 * 132 + 28, 4, 4),
        (5 * 132 + 28, 2, 2),
        (132 + 67, 4, 1),  # more than half of the programs have one
        (264, 4, 1),  # none is left
        (28, 4, 1),  # no round is full
    ],
)
def test_tiles_of_the_last_round_are_cut_where_each_part_finds_a_program(tiles, most, parts):
    assert parts_of_last(tiles, 132, most) == parts


COMPILE = """
import json, sys
from atlas.compilation.compiled import meta_inputs
from atlas.compilation.offline import compile_only
from atlas.compilation.resources import resources_of
from atlas.reading.config import load_gpus
from atlas.declaration import case
from atlas.host.gpus import gpu
from kernels.matmul_epilogue import DECLARATION

work, on, found = DECLARATION.forward, gpu("h200", load_gpus()["h200"]), []
problem = case("bf16", activation="silu", bias=True, residual=True, m=2048, n=11008, k=4096)
for name in ("specialized", "alternating"):
    variant = work.variant(name)
    with compile_only(on) as requests:
        variant.launch(**meta_inputs(work, problem), config=variant.default(problem, on), keep=True)
    kernel = requests[0].kernel
    found.append([kernel.asm["ptx"].count("wgmma.mma_async"), resources_of(kernel).spill_bytes])
json.dump(found, sys.stdout)
"""


def test_both_kinds_of_groups_compile_with_everything_at_once_and_without_spills(printed_apart):
    # Two groups, 64 of k in four steps; alternating groups have 128 rows, twice wgmma's; all again for parts of tiles.
    assert printed_apart(COMPILE) == [[16, 0], [32, 0]]


def test_the_gradient_of_more_strips_of_rows_than_a_grid_has_along_its_second_axis(monkeypatch):
    """CUDA counts no further there than 65535."""
    grids = []
    monkeypatch.setattr(pull, "launch", lambda kernel, grid, *call, **meta: grids.append(grid))
    z = torch.empty(65_536 * 128, 16, device="meta", dtype=torch.bfloat16)
    config = {"ROWS": 128, "BLOCK_M": 8, "BLOCK_N": 256, "num_warps": 4}
    pull.launch_pull(z, z, "gelu", 1.0, True, z, config=config)
    assert grids[0] == (65_536,) and all(max(grid[1:], default=1) <= 65_535 for grid in grids)
