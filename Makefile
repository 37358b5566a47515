# reproduce, test, test-slow, test-slurm, test-kubernetes, test-server, test-gpu, outside, mutants, ui, server, lint,
# identity and rekey each set up .venv by themselves when it is missing or its requirements changed.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CORES ?= 1
PORT ?= 5000
BIND ?= 127.0.0.1

# Some container images forbid Python to keep what it compiled.  Every process would compile torch's modules again: half
# of the time that the tests take.
export PYTHONDONTWRITEBYTECODE =

.PHONY: reproduce test test-slow test-slurm test-kubernetes test-server test-gpu outside mutants ui server lint identity rekey bundle clean

reproduce: $(VENV)/.ready
	$(BIN)/snakemake --cores $(CORES)

# Three processes on two cores, for tests of the first run wait for what they start: 635 s in place of 709.
test: $(VENV)/.ready
	$(BIN)/pytest -n 3 --dist loadfile --no-loadscope-reorder
	$(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder tests/kernels tests/validation tests/calls

# What takes long for what it adds; make test leaves it out.
test-slow: $(VENV)/.ready
	$(BIN)/pytest -m slow -n 2 --dist loadfile

# The workflow through a real SLURM, which it starts and stops: apt-get install slurm-wlm munge.  Half an hour, most of it
# waiting; SHORTER=4 takes a quarter of that, with more of it in the jobs' starts.
SHORTER ?= 1
test-slurm: $(VENV)/.ready
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[slurm]'
	KERNEL_ATLAS_SHORTER=$(SHORTER) $(BIN)/pytest -m slurm -s tests/slurm

# What jobs of Kubernetes would be, and whether they find their way: an API on this host checks and runs them.
# It wants rsync, for a folder that stands in for a bucket.
test-kubernetes: $(VENV)/.ready
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[kubernetes]' snakemake-storage-plugin-fs
	$(BIN)/pytest -m kubernetes tests/pods

# MLflow on a PostgreSQL, which it starts and stops: apt-get install postgresql.  Writers at once, killed, cut off.
test-server: $(VENV)/.ready
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[server]'
	$(BIN)/pytest -m server -s tests/server

# What runs on a GPU alone, in one process: tests that time something must not run beside others.
test-gpu: $(VENV)/.ready
	$(BIN)/pytest -m gpu

# torch's own sample inputs, all of them; make test has the small ones.
outside: $(VENV)/.ready
	$(BIN)/python -m tests.outside

# Do the tests notice faults in the code that measures?  For instance: make mutants CORES=2 MUTANTS="--room timing"
mutants: $(VENV)/.ready
	$(BIN)/python tests/mutants/harness_mutants.py --jobs $(CORES) $(MUTANTS)

# Are the kernels what they were when the records were made?  Seconds where no code changed, else up to 15 minutes.
identity: $(VENV)/.ready
	$(BIN)/python -m proofs.identity

# Write the identities that are proved into the records and the tuned configs.
rekey: $(VENV)/.ready
	$(BIN)/python -m proofs.identity --rekey

ui: $(VENV)/.ready
	$(BIN)/python -m atlas ui --port $(PORT)

# MLflow for a team, from the database that MLFLOW_BACKEND_STORE_URI names: config/README.md.  For instance:
# make server BIND=0.0.0.0 ALLOWED_HOSTS=atlas.example:5000
server: $(VENV)/.ready
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[server]'
	$(BIN)/python -m atlas server --host $(BIND) --port $(PORT) --allowed-hosts '$(ALLOWED_HOSTS)'

lint: $(VENV)/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/snakefmt --check Snakefile workflow
	$(BIN)/snakemake --lint

# For a host without a package index: repository, wheels and checksums in one archive; there ./install-offline.  For
# instance: make bundle BUNDLE="--python 3.12 --output /media/stick"
bundle: $(VENV)/.ready
	$(BIN)/python workflow/bundle.py $(BUNDLE)

# Removes what runs made; results/recorded stays.
clean:
	rm -rf .snakemake results/measured results/tables results/figures results/mlflow results/logs results/benchmarks
	rm -rf results/report results/report.html results/verdict.txt

# Before version 23.3, which Python 3.11 may bring along, pip took half of the install to find out which wheels fit.
# Of 15,000 modules a run imports a few thousand: Python compiles those when it comes to them.
$(VENV)/.ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Kernel Atlas needs Python 3.11 or later; $(PYTHON) is $$($(PYTHON) --version). Try: make PYTHON=python3.11"; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || sh workflow/install-venv.sh $(PYTHON)
	@test ! -L $(VENV) || rm $(VENV)  # a link: what it leads to is another's, and stays
	$(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install --quiet --no-compile pip==26.3
	$(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt --editable '.[test,lint]'
	@touch $@
