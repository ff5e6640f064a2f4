# One command each; every target may be run twice, and from any state.
PYTHON ?= python3
BIN := .venv/bin
RUN_IN_DATA := INCLAVATE_DATA_DIR=$${INCLAVATE_DATA_DIR:-.data}
# Most tests wait for processes: two files at a time, each with servers of its own.
BESIDE := -n 2 --dist loadfile
# What failed beside others is asked again alone; the first answer stays in the log: docs/ARCHITECTURE.md, Tests.
AGAIN := --last-failed --last-failed-no-failures none
COMPILE := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header

.DEFAULT_GOAL := help
.PHONY: help setup dev up demo test prove chaos bench lint lock

help: ## say what there is
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 16

setup: ## make .venv and install what Inclavate needs
	@$(PYTHON) scripts/setup.py

dev: ## the same, and what the tests need
	@$(PYTHON) scripts/setup.py dev

up: setup ## start everything: http://127.0.0.1:8001
	@$(RUN_IN_DATA) $(BIN)/inclavate up

demo: setup ## start everything, make a sentence, hear it back (ONCE=1: then stop)
	@$(RUN_IN_DATA) $(BIN)/python scripts/demo.py $(if $(ONCE),--once)

test: dev ## every test on SQLite, then those of the database on PostgreSQL
	$(BIN)/python -m pytest $(BESIDE) || $(BIN)/python -m pytest $(AGAIN)
	$(BIN)/python -m pytest --database postgres -m database || $(BIN)/python -m pytest --database postgres $(AGAIN)

prove: dev ## have long texts spoken and heard back, into docs/evidence/ (SEED=… ONLY=a part of python -m tests.prove)
	$(BIN)/python -m tests.prove $(if $(SEED),--seed $(SEED)) $(if $(ONLY),--only $(ONLY))

chaos: dev ## 1,000 jobs while everything is broken at random (SEED=… JOBS=…)
	$(BIN)/python -m tests.chaos $(if $(SEED),--seed $(SEED)) --jobs $(or $(JOBS),1000)

bench: dev ## measure beside floors, into bench/REPORT.md (QUICK=1: print one short round)
	$(BIN)/python -m bench $(if $(QUICK),--quick)

lint: dev ## style, types, import rules, missing migrations
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/mypy scripts
	$(BIN)/mypy --follow-imports=silent bench
	$(BIN)/lint-imports
	INCLAVATE_DATABASE_URL=sqlite://:memory: $(BIN)/python manage.py makemigrations --check --dry-run

lock: setup ## resolve requirements/*.txt anew
	$(COMPILE) --group bootstrap -o requirements/bootstrap.txt
	$(COMPILE) --extra embedded pyproject.toml -o requirements/embedded.txt
	$(COMPILE) --extra embedded --extra postgres --extra s3 --constraint requirements/embedded.txt pyproject.toml -o requirements/hosted.txt
	$(COMPILE) --extra dev --constraint requirements/hosted.txt pyproject.toml -o requirements/dev.txt
