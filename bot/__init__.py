"""Troupe: characters and assistants in Discord servers, Telegram chats and the terminal.

These files handle a message on Discord that one character answers, in the order in which it first
reaches them. docs/architecture.md explains the steps. tests/turn/test_message_path.py checks the
order from the worker on.

    platforms/discord/gateway.py     receive an event from the gateway connection
    platforms/discord/receiver.py    store events in order; after an outage, missed ones first
    platforms/discord/incoming.py    convert the event to an `IncomingMessage`
    intake.py                        choose one of the channel's histories, store, wake a worker
    routing/presets.py               find the presets, and which of them are active here
    storage/inbox.py                 store the inbox row, and how far events were read
    runtime/keyed_worker_pool.py     run one task for each conversation that is ready
    turn/worker.py                   claim the conversation, and process its messages
    storage/conversations.py         claims, histories, and the transaction of `finish`
    turn/claims.py                   keep the claim while the message is processed
    routing/decide.py                check access; later, decide whether to answer
    turn/message_groups.py           find other messages that the same answer covers
    replying/live_reply.py           ask what the channel supports; later, show the answer grow
    turn/finishing.py                answer, start over if more messages arrive, and finish
    chat/command.py                  parse a command, which commands/handlers.py would run
    routing/speakers.py              choose who answers, and log why
    turn/answer.py                   write one answer
    turn/prompt_inputs.py            load everything that the prompt needs
    commands/personas.py             read how people describe themselves
    turn/model_requests.py           use the preset's model, within its budgets
    prompting/compose/compose.py     compose the prompt in a form that the backend can read
    memory/summaries.py              add the summary of dropped turns
    prompting/fit.py                 drop whole messages, the oldest first, until it fits
    replying/generate.py             filter the answer, measure its time, stop on request
    backends/*/backend.py            turn the provider's stream into `Delta`s and a `Finish`
    replying/split.py                split the answer into parts that the platform accepts
    delivery/sender.py               deliver the parts
    delivery/pacing.py               wait for the platform's rate limits
    platforms/discord/surface.py     send one idempotent request for each part

In a new process on SQLite, the message also enters these after the inbox, in this order:

    storage/database.py storage/sqlite.py runtime/tasks.py chat/incoming.py chat/session.py
    storage/chat_settings.py storage/rows.py turn/signals.py runtime/in_process.py
    storage/session_windows.py telemetry/logs.py turn/limits/refusals.py ports.py texts/text.py
    prompting/presets/preset.py replying/answer_parts.py prompting/compose/card_macros.py
    chat/outgoing.py chat/prompt.py prompting/compose/inputs.py prompting/text/incremental_map.py
    prompting/speakers.py prompting/text/confusables.py prompting/compose/background.py
    prompting/prompters.py prompting/draft.py prompting/compose/instructions.py
    prompting/compose/card.py prompting/text/tokens.py turn/limits/spending.py turn/limits/slots.py
    replying/filters.py telemetry/secret_masker.py telemetry/metrics.py markup/graphemes.py
    storage/receipts.py storage/finishing.py runtime/http_client.py

`ports.py` holds every interface, `chat/` the values that they exchange, `service/container.py` puts
all of it together and `service/run.py` runs it.

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
