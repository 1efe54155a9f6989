# `make` lists the targets. Everything that a target needs is set up by the target itself.
SHELL := /bin/sh
.DEFAULT_GOAL := help
BIN := .venv/bin
READY := .venv/.ready
PYTEST := $(BIN)/python -m pytest
# All tests of a file in one worker: importing MaxText takes 10-25 s, once a worker is enough. The files come in the order
# of their names, in CI in a random one; `make test SEED=...` repeats an order.
SEED ?= $(if $(filter true,$(CI)),$(shell date +%s))
PARALLEL := -n 2 --dist loadfile --no-loadscope-reorder $(if $(SEED),--order-seed $(SEED))
DEMO := runs-demo
# Tests start hundreds of Python processes: without cached bytecode each of them compiles its libraries anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup demo test test-fast test-airflow test-full controlplane test-controlplane seed-experiment soak test-torch lint format lock audit bench clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-17s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(READY) ## make .venv from requirements.lock (nothing to do when it is there)

$(READY): requirements.lock setup.py .ci/setup $(wildcard tests/tools/go.sum)
	@sh .ci/setup

demo: $(READY) ## the whole pipeline in KFP on this machine: train on simulated slices, lose one, recover, export, evaluate
	$(BIN)/python examples/make_data.py $(DEMO)/data
	$(BIN)/elastic-tpu run examples/local.yaml --via kfp-local

test: $(READY) ## run the tests (minutes); SEED=7 shuffles the files; the last lines say what could not run here
	$(PYTEST) $(PARALLEL) -m "not airflow and not full and not soak and not controlplane"

test-fast: $(READY) ## run the unit tests (a minute): no MaxText, no process, server or browser; the last lines say what is left out
	$(PYTEST) $(PARALLEL) --fast

test-airflow: $(READY) ## run the tests of the operators and the DAG, in a real Airflow
	$(PYTEST) $(PARALLEL) -m "airflow and not full and not soak"

test-full: $(READY) ## run the tests that take minutes each
	$(PYTEST) $(PARALLEL) -m "full and not soak"

BUILD_CONTROLPLANE := PATH="$(CURDIR)/$(BIN):$$PATH" sh tests/controlplane/build.sh >/dev/null
controlplane: $(READY) ## build the Kubernetes control plane that tests start: once, minutes, needs Go
	@$(BUILD_CONTROLPLANE)

test-controlplane: controlplane ## run the tests on a real Kubernetes control plane
	$(PYTEST) $(PARALLEL) -m "controlplane and not full and not soak"

seed-experiment: controlplane ## real MaxText loses a worker pod on a real Kubernetes, at any moment; prints what it took
	$(PYTEST) --timeout 0 -s tests/controlplane/test_seed.py

soak: $(READY) ## lose slices at random moments over and over; by hand, ELASTIC_TPU_LOSSES says how often
	@$(BUILD_CONTROLPLANE) || echo 'soak: what needs a Kubernetes control plane is skipped'
	$(PYTEST) --timeout 0 -s -m soak

test-torch: $(READY) .venv-torch/.ready ## compare exports of MaxText's models with transformers on torch, in .venv-torch (5 GB)
	$(BIN)/python tests/torch_exports.py .venv-torch/exports
	.venv-torch/bin/python tests/torch_check.py .venv-torch/exports

.venv-torch/.ready: $(READY) tests/torch.lock
	$(BIN)/python -m venv --clear --without-pip .venv-torch
	$(BIN)/uv pip install --quiet --python .venv-torch/bin/python --require-hashes -r tests/torch.lock
	touch $@

# mypy names a package for its folder, and a checkout may be called anything: it is given a link of the right name.
MYPY := mypy --config-file pyproject.toml .venv/lint/elastic_tpu
lint: $(READY) ## ruff, mypy, import-linter and whether generated pages are current, all of them before it fails
	@mkdir -p .venv/lint && ln -sfn ../.. .venv/lint/elastic_tpu
	@failed=; \
	for check in 'ruff check .' 'ruff format --check .' '$(MYPY)' 'lint-imports --no-logo' \
			'python -m elastic_tpu.pipelines.describe --check' 'python -m elastic_tpu.runs.spec.describe --check'; do \
		echo "$$check"; $(BIN)/$$check || failed="$$failed, $$check"; \
	done; \
	[ -z "$$failed" ] || { echo "lint failed: $${failed#, }"; exit 1; }

format: $(READY) ## rewrite the sources as ruff wants them
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

COMPILE = $(BIN)/uv pip compile --universal --python-version 3.12 $(if $(UPGRADE),--upgrade) --generate-hashes \
	--no-emit-index-url --annotation-style line --custom-compile-command "make lock" --quiet
lock: $(READY) ## resolve requirements.lock, deploy/tpu.lock and tests/torch.lock again; UPGRADE=1 takes the newest versions
	$(COMPILE) setup.py --all-extras -o requirements.lock
	echo 'jax[tpu]' | $(COMPILE) - -c requirements.lock -o deploy/tpu.lock
	printf 'torch\ntransformers\ntokenizers\nsafetensors\nnumpy' | $(COMPILE) - -c requirements.lock -o tests/torch.lock

audit: $(READY) ## ask a public database for known faults in the locked packages; by hand, needs the network
	$(BIN)/uv tool run pip-audit --requirement requirements.lock --require-hashes --disable-pip

BENCHMARKS := $(sort $(wildcard benchmarks/*.py))
# These start a control plane.
ON_KUBERNETES := benchmarks/observer.py benchmarks/slice_return.py
bench: $(READY) ## run the benchmarks; without Go, those that need no Kubernetes control plane
	@scripts='$(BENCHMARKS)'; \
	$(BUILD_CONTROLPLANE) || { \
		echo 'bench: no control plane, so these are left out: $(ON_KUBERNETES)'; \
		scripts='$(filter-out $(ON_KUBERNETES),$(BENCHMARKS))'; \
	}; \
	for script in $$scripts; do echo "== $$script"; $(BIN)/python "$$script" || exit 1; done

clean: ## remove caches and builds; .venv and runs stay
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -not -path './.venv*' -prune -exec rm -rf {} +
