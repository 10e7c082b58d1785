#!/bin/sh
# What a cluster with two volumes of workers does, of which one worker runs.
set -eu
case "$1 $2" in
"get statefulset") printf troupe:9 ;;
"get persistentvolumeclaims") printf 'data-troupe-worker-0 data-troupe-worker-1' ;;
"create -f") cat >"$CLUSTER/pod.yaml"; mv "$CLUSTER/volume" "$CLUSTER/read-data-troupe-worker-1" ;;
exec\ *) cd "$CLUSTER/$2"; shift 3; exec "$@" ;;
"wait --for=condition=Ready" | "delete pod") echo "$1 $3" >>"$CLUSTER/asked" ;;
*) exit 1 ;;
esac
