# `make` lists the targets. Needs Python 3.11 or newer, git and make; everything else is set up in .venv and .cache.
PYTHON ?= python3
SELECTION ?= default
OUTPUT ?= TRAINING
SUITE ?= bookworm
TORCH ?= 2.2.2
MATRIX = .venv/bin/matrix
# Messages name the variables of make beside options.
doctor matrix-test build train: export MATRIX_BY_MAKE = 1
FAULTS = $(addprefix tests/system/, test_faults.py test_goal.py test_kills.py test_minimise.py test_train.py)
COMPILE = --quiet --upgrade --python-version 3.11 --generate-hashes --no-annotate --no-header
# Further options of pytest, such as PYTEST='-n 2 -x'. Each worker imports and collects for ten seconds, and three suites
# run side by side.
WORKERS ?= 2
PYTEST ?= -n $(WORKERS)
# Tests marked `slow` are left to `make test-slow`, those marked `long` to `make test-all` (LONG=1).
MARKED = $(if $(LONG),,-m "not long")
QUICK_OR_SLOW = $(if $(LONG),,-m "$(if $(SLOW),slow,not slow) and not long")
# $(call files,FOLDERS): where only slow tests are asked for, other files are not even collected.
files = $(if $(SLOW),$$(grep -rl --include 'test_*.py' 'mark[.]slow' $(1)),$(1))
TEST_PYTHON = .cache/envs/cpu-test/bin/python
# Stamps: the interpreter is a link to one that may be older than anything here.
DEV_READY = .venv/.ready-dev
TEST_READY = .cache/envs/cpu-test/.ready
JAX_READY = .cache/envs/jax-test/.ready
ARRAYS = .cache/gpu-evidence/arrays.npz
GPU_PYTHON ?= python3
ifeq ($(origin LOOKBACK),undefined)
# The name it had before.
LOOKBACK := $(value WARM_UP)
endif

# What a person may give to a target; another variable, or a misspelt one, would be ignored in silence.
TAKES_doctor = ARGS
TAKES_matrix-test = BUDGET DATA LOOKBACK SELECTION ARGS
TAKES_build = ROCM DRY_RUN SELECTION ARGS
TAKES_base = SUITE PACKAGES DEBS LOCK MIRROR
TAKES_train = DATA OUTPUT CELL LOOKBACK ARGS
CHECKED = doctor matrix-test build base train
GIVEN = $(foreach name,$(.VARIABLES),$(if $(filter command,$(firstword $(origin $(name)))),$(name)))
FORMER = WARM_UP
COMMA = ,
UNKNOWN = $(firstword $(filter-out PYTHON MATRIX_% $(FORMER) $(foreach goal,$(MAKECMDGOALS),$(TAKES_$(goal))),$(GIVEN)))
ifneq ($(MAKECMDGOALS),)
ifeq ($(filter-out $(CHECKED),$(MAKECMDGOALS)),)
ifneq ($(UNKNOWN),)
NAMED = '$(subst ','\'',$(UNKNOWN))'
OPTION = --$(shell echo $(NAMED) | tr A-Z_ a-z-) $(value $(UNKNOWN))
# A target may insist on its own variable, and then its option does not do.
MEANT = $(filter $(shell echo $(NAMED) | tr a-z A-Z),$(foreach goal,$(MAKECMDGOALS),$(TAKES_$(goal))))
# ARGS comes after the command, and takes none of the options before it. `train` has a --target of its own.
BEFORE = $(filter --matrix --results --base --index --wheels --root $(if $(filter train,$(MAKECMDGOALS)),,--target),$(firstword $(OPTION)))
WITH_OPTION = an option of the command goes into ARGS='$(OPTION)'$(COMMA) a variable of the environment before make
WITHOUT_MAKE = `.venv/bin/matrix $(OPTION) $(firstword $(MAKECMDGOALS:matrix-test=run)) ...` takes it
OF_OPTION = $(if $(BEFORE),$(WITHOUT_MAKE),$(WITH_OPTION))
OF_BASE = `images/base.sh --help` explains them
HINT = $(if $(MEANT),give $(MEANT)=$(value $(UNKNOWN)),$(if $(filter base,$(MAKECMDGOALS)),$(OF_BASE),$(OF_OPTION)))
$(error make $(MAKECMDGOALS): takes no $(UNKNOWN)=, only $(foreach goal,$(MAKECMDGOALS),$(addsuffix =,$(TAKES_$(goal)))); $(HINT))
endif
endif
endif

# Take what was typed as it stands: make would run a $(shell ...) in it, for the environment of recipes, too.
TEXTS = $(FORMER) MATRIX_% $(filter-out ARGS,$(foreach goal,$(CHECKED),$(TAKES_$(goal))))
$(foreach name,$(filter $(TEXTS),$(GIVEN)),$(eval override export $(name) := $$(value $(name))))

# $(call quoted,VARIABLE): what was typed as one word of the shell, because a file may have any name.
quoted = '$(subst ','\'',$(value $(1)))'
# $(call each_quoted,VARIABLE): each of the words that were typed as a word of the shell.
each_quoted = $(foreach word,$(value $(1)),'$(subst ','\'',$(word))')

# $(call install,FILE): install what a lock lists into .venv. A line tells how far it is where a person watches;
# otherwise only errors are printed.
define install
@test -t 2 || echo "$(1): installing into .venv, some minutes the first time" >&2
@rm -f .venv/.failed; total=$$(grep -c '^[a-z]' $(1)); { PYTHONUNBUFFERED=1 .venv/bin/python -m pip install --progress-bar off \
  --disable-pip-version-check --no-compile --require-hashes --only-binary :all: -r $(1) 2>&1 || touch .venv/.failed; } | \
{ n=0; failed=; while IFS= read -r line; do \
  case "$$failed$$line" in failed*|ERROR*) \
    test -n "$$failed" || test ! -t 2 || printf '\r\033[K' >&2; failed=failed; echo "$$line" >&2; continue;; esac; \
  test -t 2 || continue; \
  case "$$line" in \
    Collecting*|Processing*) n=$$((n + 1)); name=$${line#* }; name=$${name%% *}; \
      printf '\r\033[K$(1): fetching %d of %d, %s' $$n $$total "$${name##*/}" >&2;; \
    Installing*) printf '\r\033[K$(1): installing' >&2;; \
  esac; done; test ! -t 2 || printf '\r\033[K' >&2; }; test ! -e .venv/.failed
endef

# Without compiled modules each command would compile them again, for a second or more.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL = help
TARGETS = help help-all setup setup-dev kernel doctor matrix-test build base train test test-slow test-all check test-harness test-system test-faults test-app test-torch test-jax test-docker test-docker-shared test-docker-apart test-docker-other test-oracles test-slurm lock docs schemas bench bench-attacks bench-features bench-training bench-kills bench-policy bench-fault-isolation bench-supervisor bench-evening bench-minimise bench-records bench-slurm bench-commands bench-ctrl-c bench-images gpu-arrays gpu-evidence soak clean clean-all
.PHONY: $(TARGETS)

# What is typed wrongly, and a file that is gone.
NEAREST = import difflib, sys; name, *targets = sys.argv[1:]; near = difflib.get_close_matches(name, targets, 1); \
  of_matrix = f"\"{name}\": \"" in open("harness/cli/commands.py").read(); \
  sys.exit(f"make: no target or file {name}; " + (f"it is `.venv/bin/matrix {name}`" if of_matrix else f"did you mean `make {near[0]}`?" if near else "`make help-all` lists them"))
.DEFAULT:
	@$(PYTHON) -c '$(NEAREST)' '$@' $(TARGETS)

define LIST
grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | awk -F '\t' '{printf "  make %-16s %s\n", $$1, $$2}'
endef

help: ## list the everyday targets
	@$(LIST) | grep -vE '^  make (test-|bench|gpu|soak|kernel|lock|docs|schemas)'

help-all: ## list all targets: other tests, benchmarks, what writes locks and docs
	@$(LIST)

doctor: setup ## say what to fix on this host before anything runs, and how (ARGS=--json)
	$(MATRIX) doctor$(if $(ARGS), $(ARGS))

matrix-test: setup ## find what trains on this host; records and report in results/ (BUDGET=10h, DATA=merged.csv, LOOKBACK=, SELECTION=, ARGS=)
	$(MATRIX) run$(if $(filter file,$(origin SELECTION)),, --selection $(call quoted,SELECTION))$(if $(value BUDGET), --budget $(call quoted,BUDGET))$(if $(value DATA), --data $(call quoted,DATA))$(if $(value LOOKBACK), --lookback $(call quoted,LOOKBACK))$(if $(ARGS), $(ARGS))

build: setup ## build the images of one ROCm version: ROCM=6.3, or ROCM=cpu (DRY_RUN=1 only prints; SELECTION=, ARGS=)
	@test -n $(call quoted,ROCM) || { echo "make build: say which ROCm: make build ROCM=6.3, or ROCM=cpu ($(MATRIX) build --selection default builds all)" >&2; exit 2; }
	$(MATRIX) build --rocm $(call quoted,ROCM) --selection $(call quoted,SELECTION)$(if $(ARGS), $(ARGS))

base: ## make a base image from Debian's packages, where no registry can be reached (SUITE=bookworm PACKAGES=)
	images/base.sh $(call quoted,SUITE) $(call each_quoted,PACKAGES)

train: setup ## train to the end: DATA=merged.csv OUTPUT=TRAINING (CELL=rocm6.3-torch2.9.1-plain, LOOKBACK=, ARGS='--epochs 5')
	@test -n $(call quoted,DATA) || { echo "make train: say what to train on: make train DATA=merged.csv OUTPUT=TRAINING" >&2; exit 2; }
	$(MATRIX) train --data $(call quoted,DATA) --output $(call quoted,OUTPUT)$(if $(value CELL), --cell $(call quoted,CELL))$(if $(value LOOKBACK), --lookback $(call quoted,LOOKBACK))$(if $(ARGS), $(ARGS))

test: setup-dev $(TEST_READY) ## run every check, and the quick tests that need no Docker engine, side by side (minutes)
	@$(MAKE) --no-print-directory --output-sync=target -j4 check test-harness test-system test-app

test-slow: setup-dev $(TEST_READY) ## run what `make test` leaves out: each takes seconds of a processor
	@$(MAKE) --no-print-directory --output-sync=target -j3 SLOW=1 test-harness test-system test-app

test-all: ## run all: what takes long, every fault, containers, AMD's programs, the oldest torch (an hour)
	@$(MAKE) --no-print-directory LONG=1 test
	@$(MAKE) --no-print-directory LONG=1 test-faults
	@$(MAKE) --no-print-directory LONG=1 test-docker
	@$(MAKE) --no-print-directory LONG=1 test-docker-other
	@$(MAKE) --no-print-directory test-oracles
	@$(MAKE) --no-print-directory LONG=1 test-slurm
	@$(MAKE) --no-print-directory LONG=1 test-torch
	@$(MAKE) --no-print-directory LONG=1 test-jax

check: setup-dev $(TEST_READY)
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy
	cd app && ../$(TEST_PYTHON) -m mypy

test-harness: setup-dev
	.venv/bin/python -m pytest $(PYTEST) $(QUICK_OR_SLOW) $(call files,tests/harness)

# More workers than cores: many tests wait.
test-faults: WORKERS := $(if $(filter file,$(origin WORKERS)),3,$(WORKERS))
test-system: setup-dev
	.venv/bin/python -m pytest $(PYTEST) $(QUICK_OR_SLOW) $(call files,tests/system) $(addprefix --ignore ,$(FAULTS))

test-faults: setup-dev ## inject a fault of each outcome, kill the harness at every point, and searches and trainings on their way (LONG=1: every kind)
	.venv/bin/python -m pytest $(PYTEST) $(MARKED) $(FAULTS)

# One after the other: they share an engine and its images, except for those that run beside them and mostly wait.
test-docker: setup-dev ## test images and containers on a real Docker engine (root; makes its base images; see CONTRIBUTING; LONG=1: all)
	@$(MAKE) --no-print-directory -j2 test-docker-shared test-docker-apart

test-docker-shared test-docker-apart: setup-dev
	.venv/bin/python -m pytest $(MARKED) tests/images$(if $(filter %-apart,$@),/apart, --ignore tests/images/apart)

# Engines differ in what they keep of a build, and in how they name images.
test-docker-other: setup-dev ## the same on a second engine, of another version or image store: OTHER_DOCKER_HOST=unix:///... (skipped without)
	@if [ -z "$(OTHER_DOCKER_HOST)" ]; then echo "make test-docker-other: SKIPPED: OTHER_DOCKER_HOST names no second engine" >&2; \
	else DOCKER_HOST="$(OTHER_DOCKER_HOST)" REQUIRE_DOCKER=1 .venv/bin/python -m pytest $(MARKED) tests/images; fi

# Fetched once into .cache/oracles; nothing is installed.
test-oracles: setup-dev ## run AMD's own programs on simulated hosts (Debian's packages and JAX, 400 MB, 1.9 GB unpacked; see CONTRIBUTING)
	.venv/bin/python -m pytest $(PYTEST) tests/oracles

# A cluster of its own on loopback, with several slurmd: started and ended by the tests.
test-slurm: setup-dev ## a campaign on a real Slurm, through what happens to jobs (Debian's slurmctld, slurmd, slurm-client; skipped without)
	.venv/bin/python -m pytest $(MARKED) tests/slurm

test-app: $(TEST_READY)
	$(TEST_PYTHON) -m pytest $(PYTEST) $(QUICK_OR_SLOW) $(call files,tests/app tests/benchmarks)

test-torch: .cache/envs/torch-$(TORCH)/.ready ## run the app's tests with another torch, on a CPU: TORCH=2.2.2
	.cache/envs/torch-$(TORCH)/bin/python -m pytest $(PYTEST) $(MARKED) tests/app tests/benchmarks

test-jax: $(JAX_READY) ## run the tests of trainings by JAX, on a CPU (90 MB to download)
	.cache/envs/jax-test/bin/python -m pytest $(MARKED) tests/app/training/with_jax/test_jax.py

bench: setup ## measure what the project claims about its own speed (minutes)
	.venv/bin/python benchmarks/cells.py
	.venv/bin/python benchmarks/harness_cost.py
	.venv/bin/python benchmarks/images.py

bench-features: setup $(TEST_READY) ## measure the features against peers, into docs/evidence/features-speed.md (LARGE=1: also at 14 M rows; ARGS=)
	.venv/bin/python benchmarks/features.py $(if $(LARGE),--large) $(ARGS)

bench-training: setup $(TEST_READY) ## measure training against peers, into docs/evidence/training-speed.md (ARGS=)
	.venv/bin/python benchmarks/training.py $(ARGS)

gpu-arrays: $(ARRAYS) ## make the arrays that `make gpu-evidence` works on, some MB (a minute; needs no GPU)

# Nothing of ours is needed but the checkout and the arrays: GPU_PYTHON is any Python with torch and numpy.
gpu-evidence: $(ARRAYS) ## see what the app's code does on this GPU, in eight minutes: GPU_PYTHON=python3 (ARGS='--destructive')
	$(GPU_PYTHON) -m benchmarks.gpu_evidence $(ARGS)

# Not a prerequisite: where the arrays are, their maker is not needed.
$(ARRAYS):
	@$(MAKE) --no-print-directory $(TEST_READY)
	PYTHONPATH=app:. $(TEST_PYTHON) -m benchmarks.gpu_evidence.prepare $@

bench-policy: setup ## simulate verdicts and what is run next on cells of known rates, into docs/evidence (ARGS='--jobs 2')
	.venv/bin/python -m benchmarks.verdicts $(ARGS)
	.venv/bin/python -m benchmarks.policy $(ARGS)

bench-evening: setup ## simulate evenings in worlds whose truth is known, into docs/evidence/evening-figures.md (ARGS='--seeds 10')
	.venv/bin/python -m benchmarks.evening $(ARGS)

bench-fault-isolation: setup ## how often controls tell cell, stack, GPU and host apart, simulated, into docs/evidence/fault-isolation-figures.md (ARGS=)
	.venv/bin/python -m benchmarks.fault_isolation $(ARGS)

bench-kills: setup ## kill -9 the harness KILLS=1000 times, into docs/evidence/crash-safety-figures.md (ARGS='--containers 50')
	.venv/bin/python benchmarks/kills.py $(or $(KILLS),1000) $(ARGS)

bench-attacks: setup ## attack the harness with a hostile app, in containers and as processes, into docs/evidence/attacks.md (ARGS='--only links')
	.venv/bin/python -m benchmarks.attacks $(ARGS)

bench-slurm: setup-dev ## kill a campaign on Slurm at random moments, and measure its cost, into docs/evidence/slurm-figures.md (ARGS='kills --kills 50')
	.venv/bin/python -m benchmarks.slurm $(ARGS)

bench-records: setup-dev ## measure what 10,000 records cost, into docs/evidence/records-figures.md (ARGS=1000: fewer)
	.venv/bin/python -m benchmarks.records $(ARGS)

bench-commands: setup-dev ## measure what the commands cost that people wait for, into docs/evidence/commands.md (ARGS=1000: fewer records)
	.venv/bin/python -m benchmarks.commands $(ARGS)

bench-ctrl-c: setup-dev ## measure how soon Ctrl-C is answered and done, into docs/evidence/ctrl-c.md (ARGS=5: fewer times)
	.venv/bin/python -m benchmarks.ctrl_c $(ARGS)

bench-minimise: setup ## how often minimising names planted variables, on simulated histories, into docs/evidence/minimise-figures.md (ARGS=)
	.venv/bin/python -m benchmarks.minimise $(ARGS)

bench-images: setup ## measure how images are made, shared and sent, into docs/evidence/images-figures.md (half an hour; ARGS='--builds 3')
	.venv/bin/python -m benchmarks.image_figures $(ARGS)

bench-supervisor: setup ## train through TRAININGS=100 faults, into docs/evidence/supervisor-figures.md (an hour; ARGS='--containers')
	.venv/bin/python -m benchmarks.supervisor $(or $(TRAININGS),100) $(ARGS)

soak: setup ## inject every fault many times, look for false alarms, measure what watching costs: hours (ARGS='--parts healthy --healthy 20')
	.venv/bin/python -m benchmarks.watching $(ARGS)

setup: .venv/.ready ## make .venv with what running needs

setup-dev: $(DEV_READY) ## add to .venv what tests and checks need: browsers, type checker, linters

kernel: setup ## compile the app's kernel, where its compiler could not be fetched before
	.venv/bin/python -m harness.environments.compiled_kernel

ifdef SETUP_LOCKED
# Python's own handling of Ctrl-C would print a traceback of venv.
.venv/.ready: requirements.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "make: Python 3.11 or newer is needed; say which: make PYTHON=python3.12" >&2; exit 2; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || { echo "make: python venv is missing (Debian: apt install python3-venv)" >&2; exit 2; }
	@echo "making .venv" >&2
	@$(PYTHON) -c 'import signal, venv; signal.signal(signal.SIGINT, signal.SIG_DFL); venv.main(["--clear", ".venv"])'
	$(call install,requirements.txt)
	@.venv/bin/python -m pip install -qq --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

$(DEV_READY): .venv/.ready requirements-dev.txt
	$(call install,requirements-dev.txt)
	@touch $@
else
# Two that set up the same .venv at once would end each other: the second waits, and finds it made.
UNDER_LOCK = .cache/setup.lock $(MAKE) -s --no-print-directory SETUP_LOCKED=1 $@
define locked
+@mkdir -p .cache; flock -n -E 75 $(UNDER_LOCK); code=$$?; test $$code = 75 || exit $$code; \
  echo "waiting for another make, which sets up .venv" >&2; flock $(UNDER_LOCK)
endef

.venv/.ready: requirements.txt pyproject.toml
	$(locked)

$(DEV_READY): .venv/.ready requirements-dev.txt
	$(locked)
endif

# They outlive .venv: another one of the same Python would make the same.
$(TEST_READY): requirements-compiler.txt images/locks/cpu.txt tests/app/requirements.txt app/pyproject.toml $(wildcard app/vpoc/kernel/*.c) | .venv/.ready
	.venv/bin/python tests/app_environment.py
	@touch $@

$(JAX_READY): images/locks/cpu-jax0.10.0.txt $(TEST_READY)
	.venv/bin/python tests/app_environment.py jax
	@touch $@

.cache/envs/torch-%/.ready: tests/app/requirements.in app/pyproject.toml $(wildcard tests/app/locks/*.txt) | .venv/.ready
	.venv/bin/python tests/app_environment.py $*
	@touch $@

lock: setup ## resolve the hash locks of the harness, of the compiler and of the test tools again
	.venv/bin/uv pip compile $(COMPILE) --universal --group dev pyproject.toml -o requirements-dev.txt
	.venv/bin/uv pip compile $(COMPILE) --universal -c requirements-dev.txt pyproject.toml -o requirements.txt
	.venv/bin/uv pip compile $(COMPILE) --python-platform x86_64-manylinux_2_28 --only-binary :all: \
	  --group pyproject.toml:compiler -o requirements-compiler.txt
	.venv/bin/uv pip compile $(COMPILE) --universal -c images/locks/cpu.txt tests/app/requirements.in -o tests/app/requirements.txt

docs: $(TEST_READY) ## write docs/reference from the tables of the code (with `make schemas`)
	$(TEST_PYTHON) tests/app/reference_pages.py
	.venv/bin/python -m tests.harness.reference_pages

schemas: setup ## write the JSON Schemas, docs/reference/files.md and signatures.md from the code
	.venv/bin/python -m harness.cli.schemas
	.venv/bin/python -m harness.diagnosis.reference

GOES = .venv .mypy_cache app/.mypy_cache .ruff_cache .hypothesis
ASK = test ! -t 0 || { printf 'Remove these? [y/N] ' >&2; read -r said; case $$said in [yY]*) ;; *) echo 'nothing was removed' >&2; exit 1;; esac; }
clean: ## remove .venv and the caches of tools; wheels, environments of stacks and results/ stay
	@$(if $(wildcard $(GOES)),du -shc $(wildcard $(GOES)) >&2)
	@$(if $(wildcard $(GOES)),$(ASK))
	rm -rf $(GOES)
	find harness app tests benchmarks -name __pycache__ -prune -exec rm -rf {} +

clean-all: GOES += .cache
clean-all: clean ## remove wheels, environments of stacks and synthetic data, too (never results/)
