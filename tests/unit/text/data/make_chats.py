#!/usr/bin/env python3
"""Writes chats.json: what Hugging Face's apply_chat_template makes of conversations.

    pip install transformers==5.17.0 jinja2==3.1.6 && python3 tests/unit/text/data/make_chats.py
"""
import json
import pathlib

from transformers.utils.chat_template_utils import render_jinja_template

HERE = pathlib.Path(__file__).resolve().parent
FILES = HERE.parents[3] / "models" / "templates"
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}

TEMPLATES = {
    "plain": (FILES / "plain.jinja").read_text(),
    "chatml": (FILES / "chatml.jinja").read_text(),
    # Turns that must alternate, an error where they do not, a slice and a system text that moves.
    "turns": """{{ bos_token }}{% if messages[0]['role'] == 'system' %}
{% set system = messages[0]['content'] %}{% set rest = messages[1:] %}
{% else %}{% set system = '' %}{% set rest = messages %}{% endif %}
{% for m in rest %}
{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}
{{ raise_exception('Roles must alternate user/assistant/...') }}
{% endif %}
{% if m['role'] == 'user' %}
[INST] {% if loop.last and system %}{{ system + '\\n\\n' }}{% endif %}{{ m['content'] }} [/INST]
{%- else %}{{ ' ' ~ m['content'] | trim ~ eos_token }}
{% endif %}{% endfor %}""",
    # Headers with a macro, what belongs to it, and a namespace.
    "headers": """{%- macro header(role) -%}
<|start|>{{ role }}<|end|>

{% endmacro -%}
{%- set ns = namespace(count=0, last='') -%}
{%- for m in messages -%}
{%- set ns.count = ns.count + 1 -%}{%- set ns.last = m.role -%}
{{- header(m.role) -}}{{- m.content -}}
{%- if m.tool_calls is defined and m.tool_calls -%}
{%- for c in m.tool_calls -%}{{- c.function.name }}({{ c.function.arguments | tojson(indent=2) }})
{%- endfor -%}{%- endif -%}
<|eot|>
{%- endfor -%}
{%- if add_generation_prompt and ns.last != 'assistant' -%}{{- header('assistant') -}}{%- endif -%}
{#- {{ ns.count }} messages -#}""",
    # Reasoning that is cut out of what the assistant said before.
    "reasoning": """{{- bos_token }}{%- for m in messages %}
{%- if m.role == 'assistant' %}
{%- set content = m.content %}
{%- if '</think>' in content %}{% set content = content.split('</think>')[-1].lstrip('\\n') %}{% endif %}
{{- '<|Assistant|>' + content + eos_token }}
{%- elif m.role == 'user' %}{{- '<|User|>' + m.content }}
{%- else %}{{- m.content | upper | replace('A', '4') }}{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|Assistant|>' }}
{%- if enable_thinking is defined and enable_thinking is false %}{{- '<think></think>' }}{% endif %}
{%- endif %}
{%- for d in documents or [] %}{{ '\\n[' ~ loop.index ~ '] ' ~ d.title | default('?') }}{% endfor %}""",
    "named": "{% for k, v in (names or {}).items() %}{{ k }}={{ v | string | length }};{% endfor %}"
             "{{ messages | map(attribute='role') | join(',') }} {{ [1, 2.5, true, none, 'é'] | tojson }}"
             "{% for i in range(3) %}{% if i == 1 %}{% continue %}{% endif %}{{ i }}{% endfor %}"
             "{% generation %}x{% endgeneration %}",
}

USER = {"role": "user", "content": "Hello, wörld \U0001f642!"}
ASSISTANT = {"role": "assistant", "content": "  <think>why</think>\n\nHi there.  "}
CALL = {"role": "assistant", "content": "", "tool_calls": [
    {"id": "1", "type": "function", "function": {"name": "add", "arguments": {"z": 1.0, "a": [2, "é<>&'", 2.352219876, -1e-7]}}}]}
TOOLS = [{"type": "function", "function": {"name": "add", "description": "Adds <b>\"numbers\"</b> & more.",
                                           "parameters": {"type": "object", "properties": {}}}}]
CHATS = [
    {"messages": [USER], "add_generation_prompt": True},
    {"messages": [USER], "add_generation_prompt": False},
    {"messages": [{"role": "system", "content": "Be brief.\n"}, USER, ASSISTANT, USER],
     "add_generation_prompt": True},
    {"messages": [{"role": "user", "content": ""}], "add_generation_prompt": True},
    {"messages": [USER, {**USER, "content": "again\r\n\ttab {{ 7 * 7 }} {% raw %}"}],
     "add_generation_prompt": True},
    {"messages": [USER, CALL, {"role": "tool", "content": "3"}], "tools": TOOLS,
     "add_generation_prompt": True},
    {"messages": [USER], "add_generation_prompt": True, "documents": [{"title": "A"}, {}],
     "kwargs": {"enable_thinking": False, "names": {"b": 1, "a": "two"}}},
    {"messages": [USER, {"role": "assistant", "content": "Once upon a "}],
     "continue_final_message": True, "add_generation_prompt": False},
]


def main():
    rows = []
    for name, template in TEMPLATES.items():
        for chat in CHATS:
            options = {key: chat.get(key) for key in ("tools", "documents")}
            row = {"template": name, "chat": chat}
            try:
                rendered, _ = render_jinja_template(
                    [chat["messages"]], chat_template=template,
                    add_generation_prompt=chat["add_generation_prompt"],
                    continue_final_message=chat.get("continue_final_message", False),
                    **options, **chat.get("kwargs", {}), **TOKENS)
                row["text"] = rendered[0]
            except Exception as error:  # noqa: BLE001: what the template raises is the result
                row["error"] = str(error)
            rows.append(row)
    lines = ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    templates = json.dumps(TEMPLATES, ensure_ascii=False, indent=1)
    (HERE / "chats.json").write_text(f'{{"templates": {templates},\n"chats": [\n{lines}]}}\n', "utf-8")


if __name__ == "__main__":
    main()
