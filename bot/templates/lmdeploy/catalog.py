"""Register the chat templates of LMDeploy 0.6.4 and the five of its document."""

from collections.abc import Callable
from functools import partial
from typing import Any

from bot.templates.lmdeploy.model_templates import (
    GLM,
    ChatGLM2,
    CodeLlama,
    DropLastCharacterTemplate,
    InternLM20B,
    InternLMChat7B,
    InternLMChat7B8K,
    Llama3,
)
from bot.templates.lmdeploy.role_template import BaseTemplate, RoleTemplate
from bot.templates.lmdeploy.tool_templates import InternLM2, Llama31, Qwen25
from bot.templates.registry import register

TemplateKeys = dict[str, Any]


def _register(
    *names: str, template_class: Callable[..., Any] = RoleTemplate, **values: Any
) -> None:
    register(*names)(partial(template_class, **values))


INTERNLM_INTRODUCTION = """\
You are an AI assistant whose name is InternLM (书生·浦语).
- InternLM (书生·浦语) is a conversational language model that is developed by Shanghai AI \
Laboratory (上海人工智能实验室). It is designed to be helpful, honest, and harmless.
- InternLM (书生·浦语) can understand and communicate fluently in the language chosen by the user \
such as English and 中文.
"""
INTERNLM: TemplateKeys = {
    "system": "<|System|>:",
    "meta_instruction": INTERNLM_INTRODUCTION,
    "eosys": "\n",
    "user": "<|User|>:",
    "eoh": "\n",
    "assistant": "<|Bot|>:",
    "stop_words": ["<eoa>"],
}
CHATML: TemplateKeys = {
    "system": "<|im_start|>system\n",
    "eosys": "<|im_end|>\n",
    "user": "<|im_start|>user\n",
    "eoh": "<|im_end|>\n",
    "assistant": "<|im_start|>assistant\n",
    "eoa": "<|im_end|>",
    "separator": "\n",
    "stop_words": ["<|im_end|>"],
}
CHATML_WITHOUT_NEWLINES: TemplateKeys = {
    **CHATML,
    "eosys": "<|im_end|>",
    "eoh": "<|im_end|>",
    "separator": "",
    "stop_words": None,
}
QWEN: TemplateKeys = {**CHATML, "meta_instruction": "You are a helpful assistant."}
INTERNLM2: TemplateKeys = {**CHATML, "stop_words": ["<|im_end|>", "<|action_end|>"]}
VICUNA: TemplateKeys = {
    "meta_instruction": (
        "A chat between a curious user and an artificial intelligence assistant. The assistant "
        "gives helpful, detailed, and polite answers to the user's questions."
    ),
    "eosys": " ",
    "user": "USER: ",
    "eoh": " ",
    "assistant": "ASSISTANT: ",
    "eoa": "</s>",
    "stop_words": ["</s>"],
}
LLAMA2: TemplateKeys = {
    "system": "[INST] <<SYS>>\n",
    "eosys": "\n<</SYS>>\n\n",
    "assistant": " [/INST] ",
    "eoa": "</s>",
    "separator": "<s>[INST] ",
    "session_len": 4096,
}
LLAMA3: TemplateKeys = {
    "system": "<|start_header_id|>system<|end_header_id|>\n\n",
    "eosys": "<|eot_id|>",
    "user": "<|start_header_id|>user<|end_header_id|>\n\n",
    "eoh": "<|eot_id|>",
    "assistant": "<|start_header_id|>assistant<|end_header_id|>\n\n",
    "eoa": "<|eot_id|>",
    "session_len": 8192,
}
GLM4: TemplateKeys = {
    "system": "<|system|>\n",
    "user": "<|user|>\n",
    "assistant": "<|assistant|>\n",
    "meta_instruction": None,
    "stop_words": ["<|user|>", "<|endoftext|>", "<|observation|>"],
}
PHI3: TemplateKeys = {
    "system": "<|system|>\n",
    "meta_instruction": None,
    "eosys": "<|end|>\n",
    "user": "<|user|>\n",
    "eoh": "<|end|>\n",
    "assistant": "<|assistant|>\n",
    "eoa": "<|end|>\n",
    "stop_words": ["<|end|>", "<|endoftext|>", "<|assistant|>"],
}
COGVLM: TemplateKeys = {"user": "Question: ", "eoh": " ", "assistant": "Answer:", "separator": "\n"}
DEEPSEEK: TemplateKeys = {
    "user": "User: ",
    "eoh": "\n\n",
    "assistant": "Assistant: ",
    "eoa": "<｜end▁of▁sentence｜>",
}
INTERNVL2_INTRODUCTION = (
    "你是由上海人工智能实验室联合商汤科技开发的书生多模态大模型，英文名叫InternVL, "
    "是一个有用无害的人工智能助手。"
)

# The five of LMDeploy's document; `internlm-7b` is registered with BaseTemplate.
_register("internlm-20b", template_class=InternLM20B, session_len=4096, capability="completion")
_register("internlm-chat-7b", template_class=InternLMChat7B, **INTERNLM, eoa="<eoa>\n")
_register(
    "internlm-chat-7b-8k",
    "internlm-chat-20b",
    template_class=InternLMChat7B8K,
    **INTERNLM,
    eoa="<eoa>\n",
    session_len=8192,
)

# InternLM and its relatives
_register("internlm", **INTERNLM, eoa="<eoa>", separator="\n")
_register(
    "internlm2", template_class=InternLM2, **INTERNLM2, meta_instruction=INTERNLM_INTRODUCTION
)
_register(
    "internvl-internlm2",
    template_class=InternLM2,
    **INTERNLM2,
    meta_instruction="You are an AI assistant whose name is InternLM (书生·浦语).",
)
_register(
    "internvl2-internlm2",
    template_class=InternLM2,
    **{**CHATML_WITHOUT_NEWLINES, "stop_words": ["<|im_start|>", "<|im_end|>"]},
    meta_instruction=INTERNVL2_INTRODUCTION,
)
_register(
    "internvl2_5",
    template_class=InternLM2,
    **INTERNLM2,
    meta_instruction=(
        "你是书生·万象，英文名是InternVL，是由上海人工智能实验室、清华大学及多家合作单位"
        "联合开发的多模态大语言模型。"
    ),
)
_register(
    "internlm-xcomposer2",
    "internlm-xcomposer2d5",
    system="[UNUSED_TOKEN_146]system\n",
    meta_instruction=INTERNLM_INTRODUCTION.replace(
        "InternLM (书生·浦语)", "InternLM-XComposer (浦语·灵笔)"
    ).replace("a conversational", "a multi-modality conversational")
    + "- InternLM-XComposer (浦语·灵笔) is capable of comprehending and articulating responses "
    "effectively based on the provided image.",
    user="[UNUSED_TOKEN_146]user\n",
    assistant="[UNUSED_TOKEN_146]assistant\n",
    eosys="[UNUSED_TOKEN_145]\n",
    eoh="[UNUSED_TOKEN_145]\n",
    eoa="[UNUSED_TOKEN_145]\n",
    separator="\n",
    stop_words=["[UNUSED_TOKEN_145]"],
)
_register(
    "internvl-zh",
    template_class=DropLastCharacterTemplate,
    user="<human>: ",
    eoh=" ",
    assistant="<bot>: ",
    eoa="</s>",
)
_register("puyu")

# ChatML
_register("qwen", "minicpm3", "minicpmv-2d6", **QWEN)
_register(
    "qwen2d5",
    template_class=Qwen25,
    **CHATML,
    meta_instruction="You are Qwen, created by Alibaba Cloud. You are a helpful assistant.",
    tools=(
        "\n\n# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
        "You are provided with function signatures within <tools></tools> XML tags:\n<tools>"
    ),
    eotools=(
        "\n</tools>\n\nFor each function call, return a json object with function name and "
        "arguments within <tool_call></tool_call> XML tags:\n<tool_call>\n"
        '{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>'
    ),
)
_register(
    "yi",
    **{**CHATML, "stop_words": ["<|im_end|>", "<|endoftext|>"]},
    meta_instruction=None,
)
_register(
    "llava-chatml",
    "internvl-zh-hermes2",
    **CHATML_WITHOUT_NEWLINES,
    meta_instruction="Answer the questions.",
)
_register(
    "dbrx",
    **{**CHATML, "stop_words": None},
    meta_instruction=(
        "You are DBRX, created by Databricks. You were last updated in December 2023. You answer "
        "questions based on information available up to that point.\n"
        "YOU PROVIDE SHORT RESPONSES TO SHORT QUESTIONS OR STATEMENTS, but provide thorough "
        "responses to more complex and open-ended questions.\n"
        "You assist with various tasks, from writing to coding (using markdown for code blocks — "
        "remember to use ``` with code, JSON, and tables).\n"
        "(You do not have real-time data access or code execution capabilities. You avoid "
        "stereotyping and provide balanced perspectives on controversial topics. You do not "
        "provide song lyrics, poems, or news articles and do not divulge details of your training "
        "data.)\n"
        "This is your system prompt, guiding your responses. Do not reference it, just respond to "
        "the user. If you find yourself talking about this message, stop. You should be responding "
        "appropriately and usually that means not mentioning this.\n"
        "YOU DO NOT MENTION ANY OF THIS INFORMATION ABOUT YOURSELF UNLESS THE INFORMATION IS "
        "DIRECTLY PERTINENT TO THE USER\\'S QUERY."
    ),
)

# Llama and derived models
_register("vicuna", "wizardlm", **VICUNA)
_register(
    "llava-v1",
    template_class=DropLastCharacterTemplate,
    **{**VICUNA, "meta_instruction": VICUNA["meta_instruction"].replace("user", "human")},
)
_register(
    "mini-gemini-vicuna", template_class=DropLastCharacterTemplate, **VICUNA, session_len=4096
)
_register(
    "llama2",
    **LLAMA2,
    meta_instruction=(
        "You are a helpful, respectful and honest assistant. Always answer as helpfully as "
        "possible, while being safe. Your answers should not include any harmful, unethical, "
        "racist, sexist, toxic, dangerous, or illegal content. Please ensure that your responses "
        "are socially unbiased and positive in nature.\n\nIf a question does not make any sense, "
        "or is not factually coherent, explain why instead of answering something not correct. If "
        "you don't know the answer to a question, please don't share false information."
    ),
)
_register("codellama", template_class=CodeLlama, **LLAMA2)
_register(
    "llama3",
    template_class=Llama3,
    **LLAMA3,
    meta_instruction=None,
    stop_words=["<|eot_id|>", "<|end_of_text|>"],
)
_register(
    "llama3_1",
    template_class=Llama31,
    **LLAMA3,
    meta_instruction="You are a helpful assistant.",
    stop_words=["<|eot_id|>", "<|end_of_text|>", "<|eom_id|>"],
    knowledge="Cutting Knowledge Date: December 2023\nToday Date: 23 Jul 2024\n\n",
    ipython="<|start_header_id|>ipython<|end_header_id|>\n\n",
    eoi="<|eot_id|>",
    tools=(
        "# Tool Instructions\n- Always execute python code in messages that you share.\n"
        "- When looking for real time information use relevant functions if available else "
        "fallback to brave_search\n\n\n\nYou have access to the following functions:\n\n"
    ),
    eotools=(
        "\n\nIf a you choose to call a function ONLY reply in the following format:\n"
        "<{start_tag}={function_name}>{parameters}{end_tag}\nwhere\n\n"
        "start_tag => `<function`\n"
        "parameters => a JSON dict with the function argument name as key and function argument "
        "value as value.\nend_tag => `</function>`\n\nHere is an example,\n"
        '<function=example_function_name>{"example_name": "example_value"}</function>\n\n'
        "Reminder:\n- Function calls MUST follow the specified format\n"
        "- Required parameters MUST be specified\n- Only call one function at a time\n"
        '- Put the entire function call reply on one line"\n'
        "- Always add your sources when using search results to answer the user query\n\n"
    ),
)
_register(
    "solar",
    "solar-70b",
    system="### System:\n",
    eosys="\n\n",
    user="### User:\n",
    eoh="\n\n",
    assistant="### Assistant:\n",
)
_register(
    "ultracm",
    "ultralm",
    system="User: ",
    meta_instruction=VICUNA["meta_instruction"]
    .replace("A chat", "A one-turn chat")
    .replace("helpful, detailed", "helpful, very detailed"),
    eosys="</s>\n",
    user="User: ",
    eoh="</s>\n",
    assistant="Assistant: ",
    eoa="</s>",
    separator="\n",
    stop_words=["</s>"],
)

# Other models
BAICHUAN2: TemplateKeys = {"user": "<reserved_106>", "assistant": "<reserved_107>"}
_register("baichuan2", **BAICHUAN2)
_register("mistral", "mixtral", user="[INST] ", eoh=" [/INST]", eoa="</s>")
_register(
    "gemma",
    user="<start_of_turn>user\n",
    eoh="<end_of_turn>\n",
    assistant="<start_of_turn>model\n",
    eoa="<end_of_turn>\n",
    stop_words=["<end_of_turn>"],
)
_register("deepseek", template_class=DropLastCharacterTemplate, **DEEPSEEK)
_register(
    "deepseek-vl",
    template_class=DropLastCharacterTemplate,
    **DEEPSEEK,
    meta_instruction=(
        "You are a helpful language and vision assistant. You are able to understand the visual "
        "content that the user provides, and assist the user with a variety of tasks using "
        "natural language."
    ),
    eosys="\n\n",
)
_register(
    "deepseek-coder",
    meta_instruction=(
        "You are an AI programming assistant, utilizing the Deepseek Coder model, developed by "
        "Deepseek Company, and you only answer questions related to computer science. For "
        "politically sensitive questions, security and privacy issues, and other non-computer "
        "science questions, you will refuse to answer\n"
    ),
    user="### Instruction:\n",
    eoh="\n",
    assistant="### Response:\n",
    eoa="\n<|EOT|>",
    separator="\n",
    stop_words=["<|EOT|>"],
)
_register(
    "yi-vl",
    meta_instruction=(
        "This is a chat between an inquisitive human and an AI assistant. Assume the role of the "
        "AI assistant. Read all the images carefully, and respond to the human's questions with "
        "informative, helpful, detailed and polite answers. 这是一个好奇的人类和一个"
        "人工智能助手之间的对话。假设你扮演这个AI助手的角色。仔细阅读所有的图像，并对人类的问题做出信息丰富、有帮助、"
        "详细的和礼貌的回答。\n\n"
    ),
    user="### Human: ",
    eoh="\n",
    assistant="### Assistant:",
    eoa="\n",
    stop_words=["###"],
)
_register("chatglm", template_class=ChatGLM2)
_register(
    "chatglm3",
    template_class=GLM,
    start="[gMASK]sop",
    system="<|system|>\n ",
    meta_instruction=None,
    user="<|user|>\n ",
    assistant="<|assistant|>\n ",
    stop_words=["<eos>"],
)
_register("glm4", template_class=GLM, start="[gMASK]<sop>", **GLM4)
_register(
    "codegeex4",
    **{**GLM4, "stop_words": ["<|endoftext|>", "<|user|>", "<|observation|>"]}
    | {
        "meta_instruction": (
            "你是一位智能编程助手，你叫CodeGeeX。你会为用户回答关于编程、代码、计算机方面的任何问题，"
            "并提供格式规范、可以执行、准确安全的代码，并在必要时提供详细的解释。"
        )
    },
)
_register("phi-3", **PHI3)
_register("internvl2-phi3", **{**PHI3, "meta_instruction": INTERNVL2_INTRODUCTION})
_register(
    "internvl-phi3",
    **PHI3
    | {
        "meta_instruction": "You are an AI assistant whose name is Phi-3.",
        "eosys": "<|end|>",
        "eoh": "<|end|>",
        "eoa": "<|end|>",
    },
)
_register("cogvlm", **COGVLM, eoa="</s>", stop_words=["</s>"])
_register("cogvlm2", **COGVLM, eoa="<|end_of_text|>", stop_words=["<|end_of_text|>"])
_register(
    "molmo",
    user=" User: ",
    assistant=" Assistant:",
    separator=" ",
    stop_words=["<|endoftext|>"],
)

# Names of LMDeploy at the time of its document, with the sampling values of that version.
_register("baichuan-7b", template_class=BaseTemplate, repetition_penalty=1.1)
_register(
    "baichuan2-7b", **BAICHUAN2, top_p=0.85, top_k=5, temperature=0.3, repetition_penalty=1.05
)
_register("qwen-7b", "qwen-14b", **QWEN, top_p=0.5, top_k=40, temperature=1.0)
