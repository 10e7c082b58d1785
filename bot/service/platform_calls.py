"""Calls to platforms besides sending, and the forms that platforms open."""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from bot.chat.command import FORM_ACTIONS, ButtonAction, read_button
from bot.chat.incoming import Address, MediaItem, Pressed, Request, Said
from bot.commands.answers import AnswerButtons
from bot.commands.menus import FORM_TEXTS
from bot.commands.personas import UserPersonas
from bot.errors import PlatformError, Refused, StoreError, UserError
from bot.intake import HistoryRouter
from bot.platforms.spec import EditableText
from bot.ports import FileSource, HistoryReader, Platform, SilenceExplainer
from bot.routing.presets import PresetResolver
from bot.texts.text import Text, language_of, translatable, translate

_EDIT_TITLE = translatable("Edit a message")
_EDIT_LABEL = translatable("What it should say")
_TOO_LONG_TO_EDIT = translatable("That text is too long to be changed in a form.")
_BUSY = translatable("That cannot be done at the moment. Please try again.")


class PlatformCalls:
    """Calls the platform of an address.

    `platforms` is called when one is needed, as platforms are built with parts that call them.
    """

    def __init__(
        self, platforms: Callable[[], Mapping[str, Platform]], resolver: PresetResolver
    ) -> None:
        self._platforms = platforms
        self._resolver = resolver

    async def is_admin(self, incoming: Request) -> bool:
        """Return whether the author is an administrator of the chat."""
        return await self._platforms()[incoming.address.source].is_admin(incoming)

    def asks_by_replies(self, address: Address) -> bool:
        """Return whether people enter free values of menus as replies there."""
        return self._platforms()[address.source].surface.limits(address).asks_by_replies

    async def explain_silence(self, said: Said, explanation: Text) -> None:
        """Tell the author privately why nobody answers, if the platform can."""
        platform = self._platforms()[said.address.source]
        if isinstance(platform, SilenceExplainer):
            shown = translate(explanation, language_of(said.locale))
            with contextlib.suppress(PlatformError):  # the channel was deleted
                await platform.explain_silence(said, shown)

    async def download(self, address: Address, item: MediaItem, max_bytes: int) -> bytes:
        """Return the bytes of a file of a message.

        Raises:
            Refused: the platform keeps no files, or not this one.
        """
        platform = self._platforms()[address.source]
        if not isinstance(platform, FileSource):
            raise Refused(f"{platform.name} keeps no files")
        return await platform.download(item, max_bytes)

    async def read_before(self, said: Said, limit: int) -> Sequence[Said]:
        """Return earlier messages, if the platform keeps them and the preset may read them."""
        platform = self._platforms()[said.address.source]
        observes = await self._resolver.observes(said.scopes)
        if not (isinstance(platform, HistoryReader) and observes):
            return ()
        return await platform.read_before(said, limit)

    async def read_start(self, said: Said) -> Said | None:
        """Return the message that a thread was started from, if the preset may read it."""
        platform = self._platforms()[said.address.source]
        observes = await self._resolver.observes(said.scopes)
        return (
            await platform.read_start(said)
            if isinstance(platform, HistoryReader) and observes
            else None
        )


class PlatformForms:
    """Fills the forms that platforms must open before the request is stored."""

    def __init__(
        self, buttons: AnswerButtons, personas: UserPersonas, histories: HistoryRouter
    ) -> None:
        self._buttons = buttons
        self._personas = personas
        self._histories = histories

    async def press_refusal(self, pressed: Pressed) -> str | None:
        """Return why this person may not press a button; None: they may."""
        return await self._buttons.refusal(pressed)

    async def text_to_edit(self, said: Said) -> EditableText:
        """Return the form for editing a character's message."""
        language = language_of(said.locale)
        try:
            text = await self._buttons.text_to_edit(await self._histories.route_command(said))
        except (UserError, StoreError) as error:
            problem = error.text if isinstance(error, UserError) else _BUSY
            return EditableText(refusal=translate(problem, language))
        title, label = translate(_EDIT_TITLE, language), translate(_EDIT_LABEL, language)
        too_long = translate(_TOO_LONG_TO_EDIT, language)
        return EditableText(title, label, text, too_long=too_long)

    async def press_form(self, pressed: Pressed) -> EditableText | None:
        """Return the form that a button opens; None: it opens none."""
        data, language = read_button(pressed), language_of(pressed.locale)
        if data is None or data.action not in FORM_ACTIONS:
            return None
        refusal = await self._buttons.refusal(replace(pressed, values=("",)))
        if refusal is not None:
            return EditableText(refusal=refusal)
        text = ""
        if data.action is ButtonAction.ABOUT:
            with contextlib.suppress(StoreError):  # the form is empty then
                found = await self._personas.find(pressed.author.id, pressed.scopes)
                text = found[0] if found is not None else ""
        title, label = (translate(one, language) for one in FORM_TEXTS[data.action])
        too_long = translate(_TOO_LONG_TO_EDIT, language)
        return EditableText(title, label, text, too_long=too_long)
