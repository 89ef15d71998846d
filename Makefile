# Each target does everything it needs on a fresh machine: python3 (3.11 or newer) is all that must be there.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
QUIETLY := --quiet --disable-pip-version-check --no-compile --constraint constraints.txt

.PHONY: demo test test-all check format clean

demo: $(STAMP)
	$(BIN)/whet tune digits-cnn docs-encoder docs-gpt --budget 85s --out whet-out/demo-$$(date +%Y%m%d-%H%M%S)

test: $(STAMP)
	$(BIN)/python -m pytest -q -n 2 --dist loadfile --no-loadscope-reorder

test-all: $(STAMP)
	$(BIN)/python -m pytest -q -m ''

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# torch goes first: asked for by another package, it would come with several GB of CUDA libraries. Bytecode is made by
# two processes, where pip would use one; some packages ship files that are no Python, hence `true`.
$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install $(QUIETLY) torch
	$(BIN)/python -m pip install $(QUIETLY) --editable '.[all,dev]'
	$(BIN)/python -m compileall -qq -j 2 -x /tests/ $(VENV)/lib || true
	touch $@

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
