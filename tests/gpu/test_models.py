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


def train(model, autocast, padded):
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(0)
    losses = []
    options = {"use_cache": False} if hasattr(model.config, "use_cache") else {}
    if padded:  # every sequence ends before the one above it
        ends = torch.linspace(LENGTH, LENGTH // 2, BATCH).int()
        options = {"attention_mask": (torch.arange(LENGTH)[None, :] < ends[:, None]).long().cuda()}
    for _ in range(STEPS):
        first = torch.randint(0, VOCABULARY, (BATCH, 1), generator=generator)
        tokens = ((first + torch.arange(LENGTH)) % VOCABULARY).cuda()  # counting, which can be learnt
        with torch.autocast("cuda", autocast) if autocast else contextlib.nullcontext():
            loss = model(tokens, labels=tokens, **options).loss
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
        (None, torch.bfloat16, 6e-2),
    ],
    ids=["fp32", "autocast to bf16", "autocast to fp16", "bf16"],
)
@pytest.mark.parametrize("make", [llama, gpt2, bert])
def test_a_model_trains_with_the_kernels_as_with_torch(make, autocast, dtype, apart, figure):
    torch.manual_seed(0)
    theirs = make().to("cuda", dtype)
    ours = copy.deepcopy(theirs)
    expected = train(theirs, autocast, make is bert)  # first: queries and keys are rotated by the kernel in both later
    replaced = kernels.nn.replace(ours)
    assert {"Linear", "Embedding", "attention", "loss"} <= set(replaced)
    assert make is not llama or {"RMSNorm", "GatedMLP", "rotation"} <= set(replaced)
    found = train(ours, autocast, make is bert)
    most = max(abs(x - y) for (_, x), (_, y) in zip(found, expected, strict=True))
    figure(f"{make.__name__}, {autocast or dtype}: losses at most {most:.5f} apart over {STEPS} steps; {replaced}")
    assert [kind for kind, _ in found] == [kind for kind, _ in expected]
    assert most < apart
    assert expected[-1][1] < expected[0][1]


def test_a_model_under_a_mask_is_one_graph():
    torch.manual_seed(0)
    model = bert().to("cuda", torch.bfloat16)
    kernels.nn.replace(model)
    tokens = torch.randint(VOCABULARY, (BATCH, LENGTH), device="cuda")
    mask = torch.arange(LENGTH, device="cuda")[None, :] < torch.tensor([[LENGTH], [70], [60], [50]], device="cuda")
    options = {"attention_mask": mask.long(), "labels": tokens}
    expected = model(tokens, **options).loss
    found = torch.compile(model, fullgraph=True, backend="aot_eager")(tokens, **options).loss
    torch.testing.assert_close(found, expected)
