"""Set up a bot on Telegram: whose token it is, its privacy mode, and a code from its first admin.

See https://core.telegram.org/bots/api#getme and #getupdates.
"""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from http import HTTPStatus
from typing import Any

from typing_extensions import override

from bot.errors import OutcomeUnknown, PlatformFatal, Refused, Unreachable
from bot.platforms.spec import AccountSetup, BotAccount, CodeRequest
from bot.platforms.telegram.settings import TelegramSettings
from bot.runtime.http_client import ConnectionFailed, HttpClient
from bot.texts.text import translatable

_TOKEN = re.compile(r"[0-9]+:[A-Za-z0-9_-]+")
_POLL_SECONDS = 25
_PAUSE_SECONDS = 1.0
_MAX_RESPONSE_BYTES = 4 * 2**20
_MOST_UPDATES = 100  # that one call returns

_PRIVACY_ON = translatable(
    "privacy mode is on: in groups it receives commands, mentions and replies only; to change that,"
    " send /setprivacy to @BotFather, or make it an admin of the group"
)
_PRIVACY_OFF = translatable("privacy mode is off: in groups it receives every message")
_NO_GROUPS = translatable(
    "it cannot be added to groups; to change that, send /setjoingroups to @BotFather"
)


class TelegramAccount(AccountSetup):
    """One bot, by its token."""

    where_from = translatable("@BotFather in Telegram: send /newbot")

    def __init__(self, settings: TelegramSettings) -> None:
        self._token = settings.token.get_secret_value() if settings.token else ""
        address = f"{settings.api_base.rstrip('/')}/bot{self._token}"
        headers = {"Accept-Encoding": "identity", "Content-Type": "application/json"}
        self._client = HttpClient(address, headers, connect_seconds=5)

    @override
    async def inspect(self) -> BotAccount:
        if not _TOKEN.fullmatch(self._token):
            raise PlatformFatal(
                translatable(
                    "TROUPE_TELEGRAM__TOKEN is not of the form 123456:ABC...; copy it from"
                    " @BotFather"
                )
            )
        me = await self._call("getMe")
        name = str(me.get("username"))
        reads_all = bool(me.get("can_read_all_group_messages"))
        notes = [_PRIVACY_OFF if reads_all else _PRIVACY_ON]
        if not me.get("can_join_groups", True):
            notes.append(_NO_GROUPS)
        opens = translatable("open a chat with it")
        return BotAccount(f"@{name}", f"https://t.me/{name}", opens, tuple(notes))

    @override
    def request_code(self, account: BotAccount, code: str) -> CodeRequest:
        return CodeRequest(
            translatable(
                "Send {code} to {name} in a private chat, or open this link and press Start:",
                code=code,
                name=account.name,
            ),
            f"{account.link}?start={code}",
        )

    @override
    async def wait_for_code(self, code: str) -> str:
        while True:
            updates = await self._updates()
            for update in updates:
                match update:
                    case {
                        "message": {
                            "text": str(text),
                            "from": {"id": int(person)},
                            "chat": {"id": int(chat), "type": "private"},
                        }
                    } if code in text.split():
                        await self._finish(update["update_id"], updates, chat)
                        return str(person)
            if len(updates) >= _MOST_UPDATES:
                raise Refused(
                    translatable(
                        "more than 100 messages wait for this bot; start Troupe once, so that it"
                        " takes them, or set TROUPE_ADMINS by hand"
                    )
                )
            # Waiting messages would be returned again at once; they are left for the service.
            await asyncio.sleep(_PAUSE_SECONDS if updates else 0)

    @override
    async def close(self) -> None:
        await self._client.close()

    async def _updates(self) -> list[dict[str, Any]]:
        parameters = {"timeout": _POLL_SECONDS, "allowed_updates": ["message"]}
        found = await self._call("getUpdates", parameters, _POLL_SECONDS + 10)
        return found if isinstance(found, list) else []

    async def _finish(self, update_id: int, updates: list[dict[str, Any]], chat: int) -> None:
        """Thank the person, and take the code from the service unless messages precede it."""
        if updates[0]["update_id"] == update_id:
            parameters = {"offset": update_id + 1, "timeout": 0, "limit": 1}
            await self._call("getUpdates", parameters)
        text = "Thank you. You are an admin of this bot now."
        try:
            await self._call("sendMessage", {"chat_id": chat, "text": text})
        except (Refused, Unreachable):
            return  # the terminal says it as well

    async def _call(self, method: str, parameters: object = None, seconds: float = 10) -> Any:
        body = json.dumps(parameters or {}).encode()
        deadline = asyncio.get_running_loop().time() + seconds
        async with (
            _translated(seconds),
            await self._client.request("POST", f"/{method}", body, deadline) as response,
        ):
            text = await response.read_all(deadline, _MAX_RESPONSE_BYTES)
        status, answer = response.status, None
        with suppress(ValueError):
            answer = json.loads(text)
        match status, answer:
            case _, {"ok": True, "result": result}:
                return result
            case HTTPStatus.UNAUTHORIZED | HTTPStatus.NOT_FOUND, _:
                raise PlatformFatal(
                    translatable(
                        "Telegram does not accept the bot's token; set TROUPE_TELEGRAM__TOKEN to"
                        " the one that @BotFather shows"
                    )
                )
            case HTTPStatus.CONFLICT, _:
                raise Unreachable(
                    translatable(
                        "another process receives this bot's messages; stop it (is Troupe"
                        " running?), or delete the bot's webhook"
                    )
                )
            case _, {"description": str(description)}:
                raise Refused(translatable("Telegram refuses: {refusal}", refusal=description))
            case _:
                raise Unreachable(
                    translatable(
                        "what answers with status {status} is not Telegram; correct"
                        " TROUPE_TELEGRAM__API_BASE",
                        status=status,
                    )
                )


@asynccontextmanager
async def _translated(seconds: float) -> AsyncIterator[None]:
    try:
        yield
    except ConnectionFailed as error:
        kind = OutcomeUnknown if error.sent else Unreachable
        raise kind(
            translatable("{name} cannot be reached: {reason}", name="Telegram", reason=error)
        ) from None
    except TimeoutError:
        raise OutcomeUnknown(
            translatable(
                "{name} did not answer within {seconds} s", name="Telegram", seconds=f"{seconds:g}"
            )
        ) from None
