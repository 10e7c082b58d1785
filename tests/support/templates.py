"""Templates that change message texts in different ways, and a conversation to render."""

from typing import Any

from bot.templates import JinjaTemplate, StringTemplate, get
from bot.templates.control_tokens import ChatTemplate

CHATML = JinjaTemplate(
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
)
TRIMMED = JinjaTemplate(
    "{% for m in messages %}<start_of_turn>{{ m.role }}\n{{ m.content | trim }}<end_of_turn>\n"
    "{% endfor %}"
)
WITHOUT_REASONING = JinjaTemplate(
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content.split('</think>')[-1] }}{% endfor %}"
)
UPPER_CASE = JinjaTemplate("{% for m in messages %}<USER>{{ m.content | upper }}{% endfor %}")
ALL: dict[str, ChatTemplate] = {
    "chatml": CHATML,
    "trimmed": TRIMMED,
    "without reasoning": WITHOUT_REASONING,
    "upper case": UPPER_CASE,
    "strings": StringTemplate(),
    "roles": get("internlm2")(),
    "llama2": get("llama2")(),
    "chatglm": get("chatglm")(),
}


def conversation(*texts: str) -> list[dict[str, Any]]:
    return [
        {"role": ("user", "assistant")[index % 2], "content": text}
        for index, text in enumerate(texts)
    ]
