"""Texts from attacks.json in presets and lorebooks never become HTML markup."""

import json
from collections.abc import Iterator
from urllib.parse import quote

from bot.chat.drafts import PresetDraft
from tests.attacks import attack_texts
from tests.support.console import Elements, Playground, call, read

_MAX_CHARS = 2000
_HOSTILE_NAME = "</title><img src=x onerror=alert(1)>"
_PAGES = (
    "/presets",
    f"/presets?find={quote(_HOSTILE_NAME)}",
    f"/presets/{quote(_HOSTILE_NAME, safe='')}?tab=json",
    *(f"/presets/nora?tab={tab}" for tab in ("form", "json", "changes", "versions")),
    "/presets/nora?tab=lorebook&text=" + quote("<img src=x onerror=alert(1)>{{7*7}}"),
    "/presets/nora?view=preview&scene=first",
    "/access",
)


def elements(html: str) -> set[tuple[str, str]]:
    """Return the elements of a page, and their attributes."""
    found = Elements(html)
    return found.attributes | {(tag, "") for tag in found.tags}


def batches(texts: list[str], size: int) -> Iterator[list[str]]:
    for begin in range(0, len(texts), size):
        yield texts[begin : begin + size]


async def save_draft_with(console: Playground, texts: list[str]) -> None:
    """Save a draft that contains these texts in every text field of a preset."""
    _, found = await call(console, "GET", "/presets/nora")
    joined = "\n".join(texts)
    entries = [
        {"keys": [one[:80] or "x"], "content": one, "name": one[:80], "constant": True}
        for one in texts
    ]
    content = {
        **json.loads(found["published"]),
        "description": joined,
        "greeting": joined,
        "role_name": texts[0],
        "alternate_greetings": [one or "x" for one in texts],
        "stop_sequences": [one or "x" for one in texts],
        "lorebook": {"entries": entries},
    }
    body = {"content": json.dumps(content, indent=1), "revision": found["revision"]}
    status, _ = await call(console, "PUT", "/presets/nora/draft", body)
    assert status == 200


async def test_attacks_inject_no_element_or_attribute(console: Playground) -> None:
    texts = [one[:_MAX_CHARS] for one in attack_texts("markup", "ssti", "name_spoof")]
    draft = PresetDraft(_HOSTILE_NAME, 0, 1, _HOSTILE_NAME, 0.0)
    await console.service.container.preset_drafts.save(draft)
    await save_draft_with(console, ["harmless <b>"] * 3)
    await call(console, "POST", "/presets/nora/publish", {"revision": 1})
    await save_draft_with(console, ["also harmless", "& quiet"])
    expected = set().union(*[elements(await read(console, path)) for path in _PAGES])
    assert ("b", "") in expected  # the pages' own
    assert ("img", "") not in expected
    for some in batches(texts, 40):
        await save_draft_with(console, some)
        for path in _PAGES:
            more = elements(await read(console, path)) - expected
            assert not {one for one in more if one[0] not in _ALLOWED or one[1]}, path


_ALLOWED = {"li", "p", "ul", "mark", "span", "del", "ins"}
"""Elements for problems and marks, which do not occur on the pages of harmless presets."""
