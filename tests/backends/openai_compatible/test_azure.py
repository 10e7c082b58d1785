"""Azure OpenAI works with the addresses that people copy from the Azure portal."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bot.backends.openai_compatible.backend import OpenAICompatibleBackend
from bot.backends.openai_compatible.settings import OpenAISettings
from bot.cli.app import app
from bot.errors import SettingsError
from bot.settings import read_settings
from tests.backends.asking import ask, prompt
from tests.rigs.fake_openai import DONE, STOP, FakeOpenAI, Script, chunk, event, said

ADDRESSES = json.loads(Path(__file__).with_name("azure.json").read_text("utf-8"))


@pytest.mark.parametrize(("pasted", "version", "path", "models"), ADDRESSES["pasted"])
async def test_pasted_azure_url_reaches_the_deployment(
    pasted: str, version: str | None, path: str, models: str | None
) -> None:
    async with FakeOpenAI() as service:
        given = {
            "base_url": service.base_url.removesuffix("/v1") + pasted,
            "api_key": "az-1",
            "model": None if "my-gpt" in pasted else "my-gpt",
            "api_version": version,
        }
        settings = OpenAISettings.model_validate(given).with_defaults("azure_openai")
        backend = OpenAICompatibleBackend(settings, "azure_openai")
        service.plays(Script(service.well))
        answer = await ask(backend, prompt(model="default", max_output_tokens=5))
        checked = await backend.check_models(["default"])
        await backend.close()
    [sent] = service.log
    assert answer.text == "Hello there"
    assert sent["path"] == path
    assert sent["headers"]["api-key"] == "az-1"
    assert "authorization" not in sent["headers"]
    assert (sent["body"]["model"], sent["body"]["max_completion_tokens"]) == ("my-gpt", 5)
    assert models is None or service.listed == [(models, "az-1")]
    assert checked.startswith("answers at ")


@pytest.mark.parametrize(("provider", "address", "base_url"), ADDRESSES["hosts"])
def test_azure_hosts_are_recognized(provider: str, address: str | None, base_url: str) -> None:
    given = OpenAISettings.model_validate({"base_url": address, "api_key": "k"})
    completed = given.with_defaults(provider)
    assert completed.base_url == base_url
    assert completed.is_azure is (provider != "groq")


FILTERED: dict[str, object] = {
    "index": 0,
    "finish_reason": None,
    "content_filter_results": {"hate": {}},
}


async def test_content_filter_chunks_are_not_part_of_the_answer() -> None:
    of_prompt = event({"id": "", "choices": [], "prompt_filter_results": [{"prompt_index": 0}]})
    of_answer = event({"id": "", "choices": [{**FILTERED, "content_filter_offsets": {}}]})
    async with FakeOpenAI() as service:
        given = {"base_url": service.base_url.removesuffix("/v1"), "api_key": "az-1"}
        settings = OpenAISettings.model_validate(given).with_defaults("azure_openai")
        backend = OpenAICompatibleBackend(settings, "azure_openai")
        service.plays([of_prompt + said("Hel") + of_answer + said("lo") + STOP + of_answer + DONE])
        service.plays([of_prompt + said("Hel") + chunk(finish="content_filter") + DONE])
        whole, stopped = await ask(backend), await ask(backend)
        await backend.close()
    assert (whole.text, whole.error) == ("Hello", None)
    assert stopped.finish is not None
    assert (stopped.text, stopped.finish.reason) == ("Hel", "content_filter")


def test_missing_address_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = "has no address; set TROUPE_PROVIDERS__AZURE_OPENAI__BASE_URL"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TROUPE_PROVIDERS__AZURE_OPENAI__API_KEY", "k")
    with pytest.raises(SettingsError, match=problem):
        read_settings()
    result = CliRunner().invoke(app, ["check"])
    assert (result.exit_code, problem in result.output) == (1, True)
