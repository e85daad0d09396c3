.DEFAULT_GOAL := help
.PHONY: help setup check test coverage bench docs
QUICK := not process and not slow and not full and not alone
export OMP_WAIT_POLICY := passive
export HF_HUB_OFFLINE := 1
export TOKENIZERS_PARALLELISM := false

help: ## Show this list
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

setup: ## Build the environments and models (cached)
	scripts/setup

check: ## Lint, format and types: seconds
	.venv/bin/ruff check
	.venv/bin/ruff format --check
	.venv/bin/pyright

test: ## The tests that start no process: at most 4 minutes, before each commit
	OMP_NUM_THREADS=1 .venv/bin/pytest -m "$(QUICK)" -n 2 --dist loadfile --no-loadscope-reorder -q

coverage: ## The tests that start no engine, with coverage: at least 90%
	OMP_NUM_THREADS=1 .venv/bin/pytest tests/unit tests/contract tests/security tests/e2e/test_python_api.py -m "not full and not alone" -n 2 --dist loadfile --no-loadscope-reorder -q --cov

bench: ## Measure every promise at the size of the gate
	scripts/promises --all

docs: ## Generate the pages that come from code, build the site into site/, run the snippets
	scripts/docs generate
	scripts/docs links
	scripts/docs build --site-dir site
	scripts/docs snippets
