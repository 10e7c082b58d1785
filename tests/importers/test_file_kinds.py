"""A file is known by its content, and a wrong command names the right one."""

import io
import json
import zipfile
from pathlib import Path

import pytest

from bot.errors import UserError
from bot.importers.file_kinds import (
    CHARACTER_IMPORTS,
    PRESET_IMPORTS,
    FileKind,
    check_file_kind,
    detect_file_kind,
)
from bot.importers.png import plain_image
from tests.importers.card_samples import CARD_FILES


def archive(*names: str) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        for name in names:
            file.writestr(name, "x")
    return buffer.getvalue()


FILES: dict[str, tuple[FileKind, bytes | str | object]] = {
    "RodelAgent's preset": (
        FileKind.PRESET,
        {"name": "n", "provider": "p", "model": "m", "messages": [], "parameters": {}},
    ),
    "preset with a lorebook inside": (
        FileKind.PRESET,
        '// mine\n{"name": "n", "provider": "p", "model": "m", "lorebook": {"entries": {}},}',
    ),
    "preset with a mistake": (FileKind.PRESET, '{"name": "n", "provider": "p",,}'),
    "instruct": (FileKind.INSTRUCT, {"input_sequence": "a", "output_sequence": "b", "name": "n"}),
    "context": (FileKind.CONTEXT, {"story_string": "{{system}}", "name": "n"}),
    "sysprompt": (FileKind.SYSTEM_PROMPT, {"name": "n", "content": "Be.", "post_history": ""}),
    "sampler": (FileKind.SAMPLER, {"temp": 1, "top_p": 1, "rep_pen": 1, "min_p": 0}),
    "novel sampler": (FileKind.SAMPLER, {"order": [1], "temperature": 1, "max_length": 90}),
    "chat completion": (FileKind.CHAT_COMPLETION, {"prompts": [], "prompt_order": []}),
    "master export": (FileKind.MASTER_EXPORT, {"instruct": {}, "context": {}, "sysprompt": {}}),
    "reasoning": (FileKind.REASONING, {"name": "n", "prefix": "", "suffix": "", "separator": ""}),
    "koboldcpp": (FileKind.KOBOLDCPP_ADAPTER, {"user_start": "", "assistant_start": ""}),
    "Modelfile": (FileKind.MODELFILE, 'FROM llama3\nTEMPLATE """{{ .System }}{{ .Prompt }}"""\n'),
    "Modelfile with comment": (FileKind.MODELFILE, "# mine\nfrom ./x.gguf\n"),
    "world info": (FileKind.LOREBOOK, {"entries": {"0": {"key": ["a"], "content": "b"}}}),
    "LMDeploy": (FileKind.CHAT_TEMPLATE_JSON, {"model_name": "x", "system": "", "eosys": ""}),
    "LMDeploy by name": (FileKind.CHAT_TEMPLATE_JSON, {"model_name": "internlm", "system": "S"}),
    "Jinja": (FileKind.JINJA, "{%- for m in messages -%}\nfrom {{ m.content }}{% endfor %}"),
    "tokenizer_config.json": (FileKind.TOKENIZER_CONFIG, {"chat_template": "{{ x }}"}),
    "messages": (FileKind.MESSAGES, [{"role": "user", "content": "hi"}]),
    "GGUF": (FileKind.GGUF, b"GGUF\3\0\0\0"),
    "image": (FileKind.IMAGE, plain_image(2, 2)),
    "photo": (FileKind.IMAGE, b"\xff\xd8\xff\xe0"),
    "ChatHaruhi 1": (FileKind.HARUHI, archive("haruhi/system_prompt.txt", "haruhi/texts/1.txt")),
    "ChatHaruhi 2": (
        FileKind.HARUHI,
        '{"luotuo_openai": "system_prompt", "text": "You"}\n{"text": "a", "luotuo_openai": "x"}\n',
    ),
    "chat log": (FileKind.CHAT_LOG, '{"user_name": "U", "character_name": "C"}\n{"mes": "x"}\n'),
    "zip": (FileKind.ARCHIVE, archive("photo.jpg")),
    "damaged zip": (FileKind.ARCHIVE, b"PK\x03\x04 half"),
    "YAML card": (FileKind.YAML_CARD, "name: Chiharu\ngreeting: |-\n  Hi {{user}}!\ncontext: C\n"),
    "YAML card behind ---": (FileKind.YAML_CARD, "---\n# mine\nchar_name: C\nchar_persona: P\n"),
    "YAML": (FileKind.YAML, "temperature: 1.3\ntop_p: 0.9\n"),
    "regex scripts": (FileKind.REGEX_SCRIPTS, [{"findRegex": "/a/", "replaceString": ""}]),
    "JSON list": (FileKind.JSON_LIST, [1, {"a": 1}]),
    "list of lore": (FileKind.LOREBOOK, [{"keys": ["a"], "content": "b"}]),
    "broken JSON with macros": (FileKind.UNKNOWN, '{\n "prompts": ["{{user}}" "{{char}}"]}'),
    "Mistral's template": (FileKind.JINJA, "[INST] {{ messages[0].content }} [/INST]"),
    "letter": (FileKind.UNKNOWN, "Dear all,\n"),
    "bytes": (FileKind.UNKNOWN, b"\x80\x81\x82"),
    "nothing": (FileKind.UNKNOWN, b""),
    "deep": (FileKind.UNKNOWN, "[" * 100_000),
}


@pytest.mark.parametrize("name", FILES)
def test_kind_is_detected_by_content(name: str) -> None:
    kind, content = FILES[name]
    if not isinstance(content, bytes):
        content = (content if isinstance(content, str) else json.dumps(content)).encode()
    assert detect_file_kind(content) is kind


@pytest.mark.parametrize("name", CARD_FILES)
def test_cards_are_detected_in_every_container(name: str) -> None:
    ending = name.rpartition(".")[2]
    wanted = {"png": FileKind.CARD_PNG, "json": FileKind.CARD_JSON, "charx": FileKind.CHARX}
    assert detect_file_kind(CARD_FILES[name]) is wanted[ending]


def test_wrong_command_names_the_file_and_the_right_command() -> None:
    card = CARD_FILES["detective.png"]
    with pytest.raises(UserError) as caught:
        check_file_kind(card, Path("ilse.png"), PRESET_IMPORTS)
    assert str(caught.value) == (
        "ilse.png is a character card (PNG);"
        " make a preset of it with `troupe character import ilse.png`"
    )
    check_file_kind(card, Path("ilse.png"), CHARACTER_IMPORTS)


def test_unknown_file_is_left_to_the_importer() -> None:
    check_file_kind(b"Dear all,", Path("letter.txt"), PRESET_IMPORTS)


def test_lorebook_is_sent_to_the_presets_folder() -> None:
    with pytest.raises(UserError, match=r'"lorebook": "world\.json"'):
        check_file_kind(b'{"entries": []}', Path("in/world.json"), CHARACTER_IMPORTS)
