"""Only the operator configures MCP servers; presets refer to them by name."""

import json
import sys
from pathlib import Path

import pytest

from bot.errors import PresetError, SettingsError
from bot.prompting.presets.preset import Preset
from bot.service.backends import add_backends, find_tool_problems
from bot.settings import collect_secrets, read_settings
from bot.templates.renderer import Renderer
from bot.tool_servers.factory import make_tool_servers
from bot.tool_servers.mcp_server import tool_name_for_models


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def preset(provider: str = "service", **given: object) -> Preset:
    return Preset.model_validate({"name": "a", "provider": provider, "model": "m", **given})


def test_servers_are_read_from_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TROUPE_MCP_SERVERS__FILES__COMMAND", "uvx 'mcp server' --root /srv")
    monkeypatch.setenv("TROUPE_MCP_SERVERS__FILES__ENVIRONMENT", '{"KEY": "hidden-1"}')
    monkeypatch.setenv("TROUPE_MCP_SERVERS__FILES__TOOLS", "read, search")
    monkeypatch.setenv("TROUPE_MCP_SERVERS__WEB__URL", "http://127.0.0.1:9/mcp")
    monkeypatch.setenv("TROUPE_MCP_SERVERS__WEB__TOKEN", "hidden-2")
    settings = read_settings()
    files, web = settings.mcp_servers["files"], settings.mcp_servers["web"]
    assert files.command == ("uvx", "mcp server", "--root", "/srv")
    assert files.tools == ("read", "search")
    assert web.url == "http://127.0.0.1:9/mcp"
    assert {"hidden-1", "hidden-2"} <= collect_secrets(settings)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"files": {}}, "set either __COMMAND or __URL"),
        ({"files": {"command": "a", "url": "http://x/"}}, "set either __COMMAND or __URL"),
        ({"files": {"command": "a", "token": "t"}}, "__TOKEN works only with __URL"),
        ({"files": {"command": "'a"}}, "cannot be read as a command line"),
        ({"files": {"command": ""}}, "TROUPE_MCP_SERVERS__FILES__COMMAND"),
        ({"files": {"commands": "a"}}, "did you mean TROUPE_MCP_SERVERS__FILES__COMMAND?"),
        ({"files": {"url": "http://169.254.169.254/"}}, "is a link-local address"),
        ({"files": {"command": "a", "environment": "x"}}, "write JSON"),
        ({"$(id)": {"command": "a"}}, "letters, digits"),
    ],
)
def test_invalid_settings_are_reported(given: object, said: str) -> None:
    with pytest.raises(SettingsError) as caught:
        read_settings(mcp_servers=given)
    assert said in str(caught.value)


def test_preset_can_use_only_servers_listed_by_the_operator() -> None:
    settings = read_settings(
        mcp_servers={"files": {"command": "a"}}, providers={"service": {"base_url": "http://x/v1"}}
    )
    assert find_tool_problems(preset(mcp_servers=["files"]), settings) == []
    one = preset(mcp_servers=["shell"])
    with pytest.raises(PresetError, match=r"no MCP server 'shell' is set up \(known: files\)"):
        add_backends({}, settings, [one], Renderer())


@pytest.mark.parametrize("given", [{"command": "sh"}, {"url": "http://evil/"}])
def test_preset_cannot_define_a_server(given: object) -> None:
    with pytest.raises(ValueError, match="mcp_servers"):
        preset(mcp_servers=[given])


@pytest.mark.parametrize("given", [{"tools": ["dice"]}, {"mcp_servers": ["files"]}])
def test_models_without_tool_support_are_reported_at_validation(given: dict[str, object]) -> None:
    settings = read_settings(
        mcp_servers={"files": {"command": "a"}}, providers={"echo": {"kind": "echo"}}
    )
    [problem] = find_tool_problems(preset("echo", **given), settings)
    assert "models of the provider 'echo' (kind echo) cannot call tools" in problem
    assert find_tool_problems(preset("echo"), settings) == []
    assert find_tool_problems(preset("local", **given), settings) == []


def test_missing_package_is_reported_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = read_settings(mcp_servers={"files": {"command": "a"}})
    monkeypatch.setitem(sys.modules, "mcp", None)
    monkeypatch.delitem(sys.modules, "bot.tool_servers.mcp_server", raising=False)
    with pytest.raises(SettingsError, match=r"pip install 'troupe-bot\[mcp\]'"):
        make_tool_servers(settings.mcp_servers, settings.data_dir)
    assert make_tool_servers({}, settings.data_dir) == {}


def test_offered_tool_names_are_valid_for_providers() -> None:
    assert tool_name_for_models("files", "read") == "files_read"
    assert tool_name_for_models("files", "read file/名") == "files_read_file__"
    assert tool_name_for_models("files", "x" * 64) is None
    assert tool_name_for_models("files", "") is None
    assert json.dumps(tool_name_for_models("a-b", "c.d")) == '"a-b_c_d"'
