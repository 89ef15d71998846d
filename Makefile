# Each target does everything it needs on a fresh machine: python3 (3.11 or newer) is all that must be there.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
QUIETLY := --quiet --disable-pip-version-check --no-compile --constraint constraints.txt

PYTEST := $(BIN)/python -m pytest -q -n 2 --dist worksteal --durations=25

.PHONY: demo test test-thorough test-all check docs format mutants gpu gpu-wheels clean

demo: $(STAMP)
	$(BIN)/whet tune digits-cnn docs-encoder docs-gpt --budget 3m --out whet-out/demo-$$(date +%Y%m%d-%H%M%S)

# Each test's seconds are kept in build/, the slowest are printed. Workers that are done take over tests of the other.
test: $(STAMP)
	$(PYTEST) --junitxml=build/tests.xml

# The second tier: what takes long (tests/second_tier.txt), and pages in a browser.
test-thorough: $(STAMP)
	$(PYTEST) --junitxml=build/tests-thorough.xml -m 'thorough and not slow and not gpu'

test-all: $(STAMP)
	$(PYTEST) --junitxml=build/tests-all.xml -m ''

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(MAKE) --no-print-directory docs

# The documentation as a site, in site/. Nothing is fetched. A broken link ends it, in the site or in README and the like.
docs: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	$(BIN)/python tests/links.py site

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# Which mistakes in the code that decides would no test notice? Writes docs/mutants.md.
mutants: $(STAMP)
	$(BIN)/python -m pip install $(QUIETLY) --editable '.[mutants]'
	$(BIN)/python benchmarks/mutants.py

# The check on a GPU, in whatever environment PYTHON has: torch with CUDA, NumPy and SciPy must be there. GROUP names
# some of its groups, as `make gpu GROUP=tests,kernels`; OUT names a folder that gets the results too. What whet needs
# besides comes from .wheels/, which `make gpu-wheels` fills on a machine with a network, for the GPU machine's Python.
gpu:
	$(PYTHON) benchmarks/gpu.py $(if $(GROUP),--group $(GROUP)) $(if $(OUT),--out "$(OUT)") $(if $(COMMIT),--commit $(COMMIT))

GPU_PYTHON ?= 3.12
gpu-wheels: $(STAMP)
	$(BIN)/python benchmarks/gpu_wheels.py --python $(GPU_PYTHON) $(GPU_WHEELS)

# torch goes first: asked for by another package, it would come with several GB of CUDA libraries. Bytecode is made
# while pip, which uses one core, fetches the rest, and by two processes after that; not of what no test imports. Some
# packages ship files that are no Python, hence `true`.
COMPILE := $(BIN)/python -m compileall -qq -x '/tests/|/torch/testing/_|/transformers/models/|/pip/|/setuptools/'
$(STAMP): pyproject.toml packages/whet-audit/pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip uninstall --quiet --yes whet 2>/dev/null # an earlier name of torch-whet, of the same files
	$(BIN)/python -m pip install $(QUIETLY) torch
	$(COMPILE) $(VENV)/lib & \
	$(BIN)/python -m pip install $(QUIETLY) --editable packages/whet-audit --editable '.[all,dev]' \
		&& { wait; $(COMPILE) -j 2 $(VENV)/lib || true; }
	touch $@

clean:
	rm -rf $(VENV) .wheels .mutants.json .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist site
