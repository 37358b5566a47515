"""The tuner and its strategies: against ``triton.autotune``, and against each other."""
