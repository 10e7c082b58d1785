"""Our templates reproduce the golden vectors of the reference implementations.

One test checks a whole group of vectors and lists the differences: thousands of tests would
take longer than the rendering.
"""

import tomllib
from collections.abc import Callable
from datetime import datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest

from bot.errors import TemplateError
from bot.templates import JinjaTemplate, RoleTemplate, StringTemplate, get
from bot.templates.render_pool import RenderProcessPool
from tests.shared_data import golden
from tests.templates.published_templates import published_templates

Case = dict[str, Any]

_DIFFERENCES = Path(__file__).with_name("golden_differences.toml").read_text("utf-8")
EXPECTED_DIFFERENCES = [
    pattern for each in tomllib.loads(_DIFFERENCES)["difference"] for pattern in each["cases"]
]


def is_expected_difference(case: Case) -> bool:
    return any(fnmatchcase(case["id"], pattern) for pattern in EXPECTED_DIFFERENCES)


def find_differences(cases: list[Case], agrees: Callable[[Case], bool]) -> list[str]:
    assert cases
    return [case["id"] for case in cases if agrees(case) == is_expected_difference(case)]


def chat_cases(prefix: str) -> list[Case]:
    templates = published_templates()
    cases = [case for case in golden("chat_templates") if case["id"].startswith(prefix)]
    return [
        {**case, "source": given.get("template") or templates[given["template_id"]].source}
        for case in cases
        for given in [case["input"]]
    ]


def chat_agrees(case: Case) -> bool:
    given = case["input"]
    tokens = {k: v for k, v in given["kwargs"].items() if k in ("bos_token", "eos_token")}
    variables = {k: v for k, v in given["kwargs"].items() if k not in tokens}
    try:
        prompt = JinjaTemplate(case["source"], **tokens).render(
            given["messages"],
            tools=given["tools"],
            add_generation_prompt=given["add_generation_prompt"],
            continue_final_message=given.get("continue_final_message", False),
            now=datetime.fromisoformat(given["now"]),
            **variables,
        )
    except TemplateError as error:
        expected = case.get("error", {"type": None})
        same_text = expected["type"] != "TemplateError" or expected["message"] == str(error)
        return bool(expected["type"] == type(error.__cause__).__name__ and same_text)
    return bool(case.get("expected") == prompt)


@pytest.mark.parametrize(
    "prefix",
    ["render:", "tools:", "continue:", "notokens:", "engine:", "sandbox:", "hfjs:"],
)
def test_jinja_templates_render_the_same_as_transformers(prefix: str) -> None:
    assert find_differences(chat_cases(prefix), chat_agrees) == []


async def test_render_process_renders_the_same_as_transformers() -> None:
    cases = [case for case in chat_cases("") if "expected" in case][::5]
    async with RenderProcessPool(process_count=1) as pool:
        differ = [
            case["id"]
            for case in cases
            for given in [case["input"]]
            if case["expected"]
            != await pool.render(
                case["source"],
                given["messages"],
                tools=given["tools"],
                add_generation_prompt=given["add_generation_prompt"],
                continue_final_message=given.get("continue_final_message", False),
                now=datetime.fromisoformat(given["now"]),
                **given["kwargs"],
            )
        ]

    assert differ == []


def lmdeploy_agrees(case: Case) -> bool:
    given = case["input"]
    try:
        made = lmdeploy_outcome(given)
    except (TemplateError, KeyError) as error:
        known = {"KeyError": ValueError, "AttributeError": ValueError}  # an unknown role
        kind = case.get("error", {}).get("type")
        return kind in known and isinstance(error, known[kind])
    return "expected" in case and made == case["expected"]


def lmdeploy_outcome(given: Case) -> Any:
    if "template_json" in given:
        template: Any = RoleTemplate.from_json(given["template_json"])
    else:
        template = get(given["template"])(**given["init"])
    match given["op"]:
        case "get_prompt":
            return template.get_prompt(given["prompt"], given["sequence_start"])
        case "messages2prompt":
            return template.messages2prompt(given["messages"], given["sequence_start"])
        case _:
            return vars(template)


def lmdeploy_attributes_agree(case: Case) -> bool:
    attributes = lmdeploy_outcome(case["input"])
    return bool({key: attributes[key] for key in case["expected"]} == case["expected"])


@pytest.mark.parametrize("implementation", ["lmdeploy-v0.6.4", "seed001-doc", "seed001-doc + eoa"])
def test_lmdeploy_templates_render_the_same_as_lmdeploy(implementation: str) -> None:
    cases = [c for c in golden("lmdeploy") if c["input"]["impl"] == implementation]
    rendered = [case for case in cases if case["input"]["op"] != "attributes"]
    attributes = [case for case in cases if case["input"]["op"] == "attributes"]

    assert find_differences(rendered, lmdeploy_agrees) == []
    assert [case["id"] for case in attributes if not lmdeploy_attributes_agree(case)] == []


def rodel_cases(implementation: str) -> list[Case]:
    return [
        case
        for case in golden("rodel_templates")
        if case["input"]["op"] == "render" and case["input"]["impl"] == implementation
    ]


def rodel_agrees(case: Case) -> bool:
    template = StringTemplate(**case["input"]["parameters"])
    words = case.get("keywords")
    return template.render(case["input"]["messages"]) == case["expected"] and words in (
        None,
        list(template.fixed_texts),
    )


def test_string_templates_render_the_samples_in_rodelagents_document() -> None:
    assert find_differences(rodel_cases("seed-text"), rodel_agrees) == []


def test_string_templates_match_rodelagent_except_for_a_newline_before_the_end() -> None:
    wanted = []
    for case in rodel_cases("3cf4aac0c"):  # see docs/sources.md#rodel
        end = case["input"]["parameters"].get("end_template", "Assistant: ")
        if case["input"]["messages"]:
            blocks = case["expected"].removesuffix(end)
            wanted.append({**case, "expected": f"{blocks}\n{end}"})
        else:
            wanted.append(case)

    assert find_differences(wanted, rodel_agrees) == []
