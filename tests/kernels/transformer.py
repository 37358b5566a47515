"""A small decoder twice, of torch's modules and of kernels.nn's, and what shows that they train alike.

``python tests/kernels/transformer.py`` (with ``PYTHONPATH=workflow:.``) trains both on a GPU in bf16, prints their loss
curves, the largest difference and the tokens per second of torch eager, torch.compile and the kernels.
"""

from __future__ import annotations

import argparse
import dataclasses
import time
from collections.abc import Callable, Sequence

import torch
from torch.nn import functional as F


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Of the model, and of the batches it is trained on."""

    vocabulary: int = 32_000
    hidden: int = 1024
    heads: int = 16
    mlp: int = 2816
    layers: int = 4
    batch: int = 8
    length: int = 1024

    @property
    def head_dim(self) -> int:
        """Columns of one head."""
        return self.hidden // self.heads


SMALL = Sizes(vocabulary=11, hidden=16, heads=2, mlp=24, layers=1, batch=2, length=4)
"""What the interpreter trains in seconds."""


def torch_parts() -> dict[str, Callable]:
    """The parts of the model in torch's own operations."""
    return {
        "Embedding": torch.nn.Embedding,
        "RMSNorm": _ResidualRMSNorm,
        "RotaryEmbedding": _TorchRotary,
        "SwiGLU": _TorchSwiGLU,
        "CrossEntropyLoss": torch.nn.CrossEntropyLoss,
        "attention": F.scaled_dot_product_attention,
    }


def kernel_parts() -> dict[str, Callable]:
    """The same parts in the kernels of the library."""
    import kernels.nn

    modules = {name: getattr(kernels.nn, name) for name in torch_parts() if name != "attention"}
    return modules | {"attention": kernels.scaled_dot_product_attention}


class _ResidualRMSNorm(torch.nn.RMSNorm):
    def forward(self, input, residual=None):
        if residual is None:
            return super().forward(input)
        total = input + residual
        return super().forward(total), total


class _TorchSwiGLU(torch.nn.Module):
    def forward(self, gate, up):
        return F.silu(gate) * up


class _TorchRotary(torch.nn.Module):
    """As models on the hub write it: the halves of a head rotated by tables of whole heads."""

    def __init__(self, head_dim, max_positions, base=10_000.0):
        super().__init__()
        pairs = torch.arange(0, head_dim, 2, dtype=torch.float64)
        angles = torch.arange(max_positions, dtype=torch.float64)[:, None] * base ** (-pairs / head_dim)
        angles = torch.cat((angles, angles), dim=-1)[:, None, :]  # [positions, 1 for the heads, head_dim]
        self.register_buffer("cos", angles.cos().float(), persistent=False)
        self.register_buffer("sin", angles.sin().float(), persistent=False)

    def _apply(self, function, recurse=True):
        tables = self.cos, self.sin
        super()._apply(function, recurse)
        self.cos, self.sin = (table.to(self.cos.device) for table in tables)  # fp32, whatever the model is cast to
        return self

    def forward(self, query, key):
        cos, sin = self.cos[: query.shape[1]], self.sin[: query.shape[1]]

        def rotated(x):
            low, high = x.float().chunk(2, dim=-1)
            return (x.float() * cos + torch.cat((-high, low), dim=-1) * sin).to(x.dtype)

        return rotated(query), rotated(key)


class Block(torch.nn.Module):
    """Attention and a gated MLP, each after a norm that also adds up the residual stream."""

    def __init__(self, sizes: Sizes, parts: dict[str, Callable]):
        super().__init__()
        self.heads = sizes.heads
        self.attention_norm = parts["RMSNorm"](sizes.hidden, eps=1e-5)
        self.qkv = torch.nn.Linear(sizes.hidden, 3 * sizes.hidden, bias=False)
        self.out = torch.nn.Linear(sizes.hidden, sizes.hidden, bias=False)
        self.mlp_norm = parts["RMSNorm"](sizes.hidden, eps=1e-5)
        self.gate = torch.nn.Linear(sizes.hidden, sizes.mlp, bias=False)
        self.up = torch.nn.Linear(sizes.hidden, sizes.mlp, bias=False)
        self.down = torch.nn.Linear(sizes.mlp, sizes.hidden, bias=False)
        self.activation = parts["SwiGLU"]()
        self.attention = parts["attention"]

    def forward(self, x, stream, rotary):
        """(what to add next, the stream so far): an addition waits for the norm that follows, which fuses it."""
        normed, stream = self.attention_norm(x, stream)
        query, key, value = (part.unflatten(-1, (self.heads, -1)) for part in self.qkv(normed).chunk(3, dim=-1))
        query, key = rotary(query, key)
        mixed = self.attention(*(p.transpose(1, 2) for p in (query, key, value)), is_causal=True)
        normed, stream = self.mlp_norm(self.out(mixed.transpose(1, 2).flatten(-2)), stream)
        return self.down(self.activation(self.gate(normed), self.up(normed))), stream


class Transformer(torch.nn.Module):
    """A decoder of ``parts``; both kinds have the same state dict."""

    def __init__(self, sizes: Sizes, parts: dict[str, Callable]):
        super().__init__()
        self.embedding = parts["Embedding"](sizes.vocabulary, sizes.hidden)
        self.rotary = parts["RotaryEmbedding"](sizes.head_dim, sizes.length)
        self.blocks = torch.nn.ModuleList(Block(sizes, parts) for _ in range(sizes.layers))
        self.norm = parts["RMSNorm"](sizes.hidden, eps=1e-5)
        self.head = torch.nn.Linear(sizes.hidden, sizes.vocabulary, bias=False)
        self.loss = parts["CrossEntropyLoss"](reduction="none")

    def forward(self, tokens, targets):
        """The mean loss of predicting ``targets`` [batch, length] from ``tokens``."""
        x = self.embedding(tokens)
        stream = torch.zeros_like(x)
        for block in self.blocks:
            x, stream = block(x, stream, self.rotary)
        x, _ = self.norm(x, stream)
        # A mean in bf16 would tell two curves apart by steps of 1/128 alone.
        return self.loss(self.head(x).flatten(0, 1), targets.flatten()).float().mean()


def twins(sizes: Sizes, device="cpu", dtype=torch.float32, seed=0) -> tuple[Transformer, Transformer]:
    """(of torch, of the kernels) with equal parameters."""
    torch.manual_seed(seed)
    plain = Transformer(sizes, torch_parts()).to(device, dtype)
    ours = Transformer(sizes, kernel_parts()).to(device, dtype)
    ours.load_state_dict(plain.state_dict())
    return plain, ours


def batches(sizes: Sizes, count: int, device="cpu", seed=0) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """(tokens, targets) to learn: each token's successor is a fixed one, nine times of ten."""
    generator = torch.Generator().manual_seed(seed)
    successor = torch.randperm(sizes.vocabulary, generator=generator)
    texts = count * sizes.batch
    columns = [torch.randint(sizes.vocabulary, (texts,), generator=generator)]
    for _ in range(sizes.length):
        chance = torch.rand(texts, generator=generator) < 0.1
        strange = torch.randint(sizes.vocabulary, (texts,), generator=generator)
        columns.append(torch.where(chance, strange, successor[columns[-1]]))
    whole = torch.stack(columns, dim=1).to(device)
    return [(text[:, :-1].contiguous(), text[:, 1:].contiguous()) for text in whole.split(sizes.batch)]


def train(step: Callable, model: Transformer, data: Sequence, rate: float) -> list[float]:
    """The losses of one AdamW step a batch; ``step(tokens, targets)`` is the model, compiled or not."""
    optimiser = torch.optim.AdamW(model.parameters(), lr=rate)
    losses = []
    for tokens, targets in data:
        loss = step(tokens, targets)
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()
        losses.append(loss.detach())
    return [float(loss) for loss in losses]  # read at the end: reading waits for the GPU


def tokens_per_second(step: Callable, model: Transformer, data: Sequence, rate: float) -> float:
    """Of training on ``data``, once warm."""
    train(step, model, data[:3], rate)
    torch.cuda.synchronize()
    start = time.perf_counter()
    train(step, model, data, rate)
    torch.cuda.synchronize()
    return sum(tokens.numel() for tokens, _ in data) / (time.perf_counter() - start)


def _apart(expected: Sequence[float], found: Sequence[float]) -> str:
    differences = [abs(a - b) for a, b in zip(expected, found, strict=True)]
    return f"largest difference {max(differences):.4f}, mean {sum(differences) / len(differences):.4f}"


def main() -> None:
    """Train the twins on this machine's GPU and print how they compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for field in dataclasses.fields(Sizes):
        parser.add_argument(f"--{field.name}", type=int, default=field.default)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--timed", type=int, default=20, help="steps that are timed")
    parser.add_argument("--rate", type=float, default=3e-4, help="of AdamW")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    given = parser.parse_args()
    sizes = Sizes(**{field.name: getattr(given, field.name) for field in dataclasses.fields(Sizes)})
    dtype, device = getattr(torch, given.dtype), torch.device("cuda")
    data = batches(sizes, given.steps, device)

    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {given.dtype}, {sizes}")
    plain, ours = twins(sizes, device, dtype)
    expected, found = train(plain, plain, data, given.rate), train(ours, ours, data, given.rate)
    print("step   torch    kernels")
    for step in range(0, given.steps, max(1, given.steps // 20)):
        print(f"{step:4d}  {expected[step]:7.4f}  {found[step]:7.4f}")
    print(f"last   {expected[-1]:.4f}, {found[-1]:.4f}")
    print(f"kernels and torch: {_apart(expected, found)}")
    again = twins(sizes, device, dtype)[0]
    compiled = torch.compile(again, fullgraph=True)
    noise = train(compiled, again, data, given.rate)
    print(f"torch.compile and torch, the noise of rounding in another order: {_apart(expected, noise)}", flush=True)

    for name, step, model in (
        ("torch eager", plain, plain),
        ("torch.compile", compiled, again),
        ("kernels eager", ours, ours),
        ("kernels, torch.compile", torch.compile(ours, fullgraph=True), ours),
    ):
        speed = tokens_per_second(step, model, data[: given.timed], given.rate)
        print(f"{name:24s} {speed:12,.0f} tokens/s", flush=True)


if __name__ == "__main__":
    main()
