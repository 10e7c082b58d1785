"""Every case of attacks.json is tried where it enters: the table of which test does that."""

import gzip
import itertools
from collections.abc import Mapping

import pytest

from tests.attacks import GENERATORS, GzipZeros, attack_file, exists, expand, texts_in
from tests.checkout import CHECKOUT

# By category: the tests whose parameters or loops are its cases.
TESTS: Mapping[str, tuple[str, ...]] = {
    "ssti": (
        "tests/templates/render_process/test_pool.py::test_hostile_templates_are_contained",
        "tests/prompting/cards/test_macros.py::test_jinja_in_a_card_is_plain_text",
        "tests/prompting/compose/test_card.py::test_messages_are_never_expanded",
    ),
    "template_dos": (
        "tests/templates/render_process/test_pool.py::test_hostile_templates_are_contained",
    ),
    "special_tokens": (
        "tests/templates/test_text_spans.py::test_control_tokens_in_people_s_texts_stay_untrusted",
        "tests/backends/llama_cpp/test_tokenizer.py::"
        "test_text_of_people_adds_no_control_token_to_the_prompt",
    ),
    "name_spoof": ("tests/prompting/speakers/test_labels.py::test_hostile_names_and_texts",),
    "prompt_injection": (
        "tests/prompting/test_prompt_injection.py::"
        "test_hostile_text_gets_neither_rights_nor_secrets",
    ),
    "discord_mentions": (
        "tests/platforms/discord/test_surface.py::test_mentions_ping_nobody_in_any_request",
        "tests/platforms/telegram/test_surface.py::test_mentions_are_code_in_any_request",
    ),
    "markup": (
        "tests/platforms/telegram/test_surface.py::test_hostile_markup_is_sent_as_it_reads",
        "tests/replying/splitting/test_split.py::test_attack_texts_are_split_legally",
        "tests/replying/splitting/test_split.py::test_blank_text_has_no_parts",
    ),
    "path_traversal": (
        "tests/prompting/presets/test_files.py::test_names_with_path_separators_are_rejected",
        "tests/backends/model_files/test_store.py::test_hostile_name_opens_no_file",
        "tests/backends/model_files/test_store.py::test_hostile_source_imports_no_file",
    ),
    "ssrf": (
        "tests/media/test_fetching.py::test_address_of_an_attacker_reaches_no_server_of_ours",
        "tests/media/test_attachment_reader.py::test_address_of_an_attacker_in_a_message_is_not_asked",
    ),
    "secrets": ("tests/telemetry/test_logs.py::test_secrets_in_hostile_texts_are_masked",),
    "admin_authz": ("tests/e2e/test_permissions.py::test_only_admins_change_anything",),
    "abuse_limits": ("tests/turn/test_excessive_input.py::test_excessive_input",),
    "attachments": (
        "tests/importers/test_hostile_files.py::"
        "test_hostile_file_is_rejected_within_time_and_memory_limits",
        "tests/media/test_attachment_reader.py::test_hostile_file_in_a_message_is_contained",
    ),
    "llm_faults": (
        "tests/backends/chat_completions/test_errors.py::"
        "test_every_listed_llm_fault_is_covered_here",
    ),
    "privacy": ("tests/turn/test_personal_data.py::test_privacy",),
    "store_injection": (
        "tests/contracts/test_hostile_texts.py::test_hostile_text_is_stored_unchanged",
        "tests/telemetry/test_logs.py::test_control_characters_in_an_error_are_escaped",
    ),
    "delivery": ("tests/e2e/test_delivery_faults.py::test_every_question_is_answered_once",),
    "webhook": ("tests/platforms/telegram/test_webhook.py::test_hostile_call",),
}
# Oracles that the tests above check; another one needs a test that reads it.
ORACLES = frozenset(
    {
        *("render_contained", "history_unchanged", "no_control_token_from_content"),
        *("speaker_integrity", "no_privilege_from_text", "mentions_suppressed"),
        *("telegram_entities", "telegram_send_ok", "split_roundtrip", "no_4xx"),
        *("no_connection_to_target", "path_rejected", "log_redacted", "http_status", "denied"),
        *("bounded", "contained", "exactly_once", "turn_terminates", "canary_absent"),
        "roundtrip_or_clean_reject",
    }
)


@pytest.mark.parametrize(("category", "tests"), TESTS.items())
def test_tests_of_the_table_exist_and_read_their_category(
    category: str, tests: tuple[str, ...]
) -> None:
    for test in tests:
        path, _, _ = test.partition("::")
        assert exists(test), test
        assert f'"{category}"' in (CHECKOUT / path).read_text(encoding="utf-8"), test


def test_every_category_oracle_and_generator_is_known() -> None:
    content = attack_file()

    assert {case["category"] for case in content["cases"]} <= set(TESTS)
    assert {case["oracle"]["type"] for case in content["cases"]} <= ORACLES
    assert set(content["generators"]) <= set(GENERATORS)
    for case in content["cases"]:
        expand(case["input"])  # raises for a generator that nobody has declared


# --- the loader --------------------------------------------------------------------------------


def test_generators_are_written_out_wherever_they_stand() -> None:
    given = {
        "a": [{"gen": "repeat", "unit": "xy", "n": 2}, 5],
        "b": {"gen": "repeat_list", "unit": {"gen": "repeat", "unit": "z", "n": 1}, "n": 3},
        "c": {
            "gen": "concat",
            "parts": ["<", {"gen": "nest", "open": "(", "core": "1", "close": ")", "depth": 2}],
        },
    }

    assert expand(given) == {"a": ["xyxy", 5], "b": ["z", "z", "z"], "c": "<((1))"}
    assert texts_in(expand(given)) == ["xyxy", "z", "z", "z", "<((1))"]


def test_gzip_stream_of_zeros_unpacks_to_them() -> None:
    size = 20_000_000
    zeros = expand({"gen": "gzip_zeros", "bytes": size})

    assert isinstance(zeros, GzipZeros)
    assert gzip.decompress(b"".join(zeros)) == bytes(size)
    endless = expand({"gen": "gzip_zeros", "bytes": 10 * 2**30})
    assert sum(map(len, itertools.islice(endless, 4))) < 100_000


def test_generator_of_another_name_is_an_error() -> None:
    with pytest.raises(ValueError, match="a generator 'spiral'"):
        expand([{"gen": "spiral"}])
