# make demo    install what is needed, schedule a network, write pages that play it, compare schedulers on nine networks
# make test    of every room the tests that are worth their cost: minutes
# make test-all every test; ARGS='-m "not quick"': those that make test leaves out
# make costs   every test, and records what each costs, by which make test chooses
# make check   style, types, direction of imports, documentation and its figures; make -j2 check, two at a time
# make bench   micro benchmarks, into build, and experiments, into benchmarks/results: many hours
# make mutants faults injected one at a time: do the tests of each room notice?
# make docs    the documentation as a site, into site/
# make clean   remove what these made

PYTHON ?= python3
JOBS   ?= 2
SEEDS  ?= 20
# Networks that the demo compares schedulers on; none: the nine of the paper's Table 2.
NETWORKS ?=

VENV := .venv
BIN  := $(VENV)/bin
# Modules are compiled when they are first imported: most never are, and to compile all takes pip a third of its time.
PIP  := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt

FRAME := pyproject.toml constraints.txt

.PHONY: demo test test-all costs check types style imports pages bench mutants docs clean
.DELETE_ON_ERROR:

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	    || { echo "Python 3.11 or later is needed, $$($(PYTHON) --version) found; try: make PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv $(VENV)

# A stamp says that an installation is done; it is repeated only when the requirements change.
$(VENV)/installed-for-use: $(FRAME) | $(BIN)/python
	@echo "Installing Gradweave and what it needs into $(VENV), once"
	$(PIP) -e '.[plot]'
	@touch $@

$(VENV)/installed-for-work: $(FRAME) | $(BIN)/python
	$(PIP) -e '.[run,mpi,lab,learn,marl,ray,plot,docs,dev]'
	@touch $@ $(VENV)/installed-for-use

demo: $(VENV)/installed-for-use
	@mkdir -p demo && date +%s > demo/.started
	@echo
	@echo "1 of 4  Looking for an all-reduce of 16 servers, BCube(4,1), in as few rounds as there can be"
	@$(BIN)/gradweave solve bcube:n=4,k=1 --output demo/bcube4.json
	@echo
	@echo "2 of 4  Checking that file as a stranger would: every contribution arrives once, no link is overbooked"
	@$(BIN)/gradweave verify demo/bcube4.json
	@echo
	@echo "3 of 4  Writing pages that play it, and the ring of the textbooks, round by round"
	@$(BIN)/gradweave show demo/bcube4.json --output demo/bcube4.html
	@$(BIN)/gradweave solve ring:n=8 --scheduler ring --output demo/ring8.json
	@$(BIN)/gradweave show demo/ring8.json --output demo/ring8.html
	@echo "        after $$(($$(date +%s) - $$(cat demo/.started))) s: open demo/bcube4.html in a browser"
	@echo
	@echo "4 of 4  Comparing schedulers on $(or $(NETWORKS),the nine networks of the paper's Table 2), $(SEEDS) seeds each"
	@echo "        (with 20 seeds on nine networks some minutes; what is above is there already)"
	@$(BIN)/gradweave compare $(NETWORKS) --seeds $(SEEDS) --output demo
	@echo
	@echo "Done in $$(($$(date +%s) - $$(cat demo/.started))) s, without the installation"
	@rm demo/.started
	@echo "A schedule, played round by round:      demo/bcube4.html   (open it in a browser)"
	@echo "The ring of the textbooks:              demo/ring8.html"
	@echo "The comparison as a table and a chart:  demo/comparison.csv, demo/comparison.png"

# Which they are, tests/costs.py says.
test: $(VENV)/installed-for-work
	$(BIN)/pytest -n $(JOBS) --dist loadfile -m quick $(ARGS)

test-all: $(VENV)/installed-for-work
	$(BIN)/pytest -n $(JOBS) --dist loadfile $(ARGS)

# Goes on where a test fails; the second time, when all is compiled, the figures are those of later runs.
costs: $(VENV)/installed-for-work
	@rm -f build/costs.jsonl
	-COSTS=build/costs.jsonl $(BIN)/pytest -n $(JOBS) --dist loadfile $(ARGS)
	$(BIN)/python -m tests.costs build/costs.jsonl --write

check: types style imports pages claims

types: $(VENV)/installed-for-work
	$(BIN)/pyright

style: $(VENV)/installed-for-work
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

imports: $(VENV)/installed-for-work
	$(BIN)/lint-imports

pages: $(VENV)/installed-for-work
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --site-dir build/site

# Figures in README and docs agree with the evidence in their comments: benchmarks/claims/__init__.py.
claims: $(VENV)/installed-for-work
	$(BIN)/python -m benchmarks.claims
	$(BIN)/python benchmarks/render.py --check

# Goes on where an experiment fails, and says at the end which did: some need root, others hours.
bench: $(VENV)/installed-for-work
	@mkdir -p build
	@$(BIN)/pytest benchmarks/micro --benchmark-only --benchmark-json=build/micro.json; micro=$$?; \
	    $(BIN)/python benchmarks/run_all.py && exit $$micro

# make mutants ARGS='--room saddle --count 20': some of them
mutants: $(VENV)/installed-for-work
	$(BIN)/python benchmarks/experiments/mutants.py $(ARGS)

docs: $(VENV)/installed-for-work
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "site/index.html"

clean:
	rm -rf $(VENV) demo build dist site .compiled .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find src tests benchmarks examples -name __pycache__ -prune -exec rm -rf {} +
