"""What is used of llama.cpp's C interface is listed, and the bindings have it."""

import ast
import importlib.util
import re
from pathlib import Path

import pytest

MODULE = "bot.backends.llama_cpp.bindings_child"


def test_every_c_function_in_use_is_listed_and_exists() -> None:
    bindings = pytest.importorskip("llama_cpp", reason="the bindings are not built")
    spec = importlib.util.find_spec(MODULE)
    assert spec is not None
    assert spec.origin is not None
    module = ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
    used = {
        node.attr
        for node in ast.walk(module)
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "llama_cpp"
    }

    listed = re.findall(r"^(llama_\w+)", ast.get_docstring(module) or "", re.MULTILINE)
    assert {name for name in used if name.islower()} == set(listed)
    assert all(hasattr(bindings, name) for name in used)
