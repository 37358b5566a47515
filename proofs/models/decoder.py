"""A small decoder twice, of torch's modules and of kernels.nn's, and what shows that they train alike.

``python -m proofs.models.decoder`` (with ``PYTHONPATH=workflow:.``) trains both on a GPU in bf16, prints their loss
curves, the largest difference, the seconds that compilation took, and the tokens per second of torch eager,
torch.compile and the kernels.  Each line appears as soon as it is known; while one is long in coming, stderr shows
where each thread stands.  ``--parts`` and ``--backend`` narrow down what it waits for.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import faulthandler
import sys
import threading
import time
import traceback
from collections.abc import Callable, Collection, Iterator, Sequence

import torch
from torch.nn import functional as F

RATE = 3e-4
"""Of AdamW."""


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
        "Linear": torch.nn.Linear,
        "attention": F.scaled_dot_product_attention,
        "loss": _torch_loss,
    }


def kernel_parts() -> dict[str, Callable]:
    """The same parts in the kernels of the library."""
    import kernels.nn

    modules = {name: getattr(kernels.nn, name) for name in PARTS if name not in ("attention", "loss")}
    return modules | {"attention": kernels.scaled_dot_product_attention, "loss": _loss_of_kernels}


def _torch_loss(hidden, weight, targets):
    """The mean in fp32: one in bf16 would tell two curves apart by steps of 1/128 alone."""
    return F.cross_entropy(F.linear(hidden, weight), targets, reduction="none").float().mean()


def _loss_of_kernels(hidden, weight, targets):
    import kernels

    with torch.autocast(hidden.device.type, torch.bfloat16, enabled=hidden.dtype == torch.bfloat16):  # an fp32 loss
        return kernels.linear_cross_entropy(hidden, weight, targets)


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


PARTS = tuple(torch_parts())
"""The names of what there is of torch and of the kernels."""


class Block(torch.nn.Module):
    """Attention and a gated MLP, each after a norm that also adds up the residual stream."""

    def __init__(self, sizes: Sizes, parts: dict[str, Callable]):
        super().__init__()
        self.heads = sizes.heads
        self.attention_norm = parts["RMSNorm"](sizes.hidden, eps=1e-5)
        self.qkv = parts["Linear"](sizes.hidden, 3 * sizes.hidden, bias=False)
        self.out = parts["Linear"](sizes.hidden, sizes.hidden, bias=False)
        self.mlp_norm = parts["RMSNorm"](sizes.hidden, eps=1e-5)
        self.gate = parts["Linear"](sizes.hidden, sizes.mlp, bias=False)
        self.up = parts["Linear"](sizes.hidden, sizes.mlp, bias=False)
        self.down = parts["Linear"](sizes.mlp, sizes.hidden, bias=False)
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
        self.head = torch.nn.Linear(sizes.hidden, sizes.vocabulary, bias=False)  # its weight alone is read
        self.loss = parts["loss"]

    def forward(self, tokens, targets):
        """The mean loss of predicting ``targets`` [batch, length] from ``tokens``."""
        x = self.embedding(tokens)
        stream = torch.zeros_like(x)
        for block in self.blocks:
            x, stream = block(x, stream, self.rotary)
        x, _ = self.norm(x, stream)
        return self.loss(x.flatten(0, 1), self.head.weight, targets.flatten())


def twins(
    sizes: Sizes, device="cpu", dtype=torch.float32, seed=0, parts: Collection[str] = PARTS
) -> tuple[Transformer, Transformer]:
    """(of torch, of the kernels) with equal parameters; what ``parts`` does not name is torch's in both."""
    torch.manual_seed(seed)
    plain = Transformer(sizes, torch_parts()).to(device, dtype)
    chosen = {name: part for name, part in kernel_parts().items() if name in parts}
    ours = Transformer(sizes, torch_parts() | chosen).to(device, dtype)
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
    return [float(loss) for loss in take_steps(step, optimiser, data)]  # read at the end: reading waits for the GPU


def take_steps(step: Callable, optimiser: torch.optim.Optimizer, data: Sequence) -> list[torch.Tensor]:
    """The losses of one step a batch, as tensors: nothing waits for the GPU."""
    losses = []
    for tokens, targets in data:
        loss = step(tokens, targets)
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()
        losses.append(loss.detach())
    return losses


def show_threads() -> None:
    """Print the stack of every other thread to stderr, autograd's included."""
    for thread, frame in sys._current_frames().items():
        if thread != threading.get_ident():
            print(f"thread {thread}:", *traceback.format_stack(frame), sep="\n", end="", file=sys.stderr, flush=True)


def _show_every(patience: float, done: threading.Event) -> None:
    """Until ``done``.  Where no other thread gets to run Python, C shows the stacks, once; they stand still then.

    (Stacks that change while C reads them without Python's lock can crash the process: Python 3.11 did.)
    """
    while not done.is_set():
        faulthandler.dump_traceback_later(patience + 15)
        if not done.wait(patience):
            print(f"after another {patience:g} s", file=sys.stderr)
            show_threads()
    faulthandler.cancel_dump_traceback_later()


@contextlib.contextmanager
def told(what: str, patience: float, synchronize: Callable[[], None]) -> Iterator[None]:
    """Print how long the block took, its work on the GPU included.

    Every ``patience`` seconds that it lasts, stderr shows where each thread stands: one that waits for the GPU in
    ``synchronize``, one that compiles elsewhere.
    """
    print(f"{what}: …")
    done = threading.Event()
    watcher = threading.Thread(target=_show_every, args=(patience, done), daemon=True)
    watcher.start()
    start = time.perf_counter()
    try:
        yield
        synchronize()
    finally:
        done.set()
        watcher.join()
    print(f"{what}: {time.perf_counter() - start:.1f} s")


def compile_both_passes(name: str, step: Callable, batch: tuple[torch.Tensor, ...], watch: Callable) -> None:
    """Run each pass of a compiled model once, which compiles it; ``watch(what)`` is :func:`told`."""
    with watch(f"{name}, first forward"):
        loss = step(*batch)
    with watch(f"{name}, first backward"):
        loss.backward()


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


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for field in dataclasses.fields(Sizes):
        parser.add_argument(f"--{field.name}", type=int, default=field.default)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--timed", type=int, default=20, help="steps that are timed")
    parser.add_argument("--rate", type=float, default=RATE, help="of AdamW")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument("--parts", nargs="*", choices=PARTS, default=PARTS, help="made of kernels; others are torch's")
    parser.add_argument("--backend", default="inductor", help="of torch.compile: eager and aot_eager compile less")
    parser.add_argument("--patience", type=float, default=30, help="seconds until stderr shows where threads stand")
    return parser.parse_args()


def main() -> None:
    """Train the twins on this machine's GPU and print how they compare."""
    given = _arguments()
    sizes = Sizes(**{field.name: getattr(given, field.name) for field in dataclasses.fields(Sizes)})
    dtype, device = getattr(torch, given.dtype), torch.device("cuda")
    sys.stdout.reconfigure(line_buffering=True)

    def watch(what: str) -> contextlib.AbstractContextManager[None]:
        return told(what, given.patience, torch.cuda.synchronize)

    def compiled(name: str, model: Transformer) -> Callable:
        step = torch.compile(model, fullgraph=True, backend=given.backend)
        compile_both_passes(name, step, data[0], watch)
        model.zero_grad()
        return step

    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {given.dtype}, {sizes}")
    data = batches(sizes, given.steps, device)
    plain, ours = twins(sizes, device, dtype, parts=given.parts)
    with watch("training both twins"):
        expected, found = train(plain, plain, data, given.rate), train(ours, ours, data, given.rate)
    print("step   torch    kernels")
    for step in range(0, given.steps, max(1, given.steps // 20)):
        print(f"{step:4d}  {expected[step]:7.4f}  {found[step]:7.4f}")
    print(f"last   {expected[-1]:.4f}, {found[-1]:.4f}")
    print(f"kernels and torch: {_apart(expected, found)}")
    again = twins(sizes, device, dtype)[0]
    fast = compiled("torch.compile", again)
    noise = train(fast, again, data, given.rate)
    print(f"torch.compile and torch, the noise of rounding in another order: {_apart(expected, noise)}")

    def time_it(name: str, step: Callable, model: Transformer) -> None:
        with watch(f"timing {name}"):
            speed = tokens_per_second(step, model, data[: given.timed], given.rate)
        print(f"{name:24s} {speed:12,.0f} tokens/s")

    time_it("torch eager", plain, plain)
    time_it("torch.compile", fast, again)
    time_it("kernels eager", ours, ours)
    time_it("kernels, torch.compile", compiled("kernels, torch.compile", ours), ours)


if __name__ == "__main__":
    main()
