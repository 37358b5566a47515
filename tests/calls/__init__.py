"""Every public function, called once as a user would: and what torch does around a call (``table.py`` has the calls).

The interpreter runs these tests with the other kernels' tests; ``pytest -m gpu`` runs the same on a GPU.
"""
