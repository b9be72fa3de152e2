"""Tool calls, asked for by the openai client. What the model says is forced by structured output, so
that the demo model can play any other."""
import json
import unittest

import openai

import harness
import test_chat

ASK = [{"role": "user", "content": "What is the weather in Rome?"}]
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 8},
                                               "days": {"$ref": "#/$defs/Days"}},
              "required": ["city", "days"], "additionalProperties": False,
              "$defs": {"Days": {"type": "integer", "minimum": 1, "maximum": 3}}}
TOOLS = [{"type": "function", "function": {"name": "get_weather", "parameters": PARAMETERS}},
         {"type": "function", "function": {"name": "now", "parameters": {
             "type": "object", "properties": {}, "additionalProperties": False}}}]
ARGUMENTS = '{"city": "Rome", "days": 2}'
HERMES = ('<tool_call>\n{"name": "get_weather", "arguments": %s}\n</tool_call>\n'
          '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>' % ARGUMENTS)
LLAMA = '{"name": "get_weather", "parameters": %s}; {"name": "now", "parameters": {}}' % ARGUMENTS
DEEPSEEK = ("<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n"
            + ARGUMENTS + "\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n"
            "```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>")


class ToolCase(harness.ServerCase):
    FORMAT = "hermes"

    @classmethod
    def setUpClass(cls):
        cls.ARGS = ("--chat-template", test_chat.template("chatml"), "--enable-auto-tool-choice",
                    "--tool-call-parser", cls.FORMAT)
        super().setUpClass()

    def chat(self, said=None, **options):
        options = {"model": "octet-demo", "temperature": 0, "max_tokens": 400, "tools": TOOLS,
                   **options}
        if said is not None:
            options["extra_body"] = {"structured_outputs": {"choice": [said]}}
        return self.client.chat.completions.create(messages=ASK, **options)

    def joined(self, stream):
        """Content, calls as (id, name, arguments) and the finish reason of a stream."""
        content, calls, finish = "", [], None
        for chunk in stream:
            for choice in chunk.choices:
                content += choice.delta.content or ""
                finish = choice.finish_reason or finish
                for part in choice.delta.tool_calls or []:
                    if part.index == len(calls):
                        self.assertTrue(part.id and part.function.name)
                        self.assertEqual(part.type, "function")
                        calls.append([part.id, part.function.name, ""])
                    else:  # the first part alone says whose it is
                        self.assertEqual(part.index, len(calls) - 1)
                        self.assertIsNone(part.id)
                        self.assertIsNone(part.function.name)
                    calls[part.index][2] += part.function.arguments
        return content, calls, finish

    def check(self, said, content, expected):
        choice = self.chat(said).choices[0]
        calls = choice.message.tool_calls or []
        self.assertEqual([(c.function.name, c.function.arguments) for c in calls], expected)
        self.assertEqual(choice.message.content, content or None)
        self.assertEqual(choice.finish_reason, "tool_calls" if expected else "stop")
        self.assertEqual(len({call.id for call in calls}), len(calls))
        streamed, parts, finish = self.joined(self.chat(said, stream=True))
        self.assertEqual(streamed, content)
        self.assertEqual([(name, arguments) for _, name, arguments in parts], expected)
        self.assertEqual(finish, choice.finish_reason)


class Hermes(ToolCase):
    def test_calls(self):
        both = [("get_weather", ARGUMENTS), ("now", "{}")]
        self.check(HERMES, "", both)
        self.check("Let me see.\n" + HERMES, "Let me see.", both)
        self.check("It is sunny.", "It is sunny.", [])
        broken = '<tool_call>\n{"name": "now", "arguments": []}\n</tool_call>'
        self.check(broken, broken, [])

    def test_without_tools_it_is_content(self):
        self.assertEqual(self.chat(HERMES, tools=[]).choices[0].message.content, HERMES)
        self.assertEqual(self.chat(HERMES, tool_choice="none").choices[0].message.content, HERMES)

    def test_arguments_come_piece_by_piece(self):
        parts = [part for chunk in self.chat(HERMES, stream=True) for choice in chunk.choices
                 for part in choice.delta.tool_calls or []]
        self.assertGreater(len([part for part in parts if part.index == 0]), 3)
        # A call that is cut has what was written of it.
        cut = self.chat(HERMES, max_tokens=len(parts) // 2).choices[0]
        self.assertEqual(cut.finish_reason, "length")

    def test_tools_without_a_name_are_refused(self):
        for tools in ([{"type": "function"}], [{"type": "function", "function": {}}],
                      [{"type": "function", "function": {"name": 3}}], [TOOLS[0], {"name": ""}]):
            for choice in ("auto", "required"):
                with self.assertRaises(openai.BadRequestError) as caught:
                    self.chat(tools=tools, tool_choice=choice)
                self.assertEqual(caught.exception.param, "tools")
                self.assertIn(f"tools[{len(tools) - 1}]", str(caught.exception))

    def test_a_conversation_goes_on(self):
        first = self.chat(HERMES).choices[0].message
        results = [{"role": "tool", "tool_call_id": call.id, "content": "ok"}
                   for call in first.tool_calls]
        answer = self.client.chat.completions.create(
            model="octet-demo", max_tokens=4, temperature=0, tools=TOOLS,
            extra_body={"ignore_eos": True},
            messages=[*ASK, first.model_dump(exclude_none=True), *results])
        self.assertEqual(answer.usage.completion_tokens, 4)


class ForcedCalls:
    def test_required(self):
        choice = self.chat(tool_choice="required", tools=TOOLS[:1]).choices[0]
        self.check_call(choice, "get_weather")
        self.assertEqual(choice.finish_reason, "tool_calls")

    def test_named(self):
        named = {"type": "function", "function": {"name": "get_weather"}}
        for seed in range(3):
            choice = self.chat(tool_choice=named, temperature=1, seed=seed).choices[0]
            self.check_call(choice, "get_weather")
            _, calls, finish = self.joined(self.chat(tool_choice=named, temperature=1, seed=seed,
                                                     stream=True))
            self.assertEqual(calls[0][2], choice.message.tool_calls[0].function.arguments)
            self.assertEqual(finish, choice.finish_reason)

    def check_call(self, choice, name):
        call, = choice.message.tool_calls
        self.assertEqual(call.function.name, name)
        arguments = json.loads(call.function.arguments)
        self.assertEqual(set(arguments), {"city", "days"})
        self.assertIn(arguments["days"], (1, 2, 3))

    def test_parameters_that_are_a_reference(self):
        for key in ("$defs", "definitions"):
            record = {"$ref": f"#/{key}/Outer", key: {
                "Outer": {"$ref": f"#/{key}/Args"},
                "Args": {**{k: v for k, v in PARAMETERS.items() if k != "$defs"}, "properties": {
                    "city": PARAMETERS["properties"]["city"], "days": {"$ref": f"#/{key}/Days"}}},
                "Days": PARAMETERS["$defs"]["Days"]}}
            tool = {"type": "function", "function": {"name": "get_weather", "parameters": record}}
            self.check_call(self.chat(tool_choice="required", tools=[tool]).choices[0], "get_weather")
        for parameters in ({"$ref": "#/$defs/Gone"}, {"$ref": "#"},
                           {"$ref": "#/$defs/A", "$defs": {"A": {"$ref": "#/$defs/A"}}},
                           {"$ref": "#/$defs/A", "$defs": {"A": {"type": "string"}}}):
            tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
            with self.assertRaises(openai.BadRequestError) as caught:
                self.chat(tool_choice="required", tools=[tool])
            self.assertEqual(caught.exception.param, "tools")

    def test_refusals(self):
        for options in ({"tools": []}, {"tools": TOOLS, "tool_choice": "always"},
                        {"tool_choice": {"type": "function", "function": {"name": "other"}}},
                        {"tool_choice": {"type": "function"}},
                        {"response_format": {"type": "json_object"}}):
            with self.assertRaises(openai.BadRequestError) as caught:
                self.chat(**{"tool_choice": "required", **options})
            self.assertEqual(caught.exception.param, "tool_choice")


class HermesForced(ForcedCalls, ToolCase):
    def test_any_of_several(self):
        for seed in range(4):
            choice = self.chat(tool_choice="required", temperature=1, seed=seed).choices[0]
            self.assertIn(choice.message.tool_calls[0].function.name, ("get_weather", "now"))


class Llama(ForcedCalls, ToolCase):
    FORMAT = "llama3_json"

    def test_calls(self):
        self.check(LLAMA, "", [("get_weather", ARGUMENTS), ("now", "{}")])
        self.check('{"name": "Bob", "parameters": {}}', '{"name": "Bob", "parameters": {}}', [])


class Deepseek(ForcedCalls, ToolCase):
    FORMAT = "deepseek_v3"

    def test_calls(self):
        self.check(DEEPSEEK, "", [("get_weather", ARGUMENTS), ("now", "{}")])
        self.check("Well: " + DEEPSEEK, "Well:", [("get_weather", ARGUMENTS), ("now", "{}")])

    def test_one_of_several_cannot_be_forced(self):
        with self.assertRaisesRegex(openai.BadRequestError, "name one"):
            self.chat(tool_choice="required")


if __name__ == "__main__":
    unittest.main()
