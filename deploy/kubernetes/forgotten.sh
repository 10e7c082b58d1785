#!/bin/sh
# Print the lines of forgotten.jsonl of all workers, also of those that the autoscaler has ended since:
#   deploy/kubernetes/forgotten.sh > forgotten.jsonl
# for a place apart from the backups, and for `troupe db restored --forgotten forgotten.jsonl`. A
# volume that no worker has is read through a pod made for that. Needs kubectl, and its namespace.
set -eu

workers=app.kubernetes.io/name=troupe,app.kubernetes.io/component=worker
image=$(kubectl get statefulset troupe-worker -o 'jsonpath={.spec.template.spec.containers[0].image}')
claims=$(kubectl get persistentvolumeclaims -l "$workers" -o 'jsonpath={.items[*].metadata.name}')
trap 'kubectl delete pod -l app.kubernetes.io/component=forgotten --ignore-not-found >&2' EXIT

for claim in $claims; do
    pod=${claim#data-}
    if ! kubectl exec "$pod" -- true >&2; then
        pod="read-$claim"
        kubectl create -f - >&2 <<EOF
apiVersion: v1
kind: Pod
metadata:
  name: $pod
  labels: {app.kubernetes.io/component: forgotten}
spec:
  restartPolicy: Never
  automountServiceAccountToken: false
  terminationGracePeriodSeconds: 0
  securityContext:
    runAsNonRoot: true
    runAsUser: 10001
    runAsGroup: 10001
    fsGroup: 10001
    seccompProfile: {type: RuntimeDefault}
  containers:
    - name: read
      image: $image
      command: [sleep, "600"]
      resources:
        requests: {cpu: 10m, memory: 16Mi}
        limits: {memory: 64Mi}
      securityContext:
        allowPrivilegeEscalation: false
        readOnlyRootFilesystem: true
        capabilities: {drop: [ALL]}
      volumeMounts:
        - {name: data, mountPath: /srv/troupe/data, readOnly: true}
  volumes:
    - name: data
      persistentVolumeClaim: {claimName: $claim}
EOF
        kubectl wait --for=condition=Ready "pod/$pod" --timeout=300s >&2
    fi
    # A last line that a process was writing when it died gets its end, so that the next file begins
    # a line.
    kubectl exec "$pod" -- sh -c 'test ! -e data/forgotten.jsonl || sed "\$a\\" data/forgotten.jsonl'
done
