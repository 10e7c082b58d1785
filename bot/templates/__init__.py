"""Chat templates, which convert messages to the prompt format that a model was trained on."""

from bot.templates import lmdeploy
from bot.templates.jinja_template import JinjaTemplate
from bot.templates.registry import get, names, register
from bot.templates.role_template import BaseTemplate, RoleTemplate, StringTemplate

__all__ = [
    "BaseTemplate",
    "JinjaTemplate",
    "RoleTemplate",
    "StringTemplate",
    "get",
    "lmdeploy",
    "names",
    "register",
]
