"""What a declaration supplies: its public function, names of dtypes, cases from tables, inputs and traffic."""

import dataclasses

import pytest
import torch
from atlas.declaration import Case, Declaration, Pass, Variant, cases, elementwise
from atlas.declaration.hardware import INTERPRETER
from atlas.operators import Differentiable, Operator, as_laid_out, as_rows


def declared(*variants: Variant, **fields) -> Declaration:
    forward = Pass(
        inputs=elementwise.inputs("x"), reference=torch.sin, outputs=("out",), variants=variants, peers={},
        bytes=cases.traffic("x", "out"), flops=lambda c: {},
    )  # fmt: skip
    return Declaration(
        name="sine", family="elementwise", summary="", cases=elementwise.cases(2), edge_cases=(),
        forward=forward, **fields,
    )  # fmt: skip


def plus(name: str, number: int, **fields) -> Variant:
    """A variant that needs no GPU: x + number * K."""
    return Variant(
        name=name,
        launch=lambda x, factor=1, *, config: x + number * config["K"] * factor,
        space={"K": (1, 2)},
        default=lambda problem, gpu: {"K": 2},
        **fields,
    )


class TestThePublicFunction:
    def test_is_the_marked_one_which_stays_as_it_is_and_is_called_by_its_arguments_names(self):
        declaration = declared()

        @declaration.public
        def sine(x):
            return x.sin()

        assert declaration.function is sine
        assert declaration.call(sine, {"x": torch.zeros(2)}).tolist() == [0, 0]
        assert dataclasses.replace(declaration, family="rows").function is sine

    def test_is_one(self):
        declaration = declared()
        declaration.public(torch.sin)
        with pytest.raises(TypeError, match="sine has a public function, sin: cos"):
            declaration.public(torch.cos)


class TestNamesOfDtypes:
    def test_tensors_of_one_declared_dtype_have_its_name(self):
        declaration = declared()
        x = torch.ones(2, dtype=torch.bfloat16)
        assert declaration.dtype_of(x) == declaration.dtype_of(x, None, x) == "bf16"

    def test_float32_is_tf32_where_it_is_multiplied_so(self):
        declaration = declared(dtypes=("fp32", "tf32", "fp16"))
        assert declaration.dtype_of(torch.ones(2), tf32=True) == "tf32"
        assert declaration.dtype_of(torch.ones(2)) == "fp32"
        assert declaration.dtype_of(torch.ones(2).half(), tf32=True) == "fp16"

    def test_others_and_mixtures_are_refused_in_the_public_function_s_name(self):
        declaration = declared(dtypes=("fp32", "tf32", "bf16"))
        with pytest.raises(TypeError, match=r"^sine takes fp32, bf16: torch\.float64$"):
            declaration.dtype_of(torch.ones(2).double())
        declaration.public(torch.cos)
        mixed = torch.ones(2), torch.ones(2).bfloat16()
        with pytest.raises(TypeError, match="^cos takes tensors of one dtype out of fp32, bf16: .*32, .*b.*16$"):
            declaration.dtype_of(*mixed)
        with pytest.raises(TypeError, match="^other takes"):
            declaration.dtype_of(*mixed, function="other")


class TestTables:
    def test_a_sweep_keeps_what_fits_an_eighth_of_the_memory(self):
        made = cases.sweep("m n", {"fp32": ((1, 1024), (2, 1024)), "fp16": ((2, 1024, {"gradient": True}),)}, tensors=2)
        gpu = dataclasses.replace(INTERPRETER, memory_bytes=8 * 2 * 1024 * 4)  # 2 tensors of 1024 elements in fp32
        assert list(map(str, made(gpu))) == ["m=1 n=1024 fp32", "m=2 n=1024 gradient=True fp16"]

    def test_edge_cases_are_there_in_every_dtype_with_their_reasons(self):
        made = cases.edge_cases("m gaps", ((1, False, "one"), (3, True, {"z": 2}, "three")), dtypes=("fp32", "bf16"))
        assert [case.dtype for case in made] == ["fp32", "fp32", "bf16", "bf16"]
        assert made[1] == Case("fp32", (("m", 3), ("gaps", True), ("z", 2))) and made[1].reason == "three"

    def test_a_row_that_does_not_fill_its_columns_is_refused(self):
        with pytest.raises(ValueError, match="argument"):
            cases.edge_cases("m n", ((1, "one"),))

    def test_traffic_is_m_n_elements_of_each_tensor(self):
        assert cases.traffic("x", "out")(cases.case("bf16", m=3, n=5)) == {"x": 30, "out": 30}
        assert cases.traffic("x")(cases.case("fp32", n=5)) == {"x": 20}  # a vector

    def test_inputs_are_drawn_in_the_case_s_dtype_and_repeatably(self):
        problem = cases.case("fp16", n=5)
        one, other = (elementwise.inputs("x", "y")(problem, "cpu", torch.Generator().manual_seed(1)) for _ in range(2))
        assert one["x"].dtype == torch.float16 and torch.equal(one["x"], other["x"])
        assert not torch.equal(one["x"], one["y"])
        assert elementwise.inputs("x")(problem, "meta", None)["x"].is_meta


class TestOperator:
    @pytest.fixture(autouse=True)
    def on_the_host(self, monkeypatch):
        """The launchers here are plain torch, which calls outside the interpreter are not expected to be."""
        monkeypatch.setenv("TRITON_INTERPRET", "1")

    def test_tensors_of_the_host_are_refused_where_nothing_interprets(self, monkeypatch):
        monkeypatch.delenv("TRITON_INTERPRET")
        operator = Operator(
            declared(plus("ours", 10)), "forward", "(Tensor x) -> Tensor", case_of=elementwise.case_of, name="hosted"
        )
        with pytest.raises(RuntimeError, match="runs on a GPU, and its tensors are on the host: move them there"):
            operator(torch.zeros(2))

    def test_it_launches_the_chosen_variant_with_its_config(self):
        declaration = declared(plus("none", 1, handles=lambda problem, gpu: "not here"), plus("ours", 10))
        operator = Operator(declaration, "forward", "(Tensor x, int factor) -> Tensor", case_of=elementwise.case_of)
        assert operator.name.endswith("::sine_forward")
        assert operator(torch.zeros(2), 3).tolist() == [60, 60]  # the first that handles the case, with its default

    def test_where_no_variant_takes_the_case_it_says_why(self):
        declaration = declared(plus("none", 1, handles=lambda problem, gpu: f"{problem['n']} are too many"))
        operator = Operator(declaration, "forward", "(Tensor x) -> Tensor", case_of=elementwise.case_of, name="none")
        with pytest.raises(NotImplementedError, match="none: 2 are too many"):
            operator(torch.zeros(2))

    def test_arguments_and_results_may_be_adapted(self):
        operator = Operator(
            declared(plus("ours", 10)),
            "forward",
            "(Tensor? absent, Tensor x) -> Tensor",
            case_of=lambda absent, x: elementwise.case_of(x),
            run=lambda launch, absent, x: launch(x, 2) + 1,
            name="adapted",
        )
        assert operator(None, torch.zeros(2)).tolist() == [41, 41]

    def test_a_gradient_by_torch_is_that_of_the_function_eager_compiled_and_again(self):
        operator = Operator(
            declared(Variant("ours", lambda x, y, p, *, config: x * y**p, {}, lambda problem, gpu: {})),
            "forward",
            "(Tensor x, Tensor y, int p) -> Tensor",
            case_of=elementwise.case_of,
            name="product",
        )
        product = Differentiable.by_torch(operator, lambda x, y, p: x * y**p)
        x, y = torch.tensor([2.0, 3.0], requires_grad=True), torch.tensor([4, 5])  # integers have no gradient
        (once,) = torch.autograd.grad(product(x, y, 2).sum(), x)
        assert once.tolist() == [16, 25]
        y = y.half().requires_grad_()
        (dy,) = torch.autograd.grad(product(x.detach().half(), y, 2).sum(), y, create_graph=True)
        assert dy.dtype == torch.float16 and dy.tolist() == [16, 30]
        (again,) = torch.autograd.grad(dy.sum(), y)
        assert again.tolist() == [4, 6]
        compiled = torch.compile(lambda x, y: product(x, y, 2), fullgraph=True, backend="aot_eager")
        (once,) = torch.autograd.grad(compiled(x, y.detach().float()).sum(), x)
        assert once.tolist() == [16, 25]


class TestLayouts:
    def test_rows_at_equal_distances_are_taken_as_they_lie(self):
        wide = torch.randn(2, 3, 8)
        for x in (wide, wide[..., :5], wide[0, :1].expand(4, 8)):
            assert as_rows(x) is x

    def test_other_layouts_are_copied(self):
        wide = torch.randn(2, 3, 8)
        for x in (wide.transpose(1, 2), wide[..., ::2], wide[:, :2], wide[0, 0, ::2]):
            assert as_rows(x).is_contiguous() and torch.equal(as_rows(x), x)

    @pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0)], ids=str)
    def test_one_other_order_of_dimensions_is_given_without_a_copy_and_given_back(self, order):
        x, y = (torch.randn(2, 3, 8).permute(order) for _ in range(2))
        given = []

        def function(*tensors):
            given.extend(tensors)
            return tensors[0] - tensors[1]

        assert torch.equal(as_laid_out(function, x, y), x - y)
        assert as_laid_out(function, x, y).stride() == x.stride()
        assert all(one.is_contiguous() for one in given)
        assert given[0].data_ptr() == x.data_ptr()

    def test_tensors_of_different_orders_become_rows(self):
        x, y = torch.randn(3, 8), torch.randn(8, 3).t()
        assert torch.equal(as_laid_out(torch.sub, x, y), x - y)
