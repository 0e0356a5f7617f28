# Every target makes what it needs: the first one run on a fresh machine sets everything up.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

VENV := .venv
PY := $(VENV)/bin/python
STAMP := $(VENV)/.installed
CLUSTER ?= auto
KEEP ?=
PYTEST_ARGS ?=
BENCH_ARGS ?=
SWEEP_ARGS ?=
REPLICAS_ARGS ?=
FIELDS_ARGS ?=

.PHONY: help venv libtpu demo test lint format gen gen-check e2e faults soak sweep replicas fields bench bench-recovery lock clean down

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## /{printf "  make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo
	@echo "  CLUSTER=local|kind|current  where demo and tests run (default: kind if a Docker engine answers, else local)"
	@echo "  KEEP=1                      make demo leaves the cluster up"

venv: $(STAMP) ## Make the virtual environment from the lock

$(STAMP): requirements/dev.txt pyproject.toml tools/venv.sh
	@bash tools/venv.sh $(VENV)
	@touch $@

libtpu: $(STAMP) ## Get the TPU compiler once (200 MB) and print where it is: TPU_LIBRARY_PATH
	@bash tools/libtpu.sh $(VENV)

demo: $(STAMP) ## Train a model on a real cluster, hit it twice, see it resume: the main job
	@$(PY) -m demo --cluster $(CLUSTER) $(if $(KEEP),--keep)

test: $(STAMP) ## Everything that is tested: lint, drift, test tiers 0 to 4
	@bash tools/test.sh

lint: $(STAMP) ## Format, style, types, borders
	@$(VENV)/bin/ruff format --check .
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/mypy
	@$(VENV)/bin/lint-imports --no-cache

format: $(STAMP) ## Format and fix what can be fixed
	@$(VENV)/bin/ruff format .
	@$(VENV)/bin/ruff check --fix .

gen: $(STAMP) ## Generate CRD, references, alerts and dashboards from their sources
	@$(PY) -m tpujob_operator.api.crd
	@$(PY) -m monitoring

gen-check: $(STAMP) ## Fail if something generated differs from its source
	@$(PY) -m tpujob_operator.api.crd --check
	@$(PY) -m monitoring --check

e2e: $(STAMP) ## Only the end-to-end tests, on real nodes and containers
	@$(PY) -m pytest -m "e2e and not faults" $(PYTEST_ARGS)

faults: $(STAMP) ## The slow faults of the catalogue, on real nodes (make test has the others)
	@$(PY) -m pytest -m faults $(PYTEST_ARGS)

soak: $(STAMP) ## One long job under 200 random faults; fails if one is answered wrongly (half an hour)
	@$(PY) -m bench.soak $(BENCH_ARGS)

sweep: $(STAMP) ## Four lives of jobs under every fault at every write, event and step (hours; SWEEP_ARGS=--help)
	@PYTHONPATH=operator:trainer:. $(PY) -m tests.sweep $(SWEEP_ARGS)

replicas: $(STAMP) ## Two replicas: leaders killed and frozen, both cut off (40 minutes; REPLICAS_ARGS=--help)
	@PYTHONPATH=operator:trainer:. $(PY) -m tests.replicas $(REPLICAS_ARGS)

fields: $(STAMP) ## Every field of jobs that run is changed and changed back (FIELDS_ARGS=--help)
	@PYTHONPATH=operator:trainer:. $(PY) -m tests.fields $(FIELDS_ARGS)

bench: $(STAMP) ## Benchmarks, printed as ratios
	@$(PY) -m bench

bench-recovery: $(STAMP) ## Recovery beside JobSet alone and Kubeflow Trainer, in one run (over an hour)
	@$(PY) -m bench.recovery $(BENCH_ARGS)

lock: $(STAMP) ## Resolve the dependencies anew into requirements/
	@bash tools/lock.sh $(VENV)

down: $(STAMP) ## Take down the cluster that demo KEEP=1 left up
	@$(PY) -m localcluster down --name demo

clean: ## Remove what was made here (machine-wide caches stay)
	@[ ! -x $(PY) ] || $(PY) -m localcluster down --name demo || true
	@rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	@find . -name __pycache__ -prune -exec rm -rf {} +
