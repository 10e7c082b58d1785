"""Embed texts with an ONNX model exported by sentence-transformers; needs onnxruntime.

The path is the `.onnx` file or its folder; `tokenizer.json` is beside it or one folder up. If the
model returns a vector for each token, `1_Pooling/config.json` says whether to average them. Without
that file, the first token's vector is used, as bge and bce require.
"""

import threading
from importlib import import_module  # noqa: TID251 # packages that only this module needs
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from bot.chat.story import Vector
from bot.embedders.vectors import MAX_TEXT_TOKENS, compute_fingerprint
from bot.errors import EmbeddingError, SettingsError
from bot.ports import Embedder
from bot.prompting.embedding import FunctionEmbedder
from bot.settings import EmbeddingSettings

_PATH_SETTING = "TROUPE_EMBEDDING__MODEL_PATH"
_REQUIRED_PACKAGES = ("onnxruntime", "tokenizers")
_TOKEN_VECTORS_NDIM = 3  # texts, tokens, numbers


class _OnnxModel:
    """An ONNX model with its tokenizer, loaded on first use; thread-safe."""

    def __init__(self, model_file: Path, tokenizer_file: Path, *, uses_mean_pooling: bool) -> None:
        self._model_file = model_file
        self._tokenizer_file = tokenizer_file
        self._uses_mean_pooling = uses_mean_pooling
        self._load_lock = threading.Lock()
        self._session_and_tokenizer: tuple[Any, Any] | None = None

    def embed(self, text: str) -> Vector:
        with self._load_lock:
            self._session_and_tokenizer = self._session_and_tokenizer or self._load_session()
        return self._compute_vector(*self._session_and_tokenizer, text)

    def _load_session(self) -> tuple[Any, Any]:
        onnxruntime, tokenizers = (import_module(name) for name in _REQUIRED_PACKAGES)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        try:
            session = onnxruntime.InferenceSession(
                str(self._model_file), options, providers=["CPUExecutionProvider"]
            )
            tokenizer = tokenizers.Tokenizer.from_file(str(self._tokenizer_file))
        except Exception as error:  # neither package has a base class for its errors
            problem = f"{_PATH_SETTING}: {self._model_file} cannot be loaded: {error}"
            raise EmbeddingError(problem) from error
        tokenizer.enable_truncation(MAX_TEXT_TOKENS)
        tokenizer.no_padding()
        return session, tokenizer

    def _compute_vector(self, session: Any, tokenizer: Any, text: str) -> Vector:
        token_ids = tokenizer.encode(text.encode(errors="replace").decode()).ids or [0]
        token_row = np.array([token_ids], dtype=np.int64)
        inputs = {
            "input_ids": token_row,
            "attention_mask": np.ones_like(token_row),
            "token_type_ids": np.zeros_like(token_row),
        }
        input_names = {model_input.name for model_input in session.get_inputs()}
        outputs = session.run(None, {name: inputs[name] for name in inputs.keys() & input_names})
        # The output of a model that does its own pooling has two dimensions.
        text_vector = next(
            (output[0] for output in outputs if output.ndim < _TOKEN_VECTORS_NDIM), None
        )
        if text_vector is None:
            vectors = outputs[0][0]
            text_vector = vectors.mean(axis=0) if self._uses_mean_pooling else vectors[0]
        vector: Vector = text_vector.tolist()
        return vector


def _find_model_file(path: Path) -> Path:
    if path.is_dir():
        files = sorted([*path.glob("*.onnx"), *path.glob("onnx/*.onnx")])
        if not files:
            raise SettingsError(f"{_PATH_SETTING}: there is no .onnx file in {path}")
        # Besides model.onnx, there may be variants for other hardware.
        return next((file for file in files if file.name == "model.onnx"), files[0])
    return path


def _find_nearby_file(model: Path, name: str) -> Path | None:
    candidates = (model.parent / name, model.parent.parent / name)
    return next((path for path in candidates if path.is_file()), None)


def _uses_mean_pooling(model: Path) -> bool:
    config_file = _find_nearby_file(model, "1_Pooling/config.json")
    if config_file is None:
        return False
    try:
        pooling_config = msgspec.json.decode(config_file.read_bytes(), type=dict[str, object])
    except msgspec.DecodeError as error:
        raise SettingsError(f"{_PATH_SETTING}: {config_file} cannot be read: {error}") from None
    return pooling_config.get("pooling_mode_mean_tokens") is True


def make(settings: EmbeddingSettings, _data_dir: Path) -> Embedder:
    """Create the embedder; raise `SettingsError` if a file or package is missing."""
    if settings.model_path is None:
        raise SettingsError(f"{_PATH_SETTING} is not set; set it to an .onnx file or its folder")
    if missing_packages := [name for name in _REQUIRED_PACKAGES if find_spec(name) is None]:
        raise SettingsError(
            f"TROUPE_EMBEDDING__KIND=onnx needs {' and '.join(missing_packages)}; "
            f"`pip install {' '.join(missing_packages)}`"
        )
    model_file = _find_model_file(settings.model_path.expanduser())
    tokenizer_file = _find_nearby_file(model_file, "tokenizer.json")
    if tokenizer_file is None:
        raise SettingsError(f"{_PATH_SETTING}: there is no tokenizer.json beside {model_file}")
    uses_mean_pooling = _uses_mean_pooling(model_file)
    embed = _OnnxModel(model_file, tokenizer_file, uses_mean_pooling=uses_mean_pooling).embed
    version = f"{compute_fingerprint(model_file)}:{'mean' if uses_mean_pooling else 'first'}"
    return FunctionEmbedder(embed, embed, name="onnx", version=version, description=model_file.name)
