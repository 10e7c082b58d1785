"""Look up whose messages share one history in a channel, and change it."""

from collections.abc import Mapping, Sequence

from bot.chat.session import ChatSetting, HistoryScope, scopes_of_person
from bot.ports import ChatSettings
from bot.prompting.presets.preset import ScopeName
from bot.routing.preset_resolver import PresetResolver
from bot.texts.text import marked

_KEY = "scope"
_SCOPES: Mapping[ScopeName, HistoryScope | None] = {
    "channel": None,
    "user": HistoryScope.USER,
    "thread": HistoryScope.THREAD,
    "reply_chain": HistoryScope.REPLIES,
}
SCOPE_DESCRIPTIONS: Mapping[HistoryScope, str] = {
    HistoryScope.SHARED: marked("everybody here shares one conversation"),
    HistoryScope.USER: marked("each person has a conversation of their own"),
    HistoryScope.THREAD: marked("everybody in a thread or topic shares one conversation"),
    HistoryScope.REPLIES: marked(
        "each chain of replies is a conversation; a message that replies to nothing begins one"
    ),
}


class HistoryScopes:
    """What an admin chose for the channel, else what its first preset says.

    Args:
        chat_settings: where the choices of admins are.
        resolver: the presets of each channel.
    """

    def __init__(self, chat_settings: ChatSettings, resolver: PresetResolver) -> None:
        self._chat_settings = chat_settings
        self._resolver = resolver

    async def find(
        self, scopes: Sequence[str], person_id: str | None = None
    ) -> HistoryScope | None:
        """Return the scope of a channel; None: nobody chose one, and everybody shares it.

        The settings of the person who is about to be answered are read in the same go, so that
        the first message of a chat does not read them on its own.
        """
        own = scopes_of_person(person_id, scopes) if person_id else ()
        found = await self._chat_settings.get_scopes([*scopes, *own])
        chosen = [found[one][_KEY] for one in scopes if _KEY in found.get(one, ())]
        if chosen and chosen[0] in list(HistoryScope):  # a newer version may know others
            return HistoryScope(chosen[0])
        if all(one.scope == "channel" for one in self._resolver.presets.values()):
            return None
        active = await self._resolver.resolve(scopes)
        return _SCOPES[active.first.preset.scope]

    async def setting(self, scopes: Sequence[str]) -> ChatSetting | None:
        """Return what an admin chose for a channel or around it."""
        return await self._chat_settings.resolve(scopes, _KEY)

    async def set(
        self, scope: str, value: HistoryScope | None, by: str, *, audited: bool = False
    ) -> None:
        """Choose for a channel, None: what holds around it; `by` is the admin's id.

        What was said keeps its history.
        """
        await self._chat_settings.set(scope, _KEY, value, by, audited=audited)
