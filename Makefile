# Everything a fresh machine needs: `make quickstart` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PRIMUS := $(BIN)/primus
QUICK := output/quickstart
RUN := output/primus/quickstart/llama_tiny-python
STDLIB = $(shell $(PYTHON) -c "import sysconfig; print(sysconfig.get_paths()['stdlib'])")
TEXT = "$(STDLIB)/*.py" "$(STDLIB)/asyncio/*.py" "$(STDLIB)/email/*.py" "$(STDLIB)/http/*.py" \
	"$(STDLIB)/importlib/*.py" "$(STDLIB)/json/*.py" "$(STDLIB)/logging/*.py" "$(STDLIB)/multiprocessing/*.py" \
	"$(STDLIB)/unittest/*.py" "$(STDLIB)/xml/*/*.py"
TRAIN = $(PRIMUS) train pretrain --config examples/megatron/configs/cpu/quickstart.yaml

.PHONY: setup quickstart test check bench clean

## Create .venv from constraints.txt; does nothing when it is up to date
setup: $(VENV)/.ready

$(VENV)/.ready: constraints.txt pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt torch==2.13.0
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,triton]'
	touch $@

## Train a small real model on real text, stop and resume it, show a sample and the report
quickstart: setup
	rm -rf $(QUICK) $(RUN)
	$(PRIMUS) data train-tokenizer $(TEXT) --output $(QUICK)/tokenizer --vocab-size 4096
	$(PRIMUS) data prepare $(TEXT) --output-prefix $(QUICK)/python --tokenizer-model $(QUICK)/tokenizer
	@echo "--- training; it stops at iteration 165 to be resumed"
	$(TRAIN) exit_interval=165
	@echo "--- the same command again: it goes on where it stopped"
	$(TRAIN)
	@echo "--- a sample"
	$(PRIMUS) generate $(RUN) --prompt "def " --max-new-tokens 80
	@echo "--- done"
	@echo "loss curve, throughput, configuration: $(RUN)/report/index.html"
	@echo "checkpoints:                           $(RUN)/checkpoints"

## The whole test suite
test: setup
	$(BIN)/pytest -n 2 --dist worksteal

## Linters, types, import contracts
check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

## Benchmarks; each prints JSON with ratios measured in one run
bench: setup
	for file in benchmarks/*.py; do $(BIN)/python $$file || exit 1; done

clean:
	rm -rf $(VENV) output
