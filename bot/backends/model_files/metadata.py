"""Read a model's metadata from its GGUF file: licence, size, template, and memory estimate."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bot.backends.model_files.gguf import read_header
from bot.backends.model_files.settings import ModelFileSettings
from bot.frozen_dataclass import frozen_dataclass
from bot.templates.families.detection import detect_family

IS_PROJECTOR_MESSAGE = (
    "a projector, not a model: set PROJECTOR_PATH to it for the model that it belongs to"
)

_BYTES_PER_CACHE_VALUE = 2  # the KV cache holds 16-bit numbers
_ENGINE_BYTES = 64 * 2**20  # measured with SmolLM2: 63 MiB beside weights and KV cache
_COMPUTE_BUFFER_SHARE = 0.1  # of the weights

# The names of llama.cpp's `llama_ftype`, the number in `general.file_type`.
_FILE_TYPES = (
    "F32 F16 Q4_0 Q4_1 - - - Q8_0 Q5_0 Q5_1 Q2_K Q3_K_S Q3_K_M Q3_K_L Q4_K_S Q4_K_M Q5_K_S Q5_K_M "
    "Q6_K IQ2_XXS IQ2_XS Q2_K_S IQ3_XS IQ3_XXS IQ1_S IQ4_NL IQ3_S IQ3_M IQ2_S IQ2_M IQ4_XS IQ1_M "
    "BF16 - - - TQ1_0 TQ2_0 MXFP4"
)


@frozen_dataclass
class ModelMetadata:
    """What a GGUF file says of its model; empty texts and zeros where it says nothing."""

    name: str
    architecture: str
    licence: str
    template: str
    quantization: str
    parameters: int
    context_tokens: int
    """The context length that it was trained with."""
    weight_bytes: int
    bytes_per_token: int
    """Size of the KV cache for one token."""
    is_projector: bool
    """It is no language model, but lets one see images."""

    def estimate_memory_bytes(self, settings: ModelFileSettings) -> int:
        """Estimate the memory of an engine: the weights, and a KV cache for each parallel slot.

        A model with sliding-window attention needs less.
        """
        tokens = min(settings.context_tokens, self.context_tokens or settings.context_tokens)
        cache = self.bytes_per_token * tokens * settings.parallel
        return _ENGINE_BYTES + round(self.weight_bytes * (1 + _COMPUTE_BUFFER_SHARE)) + cache


def read_metadata(path: Path) -> ModelMetadata:
    """Read the metadata; raises `SettingsError` when the file is no valid GGUF."""
    header = read_header(path)
    values = header.values
    architecture = _text(values, "general.architecture")
    return ModelMetadata(
        name=_text(values, "general.name"),
        architecture=architecture,
        licence=_text(values, "general.license"),
        template=_template(values.get("tokenizer.chat_template")),
        quantization=_quantization(values.get("general.file_type")),
        parameters=header.parameters,
        context_tokens=_number(values, f"{architecture}.context_length"),
        weight_bytes=path.stat().st_size,
        bytes_per_token=_cache_bytes_per_token(values, architecture),
        is_projector=architecture == "clip",
    )


def _quantization(file_type: object) -> str:
    known = dict(enumerate(_FILE_TYPES.split()))
    return known.get(file_type, "").strip("-") if isinstance(file_type, int) else ""


def _template(source: object) -> str:
    if not isinstance(source, str):
        return "none; prompts are rendered as ChatML"
    family = detect_family(source)
    return f"its own, the same as our {family}" if family else "its own"


def _cache_bytes_per_token(values: Mapping[str, Any], architecture: str) -> int:
    """Sum keys and values of all layers, as llama.cpp's `n_embd_k_gqa` and `n_embd_v_gqa` do.

    A layer stores `key_length` and `value_length` numbers for each head of `head_count_kv`.
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
    return kept * (key + value) * _BYTES_PER_CACHE_VALUE


def _number(values: Mapping[str, Any], key: str) -> int:
    value = values.get(key)
    if isinstance(value, list | tuple):  # one for each layer
        value = max((each for each in value if isinstance(each, int)), default=0)
    return value if isinstance(value, int) else 0


def _text(values: Mapping[str, Any], key: str) -> str:
    value = values.get(key)
    return value if isinstance(value, str) else ""
