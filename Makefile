# One command per chore; the same commands run in continuous integration.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# Set TORCH_INDEX where the pinned torch is not the CPU build, for example TORCH_INDEX=https://download.pytorch.org/whl/cpu
TORCH_INDEX ?=
TORCH_FLAGS := $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX),)
XDIST ?= 2
# The fits multiply many small matrices: threads of numpy's library cost them more than they bring, and get in each other's way.
export OPENBLAS_NUM_THREADS ?= 1
# The tests start Python some hundred times: without compiled files each start would compile all of the source again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help env env-axolotl env-llamafactory env-trl env-unsloth env-trl-handbook env-torchtune env-litgpt env-torchtitan style lint test test-real test-slow test-lowest explore differential bench calibrate accuracy figures corpus ranges regenerate pictures clean

help:
	@echo "make test    create the environment, then style, import contracts and the tests"
	@echo "make env-trl-handbook   the same for alignment-handbook's files, with its repository in HANDBOOK=DIR"
	@echo "make lint    style, types and import contracts only"
	@echo "make env-axolotl, env-llamafactory, env-trl, env-unsloth, env-torchtune, env-litgpt, env-torchtitan   environments of other tools, for dry runs of their own command lines"
	@echo "make test-real  real training steps on the CPU, the trace beside them, the step program beside the trace, and dry runs of whole programs"
	@echo "make test-slow  the long tests: every method and engine for real, on the CPU"
	@echo "make test-lowest  the lowest versions that pyproject.toml allows on the oldest Python here, and the newest on the newest"
	@echo "make explore    the property tests with inputs drawn anew, for MINUTES=10; says how many were tried and failed"
	@echo "make differential   the step program against the trace: every cell of the matrix that is not stored yet (AGAIN=--again: all)"
	@echo "make bench   speed, as ratios"
	@echo "make calibrate   fit the calibration that ships to the published rows and our own measurements"
	@echo "make accuracy    refit, cross-validate, print aims beside what is reached, and say whether a stored figure or a notebook is stale"
	@echo "make figures     every figure of data/accuracy.json as a table: aims, misses, errors by source, method and GPU"
	@echo "make corpus      the share of public recipes in CORPUS=DIR that plan check answers, tool by tool"
	@echo "make ranges      data/unmodelled.toml: how far known architectures are from a plain decoder of their sizes"
	@echo "make regenerate  what follows from the formulas: calibration, accuracy.json, golden tables, examples that are no longer true"
	@echo "make pictures    the picture of docs/accuracy.md, and the outputs of notebooks that are no longer true"
	@echo "make clean   remove the environments and caches"

$(VENV)/.installed: pyproject.toml constraints.txt build_hook.py planner/allocator/replay.c planner/allocator/free_lists.h
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet $(TORCH_FLAGS) "$$(grep '^torch==' constraints.txt)"
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[measure,slurm,plots,dev]'
	touch $@

env: $(VENV)/.installed

# Other people's tools, each in an environment of its own, for dry runs of their command lines; never part of `make test`.
# A GPU installation has Triton by way of torch, in the version that torch 2.13.0 for CUDA asks for; files of all three may ask for the rest.
TRITON := triton==3.7.1
BESIDE := bitsandbytes deepspeed liger_kernel peft $(TRITON)
TOOLS := tests/against_libraries/programs/environments
# What files of LLaMA-Factory ask for beside it: optimizers, and the layers of Qwen3.5, in the last version for its Transformers.
env-llamafactory: BESIDE += adam_mini badam galore_torch apollo_torch flash-linear-attention
# What it needs comes with it.
env-unsloth: BESIDE := unsloth_zoo
env-axolotl env-llamafactory env-trl env-unsloth: env-%:
	$(PYTHON) -m venv .venv-$*
	.venv-$*/bin/python -m pip install --quiet $(TORCH_FLAGS) "$$(grep '^torch==' constraints.txt)"
	.venv-$*/bin/python -m pip install --quiet --no-build-isolation --constraint $(TOOLS)/$*.txt $* $(BESIDE)
	.venv-$*/bin/python -m pip install --quiet --constraint $(TOOLS)/$*.txt --editable .

# Recipes of PyTorch's own tools and of LitGPT; Transformers names the tensors of checkpoints that are not there.
# torchtune 0.6.1 imports what torchao has up to 0.14; torchtitan 0.3.0 asks for a torch behind 2.13.
env-torchtune: PACKAGES := torchtune==0.6.1 torchao==0.14.1 transformers==5.24.0 bitsandbytes==0.50.2
env-litgpt: PACKAGES := litgpt==0.5.13 transformers==4.57.6
env-torchtitan: PACKAGES := torchtitan==0.2.2 transformers==5.24.0 einops
env-torchtune env-litgpt env-torchtitan: env-%:
	$(PYTHON) -m venv .venv-$*
	.venv-$*/bin/python -m pip install --quiet $(TORCH_FLAGS) "$$(grep '^torch==' constraints.txt)" $(PACKAGES) $(TRITON)
	.venv-$*/bin/python -m pip install --quiet --editable .

# Files of alignment-handbook up to 2025-03, with libraries of 2024-11.  HANDBOOK: its repository at ae3f44f, whose scripts run.
HANDBOOK_NEEDS := trl bitsandbytes deepspeed peft $(TRITON) scipy sentencepiece evaluate setuptools
env-trl-handbook:
	$(PYTHON) -m venv .venv-trl-handbook
	.venv-trl-handbook/bin/python -m pip install --quiet $(TORCH_FLAGS) "$$(grep '^torch==' constraints.txt)"
	.venv-trl-handbook/bin/python -m pip install --quiet --constraint $(TOOLS)/trl-handbook.txt $(HANDBOOK_NEEDS) --editable .
	.venv-trl-handbook/bin/python -m pip install --quiet --no-deps --no-build-isolation --editable $(HANDBOOK)

style: env
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

lint: style
	$(BIN)/mypy

test: style
	$(BIN)/python -m pytest -n $(XDIST) --dist worksteal

# What trains for real, starts programs that do, or traces whole steps: all of it waits for torch, again and again.
test-real: env
	$(BIN)/python -m pytest -n $(XDIST) --dist worksteal -m "real and not slow"

test-slow: env
	$(BIN)/python -m pytest -m slow

# Without torch.  The oldest and the newest supported Python of this machine, unless they are named.
LOWEST_PYTHON ?= "$$($(PYTHON) tests/lowest/find_python.py oldest)"
NEWEST_PYTHON ?= "$$($(PYTHON) tests/lowest/find_python.py newest)"
LOWEST := .venv-lowest
NEWEST := .venv-newest
PLAIN_TESTS := tests/cli tests/golden tests/lowest tests/planner tests/measure/run tests/measure/campaign tests/measure/worker tests/measure/test_bundle.py tests/architecture/test_wheel.py
# What of the extras is small, and the tests that use it.
SMALL_EXTRAS := '.[test,slurm,plots]' nvidia-ml-py packaging psutil
EXTRA_TESTS := tests/planner tests/measure/run tests/measure/campaign tests/accuracy/test_tables.py
LOWEST_PYTEST := python -m pytest -n $(XDIST) --dist worksteal
test-lowest:
	$(LOWEST_PYTHON) -m venv --clear $(LOWEST)
	$(LOWEST)/bin/python tests/lowest/minima.py > $(LOWEST)/constraints.txt
	$(LOWEST)/bin/python -m pip install --quiet --constraint $(LOWEST)/constraints.txt --editable '.[test]'
	$(LOWEST)/bin/$(LOWEST_PYTEST) $(PLAIN_TESTS)
	$(LOWEST)/bin/python -m pip install --quiet --constraint $(LOWEST)/constraints.txt --editable $(SMALL_EXTRAS)
	$(LOWEST)/bin/$(LOWEST_PYTEST) $(EXTRA_TESTS)
	$(NEWEST_PYTHON) -m venv --clear $(NEWEST)
	$(NEWEST)/bin/python -m pip install --quiet --editable $(SMALL_EXTRAS)
	$(NEWEST)/bin/$(LOWEST_PYTEST) $(PLAIN_TESTS) $(EXTRA_TESTS)

MINUTES ?= 10
explore: env
	$(BIN)/python tests/properties/explore.py --minutes $(MINUTES) --workers $(XDIST)

# Both run only what is not stored yet; AGAIN=--again traces everything anew (hours on two cores).
AGAIN ?=
differential: env
	$(BIN)/python tests/against_libraries/run_matrix.py --workers $(XDIST) $(AGAIN)
	$(BIN)/python tests/against_libraries/sharded_table.py $(AGAIN)
	$(BIN)/python -m pytest tests/against_libraries/tables/test_matrix.py tests/against_libraries/tables/test_sharded_table.py

bench: env
	$(BIN)/python -m pytest tests/benchmarks --benchmark-enable --benchmark-only

RECORDS = $(wildcard data/published/*.csv) $(wildcard data/measurements/*/*.jsonl)

calibrate: env
	$(BIN)/plan calibrate $(RECORDS) --out data/calibration

accuracy: env
	$(BIN)/python -m tests.accuracy.accuracy --check
	$(BIN)/python -m pytest -n $(XDIST) --dist worksteal -m "figures and not slow"

# NAMES: some of them only, such as `make figures NAMES="aims misses"`.
figures: env
	@$(BIN)/python -m tests.accuracy.figures $(NAMES)

# LIST: a JSON list of [repository, file], where not every config below the folder is meant.
corpus: env
	$(BIN)/python -m tests.accuracy.corpus_share $(CORPUS) $(if $(LIST),--list $(LIST),)

ranges: env
	$(BIN)/python -m tests.accuracy.architecture_ranges

# The accuracy is measured with the fits that the calibration comes from, so one command writes both; no other stored file follows from
# a fit.  Golden tables follow from formulas, and examples on pages are written anew only where they are no longer true.
regenerate: env
	$(BIN)/python -m tests.accuracy.accuracy --write
	$(BIN)/python -m tests.accuracy.estimators
	$(BIN)/python tests/golden/regenerate.py
	$(BIN)/python tests/docs/update_docs.py

# What shows figures as pictures: the scatter of docs/accuracy.md, which says of which day they are, and the outputs of the notebooks.
pictures: env
	$(BIN)/python -m tests.accuracy.scatter
	$(BIN)/python tests/notebooks/execute.py

clean:
	rm -rf $(VENV) $(LOWEST) $(NEWEST) .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache .benchmarks
