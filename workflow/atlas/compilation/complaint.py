"""A compiler's complaint as one line a person can act on."""

from __future__ import annotations

import re
import signal

_PATH = re.compile(r"(?<![\w.])/(?:[^\s/:\"']+/)+([^\s/:\"']+)")
_LENGTH = 500


def complaint(error: BaseException) -> str:
    """An exception in one line: its innermost cause and, where it names one, the line of the kernel."""
    inner = error
    while inner.__cause__ is not None:
        inner = inner.__cause__
    text = getattr(inner, "error_message", None) or str(inner)
    said = _first_complaint(text) or _last_line(text)
    node = getattr(error, "node", None) or getattr(inner, "node", None)
    where = f"line {node.lineno} of the kernel: " if hasattr(node, "lineno") else ""
    return _tidy(f"{type(inner).__name__}: {where}{said}" if said else type(inner).__name__)


def with_printed(reason: str, printed: str) -> str:
    """A reason with the first error that was printed meanwhile, unless it says that already.

    MLIR prints what is wrong, and raises only that something is.
    """
    beside = _tidy(_first_complaint(printed))
    return f"{reason} ({beside})"[:_LENGTH] if beside and beside not in reason else reason


def death(exit_code: int, printed: str) -> str:
    """How a compiler process died, with the last it said."""
    if exit_code < 0:
        how = f"the compiler crashed ({signal.Signals(-exit_code).name})"
    else:
        how = f"the compiler's process ended with status {exit_code}"
    last = _first_complaint(printed) or _last_line(printed)
    return _tidy(f"{how}: {last}" if last else how)


def _first_complaint(text: str) -> str:
    """The first line that names an error: ``error: …``, ``ptxas fatal   : …``, ``Assertion … failed``."""
    for line in text.splitlines():
        found = re.search(r"\b(?:error|fatal)\s*:\s*(\S.*)|(Assertion .* failed.*)|(LLVM ERROR.*)", line)
        if found and not line.lstrip().startswith("#"):
            return next(group for group in found.groups() if group).strip()
    return ""


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""


def _tidy(text: str) -> str:
    """In one line, of bounded length, and without the paths of this machine."""
    return " ".join(_PATH.sub(r"\1", text).split())[:_LENGTH]
