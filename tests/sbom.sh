#!/usr/bin/env bash
# Write what the service is made of into build/: sbom.sh PYTHON. A CycloneDX list with hashes, the
# licenses, and known weaknesses where an advisory feed can be reached. Fails on a weakness, on a
# license that asks for our own source, and on a package that says that nobody maintains it.
set -euo pipefail
python=$1
tools="$(dirname "$python")/../tools"
out=build
mkdir -p "$out"

if [ ! -x "$tools/bin/pip-audit" ]; then
    echo "installing the tools for the bill of materials ..." >&2
    "$python" -m venv "$tools"
    "$tools/bin/python" -m pip install -q --disable-pip-version-check \
        "cyclonedx-bom>=7.5,<8" "pip-licenses>=5.5,<6" "pip-audit>=2.10,<3"
fi

"$tools/bin/python" -W ignore -m cyclonedx_py requirements requirements.lock \
    --pyproject pyproject.toml --output-reproducible -o "$out/sbom.cdx.json"
echo "$out/sbom.cdx.json: $(grep -c '"purl"' "$out/sbom.cdx.json") packages"

names=$(sed -n 's/^\([A-Za-z0-9._-]*\)==.*/\1/p' requirements.lock)
# shellcheck disable=SC2086 # one argument a name
"$tools/bin/pip-licenses" --python "$python" --packages $names --with-urls --format=markdown \
    --output-file "$out/licenses.md" >/dev/null
echo "$out/licenses.md: $(grep -c '^| ' "$out/licenses.md") lines"
if grep -E '\b(A?GPL|GNU (Affero )?General Public)' "$out/licenses.md"; then
    echo "a license above asks for the source of what uses it; replace the package" >&2
    exit 1
fi

# shellcheck disable=SC2086 # one argument a name
"$python" - $names <<'PY'
import re
import sys
from importlib.metadata import PackageNotFoundError, metadata

GIVEN_UP = re.compile(
    r"no longer (being )?(actively )?maintained|\bunmaintained\b|\babandoned\b"
    r"|(package|project|library|repository) (is|has been) (deprecated|archived|discontinued)",
    re.IGNORECASE,
)
HEAD_CHARS = 600  # further down, a description speaks of parts of the package, and of others
given_up, looked_at = [], 0
for name in sys.argv[1:]:
    try:
        found = metadata(name)
    except PackageNotFoundError:  # for another system than this one
        continue
    looked_at += 1
    description = found.get("Description") or found.get_payload() or ""
    head = f"{found.get('Summary')}\n{description[:HEAD_CHARS]}"
    is_inactive = "Development Status :: 7 - Inactive" in (found.get_all("Classifier") or ())
    if is_inactive or GIVEN_UP.search(head):
        given_up.append(name)
print(f"given up by their authors: {len(given_up)} of {looked_at} installed packages", *given_up)
sys.exit(1 if given_up else 0)
PY

audit=$("$tools/bin/pip-audit" -r requirements.lock --no-deps --disable-pip -f json \
    --progress-spinner off 2>"$out/audit.log") || true
"$tools/bin/python" - "$audit" <<'PY'
import json
import sys

found = json.loads(sys.argv[1] or '{"dependencies": []}')["dependencies"]
audited = [one for one in found if "vulns" in one]
weak = [one for one in audited if one["vulns"]]
if not audited:
    print("known weaknesses: no advisory feed can be reached from here, so none were looked up")
for one in weak:
    print(one["name"], one["version"], *(vuln["id"] for vuln in one["vulns"]))
if audited:
    print(f"known weaknesses: {len(weak)} of {len(audited)} audited packages")
sys.exit(1 if weak else 0)
PY
