"""Set-up: from a bot's token to the file that the next start reads."""

from collections.abc import Callable

from aiohttp import web
from pydantic import BaseModel, Field

from bot.chat.access import AuditEntry, Scope
from bot.console.routes import ConsoleRequest, NavigationItem, Page, RouteGroup, redirect, route
from bot.errors import PlatformError, RequestRefused, SettingsError
from bot.ports import Clock
from bot.setup.accounts import SetupSteps
from bot.storage.operation import AuditLog
from bot.texts.text import Text, text_of, translatable
from bot.value_class import value_class

SETUP_PATH = "/setup"


class TokenForm(BaseModel):
    token: str = Field(min_length=1, max_length=300)


@value_class
class SetupPage(RouteGroup):
    """Leads through the steps of `troupe init`.

    Args:
        steps: what was chosen so far.
        audit: notes who wrote the file.
        mask: removes secrets from what is shown.
        clock: the time.
    """

    navigation = (NavigationItem(SETUP_PATH, translatable("Set-up"), "setup"),)

    steps: SetupSteps
    audit: AuditLog
    mask: Callable[[str], str]
    clock: Clock

    @route(f"GET {SETUP_PATH}", Scope.OPERATE, "The page of the set-up.")
    async def _page(self, _: ConsoleRequest) -> Page:
        return await self._shown()

    async def _shown(self, **values: object) -> Page:
        bots = self.steps.bots
        return Page(
            "setup.html",
            {
                "choices": await self.steps.choices(),
                "bots": {one.kind: one for one in bots},
                "names": list(self.steps.variables()),
                "is_waiting": any(one.is_waiting for one in bots),
                "problem": "",
                "problem_of": "",
                "written": None,
                **values,
            },
        )

    @route(
        f"POST {SETUP_PATH}/{{platform}}/token",
        Scope.OPERATE,
        "Check a bot's token.",
        body=TokenForm,
    )
    async def _check_token(self, request: ConsoleRequest) -> web.Response | Page:
        kind = request.http.match_info["platform"]
        try:
            await self.steps.check_token(kind, request.body(TokenForm).token.strip())
        except PlatformError as error:
            return await self._shown(problem=self._masked(error), problem_of=kind)
        return redirect(SETUP_PATH)

    @route(
        f"POST {SETUP_PATH}/{{platform}}/admin",
        Scope.OPERATE,
        "Wait for the code of the first admin.",
    )
    async def _ask_for_admin(self, request: ConsoleRequest) -> web.Response | Page:
        kind = request.http.match_info["platform"]
        try:
            await self.steps.ask_for_admin(kind)
        except PlatformError as error:
            return await self._shown(problem=self._masked(error), problem_of=kind)
        return redirect(SETUP_PATH)

    def _masked(self, error: PlatformError) -> str:
        text = text_of(error)
        return text.with_values(self.mask) if isinstance(text, Text) else self.mask(text)

    @route(f"POST {SETUP_PATH}/{{platform}}/forget", Scope.OPERATE, "Drop a bot that was chosen.")
    async def _forget(self, request: ConsoleRequest) -> web.Response:
        await self.steps.forget(request.http.match_info["platform"])
        return redirect(SETUP_PATH)

    @route(f"POST {SETUP_PATH}/write", Scope.OPERATE, "Write .env.")
    async def _write(self, request: ConsoleRequest) -> Page:
        names = list(self.steps.variables())
        try:
            overridden = await self.steps.write()
        except SettingsError as error:
            raise RequestRefused(409, str(error)) from None
        now, who = self.clock.now(), request.caller.name
        await self.audit.record(AuditEntry(now, who, "write .env", ", ".join(names)))
        return await self._shown(written=names, overridden=overridden)
