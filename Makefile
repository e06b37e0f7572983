# One entry for everything. Each target sets itself up on a machine with python3 (3.11 or newer); a C++
# compiler makes the CPU kernels, without one the engine runs on their plain torch reference.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

SYSTEM_SITE ?= 0
# Workers of the tests: a fifth of their time is spent waiting for processes.
JOBS ?= $(shell echo $$(( $$(nproc 2>/dev/null || echo 2) * 3 / 2 )))
MODEL ?=
PORT ?= 8000
SERVED = $(or $(MODEL),demo)

VENV := .venv
BIN := $(VENV)/bin
PY := $(BIN)/python
STAMPS := $(VENV)/.stamps
KERNEL_SOURCES := $(shell find kernels/core_kernels -name "*.cpp" -o -name "*.h") kernels/core_kernels/build.py
KERNELS := kernels/core_kernels/build.py
# Packages are installed while the kernels compile. A recursive make has the jobs of the first.
ifeq ($(MAKELEVEL),0)
MAKEFLAGS += --jobs=2
endif
# Byte code is cached even where the environment disables it: some hundred processes import the
# same modules.
CACHE_BYTE_CODE := PYTHONDONTWRITEBYTECODE=
PYTEST := $(CACHE_BYTE_CODE) OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false $(PY) -m pytest \
	-n $(JOBS) --dist loadfile --no-loadscope-reorder

.PHONY: help
help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 12
	@echo
	@echo 'make setup SYSTEM_SITE=1   use the torch (and whatever else) this python3 already has'
	@echo 'make serve MODEL=...       serve another model; PORT=... on another port'

# --- environment -------------------------------------------------------------------------------------------

.PHONY: setup
setup: $(STAMPS)/packages $(STAMPS)/kernels ## what serving needs: .venv, the package (editable), kernels of this processor

.PHONY: tools
tools: $(STAMPS)/tools $(STAMPS)/kernels ## setup, and the packages that tests and development need

$(STAMPS)/venv:
	@SYSTEM_SITE=$(SYSTEM_SITE) scripts/make-venv $(VENV)
	@mkdir -p $(STAMPS) && touch $@

# Editable metadata goes stale when pyproject.toml changes, so the package is installed again then.
$(STAMPS)/packages: $(STAMPS)/venv pyproject.toml setup.py constraints.txt requirements-serve.txt
	@scripts/install-packages $(VENV)
	@touch $@

$(STAMPS)/tools: $(STAMPS)/packages requirements-dev.txt
	@scripts/install-packages $(VENV) tools
	@touch $@

# The kernels need no package; what is compiled is kept in build/kernels.
$(STAMPS)/kernels: $(STAMPS)/venv $(KERNEL_SOURCES)
	@$(PY) $(KERNELS)
	@touch $@

# The variants that `make test` forces, as far as this processor runs them.
$(STAMPS)/kernels-tested: $(STAMPS)/kernels
	@$(PY) $(KERNELS) avx2 amx_emulated --runnable
	@touch $@

$(STAMPS)/kernels-all: $(STAMPS)/kernels-tested
	@$(PY) $(KERNELS) --all
	@touch $@

.PHONY: clients
clients: setup ## client libraries in an environment of their own, for the slow tests
	$(PY) -m venv $(VENV)/clients
	$(VENV)/clients/bin/python -m pip --disable-pip-version-check install -q -r requirements-clients.txt

# An environment in folder $(1) that also sees the one in .venv.
define overlay
$(PY) -m venv $(if $(filter 1,$(SYSTEM_SITE)),--system-site-packages) $(1)
$(PY) -c 'import sysconfig; print("import site; site.addsitedir(%r)" % sysconfig.get_path("purelib"))' \
	> "$$($(1)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/engine.pth"
endef
PIP_INSTALL := -m pip --disable-pip-version-check install -q

# Ray brings 240 MB and packages of its own.
$(STAMPS)/ray: $(STAMPS)/tools requirements-ray.txt
	$(call overlay,$(VENV)/ray)
	$(VENV)/ray/bin/python $(PIP_INSTALL) -r requirements-ray.txt
	@touch $@

# Every distribution of plugins/. What they need comes without dependencies of its own, which are for GPUs.
PLUGINS_PY := $(VENV)/plugins/bin/python
$(STAMPS)/plugins: $(STAMPS)/tools requirements-ray.txt requirements-plugins.txt $(wildcard plugins/*/pyproject.toml)
	$(call overlay,$(VENV)/plugins)
	$(PLUGINS_PY) $(PIP_INSTALL) -r requirements-ray.txt
	$(PLUGINS_PY) $(PIP_INSTALL) --no-deps -r requirements-plugins.txt
	$(PLUGINS_PY) $(PIP_INSTALL) --no-deps --no-build-isolation $(patsubst %/,-e %,$(sort $(wildcard plugins/*/)))
	@touch $@

# --- run ---------------------------------------------------------------------------------------------------

.PHONY: serve
serve: setup ## HTTP server on 127.0.0.1:8000 with the demo model
	@scripts/curl-line $(PORT) $(SERVED)
	@$(CACHE_BYTE_CODE) $(BIN)/engine serve $(or $(MODEL),demo:vision) --port $(PORT)

# --- judge -------------------------------------------------------------------------------------------------

.PHONY: test
test: tools $(STAMPS)/kernels-tested ## the tests (under 10 minutes on two cores)
	$(PYTEST) -m "not slow and not bench"

.PHONY: test-all
test-all: tools $(STAMPS)/kernels-all ## the tests, the slow ones included, on every variant of the kernels; plugins
	$(PYTEST) -m "not bench" --new-interpreters
	$(MAKE) --no-print-directory test-plugins

.PHONY: test-plugins
test-plugins: $(STAMPS)/plugins $(STAMPS)/kernels ## all distributions of plugins/ installed together: a start, and their tests
	$(CACHE_BYTE_CODE) $(PLUGINS_PY) -m core generate scripted: --prompt hello
	$(CACHE_BYTE_CODE) OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false $(PLUGINS_PY) -m pytest plugins -m "not bench"

.PHONY: test-ray
test-ray: $(STAMPS)/ray $(STAMPS)/kernels ## engine-ray on two local Ray nodes, in an environment of its own
	$(CACHE_BYTE_CODE) OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false $(VENV)/ray/bin/python -m pytest plugins/engine-ray

.PHONY: authors
authors: tools ## the way of a new author for every kind, from the wheel; wrong, broken and old plugins
	$(PYTEST) tests/core/plugin

.PHONY: check
check: tools ## format, lint, types, import layers, generated pages
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(MAKE) --no-print-directory docs

.PHONY: bench
bench: tools ## the benchmarks
	@for script in $(wildcard benchmarks/*/bench_*.py); do echo "== $$script"; $(PY) $$script; done
	$(BIN)/engine bench step
	$(PY) -m benchmarks.peers.compare --only engine --rounds 1
	$(PY) -m pytest -m bench || [ $$? = 5 ] # 5: there is none

# --- deliver -----------------------------------------------------------------------------------------------

.PHONY: docs
docs: tools ## reference pages generated, documentation built into site/
	$(PY) -m scripts.generate_docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

.PHONY: dist
dist: tools $(STAMPS)/kernels-all ## wheels, with all variants of the kernels, and source distribution in dist/
	rm -rf dist build/lib* build/bdist.*
	$(PY) -m build --no-isolation --wheel --sdist
	@for each in x86_64 aarch64; do \
		[ $$each != "$$(uname -m)" ] && command -v $$each-linux-gnu-g++ > /dev/null || continue; \
		rm -rf build/lib* build/bdist.*; \
		$(PY) -m build --no-isolation --wheel -C--build-option=--plat-name=linux_$$each || exit 1; \
	done
	rm -rf core.egg-info

.PHONY: format
format: tools ## sources formatted, simple lint repaired
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

.PHONY: clean
clean: ## everything that was made, the environment included
	rm -rf $(VENV) build dist site *.egg-info kernels/core_kernels/*.so
	rm -rf .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
