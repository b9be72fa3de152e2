"""The completions API, asked by the openai client."""
import json
import math
import time
import unittest

import openai

import harness


class Completions(harness.ServerCase):
    def test_completion(self):
        answer = self.complete()
        self.assertTrue(answer.id.startswith("cmpl-"))
        self.assertEqual(answer.object, "text_completion")
        self.assertEqual(answer.model, "octet-demo")
        choice, usage = answer.choices[0], answer.usage
        self.assertTrue(choice.text)
        self.assertEqual(choice.finish_reason, "length")
        self.assertIsNone(choice.logprobs)
        self.assertEqual(usage.completion_tokens, 16)
        self.assertEqual(usage.total_tokens, usage.prompt_tokens + 16)

    def test_stream_joins_to_the_whole(self):
        whole = self.complete(max_tokens=40)
        text, finish, usage = harness.join(self.complete(
            max_tokens=40, stream=True, stream_options={"include_usage": True}))
        self.assertEqual(text, whole.choices[0].text)
        self.assertEqual(finish, whole.choices[0].finish_reason)
        self.assertEqual(usage.completion_tokens, whole.usage.completion_tokens)
        self.assertEqual(usage.prompt_tokens, whole.usage.prompt_tokens)
        chunks = list(self.complete(stream=True))
        self.assertTrue(all(chunk.usage is None for chunk in chunks))
        self.assertTrue(all(c.choices[0].text for c in chunks[:-1]), "an empty part")

    def test_stop_strings(self):
        full = self.complete(max_tokens=40).choices[0].text
        for stop in {full[3:6], full[8:9], full[1:12], full[-4:]}:
            whole = self.complete(max_tokens=40, stop=[stop, "never there"], logprobs=0)
            choice = whole.choices[0]
            self.assertEqual(choice.text, full[:full.index(stop)])
            self.assertEqual(choice.finish_reason, "stop")
            self.assertEqual(choice.stop_reason, stop)
            self.assertEqual(len(choice.logprobs.tokens), whole.usage.completion_tokens)
            text, finish, _ = harness.join(self.complete(max_tokens=40, stop=stop, stream=True))
            self.assertEqual((text, finish), (choice.text, "stop"))
        kept = self.complete(max_tokens=40, stop=full[3:6],
                             extra_body={"include_stop_str_in_output": True})
        self.assertEqual(kept.choices[0].text, full[:full.index(full[3:6]) + 3])

    def test_logprobs(self):
        whole = self.complete(max_tokens=12, logprobs=3).choices[0]
        given = whole.logprobs
        self.assertEqual(len(given.tokens), 12)
        self.assertEqual("".join(given.tokens), whole.text)
        for token, logprob, top in zip(given.tokens, given.token_logprobs, given.top_logprobs):
            self.assertTrue(math.isfinite(logprob) and logprob <= 1e-6)
            self.assertAlmostEqual(max(top.values()), logprob, places=6)  # greedy
            self.assertIn(token, top)
            self.assertGreaterEqual(len(top), 2)
        offset = 0
        for token, at in zip(given.tokens, given.text_offset):
            self.assertEqual(at, offset)
            offset += len(token)
        streamed = [c.choices[0].logprobs for c in self.complete(max_tokens=12, logprobs=3,
                                                                 stream=True)]
        for field in ("tokens", "token_logprobs", "text_offset", "top_logprobs"):
            joined = [value for part in streamed for value in getattr(part, field)]
            self.assertEqual(joined, getattr(given, field))

    def test_seed(self):
        def draw(seed):
            return self.complete(temperature=1, seed=seed, max_tokens=24).choices[0].text
        self.assertEqual(draw(11), draw(11))
        self.assertNotEqual(draw(11), draw(12))

    def test_several_choices_and_prompts(self):
        answer = self.complete(prompt=["def add(", "import os"], n=2, temperature=1, seed=3)
        self.assertEqual([choice.index for choice in answer.choices], [0, 1, 2, 3])
        self.assertNotEqual(answer.choices[0].text, answer.choices[1].text)
        alone = self.complete(prompt="import os", temperature=1, seed=3)
        self.assertEqual(answer.choices[2].text, alone.choices[0].text)
        self.assertEqual(answer.usage.completion_tokens, 64)
        greedy = self.complete(prompt=["def add(", "import os"])
        self.assertEqual(greedy.choices[1].text, self.complete("import os").choices[0].text)

    def test_prompts_of_ids(self):
        code, out, _ = harness.run("generate", harness.MODEL, "--compute", "fp8", "--prompt",
                                   "def add(a, b):", "--max-tokens", 16, "--temperature", 0,
                                   "--json", "-")
        self.assertEqual(code, 0)
        first = json.loads(out)
        first = first[0] if isinstance(first, list) else first["completions"][0]
        by_ids = self.complete(prompt=first["prompt_ids"])
        self.assertEqual(by_ids.choices[0].text, first["text"])
        self.assertEqual(by_ids.choices[0].text, self.complete().choices[0].text)
        both = self.complete(prompt=[first["prompt_ids"], first["prompt_ids"]])
        self.assertEqual(len(both.choices), 2)

    def test_max_tokens_and_end(self):
        self.assertEqual(self.complete(max_tokens=1).usage.completion_tokens, 1)
        stopped = self.complete(extra_body={"stop_token_ids": list(range(8192))})
        self.assertEqual(stopped.usage.completion_tokens, 1)
        self.assertEqual(stopped.choices[0].text, "")
        self.assertEqual(stopped.choices[0].finish_reason, "stop")

    def test_cached_prefix_changes_nothing(self):
        prompt = "class Stack:\n    def push(self, item):\n" * 6
        first = self.complete(prompt)
        again = self.complete(prompt)
        self.assertEqual(first.choices[0].text, again.choices[0].text)
        self.assertGreater(again.usage.prompt_tokens_details.cached_tokens, 0)

    def test_a_client_that_goes_ends_the_tokenizing(self):
        begin = self.server.cpu_seconds()
        asking = self.server.send_completion(model="octet-demo", prompt=["a" * 30000] * 200)
        time.sleep(0.1)
        asking.close()
        with self.assertRaises(openai.BadRequestError):
            self.complete(prompt="word " * 9000)  # too long, and found so by the same worker
        self.assertLess(self.server.cpu_seconds() - begin, 0.6)  # all of it takes 0.9

    def test_models(self):
        card = self.client.models.list().data[0]
        self.assertEqual((card.id, card.object), ("octet-demo", "model"))
        self.assertEqual(self.client.models.retrieve("octet-demo").max_model_len, 8192)
        with self.assertRaises(openai.NotFoundError):
            self.client.models.retrieve("gpt")


class Refusals(harness.ServerCase):
    ARGS = ("--max-model-len", 256, "--max-request-bytes", 1 << 20, "--request-timeout", 2)

    def tearDown(self):
        self.assert_idle()  # the server answers the next request

    def refused(self, expected, **options):
        with self.assertRaises(openai.BadRequestError) as caught:
            self.complete(**options)
        for text in expected:
            self.assertIn(text, str(caught.exception))
        return caught.exception

    def test_too_long(self):
        self.refused(["256 tokens", "The prompt has"], prompt="word " * 600)
        error = self.refused(["256 tokens", "max_tokens is 300"], max_tokens=300)
        self.assertEqual(error.body["code"], 400)
        self.assertEqual(error.type, "BadRequestError")

    def test_more_than_ever_fit(self):
        # By default 1024 may wait and 32 may run.
        self.refused(["1300 completions", "at most"], prompt=["a"] * 100, n=13)

    def test_no_host(self):
        for head in (b"GET /health HTTP/1.1\r\n\r\n",
                     b"GET /health HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n"):
            with self.server.connect() as connection:
                connection.sendall(head)
                answer = connection.recv(4096)
                self.assertIn(b"HTTP/1.1 400 ", answer)
                self.assertIn(b"Host: NAME", answer)

    def test_a_body_that_stalls(self):
        with self.server.connect() as connection:
            connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n"
                               b"Content-Length: 100\r\n\r\n{")
            begin = time.monotonic()
            answer = connection.recv(4096)
            self.assertIn(b"HTTP/1.1 408 ", answer)
            self.assertIn(b"within 2 s", answer)
            self.assertLess(time.monotonic() - begin, 10)

    def test_no_tokens(self):
        self.refused(["nothing to complete"], prompt=[])
        self.refused(["no tokens"], prompt=[[]])
        self.refused(["no tokens"], prompt="", extra_body={"add_special_tokens": False})

    def test_bad_fields(self):
        self.refused(["temperature"], temperature=-1)
        self.refused(["logprobs", "20"], logprobs=21)
        self.refused(["8192"], prompt=[8192])
        self.refused(["presence_penalty"], presence_penalty=3)
        # A wrong type and a wrong value say the same: all that is accepted, and what came.
        self.refused(["stop must be a string or an array", "got 5"], stop=5)
        self.refused(["stop must be a string or an array", '["a",5]'], stop=["a", 5])
        for wrong in (1e30, 0, 1.5, True):
            self.refused(["max_tokens must be an integer from 1 to 2147483647, got "
                          + json.dumps(wrong)], extra_body={"max_tokens": wrong})
        self.refused(["temperature must be a number from 0 to 1000000, got 1e+308"],
                     temperature=1e308)
        self.refused(["top_p must be a number above 0 and at most 1, got 0"], top_p=0)
        self.refused(["stream_options"], stream_options={"include_usage": True})

    def test_unknown_model(self):
        with self.assertRaises(openai.NotFoundError):
            self.complete(model="gpt-4")

    def test_bodies(self):
        for body in (b"", b"{", b"[]", b"null", b'{"prompt":"\xff"}', b'{"prompt":"a"}}',
                     b'{"prompt":"a","temperature":1e999}', b"[" * 100000):
            status, _, answer = self.server.request("POST", "/v1/completions", body)
            self.assertEqual(status, 400, body[:40])
            error = json.loads(answer)["error"]
            self.assertEqual(set(error), {"message", "type", "param", "code"})

    def test_too_large(self):
        status, _, answer = self.server.request("POST", "/v1/completions", b"x" * (3 << 20))
        self.assertEqual(status, 413)
        self.assertEqual(json.loads(answer)["error"]["code"], 413)
        with self.assertRaises(openai.APIStatusError) as caught:
            self.complete("x" * (2 << 20))
        self.assertEqual(caught.exception.status_code, 413)

    def test_paths_and_methods(self):
        self.assertEqual(self.server.request("GET", "/nowhere")[0], 404)
        self.assertEqual(self.server.request("POST", "/v1/chat", {})[0], 404)
        status, headers, _ = self.server.request("GET", "/v1/completions")
        self.assertEqual((status, headers["Allow"]), (405, "POST, OPTIONS"))
        self.assertEqual(self.server.request("PUT", "/health", b"")[0], 405)
        self.assertEqual(self.server.request("HEAD", "/health")[0], 200)
        self.assertEqual(self.server.request("OPTIONS", "/v1/completions")[0], 200)

    def test_nonsense_instead_of_http(self):
        with self.server.connect() as connection:
            connection.sendall(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n")
            self.assertIn(b" 400 ", connection.recv(4096))


class Key(harness.ServerCase):
    ARGS = ("--api-key", "opensesame", "--max-model-len", 256, "--served-model-name", "org/demo")

    def test_key(self):
        with self.assertRaises(openai.AuthenticationError):
            self.complete(model="org/demo")
        with self.assertRaises(openai.AuthenticationError):
            self.client.models.list()
        self.assertEqual(self.server.request("GET", "/health")[0], 200)
        good = self.server.client(api_key="opensesame")
        answer = good.completions.create(model="org/demo", prompt="a", max_tokens=2)
        self.assertEqual(answer.usage.completion_tokens, 2)
        self.assertEqual(good.models.retrieve("org/demo").id, "org/demo")
        self.assertNotIn("opensesame", self.server.log())


if __name__ == "__main__":
    unittest.main()
