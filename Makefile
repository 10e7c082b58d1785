# Two commands are enough: `make run` and `make test`. Both install what they need, into .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
UV := $(shell command -v uv 2>/dev/null)

# Compiled files are kept: here dozens of processes import the same modules.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: run test check fast lint quick-tests-1 quick-tests-2 service-tests-1 service-tests-2 service-tests-3 changed-tests bindings soak sbom release resolve deploy docs docs-data assets catalogues lock clean

run: ## start the service; without tokens: a conversation in this terminal
	@if $(IS_FIRST_START); then \
		echo "Who answers? Enter: a small model on this machine (downloads $(LOCAL_SIZE))."; \
		printf "k: a model that you have a key for, or one of Ollama (downloads 25 MB): "; \
		read -r answer; \
		case "$$answer" in [kK]*) $(QUIET_MAKE) $(VENV)/.installed-small && $(BIN)/troupe init;; esac; \
	fi; \
	[ -e $(VENV)/.installed-run ] || [ ! -e $(VENV)/.installed-small ] && what=run || what=small; \
	$(QUIET_MAKE) $(VENV)/.installed-$$what && exec $(BIN)/troupe run --offer-setup

QUIET_MAKE = $(MAKE) --no-print-directory
LOCAL_SIZE := 280 MB
# Somebody sits there, and nothing was installed or set up yet.
IS_FIRST_START := [ -t 0 ] && [ -t 1 ] && [ ! -e .env ] && [ ! -e $(VENV)/.installed-run ] && [ ! -e $(VENV)/.installed-small ]

test: $(VENV)/.installed-test ## everything that CI runs
	@$(PARALLEL) lint $(if $(CI),bindings) # mypy uses one core
	@$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -q -m "not service and not soak"
	@$(PARALLEL) service-tests-1 service-tests-2 service-tests-3

# One more than cores, because many tests wait; no core is left with the long tests of the end.
WORKERS = $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1)
PARALLEL := $(MAKE) --no-print-directory -j 3 $(if $(filter output-sync,$(.FEATURES)),--output-sync)
QUICK := -q -m "not service and not soak and not slow" --hypothesis-profile quick

check: $(VENV)/.installed-test ## the quick loop: format, lint, types, import rules, unit tests
	@$(PARALLEL) lint quick-tests-1 quick-tests-2

fast: $(VENV)/.installed-test ## the quickest loop: lint, and the tests of what changed
	@$(PARALLEL) lint changed-tests

# Two processes with half of the folders each take a third less time than pytest-xdist, which
# collects everything twice. Those that import aiogram (4 s) are in the same half.
HALF := commands contracts delivery e2e platforms templates turn

quick-tests-1:
	@$(BIN)/python -m pytest -p no:cacheprovider $(QUICK) $(HALF:%=tests/%)

quick-tests-2:
	@$(BIN)/python -m pytest -p no:cacheprovider $(QUICK) tests $(HALF:%=--ignore=tests/%)

# Tests that run the service mostly wait (a sixth of one core), those of engines and databases
# compute.
SERVICE := -q -p no:cacheprovider -m "service and not soak"
WIRES := tests/e2e tests/cli tests/platforms
KILLS := $(addprefix tests/e2e/test_, kill.py engine_kill.py edits.py)

# Collecting only what has such tests saves each process half a minute.
OTHERS = tests/contracts $(filter-out $(WIRES:%=%/%) tests/contracts/%, \
	$(shell grep -rl mark.service tests --include='test_*.py'))

service-tests-1: # model engines, databases
	@$(BIN)/python -m pytest -n 3 --dist loadfile $(SERVICE) $(OTHERS)

service-tests-2: # the whole service, killed
	@$(BIN)/python -m pytest -n 3 --dist load $(SERVICE) $(KILLS)

service-tests-3: # the whole service on the wires
	@$(BIN)/python -m pytest -n 4 --dist loadfile $(SERVICE) $(WIRES) $(KILLS:%=--ignore=%)

changed-tests: # what failed the last time comes first
	@tests="$$($(BIN)/python -m tests.changed)"; [ -z "$$tests" ] || \
		$(BIN)/python -m pytest --failed-first $(QUICK) $$tests || [ $$? -eq 5 ] # 5: none is quick

lint: $(VENV)/.installed-test
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/ruff check --quiet .
	@$(BIN)/mypy --no-error-summary
	@$(BIN)/lint-imports --no-logo >/dev/null || $(BIN)/lint-imports --no-logo

bindings: $(VENV)/.installed-test ## the second engine for local models; it compiles, once
	@tests/bindings.sh $(BIN)/python

soak: $(VENV)/.installed-test ## long runs: kills, faults, fuzzing; prints seeds and figures
	@$(BIN)/python -m pytest -q -rP -m soak --timeout 7200
	@$(BIN)/python -m pytest -n 2 -q -m "not service and not soak" --hypothesis-profile soak --timeout 7200

sbom: $(VENV)/.installed-run ## the packages with hashes, their licenses and known weaknesses
	@tests/sbom.sh $(BIN)/python

release: $(VENV)/.installed-test sbom ## build the sdist and the wheel into build/dist, check and try them
	@tests/release.sh $(BIN)/python

resolve: $(BIN)/python ## check that every platform has wheels, and the code's branches for Windows
	@tests/resolve.sh $(BIN)/python

deploy: $(BIN)/python ## check the image, compose files, manifests and unit in deploy/
	@tests/deploy.sh $(BIN)/python

docs: $(BIN)/python ## the documentation as a website, in build/site
	@[ -x $(VENV)/docs/bin/mkdocs ] || { $(BIN)/python -m venv $(VENV)/docs && \
		$(VENV)/docs/bin/python -m pip install -q --disable-pip-version-check "mkdocs-material>=9.7,<10"; }
	@NO_MKDOCS_2_WARNING=1 $(VENV)/docs/bin/mkdocs build -q --strict -f deploy/mkdocs.yml

docs-data: $(VENV)/.installed-test ## the settings page and the table of commands, from the code
	@$(BIN)/python -m tests.docs_data

assets: ## what the console's pages load, from npm packages (needs node)
	@bot/console/assets/build.sh

catalogues: $(VENV)/.installed-test ## add new texts to the catalogues, and compile them
	@$(BIN)/python -m tests.catalogues

# --- the environment -------------------------------------------------------------------------
$(BIN)/python:
	@echo "making an environment in $(VENV) ..." >&2
ifdef UV
	@$(UV) venv -q --seed --python $(PYTHON) $(VENV)
else
	@$(PYTHON) -m venv $(VENV)
endif

ifdef UV
INSTALL = $(UV) pip install -q --compile-bytecode -p $(BIN)/python
else
INSTALL = $(BIN)/python -m pip install -q --disable-pip-version-check
endif

$(VENV)/.installed-run: requirements.lock pyproject.toml | $(BIN)/python
	@echo "installing what the service needs (190 MB; once) ..." >&2
	@$(INSTALL) --no-deps --require-hashes -r requirements.lock
	@$(INSTALL) --no-deps -e .
	@touch $@

$(VENV)/.installed-small: requirements.small.lock pyproject.toml | $(BIN)/python
	@echo "installing what the service needs, without local models (25 MB; once) ..." >&2
	@$(INSTALL) --no-deps --require-hashes -r requirements.small.lock
	@$(INSTALL) --no-deps -e .
	@touch $@

$(VENV)/.installed-test: $(VENV)/.installed-run tests/requirements.lock
	@echo "installing what the tests need ..." >&2
	@$(INSTALL) --no-deps --require-hashes -r tests/requirements.lock
	@touch $@

EXTRAS := --extra all

lock: ## renew the locks (needs uv): names, versions and hashes, no address
	$(UV) pip compile -q pyproject.toml $(EXTRAS) --universal --python-version 3.11 --no-header --no-annotate --generate-hashes -o requirements.lock
	$(UV) pip compile -q pyproject.toml --extra terminal --extra tokens --universal --python-version 3.11 --no-header --no-annotate --generate-hashes -c requirements.lock -o requirements.small.lock
	$(UV) pip compile -q pyproject.toml $(EXTRAS) --extra dev --universal --python-version 3.11 --no-header --no-annotate --generate-hashes -c requirements.lock -o tests/requirements.lock

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
