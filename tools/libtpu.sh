#!/usr/bin/env bash
# Put the TPU compiler of the lock into the machine's cache and print its path; $1: the environment.
# Not into the environment: with it there, every JAX process on a CPU tries to open a TPU first,
# which takes up to a second and prints errors.
set -euo pipefail
venv=$1
cache=${TPUJOB_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/tpujob}/libtpu
lock=$(awk '/^[a-z0-9]/ { mine = /^libtpu==/ } mine' requirements/tpu.txt)
key=$(printf '%s\n' "$("$venv/bin/python" --version)" "$lock" | sha256sum | cut -c1-16)
library=$cache/$key/libtpu/libtpu.so
mkdir -p "$cache"
exec 9>"$cache/lock"
flock 9
if [ ! -e "$library" ]; then
  echo "installing libtpu into $cache (about 200 MB to download, 700 MB on disk)" >&2
  temporary=$(mktemp -d "$cache/tmp.XXXXXX")
  trap 'rm -rf "$temporary"' EXIT
  printf '%s\n' "$lock" >"$temporary/lock.txt"
  env -u PIP_FIND_LINKS -u UV_FIND_LINKS "$venv/bin/uv" pip install -q --python "$venv/bin/python" \
    --target "$temporary/files" --no-deps --require-hashes -r "$temporary/lock.txt" >&2
  mv "$temporary/files" "$cache/$key"
fi
echo "$library"
