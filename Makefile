# The two commands that matter: `make tune` and `make test`. Both set everything up first.

PYTHON ?= python3
VENV ?= .venv
MINUTES ?= 7

TORCH := 2.13.0
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
STAMP := $(VENV)/.installed

# The stamp is written last and holds the folder that was installed: when an installation was
# interrupted, when the interpreter is gone or the folder was moved, everything is installed anew.
COMPLETE := $(shell "$(BIN)/python" -c "" 2>/dev/null && \
	test "$$(cat "$(STAMP)" 2>/dev/null)" = "$(CURDIR)" && echo yes)

.DEFAULT_GOAL := help
.PHONY: help setup tune test test-slow check format wheel clean again

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-10s %s\n", $$1, $$2}' Makefile

setup: $(STAMP)  ## make the virtual environment and install everything into it

tune: $(STAMP)  ## tune MobileNet-V2 on this machine (MINUTES=7)
	$(BIN)/tlp tune mobilenet_v2 --minutes $(MINUTES) --work-dir runs/mobilenet_v2

test: $(STAMP)  ## run the tests
	$(BIN)/python -m pytest -n 2 --dist loadfile

test-slow: $(STAMP)  ## run the tests that take minutes
	$(BIN)/python -m pytest -m slow --timeout 3600

check: $(STAMP)  ## lint, check the formatting and the types
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .
	$(BIN)/python -m mypy

format: $(STAMP)  ## format the code and mend what the linter can mend
	$(BIN)/python -m ruff check --fix .
	$(BIN)/python -m ruff format .

wheel: $(STAMP)  ## build the wheel into dist/
	$(BIN)/python -m build --wheel --no-isolation --outdir dist .

clean:  ## remove what was built and the caches; leaves the virtual environment and runs/
	rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	for folder in src tests benchmarks; do \
		if [ -d $$folder ]; then \
			find $$folder -type d -name __pycache__ -prune -exec rm -rf {} +; \
		fi; \
	done

ifneq ($(COMPLETE),yes)
$(STAMP): again
endif

$(STAMP): requirements.lock pyproject.toml
	@command -v "$(PYTHON)" >/dev/null || { \
		echo "make: $(PYTHON) is not there; name a Python: make PYTHON=/path/to/python3" >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "make: Python 3.11 or newer is needed, $(PYTHON) is $$("$(PYTHON)" -V 2>&1);" \
			"name another: make PYTHON=python3.11" >&2; exit 1; }
	@"$(PYTHON)" -c 'import ensurepip, venv' 2>/dev/null || { \
		echo "make: $(PYTHON) cannot make virtual environments;" \
			"on Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }
	@echo "Setting up $(VENV) (minutes, the first time)"
	@rm -f $@
	@test "$(COMPLETE)" = yes || { rm -f "$(BIN)"/python* && "$(PYTHON)" -m venv "$(VENV)"; }
	@$(PIP) --version >/dev/null 2>&1 || { \
		rm -rf "$(VENV)"/lib/python*/site-packages/pip "$(VENV)"/lib/python*/site-packages/pip-*; \
		"$(PYTHON)" -m venv "$(VENV)"; }
	@# torch may stay if it is the right one and pip ended its installation (INSTALLER is written last).
	@"$(BIN)/python" -c 'import torch; from importlib.metadata import distribution as d; \
		assert torch.__version__.split("+")[0] == "$(TORCH)" and d("torch").read_text("INSTALLER")' \
		2>/dev/null || $(PIP) install -q --force-reinstall torch==$(TORCH)
	@$(PIP) install -q --no-deps $(if $(filter yes,$(COMPLETE)),,--force-reinstall) -r requirements.lock
	@$(PIP) install -q --no-deps --no-build-isolation -e .
	@printf '%s\n' "$(CURDIR)" >$@
