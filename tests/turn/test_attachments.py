"""The files of a message: seen by its answer, described in the history, named if not read."""

from dataclasses import replace

from typing_extensions import override

from bot.chat.incoming import Address, Edited, MediaItem, MediaKind, WakeReason
from bot.chat.prompt import Prompt
from bot.storage.database import Database
from bot.storage.receipts import Receipts
from tests.fakes import FakeBackend
from tests.media.file_samples import picture
from tests.samples import make_incoming
from tests.turn.setup import CHAT, Setup

PICTURE = MediaItem(MediaKind.IMAGE, "cat.png", None, "cat")
NOTES = MediaItem(MediaKind.FILE, "notes.txt", None, "notes")
FILES = {"cat": picture(), "notes": b"milk\neggs"}


class SeeingFakeBackend(FakeBackend):
    @override
    def sees_images(self, model: str) -> bool:
        return model == "m"


async def download(_address: Address, item: MediaItem, max_bytes: int) -> bytes:
    return FILES[item.source][:max_bytes]


def newest(prompt: Prompt) -> str:
    return prompt.messages[-1].content


async def test_picture_is_in_the_prompt_and_in_nothing_that_is_kept(database: Database) -> None:
    setup = Setup(database, backend=SeeingFakeBackend(["A cat."]), download=download)
    await setup.say(replace(make_incoming("what is it?"), attachments=(PICTURE,)))
    [prompt] = setup.backend.prompts
    assert [one.url[:22] for one in prompt.messages[-1].images] == ["data:image/jpeg;base64"]
    assert newest(prompt) == "what is it?\n[picture cat.png]"
    assert await setup.history() == [
        ("user", "what is it?\n[picture cat.png]"),
        ("assistant", "A cat."),
    ]
    [(_, receipt)] = await Receipts(database).newest(CHAT)
    assert receipt.prompt.messages[-1].parts == ()


async def test_model_that_does_not_see_gets_the_description(database: Database) -> None:
    setup = Setup(database, ["Hm."], download=download)
    await setup.say(replace(make_incoming("what is it?"), attachments=(PICTURE, NOTES)))
    [prompt] = setup.backend.prompts
    assert newest(prompt) == (
        "[file notes.txt]\n> milk\n> eggs\n\n"
        "You cannot see or read: [picture cat.png]\n\n"
        "what is it?\n[picture cat.png]\n[file notes.txt]"
    )
    blind = "I cannot look at pictures here. Please tell me in words what it is about."
    assert setup.texts == [f"Hm.\n\n{blind}"]


async def test_guessed_encoding_of_a_file_is_told_behind_the_answer(database: Database) -> None:
    words = "Привет! Завтра мы встречаемся у входа в парк в семь вечера."
    FILES["russian"] = words.encode("cp1251")
    letter = MediaItem(MediaKind.FILE, "letter.txt", None, "russian")
    setup = Setup(database, ["At seven."], download=download)
    await setup.say(replace(make_incoming("when?"), attachments=(letter,)))
    assert f"> {words}\n" in newest(setup.backend.prompts[0])
    assert setup.texts == [
        "At seven.\n\nℹ I read letter.txt as Windows-1251. "
        "If its letters were wrong, please send it in UTF-8."
    ]


async def test_what_cannot_be_read_is_told_once_although_the_question_is_edited(
    database: Database,
) -> None:
    setup = Setup(database, ["Hm."], ["Oh."], download=download)
    asked = replace(make_incoming("what is it?", key="5:1"), attachments=(PICTURE,))
    await setup.say(asked)
    edited = Edited("5:1:e1", replace(asked, text="who is it?"), asked.at)
    await setup.inbox.receive([edited], {})
    await setup.work()
    blind = "I cannot look at pictures here. Please tell me in words what it is about."
    assert setup.texts == [f"Oh.\n\n{blind}"]


async def test_picture_alone_for_a_model_that_does_not_see_gets_a_word(database: Database) -> None:
    setup = Setup(database, ["Hm."], download=download)
    await setup.say(replace(make_incoming(""), attachments=(PICTURE,)))
    blind = "I cannot look at pictures here. Please tell me in words what it is about."
    assert (setup.texts, setup.backend.prompts) == ([blind], [])


async def test_file_is_cut_to_half_of_the_budget(database: Database) -> None:
    backend = FakeBackend(["Hm."])
    setup = Setup(database, backend=backend, preset={"max_input_tokens": 200}, download=download)
    FILES["long"] = b"word " * 2000
    long = MediaItem(MediaKind.FILE, "long.txt", None, "long")
    await setup.say(replace(make_incoming("so?"), attachments=(long,)))
    assert "\n[the rest is left out]\n" in newest(backend.prompts[0])


async def test_picture_that_nobody_was_asked_about_is_background(database: Database) -> None:
    setup = Setup(database, backend=SeeingFakeBackend(["Hm."]), download=download)
    shown = replace(make_incoming("", key="5:1", wake=None), attachments=(PICTURE,))
    await setup.say(shown, make_incoming("well?", key="5:2", wake=WakeReason.MENTION))
    [prompt] = setup.backend.prompts
    assert "> [picture cat.png]\n" in newest(prompt)
    assert prompt.messages[-1].images == ()
