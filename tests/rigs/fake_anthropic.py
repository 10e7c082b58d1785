"""Anthropic's Messages API on loopback: says exactly the events a test wants, and rejects what the real one does.

Scripts are lists of steps as in fake_openai.py. Without a script a valid request is answered well.
"""

import json
import re

from tests.rigs.fake_openai import FakeOpenAI, Script

FIELDS = {
    "model", "messages", "max_tokens", "system", "stream", "stop_sequences", "temperature", "top_p", "top_k",
    "thinking", "output_config", "metadata", "service_tier", "tools", "tool_choice",
}
MEDIA_TYPES = {"image/jpeg", "image/png", "image/gif", "image/webp"}


def event(kind, **fields):
    data = json.dumps({"type": kind, **fields}, ensure_ascii=False)
    return f"event: {kind}\ndata: {data}\n\n".encode()


def start(**usage):
    usage = {"input_tokens": 5, "output_tokens": 1, **usage}
    message = {
        "id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": [],
        "stop_reason": None, "stop_sequence": None, "usage": usage,
    }
    return event("message_start", message=message)


def block(*deltas, kind="text", index=0):
    """Return the events of a content block: start, deltas, stop."""
    empty = {"text": {"text": ""}, "thinking": {"thinking": "", "signature": ""}}.get(kind, {})
    if kind == "tool_use":
        return tool_use("toolu_1", "dice", deltas, index)
    begin = event("content_block_start", index=index, content_block={"type": kind, **empty})
    return begin + b"".join(deltas) + event("content_block_stop", index=index)


def tool_use(identifier, name, pieces=(), index=0):
    """Return the events of a tool call whose arguments come in pieces."""
    call = {"type": "tool_use", "id": identifier, "name": name, "input": {}}
    deltas = b"".join(
        event("content_block_delta", index=index, delta={"type": "input_json_delta", "partial_json": one})
        for one in pieces
    )
    begin = event("content_block_start", index=index, content_block=call)
    return begin + deltas + event("content_block_stop", index=index)


def text(*words, index=0):
    return b"".join(
        event("content_block_delta", index=index, delta={"type": "text_delta", "text": word})
        for word in words
    )


def thinking(*words, index=0):
    return b"".join(
        event("content_block_delta", index=index, delta={"type": "thinking_delta", "thinking": word})
        for word in words
    )


def signature(index=0):
    return event("content_block_delta", index=index, delta={"type": "signature_delta", "signature": "EqQB"})


def finish(reason="end_turn", **usage):
    return event(
        "message_delta",
        delta={"stop_reason": reason, "stop_sequence": None},
        usage={"output_tokens": 4, **usage},
    )


def error(kind, message="SECRET"):
    return event("error", error={"type": kind, "message": message})


def error_body(kind, message="SECRET"):
    body = {"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_1"}
    return json.dumps(body).encode()


PING = event("ping")
STOP = event("message_stop")
WELL = [start(), PING + block(text("Hel", "lo ", "there")), finish() + STOP]


class FakeAnthropic(FakeOpenAI):
    well = WELL

    def refusal(self, entry):
        headers = entry["headers"]
        if not headers.get("x-api-key"):
            return Script([error_body("authentication_error", "x-api-key header is required")], 401)
        problem = problem_of(entry["body"])
        if headers.get("anthropic-version") != "2023-06-01":
            problem = "anthropic-version: header is required"
        if not entry["path"].endswith("/v1/messages"):
            return Script([error_body("not_found_error", "Not Found")], 404)
        return Script([error_body("invalid_request_error", problem)], 400) if problem else None


def problem_of(body):
    """Return the error with which the real API would reject a body."""
    if unknown := body.keys() - FIELDS:
        return f"{unknown.pop()}: Extra inputs are not permitted"
    if not isinstance(body.get("max_tokens"), int) or body["max_tokens"] < 1:
        return "max_tokens: Field required"
    messages = body.get("messages") or []
    if not messages or messages[0]["role"] != "user":
        return 'messages: first message must use the "user" role'
    roles = [message["role"] for message in messages]
    if set(roles) - {"user", "assistant"}:
        return 'messages: Unexpected role. Allowed roles are "user" or "assistant"'
    if any(one == two for one, two in zip(roles, roles[1:], strict=False)):
        return "messages: roles must alternate between user and assistant"
    groups = [blocks_of(body.get("system", [])), *(blocks_of(each["content"]) for each in messages)]
    for each in (each for group in groups for each in group):
        if each["type"] == "text" and not each["text"].strip():
            return "messages: text content blocks must contain non-whitespace text"
        if each["type"] == "image":
            source = each["source"]
            if source["type"] == "base64" and source["media_type"] not in MEDIA_TYPES:
                return "messages.0.content.0.image.source.base64.media_type: Input should be an image"
    if roles[-1] == "assistant" and groups[-1][-1]["text"] != groups[-1][-1]["text"].rstrip():
        return "messages: final assistant content cannot end with trailing whitespace"
    if sum("cache_control" in each for group in groups for each in group) > 4:
        return "A maximum of 4 blocks with cache_control may be provided"
    if not all(isinstance(each, str) and each.strip() for each in body.get("stop_sequences", [])):
        return "stop_sequences: each stop sequence must contain non-whitespace"
    return tool_problem(body) or thinking_problem(body)


def tool_problem(body):
    groups = [blocks_of(each["content"]) for each in body["messages"]]
    wanted = []
    for number, group in enumerate(groups):
        given = [each["tool_use_id"] for each in group if each["type"] == "tool_result"]
        if given != wanted:
            return f"messages.{number}: `tool_use` ids were found without `tool_result` blocks immediately after"
        wanted = [each["id"] for each in group if each["type"] == "tool_use"]
        thinks = body.get("thinking", {"type": "disabled"})["type"] != "disabled"
        if wanted and thinks and not (group[0].get("signature") or group[0].get("data")):
            return f"messages.{number}.content.0.type: Expected `thinking`, but found `{group[0]['type']}`."
        names = [each["name"] for each in group if each["type"] == "tool_use"]
        known = {each["name"] for each in body.get("tools", [])}
        if names and not known:
            return "Requests which include `tool_use` or `tool_result` blocks must define tools"
        if not all(isinstance(each["input"], dict) for each in group if each["type"] == "tool_use"):
            return f"messages.{number}.content: Input should be a valid dictionary"
        if not all(re.fullmatch("[a-zA-Z0-9_-]+", each) for each in [*names, *wanted]):
            return f"messages.{number}.content: String should match pattern '^[a-zA-Z0-9_-]+$'"
    if wanted:
        return "messages: `tool_use` ids were found without `tool_result` blocks immediately after"
    if "tool_choice" in body and not body.get("tools"):
        return "tool_choice may only be specified while providing tools"
    return None


def thinking_problem(body):
    thought = body.get("thinking", {"type": "disabled"})
    if thought["type"] == "enabled" and not 1024 <= thought["budget_tokens"] < body["max_tokens"]:
        return "`max_tokens` must be greater than `thinking.budget_tokens`"
    if thought["type"] != "disabled" and body.get("temperature", 1) != 1:
        return "`temperature` may only be set to 1 when thinking is enabled"
    return None


def blocks_of(content):
    return [{"type": "text", "text": content}] if isinstance(content, str) else content
