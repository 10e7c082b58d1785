#!/bin/sh
# Build the files that pages load from npm packages: `make assets`. They are written to
# bot/console/static, or to a folder passed as an argument.
set -eu
export LC_ALL=C # sort file names the same way everywhere
here=$(cd "$(dirname "$0")" && pwd)
out=${1:-$here/../static}
mkdir -p "$out"
out=$(cd "$out" && pwd)
build=$here/../../../build/assets # no Python tool looks there
mkdir -p "$build"
cp "$here/package.json" "$here/package-lock.json" "$here/codemirror.js" "$build/"
cd "$build"
npm ci --ignore-scripts --no-audit --no-fund --silent
node_modules/.bin/esbuild codemirror.js --bundle --minify --format=esm --target=es2022 \
  --legal-comments=none --log-level=warning --outfile="$out/codemirror.min.js"
for licence in node_modules/codemirror/LICENSE node_modules/@codemirror/*/LICENSE \
  node_modules/@lezer/*/LICENSE node_modules/@marijn/*/LICENSE node_modules/crelt/LICENSE \
  node_modules/style-mod/LICENSE node_modules/w3c-keyname/LICENSE; do
  echo "--- ${licence#node_modules/}"
  cat "$licence"
done > "$out/codemirror.LICENSE.txt"
from=node_modules/uplot
cp "$from/dist/uPlot.iife.min.js" "$out/uplot.min.js"
cp "$from/dist/uPlot.min.css" "$out/uplot.min.css"
cp "$from/LICENSE" "$out/uplot.LICENSE.txt"
cd "$out"
sha256sum uplot.min.js uplot.min.css uplot.LICENSE.txt codemirror.min.js codemirror.LICENSE.txt \
  > SHA256SUMS
