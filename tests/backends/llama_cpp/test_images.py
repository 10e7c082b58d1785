"""What is made of a prompt's images before a model on this machine sees them."""

import json

import pytest
from inline_snapshot import snapshot

from bot.backends.llama_cpp.engines.engine import IMAGE, Question
from bot.backends.llama_cpp.engines.server_requests import to_wire
from bot.backends.llama_cpp.images import check_all_stand, encoded, marked
from bot.chat.prompt import Image, Message, Prompt
from bot.errors import BackendUnavailable
from tests.backends.pictures import as_image, png, shown

MARK = "<__media_abc__>"


def of(*messages: Message) -> Prompt:
    return Prompt(messages, "default", "room")


def test_images_are_taken_out_in_order() -> None:
    one, other = png(1), png(2)

    found = encoded(of(shown("a", one), Message("user", "b"), shown("c", other)), "m", sees=True)

    assert found == [each.url.partition(",")[2] for each in (one, other)]


@pytest.mark.parametrize("kind", [b"\xff\xd8\xff\xe0", b"GIF89a", b"BM6\x04"])
def test_what_llama_cpp_reads_by_itself_is_let_through(kind: bytes) -> None:
    assert len(encoded(of(shown("a", as_image(kind + bytes(9)))), "m", sees=True)) == 1


@pytest.mark.parametrize(
    ("image", "why"),
    [
        (Image("https://x/y.png"), "is no `data:image/...;base64,` URI"),
        (Image("data:image/png;base64,%%%"), "is no `data:image/...;base64,` URI"),
        (Image("data:image/png;base64,é"), "is no `data:image/...;base64,` URI"),
        (Image("data:video/mp4;base64,AAAA"), "is no `data:image/...;base64,` URI"),
        (Image("data:image/png;base64,"), "is no PNG, JPEG, GIF or BMP"),
        (as_image(b"\x00\x00\x00\x18ftypmp42"), "is no PNG, JPEG, GIF or BMP"),
        (as_image(b"<svg/>", "svg+xml"), "is no PNG, JPEG, GIF or BMP"),
    ],
)
def test_nothing_but_an_image_in_the_prompt_itself_goes_to_the_engine(
    image: Image, why: str
) -> None:
    with pytest.raises(BackendUnavailable, match=why) as said:
        encoded(of(shown("a", image)), "m", sees=True)

    assert len(str(said.value)) < 160


def test_model_without_a_projector_says_what_to_do() -> None:
    with pytest.raises(BackendUnavailable, match="or set the provider's PROJECTOR_PATH"):
        encoded(of(shown("a", png(1))), "m", sees=False)


def test_mark_stands_for_images_and_for_nothing_that_people_wrote() -> None:
    said = Message("user", "", (f"one{IMAGE}", png(1), "two", png(2)))

    written = marked([said, Message("assistant", f"{IMAGE}three")])

    assert [each.content for each in written] == [f"one{IMAGE}two{IMAGE}", "three"]
    assert not any(each.images for each in written)


def test_texts_alone_are_left_as_they_are() -> None:
    messages = [Message("user", f"a{IMAGE}b")]

    assert marked(messages) is messages


def test_template_may_neither_lose_nor_repeat_an_image() -> None:
    check_all_stand(f"a{IMAGE}b", ["AA=="], "m")

    for text in ("ab", IMAGE * 2):
        with pytest.raises(BackendUnavailable, match="of 1 images; choose another `template`"):
            check_all_stand(text, ["AA=="], "m")


def test_request_with_an_image_goes_as_text() -> None:
    question = Question([1, 2], text=f"a {MARK}{IMAGE}", images=["AA=="], place=1)

    body = json.loads(to_wire(question, "smol", MARK))

    assert body["prompt"] == snapshot(
        {"prompt_string": "a <\u2060__media_abc__><__media_abc__>", "multimodal_data": ["AA=="]}
    )
    assert (body["id_slot"], body["cache_prompt"]) == (1, True)
