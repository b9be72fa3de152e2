#!/usr/bin/env python3
"""Compares chat templates as Octet and as Hugging Face render them.

    tests/compare/compare_templates.py build/cpu/tests/compare/compare_render FILE... [--tokenizer DIR]

A FILE is a Jinja template, or a tokenizer_config.json with one. It needs `transformers` and `jinja2`.
What Python cannot render is not counted. Differences are printed; exit code 1.
"""
import argparse
import json
import pathlib
import subprocess
import sys

from transformers.utils.chat_template_utils import render_jinja_template

HERE = pathlib.Path(__file__).resolve().parent
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
USER = {"role": "user", "content": "What is 2 + 2? \u00fc \u4f60\u597d \U0001f642"}
SYSTEM = {"role": "system", "content": "You are brief.\n"}
ANSWER = {"role": "assistant", "content": "<think>\nsimple\n</think>\n\nFour."}
CALL = {"role": "assistant", "content": "", "tool_calls": [
    {"id": "call00001", "type": "function",
     "function": {"name": "add", "arguments": {"a": 2, "b": [2, "\u00e9"]}}}]}
TOOL = {"role": "tool", "name": "add", "tool_call_id": "call00001", "content": "4"}
TOOLS = [{"type": "function", "function": {
    "name": "add", "description": "Adds \"numbers\" & <more>.",
    "parameters": {"type": "object", "required": ["a", "b"], "properties": {
        "a": {"type": "number", "description": "one"},
        "b": {"type": "array", "items": {"type": "string"}, "description": "others"}}}}}]
CHATS = {
    "user": {"messages": [USER]},
    "no prompt": {"messages": [USER], "add_generation_prompt": False},
    "system": {"messages": [SYSTEM, USER]},
    "turns": {"messages": [SYSTEM, USER, ANSWER, {**USER, "content": "  And 3?\n"}]},
    "empty": {"messages": [{"role": "user", "content": ""}]},
    "looks like tokens": {"messages": [{"role": "user", "content": "{{ x }} {% if %} [INST] <b>"}]},
    "tools": {"messages": [SYSTEM, USER], "tools": TOOLS},
    "tool call": {"messages": [USER, CALL, TOOL], "tools": TOOLS},
    "after a tool": {"messages": [USER, CALL, TOOL, ANSWER, USER], "tools": TOOLS},
    "no thinking": {"messages": [USER], "kwargs": {"enable_thinking": False}},
}


def templates_of(path):
    if path.suffix != ".json":
        return {path.name: path.read_text()}
    found = json.loads(path.read_text())["chat_template"]
    if isinstance(found, str):
        return {path.parent.name: found}
    return {f"{path.parent.name}/{one['name']}": one["template"] for one in found}


def theirs(template, chat):
    try:
        return render_jinja_template(
            [chat["messages"]], chat_template=template, tools=chat.get("tools"),
            add_generation_prompt=chat.get("add_generation_prompt", True),
            **chat.get("kwargs", {}), **TOKENS)[0][0]
    except Exception:  # noqa: BLE001: whatever it is, there is nothing to compare
        return None


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("program")
    parser.add_argument("files", nargs="+", type=pathlib.Path)
    parser.add_argument("--tokenizer", default=HERE.parents[1] / "models" / "octet-demo")
    args = parser.parse_args()
    rows = []
    for path in args.files:
        for name, template in templates_of(path).items():
            for chat_name, chat in CHATS.items():
                expected = theirs(template, chat)
                if expected is not None:
                    rows.append((name, chat_name, template, chat, expected))
    lines = "".join(json.dumps({"template": r[2], "chat": r[3]}) + "\n" for r in rows)
    done = subprocess.run([args.program, str(args.tokenizer)], input=lines.encode(),
                          capture_output=True, check=True)
    different = 0
    for (name, chat_name, _, _, expected), line in zip(rows, done.stdout.decode().splitlines()):
        got = json.loads(line)
        if got == expected:
            continue
        different += 1
        print(f"{name}, {chat_name}:")
        if isinstance(got, dict):
            print("   " + got["error"][:600].replace("\n", "\n   "))
            continue
        at = next((i for i, (a, b) in enumerate(zip(got, expected)) if a != b),
                  min(len(got), len(expected)))
        print(f"   at {at}: expected {expected[at - 20:at + 60]!r}\n   {' ' * len(str(at))}"
              f"        got {got[at - 20:at + 60]!r}")
    print(f"{len(rows) - different} of {len(rows)} renders equal")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
