"""Schemas, references and manners of what lies in deploy/."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import promql_parser
import pytest

from tests.deploy.files import DEPLOY, OUR_METRIC, UNITS, example_environment, expressions, load, manifests, unit
from weightsync.config import Settings

CUSTOM = {"PodMonitor"}  # its schema is the Prometheus operator's
OURS = "app.kubernetes.io/name"


def tool(name):
    found = shutil.which(name, path=str(Path(sys.executable).parent))
    if found is None:
        pytest.skip(f"{name} is not installed on this platform")
    return found


def workloads():
    return [one for one in manifests() if one["kind"] in ("Deployment", "DaemonSet")]


def pods():
    return [(one["metadata"]["name"], one["spec"]["template"]["spec"]) for one in workloads()]


def test_manifests_follow_the_schemas_of_kubernetes():
    import kubernetes_validate

    version = kubernetes_validate.latest_version()
    for one in manifests():
        if one["kind"] not in CUSTOM:
            kubernetes_validate.validate(one, version, strict=True)


def test_the_schema_check_notices_a_wrong_field():
    import kubernetes_validate

    one = next(one for one in manifests() if one["kind"] == "DaemonSet")
    one["spec"]["template"]["spec"]["containers"][0]["readOnlyRootFilesystem"] = True  # it belongs into securityContext
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(one, kubernetes_validate.latest_version(), strict=True)


def test_the_compose_file_follows_its_schema():
    command = [tool("check-jsonschema"), "--builtin-schema", "vendor.compose-spec", DEPLOY / "compose.yaml"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_dockerfile_has_no_finding():
    done = subprocess.run([tool("hadolint"), "--no-color", DEPLOY / "Dockerfile"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_selectors_find_pods_and_services_find_ports():
    labels = {one["metadata"]["name"]: one["spec"]["template"]["metadata"]["labels"] for one in workloads()}
    for one in workloads():
        assert one["spec"]["selector"]["matchLabels"].items() <= labels[one["metadata"]["name"]].items()
    ports = {port["name"] for _, pod in pods() for container in pod["containers"] for port in container["ports"]}
    for one in manifests():
        if one["kind"] == "Service":
            assert any(one["spec"]["selector"].items() <= found.items() for found in labels.values())
            assert {port["targetPort"] for port in one["spec"]["ports"]} <= ports
        if one["kind"] == "PodMonitor":
            assert all(one["spec"]["selector"]["matchLabels"].items() <= found.items() for found in labels.values())
            assert {endpoint["port"] for endpoint in one["spec"]["podMetricsEndpoints"]} <= ports
        if one["kind"] == "NetworkPolicy":
            chosen = one["spec"]["podSelector"].get("matchLabels", {})
            assert any(chosen.items() <= found.items() for found in labels.values())
            named = [port["port"] for rule in one["spec"].get("ingress", []) for port in rule["ports"]]
            assert set(named) <= ports


@pytest.mark.parametrize("name", [name for name, _ in pods()])
def test_pods_can_do_no_harm(name):
    pod = dict(pods())[name]
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in pod["containers"]:
        security = container["securityContext"]
        assert security["readOnlyRootFilesystem"]
        assert not security["allowPrivilegeEscalation"]
        assert security["capabilities"] == {"drop": ["ALL"]}
        assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
        assert container["livenessProbe"]["httpGet"]["path"] == "/healthz"
        mounts = {mount["name"] for mount in container["volumeMounts"]}
        assert mounts == {volume["name"] for volume in pod["volumes"]}


def test_secrets_come_by_reference_and_are_named_in_the_manual():
    text = json.dumps(manifests())
    names = set(re.findall(r'"secretName": "([^"]+)"', text)) | set(re.findall(r'"secretRef": {"name": "([^"]+)"', text))
    assert len(names) >= 4
    manual = (DEPLOY / "README.md").read_text()
    assert [name for name in names if name not in manual] == []
    assert not re.search(r'"(kind|stringData)": "?Secret', text)
    assert all(re.fullmatch(r"\$\{\w+:\?[^}]+\}", value) for value in re.findall(r"AWS_\w+: (.*)", (DEPLOY / "compose.yaml").read_text()))


def test_settings_that_are_given_exist():
    given = {variable for name in UNITS for variable in example_environment(name)}
    for _, pod in pods():
        given |= {one["name"] for container in pod["containers"] for one in container["env"]}
    given |= {line.partition("=")[0] for line in load("kubernetes/kustomization.yaml")["configMapGenerator"][0]["literals"]}
    given |= set(re.findall(r"WEIGHTSYNC_\w+(?==)", (DEPLOY / "Dockerfile").read_text()))
    given |= set(load("compose.yaml")["x-environment"]) - {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"}
    known = {f"WEIGHTSYNC_{field.upper()}" for field in Settings.model_fields}
    assert given - known == set()


@pytest.mark.parametrize("name", UNITS)
def test_units_notify_and_are_confined(name):
    found = unit(name)
    assert found["Type"] == ["notify"]
    for key in ("NoNewPrivileges", "ProtectHome", "PrivateTmp", "PrivateDevices", "RestrictNamespaces", "ProtectKernelModules"):
        assert found[key] == ["yes"], key
    assert (found["ProtectSystem"], found["CapabilityBoundingSet"], found["User"]) == (["strict"], [""], ["weightsync"])
    assert int(found["WatchdogSec"][0]) >= 10
    assert any(line.startswith("/etc/weightsync/") for line in found["EnvironmentFile"])


@pytest.mark.parametrize("name", UNITS)
def test_units_please_systemd(name, tmp_path):
    verify = shutil.which("systemd-analyze")
    if verify is None:
        pytest.skip("systemd-analyze is not here")
    path = tmp_path / f"weightsync-{name}.service"
    program = shutil.which("true")
    text = (
        (DEPLOY / "systemd" / path.name).read_text().replace("/usr/local/bin/weightsync", program).replace("User=weightsync", "User=root")
    )
    path.write_text(text.replace("Group=weightsync", "Group=root"))
    done = subprocess.run([verify, "verify", "--man=no", path], capture_output=True, text=True, check=False)
    assert [line for line in done.stderr.splitlines() if "weightsync" in line] == []


def test_images_can_be_named_and_no_registry_is():
    for path in DEPLOY.rglob("*"):
        if path.is_file() and path.suffix in (".yaml", "") and path.name != "README.md":
            for image in re.findall(r"^\s*(?:image:|FROM) +(\S+)", path.read_text(), re.MULTILINE):
                plain = re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", image)
                assert "." not in plain.split("/")[0], f"{path.name}: {image} names a registry"


@pytest.mark.parametrize(
    ("where", "expression"), list(expressions()), ids=lambda value: value if value.startswith(("alert", "panel")) else ""
)
def test_expressions_are_promql(where, expression):
    promql_parser.parse(expression.replace("$run", ".*"))
    assert OUR_METRIC.search(expression) or "process_" in expression, where


def test_alerts_say_what_to_do():
    for group in load("prometheus/alerts.yaml")["groups"]:
        for rule in group["rules"]:
            assert rule["annotations"].keys() == {"summary", "action"}, rule["alert"]
            assert rule["labels"]["severity"] in ("info", "warning", "critical")


def test_the_dashboard_can_be_imported():
    dashboard = json.loads((DEPLOY / "grafana" / "weightsync.json").read_text())
    assert dashboard["uid"] == "weightsync"
    numbers = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(numbers)) == len(numbers)
    taken = set()
    for panel in dashboard["panels"]:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        taken |= cells
        assert all(target["datasource"]["uid"] == "${datasource}" for target in panel.get("targets", []))
