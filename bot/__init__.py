"""Troupe: characters and assistants that live in Discord servers and Telegram chats.

The walk of one message, which is also the order to read the code in:

    platforms/*   hear     to_incoming(event) -> Incoming; everything vendor-specific ends here
    intake/       persist  inbox row and cursor in one transaction, then acknowledge upstream
    conversation.py        claim the conversation (new epoch) and walk its inbox in order:
      routing/    decide   -> Command | Answer | Overhear | Ignore, and who speaks  (pure)
    speaking.py            let them answer, one after the other:
      sessions/   recall   -> Session: turns, preset, people
      prompting/  compose  -> Draft: system, history, names; then as much as the budget allows
      backends/*  generate -> Delta, Delta, ... Finish
      replying/   write    -> pieces legal on the platform, edits at its pace
    conversation.py        finish in one transaction: epoch checked, inbox, turns, receipts, outbox
    delivery/     send     outbox in order per chat; an unknown outcome is reconciled

`ports.py` names every socket, `plugs.py` says what fills it, `app.py` plugs everything in, and
`chat/` holds the nouns that travel.
"""

__version__ = "0.1.0"
