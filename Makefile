# Everything a fresh machine with Python and make needs: `make demo`, `make serve`, `make test`, `make check`.
PYTHON ?= python3
BIN := .venv/bin
DEMO := dualnet er dualnet-n0 finetune # the longest first
WORKERS ?= 2

.PHONY: demo serve test check docs release-check tables format clean $(DEMO:%=demo-%)

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $@

# Two at a time with one thread each: on networks this small that is faster than one at a time with two.
demo: .venv/ready
	$(MAKE) --no-print-directory --jobs 2 $(DEMO:%=demo-%)
	$(BIN)/dualnet report runs/demo --picture runs/demo/picture.svg

$(DEMO:%=demo-%): demo-%: .venv/ready
	OMP_NUM_THREADS=1 $(BIN)/dualnet run few-labels-$* --seeds 0,1,2 --device cpu --out runs/demo/$*

# The web service, taught in a browser; a second call continues from the saved state.
serve: .venv/ready
	$(BIN)/dualnet serve --held-out-every 5

test: .venv/ready
	PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses $(WORKERS) --dist worksteal

check: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports
	$(BIN)/deptry src
	$(MAKE) --no-print-directory test

# The archives that would be published, and the wheel in an environment of its own.
release-check:
	rm -rf build/release dist
	$(PYTHON) -m venv build/release
	build/release/bin/pip install --quiet --disable-pip-version-check build twine
	build/release/bin/python -m build --outdir dist
	build/release/bin/twine check --strict dist/*
	$(PYTHON) -m venv --clear build/release
	build/release/bin/pip install --quiet --disable-pip-version-check --constraint constraints.txt dist/*.whl
	cd build && release/bin/dualnet list

# The figures of README.md and docs/ from the run folders of results/.
tables: .venv/ready
	$(BIN)/python -m benchmarks.tables

# The documentation site, in build/site; tests/test_site.py does the same.
docs: .venv/ready
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

format: .venv/ready
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf .venv runs
