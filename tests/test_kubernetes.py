"""Test the manifests in deploy/kubernetes: names, labels, and roles match each other.

`tests/kubernetes.yaml` was built by kustomize. Rebuild it after a change (this needs kubectl):

    python -m tests.test_kubernetes
"""

import hashlib
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bot.service.options import ALL_ROLES
from bot.storage.forgetting import Tombstone, read_tombstones, record_tombstone
from tests.checkout import CHECKOUT

_SOURCE = CHECKOUT / "deploy" / "kubernetes"
_BUILT = CHECKOUT / "tests" / "kubernetes.yaml"
_PORT = 8710


def source_digest() -> str:
    digest = hashlib.sha256()
    for path in sorted(_SOURCE.rglob("*.yaml")):
        digest.update(f"{path.relative_to(_SOURCE)}\n".encode() + path.read_bytes())
    return digest.hexdigest()


def build() -> str:
    """Build the manifests with kustomize; the first line contains a hash of the sources."""
    command = ("kubectl", "kustomize", str(_SOURCE))
    built = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return f"# Built by kubectl kustomize from files with the hash {source_digest()}\n{built}"


def parse(built: str) -> list[Any]:
    return [msgspec.yaml.decode(part) for part in built.split("\n---\n")]


def manifests(kind: str) -> dict[str, Any]:
    found = parse(_BUILT.read_text())
    return {one["metadata"]["name"]: one for one in found if one["kind"] == kind}


def workloads() -> dict[str, Any]:
    """Return the workloads by name; workers keep volumes, so they are a StatefulSet."""
    return manifests("Deployment") | manifests("StatefulSet")


def container_of(deployment: Mapping[str, Any]) -> Mapping[str, Any]:
    [container] = deployment["spec"]["template"]["spec"]["containers"]
    assert isinstance(container, dict)
    return container


def selects(selector: Mapping[str, Any], deployment: Mapping[str, Any]) -> bool:
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    return bool(selector["matchLabels"].items() <= labels.items())


def test_manifests_are_up_to_date() -> None:
    built = _BUILT.read_text()
    assert source_digest() in built.partition("\n")[0], "run: python -m tests.test_kubernetes"
    if shutil.which("kubectl") is not None:
        assert parse(built) == parse(build())


def test_every_role_has_a_workload() -> None:
    deployments = workloads()
    assert set(deployments) == {f"troupe-{role}" for role in ALL_ROLES}
    for name, deployment in deployments.items():
        container = container_of(deployment)
        assert container["args"] == ["run", "--role", name.removeprefix("troupe-")]
        assert container["image"] == "troupe:latest"
        assert container["envFrom"] == [{"secretRef": {"name": "troupe"}}], "is given its suffix"
        assert container["ports"] == [{"name": "health", "containerPort": _PORT}]


def test_each_selector_matches_exactly_one_deployment() -> None:
    deployments, budgets = workloads(), manifests("PodDisruptionBudget")
    assert set(budgets) == set(deployments)
    for name in deployments:
        for manifest in (deployments[name], budgets[name]):
            selector = manifest["spec"]["selector"]
            selected = [other for other, one in deployments.items() if selects(selector, one)]
            assert selected == [name], manifest["kind"]


def test_only_the_autoscaler_sets_the_number_of_workers() -> None:
    deployments = workloads()
    [scaler] = manifests("HorizontalPodAutoscaler").values()
    target = scaler["spec"]["scaleTargetRef"]
    assert (target["kind"], target["name"]) == ("StatefulSet", "troupe-worker")
    fixed = {name for name, one in deployments.items() if "replicas" in one["spec"]}
    assert fixed == set(deployments) - {"troupe-worker"}
    assert scaler["spec"]["minReplicas"] > 1


@pytest.mark.parametrize("probe", ["startupProbe", "livenessProbe", "readinessProbe"])
def test_probes_use_the_port_and_host_of_the_process(probe: str) -> None:
    """The image listens on all addresses; unencrypted console pages are only served in the pod."""
    path = "/readyz" if probe == "readinessProbe" else "/healthz"
    for name, deployment in workloads().items():
        container = container_of(deployment)
        host = {one["name"]: one["value"] for one in container.get("env", ())}
        if name == "troupe-console":
            assert host == {"TROUPE_CONSOLE__PAGES": "true", "TROUPE_CONSOLE__HOST": "127.0.0.1"}
            assert f"http://127.0.0.1:{_PORT}{path}" in container[probe]["exec"]["command"][2]
            assert "httpGet" not in container[probe]
        else:
            assert host == {}
            assert container[probe]["httpGet"] == {"path": path, "port": "health"}


def test_data_of_a_worker_outlasts_its_pod() -> None:
    """Workers delete conversations, and record that in their data directory (forgotten.jsonl)."""
    [worker] = manifests("StatefulSet").values()
    [claim] = worker["spec"]["volumeClaimTemplates"]
    assert claim["spec"]["accessModes"] == ["ReadWriteOnce"], "no cluster has to offer more"
    mounts = {one["name"]: one["mountPath"] for one in container_of(worker)["volumeMounts"]}
    assert mounts[claim["metadata"]["name"]] == "/srv/troupe/data"
    assert [one["name"] for one in worker["spec"]["template"]["spec"]["volumes"]] == ["tmp"]
    retention = worker["spec"]["persistentVolumeClaimRetentionPolicy"]
    assert set(retention.values()) == {"Retain"}


def test_tombstones_are_collected_from_all_volumes(tmp_path: Path) -> None:
    for number, place in enumerate(("troupe-worker-0", "volume")):
        (tmp_path / place / "data").mkdir(parents=True)
        file = tmp_path / place / "data" / "forgotten.jsonl"
        record_tombstone(file, Tombstone(number, "telegram:5"))
    with (tmp_path / "troupe-worker-0" / "data" / "forgotten.jsonl").open("a") as cut:
        cut.write('{"at": 7')
    shutil.copy(CHECKOUT / "tests" / "fake_kubectl.sh", tmp_path / "kubectl")
    environment = {"PATH": f"{tmp_path}:{os.defpath}", "CLUSTER": str(tmp_path)}
    collected = subprocess.run(
        _SOURCE / "forgotten.sh", check=True, capture_output=True, text=True, env=environment
    ).stdout

    first, cut_off, second = collected.splitlines()
    assert cut_off == '{"at": 7', "it is named at the restore, and hides no line of the next file"
    (tmp_path / "all").write_text(f"{first}\n{second}\n")
    assert [one.at for one in read_tombstones([tmp_path / "all"])] == [0, 1]
    reader = msgspec.yaml.decode((tmp_path / "pod.yaml").read_bytes())["spec"]
    [worker] = manifests("StatefulSet").values()
    [container] = reader["containers"]
    asked = worker["spec"]["template"]["spec"]
    assert reader["securityContext"] == asked["securityContext"], "else it may not read the file"
    assert container["image"] == "troupe:9"
    assert container["securityContext"] == container_of(worker)["securityContext"]
    [volume] = reader["volumes"]
    assert volume["persistentVolumeClaim"] == {"claimName": "data-troupe-worker-1"}
    assert (tmp_path / "asked").read_text().split() == [
        *("wait", "pod/read-data-troupe-worker-1"),
        *("delete", "-l"),
    ]


if __name__ == "__main__":
    _BUILT.write_text(build())
