# `make` lists the targets. Needs Python 3.11 or newer, git and make; everything else is set up in .venv and .cache.
PYTHON ?= python3
SELECTION ?= default
OUTPUT ?= TRAINING
SUITE ?= bookworm
TORCH ?= 2.2.2
MATRIX = .venv/bin/matrix
FAULTS = $(addprefix tests/system/, test_faults.py test_goal.py test_kills.py test_minimise.py test_train.py)
COMPILE = --quiet --upgrade --python-version 3.11 --generate-hashes --no-annotate --no-header
TEST_PYTHON = .cache/envs/cpu-test/bin/python
# A stamp: the interpreter is a link to one that may be older than anything here.
TEST_READY = .cache/envs/cpu-test/.ready

# Without compiled modules each command would compile them anew, for a second or more.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL = help
.PHONY: help setup matrix-test build base train test check test-harness test-system test-faults test-app test-torch test-docker lock docs schemas bench bench-features bench-training bench-kills bench-policy bench-supervisor bench-minimise bench-records soak clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | awk -F '\t' '{printf "  make %-16s %s\n", $$1, $$2}'

matrix-test: setup ## run the matrix on this host; records and report in results/ (DATA=merged.csv, LOOKBACK=, SELECTION=, ARGS=)
	$(MATRIX) run --selection $(SELECTION) $(if $(DATA),--data "$(DATA)") $(if $(LOOKBACK),--lookback $(LOOKBACK)) $(ARGS)

build: setup ## build the images of one ROCm version: ROCM=6.3, or ROCM=cpu (DRY_RUN=1 only prints; SELECTION=, ARGS=)
	@test -n "$(ROCM)" || { echo "make build: say which ROCm: make build ROCM=6.3, or ROCM=cpu (matrix build --selection default builds all)" >&2; exit 2; }
	$(MATRIX) build --rocm "$(ROCM)" --selection $(SELECTION) $(ARGS)

base: ## make a base image from Debian's packages, where no registry can be reached (SUITE=bookworm PACKAGES=)
	images/base.sh $(SUITE) $(PACKAGES)

train: setup ## train to the end: DATA=merged.csv OUTPUT=TRAINING (CELL=rocm6.3-torch2.9.1-plain, LOOKBACK=, ARGS='--epochs 5')
	@test -n "$(DATA)" || { echo "make train: say what to train on: make train DATA=merged.csv OUTPUT=TRAINING" >&2; exit 2; }
	$(MATRIX) train --data "$(DATA)" --output "$(OUTPUT)" $(if $(CELL),--cell "$(CELL)") $(if $(LOOKBACK),--lookback $(LOOKBACK)) $(ARGS)

test: check ## run every check and test that needs no Docker engine; the suites side by side
	@$(MAKE) --no-print-directory --output-sync=target -j3 test-harness test-system test-app

check: setup $(TEST_READY)
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy
	cd app && ../$(TEST_PYTHON) -m mypy

test-harness: setup
	.venv/bin/python -m pytest tests/harness

test-system: setup
	.venv/bin/python -m pytest tests/system $(addprefix --ignore ,$(FAULTS))

test-faults: setup ## make every kind of fault once, kill the harness at every point, searches and trainings on their way (minutes)
	.venv/bin/python -m pytest $(FAULTS)

test-docker: setup ## test images and containers on a real Docker engine (root; makes its base images; see CONTRIBUTING)
	.venv/bin/python -m pytest tests/images

test-app: $(TEST_READY)
	$(TEST_PYTHON) -m pytest tests/app

test-torch: .cache/envs/torch-$(TORCH)/.ready ## run the app's tests with another torch, on a CPU: TORCH=2.2.2
	.cache/envs/torch-$(TORCH)/bin/python -m pytest tests/app

bench: setup ## measure what the project claims about its own speed (minutes)
	.venv/bin/python benchmarks/cells.py
	.venv/bin/python benchmarks/harness_cost.py
	.venv/bin/python benchmarks/images.py

bench-features: setup $(TEST_READY) ## measure the features against peers, into docs/features-speed.md (LARGE=1: also at 14 M rows; ARGS=)
	.venv/bin/python benchmarks/features.py $(if $(LARGE),--large) $(ARGS)

bench-training: setup $(TEST_READY) ## measure training against peers, into docs/training-speed.md (ARGS=)
	.venv/bin/python benchmarks/training.py $(ARGS)

bench-policy: setup ## simulate what is run next on cells of known pass rates, into docs/policy-figures.md (ARGS='--jobs 2')
	.venv/bin/python -m benchmarks.policy $(ARGS)

bench-kills: setup ## kill -9 the harness KILLS=1000 times, into docs/crash-safety-figures.md (ARGS='--containers 50')
	.venv/bin/python benchmarks/kills.py $(or $(KILLS),1000) $(ARGS)

bench-records: setup ## measure what 10,000 records cost, into docs/records-figures.md (ARGS=1000: fewer)
	.venv/bin/python -m benchmarks.records $(ARGS)

bench-minimise: setup ## how often minimising names planted variables, on synthetic histories, into docs/minimise-figures.md (ARGS=)
	.venv/bin/python -m benchmarks.minimise $(ARGS)

bench-supervisor: setup ## train through TRAININGS=100 faults, into docs/supervisor-figures.md (an hour; ARGS='--containers')
	.venv/bin/python -m benchmarks.supervisor $(or $(TRAININGS),100) $(ARGS)

soak: setup ## make every drill many times, look for false alarms, measure what watching costs: hours (ARGS='--parts healthy --healthy 20')
	.venv/bin/python -m benchmarks.watching $(ARGS)

setup: .venv/.ready ## make .venv

.venv/.ready: requirements.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "make: Python 3.11 or newer is needed; say which: make PYTHON=python3.12" >&2; exit 2; }
	$(PYTHON) -m venv .venv || { echo "make: python venv is missing (Debian: apt install python3-venv)" >&2; exit 2; }
	.venv/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes --only-binary :all: -r requirements.txt
	.venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@.venv/bin/uv python find --quiet 3.11 >/dev/null 2>&1 || .venv/bin/uv python install 3.11 \
	  || echo "make: Python 3.11, which the stacks use, could not be installed; cells will be left out" >&2
	@touch $@

$(TEST_READY): .venv/.ready images/locks/cpu.txt tests/app/requirements.txt app/pyproject.toml $(wildcard app/vpoc/kernel/*.c)
	.venv/bin/python tests/app_environment.py
	@touch $@

.cache/envs/torch-%/.ready: .venv/.ready tests/app/requirements.in app/pyproject.toml $(wildcard tests/app/locks/*.txt)
	.venv/bin/python tests/app_environment.py $*
	@touch $@

lock: setup ## resolve the hash locks of the harness and of the test tools anew
	.venv/bin/uv pip compile $(COMPILE) --universal --group dev pyproject.toml -o requirements.txt
	.venv/bin/uv pip compile $(COMPILE) --python-platform x86_64-manylinux_2_28 -c images/locks/cpu.txt \
	  tests/app/requirements.in -o tests/app/requirements.txt

docs: $(TEST_READY) ## write the table of docs/features.md from the code
	$(TEST_PYTHON) tests/app/feature_table.py

schemas: setup ## write the JSON Schemas and docs/files.md from the types
	.venv/bin/python -m harness.cli.schemas
	.venv/bin/python -m harness.diagnosis.reference

clean: ## remove environments and caches (never results/)
	rm -rf .venv .cache .mypy_cache .ruff_cache .hypothesis
