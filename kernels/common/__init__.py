"""What kernel families share: rows in registers, what programs tell each other, axes, checks of a norm's arguments."""
