"""``python -m atlas``: every stage and view as a command."""

from .cli import command

raise SystemExit(command())
