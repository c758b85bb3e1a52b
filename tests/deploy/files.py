"""What lies in deploy/, read for tests."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

DEPLOY = Path(__file__).parents[2] / "deploy"
UNITS = ("serve", "publish", "subscribe")
OUR_METRIC = re.compile(r"\bweightsync_\w+")


def manifests() -> list[dict[str, Any]]:
    """All documents of the kustomization's resources."""
    kustomization = load("kubernetes/kustomization.yaml")
    paths = [DEPLOY / "kubernetes" / name for name in kustomization["resources"]]
    return [document for path in paths for document in yaml.safe_load_all(path.read_text())]


def load(name: str) -> Any:
    return yaml.safe_load((DEPLOY / name).read_text())


def unit(name: str) -> dict[str, list[str]]:
    """The keys of a systemd unit, with all their values."""
    found: dict[str, list[str]] = {}
    for line in (DEPLOY / "systemd" / f"weightsync-{name}.service").read_text().splitlines():
        key, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            found.setdefault(key, []).append(value)
    return found


def example_environment(name: str) -> dict[str, str]:
    """What weightsync.env.example says for a unit: the common lines, and those under "In NAME.env:"."""
    found, section = {}, ""
    for line in (DEPLOY / "systemd" / "weightsync.env.example").read_text().splitlines():
        if named := re.match(r"# In (\w+)\.env:", line):
            section = named[1]
        elif (given := re.match(r"(#   )?(WEIGHTSYNC_\w+)=(.*)", line)) and (not given[1] or section == name):
            found[given[2]] = given[3]
    return found


def expressions() -> Iterator[tuple[str, str]]:
    """(where, PromQL) of all panels and rules."""
    for group in load("prometheus/alerts.yaml")["groups"]:
        yield from ((f"alert {rule['alert']}", rule["expr"]) for rule in group["rules"])
    for panel in json.loads((DEPLOY / "grafana" / "weightsync.json").read_text())["panels"]:
        yield from ((f"panel {panel['title']}", target["expr"]) for target in panel.get("targets", []))
