"""Work in processes that may hang or die without whoever asked for it: one worker, pools of them, and their server.

``process`` is one worker; ``pool`` gives jobs to several on one device or on none; ``devices`` shares work out over
several devices; ``protocol`` is what pool and worker say to each other.  ``server`` forks all of them, and the jobs of
a run; ``forking`` asks it to, and ``forked`` is what becomes of the process.
"""
