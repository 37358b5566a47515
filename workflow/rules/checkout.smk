# Where the project's code is: the workflow may be used from a repository, of which Snakemake fetches the rules alone.

import os
import subprocess
from pathlib import Path


def folder(base):
    """This file's folder with all of the project: jobs want the kernels and their code, too.

    Of a workflow that is used from a repository Snakemake fetches the rules alone, so the commit is unpacked once.
    The user's own GPUs count then: every process reads them where this variable says.
    """
    path = Path(base.get_path_or_uri(secret_free=True))
    if path.is_dir():
        return path
    repository = (
        base.hosted_repo.repo.git_dir
        if hasattr(base, "hosted_repo")
        else base.repo_path
    )
    git = ["git", "-C", repository]
    commit = subprocess.check_output(
        [*git, "rev-parse", f"{base.ref}^{{commit}}"], text=True
    ).strip()
    tree = Path(".snakemake", "kernel-atlas", commit).absolute()
    if not tree.exists():
        unfinished = tree.with_name(f"{commit}.{os.getpid()}")
        unfinished.mkdir(parents=True)
        packed = subprocess.check_output([*git, "archive", commit])
        subprocess.run(["tar", "-x", "-C", unfinished], input=packed, check=True)
        unfinished.rename(tree)
    os.environ.setdefault("KERNEL_ATLAS_CONFIG", str(Path("config").absolute()))
    return tree / "workflow"
