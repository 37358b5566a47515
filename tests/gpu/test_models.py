"""Models of a well-known library, built from their configs, train with the kernels in torch's place as with torch.

Fp32 parameters under autocast, as most training loops have them, and parameters in bf16; a Llama, a GPT-2, and a BERT
whose batch is padded, so that attention has a mask.
"""

import contextlib
import copy

import pytest
import torch

import kernels
import kernels.nn

pytestmark = pytest.mark.gpu

STEPS, BATCH, LENGTH, VOCABULARY = 8, 4, 96, 503


def llama():
    transformers = pytest.importorskip("transformers", reason="the package transformers is not here")
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=VOCABULARY, hidden_size=192, intermediate_size=488, num_hidden_layers=2, num_attention_heads=6,
            num_key_value_heads=2, max_position_embeddings=LENGTH, attn_implementation="sdpa",
        )
    )  # fmt: skip


def gpt2():
    transformers = pytest.importorskip("transformers", reason="the package transformers is not here")
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=VOCABULARY, n_embd=192, n_layer=2, n_head=6, n_positions=LENGTH, resid_pdrop=0.0,
            embd_pdrop=0.0, attn_pdrop=0.0, attn_implementation="sdpa",
        )
    )  # fmt: skip


def bert():
    transformers = pytest.importorskip("transformers", reason="the package transformers is not here")
    return transformers.BertForMaskedLM(
        transformers.BertConfig(
            vocab_size=VOCABULARY, hidden_size=192, intermediate_size=488, num_hidden_layers=2, num_attention_heads=6,
            max_position_embeddings=LENGTH, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
            attn_implementation="sdpa",
        )
    )  # fmt: skip


class _ColumnsFirst(torch.nn.Module):
    """transformers' Conv1D, a linear layer whose weight is [in, out]."""

    def __init__(self, module):
        super().__init__()
        self.weight, self.bias = module.weight, module.bias

    def forward(self, x):
        return kernels.linear(x, self.weight.t(), self.bias)


class _Norm(torch.nn.Module):
    """transformers' own RMS norms."""

    def __init__(self, module):
        super().__init__()
        self.weight, self.eps = module.weight, module.variance_epsilon

    def forward(self, x):
        return kernels.rms_norm(x, self.weight.shape, self.weight, self.eps)


def _of_kernels(module):
    """The module that stands for ``module``, with its parameters; None for what stays."""
    if type(module) is torch.nn.Linear:
        made = kernels.nn.Linear(module.in_features, module.out_features, module.bias is not None, device="meta")
    elif type(module) is torch.nn.Embedding:
        made = kernels.nn.Embedding(module.num_embeddings, module.embedding_dim, module.padding_idx, device="meta")
    elif type(module) is torch.nn.LayerNorm:
        made = kernels.nn.LayerNorm(module.normalized_shape, module.eps, device="meta")
    elif type(module).__name__ == "LlamaRMSNorm":
        return _Norm(module)
    elif type(module).__name__ == "Conv1D":
        return _ColumnsFirst(module)
    elif type(module).__name__ in ("SiLU", "SiLUActivation"):
        return kernels.nn.SiLU()
    elif type(module).__name__ == "NewGELUActivation":
        return kernels.nn.GELU(approximate="tanh")
    else:
        return None
    for name, parameter in module.named_parameters():
        setattr(made, name, parameter)
    return made


def replace(model):
    """Every layer there is a kernel for, in place; how many."""
    replaced = 0
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            made = _of_kernels(child)
            if made is not None:
                setattr(parent, name, made)
                replaced += 1
    return replaced


@contextlib.contextmanager
def attention_of_kernels(monkeypatch):
    asked = []

    def attention(query, key, value, attn_mask=None, *others, **options):
        asked.append((query.dtype, attn_mask is not None))
        return kernels.scaled_dot_product_attention(query, key, value, attn_mask, *others, **options)

    with monkeypatch.context() as patched:
        patched.setattr(torch.nn.functional, "scaled_dot_product_attention", attention)
        yield asked


def train(model, autocast, loss_of, padded):
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(0)
    losses = []
    options = {"use_cache": False}
    if padded:  # every sequence ends before the one above it
        ends = torch.linspace(LENGTH, LENGTH // 2, BATCH).int()
        options = {"attention_mask": (torch.arange(LENGTH)[None, :] < ends[:, None]).long().cuda()}
    for _ in range(STEPS):
        first = torch.randint(0, VOCABULARY, (BATCH, 1), generator=generator)
        tokens = ((first + torch.arange(LENGTH)) % VOCABULARY).cuda()  # counting, which can be learnt
        with torch.autocast("cuda", autocast) if autocast else contextlib.nullcontext():
            logits = model(tokens, **options).logits[:, :-1].reshape(-1, VOCABULARY)
            loss = loss_of(logits, tokens[:, 1:].reshape(-1))
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()
        losses.append((loss.dtype, float(loss)))
    return losses


@pytest.mark.parametrize(
    ("autocast", "dtype", "apart"),
    [
        (None, torch.float32, 1e-3),
        (torch.bfloat16, torch.float32, 2e-2),
        (torch.float16, torch.float32, 1e-2),
        (None, torch.bfloat16, 6e-2),  # a loss in bf16: its own rounding is 2^-6 of 6.2
    ],
    ids=["fp32", "autocast to bf16", "autocast to fp16", "bf16"],
)
@pytest.mark.parametrize("make", [llama, gpt2, bert])
def test_a_model_trains_with_the_kernels_as_with_torch(make, autocast, dtype, apart, monkeypatch, figure):
    torch.manual_seed(0)
    theirs = make().to("cuda", dtype)
    ours = copy.deepcopy(theirs)
    assert replace(ours) >= 9
    padded = make is bert
    expected = train(theirs, autocast, torch.nn.functional.cross_entropy, padded)
    with attention_of_kernels(monkeypatch) as asked:
        found = train(ours, autocast, kernels.cross_entropy, padded)
    most = max(abs(x - y) for (_, x), (_, y) in zip(found, expected, strict=True))
    figure(f"{make.__name__}, {autocast or dtype}: losses at most {most:.5f} apart over {STEPS} steps; attention in "
           f"{asked[0][0]}{' under a mask' if padded else ''}")  # fmt: skip
    assert asked and (not padded or all(masked for _, masked in asked))
    assert [kind for kind, _ in found] == [kind for kind, _ in expected]
    assert most < apart
    assert expected[-1][1] < expected[0][1]
