# `make demo` and `make test` each do all of their own set-up in .venv; a second call starts at once.
# `make install` does the set-up alone.

PYTHON ?= python3
WORKERS ?= 2
BIN := .venv/bin
INPUTS := pyproject.toml packages/conform/pyproject.toml constraints.txt scripts/setup.sh scripts/llama_cpp.cmake
CORE := .venv/.stamp-core
GGUF := .venv/.stamp-gguf
DEV := .venv/.stamp-dev
VLLM_BIN := .venv-vllm/bin
VLLM_INPUTS := pyproject.toml packages/conform/pyproject.toml requirements-vllm.txt scripts/setup_vllm.sh
VLLM := .venv-vllm/.stamp

.DEFAULT_GOAL := help
.PHONY: help install install-gguf demo lint test test-all test-vllm real docs format clean
# Both set-ups write to the same .venv, so not even `make -j` may run them side by side.
.NOTPARALLEL:

help:
	@echo "make install  install what the package needs into .venv, and nothing else"
	@echo "make install-gguf  the same, and build llama.cpp for this machine, which reads GGUF files (needs a C++ compiler)"
	@echo "make demo     install what the package needs, then run 'cactus demo'"
	@echo "make test     install the development tools too, then lint, type-check and run the fast tests"
	@echo "make test-all   the same and every other test: the whole of continuous integration"
	@echo "make test-vllm  only the tests on vLLM's CPU engine, which have .venv-vllm to themselves (Linux)"
	@echo "make real     check every engine in ten minutes on GGUF files of chat models: make real REAL=FOLDER"
	@echo "make docs     build the documentation site into site/"
	@echo "make format   format the code and apply ruff's safe fixes"
	@echo "make clean    remove .venv and all caches"
	@echo "Variables: PYTHON (an interpreter >= 3.11, now '$(PYTHON)'), WORKERS (of pytest, now $(WORKERS))"

$(CORE): $(INPUTS)
	@PYTHON="$(PYTHON)" bash scripts/setup.sh
	@touch $@

# The other installs contain the core one, hence its stamp beside theirs.
$(GGUF): $(INPUTS)
	@PYTHON="$(PYTHON)" bash scripts/setup.sh llama-cpp
	@touch $(CORE) $@

$(DEV): $(INPUTS)
	@PYTHON="$(PYTHON)" bash scripts/setup.sh dev
	@touch $(CORE) $@

$(VLLM): $(VLLM_INPUTS)
	@PYTHON="$(PYTHON)" bash scripts/setup_vllm.sh
	@touch $@

install: $(CORE)
install-gguf: $(GGUF)
install install-gguf:
	@echo "The command is $(BIN)/cactus; after '. $(BIN)/activate' it is just cactus."

demo: $(CORE)
	@$(BIN)/cactus demo
	@echo "The command is $(BIN)/cactus; after '. $(BIN)/activate' it is just cactus. Next: $(BIN)/cactus play"

lint: $(DEV)
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .
	$(BIN)/python -m mypy
	$(BIN)/lint-imports --no-logo

# One thread a worker: the tensors are small, and threads that compete make tests slower and sums less reproducible.
test test-all test-vllm: export OMP_NUM_THREADS = 1
test test-all test-vllm: export TOKENIZERS_PARALLELISM = false
# Tests start hundreds of processes: what one of them compiled serves the others, whatever the environment says.
test test-all test-vllm: export PYTHONDONTWRITEBYTECODE :=
# No test may reach for the network.
test test-all test-vllm: export HF_HUB_OFFLINE = 1
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

test: lint
	$(PYTEST) -m "not slow"
	$(call on_vllm,-m smoke)

# The fast tests come first, so that a mistake is known early.
test-all: lint
	$(PYTEST) -m "not slow" --durations=20
	$(PYTEST) -m slow --durations=40
	$(BIN)/python scripts/try_versions.py transformers lowest newest --no-record -- -n $(WORKERS) -m "not slow"
	$(call on_vllm,--durations=10)

test-vllm:
	$(call on_vllm,)

# Files that users have, of which none is a part of the project; no test needs them.
real: $(DEV)
	@$(BIN)/python scripts/real.py "$(REAL)"

# Whole files to a worker: their tests share an engine, which takes half a minute to start.
ifeq ($(shell uname -s),Linux)
test test-all test-vllm: $(VLLM)
on_vllm = $(VLLM_BIN)/python -m pytest -n $(WORKERS) --dist loadfile $(1) tests/engines/vllm/engine
else
on_vllm = @echo "vLLM's CPU engine is there for Linux only: its tests are left out"
endif

# Strict: a broken link, anchor or reference fails. `make test-all` does the same, in tests/docs/test_site.py.
docs: export NO_MKDOCS_2_WARNING = 1
docs: $(DEV)
	$(BIN)/python -m mkdocs build --quiet
	@echo "open site/index.html, or run $(BIN)/python -m http.server --directory site"

format: $(DEV)
	$(BIN)/python -m ruff check --fix .
	$(BIN)/python -m ruff format .

clean:
	rm -rf .venv .venv-vllm .import_linter_cache .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist site
