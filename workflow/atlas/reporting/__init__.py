"""The HTML report: one file that needs no other, made from tables, figures and documents."""
