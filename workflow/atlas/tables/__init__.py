"""Tidy tables of all documents: the contract of every figure, of the report, and of scripts outside the project."""
