"""The one exception whose message is written for the person at the terminal; any other in one line, for a document."""

from __future__ import annotations

import errno
from pathlib import Path

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_REFUSED = {errno.EACCES, errno.EPERM, errno.EROFS}


class AtlasError(Exception):
    """A mistake the user can correct: the message names the file, the key or value, and the remedy.

    The command line prints it as one sentence, without a traceback, and exits non-zero.
    """


def in_a_line(error: BaseException) -> str:
    """An exception's kind and the first line of its text that says something: ``RuntimeError: no kernel image``."""
    line = next((line.strip() for line in str(error).splitlines() if line.strip()), "no message")
    return f"{type(error).__name__}: {line}"


def unwritable(path: Path, error: OSError, kept: str) -> AtlasError:
    """What to raise where ``path`` could not be written; ``kept`` says what is there all the same."""
    if error.errno in _FULL:
        remedy = "free space there, or raise the quota, and run again"
    elif error.errno in _REFUSED:
        remedy = "check the folder's permissions and run again"
    else:
        remedy = "check the disk and run again"
    return AtlasError(f"{path}: cannot be written: {error.strerror or error}; {kept}; {remedy}")
