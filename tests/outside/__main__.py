"""``python -m tests.outside``: what the library makes of torch's own sample inputs, function by function.

Each sample is one check: forward and gradients, in fp32, fp16 and bf16, on a GPU where there is one, else in Triton's
interpreter.  Refused is what torch computes and a public function says that it does not take; ``refusals.txt`` holds
the reasons.  Exits with 1 where a check failed or was refused for a reason that is not in that list, and where the
whole of it, in the interpreter, no longer gives a reason that is.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .samples import Sample

REFUSALS = Path(__file__).with_name("refusals.txt")

MOST_ELEMENTS, MOST_IN_16_BITS = 2000, 500
"""Of a sample of the bounded run, all tensors together: larger ones take the interpreter most of its time."""


@dataclass
class Tally:
    """What was found of one function; ``slowest`` in seconds."""

    outcomes: Counter[str] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def add(self, outcome: str, what: str, where: str) -> None:
        """Count one check, of the sample that ``where`` describes."""
        self.outcomes[outcome] += 1
        if outcome == "refused":
            self.refusals[what] += 1
        if outcome == "failed":
            self.failures.append(f"{where}: {what}")


def check(name: str, device: str, wanted: Callable[[Sample], bool]) -> Tally:
    """All samples of one function; those not ``wanted``, and where it is documented to differ, count as left out."""
    import torch

    from .comparison import compare
    from .functions import OPERATIONS, public
    from .samples import DTYPES, samples, torchs

    tally, begin = Tally(), time.monotonic()
    for operation in OPERATIONS[name]:
        for dtype in DTYPES:
            for sample in samples(operation, device, dtype):
                if not wanted(sample) or (operation.differs is not None and operation.differs(sample.call)):
                    tally.outcomes["left out"] += 1
                    continue
                found = compare(public(name), torchs(operation), operation, sample)
                tally.add(found.outcome, found.what, f"{operation.label}, {sample.label}")
    if device == "cuda":
        torch.cuda.synchronize()
    tally.seconds = time.monotonic() - begin
    return tally


def bounded(sample: Sample) -> bool:
    """Whether a minute of one core has room for a sample: in 16 bits small ones alone, and each in one layout."""
    if sample.dtype.itemsize == 2:
        return sample.elements <= MOST_IN_16_BITS and sample.kind != "with gaps" and not sample.module
    return sample.elements <= MOST_ELEMENTS


def known_refusals() -> set[str]:
    """The lines of ``refusals.txt``."""
    lines = REFUSALS.read_text(encoding="utf-8").splitlines()
    return {line for line in lines if line and not line.startswith("#")}


def table(tallies: dict[str, Tally]) -> str:
    """A row a function, in Markdown."""
    columns = ("passed", "refused", "failed", "left out")
    total = sum((tally.outcomes for tally in tallies.values()), Counter())
    rows = [(f"`{name}`", tally.outcomes, tally.seconds) for name, tally in tallies.items()]
    rows.append(("all", total, sum(tally.seconds for tally in tallies.values())))
    lines = [f"| function | {' | '.join(columns)} | seconds |", "|---|" + "--:|" * (len(columns) + 1)]
    for name, outcomes, seconds in rows:
        lines.append(f"| {name} | {' | '.join(str(outcomes[column]) for column in columns)} | {seconds:.1f} |")
    return "\n".join(lines)


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tests.outside", description=__doc__.partition("\n")[0])
    parser.add_argument("functions", nargs="*", help="public functions (default: all that torch has samples for)")
    parser.add_argument("--device", choices=("cpu", "cuda"), help="cpu is Triton's interpreter (default: a GPU's)")
    parser.add_argument("--bounded", action="store_true", help="small samples alone, in a minute of one core")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was found to a file")
    parser.add_argument("--accept", action="store_true", help="write the refusals seen to refusals.txt")
    options = parser.parse_args()

    import torch

    device = options.device or ("cuda" if torch.cuda.is_available() else "cpu")
    if device == "cpu":
        os.environ["TRITON_INTERPRET"] = "1"  # before a kernel is imported
        from atlas.host import interpreter

        interpreter.patch()
        torch.set_num_threads(1)

    from .functions import OPERATIONS
    from .samples import missing

    if reason := missing():
        sys.exit(reason)
    if unknown := set(options.functions) - set(OPERATIONS):
        parser.error(f"no samples for {', '.join(sorted(unknown))}; there are {', '.join(OPERATIONS)}")
    tallies = {}
    for name in options.functions or OPERATIONS:
        tallies[name] = check(name, device, bounded if options.bounded else lambda sample: True)
        print(f"{name}: {dict(tallies[name].outcomes)}", file=sys.stderr, flush=True)
        for what in tallies[name].failures:  # now, since a whole run may be cut short
            print(f"{name} failed: {what}", file=sys.stderr, flush=True)

    seen = {f"{name}: {what}": count for name, tally in tallies.items() for what, count in tally.refusals.items()}
    if options.accept:
        kept = {line for line in known_refusals() if line.partition(":")[0] not in tallies}
        head = [line for line in REFUSALS.read_text(encoding="utf-8").splitlines() if line.startswith("#")]
        REFUSALS.write_text("\n".join([*head, *sorted(kept | set(seen))]) + "\n", encoding="utf-8")
    new = sorted(set(seen) - known_refusals())
    whole = device == "cpu" and not options.functions and not options.bounded
    gone = sorted(known_refusals() - set(seen)) if whole else []
    failures = [f"{name}: {what}" for name, tally in tallies.items() for what in tally.failures]
    print(
        f"torch {torch.__version__}, {'Triton in its interpreter' if device == 'cpu' else torch.cuda.get_device_name()}"
    )
    print(table(tallies))
    print("\nRefused:")
    print("\n".join(f"{count:5d}  {what}" for what, count in sorted(seen.items())))
    if new:
        print("\nRefused for a reason that is not in refusals.txt (--accept writes it there):")
        print("\n".join(new))
    if gone:
        print("\nIn refusals.txt, and no longer refused (--accept takes it out):")
        print("\n".join(gone))
    if failures:
        print("\nFailed:")
        print("\n".join(failures))
    if options.json:
        document = {
            name: {**tally.outcomes, "new refusals": [line for line in new if line.partition(":")[0] == name],
                   "failures": tally.failures}
            for name, tally in tallies.items()
        }  # fmt: skip
        options.json.write_text(json.dumps(document, indent=1), encoding="utf-8")
    return 1 if failures or new or gone else 0


if __name__ == "__main__":
    sys.exit(main())
