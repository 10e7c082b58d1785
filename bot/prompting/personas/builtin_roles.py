"""Built-in roles by name: one is shipped with Troupe, ChatHaruhi's are loaded from the hub."""

import difflib
from collections.abc import Iterable
from dataclasses import replace
from importlib import import_module, resources  # noqa: TID251 # an optional library
from importlib.util import find_spec

from bot.errors import CharacterError
from bot.prompting.personas.haruhi_rows import CharacterData, HaruhiRow, read_jsonl, read_rows
from bot.prompting.personas.persona import DEFAULT_PLACEHOLDER, parse_persona
from bot.texts.text import joined, translatable

_HUB = "silk-road/ChatHaruhi-RolePlaying"
_NAMES = {
    "haruhi": "凉宫春日",
    "Dumbledore": "Dumbledore",
    "Harry": "Harry",
    "Hermione": "Hermione",
    "Luna": "Luna",
    "Malfoy": "Malfoy",
    "McGonagall": "McGonagall",
    "Penny": "Penny",
    "Raj": "Raj",
    "Ron": "Ron",
    "Sheldon": "Sheldon",
    "Snape": "Snape",
    "ayaka": "神里绫华",
    "baizhantang": "白展堂",
    "duanyu": "段誉",
    "guofurong": "郭芙蓉",
    "hutao": "胡桃",
    "jiumozhi": "鸠摩智",
    "liyunlong": "李云龙",
    "murongfu": "慕容复",
    "qiaofeng": "乔峰",
    "raidenShogun": "雷电将军",
    "tangshiye": "汤师爷",
    "tongxiangyu": "佟湘玉",
    "wanderer": "流浪者",
    "wangduoyu": "王多鱼",
    "wangyuyan": "王语嫣",
    "weixiaobao": "韦小宝",
    "xiaofeng": "萧峰",
    "xuzhu": "虚竹",
    "yuqian": "于谦",
    "zhongli": "钟离",
}
_FILES = {
    **{file[0].upper() + file[1:]: file for file in _NAMES},
    **{name: file for file, name in _NAMES.items()},
    **{file: file for file in _NAMES},
    "Professor McGonagall": "McGonagall",
    "Professor Dumbledore": "Dumbledore",
}

# Roles of ChatHaruhi 2 have no placeholder.


def builtin_role_name(word: str) -> str | None:
    """Return the display name of a built-in role; "haruhi" is 凉宫春日. None: it is unknown."""
    return _NAMES[_FILES[word]] if word in _FILES else None


def load_builtin_role(word: str) -> CharacterData:
    """Load a built-in role.

    Raises:
        CharacterError: the role is unknown, or cannot be loaded from the hub.
    """
    file = _FILES.get(word)
    if file is None:
        near = difflib.get_close_matches(word, _FILES, n=3)
        names = joined(map(repr, near), translatable(" or "))
        hint = (
            translatable("did you mean {names}", names=names)
            if near
            else translatable("use 'haruhi'")
        )
        raise CharacterError(
            translatable(
                "{word} has no persona and is not a built-in role; pass a `persona`, or {hint}",
                word=repr(word),
                hint=hint,
            )
        )
    shipped = resources.files("bot.prompting.personas") / "roles" / f"{file}.jsonl"
    if shipped.is_file():
        return read_rows(read_jsonl(shipped.read_text("utf-8")), file)
    return with_default_placeholder(load_hub_role(f"{_HUB}/{file}"))


def with_default_placeholder(data: CharacterData) -> CharacterData:
    """Return a character of ChatHaruhi 1 or 2, whose stories have no place in the persona yet."""
    if not data.texts or parse_persona(data.persona).placeholders:
        return data
    return replace(data, persona=f"{data.persona}\n{DEFAULT_PLACEHOLDER}\n")


def load_hub_role(name: str, column: str | None = None) -> CharacterData:
    """Load `owner/dataset`, or one file of it, `owner/dataset/role`, with the library `datasets`.

    Raises:
        CharacterError: the library is not installed, or it could not get the data set.
    """
    owner, _, rest = name.partition("/")
    dataset, _, file = rest.partition("/")
    if not (owner and dataset):
        raise CharacterError(
            translatable(
                "{name} is not a data set; write owner/dataset or owner/dataset/role",
                name=repr(name),
            )
        )
    if find_spec("datasets") is None:
        raise CharacterError(
            translatable(
                "{name} is loaded from the data set hub, which needs: pip install datasets",
                name=name,
            )
        )
    files = {"train": f"{file}.jsonl"} if file else None
    try:
        rows: Iterable[HaruhiRow] = import_module("datasets").load_dataset(
            f"{owner}/{dataset}", data_files=files, split="train"
        )
    except (OSError, ValueError) as error:  # the library's own errors derive from these
        raise CharacterError(
            translatable(
                "{name} could not be loaded from the hub: {error}", name=name, error=str(error)
            )
        ) from error
    return read_rows(rows, name, column)
