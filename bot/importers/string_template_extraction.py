"""Find RodelAgent's four string templates behind a chat template, by looking at what it renders."""

from dataclasses import dataclass

from bot.errors import TemplateError
from bot.templates import JinjaTemplate, StringTemplate

# Engines put it in front by themselves, so the document's own migration leaves it out (R0-29).
_BEGINNINGS = ("<s>", "<|begin_of_text|>", "<bos>", "<|startoftext|>", "[gMASK]<sop>")

# Texts that no template has: what stands around them belongs to the template.
_SYSTEM, _USER, _ASSISTANT, _USER_2, _ASSISTANT_2, _USER_3 = map(chr, range(0xE000, 0xE006))
_SPEAKERS = {_SYSTEM: "system", _ASSISTANT: "assistant", _ASSISTANT_2: "assistant"}


@dataclass(frozen=True, slots=True)
class ExtractedStringTemplates:
    """What was found, by the names that a preset has for them: `user_template` and so on."""

    templates: dict[str, str]
    exact: bool  # for every talk that begins with the user or a system text and takes turns


def extract_string_templates(template: JinjaTemplate) -> ExtractedStringTemplates | None:
    """None if the template is not made of blocks that a newline joins.

    A template that puts the token for the beginning before every exchange is taken apart without
    it, as in RodelAgent's example: those string templates are near, not exact.
    """
    try:
        single = _render(template, _USER)
        beginning = next((token for token in _BEGINNINGS if single.startswith(token)), "")
        talk = _render(template, _USER, _ASSISTANT, _USER_2).replace(beginning, "")
        opened = _render(template, _SYSTEM, _USER).replace(beginning, "")
        found = _take_apart(single.replace(beginning, ""), talk, opened, joined=not beginning)
        if found is None:
            return None
        exact = all(
            _render(template, *texts) == StringTemplate(**found).render(_messages(texts))
            for texts in (
                (_USER,),
                (_USER, _ASSISTANT, _USER_2, _ASSISTANT_2, _USER_3),
                (_SYSTEM, _USER, _ASSISTANT, _USER_2, _ASSISTANT_2, _USER_3),
            )
        )
    except TemplateError:  # it refuses such a talk
        return None
    return ExtractedStringTemplates(found, exact) if exact or beginning else None


def _render(template: JinjaTemplate, *texts: str) -> str:
    return template.render(_messages(texts), add_generation_prompt=True)


def _messages(texts: tuple[str, ...]) -> list[dict[str, str]]:
    return [{"role": _SPEAKERS.get(text, "user"), "content": text} for text in texts]


def _take_apart(single: str, talk: str, opened: str, *, joined: bool) -> dict[str, str] | None:
    before_user, _, after_user = single.partition(_USER)
    to_answer, answer, rest = talk.removeprefix(before_user + _USER).partition(_ASSISTANT)
    last = before_user + _USER_2 + after_user
    after_answer = rest.removesuffix(last)
    if not answer or not rest.endswith(last) or (joined and not after_answer.endswith("\n")):
        return None
    place = _newline_in_both(to_answer, after_user)
    if place is None:
        return None
    found = {
        "user_template": before_user + "{{user}}" + after_user[:place],
        "assistant_template": to_answer[place + 1 :]
        + "{{assistant}}"
        + after_answer.removesuffix("\n"),
        "end_template": after_user[place + 1 :],
    }
    system = opened.removesuffix("\n" + single)
    if _SYSTEM in system and system != opened:
        return {"system_template": system.replace(_SYSTEM, "{{system}}"), **found}
    return found


def _newline_in_both(to_answer: str, to_end: str) -> int | None:
    """Where the user's block ends: at the last of the newlines that come first in both texts."""
    place = to_end.find("\n")
    while to_end[place + 1 : place + 2] == "\n":
        place += 1
    shared = to_end[: place + 1]
    has_end = bool(to_end[place + 1 :].strip())
    return place if place >= 0 and has_end and to_answer.startswith(shared) else None
