"""Models of the package transformers, built from their configs, with weights drawn at random."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from .decoder import Sizes, batches

LLAMA = Sizes(vocabulary=32_000, hidden=2048, heads=16, mlp=5632, layers=4, batch=8, length=1024)
BERT = Sizes(vocabulary=30_522, hidden=768, heads=12, mlp=3072, layers=6, batch=32, length=256)


def llama(sizes: Sizes) -> torch.nn.Module:
    """A decoder with gated MLPs, RMS norms, rotated positions, and four heads of queries to one of keys."""
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=sizes.vocabulary,
            hidden_size=sizes.hidden,
            intermediate_size=sizes.mlp,
            num_hidden_layers=sizes.layers,
            num_attention_heads=sizes.heads,
            num_key_value_heads=sizes.heads // 4,
            max_position_embeddings=sizes.length,
            use_cache=False,
            attn_implementation="sdpa",
        )
    )


def bert(sizes: Sizes) -> torch.nn.Module:
    """An encoder with layer norms and GELU, without dropout, whose random numbers differ from torch's."""
    from transformers import BertConfig, BertForMaskedLM

    return BertForMaskedLM(
        BertConfig(
            vocab_size=sizes.vocabulary,
            hidden_size=sizes.hidden,
            intermediate_size=sizes.mlp,
            num_hidden_layers=sizes.layers,
            num_attention_heads=sizes.heads,
            max_position_embeddings=sizes.length,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
            attn_implementation="sdpa",
        )
    )


MODELS: dict[str, tuple[Callable[[Sizes], torch.nn.Module], Sizes]] = {"llama": (llama, LLAMA), "bert": (bert, BERT)}


def step_of(model: Callable[..., Any], padded: bool) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """``step(tokens, labels)``: the model's loss; ``padded`` sequences end one before the other."""

    def step(tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        if not padded:
            return model(tokens, labels=labels).loss
        batch, length = tokens.shape
        ends = torch.linspace(length, length // 2, batch, device=tokens.device).long()
        mask = torch.arange(length, device=tokens.device)[None, :] < ends[:, None]
        return model(tokens, attention_mask=mask.long(), labels=labels.where(mask, -100)).loss

    return step


def data(name: str, sizes: Sizes, steps: int, device: torch.device) -> Sequence[tuple[torch.Tensor, torch.Tensor]]:
    """(tokens, labels) a step: a Llama's labels are its tokens, which transformers shifts; a BERT's the successors."""
    drawn = batches(sizes, steps, device)
    return [(tokens, tokens) for tokens, _ in drawn] if name == "llama" else drawn
