"""Peers in CUDA C++, written by hand: what would CUDA have given me?

Of each kernel ``<name>.cu`` holds the device code, which the cuda stage compiles, and ``<name>.py`` how the host
launches it: functions ``launcher(program, **inputs)`` that return the thunk which a benchmark times.
"""
