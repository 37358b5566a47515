"""``proofs/identity.json``: what each recorded config compiled to, in the source that it was recorded with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

LIST = Path(__file__).parents[1] / "identity.json"

Listing = dict[str, Any]
"""``triton``, and by ``gpu kernel`` the fields that :func:`entry` gives."""


def entry(source: str, identities: dict[str, str], answer: dict[str, Any]) -> dict[str, Any]:
    """What is listed of one kernel and GPU: the commit whose source and records it is of, and what was found there."""
    parts = {name: [one, answer["parts"].get(name)] for name, one in identities.items() if "." not in name}
    variants = {name: {"identity": identities[name], **found} for name, found in sorted(answer["variants"].items())}
    return {"source": source, "parts": parts, "variants": variants}


def read() -> Listing:
    """The committed list."""
    return json.loads(LIST.read_text())


def write(listing: Listing) -> None:
    """Write it, a line for each case and config, so that a diff shows which changed."""
    lines = ["{", f' "triton": {json.dumps(listing["triton"])},', ' "kernels": {']
    kernels = sorted(listing["kernels"].items())
    for name, own in kernels:
        lines.append(f'  {json.dumps(name)}: {{"source": {json.dumps(own["source"])},')
        lines.append(f'   "parts": {json.dumps(own["parts"])},')
        lines.append('   "variants": {')
        for variant, found in own["variants"].items():
            head = f'"identity": {json.dumps(found["identity"])}, "space": {json.dumps(found["space"])}'
            lines.append(f'    {json.dumps(variant)}: {{{head}, "configs": {{')
            rows = [f"     {json.dumps(label)}: {json.dumps(one)}" for label, one in found["configs"].items()]
            lines.append(",\n".join(rows) + "}}" + ("" if variant == list(own["variants"])[-1] else ","))
        lines.append("   }}" + ("" if name == kernels[-1][0] else ","))
    LIST.write_text("\n".join([*lines, " }", "}", ""]))
