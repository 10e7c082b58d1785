"""Chat templates: the text that a model was trained on, made from messages.

jinja, sandbox      a model's own template, as transformers renders it
lmdeploy, …_forms, …_models      the words around each role, as LMDeploy writes them
strings             a line per role, as RodelAgent writes it
shipped, families/  the families that we ship, by name
registry            all names
adaptation          conversations in the form that a template accepts
pieces, markers     which part of a prompt people wrote
worker              templates that people wrote, rendered in a process that may be killed
"""

from bot.templates import shipped
from bot.templates.jinja.jinja import JinjaTemplate
from bot.templates.lmdeploy import models as lmdeploy_models
from bot.templates.lmdeploy.lmdeploy import BaseTemplate, RoleTemplate
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
    "shipped",
]
