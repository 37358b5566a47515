"""What ``python -m atlas new`` writes: kernels that run as they are, with NAME in the place of their name."""
