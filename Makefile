# Three commands do all the set-up: `make serve`, `make spark` on a DGX Spark, and `make test`.

MODEL ?= demo
PORT ?= 8002

SPARK_MODEL ?= mistralai/Mistral-Small-4-119B-2603-NVFP4

.PHONY: serve spark chat test lint clean help
.DEFAULT_GOAL := help

help:
	@echo "make serve              serve the demo model on http://127.0.0.1:$(PORT)"
	@echo "make serve MODEL=...    serve a checkpoint folder or a Hub id"
	@echo "make spark              on a DGX Spark: check it, download Mistral Small 4, serve it"
	@echo "make chat               talk to it in the terminal"
	@echo "                        PORT=... listens on another port"
	@echo "make test               lint, types, imports and all tests"
	@echo "make lint               the same without the tests"
	@echo "make clean              remove .venv and what was built"

serve: .venv/.installed
	.venv/bin/sparkstral serve "$(MODEL)" --port $(PORT)

# serve plans the memory before it downloads, and goes on with a download that was broken off.
spark: .venv/.installed
	.venv/bin/sparkstral doctor "$(SPARK_MODEL)" --port $(PORT)
	.venv/bin/sparkstral serve "$(SPARK_MODEL)" --port $(PORT)

chat: .venv/.installed
	.venv/bin/sparkstral chat --model "$(MODEL)"

test: .venv/.installed-test lint
	.venv/bin/python -m pytest --numprocesses auto --maxprocesses 4 --dist loadfile

lint: .venv/.installed-test
	.venv/bin/ruff check src tests tools
	.venv/bin/mypy
	.venv/bin/lint-imports

.venv/.installed: pyproject.toml tools/install.sh
	tools/install.sh
	@touch $@

.venv/.installed-test: pyproject.toml tools/install.sh
	tools/install.sh test
	@touch $@ .venv/.installed

clean:
	rm -rf .venv build dist
