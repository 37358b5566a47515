"""Public functions at shapes that nobody tuned, as a user calls them, beside the peers.

Tuned cases are a sample; users call elsewhere.  Shapes are drawn from each kernel's domain: sizes of real models, round
and odd ones.  A call picks its variant and config by itself, as it does for a user.
"""
