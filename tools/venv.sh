#!/usr/bin/env bash
# Make the virtual environment $1 from the hashed lock. Run again, it only brings it up to date.
set -euo pipefail
venv=$1
started=$SECONDS
say() { printf '[%3ds] %s\n' $((SECONDS - started)) "$*"; }

find_python() {
  local candidate
  for candidate in ${PYTHON:-} python3 python3.13 python3.12 python3.11; do
    if "$candidate" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null; then
      echo "$candidate"
      return
    fi
  done
  echo "tpujob needs Python 3.11, 3.12 or 3.13; none was found. Install one, or name it: make PYTHON=/path/to/python" >&2
  exit 1
}

python=$(find_python)
if [ ! -x "$venv/bin/python" ]; then
  say "making $venv with $("$python" --version)"
  if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
    [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null || {
      echo "this Python has no venv module; install it (Debian: apt-get install python3-venv)" >&2
      exit 1
    }
    say "installing python3-venv"
    apt-get update -qq && apt-get install -y -qq --no-install-recommends python3-venv >/dev/null
  fi
  "$python" -m venv "$venv"
fi
if [ ! -x "$venv/bin/uv" ]; then
  say "installing uv"
  "$venv/bin/pip" install -q "uv==0.13.8"
fi
say "installing the locked packages"
# The lock alone says what is installed: no other folder of wheels may take part.
env -u PIP_FIND_LINKS -u UV_FIND_LINKS "$venv/bin/uv" pip install -q --python "$venv/bin/python" --require-hashes -r requirements/dev.txt
env -u PIP_FIND_LINKS -u UV_FIND_LINKS "$venv/bin/uv" pip install -q --python "$venv/bin/python" --no-deps -e .
say "virtual environment ready: $("$venv/bin/python" --version), jax $("$venv/bin/python" -c 'import importlib.metadata as m; print(m.version("jax"))')"
