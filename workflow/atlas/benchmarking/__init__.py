"""The benchmark: tuned variants, their default configs and all peers, checked, then timed in turns by the one clock."""
