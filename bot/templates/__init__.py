"""Chat templates: the text that a model was trained on, made from messages."""

from bot.templates import lmdeploy_models
from bot.templates.jinja import JinjaTemplate
from bot.templates.lmdeploy import BaseTemplate, RoleTemplate
from bot.templates.registry import get, names, register
from bot.templates.strings import StringTemplate

__all__ = [
    "BaseTemplate",
    "JinjaTemplate",
    "RoleTemplate",
    "StringTemplate",
    "get",
    "lmdeploy_models",
    "names",
    "register",
]
