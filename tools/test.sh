#!/usr/bin/env bash
# Lint, drift checks and all test tiers; the last line is pytest's own count.
set -euo pipefail
started=$SECONDS
say() { printf '\n== [%4ds] %s\n' $((SECONDS - started)) "$*"; }
say "lint: format, style, types, borders"
make lint
say "drift: everything generated agrees with its source"
make gen-check
say "local cluster: programs and images (the first run on a machine builds them)"
# A host that cannot run one skips those tests, and pytest says how many and why.
.venv/bin/python -m localcluster prepare ||
  .venv/bin/python -m localcluster prepare --control-plane-only ||
  echo "going on without"
say "object stores that checkpoints are tested on"
.venv/bin/python -m localcluster build fake-gcs-server gofakes3 || echo "going on without"
say "Kueue: quota for jobs in queues"
.venv/bin/python -m localcluster build kueue || echo "going on without"
say "TPU compiler: downloaded once on a machine"
# It exists for x86 alone; elsewhere its tests are skipped and say so.
[ "$(uname -m)" != x86_64 ] || make -s libtpu
say "tests: core, contracts, control plane, trainer, end to end"
# In their order: JAX's threads come last, as no process may be forked beside them.
.venv/bin/python -m pytest -n 2 --no-loadscope-reorder ${PYTEST_ARGS:-}
