"""The steps of a message as units of work: receive, begin, open, finish, sent.

Each is one transaction and no I/O of its own (see `bot.storage.engine.statements`).
"""
