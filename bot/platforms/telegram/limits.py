"""The limits of Telegram chats, in a module without aiogram, because web channels use them, too."""

from dataclasses import replace

from bot.chat.outgoing import Limits
from bot.chat.rate import CallWindow
from bot.markup.styled_text import style_markdown


def plain_text(source: str) -> str:
    """Return the text that Telegram shows for Markdown, without formatting."""
    return style_markdown(source).text


# Messages and edits count together: about 1 a second in a chat, with short bursts allowed, fewer
# than 20 a minute in a group, and about 30 a second in all chats (Telegram's bot FAQ). Only the
# limit for groups is exact. Telegram counts a call when it arrives, and latency varies, so our
# windows are longer: the minute by a second, and the second by a quarter of a second.
_BURST_WINDOW = CallWindow(10, 10.0, is_learned=True, reserved_count=1)
PRIVATE_LIMITS = Limits(
    max_units=4096,
    unit="utf16",
    seconds_between_edits=1.2,
    typing_seconds=4,
    reports_deletions=False,
    deduplicates_sends=False,
    to_visible_text=plain_text,
    hides_markup=True,
    shows_faces=True,
    chat_call_windows=(_BURST_WINDOW,),
    bot_call_windows=(CallWindow(30, 1.25, is_learned=True, reserved_count=10),),
    has_buttons=True,
    folds_thoughts=True,
)
GROUP_LIMITS = replace(
    PRIVATE_LIMITS,
    seconds_between_edits=3.5,
    chat_call_windows=(_BURST_WINDOW, CallWindow(19, 61.0, reserved_count=5)),
)
