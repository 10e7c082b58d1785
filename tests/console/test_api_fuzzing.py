"""Requests that schemathesis derives from the OpenAPI document get documented responses.

TROUPE_TEST_FUZZED_EXAMPLES sets the number of requests per operation (default 100).
"""

import asyncio
import os
import sys
from pathlib import Path

import pytest

from tests.platforms.web.channel import write_settings
from tests.support.console import MARLOWE, NORA, opened

_TOKEN = "fuzzed-console-token-of-every-scope"
_EXAMPLES = os.environ.get("TROUPE_TEST_FUZZED_EXAMPLES", "100")  # noqa: TID251
_CHECKS = (
    *("not_a_server_error", "status_code_conformance", "content_type_conformance"),
    *("response_schema_conformance", "ignored_auth"),
)


@pytest.mark.soak
@pytest.mark.timeout(3600)
async def test_api_responses_match_the_openapi_document(tmp_path: Path) -> None:
    console = {"port": 0, "token": _TOKEN}
    settings = write_settings(tmp_path, [NORA, MARLOWE], console=console)
    folder = tmp_path / "schemathesis"  # where it leaves what it has learned
    folder.mkdir()
    async with opened(settings) as playground:
        await playground.open()
        author = f"web:{(await playground.read_channel()).channel.people[0].name}"
        await playground.say("hello", "00000000", author)
        await playground.answered(2)
        process = await asyncio.create_subprocess_exec(
            *(Path(sys.executable).with_name("schemathesis"), "run"),
            f"{playground.address}/api/v1/openapi.json",
            *("--header", f"Authorization: Bearer {_TOKEN}"),
            *("--checks", ",".join(_CHECKS), "--max-examples", _EXAMPLES),
            *("--continue-on-failure", "--request-timeout", "60", "--no-color"),
            cwd=folder,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        output, _ = await process.communicate()

    assert process.returncode == 0, output.decode()[-20_000:]
