"""Files that people send on both platforms, with the service as a process."""

import base64
import io
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest
import pytest_asyncio
from PIL import Image

from tests.e2e.loopback_platforms import TELEGRAM_PEOPLE, Conversation, LoopbackPlatforms
from tests.e2e.model_server import ModelServer
from tests.e2e.service_process import ServiceProcess
from tests.e2e.transcript_checker import expected_answer
from tests.e2e.waiting import wait_until
from tests.media.file_samples import pdf, picture

pytestmark = [pytest.mark.service, pytest.mark.asyncio(loop_scope="module")]
KINDS = ("discord_dm", "telegram_dm")


@dataclass
class Deployment:
    """Both platforms, a service whose model sees, and people who send files."""

    platforms: LoopbackPlatforms
    model: ModelServer
    service: ServiceProcess

    def send(self, where: Conversation, text: str, *files: tuple[str, bytes]) -> Any:
        """Send files with a text as the person of a private chat."""
        platform, _, chat = where.name.partition(":")
        if platform == "discord":
            wire = self.platforms.discord
            person = wire.b.get_user(self._friend_of(int(chat)))
            return wire.say(person, int(chat), text, files=list(files))
        [(name, data)] = files
        document = None if name.endswith(".png") else name
        wire = self.platforms.telegram
        return wire.photo(int(chat), data, caption=text or None, document=document)

    def speak(self, where: Conversation, audio: bytes) -> None:
        """Send a voice message as the person of a private chat."""
        platform, _, chat = where.name.partition(":")
        if platform == "telegram":
            self.platforms.telegram.voice(int(chat), audio)
            return
        wire = self.platforms.discord
        [file] = wire.b.store_attachments(int(chat), [("voice-message.ogg", audio)])
        spoken = {**file, "duration_secs": 3.0, "waveform": "AAAA"}
        person = wire.b.get_user(self._friend_of(int(chat)))
        wire.say(person, int(chat), "", attachments=[spoken], flags=1 << 13)

    def _friend_of(self, channel: int) -> int:
        me = self.platforms.discord.b.bot_user.id
        recipients = self.platforms.discord.b.get_channel(channel).recipient_ids
        return next(int(one) for one in recipients if int(one) != me)

    async def shows(self, where: Conversation, *texts: str) -> None:
        await wait_until(lambda: self.platforms.bot_texts(where) == list(texts))

    def asked(self, token: str) -> Any:
        """Return what the newest message of the request with this token holds."""
        newest = (one["messages"][-1]["content"] for one in reversed(self.model.requests))
        return next(content for content in newest if token in str(content))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def deployment(
    platforms: LoopbackPlatforms, model: ModelServer, service: ServiceProcess
) -> AsyncIterator[Deployment]:
    service.settings["TROUPE_PROVIDERS__TEST__SEES"] = "images"
    service.settings["TROUPE_PROVIDERS__TEST__TRANSCRIPTION_MODEL"] = "whisper-1"
    platforms.telegram.me["can_read_all_group_messages"] = True
    await service.start_and_wait()
    yield Deployment(platforms, model, service)


def sizes(content: Any) -> list[tuple[int, int]]:
    """Return the sizes of the pictures of a message."""
    urls = [part["image_url"]["url"] for part in content if part["type"] == "image_url"]
    data = [base64.b64decode(url.partition("base64,")[2]) for url in urls]
    return [Image.open(io.BytesIO(one)).size for one in data]


@pytest.mark.parametrize("kind", KINDS)
async def test_picture_is_seen_and_only_described_later(deployment: Deployment, kind: str) -> None:
    where = getattr(deployment.platforms, kind)()
    deployment.send(where, "what is Ta1:3", ("cat.png", picture(3200, 1600)))
    await deployment.shows(where, expected_answer("Ta1:3"))
    content = deployment.asked("Ta1:")
    assert sizes(content) == [(1568, 784)]
    where.say("and Ta2:3", 0)
    await deployment.shows(where, expected_answer("Ta1:3"), expected_answer("Ta2:3"))
    request = deployment.model.requests[-1]
    assert "image_url" not in str(request)
    assert "what is Ta1:3\n[picture" in request["messages"][-3]["content"]


@pytest.mark.parametrize("kind", KINDS)
async def test_person_is_told_that_a_long_file_was_cut(deployment: Deployment, kind: str) -> None:
    where = getattr(deployment.platforms, kind)()
    deployment.send(where, "what is Td9:3", ("long.txt", b"a line\n" * 20_000))
    notice = "ℹ long.txt is long: I read only its first 100 KiB."
    await deployment.shows(where, f"{expected_answer('Td9:3')}\n\n{notice}")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("name", "data"), [("notes.txt", b"the key is under the mat"), ("a.pdf", pdf("the key is"))]
)
async def test_text_of_a_file_is_quoted(
    deployment: Deployment, kind: str, name: str, data: bytes
) -> None:
    where = getattr(deployment.platforms, kind)()
    deployment.send(where, "where is Tb1:3", (name, data))
    await deployment.shows(where, expected_answer("Tb1:3"))
    assert "> the key is" in deployment.asked("Tb1:")


async def test_several_files_of_one_message_are_read(deployment: Deployment) -> None:
    where = deployment.platforms.discord_dm()
    files = [("a.png", picture(40, 20)), ("b.png", picture(20, 40)), ("c.txt", b"three")]
    deployment.send(where, "compare Tc1:3", *files)
    await deployment.shows(where, expected_answer("Tc1:3"))
    assert sizes(deployment.asked("Tc1:")) == [(40, 20), (20, 40)]
    assert "> three" in str(deployment.asked("Tc1:"))


@pytest.mark.parametrize("kind", KINDS)
async def test_file_that_cannot_be_read_gets_a_clear_word(
    deployment: Deployment, kind: str
) -> None:
    where = getattr(deployment.platforms, kind)()
    deployment.send(where, "", ("a.zip", b"PK\3\4\0\0"))
    why = "⚠ I could not read a.zip: I read pictures, text files and PDFs only."
    await deployment.shows(where, why)
    deployment.send(where, "and Td1:3", ("b.zip", b"PK\3\4\0\0"))
    behind = why.replace("a.zip", "b.zip")
    await deployment.shows(where, why, f"{expected_answer('Td1:3')}\n\n{behind}")


async def test_picture_that_waited_during_a_crash_is_seen(deployment: Deployment) -> None:
    where = deployment.platforms.discord_dm()
    where.say("hello Te1:3", 0)
    await deployment.shows(where, expected_answer("Te1:3"))
    await deployment.service.kill()
    deployment.send(where, "see Te2:3", ("cat.png", picture(40, 20)))
    await deployment.service.start_and_wait()
    await deployment.shows(where, expected_answer("Te1:3"), expected_answer("Te2:3"))
    assert sizes(deployment.asked("Te2:")) == [(40, 20)]


@pytest.mark.parametrize("kind", ["telegram_dm", "telegram_group"])
async def test_album_is_answered_once_with_all_its_pictures(
    deployment: Deployment, kind: str
) -> None:
    where = getattr(deployment.platforms, kind)()
    wire, chat = deployment.platforms.telegram, int(where.name.removeprefix("telegram:"))
    widths = (40, 50, 60, 70)
    for number, width in enumerate(widths):
        caption = f"{where.mention}compare Tf1:3" if number == 1 else None
        person = chat if chat > 0 else TELEGRAM_PEOPLE[0]
        wire.photo(person, picture(width, 20), chat, caption, media_group_id=f"album{chat}")
    where.ask("f2", 3)
    answers = expected_answer("Tf1:3"), expected_answer("Tf2:3")
    await deployment.shows(where, *answers)
    assert sizes(deployment.asked("Tf1:")) == [(width, 20) for width in widths]
    assert len([one for one in deployment.model.requests if "Tf1:" in newest(one)]) == 1
    del deployment.model.requests[:]


@pytest.mark.parametrize("kind", ["channel", "discord_dm", "telegram_dm", "telegram_group"])
async def test_paste_that_the_client_has_cut_is_one_question(
    deployment: Deployment, kind: str
) -> None:
    where = getattr(deployment.platforms, kind)()
    longest = 4096 if where.name.startswith("telegram") else 2000
    whole = f"{where.mention}read this: " + "a long story goes on and on " * 300
    where.say(whole[:longest], 0)
    where.say(f"{whole[longest : longest + 500]} The end. Ta71:3", 0)
    where.ask("a72", 3)
    await deployment.shows(where, expected_answer("Ta71:3"), expected_answer("Ta72:3"))
    content = deployment.asked("Ta71:")
    story = whole[len(where.mention) : longest + 500]
    assert "".join(f"{story}The end.".split()) in "".join(content.split())
    assert len([one for one in deployment.model.requests if "read this" in newest(one)]) == 1
    del deployment.model.requests[:]


@pytest.mark.parametrize("kind", KINDS)
async def test_voice_message_is_answered_by_its_words(deployment: Deployment, kind: str) -> None:
    where = getattr(deployment.platforms, kind)()
    audio = b"OggS" + kind.encode() * 100
    deployment.model.spoken = "I wonder about Ta81:3"
    deployment.speak(where, audio)
    await deployment.shows(where, expected_answer("Ta81:3"))
    assert deployment.model.heard[-1] == audio
    assert deployment.asked("Ta81:").endswith("I wonder about Ta81:3")


def newest(request: Any) -> str:
    """Return the newest message of a request."""
    return str(request["messages"][-1]["content"])
