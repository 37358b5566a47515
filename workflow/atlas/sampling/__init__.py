"""Cases beyond those that a kernel declares, drawn by a seed: to tune between them, and to time what nobody tuned.

``domains`` says of each kernel which calls users make; ``drawing`` draws from them, and for a kernel without a domain
around its own cases.
"""
