#!/bin/sh
# Copy what the pages load from npm packages to bot/console/static, or to the folder that is given:
# `make assets`.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
out=${1:-$here/../static}
build=$here/../../../build/assets # no Python tool looks there
mkdir -p "$build"
cp "$here/package.json" "$here/package-lock.json" "$build/"
cd "$build"
npm ci --ignore-scripts --no-audit --no-fund --silent
from=node_modules/htmx.org
cp "$from/dist/htmx.min.js" "$from/dist/ext/hx-sse.min.js" "$out/"
cp "$from/LICENSE" "$out/htmx.LICENSE.txt"
# What would point to a file that is not here; the browser's tools ask for it.
sed -i '/^\/\/# sourceMappingURL=/d' "$out/htmx.min.js" "$out/hx-sse.min.js"
cd "$out"
sha256sum htmx.min.js hx-sse.min.js htmx.LICENSE.txt > SHA256SUMS
