"""The setup page: enter a bot's token and a model, test them, and write .env."""

from collections.abc import Awaitable, Callable
from typing import Annotated

from aiohttp import web
from pydantic import Field

from bot.chat.access import ApiScope
from bot.console.routes import ConsoleRequest, NavigationItem, RouteGroup, Values, redirect, route
from bot.errors import BackendError, PlatformError, RequestRefused, SettingsError
from bot.setup import SERVICE_TITLES, ModelChoice, SetupSteps, find_local_services
from bot.storage.operation import AuditLog
from bot.texts.text import Text, translatable
from bot.value_class import value_class

SETUP_PATH = "/setup"
_TEMPLATE_NAME = "setup.html"
_FormText = Annotated[str, Field(max_length=300)]


@value_class
class SetupPage(RouteGroup):
    navigation = (NavigationItem(SETUP_PATH, translatable("Setup"), "setup"),)

    steps: SetupSteps
    audit_log: AuditLog
    mask: Callable[[str], str]

    @route(f"GET {SETUP_PATH}", ApiScope.OPERATE, template=_TEMPLATE_NAME)
    async def show(self) -> Values:
        """Show the setup steps, and the models of model servers on this machine."""
        is_waiting = any(one.awaits_code for one in self.steps.bots.values())  # refreshed every 2 s
        return await self._load_page_values(found={} if is_waiting else await find_local_services())

    async def _load_page_values(self, **values: object) -> Values:
        return {
            "choices": await self.steps.platform_choices(),
            "steps": self.steps,
            "services": SERVICE_TITLES,
            "found": {},
            "answer": "",
            "problem": "",
            "problem_of": "",
            "overridden": (),
            **values,
        }

    @route(f"POST {SETUP_PATH}/{{platform}}/token", ApiScope.OPERATE, template=_TEMPLATE_NAME)
    async def check_token(
        self, platform: str, token: Annotated[str, Field(min_length=1, max_length=300)]
    ) -> web.Response | Values:
        return await self._try_step(platform, self.steps.check_token(platform, token.strip()))

    @route(f"POST {SETUP_PATH}/model", ApiScope.OPERATE, template=_TEMPLATE_NAME)
    async def check_model(
        self, provider: _FormText, model: _FormText, key: _FormText = "", address: _FormText = ""
    ) -> web.Response | Values:
        """Ask the model a short question; if it answers, its settings can be saved."""
        choice = ModelChoice(provider, address.strip() or None, key.strip() or None, model.strip())
        return await self._try_step("model", self.steps.check_model(choice))

    @route(f"POST {SETUP_PATH}/{{platform}}/admin", ApiScope.OPERATE, template=_TEMPLATE_NAME)
    async def ask_for_admin(self, platform: str) -> web.Response | Values:
        return await self._try_step(platform, self.steps.ask_for_admin(platform))

    async def _try_step(self, step_name: str, step: Awaitable[object]) -> web.Response | Values:
        try:
            answer = await step
        except (BackendError, PlatformError, SettingsError) as error:
            text = error.text
            masked_text = text.with_values(self.mask) if isinstance(text, Text) else self.mask(text)
            return await self._load_page_values(problem=masked_text, problem_of=step_name)
        if isinstance(answer, str):
            return await self._load_page_values(answer=self.mask(answer))
        return redirect(SETUP_PATH)

    @route(f"POST {SETUP_PATH}/{{platform}}/forget", ApiScope.OPERATE, redirect=SETUP_PATH)
    async def forget(self, platform: str) -> None:
        await self.steps.drop_bot(platform)

    @route(f"POST {SETUP_PATH}/write", ApiScope.OPERATE, template=_TEMPLATE_NAME)
    async def write(self, request: ConsoleRequest) -> Values:
        names = self.steps.names_to_write()
        try:
            overridden_names = await self.steps.write_choices()
        except SettingsError as error:
            raise RequestRefused(409, str(error)) from None
        await self.audit_log.record(request.caller.name, "write .env", ", ".join(names))
        return await self._load_page_values(overridden=overridden_names)
