"""Checks of deploy/kubernetes that need no cluster: what it shares with compose.yaml, Settings and Ray.

They do not replace the schemas of Kubernetes and KubeRay.
"""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from service.settings import unknown_variables
from tests.support.ray_hosts.cluster import FAST_FAILURES
from tests.test_docker import BUILT, SERVICES

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "deploy" / "kubernetes"
KUSTOMIZATION: dict[str, Any] = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())
DOCUMENTS: list[dict[str, Any]] = [
    each for name in KUSTOMIZATION["resources"] for each in yaml.safe_load_all((FOLDER / name).read_text())
]
SECRETS: list[dict[str, Any]] = list(yaml.safe_load_all((FOLDER / "secrets.example.yaml").read_text()))
MAKE_SANDBOXES = {"worker", "head", "gpus"}
READ_DATABASES = {"migrate", "api", "sweeper", "worker"}
TRUSTED_PLACES = {"emptyDir", "persistentVolumeClaim"}


def find(kind: str, name: str) -> dict[str, Any]:
    """The only document of this kind and name."""
    (found,) = [each for each in DOCUMENTS if (each["kind"], each["metadata"]["name"]) == (kind, name)]
    return found


RAY = find("RayCluster", "grpo-ray")["spec"]
PODS: dict[str, dict[str, Any]] = {
    **{
        each["metadata"]["name"]: each["spec"]["template"]
        for each in DOCUMENTS
        if each["kind"] in ("Deployment", "Job")
    },
    "head": RAY["headGroupSpec"]["template"],
    **{group["groupName"]: group["template"] for group in RAY["workerGroupSpecs"]},
}


def containers(pod: str) -> list[dict[str, Any]]:
    spec = PODS[pod]["spec"]
    return [*spec.get("initContainers", []), *spec["containers"]]


def container(pod: str) -> dict[str, Any]:
    """The pod's only container that is no sidecar."""
    (found,) = PODS[pod]["spec"]["containers"]
    return dict(found)


def variables(one: dict[str, Any]) -> Iterator[str]:
    """Names of a container's variables, as far as the repository has them."""
    yield from (each["name"] for each in one.get("env", []))
    for source in one.get("envFrom", []):
        ((kind, reference),) = source.items()
        named = (each for each in [*DOCUMENTS, *SECRETS] if each["metadata"]["name"] == reference["name"])
        (found,) = [
            each for each in named if each["kind"] == ("Secret" if kind == "secretRef" else "ConfigMap")
        ]
        yield from found["stringData" if kind == "secretRef" else "data"]


def test_every_file_is_part_of_the_kustomization_except_the_example_of_secrets() -> None:
    files = {path.name for path in FOLDER.glob("*.yaml")}
    assert files - set(KUSTOMIZATION["resources"]) == {"kustomization.yaml", "secrets.example.yaml"}
    assert "/deploy/kubernetes/secrets.yaml" in (ROOT / ".gitignore").read_text().splitlines()


def test_the_deployment_has_the_processes_of_compose_and_ray_nodes() -> None:
    assert set(PODS) == {"migrate", "api", "sweeper", "worker", "head", "gpus"}


@pytest.mark.parametrize(
    ("pod", "service"),
    [("migrate", "migrate"), ("api", "api"), ("sweeper", "maintenance"), ("worker", "worker")],
)
def test_image_and_command_are_those_of_compose(pod: str, service: str) -> None:
    one = container(pod)
    assert (one["image"], one["command"]) == (SERVICES[service]["image"], SERVICES[service]["command"])


def test_all_images_are_built_here() -> None:
    assert {one["image"] for pod in PODS for one in containers(pod)} == set(BUILT)


def test_every_variable_belongs_to_a_setting() -> None:
    names = {name for pod in PODS for one in containers(pod) for name in variables(one)}
    assert {"GRPO_DATABASE_URL", "GRPO_STORAGE_URL", "GRPO_LAUNCHER"} <= names
    assert unknown_variables(names) == []
    assert {name.split("_")[0] for name in names} == {"GRPO", "AWS", "RAY"}


def test_secrets_have_no_values() -> None:
    assert {value for secret in SECRETS for value in secret["stringData"].values()} == {""}
    stated = [each for pod in PODS for one in containers(pod) for each in one.get("env", [])]
    assert {each["name"] for each in stated if "valueFrom" in each} == {"RAY_AUTH_TOKEN"}
    assert not [each for each in stated if "TOKEN" in each["name"] and "value" in each]


def test_hosts_of_engines_get_no_database() -> None:
    has_database = {pod for pod in PODS if "GRPO_DATABASE_URL" in variables(container(pod))}
    assert has_database == READ_DATABASES
    (sidecar,) = PODS["worker"]["spec"]["initContainers"]
    assert "GRPO_DATABASE_URL" not in variables(sidecar)


@pytest.mark.parametrize("pod", PODS)
def test_a_pod_is_allowed_by_the_restricted_pod_security_standard(pod: str) -> None:
    spec = PODS[pod]["spec"]
    security = spec["securityContext"]
    assert (security["runAsNonRoot"], security["runAsUser"]) == (True, 10001)
    kind = "Localhost" if pod in MAKE_SANDBOXES else "RuntimeDefault"
    assert security["seccompProfile"]["type"] == kind
    assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys()
    for volume in spec.get("volumes", []):
        assert volume.keys() - {"name"} <= TRUSTED_PLACES
    for one in containers(pod):
        assert one["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        }


@pytest.mark.parametrize("pod", PODS)
def test_a_pod_gets_neither_an_account_nor_variables_of_services(pod: str) -> None:
    spec = PODS[pod]["spec"]
    assert (spec["automountServiceAccountToken"], spec["enableServiceLinks"]) == (False, False)


def test_namespace_and_its_pod_security_are_those_that_the_component_changes() -> None:
    labels = find("Namespace", KUSTOMIZATION["namespace"])["metadata"]["labels"]
    assert labels == {"pod-security.kubernetes.io/enforce": "restricted"}
    patches = yaml.safe_load((FOLDER / "apparmor" / "kustomization.yaml").read_text())["patches"]
    targets = [(each["target"]["kind"], each["target"]["name"]) for each in patches]
    assert targets == [("Namespace", "grpo"), ("Deployment", "worker"), ("RayCluster", "grpo-ray")]
    changed = [operation for each in patches[1:] for operation in yaml.safe_load(each["patch"])]
    assert len(changed) == len(MAKE_SANDBOXES)
    for operation in changed:
        assert operation["path"].endswith("/template/spec/securityContext/appArmorProfile")
        assert operation["value"] == {"type": "Unconfined"}


def test_probes_are_those_of_compose() -> None:
    api, worker = container("api"), container("worker")
    assert api["readinessProbe"]["httpGet"]["path"] in SERVICES["api"]["healthcheck"]["test"][-1]
    assert api["livenessProbe"]["httpGet"]["path"] == "/livez"
    checked = SERVICES["worker"]["healthcheck"]
    assert worker["livenessProbe"]["exec"]["command"] == checked["test"][1:]
    assert f"{worker['livenessProbe']['periodSeconds']}s" == checked["interval"]
    assert f"{worker['livenessProbe']['initialDelaySeconds']}s" == checked["start_period"]
    grace = PODS["worker"]["spec"]["terminationGracePeriodSeconds"]
    assert f"{grace}s" == SERVICES["worker"]["stop_grace_period"]


def test_the_worker_is_a_ray_node_without_resources_until_its_last_checkpoint() -> None:
    spec = PODS["worker"]["spec"]
    (node,) = spec["initContainers"]
    # a sidecar: it starts before the worker and ends after it
    assert node["restartPolicy"] == "Always"
    assert node["command"][:3] == ["ray", "start", "--block"]
    assert {"--num-cpus=0", "--num-gpus=0"} <= set(node["command"])
    # a driver looks for its node's process and then for the node's sockets
    assert spec["shareProcessNamespace"]
    shared = {each["mountPath"] for each in node["volumeMounts"]}
    assert {"/tmp/ray", "/dev/shm"} <= shared
    assert node["volumeMounts"] == container("worker")["volumeMounts"]


def test_all_ray_nodes_have_the_same_head_version_and_token() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (required,) = [each for each in extras["ray"] if each.startswith("ray>=")]
    assert RAY["rayVersion"].startswith(required.removeprefix("ray>=").split(",")[0])
    (node,) = PODS["worker"]["spec"]["initContainers"]
    given = {each["name"]: each.get("value") for each in container("worker")["env"]}
    # KubeRay names the head's service after the cluster
    assert given["RAY_ADDRESS"] == "grpo-ray-head-svc:6379"
    assert f"--address={given['RAY_ADDRESS']}" in node["command"]
    for one in (node, container("worker"), container("head"), container("gpus")):
        token = [each for each in one["env"] if each["name"].startswith("RAY_AUTH")]
        assert token[0] == {"name": "RAY_AUTH_MODE", "value": "token"}
        assert token[1]["valueFrom"]["secretKeyRef"] == {"name": "grpo-ray", "key": "auth_token"}


def test_ray_notices_a_lost_host_by_the_same_settings_as_in_the_tests() -> None:
    data = find("ConfigMap", "grpo-ray")["data"]
    timings = {name: int(value) for name, value in data.items() if name in FAST_FAILURES}
    # the tests wait for each loss, so they use shorter times
    assert all(timings[name] >= int(value) for name, value in FAST_FAILURES.items())
    guide = (ROOT / "docs" / "scale.md").read_text()
    assert all(f"{name}={value}" in guide for name, value in timings.items())


def test_only_ray_nodes_reach_ray_nodes() -> None:
    selector = {"matchLabels": {"grpo-ray-node": "true"}}
    policy = find("NetworkPolicy", "ray-nodes")["spec"]
    assert (policy["podSelector"], policy["policyTypes"]) == (selector, ["Ingress"])
    assert policy["ingress"] == [{"from": [{"podSelector": selector}]}]
    labelled = {pod for pod in PODS if "grpo-ray-node" in PODS[pod].get("metadata", {}).get("labels", {})}
    assert labelled == MAKE_SANDBOXES


def test_the_seccomp_profile_is_named_alike_and_explained() -> None:
    profiles = {
        PODS[pod]["spec"]["securityContext"]["seccompProfile"]["localhostProfile"] for pod in MAKE_SANDBOXES
    }
    assert profiles == {"grpo.json"}
    assert "/var/lib/kubelet/seccomp/grpo.json" in (ROOT / "docs" / "scale.md").read_text()


def test_the_workers_image_contains_ray() -> None:
    dockerfile = (ROOT / "docker" / "worker.Dockerfile").read_text()
    extras = re.search(r'"\.\[(.*)\]"', dockerfile)
    assert extras is not None
    assert {"worker", "ray", "engine"} <= set(extras[1].split(","))
