"""The forms that platforms open: the text to edit, what a button asks for."""

import contextlib
from dataclasses import replace

from bot.chat.button import FORM_ACTIONS, ButtonAction, read_button
from bot.chat.incoming import Pressed, Said
from bot.commands.answer_buttons import AnswerButtons
from bot.commands.menus import FORM_TEXTS
from bot.commands.personas import UserPersonas
from bot.errors import StoreError, UserError
from bot.intake.histories import HistoryRouter
from bot.platforms.spec import EditableText
from bot.texts.text import language_of, translatable, translate

_EDIT_TITLE = translatable("Edit a message")
_EDIT_LABEL = translatable("What it is to say")
_TOO_LONG_TO_EDIT = translatable("That text is too long to be changed in a form.")
_BUSY = translatable("That cannot be done at the moment. Please try again.")


class PlatformForms:
    """Fills the forms that a platform opens at once, before the request is stored."""

    def __init__(
        self, buttons: AnswerButtons, personas: UserPersonas, histories: HistoryRouter
    ) -> None:
        self._buttons = buttons
        self._personas = personas
        self._histories = histories

    async def press_refusal(self, pressed: Pressed) -> str | None:
        """Return why a button may not be pressed."""
        return await self._buttons.refusal(pressed)

    async def text_to_edit(self, said: Said) -> EditableText:
        """Return the form in which a message of a character is edited."""
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
