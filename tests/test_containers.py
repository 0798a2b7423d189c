"""Dockerfile and docker-compose.yml without a Docker daemon: linted, validated, and the commands of `stillhouse up`."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from compose_spec import PyCompose

from app.core.settings import ServiceSettings
from app.service import children

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def compose() -> Mapping[str, Any]:
    """docker-compose.yml with the defaults of its variables."""
    text = (ROOT / "docker-compose.yml").read_text()
    return yaml.safe_load(re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", text))


def dockerfile_commands() -> Mapping[str, list[str]]:
    """The CMD of each stage, by the stage's name."""
    text = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")
    stages = re.split(r"^FROM \S+ AS (\w+)$", text, flags=re.MULTILINE)[1:]
    found = {}
    for name, body in zip(stages[::2], stages[1::2], strict=True):
        if command := re.search(r"^CMD (\[.*\])$", body, flags=re.MULTILINE):
            found[name] = json.loads(command[1])
    return found


def environment_of(compose: Mapping[str, Any], name: str) -> Mapping[str, str]:
    """What a worker's container adds to the environment, by image and by compose file; empty for the others."""
    service = compose["services"].get(f"worker-{name}")
    if service is None:
        return {}
    image = re.search(r"^ENV (TQDM_DISABLE.*)$", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE)
    assert image is not None
    return dict(pair.split("=") for pair in image[1].split()) | service["environment"]


def test_dockerfile_is_clean() -> None:
    hadolint = Path(sys.executable).with_name("hadolint")
    result = subprocess.run([hadolint, "--no-color", ROOT / "Dockerfile"], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


def test_compose_file_follows_the_specification(compose: Mapping[str, Any]) -> None:
    parsed = PyCompose.from_json(json.dumps(compose))
    parsed.validate()
    assert set(parsed.to_spec().services) == set(compose["services"])


def test_every_dependency_and_volume_exists(compose: Mapping[str, Any]) -> None:
    services = compose["services"]
    for service in services.values():
        needed = service.get("depends_on", {})
        assert set(needed) <= set(services)
        assert {volume.partition(":")[0] for volume in service.get("volumes", [])} <= set(compose["volumes"])
        waited_for = [name for name, how in needed.items() if how["condition"] == "service_healthy"]
        assert all("healthcheck" in services[name] or name == "api" for name in waited_for)  # the API's is in its image


def test_containers_run_what_up_runs(compose: Mapping[str, Any]) -> None:
    """The same commands, but for the way to name the interpreter and for addresses."""
    commands = dockerfile_commands()
    containers = {
        "api": commands["api"],
        "ui": commands["ui"],
        "training": commands["worker"],
        "comparing": compose["services"]["worker-comparing"]["command"],
    }
    for child in children(ServiceSettings(host="0.0.0.0", api_port=8000)):
        command = list(child.command)
        assert command[:2] == [sys.executable, "-m"]
        expected = ["python", "-m", *command[2:]] if child.name == "ui" else command[2:]
        assert containers[child.name] == expected, child.name
        assert child.environment.items() <= environment_of(compose, child.name).items()


def test_only_the_worker_reserves_a_gpu_and_nothing_is_public(compose: Mapping[str, Any]) -> None:
    reserving = {name for name, service in compose["services"].items() if "deploy" in service}
    assert reserving == {"worker-training"}
    ports = [port for service in compose["services"].values() for port in service.get("ports", [])]
    assert all(port.startswith("127.0.0.1:") for port in ports)
