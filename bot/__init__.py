"""Troupe: characters and assistants in Discord servers, Telegram chats and the terminal.

The path of a message, file by file (docs/architecture.md has its steps), for one on Discord that
one character answers. Each file is listed where the message first reaches it; from the worker on,
tests/turn/test_message_path.py checks the order:

    platforms/discord/gateway.py     an event of the gateway connection
    platforms/discord/receiver.py    events in order; after an outage the missed ones first
    platforms/discord/incoming.py    to_incoming
    intake.py                        store, then wake; which history of the channel it belongs to
    routing/presets.py               the presets, and the active ones of the channel
    storage/inbox.py                 inbox row and cursor
    runtime/keyed_worker_pool.py     one task for each conversation that is ready
    turn/worker.py                   claim, process
    storage/conversations.py         claims, history, the transaction of finish
    turn/claims.py                   keeps the claim while the message is processed
    routing/decide.py                may its author use the bot? later: decide
    turn/message_groups.py           further parts of the message; what else the answer covers
    replying/live_reply.py           what the channel supports; later the growing messages
    turn/finishing.py                answer, again if more is said before it is ready; finish
    chat/command.py                  is it a command? then commands/handlers.py handles it
    routing/speakers.py              who answers, and why
    turn/answer.py                   one answer
    turn/prompt_inputs.py            load
    commands/personas.py             how people describe themselves
    turn/model_requests.py           the preset's model, within its budgets
    prompting/compose/compose.py     compose, for what the backend reads
    memory/summaries.py              the summary of dropped turns
    prompting/fit.py                 fit: whole messages are dropped, the oldest first
    replying/generate.py             generate: filter, time, and stop where somebody asks for it
    backends/*/backend.py            the provider's stream -> Delta, ... Finish
    replying/split.py                parts that are legal on the platform
    delivery/sender.py               deliver
    delivery/pacing.py               wait where the platform demands it
    platforms/discord/surface.py     one idempotent request for each part

In a new process on SQLite, it also enters these after the inbox, in this order:

    storage/database.py storage/sqlite.py runtime/tasks.py chat/incoming.py chat/session.py
    storage/chat_settings.py storage/rows.py turn/signals.py runtime/in_process.py
    storage/windows.py telemetry/logs.py turn/limits/refusals.py ports.py texts/text.py
    prompting/presets/preset.py replying/answer_parts.py prompting/compose/card_macros.py
    chat/outgoing.py chat/prompt.py prompting/compose/inputs.py prompting/text/incremental_map.py
    prompting/speakers.py prompting/text/confusables.py prompting/compose/background.py
    prompting/prompters.py prompting/draft.py prompting/compose/instructions.py
    prompting/compose/card.py prompting/text/tokens.py turn/limits/spending.py turn/limits/slots.py
    replying/filters.py telemetry/secret_masker.py telemetry/metrics.py markup/graphemes.py
    storage/receipts.py storage/finishing.py runtime/http_client.py

`ports.py` holds every interface, `chat/` the values that travel, `service/container.py` puts all of
it together and `service/run.py` runs it.

Glossary:

    lane       the outbox rows of one channel or thread, delivered strictly in order
    epoch      counts the claims of a conversation; every write checks it
    fenced     stopped because a later claim has a higher epoch
    claim      the right to process one conversation, for one epoch
    lease      how long a claim holds unless it is renewed
    receipt    the record of one answer: exact prompt, dropped items, usage, timings
    persona    the text that says who a character is, or how a person describes themselves
    outbox     what is to be sent, stored in the transaction that finishes the message
    surface    the sending side of a platform: send, edit, delete, find
    turn       the processing of one message; in a history: one line of it
"""

__version__ = "0.2.0"
