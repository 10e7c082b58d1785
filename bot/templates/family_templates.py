"""Templates of model families that Troupe ships, and the detection of known ones."""

import hashlib
from functools import partial
from importlib.resources import files
from typing import Any, Final

from bot.templates.jinja_template import JinjaTemplate
from bot.templates.registry import register

FAMILIES: Final[list[str]] = []
"""The names of the files in families/, without `.jinja`; each is also a name of its template."""


def _family(*names: str, bos: str = "", eos: str = "", stop: tuple[str, ...] = ()) -> None:
    """Register the models that share a chat template under all names of the family."""
    FAMILIES.append(names[0])
    stop_words = stop or ((eos,) if eos else ())
    values = {"bos_token": bos, "eos_token": eos, "stop_words": stop_words}
    register(*names)(partial(_read_template, names[0], **values))


def _read_template(file: str, **values: Any) -> JinjaTemplate:
    source = files("bot.templates").joinpath("families", f"{file}.jinja")
    return JinjaTemplate(source.read_text(encoding="utf-8"), **values)


DEEPSEEK_BOS, DEEPSEEK_EOS = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"
GLM_STOP = ("<|user|>", "<|observation|>", "<|endoftext|>")
PHI3_STOP = ("<|end|>", "<|endoftext|>")

# The five families of the original document on Jinja templates
_family("llama-2", bos="<s>", eos="</s>")
_family("mistral-v0.1", bos="<s>", eos="</s>")
_family("qwen1.5", bos="<|endoftext|>", eos="<|im_end|>")
_family("gemma-1.1", "gemma-2", bos="<bos>", eos="<eos>", stop=("<end_of_turn>", "<eos>"))
_family("llama-3", bos="<|begin_of_text|>", eos="<|eot_id|>")
# Other families in use
_family("alpaca", bos="<s>", eos="</s>", stop=("</s>", "### Instruction:"))
_family("chatglm3-6b", stop=("<|user|>", "<|observation|>"))
_family("chatml", "dolphin", eos="<|im_end|>")
_family("command-r", bos="<BOS_TOKEN>", eos="<|END_OF_TURN_TOKEN|>")
_family("deepseek-llm", "deepseek-v2", bos=DEEPSEEK_BOS, eos=DEEPSEEK_EOS)
_family("deepseek-r1", bos=DEEPSEEK_BOS, eos=DEEPSEEK_EOS)
_family("falcon-instruct", eos="<|endoftext|>", stop=("<|endoftext|>", "\nUser:"))
_family("gemma-3", bos="<bos>", eos="<eos>", stop=("<end_of_turn>", "<eos>"))
_family("glm-4", stop=GLM_STOP)
_family("glm-edge", stop=GLM_STOP)
_family("granite-3.0", bos="<|end_of_text|>", eos="<|end_of_text|>")
_family("internlm2.5", "internlm3", bos="<s>", eos="<|im_end|>")
_family("kimi-k2", bos="[BOS]", eos="[EOS]", stop=("<|im_end|>", "[EOS]"))
_family("llama-3.1", "llama-3.3", bos="<|begin_of_text|>", eos="<|eot_id|>")
_family("megrez", eos="<|turn_end|>")
_family("minicpm", bos="<s>", eos="</s>")
_family("mistral-large", bos="<s>", eos="</s>")
_family("mistral-v0.2", "mixtral-8x7b", bos="<s>", eos="</s>")
_family("mistral-v1-system", bos="<s>", eos="</s>")
_family("moonlight", bos="[BOS]", eos="[EOS]", stop=("<|im_end|>", "[EOS]"))
_family("openchat-3.5", bos="<s>", eos="</s>", stop=("<|end_of_turn|>", "</s>"))
_family("orion", bos="<s>", eos="</s>")
_family("phi-3-mini", bos="<s>", eos="<|endoftext|>", stop=PHI3_STOP)
_family("phi-3.5", bos="<s>", eos="<|endoftext|>", stop=PHI3_STOP)
_family("phi-4", bos="<|endoftext|>", eos="<|im_end|>")
_family("qwen2.5", bos="<|endoftext|>", eos="<|im_end|>")
_family("qwen3", bos="<|endoftext|>", eos="<|im_end|>")
_family("smollm2", bos="<|im_start|>", eos="<|im_end|>")
_family("solar-instruct", bos="<s>", eos="</s>", stop=("</s>", "### User:"))
_family("vicuna-v1.1", bos="<s>", eos="</s>")
_family("xverse", eos="<|endoftext|>", stop=("<|endoftext|>", "<|user|>"))
_family("yi-1.5", bos="<s>", eos="<|im_end|>")
_family("zephyr", eos="</s>")


FAMILY_BY_SHA256: Final = {
    # the template in the GGUF file that Troupe ships
    "872be49dbb638044ad01b60388f48d469ff2980e5f0dccdc22ec907db54d0788": "smollm2",
    "5ad8ab5b90448d5d2d6225cd49d25acc78c8113ab8e97969be6edffaa96c5120": "alpaca",
    "e4496f930bf7b7bc7e7cf8232e90fd43ab4a9d8eb9c77f6ec98f5beb5c5cbeaa": "chatglm3-6b",
    "153280e3ff55d19da1398bdb3914ee2a51b80429bfaedde11d7d216c39db80f3": "chatml",
    "9db2cf47ce03bfd0aab6ec59942503714fa0372f09f7e1d54cbcd71a1110b863": "command-r",
    "8aeba567270fa9a8d5372caf4b04affea947c4421d96adc01e3ff94021b0ae8e": "deepseek-llm",
    "3a3036eeb96ca0e48565fc1f19b4d7d3fa17ada32bb1b3d5ed539ae74cf22923": "deepseek-r1",
    "6bf093ef1fc91c07e592552f1305c81ccffd7408c3d0a07d4dae39cfb2ba3aa3": "falcon-instruct",
    "ecd6ae513fe103f0eb62e8ab5bfa8d0fe45c1074fa398b089c93a7e70c15cfd6": "gemma-1.1",
    "7de1c58e208eda46e9c7f86397df37ec49883aeece39fb961e0a6b24088dd3c4": "gemma-3",
    "cf60b9dc2c363d731f27ebd36bb7dba9838f047e516ede83fcb7ee33a9c6d6dc": "glm-4",
    "a9c589805d7f938243951f7c505250e31adbd19c99851a3651bc3d832612288c": "glm-edge",
    "09d68eeb5c0eaa551adea6cc088a05c7298966f395f203126e76b74f5a77a8ff": "granite-3.0",
    "49aa7cb516942cc5a17d45ed2939828e3b5e4188dc487a3c4b64a570e5b5111f": "internlm2.5",
    "9fcc72b7c248a72020c81f70bb652f3094d18a750c93ca35dfcb3cf5fe23ff53": "kimi-k2",
    "e8d5b5a546d3f19df16a5320c614fab05bdc4edd50e850f1afd947b503ea41cf": "llama-2",
    "ba03a121d097859c7b5b9cd03af99aafe95275210d2876f642ad9929a150f122": "llama-3",
    "e10ca381b1ccc5cf9db52e371f3b6651576caee0a630b452e2816b2d404d4b65": "llama-3.1",
    "b58913fce67fc69834213fd446f9d85f30e0ddd8f88f482e65fdfcb6f9d77f15": "megrez",
    "ae9b050c5a5b0295cb09269e67bf832fa08675dd845c7b3ea4c2130bcacc5c26": "minicpm",
    "3c4ad5fa60dd8c7ccdf82fa4225864c903e107728fcaf859fa6052cb80c92ee9": "mistral-large",
    "7e995b379ec01747807246483647cd99030abf331653f1119e16d7ac041a3495": "mistral-v0.1",
    "26a59556925c987317ce5291811ba3b7f32ec4c647c400c6cc7e3a9993007ba7": "mistral-v0.2",
    "796853172235ab3aaa4810013ddfe2eab481bda3306dad4f700c00d436eed596": "mistral-v1-system",
    "0af7f5845651f3ba85a82d70d8af968a1da0a60f4c7bb662a9c305cfc9cc224c": "moonlight",
    "901b10d47195fadb5692137ecd4b2733730be9d32fde6c6eae23e5153712525e": "openchat-3.5",
    "185558259e78227a6a72b84543e9818389f5f72729ee4d8b7f00ff07a0e11a6d": "orion",
    "268b6082ceb7176dc6ed80557a2f7837f9f0339592fbee677d405a553af15f88": "phi-3-mini",
    "78d976a442bcde2f0be15aafbb8e3050e1104f86732266f68403251b89982a90": "phi-3.5",
    "a41fb8727c4f1e722e53cb1ea935038a1177b8bdf09387f3b048f9da5255ef3e": "phi-4",
    "793202280c0910ab26bc6eb57c8212c2417324c6d8c4efd0d10d59092ab3e3eb": "qwen1.5",
    "cd8e9439f0570856fd70470bf8889ebd8b5d1107207f67a5efb46e342330527f": "qwen2.5",
    "87a2728cb8dc9fe424d624542f6060ec05a1d285ebbec578bb078900e33396b5": "qwen3",
    "de9cde7d1b0ca0cc87459a6673e0d12fb89c070bdb24e4a30b6e4d187b226221": "smollm2",
    "b8e5e922a7a4ab5df61a904ef54639a27022fd84eb6b6434f09503afeca60eb4": "solar-instruct",
    "f298c5c34dedb637a2a665ac409ad764cf3ffb5b2fd89d0e2fa0118a3dc21f1f": "vicuna-v1.1",
    "19f5166ffbe2223b984e44b4052bd68e1a7afbb005e459cd6aceb9cf17323ae9": "xverse",
    "d46a86f116c926da86c9232a071e325115772dcf7a55e6881c09c6b43e864dc7": "yi-1.5",
    "66291cf0045c2425a3a667cf3cbb7af2b11f09e025c02f97245323ab79119362": "zephyr",
}


def detect_family(source: str) -> str | None:
    """Return the name of the family that renders exactly like this template, if there is one."""
    return FAMILY_BY_SHA256.get(hashlib.sha256(source.encode(errors="surrogatepass")).hexdigest())
