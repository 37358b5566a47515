"""The stages: one module each, with ``add_arguments(parser)`` and ``run(arguments)``; found by name."""
