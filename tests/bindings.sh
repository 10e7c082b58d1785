#!/usr/bin/env bash
# Install the bindings `llama_cpp` for the tests: bindings.sh PYTHON. They are compiled once on a
# machine, in 2 to 8 minutes. Where that fails it says why and succeeds; their tests are skipped.
set -euo pipefail
python=$1
lock="$(dirname "$0")/bindings.lock"
# For any processor with AVX2, so that the wheel may be carried along; without images and TLS, and
# not optimized for speed.
options="-DLLAVA_BUILD=OFF -DGGML_NATIVE=OFF -DLLAMA_OPENSSL=OFF -DCMAKE_CXX_FLAGS_RELEASE=-O1"
# The bindings do not load the library `common`, which takes longer to compile than all others.
include="set(LLAMA_BUILD_COMMON OFF)
set(CMAKE_UNITY_BUILD ON)"

system=$("$python" -c 'import sysconfig as s; print(f"py{s.get_python_version()}-{s.get_platform()}")')
key=$({ cat "$lock"; echo "$options $include"; } | cksum | cut -d " " -f 1)
cache="${XDG_CACHE_HOME:-$HOME/.cache}/troupe/wheels"
wheels="$cache/bindings-$key-$system"

if [ ! -d "$wheels" ]; then
    echo "compiling the bindings of llama.cpp (some minutes; once) ..." >&2
    mkdir -p "$cache"
    part=$(mktemp -d "$cache/.part-XXXXXX")
    trap 'rm -rf "$part" "$part.cmake"' EXIT
    echo "$include" >"$part.cmake"
    export CMAKE_ARGS="$options -DCMAKE_PROJECT_llama.cpp_INCLUDE=$part.cmake"
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
