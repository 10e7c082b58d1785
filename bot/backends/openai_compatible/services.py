"""The services whose id is enough to find them, and their quirks (docs/sources.md#openai)."""

import re
from collections.abc import Mapping
from dataclasses import replace

from bot.backends.chat_completions.quirks import NO_QUIRKS, Quirks
from bot.backends.openai_compatible import azure
from bot.chat.prompt import ALL_CAPABILITIES, Capabilities
from bot.value_class import value_class

# Where both names of the limit are known, presets may use either.
_LIMIT = {"max_tokens": "max_completion_tokens"}
_ONE_LIMIT = {"max_completion_tokens": "max_tokens"}
_LOGPROBS = ("logprobs", "top_logprobs")
_SAMPLING = ("temperature", "top_p", "presence_penalty", "frequency_penalty", "logit_bias", "stop")
_SYSTEM_FIRST = Capabilities(
    accepts_system=True,
    accepts_late_system=False,
    accepts_repeated_roles=True,
    accepts_assistant_first=True,
)
# Every chat template with a system role renders these orders; those of Qwen 3.5, Gemma 3 and
# Mistral reject anything else, and so does each server that runs them.
_STRICT = replace(_SYSTEM_FIRST, accepts_repeated_roles=False, accepts_assistant_first=False)
_ALTERNATING = replace(ALL_CAPABILITIES, accepts_repeated_roles=False)
_NOTHING: Mapping[str, object] = {}
_PREFIX = ({"prefix": True}, _NOTHING)
_PARTIAL = ({"partial": True}, _NOTHING)
_OPEN_ENDED = (_NOTHING, {"continue_final_message": True, "add_generation_prompt": False})
_UNKNOWN = Quirks(accepts=_STRICT)


@value_class
class KnownService:
    """A public service, or a server that people run themselves."""

    address: str
    quirks: Quirks = NO_QUIRKS
    special_models: re.Pattern[str] | None = None
    special_quirks: Quirks = NO_QUIRKS
    marking_models: re.Pattern[str] | None = None
    """The names of models whose prefix is cached only up to where it is marked."""
    is_own_server: bool = False
    """Self-hosted: it needs no key, costs nothing, and may have any address."""
    lists_all: bool = True
    """Whether it lists every model that it has; others have aliases, or take any name."""
    sees_images: bool = False
    """Whether all of its models see images; elsewhere a setting says so."""
    context_tokens: int | None = None


_OPENAI = KnownService(
    "https://api.openai.com/v1",
    Quirks(renamed=_LIMIT, has_names=True),
    # Later models take sampling parameters again while they do not reason.
    re.compile(r"(o[1-9](-mini|-pro)?|gpt-5(-mini|-nano|-pro)?)(-\d{4}-\d\d-\d\d)?"),
    Quirks(renamed=_LIMIT, refused=_SAMPLING, has_names=True),
    sees_images=True,
)

SERVICES: Mapping[str, KnownService] = {
    "openai": _OPENAI,
    # Each resource has an address of its own, and lists models that are not deployed.
    azure.PROVIDER: replace(_OPENAI, address="", lists_all=False),
    "deepseek": KnownService(
        "https://api.deepseek.com/v1",
        Quirks(renamed=_ONE_LIMIT),
        re.compile(r"deepseek-reasoner"),
        Quirks(renamed=_ONE_LIMIT, refused=_LOGPROBS, accepts=_ALTERNATING),
    ),
    # Only at this address do its models continue an answer.
    "deepseek_beta": KnownService(
        "https://api.deepseek.com/beta", Quirks(renamed=_ONE_LIMIT, continuation=_PREFIX)
    ),
    "moonshot": KnownService(
        "https://api.moonshot.cn/v1", Quirks(renamed=_ONE_LIMIT, continuation=_PARTIAL)
    ),
    "zhipu": KnownService("https://open.bigmodel.cn/api/paas/v4", Quirks(renamed=_ONE_LIMIT)),
    "dash_scope": KnownService(
        "https://dashscope.aliyuncs.com/compatible-mode/v1",
        Quirks(renamed=_ONE_LIMIT, accepts=_STRICT, continuation=_PARTIAL),
    ),
    "silicon_flow": KnownService(
        "https://api.siliconflow.cn/v1", Quirks(renamed=_ONE_LIMIT, accepts=_STRICT)
    ),
    "open_router": KnownService(
        "https://openrouter.ai/api/v1",
        Quirks(renamed=_ONE_LIMIT, accepts=_STRICT),
        re.compile(r"(openai/(?!gpt-oss)|anthropic/|google/gemini|x-ai/).*"),
        Quirks(renamed=_ONE_LIMIT),
        marking_models=re.compile(r"anthropic/.*"),
    ),
    "groq": KnownService(
        "https://api.groq.com/openai/v1",
        Quirks(refused=("logit_bias", *_LOGPROBS), accepts=_STRICT),
    ),
    # Usage comes with the last chunk without being asked for; asking is an unknown field.
    "mistral_ai": KnownService(
        "https://api.mistral.ai/v1",
        Quirks(
            renamed={**_ONE_LIMIT, "seed": "random_seed"},
            refused=("stream_options", "logit_bias", "user", *_LOGPROBS),
            accepts=_SYSTEM_FIRST,
            continuation=_PREFIX,
        ),
    ),
    "together_ai": KnownService(
        "https://api.together.xyz/v1", Quirks(renamed=_ONE_LIMIT, accepts=_STRICT)
    ),
    "gemini": KnownService(
        "https://generativelanguage.googleapis.com/v1beta/openai",
        Quirks(
            refused=("frequency_penalty", "presence_penalty", "seed", "logit_bias", "top_k", "user")
        ),
        sees_images=True,
    ),
    "x_ai": KnownService(
        "https://api.x.ai/v1",
        NO_QUIRKS,
        re.compile(r"grok-(3-mini|4|code)(?!.*non-reasoning).*"),
        Quirks(refused=("presence_penalty", "frequency_penalty", "stop")),
        lists_all=False,
    ),
    "cohere": KnownService(
        "https://api.cohere.ai/compatibility/v1",
        Quirks(renamed=_ONE_LIMIT, refused=("logit_bias", "top_logprobs", "user")),
    ),
    # It moves every system message to the beginning. The service's own API is another kind.
    "anthropic_openai": KnownService(
        "https://api.anthropic.com/v1", Quirks(accepts=_SYSTEM_FIRST), lists_all=False
    ),
    "litellm": KnownService("http://127.0.0.1:4000/v1", _UNKNOWN),
    "ollama": KnownService(
        "http://127.0.0.1:11434/v1",
        _UNKNOWN,
        is_own_server=True,
        context_tokens=4096,  # its default on most machines; it cuts longer prompts without a word
    ),
    "lmstudio": KnownService(
        "http://127.0.0.1:1234/v1", _UNKNOWN, is_own_server=True, lists_all=True
    ),
    "vllm": KnownService(
        "http://127.0.0.1:8000/v1",
        Quirks(accepts=_STRICT, continuation=_OPEN_ENDED),
        is_own_server=True,
    ),
    "sglang": KnownService(
        "http://127.0.0.1:30000/v1",
        Quirks(accepts=_STRICT, continuation=_OPEN_ENDED),
        is_own_server=True,
    ),
    "llama_server": KnownService(
        "http://127.0.0.1:8080/v1",
        Quirks(accepts=_STRICT, continuation=(_NOTHING, _NOTHING)),
        is_own_server=True,
        lists_all=False,
    ),
}

WELL_KNOWN = {name: service.address for name, service in SERVICES.items() if service.address}

KEYLESS = frozenset(name for name, service in SERVICES.items() if service.is_own_server)

_BY_ADDRESS = {service.address: service for service in SERVICES.values()}


def known_service(provider: str, base_url: str) -> KnownService | None:
    """Return the service at an address, or the server that a provider's id means at any address."""
    if base_url in _BY_ADDRESS:
        return _BY_ADDRESS[base_url]
    if azure.is_azure(provider, base_url):
        return SERVICES[azure.PROVIDER]
    return SERVICES[provider] if provider in KEYLESS else None


def quirks_of(provider: str, base_url: str, model: str) -> Quirks:
    """Return the quirks of a provider's model; unknown ones get the strictest order of roles."""
    service = known_service(provider, base_url)
    if service is None:
        return _UNKNOWN
    pattern, marking = service.special_models, service.marking_models
    quirks = service.special_quirks if pattern and pattern.fullmatch(model) else service.quirks
    return replace(quirks, marks_prefix=True) if marking and marking.fullmatch(model) else quirks
