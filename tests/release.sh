#!/usr/bin/env bash
# Build the sdist, and from it the wheel, into build/dist: release.sh PYTHON. Check both, then
# install the wheel into a fresh environment and ask it something.
set -euo pipefail
python=$(realpath --no-symlinks "$1")
tools="$(dirname "$python")/../tools"
out=$PWD/build/dist
version=$("$python" -c "import bot; print(bot.__version__)")

grep -q "^## $version$" CHANGELOG.md || { echo "CHANGELOG.md has no page for $version" >&2; exit 1; }
if [ ! -x "$tools/bin/check-wheel-contents" ]; then
    echo "installing the tools that check packages ..." >&2
    [ -x "$tools/bin/python" ] || "$python" -m venv "$tools"
    "$tools/bin/python" -m pip install -q --disable-pip-version-check \
        "check-wheel-contents>=0.6,<1" "twine>=6,<8"
fi

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
rm -rf "$out"
"$python" -m hatchling build -t sdist -d "$out" >/dev/null
tar -xf "$out/troupe_bot-$version.tar.gz" -C "$folder"
(cd "$folder/troupe_bot-$version" && "$python" -m hatchling build -t wheel -d "$out" >/dev/null)
wheel="$out/troupe_bot-$version-py3-none-any.whl"

"$tools/bin/twine" --no-color check --strict "$out"/*
"$tools/bin/check-wheel-contents" --ignore W004 "$wheel" # Alembic names its revisions with digits

"$python" -m venv "$folder/fresh"
"$folder/fresh/bin/python" -m pip install -q --disable-pip-version-check "$wheel"
cd "$folder"
[ "$(fresh/bin/troupe --version)" = "troupe $version" ]
answer=$(echo hello | TROUPE_PROVIDERS__LOCAL__KIND=echo fresh/bin/troupe run)
[ "$answer" = hello ]
echo "$out: $(ls "$out" | tr '\n' ' '), installed and tried; build/sbom.cdx.json"
