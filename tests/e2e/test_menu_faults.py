"""Menus, forms and albums on Discord around a 429, a failure, a lost response and a kill."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest
import pytest_asyncio
from simcord.enums import ComponentType

from tests.e2e.child_launcher import running_launcher
from tests.e2e.loopback_platforms import Conversation, LoopbackPlatforms
from tests.e2e.model_server import ModelServer
from tests.e2e.service_process import ServiceProcess
from tests.e2e.shown_messages import ShownMessages
from tests.e2e.transcript_checker import expected_answer
from tests.e2e.waiting import wait_until
from tests.media.file_samples import picture

pytestmark = [pytest.mark.service, pytest.mark.asyncio(loop_scope="module")]

LOST: dict[str, Any] = {"drop": True, "after": True}
ACKNOWLEDGE = ("POST", "/interactions/*")
RESPOND = ("PATCH", "/webhooks/*/messages/@original")
TELL = ("POST", "/channels/*/messages")
FAULTS: dict[str, tuple[tuple[str, str], dict[str, Any]]] = {
    "acknowledgement 429": (ACKNOWLEDGE, {"retry_after": 1}),
    "acknowledgement failed": (ACKNOWLEDGE, {"status": 500}),
    "acknowledgement lost": (ACKNOWLEDGE, LOST),
    "response 429": (RESPOND, {"retry_after": 1}),
    "response lost": (RESPOND, LOST),
    "message 429": (TELL, {"retry_after": 1}),
    "message lost": (TELL, LOST),
}
TOLD = "Changed by admin: nova answers here from now on."
CHOSEN = "Who answers here: nova (chosen for this channel)"


@dataclass
class Deployment:
    """Channels of Discord whose next request of one kind fails."""

    platforms: LoopbackPlatforms
    model: ModelServer
    service: ServiceProcess
    shown: ShownMessages

    def open(self) -> tuple[Any, Conversation]:
        """Return a new channel, for commands and for what everybody reads there."""
        channel = self.platforms.guild.create_text_channel(f"c{len(self.platforms.discord.log)}")
        return channel, Conversation(f"discord:{channel.id}", "", print, print)

    def disturb(self, fault: str) -> None:
        (method, path), how = FAULTS[fault]
        self.platforms.discord.fault(method, path, times=1, **how)

    async def menu(self, channel: Any, command: str) -> Any:
        """Open a menu as an admin; returns the result of the command."""
        result = await self.platforms.admin.slash(channel, command)
        await wait_until(lambda: result.response and result.response.components)
        return result

    async def choose_nova(self, menu: Any) -> None:
        rows = [row["components"][0] for row in menu.response.components]
        [listed] = [one for one in rows if one["type"] == ComponentType.STRING_SELECT]
        [value] = [one["value"] for one in listed["options"] if one["label"] == "nova"]
        await self.platforms.admin.select(menu.response, [value], custom_id=listed["custom_id"])


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def deployment(
    platforms: LoopbackPlatforms, model: ModelServer, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Deployment]:
    async with running_launcher() as launcher:
        folder = tmp_path_factory.mktemp("service")
        service = ServiceProcess(folder, platforms, model, launcher)
        service.settings["TROUPE_PROVIDERS__TEST__SEES"] = "images"
        await service.start_and_wait()
        yield Deployment(platforms, model, service, ShownMessages(platforms))
        await service.kill()


@pytest.mark.parametrize("fault", FAULTS)
async def test_choice_is_shown_and_told_once(deployment: Deployment, fault: str) -> None:
    channel, where = deployment.open()
    menu = await deployment.menu(channel, "preset menu")
    deployment.disturb(fault)
    await deployment.choose_nova(menu)
    await wait_until(lambda: menu.response.content.startswith(CHOSEN))
    await wait_until(lambda: deployment.shown.texts(where) == [TOLD])


@pytest.mark.parametrize("fault", [one for one in FAULTS if not one.startswith("message")])
async def test_native_command_is_answered_in_public_once(
    deployment: Deployment, fault: str
) -> None:
    channel, where = deployment.open()
    deployment.disturb(fault)
    result = await deployment.platforms.admin.slash(channel, "preset use", name="nova")
    await wait_until(lambda: result.response and result.response.content)
    assert not result.ephemeral
    await wait_until(
        lambda: deployment.shown.texts(where) == ["nova answers here from now on."], 20
    )


@pytest.mark.parametrize("fault", [one for one in FAULTS if not one.startswith("message")])
async def test_form_is_opened_and_followed(deployment: Deployment, fault: str) -> None:
    channel, _ = deployment.open()
    admin, menu = deployment.platforms.admin, await deployment.menu(channel, "settings menu")
    form = await admin.click(menu.response, label="✏ About me")
    await wait_until(lambda: form.modal)
    deployment.disturb(fault)
    await admin.submit_modal(form, {"text": "I am a tall knight"})
    described = "How you describe yourself: chosen for this channel"
    await wait_until(lambda: described in menu.response.content)


@pytest.mark.parametrize("point", ["before_finish", "after_finish", "after_http"])
async def test_choice_before_a_kill_is_shown_and_told_once(
    deployment: Deployment, point: str
) -> None:
    channel, where = deployment.open()
    menu = await deployment.menu(channel, "preset menu")
    async with deployment.service.killed_at(point):
        await deployment.choose_nova(menu)
    await wait_until(lambda: menu.response.content.startswith(CHOSEN))
    await wait_until(lambda: deployment.shown.texts(where) == [TOLD])


async def test_album_is_answered_once_although_the_service_is_killed(
    deployment: Deployment,
) -> None:
    where, wire = deployment.platforms.channel(), deployment.platforms.discord
    channel = int(where.name.removeprefix("discord:"))
    files = [("a.png", picture(40, 20)), ("b.png", picture(20, 40)), ("c.txt", b"three")]
    async with deployment.service.killed_at("during_generation"):
        person = deployment.platforms.people[0]
        wire.say(person, channel, f"{where.mention}compare Tee01:12", files=files)
    await wait_until(lambda: deployment.shown.texts(where) == [expected_answer("Tee01:12")])
    content = deployment.model.requests[-1]["messages"][-1]["content"]
    assert [one["type"] for one in content] == ["text", "image_url", "image_url"]
    assert "> three" in str(content)
