"""The default model, downloaded once per checkout for all tests."""

import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest

from bot.backends.model_files import store as model_store
from tests.checkout import CHECKOUT

_CHECKOUT_DATA = CHECKOUT / "data"

# CI builds the bindings once (`make bindings`); elsewhere they take minutes.
WITH_BINDINGS = pytest.mark.skipif(
    find_spec("llama_cpp") is None, reason="the bindings are not built: `make bindings`"
)
ENGINES = ["xllamacpp", pytest.param("llama_cpp_python", marks=WITH_BINDINGS)]
DEFAULT_ENGINE = [
    "xllamacpp",
    pytest.param("llama_cpp_python", marks=[WITH_BINDINGS, pytest.mark.soak]),
]
"""For behavior that test_engine.py in contracts tests with both engines, or that both inherit."""


async def lend_model(data_dir: Path) -> Path:
    """Copy the default model into a data directory; return the original file."""
    real = await model_store.pull_default_model(_CHECKOUT_DATA, report_progress=lambda _: None)
    model_store.models_folder(data_dir).mkdir(parents=True)
    lent = model_store.models_folder(data_dir) / model_store.DEFAULT_MODEL_FILE
    try:
        lent.hardlink_to(real)
    except OSError:  # on another disk
        shutil.copyfile(real, lent)
    return real
