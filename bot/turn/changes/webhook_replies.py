"""Recognise replies to characters, whose messages are written by webhooks."""

from dataclasses import replace

from bot.chat.incoming import Said, WakeReason
from bot.chat.session import Claim
from bot.ports import Conversations


async def recognize_reply(conversations: Conversations, claim: Claim, said: Said) -> Said:
    """Return a message as a reply to the bot if it replies to a character of ours.

    What a webhook wrote does not tell whose webhook that is, but the history knows.
    """
    quote = said.quote
    if quote is None or not quote.by_webhook or quote.message_id is None:
        return said
    turns = await conversations.find_turns(claim, [quote.message_id])
    if not any(one.turn.role == "assistant" for one in turns):
        return said
    return replace(said, wake=said.wake or WakeReason.REPLY, quote=replace(quote, is_ours=True))
