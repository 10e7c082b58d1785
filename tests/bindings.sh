#!/usr/bin/env bash
# Install the bindings `llama_cpp` for the tests: bindings.sh PYTHON. They are compiled once on a
# machine, in 5 to 15 minutes. Where that fails it says why and succeeds; their tests are skipped.
set -euo pipefail
python=$1
lock="$(dirname "$0")/bindings.lock"
# For any processor with AVX2, so that the wheel may be carried along; without images and TLS.
export CMAKE_ARGS="-DLLAVA_BUILD=OFF -DGGML_NATIVE=OFF -DLLAMA_OPENSSL=OFF"

system=$("$python" -c 'import sysconfig as s; print(f"py{s.get_python_version()}-{s.get_platform()}")')
key=$({ cat "$lock"; echo "$CMAKE_ARGS"; } | cksum | cut -d " " -f 1)
cache="${XDG_CACHE_HOME:-$HOME/.cache}/troupe/wheels"
wheels="$cache/bindings-$key-$system"

if [ ! -d "$wheels" ]; then
    echo "compiling the bindings of llama.cpp (some minutes; once) ..." >&2
    mkdir -p "$cache"
    part=$(mktemp -d "$cache/.part-XXXXXX")
    trap 'rm -rf "$part"' EXIT
    # pip's own cache does not know one set of CMAKE_ARGS from another.
    if ! timeout 1200 "$python" -m pip wheel --no-cache-dir --no-deps --require-hashes \
        --disable-pip-version-check --requirement "$lock" --wheel-dir "$part" >"$cache/build.log" 2>&1
    then
        echo "the bindings cannot be built here, so their tests are skipped ($cache/build.log):" >&2
        { grep -iE "error|not found" "$cache/build.log" || tail -3 "$cache/build.log"; } | head -3 >&2
        exit 0
    fi
    mv -T "$part" "$wheels" 2>/dev/null || [ -d "$wheels" ] # somebody else was faster
fi
"$python" -m pip install --quiet --disable-pip-version-check --no-deps --no-index "$wheels"/*.whl
