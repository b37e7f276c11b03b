# Everything runs in a private environment (.venv) made from python3 and pip alone.
PYTHON ?= python3
BIN := .venv/bin
# Two tests at a time is what two cores bear; `make test JOBS=8` on a larger machine.
JOBS ?= 2

# Real data sets, where they lie beside the checkout; tests that need them are skipped elsewhere.
ifneq ($(wildcard ../shared/data),)
export METAPRIOR_DATA ?= $(abspath ../shared/data)
endif

.PHONY: run test test-floors test-newest test-all test-browser golden bench peers mutants check format docs gallery clean

run: .venv/.run
	$(BIN)/metaprior demo --out demo

test: .venv/.test
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile

# With the lowest versions that pyproject.toml allows, and with the highest. These depend on the Python:
# `make test-floors PYTHON=python3.11`, `make test-newest PYTHON=python3.13`. Old releases may warn of what newer Pythons and
# libraries have deprecated.
test-floors: .venv-floors/.test
	.venv-floors/bin/python -m pytest -n $(JOBS) --dist loadfile -W ignore::DeprecationWarning

test-newest: .venv-newest/.test
	.venv-newest/bin/python -m pytest -n $(JOBS) --dist loadfile

test-all: .venv/.libraries
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile -m ""

# Predictions that a change of the code inside must keep, recorded again; prints what changed.
golden: .venv/.test
	PYTHONPATH=.:tests:tests/attack:tests/cli:tests/golden $(BIN)/python tests/golden/record_golden.py

# The page in a real browser: chromium from the machine, or installed by apt-get where that is allowed.
test-browser: .venv/.browser
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || \
		{ command -v apt-get >/dev/null && { apt-get install --yes --quiet chromium || sudo -n apt-get install --yes --quiet chromium; }; } || \
		{ echo "These tests need chromium: install it (Debian: apt-get install chromium), then run make test-browser again."; exit 1; }
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile -m browser app/tests

# Speed against others; `make bench BENCH=--quick` takes minutes, `make bench BENCH="--only step,sweep"` some of it.
bench: .venv/.bench
	PYTHONPATH=studies/benchmarks $(BIN)/python -m speed --out studies/results/speed/speed.json $(BENCH)

# metaprior against mixed models, hierarchical GPs and boosting; rows that the table has are kept. All of it takes hours:
# `make peers PEERS="--only exam --draws 2" TABLE=/tmp/peers.csv PICTURE=/tmp/peers.png` some minutes.
TABLE ?= studies/results/tables/peers.csv
PICTURE ?= docs/images/peers.png
peers: .venv/.peers
	$(BIN)/python studies/benchmarks/peers.py measure --out $(TABLE) --resume $(PEERS)
	$(BIN)/python studies/benchmarks/peers.py report $(TABLE)
	$(BIN)/python studies/benchmarks/peers.py plot $(TABLE) --out $(PICTURE)

# Deliberate errors, tried by the tests. A sample of 50 takes half an hour on two cores, all take a day:
# `make mutants MUTANTS="--sample 50 --packages wfem"`, or `--sample 0`.
mutants: .venv/.mutants
	$(BIN)/python tools/mutants.py $(MUTANTS)

check: .venv/.check
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports

format: .venv/.check
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The site is read from text and docstrings, and from the pages of examples that `make gallery` has made; nothing of
# metaprior is run to build it.
docs: .venv/.docs
	NO_MKDOCS_2_WARNING=1 TQDM_DISABLE=1 $(BIN)/mkdocs build --strict --quiet
	@echo "Open site/index.html, or, with search: $(PYTHON) -m http.server --directory site"

# Run the examples that have changed since their pages in docs/gallery were made. They need their data, in METAPRIOR_DATA.
gallery: .venv/.gallery
	METAPRIOR_GALLERY=1 NO_MKDOCS_2_WARNING=1 PYTHONWARNINGS=ignore::DeprecationWarning $(BIN)/mkdocs build --strict --quiet

# Debian's python3 may come without ensurepip: then the machine's own pip fills the environment.
$(BIN)/python:
	$(PYTHON) -m venv .venv 2>/dev/null || { rm -rf .venv && $(PYTHON) -m venv --without-pip .venv; }
	$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m pip --python $(BIN)/python install --quiet pip

.venv/.run: $(BIN)/python pyproject.toml studies/pyproject.toml
	$(BIN)/python -m pip install --quiet --editable ".[studies]" --editable studies
	touch $@

.venv/.test: $(BIN)/python pyproject.toml studies/pyproject.toml
	$(BIN)/python -m pip install --quiet --editable ".[studies,test]" --editable studies
	touch $@

.venv-floors/.test: RESOLUTION := lowest-direct
.venv-newest/.test: RESOLUTION := highest
.venv-%/.test: $(BIN)/python pyproject.toml studies/pyproject.toml
	$(BIN)/python -m pip install --quiet uv
	$(BIN)/uv venv --quiet --clear --python $(PYTHON) $(@D)
	$(BIN)/uv pip install --quiet --python $(@D) --resolution $(RESOLUTION) --editable ".[studies,test]" --editable studies
	touch $@

.venv/.browser: .venv/.test
	$(BIN)/python -m pip install --quiet --editable ".[studies,test,browser]" --editable studies
	touch $@

# Torch from its index of CPU builds, or from wherever pip looks: the default wheels for Linux bring gigabytes of CUDA.
TORCH := --quiet --retries 1 --no-deps torch==2.13.0 --extra-index-url https://download.pytorch.org/whl/cpu

.venv/.libraries: .venv/.test
	$(BIN)/python -m pip install $(TORCH)
	$(BIN)/python -m pip install --quiet --editable ".[studies,test,libraries]" --editable studies
	touch $@

.venv/.check: $(BIN)/python pyproject.toml studies/pyproject.toml
	$(BIN)/python -m pip install --quiet --editable ".[studies,test,check]" --editable studies
	touch $@

.venv/.peers: $(BIN)/python pyproject.toml studies/pyproject.toml
	$(BIN)/python -m pip install --quiet --editable ".[studies,peers]" --editable studies
	touch $@

.venv/.mutants: .venv/.test
	$(BIN)/python -m pip install --quiet --editable ".[studies,test,mutants]" --editable studies
	touch $@

.venv/.docs: $(BIN)/python pyproject.toml studies/pyproject.toml
	$(BIN)/python -m pip install --quiet --editable ".[docs]"
	touch $@

.venv/.gallery: .venv/.docs
	$(BIN)/python -m pip install $(TORCH)
	$(BIN)/python -m pip install --quiet --editable ".[docs,studies,peers,botorch]" --editable studies
	touch $@

.venv/.bench: $(BIN)/python pyproject.toml studies/pyproject.toml
	$(BIN)/python -m pip install $(TORCH)
	$(BIN)/python -m pip install --quiet --editable ".[studies,bench]" --editable studies
	touch $@

clean:
	rm -rf .venv .venv-floors .venv-newest demo example site .pytest_cache .ruff_cache .hypothesis
