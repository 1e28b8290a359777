# Two commands do everything on a fresh machine: `make demo` and `make test`.

VENV ?= .venv
STAMP := $(VENV)/.installed
PLUGINS := pld_ray/plugin/lerobot_policy_pld_ray envs/lerobot_env_pld_ray
BIN := $(VENV)/bin
RUN := OMP_NUM_THREADS=1 RAY_USAGE_STATS_ENABLED=0 RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO=0
DEMO := outputs/demo
SEED ?= 0

# Every process of Ray imports the same thousands of modules: compiled once, kept.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo demo-pixels circle test test-learning test-chaos lint setup bench clean

setup: $(STAMP)

$(STAMP): pyproject.toml requirements.lock scripts/find_python.sh $(PLUGINS:%=%/pyproject.toml)
	@set -e; python="$$(sh scripts/find_python.sh)"; \
	[ -x $(BIN)/python ] || "$$python" -m venv $(VENV); \
	$(BIN)/python -m pip install -qq --disable-pip-version-check "$$(grep '^uv==' requirements.lock)"; \
	$(BIN)/uv pip sync --quiet --python $(BIN)/python requirements.lock; \
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --editable .; \
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation $(PLUGINS:%=--editable %); \
	touch $@

demo: setup  ## train a residual on the embedded task; results in outputs/demo
	@$(RUN) $(BIN)/python -m experiments.demo --output_dir=$(DEMO) --seed=$(SEED)

demo-pixels: setup  ## the same from two cameras, an hour and a quarter; needs a GL library
	@$(RUN) LP_NUM_THREADS=0 $(BIN)/python -m experiments.demo --pixels --output_dir=$(DEMO)-pixels --seed=$(SEED)

circle: setup  ## a residual for each embedded task, distilled into the base policy; outputs/circle
	@$(RUN) $(BIN)/python -m experiments.circle --output_dir=outputs/circle --seed=$(SEED)

test: setup  ## static checks and every test but those of test-learning and test-chaos
	@$(RUN) $(BIN)/ruff check .
	@$(RUN) $(BIN)/ruff format --check .
	@$(RUN) $(BIN)/lint-imports --no-logo --no-cache
	@$(RUN) $(BIN)/mypy & types=$$!; \
	$(RUN) $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder; tests=$$?; \
	wait $$types && exit $$tests

test-learning: setup  ## slow end-to-end learning runs
	@$(RUN) $(BIN)/python -m pytest -m learning

test-chaos: setup  ## nodes and servers killed under a run
	@$(RUN) $(BIN)/python -m pytest -m chaos

lint: setup
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo --no-cache

bench: setup  ## the benchmarks that need nothing else, one after the other
	@for b in cli learner replay env pool scale tracking sweep data human chunked sharded; do $(RUN) $(BIN)/python experiments/benchmarks/$$b.py --json || exit 1; done

clean:  ## remove the environment; what runs have written under outputs/ stays
	rm -rf $(VENV)
export PYTHON
