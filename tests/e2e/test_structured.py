"""Structured output, asked by the openai client: what comes is what was asked for."""
import concurrent.futures
import json
import re
import time
import unittest
from typing import Literal, Optional

import openai
import pydantic

import harness
import test_chat


class Part(pydantic.BaseModel):
    name: Literal["wheel", "door"]
    count: int


class Car(pydantic.BaseModel):
    electric: bool
    year: int = pydantic.Field(ge=1990, le=2030)
    parts: list[Part] = pydantic.Field(max_length=3)
    owner: Optional[Literal["me", "you"]]


SCHEMA = {"type": "json_schema", "json_schema": {"name": "car", "strict": True,
                                                 "schema": Car.model_json_schema()}}


class Structured(test_chat.ChatCase):
    def check(self, text):
        car = Car.model_validate_json(text)
        self.assertEqual(list(json.loads(text)), ["electric", "year", "parts", "owner"])
        return car

    def test_schema_at_temperature_1(self):
        answer = self.chat(response_format=SCHEMA, temperature=1, n=4, seed=1,
                           max_completion_tokens=300)
        for choice in answer.choices:
            self.assertEqual(choice.finish_reason, "stop")
            self.check(choice.message.content)
        self.assertGreater(len({choice.message.content for choice in answer.choices}), 1)

    def test_the_client_parses_it(self):
        answer = self.client.chat.completions.parse(
            model="octet-demo", messages=test_chat.HELLO, response_format=Car, temperature=1,
            seed=2, max_completion_tokens=300)
        self.assertIsInstance(answer.choices[0].message.parsed, Car)

    def test_stream(self):
        for seed in range(3):
            text, finish, _ = test_chat.join(self.chat(
                response_format=SCHEMA, temperature=1, seed=seed, stream=True,
                max_completion_tokens=300))
            self.assertEqual(finish, "stop")
            self.check(text)

    def test_stream_and_whole_are_equal(self):
        options = {"response_format": SCHEMA, "temperature": 1, "seed": 5,
                   "max_completion_tokens": 300}
        text, _, _ = test_chat.join(self.chat(stream=True, **options))
        self.assertEqual(self.chat(**options).choices[0].message.content, text)

    def test_json_object(self):
        answer = self.chat(response_format={"type": "json_object"}, temperature=0.5, n=2, seed=3,
                           max_completion_tokens=400)
        for choice in answer.choices:
            if choice.finish_reason == "stop":
                self.assertIsInstance(json.loads(choice.message.content), dict)
            else:  # it was going to be one
                self.assertRegex(choice.message.content, r"^\s*\{")

    def ask(self, **form):
        return self.complete(temperature=1, max_tokens=60, n=3, seed=7, extra_body=form).choices

    def test_regex_choice_and_grammar_by_every_name(self):
        regex = r"[0-9]{3}-[0-9]{4}"
        for form in ({"structured_outputs": {"regex": regex}}, {"guided_regex": regex}):
            for choice in self.ask(**form):
                self.assertEqual(choice.finish_reason, "stop")
                self.assertTrue(re.fullmatch(regex, choice.text), choice.text)
        words = ["positive", "negative", 'a "b"', "naïve"]
        for form in ({"structured_outputs": {"choice": words}}, {"guided_choice": words}):
            for choice in self.ask(**form):
                self.assertIn(choice.text, words)
        grammar = 'root ::= "<" word ("," word)? ">"\nword ::= [a-c]+'
        for form in ({"structured_outputs": {"grammar": grammar}}, {"guided_grammar": grammar}):
            for choice in self.ask(**form):
                whole = r"<[abc]+(,[abc]+)?>" if choice.finish_reason == "stop" else r"<[abc,]+"
                self.assertTrue(re.fullmatch(whole, choice.text), choice.text)
        for choice in self.ask(guided_json={"const": [1, "two"]}):
            self.assertEqual(json.loads(choice.text), [1, "two"])

    def test_others_in_the_batch_are_left_alone(self):
        alone = self.complete(max_tokens=40).choices[0].text
        with concurrent.futures.ThreadPoolExecutor() as pool:
            forms = [pool.submit(self.chat, response_format=SCHEMA, temperature=1, seed=seed,
                                 max_completion_tokens=200) for seed in range(4)]
            self.assertEqual(self.complete(max_tokens=40).choices[0].text, alone)
            for form in forms:
                self.check(form.result().choices[0].message.content)

    def test_what_is_wrong_is_refused_by_its_field(self):
        def refused(**form):
            with self.assertRaises(openai.BadRequestError) as caught:
                self.complete(extra_body=form)
            return caught.exception.body["param"]

        def schema(schema):
            return {"response_format": {"type": "json_schema",
                                        "json_schema": {"name": "x", "schema": schema}}}
        place = "response_format.json_schema.schema"
        self.assertEqual(refused(**schema({"type": "quaternion"})), place)
        self.assertEqual(refused(**schema({"not": {}})), place)
        self.assertEqual(refused(**schema({"$ref": "#/$defs/none"})), place)
        self.assertEqual(refused(guided_regex="("), "guided_regex")
        self.assertEqual(refused(guided_grammar="root ::= none"), "guided_grammar")
        self.assertEqual(refused(structured_outputs={"choice": []}), "structured_outputs.choice")
        self.assertEqual(refused(response_format={"type": "structural_tag"}),
                         "response_format.type")

    def test_a_hostile_grammar_holds_nobody_up(self):
        bomb = "((((((a{1,99}){1,99}){1,99}){1,99}){1,99}){1,99}){1,99}"
        with concurrent.futures.ThreadPoolExecutor() as pool:
            def ask():
                try:
                    self.complete(extra_body={"guided_regex": bomb})
                except openai.APIStatusError as error:  # 503: by the clock of a busy machine
                    self.assertIn(error.status_code, (400, 503))
            hostile = [pool.submit(ask) for _ in range(3)]
            begin = time.monotonic()
            self.assertTrue(self.server.healthy_within(2))
            self.assertEqual(self.complete(max_tokens=2).usage.completion_tokens, 2)
            self.assertTrue(self.chat(max_completion_tokens=2).choices)
            self.assertLess(time.monotonic() - begin, 10)
            for one in hostile:
                one.result()
        self.assert_idle()

class HostileKeys(unittest.TestCase):
    def test_two_of_them_deny_a_third_nothing(self):
        keys = ("bad-1", "bad-2", "good")
        server = harness.Server(*(word for key in keys for word in ("--api-key", key)))
        self.addCleanup(server.close)

        def ask(key, form):
            try:
                server.client(api_key=key).completions.create(
                    model="octet-demo", prompt="a", max_tokens=4, extra_body={"guided_json": form})
                return 200
            except openai.APIStatusError as error:
                return error.status_code

        def endless(number):
            return {"type": "object", "properties": {
                f"f{i}": {"type": "string", "maxLength": 60 + i + number} for i in range(48)}}

        with concurrent.futures.ThreadPoolExecutor(32) as pool:
            # Each takes all the time that it may, and is another one.
            hostile = [pool.submit(ask, key, endless(2 * number + (key == keys[0])))
                       for number in range(2) for key in keys[:2]]
            time.sleep(1)
            for number in range(3):
                begin = time.monotonic()
                self.assertEqual(ask("good", {"type": "integer", "minimum": number}), 200)
                self.assertLess(time.monotonic() - begin, 20)
            ends = [one.result() for one in hostile]
        self.assertLessEqual(set(ends), {400, 503})  # too much; or too much for a busy machine
        if 400 in ends[:2]:  # why there is none is known now
            begin = time.monotonic()
            self.assertEqual(ask("bad-1", endless(ends[0] == 400)), 400)
            self.assertLess(time.monotonic() - begin, 3)
