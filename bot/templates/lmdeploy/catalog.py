"""Register the chat templates of LMDeploy 0.6.4 and the five of its document (catalog.toml)."""

import tomllib
from functools import partial
from pathlib import Path

from bot.templates.lmdeploy import model_templates
from bot.templates.lmdeploy import model_templates as tool_templates
from bot.templates.registry import register
from bot.templates.role_template import BaseTemplate, RoleTemplate

_MODULES = (model_templates, tool_templates)
_CLASSES = {name: each for module in _MODULES for name, each in vars(module).items()}
_CLASSES |= {"BaseTemplate": BaseTemplate, "RoleTemplate": RoleTemplate}


def _register_all() -> None:
    catalog = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
    for template in catalog["template"]:
        names = template.pop("names")
        template_class = _CLASSES[template.pop("class", "RoleTemplate")]
        inherited = catalog["base"].get(template.pop("like", ""), {})
        unset = dict.fromkeys(template.pop("unset", []))
        register(*names)(partial(template_class, **inherited | template | unset))


_register_all()
