"""Preparation of a prompt's images for a local model."""

import pytest
from inline_snapshot import snapshot

from bot.backends.llama_cpp.engine import IMAGE_PLACEHOLDER, GenerationRequest, to_wire
from bot.backends.llama_cpp.images import (
    check_placeholders,
    encode_images,
    insert_image_placeholders,
)
from bot.chat.prompt import Image, Message, Prompt
from bot.errors import BackendUnavailable
from tests.backends.pictures import as_image, png, shown

MARK = "<__media_abc__>"


def prompt_of(*messages: Message) -> Prompt:
    return Prompt(messages, "default", "chat")


def test_images_are_encoded_in_order() -> None:
    one, other = png(1), png(2)

    found = encode_images(
        prompt_of(shown("a", one), Message("user", "b"), shown("c", other)), "m", has_vision=True
    )

    assert found == [each.url.partition(",")[2] for each in (one, other)]


@pytest.mark.parametrize("kind", [b"\xff\xd8\xff\xe0", b"GIF89a", b"BM6\x04"])
def test_image_formats_that_llama_cpp_reads_are_accepted(kind: bytes) -> None:
    assert (
        len(encode_images(prompt_of(shown("a", as_image(kind + bytes(9)))), "m", has_vision=True))
        == 1
    )


@pytest.mark.parametrize(
    "image",
    [
        Image("https://x/y.png"),
        Image("data:image/png;base64,%%%"),
        Image("data:image/png;base64,é"),
        Image("data:video/mp4;base64,iVBORw0KGgo="),
        Image("data:image/png;base64,"),
        as_image(b"\x00\x00\x00\x18ftypmp42"),
        as_image(b"<svg/>", "svg+xml"),
    ],
)
def test_links_and_other_formats_are_refused(image: Image) -> None:
    why = r"is not a `data:image/\.\.\.;base64,` URI of a PNG, JPEG, GIF, or BMP"
    with pytest.raises(BackendUnavailable, match=why) as said:
        encode_images(prompt_of(shown("a", image)), "m", has_vision=True)

    assert len(str(said.value)) < 200


def test_model_without_a_projector_gets_an_error_with_a_remedy() -> None:
    with pytest.raises(BackendUnavailable, match="or set the provider's PROJECTOR_PATH"):
        encode_images(prompt_of(shown("a", png(1))), "m", has_vision=False)


def test_only_images_are_replaced_with_placeholders() -> None:
    said = Message("user", "", (f"one{IMAGE_PLACEHOLDER}", png(1), "two", png(2)))

    written = insert_image_placeholders([said, Message("assistant", f"{IMAGE_PLACEHOLDER}three")])

    assert [each.content for each in written] == [
        f"one{IMAGE_PLACEHOLDER}two{IMAGE_PLACEHOLDER}",
        "three",
    ]
    assert not any(each.images for each in written)


def test_messages_without_images_are_unchanged() -> None:
    messages = [Message("user", f"a{IMAGE_PLACEHOLDER}b")]

    assert insert_image_placeholders(messages) is messages


def test_missing_or_duplicate_placeholder_is_refused() -> None:
    check_placeholders(f"a{IMAGE_PLACEHOLDER}b", ["AA=="], "m")

    for text in ("ab", IMAGE_PLACEHOLDER * 2):
        with pytest.raises(
            BackendUnavailable, match="of 1 images into the prompt; choose another `template`"
        ):
            check_placeholders(text, ["AA=="], "m")


def test_request_with_an_image_is_sent_as_text() -> None:
    question = GenerationRequest(
        [1, 2], text=f"a {MARK}{IMAGE_PLACEHOLDER}", encoded_images=["AA=="], slot_number=1
    )

    body = to_wire(question, "smol", MARK)

    assert body["prompt"] == snapshot(
        {"prompt_string": "a <\u2060__media_abc__><__media_abc__>", "multimodal_data": ["AA=="]}
    )
    assert (body["id_slot"], body["cache_prompt"]) == (1, True)
