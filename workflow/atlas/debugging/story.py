"""What a watched launch shows, in words: who stored the first wrong element, what nobody stored, who went outside."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import torch

from ..validation.guards import Placed, extent
from ..validation.patterns import Element, describe
from .reproduction import Run
from .tracing import Access, Launch, Program

_SHOWN = 5


def tell(run: Run) -> Iterator[str]:
    """Lines for a terminal."""
    if run.what:
        yield f"launched {run.what}"
    for launch in run.trace.launches:
        yield f"launch {launch.number}: {launch.kernel}, grid {launch.grid}"
    if run.judgement.wrong:
        yield from _first(run, run.judgement.wrong[0])
    yield from _never_stored(run)
    yield from _outside(run)


def owner(run: Run) -> tuple[Launch, Program] | None:
    """The program that stored the first wrong element; where none did, its nearest neighbour's; or who went outside."""
    if run.judgement.wrong:
        address = _address(run, run.judgement.wrong[0])
        stores = run.trace.stores_to(address) if address else []
        near = run.trace.nearest_store(address) if address and not stores else None
        if stores or near:
            store = stores[-1] if stores else near[0]
            return store.launch, store.program
    for store in [*(access for _, access in run.trace.wild), *_trespassers(run)]:
        return store.launch, store.program
    return None


def _first(run: Run, element: Element) -> Iterator[str]:
    address = _address(run, element)
    if address is None:
        return
    stores = run.trace.stores_to(address)
    if not stores:
        yield f"{element.label}: no program stores it"
        near = run.trace.nearest_store(address)
        if near is not None:
            store, where = near
            yield f"  nearest: {_label(run, where)} is stored by {store.who}"
            yield from _where(store)
        return
    last = stores[-1]
    stored = last.value_at(address)
    yield f"{element.label}: {last.who} stored {stored:.8g}, expected {element.expected:.8g}"
    yield from _where(last)
    for store in stores[:-1][-_SHOWN:]:
        yield f"  before that {store.who} stored {store.value_at(address):.8g}"
        yield from _where(store)


def _where(access: Access) -> Iterator[str]:
    for depth, line in enumerate(access.lines):
        yield f"  {'called from ' if depth else 'at '}{line}"


def _never_stored(run: Run) -> Iterator[str]:
    stored = np.unique(np.concatenate([s.addresses for s in run.trace.stores] or [np.empty(0, np.int64)]))
    for name, output in zip(run.names, run.outputs, strict=False):
        if run.guard.of(output) is None or not output.numel():
            continue  # torch made it: its stores are not the kernels'
        missing = torch.from_numpy(~np.isin(_addresses(output), stored))
        if bool(missing.any()):
            yield f"{name}: no program stores {describe(missing)}"


def _outside(run: Run) -> Iterator[str]:
    for what, access in run.trace.wild[:_SHOWN]:
        yield f"{access.who}: {what} of {len(access.addresses)} element(s) in memory of no tensor, not carried out"
        yield from _where(access)
    trespassers = list(_trespassers(run))
    for store in trespassers[:_SHOWN]:
        yield f"{store.who} stores outside: {_places(run, store)}"
        yield from _where(store)
    if len(trespassers) > _SHOWN:
        yield f"  and {len(trespassers) - _SHOWN} more stores outside"
    for load in run.trace.loads_outside[:1]:
        yield f"{load.who} loads outside: {_places(run, load)}"
        yield from _where(load)
    if len(run.trace.loads_outside) > 1:
        yield f"  and {len(run.trace.loads_outside) - 1} more loads outside"


def _trespassers(run: Run) -> Iterable[Access]:
    bands = [(b, p.bounds) for p in _placed(run).values() for b in [_storage(p)]]
    for store in run.trace.stores:
        for (low, high), (first, end) in bands:
            inside = (store.addresses >= low) & (store.addresses < high)
            if (inside & ((store.addresses < first) | (store.addresses >= end))).any():
                yield store
                break


def _places(run: Run, access: Access) -> str:
    parts = []
    for name, placed in _placed(run).items():
        (low, high), (first, end), size = _storage(placed), placed.bounds, placed.tensor.element_size()
        before = access.addresses[(access.addresses >= low) & (access.addresses < first)]
        after = access.addresses[(access.addresses >= end) & (access.addresses < high)]
        if before.size:
            nearest = (first - int(before.max())) // size
            parts.append(f"{before.size} element(s) before the start of {name}, the nearest {nearest} before it")
        if after.size:
            nearest = (int(after.min()) - end) // size + 1
            parts.append(f"{after.size} element(s) past the end of {name}, the first {nearest} past it")
    return "; ".join(parts)


def _placed(run: Run) -> dict[str, Placed]:
    found = {f"input {name}": placed for name, placed in run.guard.inputs.items()}
    for placed in run.guard.allocated:
        address = placed.buffer.untyped_storage().data_ptr()
        names = [n for n, o in zip(run.names, run.outputs, strict=False) if o.untyped_storage().data_ptr() == address]
        found[names[0] if names else f"scratch {tuple(placed.tensor.shape)}, allocation {len(found)}"] = placed
    return found


def _storage(placed: Placed) -> tuple[int, int]:
    storage = placed.buffer.untyped_storage()
    return storage.data_ptr(), storage.data_ptr() + storage.nbytes()


def _output(run: Run, name: str) -> torch.Tensor | None:
    return next((o for n, o in zip(run.names, run.outputs, strict=False) if n == name), None)


def _address(run: Run, element: Element) -> int | None:
    output = _output(run, element.output)
    if output is None or len(element.index) != output.dim():
        return None
    offset = sum(at * stride for at, stride in zip(element.index, output.stride(), strict=True))
    return output.data_ptr() + offset * output.element_size()


def _addresses(tensor: torch.Tensor) -> np.ndarray:
    """The address of every element, shaped as the tensor."""
    offsets = torch.arange(extent(tensor)).as_strided(tensor.shape, tensor.stride())
    return tensor.data_ptr() + offsets.numpy() * tensor.element_size()


def _label(run: Run, address: int) -> str:
    for name, output in zip(run.names, run.outputs, strict=False):
        at = np.argwhere(_addresses(output) == address) if output.numel() else []
        if len(at):
            return f"{name}[{', '.join(str(int(index)) for index in at[0])}]"
    return "an element of another tensor"
