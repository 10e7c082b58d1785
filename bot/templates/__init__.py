"""Chat templates: they turn messages into the prompt text that a model was trained on.

registry            all template names
renderer            choose the template of a prompt and render it
capabilities        fit a conversation to what a template accepts
control_tokens      which part of a prompt is the template's and which is people's
role_template       one text per role: RodelAgent's and LMDeploy's forms
jinja_template      Jinja templates in transformers' sandbox
render_pool         templates from people, rendered in child processes with limits
family_templates    the templates that we ship, and detection of known models
lmdeploy            LMDeploy's templates
"""

from bot.templates import family_templates, lmdeploy
from bot.templates.jinja_template import JinjaTemplate
from bot.templates.registry import get, names, register
from bot.templates.role_template import BaseTemplate, RoleTemplate, StringTemplate

__all__ = [
    "BaseTemplate",
    "JinjaTemplate",
    "RoleTemplate",
    "StringTemplate",
    "family_templates",
    "get",
    "lmdeploy",
    "names",
    "register",
]
