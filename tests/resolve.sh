#!/usr/bin/env bash
# Resolve the dependencies for every platform and Python from wheels alone: resolve.sh PYTHON. Then
# check the types of the branches for Windows. Needs uv.
set -euo pipefail
python=$1
"$python" -m uv --version >/dev/null 2>&1 || "$python" -m pip install -q --disable-pip-version-check uv

resolve() {
    "$python" -m uv pip compile -q pyproject.toml "${@:3}" --only-binary :all: --python-platform "$1" \
        --python-version "$2" -o /dev/null >/dev/null || { echo "no wheels: $1, Python $2" >&2; exit 1; }
}

for version in 3.11 3.12 3.13 3.14; do
    for platform in x86_64-unknown-linux-gnu aarch64-unknown-linux-gnu aarch64-apple-darwin \
        x86_64-apple-darwin x86_64-pc-windows-msvc; do
        resolve "$platform" "$version" --extra all --extra mcp --extra traces
    done
    resolve x86_64-unknown-linux-musl "$version" # without extras
    echo "Python $version: every platform has wheels"
done
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
for machine in x86_64 aarch64; do # what `docker buildx` installs; 415 MB each
    "$python" -m uv pip install -q --target "$folder/$machine" --python-platform "$machine-unknown-linux-gnu" \
        --python-version 3.11 --only-binary :all: --no-deps --require-hashes -r requirements.lock
done
echo "requirements.lock: installed for both architectures of the image"
[ ! -x "$(dirname "$python")/mypy" ] || "$(dirname "$python")/mypy" --platform win32 --cache-dir .mypy_cache/win32 bot
