# Each target sets up what it needs in .venv first. PYTHON chooses the interpreter (3.11 or newer).
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
ARGS   ?=

.PHONY: help run test coverage lint fetch compat compat-packaging compat-storage compat-security compat-cluster chaos compat-spark compat-pipeline compat-tables fuzz beside soak sim sim-mutants faults faults-mutants mutants workflows bench bench-quick bench-growth bench-micro clean

help:  ## show this help
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

run: $(VENV)/.run  ## start a broker on 127.0.0.1:9092, data in ./barnabas-data (ARGS="--listen 127.0.0.1:0")
	@exec $(BIN)/barnabas start $(ARGS)

# Parts of the pipeline are made of NumPy, PyArrow and classes of PySpark; no Java is needed.
test: $(VENV)/.spark  ## unit tests of all packages
	$(BIN)/python -m pytest tests $(ARGS)

coverage: $(VENV)/.spark  ## which lines of the packages the unit tests run
	$(BIN)/python -m coverage run -m pytest tests -q $(ARGS)
	$(BIN)/python -m coverage report --skip-covered

# The pipeline is checked against the types of PySpark and NumPy, so lint needs both.
lint: $(VENV)/.spark  ## ruff, mypy --strict, import contracts, bandit
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/bandit -q -ll -c pyproject.toml -r barnabas server replication storage wire pipeline

compat: $(VENV)/.test  ## real clients (Python, C, Java, kcat) against a real broker process
	$(BIN)/python -m pytest compat_tests --ignore=compat_tests/spark --ignore=compat_tests/pipeline --ignore=compat_tests/cluster --ignore=compat_tests/soak --ignore=compat_tests/security --ignore=compat_tests/storage --ignore=compat_tests/packaging --ignore=compat_tests/java/test_mixed_cluster.py $(ARGS)

compat-packaging: $(VENV)/.test  ## what is installed, shown and built: wheel, console blocks, library, image
	$(BIN)/python -m pytest compat_tests/packaging $(ARGS)

compat-storage: $(VENV)/.test  ## what Apache Kafka and Barnabas read of each other's directories
	$(BIN)/python -m pytest compat_tests/storage $(ARGS)

compat-security: $(VENV)/.test  ## the same over TLS and SASL, with rules and quotas; secured clusters of both kinds
	$(BIN)/python -m pytest compat_tests/security $(ARGS)

compat-cluster: $(VENV)/.test  ## three nodes under kills, pauses, partitions, bad disks; one of them Apache Kafka
	$(BIN)/python -m pytest compat_tests/cluster compat_tests/java/test_mixed_cluster.py $(ARGS)

chaos: $(VENV)/.test  ## the same for hours (CHAOS_ROUNDS=200, 50 without it)
	CHAOS_ROUNDS=$${CHAOS_ROUNDS:-50} $(BIN)/python -m pytest compat_tests/cluster -s $(ARGS)

compat-spark: $(VENV)/.spark  ## Spark's Kafka source and sink against a real broker process
	$(BIN)/python -m pytest compat_tests/spark $(ARGS)

# Of the pipeline, what of it is in all formats of tables; these take a third of its time.
TABLES := compat_tests/pipeline/test_archive_formats.py compat_tests/pipeline/test_table_formats.py

compat-pipeline: $(VENV)/.spark  ## our Spark pipeline against real brokers (PIPELINE_KILL_ROUNDS=20: the long form)
	$(BIN)/python -m pytest compat_tests/pipeline $(addprefix --ignore=,$(TABLES)) $(ARGS)

compat-tables: $(VENV)/.spark  ## the same of Delta Lake, Iceberg and Parquet
	$(BIN)/python -m pytest $(TABLES) $(ARGS)

N ?= 100000
fuzz: $(VENV)/.test  ## wild requests to every listener, honest clients beside them: N=1000000 SEED=17
	$(BIN)/python -m compat_tests.fuzz --requests $(N) --seed $(or $(SEED),1) $(ARGS)

beside: $(VENV)/.test  ## the same requests to Barnabas and Apache Kafka, answers compared field by field: REQUESTS=20000 SEED=17
	$(BIN)/python -m compat_tests.beside --requests $(or $(REQUESTS),2000) --seed $(or $(SEED),1) $(ARGS)

SOAK_MINUTES ?= 3
soak: $(VENV)/.test  ## churn against one broker, whose memory, threads and files stay (SOAK_MINUTES=60)
	SOAK_MINUTES=$(SOAK_MINUTES) $(BIN)/python -m pytest compat_tests/soak -s $(ARGS)

SEEDS ?= 300
sim: $(VENV)/.test  ## whole clusters in virtual time: SEEDS=10000, or one: SEED=17 (its story)
	$(BIN)/python -m tests.sim.run $(if $(SEED),$(SEED) --story,--seeds 0-$$(($(SEEDS) - 1)))

sim-mutants: $(VENV)/.test  ## faults put into the product that the simulator must notice
	$(BIN)/python -m tests.sim.mutants $(ARGS)

FAULT_SEEDS ?= 300
faults: $(VENV)/.test  ## logs on a disk whose every call may fail: FAULT_SEEDS=10000, or one: SEED=17 (its story)
	$(BIN)/python -m tests.storage.faults.run $(if $(SEED),$(SEED) --story,--seeds 0-$$(($(FAULT_SEEDS) - 1)))

faults-mutants: $(VENV)/.test  ## faults put into storage that this fuzzer must notice
	$(BIN)/python -m tests.storage.faults.mutants $(ARGS)

mutants: $(VENV)/.spark  ## small faults that the unit tests must notice (SAMPLE=9999: all; ARGS="--since HEAD~3": of what changed)
	$(BIN)/python -m tests.mutation.run --sample $(or $(SAMPLE),25) --seed $$(git rev-parse HEAD) $(ARGS)

fetch: $(VENV)/.test  ## what tests fetch when they first need it: Apache Kafka, the image's base
	$(BIN)/python -m testkit.fetch

ACTIONLINT := github.com/rhysd/actionlint/cmd/actionlint@v1.7.7
workflows:  ## check .github/workflows (needs Go)
	go run $(ACTIONLINT) .github/workflows/*.yml

bench: $(VENV)/.spark  ## every workload beside Apache Kafka 4.3.1 (ARGS="--only W4", ARGS="--list")
	$(BIN)/python -m benchmarks --out .cache/bench $(ARGS)

bench-quick: $(VENV)/.test  ## the headline rows only, under five minutes
	$(BIN)/python -m benchmarks --quick --out .cache/bench-quick $(ARGS)

bench-growth: $(VENV)/.test  ## what a request costs with more partitions, connections, groups, bytes, log
	$(BIN)/python -m benchmarks.growth --out .cache/growth $(ARGS)

bench-micro: $(VENV)/.test  ## wire codec and log beside their budgets
	$(BIN)/python -m benchmarks.micro

clean:  ## remove the virtual environment and everything generated
	rm -rf $(VENV) .cache build dist .mypy_cache .ruff_cache .pytest_cache

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.run: $(BIN)/python pyproject.toml
	$(BIN)/python -m pip install --quiet --editable .
	@touch $@

$(VENV)/.test: $(BIN)/python pyproject.toml
	$(BIN)/python -m pip install --quiet --editable '.[test]'
	@touch $@ $(VENV)/.run

$(VENV)/.spark: $(BIN)/python pyproject.toml
	$(BIN)/python -m pip install --quiet --editable '.[test,spark]' 'pyspark==4.0.0'
	@touch $@ $(VENV)/.test $(VENV)/.run
