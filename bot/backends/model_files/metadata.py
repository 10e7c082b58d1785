"""What a model on this machine is, what it may be used for, and how much memory it wants."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bot.backends.model_files.gguf import read_header
from bot.settings import ProviderSettings
from bot.templates.families.detection import detect_family

PROJECTOR = "no model but a projector: PROJECTOR_PATH names it, for the model that it belongs to"

_BYTES_OF_A_NUMBER = 2  # keys and values are kept in 16 bits
_ENGINE_BYTES = 64 * 2**20  # measured: a server with SmolLM2 takes 63 MiB beside weights and cache
_WORKING_SHARE = 0.1  # of the weights, for what is computed between the layers

# llama.cpp's `llama_ftype`, as it stands in `general.file_type`.
_FILE_TYPES = (
    "F32 F16 Q4_0 Q4_1 - - - Q8_0 Q5_0 Q5_1 Q2_K Q3_K_S Q3_K_M Q3_K_L Q4_K_S Q4_K_M Q5_K_S Q5_K_M "
    "Q6_K IQ2_XXS IQ2_XS Q2_K_S IQ3_XS IQ3_XXS IQ1_S IQ4_NL IQ3_S IQ3_M IQ2_S IQ2_M IQ4_XS IQ1_M "
    "BF16 - - - TQ1_0 TQ2_0 MXFP4"
)


@dataclass(frozen=True, slots=True)
class Facts:
    """A model by its own words; empty texts and zeros where it says nothing."""

    name: str
    architecture: str
    licence: str
    template: str
    quantization: str
    parameters: int
    context_tokens: int  # that it was trained for
    weight_bytes: int
    bytes_for_each_token: int  # of a conversation, in the engine's memory
    is_projector: bool  # no model, but what lets one see images

    def memory_bytes(self, settings: ProviderSettings) -> int:
        """What an engine takes that holds this model and all its conversations, about.

        Weights, and keys and values of `context_tokens`, as far as the model goes, for each of
        `parallel` conversations; a model that forgets what lies far back needs less.
        """
        tokens = min(settings.context_tokens, self.context_tokens or settings.context_tokens)
        cache = self.bytes_for_each_token * tokens * settings.parallel
        return _ENGINE_BYTES + round(self.weight_bytes * (1 + _WORKING_SHARE)) + cache


def read_facts(path: Path) -> Facts:
    """Raise SettingsError when the file cannot be read as GGUF."""
    header = read_header(path)
    values = header.values
    architecture = _text(values, "general.architecture")
    return Facts(
        name=_text(values, "general.name"),
        architecture=architecture,
        licence=_text(values, "general.license"),
        template=_template(values.get("tokenizer.chat_template")),
        quantization=_quantization(values.get("general.file_type")),
        parameters=header.parameters,
        context_tokens=_number(values, f"{architecture}.context_length"),
        weight_bytes=path.stat().st_size,
        bytes_for_each_token=_bytes_for_each_token(values, architecture),
        is_projector=architecture == "clip",
    )


def _quantization(file_type: object) -> str:
    known = dict(enumerate(_FILE_TYPES.split()))
    return known.get(file_type, "").strip("-") if isinstance(file_type, int) else ""


def _template(source: object) -> str:
    if not isinstance(source, str):
        return "none; prompts are written in ChatML"
    family = detect_family(source)
    return f"its own, which is our {family}" if family else "its own"


def _bytes_for_each_token(values: Mapping[str, Any], architecture: str) -> int:
    """Keys and values of all layers, as llama.cpp's `n_embd_k_gqa` and `n_embd_v_gqa` count them.

    A layer keeps, for each head of `head_count_kv`, `key_length` and `value_length` numbers.
    """

    def of(key: str) -> int:
        return _number(values, f"{architecture}.{key}")

    layers, heads = of("block_count"), of("attention.head_count")
    width = of("embedding_length") // heads if heads else 0
    key = of("attention.key_length") or width
    value = of("attention.value_length") or width
    listed = values.get(f"{architecture}.attention.head_count_kv")
    if isinstance(listed, list | tuple):  # some models differ from layer to layer
        kept = sum(each for each in listed if isinstance(each, int))
    else:
        kept = layers * (listed if isinstance(listed, int) else heads)
    return kept * (key + value) * _BYTES_OF_A_NUMBER


def _number(values: Mapping[str, Any], key: str) -> int:
    value = values.get(key)
    if isinstance(value, list | tuple):  # one for each layer
        value = max((each for each in value if isinstance(each, int)), default=0)
    return value if isinstance(value, int) else 0


def _text(values: Mapping[str, Any], key: str) -> str:
    value = values.get(key)
    return value if isinstance(value, str) else ""
