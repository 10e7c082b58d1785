"""Test that models of aiogram are built only when they are first used."""

import json
import subprocess
import sys

import pytest

_IMPORT = """
import json
import pydantic
built_by_pydantic = pydantic.BaseModel.model_rebuild.__func__
import bot.platforms.telegram.platform
from aiogram import methods, types

models = [getattr(module, name) for module in (types, methods) for name in module.__all__]
models = [
    one for one in models if isinstance(one, type) and issubclass(one, pydantic.BaseModel)
]
common = {"Update", "Message", "Chat", "SendMessage"}
built = {one.__name__ for one in models if one.__pydantic_complete__}
message = {"message_id": 1, "date": 1, "chat": {"id": 5, "type": "private"}, "text": "Hi."}
update = types.Update.model_validate({"update_id": 1, "message": message})
button = types.InlineKeyboardButton(text="Stop", callback_data="stop")
keyboard = types.InlineKeyboardMarkup(inline_keyboard=[[button]])
sent = methods.SendMessage(chat_id=5, text="Hello.", reply_markup=keyboard)
used = {one.__name__ for one in models if one.__pydantic_complete__}
for one in models:
    one.model_rebuild()
print(json.dumps({
    "models": len(models),
    "built at import": sorted(built & common),
    "built at use": sorted(used & common),
    "unbuilt at the end": [one.__name__ for one in models if not one.__pydantic_complete__],
    "received": update.message.text,
    "sent": sent.reply_markup.inline_keyboard[0][0].callback_data,
    "pydantic is as before": pydantic.BaseModel.model_rebuild.__func__ is built_by_pydantic,
}))
"""


@pytest.mark.slow
def test_aiogram_builds_a_model_when_it_is_first_used() -> None:
    child = subprocess.run(
        [sys.executable, "-c", _IMPORT], capture_output=True, text=True, check=True
    )
    found = json.loads(child.stdout)

    assert found.pop("models") > 400
    assert found == {
        "built at import": [],
        "built at use": ["SendMessage", "Update"],
        "unbuilt at the end": [],
        "received": "Hi.",
        "sent": "stop",
        "pydantic is as before": True,
    }
