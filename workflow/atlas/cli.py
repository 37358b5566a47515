"""The command line: ``python -m atlas STAGE …`` runs ``atlas.stages.<STAGE>``."""

from __future__ import annotations

import argparse
import importlib
import math
import os
import select
import signal
import sys
from types import ModuleType

from .errors import AtlasError
from .host import interpreters, lifeline
from .workers import forking

COMMANDS = {
    "new": "write a kernel to begin with, which runs, validates and compiles as it is",
    "kernels": "print the kernels with their functions and variants, as Markdown",
    "survey": "measure a GPU's roofs: bandwidth, matmul rates, launch latency",
    "build": "compile a kernel's tuning space for a GPU's architecture, on any host",
    "cuda": "compile a kernel's peers in CUDA C++ for a GPU's architecture, on any host with nvcc",
    "validate": "check every variant of a kernel against its float64 reference",
    "debug": "repeat one check, explain what is wrong, step through the program that did it",
    "choose": "say which variant and config a call runs on a GPU, and why; on any host",
    "autotune": "time the tuning space and find each case's best config",
    "sample": "time a few configs at cases drawn between the tuned ones, which other calls choose by",
    "benchmark": "time tuned variants, their defaults and all peers",
    "beyond": "time public functions at fresh cases that nobody tuned, as a user calls them, beside the peers",
    "profile": "read hardware counters of a kernel's variants and of the fastest peer, by ncu",
    "energy": "measure joules of a call, of the fastest variant and the fastest peer",
    "predict": "say what kernels should take on a GPU that nobody has at hand, from timings of another one",
    "track": "turn documents into MLflow runs",
    "server": "serve MLflow to a team, from a database such as PostgreSQL",
    "ui": "serve the MLflow interface on 127.0.0.1",
    "tables": "turn documents into tidy tables, Parquet and CSV",
    "figures": "draw the figures from the tables",
    "report": "write the HTML report from tables and figures",
    "verdict": "print the run's summary; exit non-zero if a kernel is wrong",
    "inspect": "show what a config compiles to on a GPU, on any host: resources, instructions, listings, differences",
    "compare": "say what is slower or faster between two runs, records, commits; exit 1 if anything is slower",
    "bisect": "find the commit, or the versions, that made a case slower on a GPU of this host",
    "log": "print the kernel log: what each variant brought over the one it was made from",
    "record": "a GPU's measured documents, to be committed; check, pull, pack or show records",
    "export": "write tuned configs as kernels/tuned/<gpu>.json, which the kernels read at run time",
    "watch": "run a program and write down which calls of the kernels it makes",
    "workload": "say what a file of calls comes to: problems, their share, which are tuned; export their configs",
}


_IMPORTED = {
    **dict.fromkeys(("cuda", "validate", "autotune", "sample", "benchmark", "beyond"), forking.TORCH),
    **dict.fromkeys(("survey", "build", "profile", "energy"), forking.TRITON),  # which never interpret
}
"""What a command's process has imported when it begins, for those of which a run has many."""

_STDOUT = 1

_OF_A_GPU = (*_IMPORTED, "debug", "choose", "inspect", "bisect")
"""Commands that run under the interpreter which their GPU's block names."""

_CALLING = ("validate", "benchmark", "beyond")
"""Commands that call public functions: as users do, by the extension, which is not compiled beside a measurement."""


def command() -> int:
    """Run the command that this process was started for; returns its exit status."""
    os.environ.pop("KERNEL_ATLAS_WATCH", None)  # what a stage calls is no program's
    words = sys.argv[1:]
    if words and words[0] in _OF_A_GPU:
        try:
            interpreters.hand_over(words, _option(words, "--gpu"), _option(words, "--gpus-file"))
        except AtlasError as error:
            return _mistake(f"atlas {words[0]}", error)
    if not words or words[0] not in _IMPORTED or {"-h", "--help"} & set(words):
        return main(words)
    name, *rest = words
    if not forking.in_a_run():  # a mistake is to be told before torch is imported
        try:
            stage, arguments = _parsed(*_of(name), rest)
            stage.frame.job(name, arguments)
        except AtlasError as error:
            return _mistake(f"atlas {name}", error)
    gpu = _option(words, "--gpu")
    if gpu and gpu in os.environ.get(forking.INTERPRETED, "").split(","):
        return forking.command(main, words, forking.TRITON, {"TRITON_INTERPRET": "1"})
    return forking.command(main, words, _IMPORTED[name])


def _option(words: list[str], name: str) -> str:
    """The value of an option, before anything is parsed; empty without one."""
    for word, after in zip(words, [*words[1:], ""], strict=True):
        if word == name or word.startswith(f"{name}="):
            return after if word == name else word.partition("=")[2]
    return ""


def _of(name: str) -> tuple[str, str, str]:
    """How a command is called, its module, and what it does."""
    return f"atlas {name}", f"{__package__}.stages.{name}", COMMANDS[name]


def main(words: list[str] | None = None) -> int:
    """Run one command in this process; returns the exit status, 2 for a mistake of the user's."""
    words = sys.argv[1:] if words is None else words
    parser = argparse.ArgumentParser(prog="atlas", description="Build, validate, tune and benchmark Triton kernels.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, summary in COMMANDS.items():
        commands.add_parser(name, help=summary, add_help=False)
    chosen, rest = parser.parse_known_args(words[:1]) if words else (parser.parse_args(words), [])
    os.environ.setdefault("KERNEL_ATLAS_NATIVE", "wait" if chosen.command in _CALLING else "off")
    return run(*_of(chosen.command), rest + words[1:])


def run(prog: str, module: str, summary: str, words: list[str]) -> int:
    """Run the command of one module, its ``run`` with what ``words`` say to its ``add_arguments``; the exit status."""
    try:
        lifeline.follow()
        command, arguments = _parsed(prog, module, summary, words)
        status = command.run(arguments) or 0
        sys.stdout.flush()
        return status
    except AtlasError as error:
        return _mistake(prog, error)
    except BrokenPipeError:
        if not _unread():
            raise
        return 128 + signal.SIGPIPE


def _unread() -> bool:
    """Whether nobody reads what is printed any more, as after ``| head``; then nothing more is."""
    output = select.poll()
    output.register(_STDOUT, 0)
    closed = any(event & select.POLLERR for _, event in output.poll(0))
    if closed:
        os.dup2(os.open(os.devnull, os.O_WRONLY), _STDOUT)
    return closed


def _parsed(prog: str, module: str, summary: str, words: list[str]) -> tuple[ModuleType, argparse.Namespace]:
    """A command's module, and its arguments."""
    command = importlib.import_module(module)
    parser = argparse.ArgumentParser(prog=prog, description=summary, allow_abbrev=False)
    command.add_arguments(parser)
    arguments = parser.parse_args(words)
    _check_repeated(words)
    _check_numbers(arguments)
    return command, arguments


def _mistake(prog: str, error: AtlasError) -> int:
    print(f"{prog}: {error}", file=sys.stderr)
    return 2


_FROM_ZERO = {"seed", "first_seed", "certify_seeds", "trial_runs"}
"""Numbers that may be 0; all others of the command line count something that there is, or limit a time."""

_MOST = 2**31 - 1


def _check_repeated(words: list[str]) -> None:
    """Raise :class:`AtlasError` for an option that is given twice, of which argparse takes the last in silence.

    What stands behind ``--`` is another program's.
    """
    own = words[: words.index("--")] if "--" in words else words
    options = [word.partition("=")[0] for word in own if word.startswith("--")]
    for place, option in enumerate(options):
        if option in options[:place]:
            raise AtlasError(f"command line: {option} is given twice; which of them is meant?")


def _check_numbers(arguments: argparse.Namespace) -> None:
    """Raise :class:`AtlasError` for a number that no option means: NaN passes every comparison that refuses it."""
    for name, value in vars(arguments).items():
        option = f"command line: --{name.replace('_', '-')} is"
        if type(value) is float and not (math.isfinite(value) and value > 0):
            raise AtlasError(f"{option} {value:g}; give more than 0" + ("" if value <= 0 else ", and a finite number"))
        if type(value) is int:
            least = 0 if name in _FROM_ZERO else 1
            if value < least:
                raise AtlasError(f"{option} {value if value > -_MOST else 'too small'}; give {least} or more")
            if value > _MOST:
                raise AtlasError(f"{option} too large; give {_MOST} at most")
