#!/usr/bin/env bash
# Resolve the extras into hashed locks that name no registry and hold for every supported Python.
set -euo pipefail
venv=$1
for extra in dev operator trainer tpu; do
  env -u PIP_FIND_LINKS -u UV_FIND_LINKS "$venv/bin/uv" pip compile -q --universal --python-version 3.11 \
    --extra "$extra" --generate-hashes --no-emit-index-url --no-emit-find-links --no-annotate --no-header \
    --fork-strategy requires-python pyproject.toml -o "requirements/$extra.txt"
  echo "requirements/$extra.txt: $(grep -c == "requirements/$extra.txt") packages"
done
