"""Documents as MLflow runs: a view like the tables, made from ``results/`` and rebuilt from it at any time.

``runs`` says what a run is, ``described`` turns the documents of one kernel and GPU into a tree of runs, ``views``
writes what is read first, ``store`` opens the database or server, ``writer`` puts trees there once.
"""
