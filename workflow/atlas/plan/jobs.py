"""What the workflow asks at parse time: which kernels and GPUs, where each GPU is, what each job depends on.

Imports neither torch nor mlflow: every Snakemake process and every cluster job parses the workflow, and thus runs this.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .. import catalog
from ..cuda import nvcc
from ..errors import AtlasError
from ..figures.names import figure_names
from ..host import gpus, interpreters, slurm
from ..identity import today
from ..identity.needs import changed, needed
from ..reading.config import CONFIG_FILE, GPUS_FILE, check_config, load_gpus, read_words
from ..reading.published import PUBLISHED_FILE, load_published
from ..reporting.names import page_names
from ..results import documents, files
from ..tracking import store, summary
from ..workers import forking
from ..workload import current as workloads
from .announce import announce, announce_reasons
from .durations import BEGINNING, Durations, Ranks
from .sharing import Threads, threads
from .software import by_versions, versions

Question = Callable[[Any], Any]
"""A function of a job's wildcards, as Snakemake calls it for inputs, params and resources."""


@dataclass(frozen=True)
class Plan:
    """One run, settled: the checked config, the selected kernels and GPUs, and where each GPU is."""

    config: Mapping[str, Any]
    kernels: list[str]
    blocks: Mapping[str, Mapping[str, Any]]
    places: Mapping[str, gpus.Place]
    threads: Threads = field(default_factory=Threads)
    """Cores for each job on a GPU and for each build, so that as many run at a time as there are GPUs."""
    host_partition: str | None = None
    """SLURM's partition for jobs that need no GPU, where it has one of nodes without."""
    software: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Of GPUs whose commands run under another Python, the versions that it has."""
    head: bool = True
    """Whether this process decides what is due; one that runs a placed job only parses the workflow for it."""
    cores: int | None = None
    """Cores of the run; None where nobody knows."""
    _found: dict[tuple[Any, ...], Any] = field(default_factory=dict, compare=False, repr=False)

    @property
    def gpus(self) -> list[str]:
        """The selected GPUs, in the order of gpus.yaml."""
        return list(self.places)

    def worker_threads(self, wildcards: Any) -> int:
        """Cores for a job that runs kernels: those of the GPU, or one on the interpreter.

        There kernels beside one another keep the cores as busy, and each job more would import torch once more.
        """
        return 1 if gpus.functional(self.blocks[wildcards.gpu]) else self.threads.gpu

    def build_threads(self, wildcards: Any) -> int:
        """Cores for a build: of a GPU that is elsewhere those that each has where all begin at once.

        A few configs of its space are compiled, and builds beside one another keep the cores busier.
        """
        if self.cores is None or self.places[wildcards.gpu].reachable:
            return self.threads.build
        return max(1, self.cores // self._once(("builds elsewhere",), self._builds_elsewhere))

    def _builds_elsewhere(self) -> int:
        gpus_elsewhere = sum(not place.reachable and self.compiled(gpu) for gpu, place in self.places.items())
        return len(self.kernels) * gpus_elsewhere

    def priority(self, rule: str) -> Question:
        """Seconds of the longest chain of jobs that begins with this one, so that it does not begin last."""

        def answer(wildcards: Any) -> float:
            if not self.head:
                return 0.0
            gpu = getattr(wildcards, "gpu", "")  # predictions are of several
            return self._ranks(gpu).of(rule, getattr(wildcards, "kernel", "")) if gpu else BEGINNING[rule]

        return answer

    def _ranks(self, gpu: str) -> Ranks:
        functional = gpus.functional(self.blocks[gpu])
        known = self._once(("durations",), Durations)
        predicted = () if functional or not self.predictions() else ("predict",)
        stages = (*self.stages(gpu), *predicted)
        return self._once(("ranks", gpu), lambda: known.ranks(gpu, stages, self.kernels, functional))

    def code(self, stage: str) -> Question:
        """Changes when code does that the stage's documents depend on, whatever else is edited in its files.

        This and what else takes reading code is empty in a placed job, which would take a second for it.
        """

        def answer(wildcards: Any) -> str:
            if not self.head:
                return ""
            block = self.blocks.get(getattr(wildcards, "gpu", ""))
            functional = block is not None and gpus.functional(block)
            return self._once((stage, functional), lambda: today.of_stage(stage, functional))

        return answer

    def identities(self, kernel: str) -> Mapping[str, str]:
        """A kernel's identities, as they were when a kernel's were first asked for."""
        return self._once(("identities",), self._identities)[kernel]

    def _identities(self) -> dict[str, Mapping[str, str]]:
        """Of all kernels at once: to see that a file is as it was takes as long as the rest of it."""
        with today.held():
            return {kernel: catalog.identities(kernel) for kernel in self.kernels}

    def _once(self, key: tuple[Any, ...], find: Callable[[], Any]) -> Any:
        """Snakemake asks of every job what a kernel's and a stage's have in common."""
        if key not in self._found:
            self._found[key] = find()
        return self._found[key]

    def identity(self, stage: str) -> Question:
        """Changes when what a document of ``stage`` depends on does in the kernel, or in those it builds upon."""

        def answer(wildcards: Any) -> str:
            return _digest(needed(stage, self.identities(wildcards.kernel))) if self.head else ""

        return answer

    def versions(self, wildcards: Any) -> str:
        """Changes when any identity of a kernel does: views say of which version of a kernel a document is.

        And when the workload does, of whose counts they tell.
        """
        if not self.head:
            return ""
        workload = workloads.current()
        counts = {} if workload is None else {"workload": workload.document}
        return self._once(
            ("versions",), lambda: _digest({name: self.identities(name) for name in self.kernels} | counts)
        )

    def cuda_sources(self, wildcards: Any) -> list[str]:
        """What a kernel's CUDA C++ peers are compiled from: code, which is in the checkout and in no storage."""
        from snakemake.io import local

        return [local(_relative(path)) for path in nvcc.sources(wildcards.kernel)]

    def cuda_peers(self, wildcards: Any) -> list[str]:
        """What a benchmark or a profile of CUDA C++ peers reads: the built ones."""
        if gpus.functional(self.blocks[wildcards.gpu]) or not nvcc.sources(wildcards.kernel):
            return []
        return [f"results/measured/{wildcards.gpu}/{wildcards.kernel}/cuda.{suffix}" for suffix in ("json", "cubin")]

    def cuda_documents(self) -> list[str]:
        """The documents of all CUDA C++ peers: they are compiled wherever kernels are."""
        selected = [gpu for gpu in self.gpus if self.compiled(gpu)]
        having = [kernel for kernel in self.kernels if nvcc.sources(kernel)]
        return [f"results/measured/{gpu}/{kernel}/cuda.json" for gpu in selected for kernel in having]

    def compiler(self) -> str:
        """Changes when nvcc is installed or goes, so that peers which were skipped are built."""
        return "nvcc" if nvcc.find() else "no nvcc"

    def block_digest(self, wildcards: Any) -> str:
        """Changes when this GPU's block does, so that editing one block concerns one GPU.

        With the versions in the place of an interpreter of its own: of that the path is nobody's concern.
        """
        return _digest(by_versions(self.blocks, self.software)[wildcards.gpu])

    def every_block(self) -> str:
        """Changes when any block of gpus.yaml does."""
        return _digest(by_versions(self.blocks, self.software))

    def device_state(self, wildcards: Any) -> str:
        """Changes when the driver or the power cap of this GPU does, if it is of this host.

        Figures are then due again.  On a cluster nobody here knows the device a job will get.
        """
        return self.places[wildcards.gpu].state

    def build_sample(self, wildcards: Any) -> str:
        """The option that restricts a build for a GPU that cannot be reached to a sample of the space."""
        return "" if self.places[wildcards.gpu].reachable else f"--sample {self.config['build']['sample']}"

    def sampled(self, wildcards: Any) -> list[str]:
        """The sample that a job must not meet again in cases of its own."""
        taken = "sample" in self.stages(wildcards.gpu)
        return [f"results/measured/{wildcards.gpu}/{wildcards.kernel}/sample.json"] if taken else []

    def setting(self, section: str, key: str) -> Any:
        """One value of the config."""
        return self.config[section][key]

    def published_digest(self) -> str:
        """Changes with the figures of others in config/published.yaml."""
        return _digest(PUBLISHED_FILE.read_text() if PUBLISHED_FILE.exists() else "")

    def server_digest(self) -> str:
        """Changes with the tracking server, and shows nothing of its credentials."""
        return _digest(store.redact(os.environ.get(store.VARIABLE, "")))

    def trackings_missed(self) -> int:
        """Changes when a server was away, so that the next run tracks what it missed."""
        return summary.missed(Path("results"))

    def device_resources(self) -> dict[str, Question]:
        """Resources of a job that runs on a GPU: one GPU of this host, or what the block says for the cluster.

        None unsets a resource: executors take some, such as ``gres``, for given when they are 0.
        """

        def asked(key: str) -> Question:
            def answer(wildcards: Any) -> Any:
                place, block = self.places[wildcards.gpu], self.blocks[wildcards.gpu]
                if gpus.functional(block):
                    return self.host_resources().get(key)
                if place.where == gpus.CLUSTER:
                    return ({"slurm_partition": place.partition or None} | block["cluster"]).get(key)
                return 1 if key == "gpu" else None

            return answer

        keys = {"gpu"}
        if self.placed:
            keys |= {"slurm_partition"} | {key for block in self.blocks.values() for key in block.get("cluster", {})}
        return {key: asked(key) for key in sorted(keys)}

    def host_resources(self) -> dict[str, str]:
        """Resources of a job that needs no GPU: nodes that have none, so that it disturbs no timing."""
        return {"slurm_partition": self.host_partition} if self.host_partition else {}

    @property
    def placed(self) -> bool:
        """Whether an executor places the jobs on other hosts."""
        return self.config["placement"] != "local"

    def begin(self, elsewhere: bool) -> None:
        """What a run does before its first job, the folder locked; ``elsewhere`` says that an executor places jobs.

        Jobs of this host share a server, which forks them.  A job that is placed is to stay within what it was given,
        so the head must not fork it.  Raises :class:`AtlasError` where config and executor disagree.
        """
        if elsewhere and not self.placed:
            raise AtlasError(
                "key 'placement': the executor places jobs elsewhere, and this says local; add placement=slurm, or "
                "placement=cluster for another executor, to --config"
            )
        if not self.placed:
            forking.begin()
            interpreted = [gpu for gpu in self.gpus if gpus.functional(self.blocks[gpu])]
            os.environ[forking.INTERPRETED] = ",".join(interpreted)
        if self.config["placement"] == "slurm" and (left := slurm.end_leftovers(Path.cwd())):
            print(f"Cancelled in SLURM, left by a run that was killed: {', '.join(left)}", file=sys.stderr)

    def compiled(self, gpu: str) -> bool:
        """Whether a run compiles for this GPU: for one that is elsewhere unless its block says otherwise."""
        block = self.blocks[gpu]
        return not gpus.functional(block) and (self.places[gpu].reachable or block.get("build", True))

    def stages(self, gpu: str) -> tuple[str, ...]:
        """The stages that run for each kernel on this GPU, where it is now."""
        if gpus.functional(self.blocks[gpu]):
            return ("validate", "autotune", "benchmark")
        if not self.places[gpu].reachable:
            return ("build",) if self.compiled(gpu) else ()
        drawn = workloads.current() is None  # a workload says itself which cases matter
        return (
            "build",
            "validate",
            "autotune",
            *(["sample"] if drawn and self.config["sample"]["cases"] else []),
            "benchmark",
            *(["beyond"] if drawn and self.config["beyond"]["cases"] else []),
            *(stage for stage in ("profile", "energy") if self.config[stage]["run"]),
        )

    def earlier(self, *stages: str) -> Question:
        """The documents of earlier stages that a job reads; a functional GPU has no survey and no build."""

        def answer(wildcards: Any) -> list[str]:
            folder = f"results/measured/{wildcards.gpu}"
            skipped = {"survey", "build"} if gpus.functional(self.blocks[wildcards.gpu]) else set()
            return [
                f"{folder}/survey.json" if stage == "survey" else f"{folder}/{wildcards.kernel}/{stage}.json"
                for stage in stages
                if stage not in skipped
            ]

        return answer

    def due(self, stage: str) -> Question:
        """What says of a restored document of ``stage`` that it is to be made anew, where there is one."""

        def answer(wildcards: Any) -> list[str]:
            path = Path("results", "measured", wildcards.gpu, wildcards.kernel, f"{stage}{files.DUE}")
            return [str(path)] if path.exists() else []

        return answer

    def validated(self, stage: str) -> Question:
        """The validation that a job of ``stage`` waits for, which is a reason to run the job only where it may matter.

        It is none where nothing is due but the validation, for a case more, a reference or the public function: the
        variants are what the job's document says they were.  That document itself must have come of a validation that
        went well.  Snakemake looks for no other reason in jobs behind one that runs, so the next run finds those.
        """
        from snakemake.io import ancient

        def answer(wildcards: Any) -> str:
            folder = Path("results", "measured", wildcards.gpu, wildcards.kernel)
            path = str(folder / "validate.json")
            if not self.head:
                return path
            alone = self._due("validate", wildcards) and not self._due(stage, wildcards)
            return ancient(path) if alone and documents.read_envelope(folder / f"{stage}.json").status == "ok" else path

        return answer

    def _due(self, stage: str, wildcards: Any) -> bool:
        """Whether code has changed since the document of a stage was written; so it has where there is none."""
        stated = documents.read_envelope(Path("results", "measured", wildcards.gpu, wildcards.kernel, f"{stage}.json"))
        if stated.identities is None or stated.code != self.code(stage)(wildcards):
            return True
        return bool(changed(stage, stated.identities, self.identities(wildcards.kernel)))

    def called(self, wildcards: Any) -> list[str]:
        """The autotune documents of the kernels that this one calls, whose configs they are timed with.

        None where this run does not tune the called kernel, and on the interpreter, where calls run their defaults.
        """
        gpu = wildcards.gpu
        if gpus.functional(self.blocks[gpu]) or "autotune" not in self.stages(gpu):
            return []
        selected = [name for name in catalog.called(wildcards.kernel) if name in self.kernels]
        return [f"results/measured/{gpu}/{name}/autotune.json" for name in selected]

    def predictions(self) -> list[str]:
        """The documents that say what is expected of GPUs out of reach, where they have no record; none of a workload.

        One job makes them all: a second each would go into starting.
        """
        if workloads.current() is not None:
            return []
        return self._once(
            ("predictions",),
            lambda: [
                f"results/measured/{gpu}/{kernel}/predict.json"
                for gpu in self.gpus
                for kernel in self.kernels
                if not self.places[gpu].reachable and not _was_timed(gpu, kernel)
            ],
        )

    def predicted_versions(self) -> str:
        """Changes when an identity does that a prediction depends on."""
        return _digest({name: needed("predict", self.identities(name)) for name in self.kernels})

    def grounds(self) -> list[str]:
        """What predictions are made from: what was compiled, GPUs that this run tunes, and records."""
        made = [f"results/measured/{gpu}/survey.json" for gpu in self.gpus if "autotune" in self._timed(gpu)]
        for gpu in self.gpus:
            made += [
                f"results/measured/{gpu}/{kernel}/{stage}.json" for kernel in self.kernels for stage in self._timed(gpu)
            ]
        recorded = [
            path for name in ("survey", "*/autotune") for path in files.listed(Path("results/recorded"), f"*/{name}")
        ]
        return made + sorted(map(str, recorded))

    def _timed(self, gpu: str) -> list[str]:
        if gpus.functional(self.blocks[gpu]):
            return []
        return [stage for stage in self.stages(gpu) if stage in ("build", "autotune")]

    def documents(self) -> list[str]:
        """All documents the views read: what this run makes, the proofs made by hand, and the records there are.

        Without predictions: tables alone read these, and Snakemake compares each with all others of its job whenever
        it is asked for.
        """
        proofs = [
            path for gpu in self.gpus for path in sorted(Path("results", "measured", gpu, "proof").glob("*.json"))
        ]
        folders = [folder for gpu in self.gpus for folder in files.hosts(Path("results", "recorded"), gpu)]
        recorded = [path for folder in folders for path in files.listed(folder, "**/*")]
        return [*self._of_stages(), *map(str, proofs), *map(str, recorded)]

    def made(self) -> list[str]:
        """The documents that this run makes, predictions and all."""
        return self._of_stages() + self.predictions()

    def _of_stages(self) -> list[str]:
        """The documents that the stages make, a job each."""
        made = []
        for gpu in self.gpus:
            folder = f"results/measured/{gpu}"
            if self.places[gpu].reachable and not gpus.functional(self.blocks[gpu]):
                made.append(f"{folder}/survey.json")
            made += [f"{folder}/{kernel}/{stage}.json" for kernel in self.kernels for stage in self.stages(gpu)]
        return made

    def selection(self) -> str:
        """The options that restrict a view to the kernels and GPUs of this run; none where it is of all."""
        chosen = {"kernels": self.kernels, "gpus": self.gpus}
        return " ".join(f"--{key} {','.join(names)}" for key, names in chosen.items() if self.config[key] != "all")

    def figures(self) -> list[str]:
        """The names of the figures, without suffix."""
        return figure_names(self.kernels)

    def pages(self) -> list[str]:
        """The report's pages, under the results' folder."""
        return page_names(self.kernels)


@today.held()
def settle(config: dict[str, Any], cores: int | None = None, gpu_limit: int | None = None) -> Plan:
    """Check the config, select kernels and GPUs, find each GPU, and say so once, in the head process.

    ``cores`` and ``gpu_limit`` are Snakemake's ``--cores`` and ``--resources gpu=N``, None where not given.  Neither
    may come to stand in a rule's params: another number of cores or GPUs is no reason to measure again.

    Raises :class:`AtlasError` for a config that does not fit, an unknown name, a required GPU out of reach, or a
    published figure without a source.
    """
    where = str(_relative(CONFIG_FILE))
    config = read_words(config)
    for key in ("kernels", "gpus", "require"):  # `--config gpus=t4,cpu` comes as one word
        if isinstance(config.get(key), str) and config[key] != "all":
            config[key] = [name.strip() for name in config[key].split(",") if name.strip()]
    check_config(config, where)
    blocks = load_gpus(GPUS_FILE)
    kernels = _of_workload(catalog.names()) if config["kernels"] == "all" else config["kernels"]
    for name in kernels:
        try:
            catalog.check_name(name)
        except AtlasError as error:
            raise AtlasError(f"{where}: key 'kernels': {error}") from None
    if strangers := sorted({*kernels}.difference(_of_workload(kernels))):
        raise AtlasError(f"{where}: key 'kernels': the workload comes to no case of {', '.join(strangers)}")
    if not kernels:
        raise AtlasError(f"{where}: key 'kernels': none selected; name at least one, or write all")
    names = gpus.names_of(config["gpus"], blocks, "gpus", where)
    required = gpus.names_of(config["require"], blocks, "require", where)
    if not names:
        raise AtlasError(f"{where}: key 'gpus': none selected; name at least one, or write all")
    head = gpus.PLACES_VARIABLE not in os.environ
    placed = config["placement"] != "local"
    partitions = slurm.partitions() if head and config["placement"] == "slurm" else None
    places = gpus.locate(blocks, names, required, Path("results/recorded"), placed, partitions)
    host = slurm.host_partition(partitions or [])
    software = versions(config, blocks, places, where) if head else {}
    plan = Plan(config, kernels, blocks, places, threads(cores, gpu_limit, places), host, software, head, cores)
    if head:
        load_published()  # what is wrong with it is said before anything runs
        with today.held():
            announce(blocks, places, kernels, plan.stages)
        for name, found in software.items():
            print(f"{name}: {interpreters.in_words(found)}, by an interpreter of its own", file=sys.stderr)
        measured = {(gpu, kernel): plan.stages(gpu) for gpu in plan.gpus for kernel in kernels}
        with today.held():
            announce_reasons(measured, [gpu for gpu in plan.gpus if gpus.functional(blocks[gpu])])
        gpus.publish(places)
        if gpu_limit is not None:
            os.environ[gpus.LIMIT_VARIABLE] = str(gpu_limit)
    return plan


def _of_workload(kernels: list[str]) -> list[str]:
    """Those of the kernels that the run's workload comes to; all without one."""
    workload = workloads.current()
    return kernels if workload is None else [name for name in kernels if name in workload.kernels]


def _was_timed(gpu: str, kernel: str) -> bool:
    """Whether a record, or an earlier run, holds timings of a kernel's configs on a GPU."""
    folders = (Path("results", made, gpu, kernel) for made in ("recorded", "measured"))
    return any(files.found(folder, "autotune").exists() for folder in folders)


def _relative(path: Path) -> str:
    return os.path.relpath(path)


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:12]
