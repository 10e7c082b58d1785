"""Extract RodelAgent's four string templates from a Jinja chat template by probing it."""

from bot.errors import TemplateError
from bot.templates import JinjaTemplate, StringTemplate

# Engines write the BOS token themselves, so RodelAgent's document leaves it out.
_BOS_TOKENS = ("<s>", "<|begin_of_text|>", "<bos>", "<|startoftext|>", "[gMASK]<sop>")

# Private-use characters as message texts: everything around them is the template's.
_SYSTEM, _USER, _ASSISTANT, _USER_2, _ASSISTANT_2, _USER_3 = map(chr, range(0xE000, 0xE006))
_ROLES = {_SYSTEM: "system", _ASSISTANT: "assistant", _ASSISTANT_2: "assistant"}


def extract_string_templates(template: JinjaTemplate) -> tuple[dict[str, str], bool]:
    """Return string templates by preset parameter, and whether they are exact.

    They are exact if alternating conversations, with or without a system message, render alike.
    There are none unless the template consists of blocks joined by newlines. A BOS token before
    every exchange is removed, as in RodelAgent's example; the result is then close but not exact.
    """
    try:
        single = _render(template, _USER)
        bos_token = next((token for token in _BOS_TOKENS if single.startswith(token)), "")
        conversation = _render(template, _USER, _ASSISTANT, _USER_2).replace(bos_token, "")
        with_system = _render(template, _SYSTEM, _USER).replace(bos_token, "")
        found = _split_blocks(
            single.replace(bos_token, ""), conversation, with_system, joined=not bos_token
        )
        if found is None:
            return {}, False
        exact = all(
            _render(template, *texts) == StringTemplate(**found).render(_messages(texts))
            for texts in (
                (_USER,),
                (_USER, _ASSISTANT, _USER_2, _ASSISTANT_2, _USER_3),
                (_SYSTEM, _USER, _ASSISTANT, _USER_2, _ASSISTANT_2, _USER_3),
            )
        )
    except TemplateError:  # the template rejects such a conversation
        return {}, False
    return (found, exact) if exact or bos_token else ({}, False)


def _render(template: JinjaTemplate, *texts: str) -> str:
    return template.render(_messages(texts), add_generation_prompt=True)


def _messages(texts: tuple[str, ...]) -> list[dict[str, str]]:
    return [{"role": _ROLES.get(text, "user"), "content": text} for text in texts]


def _split_blocks(
    single: str, conversation: str, with_system: str, *, joined: bool
) -> dict[str, str] | None:
    before_user, _, after_user = single.partition(_USER)
    to_answer, answer, rest = conversation.removeprefix(before_user + _USER).partition(_ASSISTANT)
    last = before_user + _USER_2 + after_user
    after_answer = rest.removesuffix(last)
    if not answer or not rest.endswith(last) or (joined and not after_answer.endswith("\n")):
        return None
    end = _block_end(to_answer, after_user)
    if end is None:
        return None
    found = {
        "user_template": before_user + "{{user}}" + after_user[:end],
        "assistant_template": to_answer[end + 1 :]
        + "{{assistant}}"
        + after_answer.removesuffix("\n"),
        "end_template": after_user[end + 1 :],
    }
    system = with_system.removesuffix("\n" + single)
    if _SYSTEM in system and system != with_system:
        return {"system_template": system.replace(_SYSTEM, "{{system}}"), **found}
    return found


def _block_end(to_answer: str, to_end: str) -> int | None:
    """Return the end of the user's block: the end of the first newlines, common to both texts."""
    position = to_end.find("\n")
    while to_end[position + 1 : position + 2] == "\n":
        position += 1
    shared = to_end[: position + 1]
    has_end = bool(to_end[position + 1 :].strip())
    return position if position >= 0 and has_end and to_answer.startswith(shared) else None
