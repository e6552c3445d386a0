"""What `deploy/` contains can be used: names of settings, loopback ports, users without privileges, a sound systemd unit."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from cli.arguments import build_parser
from store.settings import REPOSITORY, Settings

DEPLOY = REPOSITORY / "deploy"
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
#: Exposure that `systemd-analyze security` may find at most, in tenths.
MOST_EXPOSED = 20


def setting_names() -> set[str]:
    names = set()
    for field in Settings.model_fields.values():
        extra = field.json_schema_extra
        assert isinstance(extra, dict)
        names.add(str(extra["env"]))
    return names


def compose_names() -> set[str]:
    """Return the variables that the compose file itself reads."""
    return set(re.findall(r"\$\{(\w+)", (DEPLOY / "compose.yaml").read_text(encoding="utf-8")))


@pytest.mark.parametrize("profile", ["cpu", "local", "tinker"])
def test_a_profiles_example_names_settings(profile: str) -> None:
    lines = (DEPLOY / f"{profile}.env").read_text(encoding="utf-8").splitlines()
    given = {line.partition("=")[0] for line in lines if line and not line.startswith("#")}
    assert given
    assert given <= setting_names() | compose_names()
    assert "TELEGRAM_BOT_TOKEN" in given
    assert [name for name, service in SERVICES.items() if profile in service["profiles"]]


def test_our_services_give_settings_by_their_names() -> None:
    for name, service in SERVICES.items():
        if name.startswith("patina-"):
            assert set(service["environment"]) <= setting_names(), name


def test_ports_are_open_on_this_machine_only() -> None:
    published = [port for service in SERVICES.values() for port in service.get("ports", [])]
    assert published
    assert all(port.startswith("127.0.0.1:") for port in published)


def test_every_service_has_one_profile_and_every_volume_is_declared() -> None:
    for name, service in SERVICES.items():
        assert len(service["profiles"]) == 1, name
        for volume in service["volumes"]:
            assert volume.split(":")[0] in COMPOSE["volumes"], name


def test_openclaw_gets_what_its_setup_writes() -> None:
    setup, service = SERVICES["openclaw-setup"], SERVICES["openclaw"]
    arguments = build_parser().parse_args(
        [word.replace("${TELEGRAM_BOT_TOKEN:-}", "") for word in setup["command"]]
    )
    assert (arguments.command, arguments.write, arguments.telegram_token) == ("openclaw", True, "")
    aliases = SERVICES["patina-cpu"]["networks"]["default"]["aliases"]
    assert arguments.url == f"http://{aliases[0]}:{SERVICES['patina-cpu']['environment']['PROXY_PORT']}"
    assert SERVICES["patina-cpu"]["volumes"][0] in setup["volumes"]
    (folder,) = service["volumes"]
    assert folder in setup["volumes"]
    assert Path("/home/patina", arguments.config.relative_to("~").parent) == Path(folder.partition(":")[2])
    assert service["environment"]["OPENCLAW_STATE_DIR"] == folder.partition(":")[2]
    uid = re.search(r"--uid (\d+)", (DEPLOY / "Dockerfile").read_text(encoding="utf-8"))
    assert uid is not None
    assert service["user"] == uid[1]


def test_no_container_runs_as_root() -> None:
    dockerfile = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
    stages = re.findall(r"^FROM \S+ AS (\w+)", dockerfile, flags=re.MULTILINE)
    assert stages == ["build", "cpu", "cuda"]
    _, _, runtime = dockerfile.partition(" AS cpu")
    assert re.findall(r"^USER (\w+)", runtime, flags=re.MULTILINE) == ["patina"]
    for name, service in SERVICES.items():
        target = service.get("build", {}).get("target")
        assert target in ("cpu", "cuda") or service["user"] not in ("", "0", "root"), name


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_the_unit_is_valid_and_hardened(tmp_path: Path) -> None:
    text = (DEPLOY / "patina.service").read_text(encoding="utf-8")
    unit = tmp_path / "patina.service"
    unit.write_text(text.replace("/opt/patina/bin/patina", shutil.which("true") or ""), encoding="utf-8")
    for command in (["verify"], ["security", "--offline=true", f"--threshold={MOST_EXPOSED}"]):
        done = subprocess.run(
            ["systemd-analyze", *command, str(unit)], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(shutil.which("docker-compose") is None, reason="needs docker-compose")
@pytest.mark.parametrize("profile", ["cpu", "local", "tinker"])
def test_docker_compose_reads_every_profile(profile: str, tmp_path: Path) -> None:
    """Debian's docker-compose 1.29 reads no `name`, which came later; it checks everything else against its schema."""
    text = (DEPLOY / "compose.yaml").read_text(encoding="utf-8")
    folder = tmp_path / "deploy"
    folder.mkdir()
    (folder / "compose.yaml").write_text(
        re.sub(r"^name: .*\n", "", text, flags=re.MULTILINE), encoding="utf-8"
    )
    shutil.copy(DEPLOY / "Dockerfile", folder)
    shutil.copy(DEPLOY / f"{profile}.env", folder / ".env")
    done = subprocess.run(
        ["docker-compose", "-f", "compose.yaml", "--profile", profile, "--profile", "telegram", "config"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = yaml.safe_load(done.stdout)["services"]
    assert {"openclaw", "openclaw-setup"} < set(found)
    given = dict(
        line.split("=", 1)
        for line in (DEPLOY / f"{profile}.env").read_text(encoding="utf-8").splitlines()
        if "=" in line and not line.startswith("#")
    )
    ours = next(service for name, service in found.items() if name.startswith("patina-"))
    assert given.items() <= {key: str(value) for key, value in ours["environment"].items()}.items()
