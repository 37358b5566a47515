"""The parts of models of the package transformers that are no modules: attention, rotation of heads, the loss."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any

import torch
import transformers
from torch.nn import functional as F

import kernels

from .losses import CrossEntropyLoss

NAME = "kernel_atlas"
"""The attention's name in transformers: ``model.set_attn_implementation("kernel_atlas")``."""

_LARGEST_HEAD = 256
_LOSSES = {"ForCausalLMLoss": True, "ForMaskedLMLoss": False}
"""By the name of transformers' function, whether a token predicts the next one's label."""


def _models_in(module: torch.nn.Module) -> list[torch.nn.Module]:
    """The module, or what it wraps of transformers' models."""
    if isinstance(module, transformers.PreTrainedModel):
        return [module]
    return [model for child in module.children() for model in _models_in(child)]


def put_attention(model: torch.nn.Module) -> int:
    """Make the kernels the attention of models in it; of how many it was torch's (``sdpa``) till now."""
    return sum(map(_put_attention, _models_in(model)))


def _put_attention(model: torch.nn.Module) -> int:
    if getattr(getattr(model, "config", None), "_attn_implementation", "") != "sdpa":
        return 0
    try:
        registered = _Registered()
    except ImportError:  # before 4.53 a model chooses among its own functions
        return 0
    model.set_attn_implementation(NAME)
    model.attention_of_kernels = registered
    return 1


class _Registered:
    """The attention, in transformers' tables; a model keeps it, so that a process that unpickles the model has it."""

    def __init__(self):
        from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS as masks
        from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS as functions

        functions.register(NAME, functools.partial(_attention, functions["sdpa"]))
        masks.register(NAME, masks["sdpa"])

    def __reduce__(self):
        return _Registered, ()


def _attention(
    of_torch: Callable[..., Any],
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """As transformers calls it: [batch, heads, length, head_dim] to ([batch, length, heads, head_dim], no weights)."""
    asked = (name for name in ("position_bias", "softcap", "cache", "s_aux") if options.get(name) is not None)
    taken = max(query.shape[-1], value.shape[-1]) <= _LARGEST_HEAD and query.dtype == key.dtype == value.dtype
    if dropout or not taken or not _runs(query) or next(asked, None):
        return of_torch(
            module, query, key, value, attention_mask,
            dropout=dropout, scaling=scaling, is_causal=is_causal, **options,
        )  # fmt: skip
    if is_causal is None:
        is_causal = getattr(module, "is_causal", True)
    is_causal = bool(is_causal) and attention_mask is None and query.shape[2] > 1
    if attention_mask is not None:
        attention_mask = attention_mask[..., : key.shape[-2]]
    found = kernels.scaled_dot_product_attention(
        query, key, value, attention_mask, is_causal=is_causal, scale=scaling, enable_gqa=True
    )
    return found.transpose(1, 2).contiguous(), None


def put_rotation(model: torch.nn.Module) -> int:
    """Rotate queries and keys by one kernel in the files of the model's classes; how many files now do so.

    Those count, too, in which an earlier model of the architecture had it put.
    """
    files = {type(module).__module__ for module in model.modules()}
    return sum(_rotate_in(sys.modules[name]) for name in sorted(files) if name in sys.modules)


def _rotate_in(file: Any) -> bool:
    of_torch = getattr(file, "apply_rotary_pos_emb", None)
    if getattr(of_torch, "of_kernels", False):
        return True
    if of_torch is None or not _turns_halves(of_torch):
        return False

    @functools.wraps(of_torch)
    def rotated(q, k, cos, sin, *others, **options):
        whole = (
            cos.dim() == 3 and q.dim() == 4 and cos.shape[-1] == q.shape[-1] and cos.dtype in (q.dtype, torch.float32)
        )
        if others or options or not whole or not _runs(q) or cos.requires_grad:
            return of_torch(q, k, cos, sin, *others, **options)
        return kernels.rope_qk(q, k, cos, sin, heads_first=True)

    rotated.of_kernels = True
    file.apply_rotary_pos_emb = rotated
    return True


def _turns_halves(function: Callable[..., Any]) -> bool:
    """Whether it rotates the halves of a head, as Llama's does: tried on a small input."""
    angles = torch.linspace(0.1, 2.0, 12, device="cpu").view(1, 3, 4)
    cos, sin = (torch.cat((part, part), -1) for part in (angles.cos(), angles.sin()))
    q, k = (
        torch.linspace(-1, 1, 48, device="cpu").view(1, 2, 3, 8),
        torch.linspace(2, -1, 24, device="cpu").view(1, 1, 3, 8),
    )

    def turned(x):
        low, high = x.chunk(2, -1)
        return x * cos[:, None] + torch.cat((-high, low), -1) * sin[:, None]

    try:
        found = function(q, k, cos, sin)
        return all(torch.allclose(one, turned(x), atol=1e-5) for one, x in zip(found, (q, k), strict=True))
    except Exception:  # of foreign code: it takes other arguments
        return False


def put_loss(model: torch.nn.Module) -> int:
    """Compute the loss of tokens without a copy of the logits in fp32; how many models in it compute such a loss.

    Some models call ``loss_function``, which is set; others make a ``CrossEntropyLoss`` themselves, which becomes the
    kernels' in the files of their classes.
    """
    return sum(map(_put_loss, _models_in(model)))


def _put_loss(model: torch.nn.Module) -> int:
    forwards = {base: _names_in(base) for base in type(model).__mro__}
    files = {base.__module__ for base, names in forwards.items() if "CrossEntropyLoss" in names}
    in_files = [_lose_in(sys.modules[name]) for name in sorted(files) if name in sys.modules]
    called = any("loss_function" in names for names in forwards.values())
    return int((called and _put_function(model)) or any(in_files))


def _names_in(kind: type) -> tuple[str, ...]:
    """Names of globals and attributes in the class's own ``forward``."""
    code = getattr(inspect.unwrap(kind.__dict__.get("forward", None)), "__code__", None)
    return code.co_names if code else ()


def _put_function(model: torch.nn.Module) -> bool:
    try:
        of_torch = model.loss_function
    except (AttributeError, KeyError):  # a model without a head has none
        return False
    shifted = _LOSSES.get(getattr(of_torch, "__name__", ""))
    if shifted is None:
        return isinstance(of_torch, functools.partial) and of_torch.func is _loss
    model.loss_function = functools.partial(_loss, of_torch, shifted)
    return True


class _CrossEntropyLoss(CrossEntropyLoss):
    """``torch.nn.CrossEntropyLoss``, by the kernel where it runs."""

    def forward(self, input: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return (
            super().forward(input, target) if _runs(input) else torch.nn.CrossEntropyLoss.forward(self, input, target)
        )


def _lose_in(file: Any) -> bool:
    if getattr(file, "CrossEntropyLoss", None) is torch.nn.CrossEntropyLoss:
        file.CrossEntropyLoss = _CrossEntropyLoss
    return getattr(file, "CrossEntropyLoss", None) is _CrossEntropyLoss


def _loss(
    of_torch: Callable[..., torch.Tensor],
    shifted: bool,
    logits: torch.Tensor,
    labels: torch.Tensor,
    vocab_size: int,
    num_items_in_batch: torch.Tensor | int | None = None,
    ignore_index: int = -100,
    shift_labels: torch.Tensor | None = None,
    **options: Any,
) -> torch.Tensor:
    if not _runs(logits):
        return of_torch(logits, labels, vocab_size, num_items_in_batch, ignore_index, shift_labels, **options)
    if shift_labels is None:
        shift_labels = F.pad(labels, (0, 1), value=ignore_index)[..., 1:] if shifted else labels
    reduction = "mean" if num_items_in_batch is None else "sum"
    # Under autocast the loss of 16-bit logits is fp32, as transformers has it, and the logits are read as they are.
    with torch.autocast(logits.device.type, torch.bfloat16, enabled=logits.dtype != torch.float32):
        loss = kernels.cross_entropy(
            logits.view(-1, vocab_size),
            shift_labels.reshape(-1).to(logits.device),
            ignore_index=ignore_index,
            reduction=reduction,
        )
    if num_items_in_batch is None:
        return loss
    return loss / (num_items_in_batch.to(loss.device) if torch.is_tensor(num_items_in_batch) else num_items_in_batch)


def _runs(x: torch.Tensor) -> bool:
    """Whether kernels run where ``x`` is; a model may be built on the host and moved later."""
    return x.is_cuda and x.dtype in (torch.float32, torch.float16, torch.bfloat16)


PARTS: dict[str, Callable[[torch.nn.Module], int]] = {
    "attention": put_attention,
    "rotation": put_rotation,
    "loss": put_loss,
}
"""By the kind's name what puts it into a model and says how often."""
