"""Test deploy/compose*.yaml: services match each other, and containers have few privileges."""

from configparser import ConfigParser
from typing import Any

import msgspec
import pytest
from sqlalchemy import make_url

from bot.service.options import ALL_ROLES
from bot.storage.postgres import MAX_CONNECTIONS
from tests.checkout import CHECKOUT

_DEPLOY = CHECKOUT / "deploy"
_CONNECTIONS_OF_THE_SERVER = 100
"""PostgreSQL's default limit; three of these are reserved for the superuser."""


def read_services(name: str) -> dict[str, Any]:
    services: dict[str, Any] = msgspec.yaml.decode((_DEPLOY / name).read_bytes())["services"]
    return services


def test_every_role_runs_and_reaches_the_database_through_the_pooler() -> None:
    services = read_services("compose.many.yaml")
    roles = {name: services[name] for name in ALL_ROLES}
    for role, service in roles.items():
        assert service["command"] == ["run", "--role", role]
        url = make_url(service["environment"]["TROUPE_DATABASE_URL"].replace(":?", ""))
        assert url.query == {"pgbouncer": "true"}
        assert service["depends_on"] == {
            url.host: {"condition": "service_healthy"},
            "valkey": {"condition": "service_healthy"},
        }
        assert url.host == "pgbouncer"
    assert set(services) - set(roles) == {"pgbouncer", "postgres", "valkey"}


def test_pooler_uses_fewer_connections_than_the_server_allows() -> None:
    parser = ConfigParser(interpolation=None)
    parser.read(_DEPLOY / "pgbouncer.ini")
    settings = parser["pgbouncer"]
    assert settings["pool_mode"] == "transaction"
    assert int(settings["default_pool_size"]) < _CONNECTIONS_OF_THE_SERVER - 3
    services = read_services("compose.many.yaml")
    replicas = sum(services[role].get("deploy", {}).get("replicas", 1) for role in ALL_ROLES)
    assert int(settings["max_client_conn"]) > 4 * replicas * MAX_CONNECTIONS
    assert parser["databases"]["troupe"].split()[0] == "host=postgres"
    listens = f"/dev/tcp/127.0.0.1/{settings['listen_port']}"
    assert listens in services["pgbouncer"]["healthcheck"]["test"][-1]


@pytest.mark.parametrize("name", ["compose.yaml", "compose.many.yaml"])
def test_our_containers_run_with_few_privileges(name: str) -> None:
    built = [one for one in read_services(name).values() if "build" in one]
    assert built
    for service in built:
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        folder = _DEPLOY / service["build"]["context"]
        dockerfile = (folder / service["build"]["dockerfile"]).read_text()
        assert "\nUSER 10001\n" in dockerfile


@pytest.mark.parametrize("name", ["compose.yaml", "compose.many.yaml"])
def test_container_can_import_cards_and_reach_the_host(name: str) -> None:
    for service in read_services(name).values():
        if service["image"] == "troupe":
            assert service["extra_hosts"] == ["host.docker.internal:host-gateway"]
            assert "../presets:/srv/troupe/presets" in service["volumes"]
