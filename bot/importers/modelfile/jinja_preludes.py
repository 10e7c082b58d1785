"""Jinja code for what ollama does with a conversation before it runs a template."""

# Consecutive messages of one role are merged, and all system messages together are `.System`.
MERGE_MESSAGES = """\
{%- set chat = namespace(system=[], messages=[]) %}
{%- for message in messages %}
  {%- set content = message.content or "" %}
  {%- if message.role == "system" %}
    {%- set chat.system = chat.system + [content] %}
  {%- endif %}
  {%- if chat.messages and chat.messages[-1].role == message.role %}
    {%- set content = chat.messages[-1].content ~ "\\n\\n" ~ content %}
    {%- set chat.messages = chat.messages[:-1] + [dict(chat.messages[-1], content=content)] %}
  {%- else %}
    {%- set chat.messages = chat.messages + [dict(message, content=content)] %}
  {%- endif %}
{%- endfor %}"""

# An exchange is a system message, a prompt and a response, each of which may be missing.
LOOP_OVER_TURNS = """\
{%- set past = namespace(turns=[], system="", prompt="", response="") %}
{%- for message in chat.messages %}
  {%- set late_system = message.role == "system" and (past.prompt or past.response) %}
  {%- if late_system or (message.role == "user" and past.response) %}
    {%- set turn = {"system": past.system, "prompt": past.prompt, "response": past.response} %}
    {%- set past.turns = past.turns + [turn] %}
    {%- set past.system = "" %}
    {%- set past.prompt = "" %}
    {%- set past.response = "" %}
  {%- endif %}
  {%- if message.role == "system" %}
    {%- set past.system = message.content %}
  {%- elif message.role == "user" %}
    {%- set past.prompt = message.content %}
  {%- elif message.role == "assistant" %}
    {%- set past.response = message.content %}
  {%- endif %}
{%- endfor %}
{%- set last = {"system": past.system, "prompt": past.prompt, "response": past.response} %}
{%- for turn in past.turns + [dict(last, last=true)] %}"""

# Go escapes these three characters in JSON.
AS_JSON_MACRO = """\
{%- macro as_json(value) %}
  {%- set text = value | tojson(separators=(",", ":")) %}
  {{- text | replace("&", "\\\\u0026") | replace("<", "\\\\u003c") | replace(">", "\\\\u003e") }}
{%- endmacro %}"""
