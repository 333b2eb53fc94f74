# Two commands on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Real data for the tests that want it; they skip with a reason where it is missing.
RECMIX_DATA ?= $(abspath $(wildcard ../shared/data))
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test test-adapters test-lowest lint types bench docs notebooks clean

demo: $(VENV)/.run
	$(BIN)/recmix demo --out runs/demo --overwrite

test: $(VENV)/.dev lint types
	RECMIX_DATA="$(RECMIX_DATA)" $(BIN)/python -m pytest -n 2 --dist loadfile

# The libraries whose models recmix reads are large, so they have an environment of their own.
test-adapters: $(VENV)-adapters/.installed
	$(VENV)-adapters/bin/python -m pytest -q -p no:cacheprovider -W default tests/adapters tests/test_examples.py

$(VENV)-adapters/.installed: pyproject.toml constraints.txt
	@echo "installing pythae, diffusers and scvi-tools into $(VENV)-adapters (some minutes, once)"
	$(PYTHON) -m venv $(VENV)-adapters
	$(VENV)-adapters/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[adapters]'
	@touch $@

# The lowest versions that pyproject.toml allows, but the torch of constraints.txt. Old libraries call what newer
# ones deprecate, so that warnings are no errors here. ARGS=tests/data runs one folder.
test-lowest: $(VENV)-lowest/.installed
	RECMIX_DATA="$(RECMIX_DATA)" $(VENV)-lowest/bin/python -m pytest -q -p no:cacheprovider -W default \
	    --disable-warnings --ignore tests/torture --ignore tests/fuzz --ignore tests/test_packaging.py \
	    --ignore tests/test_site.py --ignore tests/test_examples.py $(ARGS)

$(VENV)-lowest/.installed: pyproject.toml constraints.txt
	@echo "installing the lowest versions into $(VENV)-lowest (some minutes, once)"
	$(PYTHON) -m venv $(VENV)-lowest
	$(VENV)-lowest/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch uv
	$(VENV)-lowest/bin/uv pip install --quiet --python $(VENV)-lowest/bin/python --resolution lowest-direct \
	    -c constraints.txt -e '.[cluster,explore,export,hub,molecules,track]' 'pytest>=8.2' 'hypothesis>=6' \
	    'httpx>=0.27' 'onnxruntime>=1.20' 'pandas>=2' 'pyarrow>=15'
	@touch $@

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev
	$(BIN)/mypy

bench: $(VENV)/.dev
	$(BIN)/python -m benchmarks $(ARGS)

# The site of the documentation, in build/site.
docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build
	@echo "wrote build/site; look at it (the search needs a server): $(BIN)/python -m http.server -d build/site"

# Run the tutorials, and write their notebooks with all outputs.
notebooks: $(VENV)/.docs
	$(BIN)/python docs/notebooks.py

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.run: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "installing recmix into $(VENV) (a minute or two, once)"
	$(PIP) -e '.[explore]'
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "installing recmix and its test tools into $(VENV) (a minute or two, once)"
	$(PIP) -e '.[dev]'
	@touch $@ $(VENV)/.run

$(VENV)/.docs: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "installing recmix and the tools of the site into $(VENV) (a minute or two, once)"
	$(PIP) -e '.[docs]'
	@touch $@

clean:
	rm -rf $(VENV) $(VENV)-adapters $(VENV)-lowest build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
