"""Test attachments on both platforms, with the service as a process."""

import base64
import io
from typing import Any

import pytest
from PIL import Image

from tests.media.file_samples import LETTER, picture
from tests.support.chats import Chat, DiscordChat, Platforms, TelegramChat
from tests.support.features import EVERYWHERE, ON_THE_WIRES, PRIVATE, at
from tests.support.model_server import Model
from tests.support.service_process import TESTER, Service
from tests.support.transcripts import expected_answer

pytestmark = [
    *ON_THE_WIRES,
    pytest.mark.usefixtures("reads_all_messages"),
    pytest.mark.runs_with(
        TESTER,
        TROUPE_PROVIDERS__TEST__SEES="images",
        TROUPE_PROVIDERS__TEST__TRANSCRIPTION_MODEL="whisper-1",
    ),
]


def send(where: Chat, text: str, *files: tuple[str, bytes]) -> None:
    """Send files with a text as the person of a private chat."""
    if isinstance(where, DiscordChat):
        where.platforms.discord.say(where.people[0], where.chat, text, files=list(files))
        return
    [(name, data)] = files
    document = None if name.endswith(".png") else name
    where.platforms.telegram.photo(where.chat, data, caption=text or None, document=document)


def picture_sizes(content: Any) -> list[tuple[int, int]]:
    """Return the sizes of the pictures in a message."""
    urls = [part["image_url"]["url"] for part in content if part["type"] == "image_url"]
    data = [base64.b64decode(url.partition("base64,")[2]) for url in urls]
    return [Image.open(io.BytesIO(one)).size for one in data]


@at(*PRIVATE)
async def test_picture_is_sent_to_the_model_once_and_then_described(
    where: Chat, model: Model
) -> None:
    send(where, "what is Ta1:3", ("cat.png", picture(3200, 1600)))
    await where.shows(expected_answer("Ta1:3"))
    assert picture_sizes(model.newest_message("Ta1:")) == [(1568, 784)]
    await where.shows(expected_answer("Ta1:3"), where.ask())
    request = model.requests[-1]
    assert "image_url" not in str(request)
    assert "what is Ta1:3\n[picture" in request["messages"][-3]["content"]


@at(*PRIVATE)
@pytest.mark.parametrize(
    ("name", "data"), [("notes.txt", b"the key is under the mat"), ("a.pdf", LETTER)]
)
async def test_text_file_is_quoted(where: Chat, model: Model, name: str, data: bytes) -> None:
    send(where, "where is Tb1:3", (name, data))
    await where.shows(expected_answer("Tb1:3"))
    assert "> the key is" in model.newest_message("Tb1:")


@at(*PRIVATE)
async def test_unreadable_file_gets_a_clear_notice(where: Chat) -> None:
    send(where, "", ("a.zip", b"PK\3\4\0\0"))
    why = "⚠ I could not read a.zip: I can only read pictures, text files and PDFs."
    await where.shows(why)
    send(where, "and Td1:3", ("b.zip", b"PK\3\4\0\0"))
    behind = why.replace("a.zip", "b.zip")
    await where.shows(why, f"{expected_answer('Td1:3')}\n\n{behind}")


@at("discord_dm")
async def test_picture_of_a_waiting_message_is_sent_to_the_model(
    where: Chat, model: Model, running: Service
) -> None:
    first = await where.ask_and_wait()
    await running.kill()
    send(where, "see Te2:3", ("cat.png", picture(40, 20)))
    await running.start_and_wait()
    await where.shows(first, expected_answer("Te2:3"))
    assert picture_sizes(model.newest_message("Te2:")) == [(40, 20)]


@at("telegram_dm", "telegram_group")
async def test_album_is_one_question(where: TelegramChat, model: Model) -> None:
    widths = (40, 50, 60, 70)
    for number, width in enumerate(widths):
        caption = f"{where.mention}compare Tf1:3" if number == 1 else None
        where.platforms.telegram.photo(
            where.people[0],
            picture(width, 20),
            where.chat,
            caption,
            media_group_id=f"album{where.chat}",
        )
    await where.shows(expected_answer("Tf1:3"), where.ask())
    [request] = model.asked_about("Tf1:")
    assert picture_sizes(request["messages"][-1]["content"]) == [(width, 20) for width in widths]
    model.requests.clear()


@at(*EVERYWHERE)
async def test_long_paste_split_into_messages_is_one_question(where: Chat, model: Model) -> None:
    longest = 4096 if where.is_telegram else 2000
    whole = f"{where.mention}read this: " + "a long story goes on and on " * 300
    where.say(whole[:longest])
    where.say(f"{whole[longest : longest + 500]} The end. Ta71:3")
    await where.shows(expected_answer("Ta71:3"), where.ask())
    [request] = model.asked_about("read this")
    story = whole[len(where.mention) : longest + 500]
    content = request["messages"][-1]["content"]
    assert "".join(f"{story}The end.".split()) in "".join(content.split())
    model.requests.clear()


@at(*PRIVATE)
async def test_voice_message_is_a_question(where: Chat, model: Model) -> None:
    audio = b"OggS" + where.kind.encode() * 100
    model.spoken = "I wonder about Ta81:3"
    if isinstance(where, DiscordChat):
        wire = where.platforms.discord
        [file] = wire.b.store_attachments(where.chat, [("voice-message.ogg", audio)])
        spoken = {**file, "duration_secs": 3.0, "waveform": "AAAA"}
        wire.say(where.people[0], where.chat, "", attachments=[spoken], flags=1 << 13)
    else:
        where.platforms.telegram.voice(where.chat, audio)
    await where.shows(expected_answer("Ta81:3"))
    assert model.heard[-1] == audio
    assert model.newest_message("Ta81:").endswith("I wonder about Ta81:3")


@pytest.mark.runs_with
async def test_unsupported_media_get_a_clear_notice(running: Service, platforms: Platforms) -> None:
    on_telegram, on_discord = platforms.telegram_dm(), platforms.discord_dm()
    wire, chat = platforms.telegram, on_telegram.chat
    wire.voice(chat)
    wire.sticker(chat)
    wire.photo(chat, b"\xff\xd8\xff" + bytes(64))
    wire.drop(chat, checklist={"title": "shopping", "tasks": [{"id": 1, "text": "milk"}]})
    words = ["listen to voice messages", "see stickers", "look at pictures"]
    words.append("read messages of this kind")

    def shows_all() -> bool:
        texts = on_telegram.texts()  # "…" at first
        pairs = zip(words, texts, strict=False)
        return len(texts) == len(words) and all(word in text for word, text in pairs)

    await on_telegram.wait_until(shows_all)
    send(on_discord, "", ("cat.png", b"\x89PNG" + bytes(64)))
    await on_discord.wait_until(lambda: "look at pictures" in "".join(on_discord.texts()))
    assert len(on_discord.texts()) == 1
