"""Register the templates of model families that we ship as `families/*.jinja`.

A family's tokens and stop words are those of its models' configuration. The files are our own,
formatted to be readable; the tests compare them with the models' own templates.
"""

from functools import partial
from importlib.resources import files
from typing import Any

from bot.frozen_dataclass import frozen_dataclass
from bot.templates.jinja.jinja_template import JinjaTemplate
from bot.templates.registry import register


class FamilyTemplate(JinjaTemplate):
    """A shipped template with the stop words of its models."""

    def __init__(self, source: str, *, stop_words: tuple[str, ...], **tokens: Any) -> None:
        super().__init__(source, **tokens)
        self.stop_words = list(stop_words)


@frozen_dataclass
class TemplateFamily:
    """Models that share a chat template."""

    file: str
    """The name of the file in this folder, without `.jinja`."""

    names: tuple[str, ...]
    """The template names under which the family is registered."""

    bos_token: str
    eos_token: str
    stop_words: tuple[str, ...]


def _family(
    *names: str, bos: str = "", eos: str = "", stop: tuple[str, ...] = ()
) -> TemplateFamily:
    return TemplateFamily(names[0], names, bos, eos, stop or ((eos,) if eos else ()))


DEEPSEEK_BOS, DEEPSEEK_EOS = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"
GLM_STOP = ("<|user|>", "<|observation|>", "<|endoftext|>")
PHI3_STOP = ("<|end|>", "<|endoftext|>")

FAMILIES = (
    # The five families of the original document on Jinja templates
    _family("llama-2", bos="<s>", eos="</s>"),
    _family("mistral-v0.1", bos="<s>", eos="</s>"),
    _family("qwen1.5", bos="<|endoftext|>", eos="<|im_end|>"),
    _family("gemma-1.1", "gemma-2", bos="<bos>", eos="<eos>", stop=("<end_of_turn>", "<eos>")),
    _family("llama-3", bos="<|begin_of_text|>", eos="<|eot_id|>"),
    # Other families in use
    _family("alpaca", bos="<s>", eos="</s>", stop=("</s>", "### Instruction:")),
    _family("chatglm3-6b", stop=("<|user|>", "<|observation|>")),
    _family("chatml", "dolphin", eos="<|im_end|>"),
    _family("command-r", bos="<BOS_TOKEN>", eos="<|END_OF_TURN_TOKEN|>"),
    _family("deepseek-llm", "deepseek-v2", bos=DEEPSEEK_BOS, eos=DEEPSEEK_EOS),
    _family("deepseek-r1", bos=DEEPSEEK_BOS, eos=DEEPSEEK_EOS),
    _family("falcon-instruct", eos="<|endoftext|>", stop=("<|endoftext|>", "\nUser:")),
    _family("gemma-3", bos="<bos>", eos="<eos>", stop=("<end_of_turn>", "<eos>")),
    _family("glm-4", stop=GLM_STOP),
    _family("glm-edge", stop=GLM_STOP),
    _family("granite-3.0", bos="<|end_of_text|>", eos="<|end_of_text|>"),
    _family("internlm2.5", "internlm3", bos="<s>", eos="<|im_end|>"),
    _family("kimi-k2", bos="[BOS]", eos="[EOS]", stop=("<|im_end|>", "[EOS]")),
    _family("llama-3.1", "llama-3.3", bos="<|begin_of_text|>", eos="<|eot_id|>"),
    _family("megrez", eos="<|turn_end|>"),
    _family("minicpm", bos="<s>", eos="</s>"),
    _family("mistral-large", bos="<s>", eos="</s>"),
    _family("mistral-v0.2", "mixtral-8x7b", bos="<s>", eos="</s>"),
    _family("mistral-v1-system", bos="<s>", eos="</s>"),
    _family("moonlight", bos="[BOS]", eos="[EOS]", stop=("<|im_end|>", "[EOS]")),
    _family("openchat-3.5", bos="<s>", eos="</s>", stop=("<|end_of_turn|>", "</s>")),
    _family("orion", bos="<s>", eos="</s>"),
    _family("phi-3-mini", bos="<s>", eos="<|endoftext|>", stop=PHI3_STOP),
    _family("phi-3.5", bos="<s>", eos="<|endoftext|>", stop=PHI3_STOP),
    _family("phi-4", bos="<|endoftext|>", eos="<|im_end|>"),
    _family("qwen2.5", bos="<|endoftext|>", eos="<|im_end|>"),
    _family("qwen3", bos="<|endoftext|>", eos="<|im_end|>"),
    _family("smollm2", bos="<|im_start|>", eos="<|im_end|>"),
    _family("solar-instruct", bos="<s>", eos="</s>", stop=("</s>", "### User:")),
    _family("vicuna-v1.1", bos="<s>", eos="</s>"),
    _family("xverse", eos="<|endoftext|>", stop=("<|endoftext|>", "<|user|>")),
    _family("yi-1.5", bos="<s>", eos="<|im_end|>"),
    _family("zephyr", eos="</s>"),
)


def make_family_template(family: TemplateFamily, **overrides: Any) -> FamilyTemplate:
    """Read and compile the family's file; `overrides` replace its tokens and stop words."""
    source = files("bot.templates").joinpath("families", f"{family.file}.jinja")
    values = {
        "bos_token": family.bos_token,
        "eos_token": family.eos_token,
        "stop_words": family.stop_words,
        **overrides,
    }
    return FamilyTemplate(source.read_text(encoding="utf-8"), **values)


for _family_entry in FAMILIES:
    register(*_family_entry.names)(partial(make_family_template, _family_entry))
