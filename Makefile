# make demo    install what is needed, compare schedulers on nine networks, write pages that play schedules
# make test    all tests, doctests included
# make check   style, types, direction of imports, documentation
# make bench   micro benchmarks and experiments, into benchmarks/results
# make docs    the documentation as a site, into site/
# make clean   remove what these made

PYTHON ?= python3
JOBS   ?= 2
SEEDS  ?= 20

VENV := .venv
BIN  := $(VENV)/bin
PIP  := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

FRAME := pyproject.toml constraints.txt

.PHONY: demo test check bench docs clean
.DELETE_ON_ERROR:

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	    || { echo "Python 3.11 or later is needed, $$($(PYTHON) --version) found; try: make PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv $(VENV)

# A stamp says that an installation is done; it is repeated only when the requirements change.
$(VENV)/installed-for-use: $(FRAME) | $(BIN)/python
	$(PIP) -e '.[plot]'
	@touch $@

$(VENV)/installed-for-work: $(FRAME) | $(BIN)/python
	$(PIP) -e '.[run,lab,learn,marl,ray,plot,docs,dev]'
	@touch $@ $(VENV)/installed-for-use

demo: $(VENV)/installed-for-use
	$(BIN)/gradweave compare --seeds $(SEEDS) --output demo
	$(BIN)/gradweave schedule bcube:n=4,k=1 --output demo/bcube4.json
	$(BIN)/gradweave verify demo/bcube4.json
	$(BIN)/gradweave show demo/bcube4.json --output demo/bcube4.html
	$(BIN)/gradweave schedule ring:n=8 --scheduler ring --output demo/ring8.json
	$(BIN)/gradweave show demo/ring8.json --output demo/ring8.html
	@echo
	@echo "The comparison as a table and a chart:  demo/"
	@echo "A schedule, played round by round:      demo/bcube4.html   (open it in a browser)"
	@echo "The ring of the textbooks:              demo/ring8.html"

test: $(VENV)/installed-for-work
	$(BIN)/pytest -n $(JOBS) --dist worksteal

check: $(VENV)/installed-for-work
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --site-dir build/site

bench: $(VENV)/installed-for-work
	$(BIN)/pytest benchmarks/micro --benchmark-only --benchmark-json=benchmarks/results/micro.json
	@for experiment in benchmarks/experiments/*.py; do \
	    echo "$$experiment"; $(BIN)/python "$$experiment" || exit 1; \
	done

docs: $(VENV)/installed-for-work
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "site/index.html"

clean:
	rm -rf $(VENV) demo build dist site .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find src tests benchmarks examples -name __pycache__ -prune -exec rm -rf {} +
