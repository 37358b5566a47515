"""Finding the commit, or the environment, that made a case slower: measuring one tree, judging it, driving the search.

``measure`` is a script that runs in the tree that it measures, so it uses no more of that than has stood for long;
``git bisect run`` starts ``step``, in the tree that drives.
"""
