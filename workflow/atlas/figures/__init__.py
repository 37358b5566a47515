"""Figures, drawn from the tables: one module per kind of figure, each ``draw(tables) -> Drawing``."""
