"""``python -m atlas``: every stage and view as a command."""

from .cli import main

raise SystemExit(main())
