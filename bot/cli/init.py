"""`troupe init`: set up a model, Telegram and Discord by questions or flags, and write `.env`."""

import asyncio
import difflib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer

from bot.cli.init_steps import (
    AccountStep,
    add_first_admin,
    ask_for_account,
    ask_for_model,
    check_account,
    check_model,
)
from bot.cli.questions import confirm
from bot.cli.text_io import print_line
from bot.cli.typer_apps import command_app
from bot.errors import TroupeError, UserError
from bot.settings import Settings, read_settings, set_in_environment
from bot.setup.accounts import add_admins, platforms_with_tokens, token_variable
from bot.setup.env_file import read_names, write_variables
from bot.setup.models import INCLUDED, ModelChoice, find_service, known_providers
from bot.telemetry.logs import only_warnings_logged

_INTERRUPTED = 130

app = command_app()


@dataclass(slots=True)
class _Plan:
    """What will be written when all is said."""

    settings: Settings
    variables: dict[str, str | None] = field(default_factory=dict)
    admins: list[str] = field(default_factory=list)
    accounts: list[AccountStep] = field(default_factory=list)

    def add_account(self, step: AccountStep) -> None:
        self.variables[token_variable(step.spec)] = step.token
        self.accounts.append(step)

    def all_variables(self) -> Mapping[str, str | None]:
        admins = add_admins(self.settings, self.admins) if self.admins else None
        return {**self.variables, **({"TROUPE_ADMINS": admins} if admins else {})}


@app.command()
def init(
    telegram_token: Annotated[
        str | None, typer.Option(help="The token of a bot on Telegram, from @BotFather.")
    ] = None,
    discord_token: Annotated[
        str | None, typer.Option(help="The token of a bot on Discord, from the developer portal.")
    ] = None,
    provider: Annotated[
        str | None,
        typer.Option(help="Who answers: openai, anthropic, ollama ...; included: the small model."),
    ] = None,
    api_key: Annotated[str | None, typer.Option(help="The key for the provider.")] = None,
    base_url: Annotated[
        str | None, typer.Option(help="The address of a service with OpenAI's API.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="The name of the provider's model.")] = None,
    model_file: Annotated[Path | None, typer.Option(help="A GGUF file on this machine.")] = None,
    pull: Annotated[
        str | None, typer.Option(help="A model to download: OWNER/NAME:FILE on a hub.")
    ] = None,
    admin: Annotated[
        list[str] | None, typer.Option(help="An admin: telegram:<id> or discord:<id>.")
    ] = None,
    first_admin: Annotated[
        str | None,
        typer.Option(help="Wait for a code that the first admin sends: telegram or discord."),
    ] = None,
    check: Annotated[
        bool, typer.Option(help="Check tokens, keys and models before they are written.")
    ] = True,
    yes: Annotated[bool, typer.Option("--yes", help="Ask nothing; use the flags only.")] = False,
    env_file: Annotated[Path, typer.Option(help="The file to write.")] = Path(".env"),
) -> None:
    """Set up a model, Telegram and Discord, and write .env.

    Everything is checked before it is written: tokens, keys, models. Every question can be skipped
    with Enter, and nothing is written before the last one. Other lines of the file are kept.
    """
    plan = _Plan(read_settings())
    read_settings(admins=",".join(admin or ()))  # refuses what is no id
    tokens = {"telegram": telegram_token, "discord": discord_token}
    given = _given_model(provider, api_key, base_url, model, model_file)
    plan.admins = list(admin or ())
    try:
        if not yes:
            print_line(
                "Set-up of Troupe. Enter skips a question; nothing is written until the end."
            )
        with only_warnings_logged():
            _set_model(plan, given, pull, check=check, yes=yes)
            _set_accounts(plan, tokens, check=check, yes=yes)
            _set_first_admin(plan, first_admin, yes=yes)
        _write(plan, env_file, yes=yes)
    except (KeyboardInterrupt, EOFError):
        sys.stdout.write("\n")
        sys.stderr.write("troupe: set-up was stopped; nothing was written\n")
        raise typer.Exit(_INTERRUPTED) from None


def _given_model(
    provider: str | None,
    api_key: str | None,
    base_url: str | None,
    model: str | None,
    model_file: Path | None,
) -> ModelChoice | None:
    """Return the model that the flags choose; None if they choose none."""
    if provider == INCLUDED:
        return ModelChoice()
    if provider is not None and base_url is None:
        provider = find_service(provider) or provider
    if provider is not None and provider not in known_providers() and base_url is None:
        near = difflib.get_close_matches(provider, known_providers(), n=1)
        hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(known_providers())}"
        raise UserError(f"there is no provider {provider!r}; {hint}; others need --base-url")
    if not any((provider, api_key, base_url, model, model_file)):
        return None
    if api_key and not (provider or base_url):
        raise UserError("--api-key needs --provider or --base-url: whose key is it?")
    path = model_file.expanduser().absolute() if model_file else None
    return ModelChoice(provider, base_url, api_key, model, path)


def _set_model(
    plan: _Plan, given: ModelChoice | None, pull: str | None, *, check: bool, yes: bool
) -> None:
    choice = given
    if choice is not None or pull is not None:
        choice = check_model(choice or ModelChoice(), pull, plan.settings, is_checked=check)
    elif not yes:
        choice = ask_for_model(plan.settings)
    if choice is not None:
        plan.variables |= choice.variables


def _set_accounts(plan: _Plan, tokens: Mapping[str, str | None], *, check: bool, yes: bool) -> None:
    for spec in platforms_with_tokens():
        token = tokens.get(spec.kind)
        if token is not None:
            plan.add_account(check_account(spec, token, plan.settings, is_checked=check))
        elif not yes and (step := ask_for_account(spec, plan.settings)) is not None:
            plan.add_account(step)


def _set_first_admin(plan: _Plan, wanted: str | None, *, yes: bool) -> None:
    steps = {step.spec.kind: step for step in plan.accounts}
    if wanted is not None:
        if wanted not in steps:
            raise UserError(f"--first-admin {wanted} needs --{wanted}-token")
        plan.admins.append(asyncio.run(add_first_admin(steps[wanted], plan.settings)))
    if yes or plan.admins:
        return
    for step in steps.values():
        if step.account is not None and _ask_for_admin(step, plan):
            return


def _ask_for_admin(step: AccountStep, plan: _Plan) -> bool:
    """Offer to become the first admin; return whether somebody did."""
    name = step.spec.kind.capitalize()
    if not confirm(f"Become the first admin by sending a code to the bot on {name}?", default=True):
        return False
    try:
        plan.admins.append(asyncio.run(add_first_admin(step, plan.settings)))
    except TroupeError as error:
        print_line(f"  {error}")
        return False
    return True


def _write(plan: _Plan, env_file: Path, *, yes: bool) -> None:
    present = read_names(env_file)
    wanted = plan.all_variables()
    variables = {n: value for n, value in wanted.items() if value is not None or n in present}
    if not variables:
        print_line("Nothing was chosen, so nothing is written. `troupe chat` talks here.")
        return
    print_line(f"{env_file} gets: {', '.join(_describe(variables))}")
    if not yes and not confirm("Write it?", default=True):
        print_line("Nothing was written.")
        return
    write_variables(env_file, variables)
    print_line(f"{env_file} was written; only you can read it.")
    for name in set_in_environment(variables):
        print_line(f"The environment sets {name}, too, and overrides this file: remove it there.")
    print_line("Start it with `make run` or `troupe run`; `troupe check` tests all of it.")


def _describe(variables: Mapping[str, str | None]) -> Sequence[str]:
    return [name if value is not None else f"no {name}" for name, value in variables.items()]
