"""``kernels.nn.replace``: what becomes a layer of the kernels, what stays torch's, and that the values stay."""

import copy
import functools
import importlib
import pickle
import sys
import types

import pytest
import torch
from torch.nn import functional as F

import kernels.nn


class NamedLikeLlamaRMSNorm(torch.nn.Module):
    def __init__(self, size):
        super().__init__()
        self.weight, self.variance_epsilon = torch.nn.Parameter(torch.linspace(0.2, 2, size)), 1e-6

    def forward(self, x):
        return self.weight * F.rms_norm(x, x.shape[-1:], None, self.variance_epsilon)


class NamedLikeGemmaRMSNorm(NamedLikeLlamaRMSNorm):
    """Which scales by 1 + weight: another function under a like name."""

    def forward(self, x):
        return (1 + self.weight) * F.rms_norm(x, x.shape[-1:], None, self.variance_epsilon)


class NamedLikeMambaRMSNormGated(NamedLikeLlamaRMSNorm):
    """Which may be called with a gate, too."""

    def forward(self, x, gate=None):
        return super().forward(x if gate is None else x * F.silu(gate))


class RMSNormOfOutsideEpsilon(NamedLikeLlamaRMSNorm):
    def forward(self, x):
        return self.weight * x / (x.square().mean(-1, keepdim=True).sqrt() + self.variance_epsilon)


class RMSNormOfChannels(NamedLikeLlamaRMSNorm):
    """Of [batch, channels, ...]."""

    def forward(self, x):
        scale = torch.rsqrt(x.square().mean(1, keepdim=True) + self.variance_epsilon)
        return x * scale * self.weight.view(-1, *[1] * (x.dim() - 2))


class GELUActivation(torch.nn.Module):
    """A library's own class, which computes torch's function."""

    def __init__(self, approximate):
        super().__init__()
        self.how = approximate

    def forward(self, x):
        return F.gelu(x, approximate=self.how)


class QuickGELUActivation(torch.nn.Module):
    """One that no kernel computes."""

    def forward(self, x):
        return x * torch.sigmoid(1.702 * x)


class ClippedGELUActivation(torch.nn.Module):
    """The ``gelu_10`` of transformers."""

    def forward(self, x):
        return F.gelu(x).clip(-10, 10)


class Conv1D(torch.nn.Module):
    """GPT-2's linear layer."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.nf, self.bias = outputs, torch.nn.Parameter(torch.randn(outputs))
        self.weight = torch.nn.Parameter(torch.randn(inputs, outputs))

    def forward(self, x):
        return torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight).view(*x.shape[:-1], self.nf)


class PointwiseConv1D(Conv1D):
    """One whose weight is [out, in]: another layer under that name."""

    def forward(self, x):
        return F.linear(x, self.weight, self.bias)


PointwiseConv1D.__name__ = "Conv1D"


class MLP(torch.nn.Module):
    def __init__(self, size, activation, product=torch.mul):
        super().__init__()
        self.gate_proj, self.up_proj, self.down_proj = (torch.nn.Linear(size, size) for _ in range(3))
        self.act_fn, self.product = activation, product

    def forward(self, x):
        return self.down_proj(self.product(self.act_fn(self.gate_proj(x)), self.up_proj(x)))


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(11, 8)
        self.norm, self.last = NamedLikeLlamaRMSNorm(8), torch.nn.LayerNorm(8)
        self.mlp = MLP(8, torch.nn.SiLU())
        self.act, self.head = GELUActivation("tanh"), torch.nn.Linear(8, 11, bias=False)

    def forward(self, tokens):
        x = self.norm(self.embed(tokens))
        return self.head(self.act(self.last(x + self.mlp(x))))


def test_a_model_keeps_its_values_names_and_hooks():
    torch.manual_seed(0)
    model = Model()
    heard = []
    model.norm.register_forward_hook(lambda module, args, output: heard.append(type(module)))
    theirs, tokens = copy.deepcopy(model), torch.tensor([[1, 5, 2], [0, 10, 3]])
    names = {name: value.data_ptr() for name, value in model.state_dict().items()}
    found = kernels.nn.replace(model)
    assert found == {"Embedding": 1, "GatedMLP": 1, "Linear": 4, "LayerNorm": 1, "RMSNorm": 1, "GELU": 1, "SiLU": 1}
    assert {name: value.data_ptr() for name, value in model.state_dict().items()} == names
    heard.clear()
    expected, got = theirs(tokens), model(tokens)
    assert len(heard) == 2 and heard[0] is not heard[1]
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
    got.square().sum().backward()
    expected.square().sum().backward()
    for ours, other in zip(model.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, other.grad, rtol=1e-4, atol=1e-4)
    assert not kernels.nn.replace(model)  # nothing is left, and nothing is wrapped twice
    assert repr(model.norm) == "ScaledRMSNorm((8,), eps=1e-06)"


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (NamedLikeGemmaRMSNorm(8), "scales by 1 + weight"),
        (NamedLikeMambaRMSNormGated(8), "takes a gate"),
        (RMSNormOfOutsideEpsilon(8), "adds epsilon to the root"),
        (RMSNormOfChannels(8), "normalises another dimension"),
        (QuickGELUActivation(), "another function of that name"),
        (ClippedGELUActivation(), "clips large values"),
        (PointwiseConv1D(8, 8), "whose weight is [out, in]"),
        (torch.nn.Linear(4, 4, dtype=torch.float64), "a dtype without kernels"),
        (torch.nn.Embedding(4, 4, sparse=True), "sparse gradients"),
        (torch.nn.Embedding(4, 4, max_norm=1.0), "which the kernel refuses"),
        (torch.nn.LayerNorm((2, 4)), "normalises two dimensions"),
        (torch.nn.SiLU(inplace=True), "writes its input"),
        (torch.nn.Dropout(), "draws other random numbers than torch's"),
    ],
    ids=lambda value: value.replace(" ", "-") if isinstance(value, str) else "",
)
def test_what_would_not_be_the_same_stays(module, reason):
    kind = type(module)
    assert not kernels.nn.replace(torch.nn.Sequential(module))
    assert type(module) is kind


class MLPWithDropout(MLP):
    def forward(self, x):
        return F.dropout(super().forward(x), 0.1, self.training)


def _product_of_clamped(gate, up):
    return gate.clamp(max=7) * up.clamp(-7, 7)


def test_an_mlp_that_does_something_else_keeps_its_way_and_has_its_layers_replaced():
    for mlp in (
        MLP(8, torch.nn.SiLU(), torch.add),
        MLP(8, torch.nn.GELU()),
        MLP(8, torch.nn.SiLU(), _product_of_clamped),
        MLPWithDropout(8, torch.nn.SiLU()).eval(),
    ):
        kind, weight = type(mlp), mlp.gate_proj.weight
        found = kernels.nn.replace(torch.nn.Sequential(mlp))
        assert type(mlp) is kind and found["GatedMLP"] == 0 and found["Linear"] == 3
        assert mlp.gate_proj.weight is weight


def test_gelu_is_told_from_its_approximation():
    for approximate in ("none", "tanh"):
        module = GELUActivation(approximate)
        assert kernels.nn.replace(torch.nn.Sequential(module)) == {"GELU": 1}
        assert module.approximate == approximate


def test_an_activation_with_a_hook_is_still_called():
    mlp, heard = MLP(8, torch.nn.SiLU()), []
    mlp.act_fn.register_forward_hook(lambda *_: heard.append(1))
    found = kernels.nn.replace(mlp)
    assert not heard and found == {"Linear": 3, "SiLU": 1}
    mlp(torch.randn(3, 8))
    assert heard == [1]


class QuantisedWeight(torch.nn.Parameter):
    """A weight that computes a layer's product itself."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        with torch._C.DisableTorchFunctionSubclass():
            if function is F.linear:
                return F.linear(args[0], args[1].as_subclass(torch.Tensor) * 2, *args[2:])
            return function(*args, **(kwargs or {}))


def test_a_layer_whose_weight_has_a_product_of_its_own_stays():
    layer, x = torch.nn.Linear(4, 4), torch.randn(2, 4)
    layer.weight = QuantisedWeight(layer.weight.detach())
    expected = layer(x)
    assert not kernels.nn.replace(layer) and torch.equal(layer(x), expected)


def test_a_layer_with_a_forward_of_its_own_is_not_said_to_be_replaced():
    layer = torch.nn.Linear(4, 4)  # as accelerate leaves it
    layer.forward = functools.partial(torch.nn.Linear.forward, layer)
    assert not kernels.nn.replace(layer) and type(layer) is torch.nn.Linear


def test_a_model_in_double_precision_stays():
    model = torch.nn.Sequential(
        torch.nn.Linear(8, 8),
        torch.nn.LayerNorm(8, elementwise_affine=False),
        torch.nn.RMSNorm(8),
        torch.nn.GELU(),
        NamedLikeLlamaRMSNorm(8),
        MLP(8, torch.nn.SiLU()),
    ).double()
    x = torch.randn(3, 8, dtype=torch.float64)
    expected = model(x)
    assert not kernels.nn.replace(model)
    assert torch.equal(model(x), expected)


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_trials_depend_on_no_default_and_draw_no_random_number_of_the_program(device, dtype):
    default, state = torch.get_default_dtype(), torch.get_rng_state()
    try:
        torch.set_default_dtype(dtype)
        with torch.device(device):
            model = torch.nn.Sequential(MLP(8, torch.nn.SiLU()), NamedLikeLlamaRMSNorm(8), GELUActivation("tanh"))
            torch.manual_seed(3)
            before = torch.get_rng_state()
            found = kernels.nn.replace(model)
            assert torch.equal(before, torch.get_rng_state())
    finally:
        torch.set_default_dtype(default)
        torch.set_rng_state(state)
    assert found == {"GatedMLP": 1, "Linear": 3, "SiLU": 1, "RMSNorm": 1, "GELU": 1}
    assert model[2].approximate == "tanh"


def test_a_linear_layer_of_columns_is_told_by_what_it_gives():
    layer, x = Conv1D(6, 4), torch.randn(3, 6)
    expected = layer(x)
    assert kernels.nn.replace(layer) == {"LinearByColumns": 1} and not kernels.nn.replace(layer)
    torch.testing.assert_close(layer(x), expected)
    assert repr(layer) == "LinearByColumns(in_features=6, out_features=4)"


def test_kinds_can_be_left():
    model = Model()
    found = kernels.nn.replace(model, leave=["Linear", "Embedding"])
    assert type(model.head) is torch.nn.Linear and not {"Linear", "Embedding"} & set(found)
    assert not kernels.nn.replace(model.head, leave="Linear")
    with pytest.raises(ValueError, match="leave names Dropout; there are .*Linear"):
        kernels.nn.replace(model, leave=["Dropout"])


def _rotate_half(x):
    low, high = x.chunk(2, -1)
    return torch.cat((-high, low), -1)


def test_a_second_model_of_an_architecture_is_told_that_its_heads_are_rotated_by_the_kernel(monkeypatch):
    # The function belongs to the file of the classes, so the first model's replacement holds for the second, too.
    file = types.ModuleType("of_an_architecture")

    def apply_rotary_pos_emb(q, k, cos, sin):
        cos, sin = cos[:, None], sin[:, None]
        return q * cos + _rotate_half(q) * sin, k * cos + _rotate_half(k) * sin

    file.apply_rotary_pos_emb = apply_rotary_pos_emb
    file.Decoder = type("Decoder", (torch.nn.Module,), {"__module__": file.__name__})
    library = types.ModuleType("transformers")
    library.PreTrainedModel = type("PreTrainedModel", (torch.nn.Module,), {})
    monkeypatch.setitem(sys.modules, file.__name__, file)
    monkeypatch.setitem(sys.modules, "transformers", library)
    monkeypatch.delitem(sys.modules, "kernels.nn.hugging_face", raising=False)
    assert not kernels.nn.replace(file.Decoder(), leave=["rotation"])
    assert file.apply_rotary_pos_emb is apply_rotary_pos_emb
    for _ in range(2):
        assert kernels.nn.replace(file.Decoder()) == {"rotation": 1}
    q, k, angles = torch.randn(1, 2, 3, 8), torch.randn(1, 1, 3, 8), torch.randn(1, 3, 8)
    found = file.apply_rotary_pos_emb(q, k, angles.cos(), angles.sin())
    assert all(map(torch.equal, found, apply_rotary_pos_emb(q, k, angles.cos(), angles.sin()))), "no GPU: torch's own"
    del sys.modules["kernels.nn.hugging_face"], kernels.nn.hugging_face


@pytest.fixture
def tables(monkeypatch):
    """A double of the package transformers, with its tables of attention."""
    library = types.ModuleType("transformers")
    library.PreTrainedModel = type("PreTrainedModel", (torch.nn.Module,), {})
    masking, modeling = types.ModuleType("transformers.masking_utils"), types.ModuleType("transformers.modeling_utils")

    class Table(dict):
        register = dict.__setitem__

    masking.ALL_MASK_ATTENTION_FUNCTIONS, modeling.ALL_ATTENTION_FUNCTIONS = Table(sdpa=len), Table(sdpa=len)
    for file in (library, masking, modeling):
        monkeypatch.setitem(sys.modules, file.__name__, file)
    monkeypatch.delitem(sys.modules, "kernels.nn.hugging_face", raising=False)
    yield library, masking.ALL_MASK_ATTENTION_FUNCTIONS, modeling.ALL_ATTENTION_FUNCTIONS
    del sys.modules["kernels.nn.hugging_face"], kernels.nn.hugging_face


def _of_attention(library):
    model = library.PreTrainedModel()
    model.config = types.SimpleNamespace(_attn_implementation="sdpa")
    model.set_attn_implementation = functools.partial(setattr, model.config, "_attn_implementation")
    return model


def test_a_model_brings_its_attention_to_the_process_that_unpickles_it(tables):
    library, *both = tables
    model = _of_attention(library)
    assert kernels.nn.replace(model) == {"attention": 1} and not kernels.nn.replace(model)
    written = pickle.dumps(model.attention_of_kernels)
    for table in both:
        assert table.pop("kernel_atlas")
    pickle.loads(written)
    assert all("kernel_atlas" in table for table in both)


def test_attention_of_a_model_in_a_wrapper_is_replaced(tables):
    model = _of_attention(tables[0])
    assert kernels.nn.replace(torch.nn.Sequential(torch.nn.Sequential(model))) == {"attention": 1}
    assert model.config._attn_implementation == "kernel_atlas"


ITS_OWN_LOSS = """
from torch.nn import CrossEntropyLoss
from transformers import PreTrainedModel

def ForMaskedLMLoss(logits, labels, *_):
    return CrossEntropyLoss()(logits, labels)

class Makes(PreTrainedModel):
    def forward(self, x, labels):
        return CrossEntropyLoss()(x, labels)

class Derived(Makes):
    def forward(self, x, labels):
        return super().forward(x, labels)

class Calls(PreTrainedModel):
    loss_function = staticmethod(ForMaskedLMLoss)
    def forward(self, x, labels):
        return self.loss_function(x, labels, 5)

class Neither(PreTrainedModel):
    loss_function = staticmethod(ForMaskedLMLoss)
    def forward(self, x, labels):
        return x
"""


def test_a_loss_is_counted_where_the_models_forward_computes_it(monkeypatch, tmp_path):
    # BERT's forward makes a CrossEntropyLoss, though the model has a loss_function, too, which nobody calls.
    library = types.ModuleType("transformers")
    library.PreTrainedModel = type("PreTrainedModel", (torch.nn.Module,), {})
    monkeypatch.setitem(sys.modules, "transformers", library)
    monkeypatch.delitem(sys.modules, "kernels.nn.hugging_face", raising=False)
    (tmp_path / "of_losses.py").write_text(ITS_OWN_LOSS)
    monkeypatch.syspath_prepend(tmp_path)
    file = importlib.import_module("of_losses")
    monkeypatch.setitem(sys.modules, "of_losses", file)
    x, labels = torch.randn(3, 5), torch.tensor([0, 4, -100])
    expected = torch.nn.functional.cross_entropy(x, labels)
    assert not kernels.nn.replace(file.Makes(), leave=["loss"])
    assert file.CrossEntropyLoss is torch.nn.CrossEntropyLoss
    assert not kernels.nn.replace(file.Neither())
    for kind in (file.Calls, file.Derived, file.Makes):  # of Makes, once Derived had it put
        model = kind()
        for _ in range(2):
            assert kernels.nn.replace(model) == {"loss": 1}
        assert model(x, labels) == expected, "no GPU: torch's own"
    assert issubclass(file.CrossEntropyLoss, kernels.nn.CrossEntropyLoss)
    del sys.modules["kernels.nn.hugging_face"], kernels.nn.hugging_face
