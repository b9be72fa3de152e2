"""Fields of requests beyond the plain ones, the paths beside completions, and vLLM's flags."""
import concurrent.futures
import json
import math
import os
import pathlib
import re
import resource
import tempfile
import unittest

import openai

import harness

PROMPT = "def add(a, b):"


class Fields(harness.ServerCase):
    def extra(self, **fields):
        return self.complete(extra_body=fields)

    def text(self, **fields):
        return self.extra(**fields).choices[0].text

    def ids(self, text):
        _, _, body = self.server.request("POST", "/tokenize",
                                         {"prompt": text, "add_special_tokens": False})
        return json.loads(body)["tokens"]

    def test_bias_bans_and_forces(self):
        first = self.complete(max_tokens=1, logprobs=0, extra_body={"return_token_ids": True})
        drawn = first.choices[0].token_ids[0]
        banned = self.complete(max_tokens=1, logit_bias={str(drawn): -100},
                               extra_body={"return_token_ids": True})
        self.assertNotEqual(banned.choices[0].token_ids[0], drawn)
        forced = self.complete(max_tokens=3, logit_bias={"300": 100},
                               extra_body={"return_token_ids": True})
        self.assertEqual(forced.choices[0].token_ids, [300, 300, 300])

    def test_allowed_tokens(self):
        answer = self.extra(allowed_token_ids=[300, 301], return_token_ids=True)
        self.assertLessEqual(set(answer.choices[0].token_ids), {300, 301})
        self.assertEqual(answer.usage.completion_tokens, 16)

    def test_bad_words(self):
        plain = self.text()
        self.assertIn("return", plain)
        self.assertNotIn("return", self.text(bad_words=["return"]))

    def test_penalties(self):
        for field, value in (("presence_penalty", 2), ("frequency_penalty", 2)):
            changed = self.complete(max_tokens=48, **{field: value}).choices[0].text
            self.assertNotEqual(changed, self.complete(max_tokens=48).choices[0].text, field)
        repeated = self.complete(max_tokens=48, extra_body={"repetition_penalty": 1.5})
        self.assertNotEqual(repeated.choices[0].text, self.complete(max_tokens=48).choices[0].text)

    def test_min_tokens(self):
        drawn = self.complete(max_tokens=4, extra_body={"return_token_ids": True}).choices[0]
        for least in (0, 3):
            answer = self.extra(stop_token_ids=drawn.token_ids, min_tokens=least,
                                return_token_ids=True)
            ids = answer.choices[0].token_ids
            self.assertGreater(len(ids), least)
            self.assertFalse(set(ids[:least]) & set(drawn.token_ids))
        with self.assertRaisesRegex(openai.BadRequestError, "no token is left"):
            self.extra(stop_token_ids=list(range(8192)), min_tokens=5)

    def test_truncation(self):
        ids = self.ids("import os\n\n\n" + PROMPT)
        short = self.ids(PROMPT)
        cut = self.complete(prompt=ids, extra_body={"truncate_prompt_tokens": len(short),
                                                    "return_token_ids": True})
        self.assertEqual(cut.choices[0].prompt_token_ids, ids[-len(short):])
        right = self.complete(prompt=ids, extra_body={
            "truncate_prompt_tokens": 2, "truncation_side": "right", "return_token_ids": True})
        self.assertEqual(right.choices[0].prompt_token_ids, ids[:2])
        fits = self.complete(prompt="word " * 9000, max_tokens=4,
                             extra_body={"truncate_prompt_tokens": -1})
        self.assertEqual(fits.usage.prompt_tokens, 8192 - 4)
        with self.assertRaisesRegex(openai.BadRequestError, "maximum context"):
            self.complete(prompt="word " * 9000, max_tokens=4)
        for most in (8191, 8192, 10000):  # an answer that leaves a token, none, and less
            for kept in (-1, 5):
                truncated = {"truncate_prompt_tokens": kept, "stop_token_ids": list(range(8192)),
                             "return_token_ids": True}
                if most < 8192:
                    answer = self.complete(prompt=ids, max_tokens=most, extra_body=truncated)
                    self.assertEqual(answer.choices[0].prompt_token_ids, ids[-1:])
                    continue
                with self.assertRaisesRegex(openai.BadRequestError, "no room for a prompt") as caught:
                    self.complete(prompt=ids, max_tokens=most, extra_body=truncated)
                self.assertEqual(caught.exception.param, "max_tokens")

    def test_timeout(self):
        answer = self.complete(max_tokens=4000, extra_body={"timeout": 0.2, "ignore_eos": True})
        self.assertEqual(answer.choices[0].finish_reason, "timeout")
        self.assertLess(answer.usage.completion_tokens, 4000)
        self.assert_idle()

    def test_token_names_and_ids(self):
        answer = self.complete(logprobs=1, max_tokens=4, extra_body={
            "return_tokens_as_token_ids": True, "return_token_ids": True}).choices[0]
        self.assertEqual(answer.logprobs.tokens, [f"token_id:{id}" for id in answer.token_ids])
        self.assertIn(answer.logprobs.tokens[0], answer.logprobs.top_logprobs[0])
        chunks = list(self.complete(max_tokens=4, stream=True,
                                    extra_body={"return_token_ids": True}))
        self.assertEqual(sum((c.choices[0].token_ids for c in chunks), []), answer.token_ids)
        self.assertEqual([hasattr(c.choices[0], "prompt_token_ids") for c in chunks],
                         [True] + [False] * (len(chunks) - 1))

    def test_prompt_logprobs(self):
        whole = self.extra(prompt_logprobs=2).choices[0].prompt_logprobs
        self.assertEqual(len(whole), self.complete().usage.prompt_tokens)
        self.assertIsNone(whole[0])
        for token in whole[1:]:
            self.assertIn(len(token), (2, 3))
            for item in token.values():
                self.assertTrue(math.isfinite(item["logprob"]) and item["rank"] >= 1)
        with self.assertRaisesRegex(openai.BadRequestError, "stream"):
            self.complete(stream=True, extra_body={"prompt_logprobs": 1})

    def test_unknown_fields_are_told_once(self):
        for _ in range(3):
            self.extra(frobnicate=1)
        self.assertEqual(self.server.log().count("frobnicate"), 1)

    def test_refusals(self):
        for fields in ({"priority": 1}, {"logit_bias": {"x": 1}}, {"logit_bias": {"1": 200}},
                       {"allowed_token_ids": []}, {"bad_words": [""]}, {"timeout": -1},
                       {"presence_penalty": 3}, {"repetition_penalty": 0}, {"suffix": "x"},
                       {"best_of": 3, "stream": True}, {"truncate_prompt_tokens": 0},
                       {"min_tokens": 17}, {"use_beam_search": True},
                       {"logprob_token_ids": [1]}):
            with self.assertRaises(openai.BadRequestError) as caught:
                self.extra(**fields)
            self.assertEqual(caught.exception.param, list(fields)[0])


class Policies(unittest.TestCase):
    """Under every policy answers are the same; under priority the field is heeded."""

    def test_answers_are_the_same(self):
        answers = []
        for policy in ("fcfs", "priority", "prefill-first"):
            server = harness.Server("--schedule-policy", policy, "--max-num-seqs", "2")
            self.addCleanup(server.close)
            client = server.client()
            fields = {"priority": 1} if policy == "priority" else {}
            model = client.models.list().data[0].id
            with concurrent.futures.ThreadPoolExecutor(6) as pool:
                answers.append(list(pool.map(
                    lambda i: client.completions.create(
                        model=model, prompt="def add%d(a, b):" % i, max_tokens=8, temperature=0,
                        extra_body=fields).choices[0].text, range(6))))
        self.assertEqual(answers[0], answers[1])
        self.assertEqual(answers[0], answers[2])


class Echo(harness.ServerCase):
    def test_text(self):
        plain = self.complete().choices[0].text
        self.assertEqual(self.complete(echo=True).choices[0].text, PROMPT + plain)
        ids = json.loads(self.server.request("POST", "/tokenize", {"prompt": PROMPT})[2])["tokens"]
        for prompt, count in ((PROMPT, 1), ([PROMPT, PROMPT], 2), (ids, 1), ([ids, ids], 2)):
            answer = self.complete(prompt, echo=True)
            self.assertEqual([c.text for c in answer.choices], [PROMPT + plain] * count)
            alone = self.complete(prompt, echo=True, max_tokens=0)
            self.assertEqual([c.text for c in alone.choices], [PROMPT] * count)
            self.assertEqual(alone.usage.completion_tokens, 0)

    def test_logprobs(self):
        answer = self.complete(echo=True, logprobs=1, max_tokens=4)
        given = answer.choices[0].logprobs
        count = answer.usage.prompt_tokens
        for values in (given.tokens, given.token_logprobs, given.top_logprobs, given.text_offset):
            self.assertEqual(len(values), count + 4)
        self.assertIsNone(given.token_logprobs[0])
        self.assertIsNone(given.top_logprobs[0])
        self.assertTrue(all(math.isfinite(x) and x <= 1e-6 for x in given.token_logprobs[1:]))
        text = answer.choices[0].text
        for token, at in list(zip(given.tokens, given.text_offset))[1:]:
            self.assertEqual(text[at:at + len(token)], token)
        alone = self.complete(echo=True, logprobs=1, max_tokens=0).choices[0].logprobs
        self.assertEqual(alone.token_logprobs, given.token_logprobs[:count])
        streamed = [c.choices[0].logprobs for c in self.complete(echo=True, logprobs=1,
                                                                 max_tokens=4, stream=True)]
        for field in ("tokens", "token_logprobs", "text_offset", "top_logprobs"):
            joined = [value for part in streamed for value in getattr(part, field)]
            self.assertEqual(joined, getattr(given, field))

    def test_the_prompts_scores_are_those_of_its_tokens_drawn_later(self):
        # Greedy tokens scored as they are drawn, and again as a prompt.
        drawn = self.complete(max_tokens=8, logprobs=0, extra_body={"return_token_ids": True})
        ids = drawn.choices[0].prompt_token_ids + drawn.choices[0].token_ids
        scored = self.complete(ids, echo=True, logprobs=0, max_tokens=0).choices[0].logprobs
        self.assertEqual(scored.token_logprobs[-8:], drawn.choices[0].logprobs.token_logprobs)


class BestOf(harness.ServerCase):
    def test_the_likeliest_comes_first(self):
        def mean(choice):
            return sum(choice.logprobs.token_logprobs) / len(choice.logprobs.token_logprobs)
        options = {"temperature": 1, "seed": 4, "logprobs": 0}
        everything = self.complete(n=4, **options)
        best = self.complete(best_of=4, n=2, **options)
        expected = sorted(everything.choices, key=mean, reverse=True)[:2]
        self.assertEqual([c.text for c in best.choices], [c.text for c in expected])
        self.assertEqual(best.usage.completion_tokens, everything.usage.completion_tokens)


class Paths(harness.ServerCase):
    ARGS = ("--api-key", "one", "--api-key", "two", "--allowed-origins", '["https://a.example"]',
            "--disable-log-requests", "--enable-auto-tool-choice", "--trust-remote-code",
            "--dtype", "bfloat16", "--tensor-parallel-size=1", "--enable-chunked-prefill",
            "--gpu-memory-utilization", "0.9", "--enforce-eager", "--max-model-len", "512",
            "--quantization", "fp8", "--kv-cache-dtype", "fp8", "--seed", "7",
            "--no-enable-prompt-tokens-details", "--enable-force-include-usage")
    KEY = {"Authorization": "Bearer two"}

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.client = cls.server.client(api_key="one")

    def test_everything_but_the_pulse_is_guarded(self):
        for method, path in (("POST", "/tokenize"), ("POST", "/detokenize"), ("GET", "/v1/models"),
                             ("GET", "/debug/kernels"), ("POST", "/v1/chat/completions"),
                             ("GET", "/tokenizer_info"), ("POST", "/invocations"),
                             ("GET", "/anything")):
            self.assertEqual(self.server.request(method, path, {})[0], 401, path)
        for path in ("/health", "/ping", "/version"):
            self.assertEqual(self.server.request("GET", path)[0], 200, path)
        self.assertEqual(self.server.request("GET", "/anything", headers=self.KEY)[0], 404)

    def test_tokenize_and_back(self):
        _, _, body = self.server.request("POST", "/tokenize", {
            "prompt": PROMPT, "return_token_strs": True}, headers=self.KEY)
        answer = json.loads(body)
        self.assertEqual(answer["count"], len(answer["tokens"]))
        self.assertEqual(answer["max_model_len"], 512)
        self.assertEqual("".join(answer["token_strs"]), "<|bos|>" + PROMPT)
        status, _, body = self.server.request("POST", "/detokenize", {"tokens": answer["tokens"]},
                                              headers=self.KEY)
        self.assertEqual((status, json.loads(body)), (200, {"prompt": "<|bos|>" + PROMPT}))

    def test_kernels(self):
        _, _, body = self.server.request("GET", "/debug/kernels", headers=self.KEY)
        kernels = json.loads(body)["kernels"]
        self.assertTrue(kernels)
        self.assertTrue(all(row["kernel"] and row["modules"] for row in kernels))

    def test_origins(self):
        ask = {"Origin": "https://a.example"}
        status, headers, _ = self.server.request("OPTIONS", "/v1/completions", headers=ask)
        self.assertEqual(status, 200)
        self.assertEqual(headers["Access-Control-Allow-Origin"], "https://a.example")
        self.assertIn("Authorization", headers["Access-Control-Allow-Headers"])
        _, headers, _ = self.server.request("GET", "/health",
                                            headers={"Origin": "https://b.example"})
        self.assertNotIn("Access-Control-Allow-Origin", headers)

    def test_usage(self):
        self.assertIsNone(self.complete().usage.prompt_tokens_details)
        last = list(self.complete(stream=True))[-1]
        self.assertEqual(last.usage.completion_tokens, 16)

    def test_request_ids(self):
        answer = self.complete(extra_headers={"X-Request-Id": "mine"})
        self.assertEqual(answer.id, "cmpl-mine")
        longest = "x" * 128
        self.assertEqual(self.complete(extra_headers={"X-Request-Id": longest}).id, "cmpl-" + longest)
        status, headers, body = self.server.request("GET", "/health",
                                                    headers={"X-Request-Id": longest + "x"})
        self.assertEqual(status, 400)
        self.assertIn(b"at most 128", body)

    def test_options_tell_no_path_without_a_key(self):
        answers = {self.server.request("OPTIONS", path)[0::2]
                   for path in ("/v1/completions", "/v1/models", "/no/such", "/debug/kernels")}
        self.assertEqual(len(answers), 1, answers)
        self.assertEqual(next(iter(answers))[0], 200)
        _, headers, _ = self.server.request("OPTIONS", "/v1/completions")
        self.assertNotIn("Allow", headers)
        key = {"Authorization": "Bearer one"}
        _, headers, _ = self.server.request("OPTIONS", "/v1/completions", headers=key)
        self.assertEqual(headers["Allow"], "POST, OPTIONS")
        self.assertEqual(self.server.request("OPTIONS", "/no/such", headers=key)[0], 404)


class Flags(unittest.TestCase):
    def test_flags_without_a_meaning_are_refused_with_what_to_do(self):
        for flags, instead in ((["--tensor-parallel-size", "2"], "one device"),
                               (["-tp=2"], "one device"),
                               (["--ssl-keyfile", "k"], "reverse proxy"),
                               (["--enable-lora"], "merge"),
                               (["--tokenizer", "x"], "tokenizer.json"),
                               (["--dtype", "float16"], "--compute"),
                               (["--tensor-parallel-size"], "one device"),
                               (["--speculative-config", "{}"], "speculative")):
            code, _, err = harness.run("serve", harness.MODEL, *flags)
            self.assertEqual(code, 2, err)
            self.assertIn(flags[0].split("=")[0], err)
            self.assertIn(instead, err)

    def test_bad_values(self):
        with tempfile.TemporaryDirectory() as folder:
            pathlib.Path(folder, "generation_config.json").write_text('{"temperature": -1}')
            for flags, text in ((["--generation-config", folder], "temperature"),
                                (["--generation-config", "/no/such"], "/no/such"),
                                (["--override-generation-config", "[]"], "override"),
                                (["--override-generation-config", '{"top_p": 2}'], "top_p"),
                                (["--override-generation-config", '{"top_k": 0.5}',
                                  "--generation-config", harness.MODEL],
                                 "--override-generation-config"),
                                (["--allowed-origins", "[1]"], "--allowed-origins"),
                                (["--api-key", ""], "--api-key"),
                                (["--request-log", "/no/such/log"], "/no/such/log"),
                                (["--tool-call-parser", "x"], "hermes")):
                code, _, err = harness.run("serve", harness.MODEL, *flags)
                self.assertEqual(code, 2, err)
                self.assertIn(text, err)


class Defaults(unittest.TestCase):
    def test_the_models_defaults_and_whose_win(self):
        greedy = harness.Server("--override-generation-config", '{"temperature": 0}')
        self.addCleanup(greedy.close)
        client = greedy.client()
        texts = {client.completions.create(model="octet-demo", prompt=PROMPT).choices[0].text
                 for _ in range(3)}
        self.assertEqual(len(texts), 1)
        hot = {client.completions.create(model="octet-demo", prompt=PROMPT, temperature=2,
                                         seed=seed).choices[0].text for seed in range(3)}
        self.assertGreater(len(hot), 1)


class Waiting(unittest.TestCase):
    STREAMS = 1000

    def test_streams_that_wait_cost_little_memory(self):
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = 2 * self.STREAMS + 200  # both ends: the server inherits the limit
        if hard != resource.RLIM_INFINITY and hard < wanted:
            self.skipTest(f"the system allows {hard} open files")
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
        self.addCleanup(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        server = harness.Server("--max-num-seqs", 1, "--max-queued-requests", 2 * self.STREAMS)
        self.addCleanup(server.close)

        def resident():
            status = pathlib.Path(f"/proc/{server.process.pid}/status").read_text()
            return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) / 1024
        fields = {"prompt": PROMPT, "max_tokens": 8000, "stream": True, "ignore_eos": True}
        streams = [server.send_completion(**fields)]
        streams[0].recv(1)
        before = resident()
        streams += [server.send_completion(**fields) for _ in range(self.STREAMS)]
        for stream in streams[1:]:  # the head of the answer: the request waits
            stream.recv(1)
        grown = resident() - before
        for stream in streams:
            stream.close()
        self.assertLess(grown, self.STREAMS * 0.05)  # MiB; half of it is usual


class RequestLog(unittest.TestCase):
    def test_holds_what_was_computed_and_no_key(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        path = os.path.join(folder.name, "requests")
        server = harness.Server("--request-log", path, "--api-key", "opensesame")
        self.addCleanup(server.close)
        client = server.client(api_key="opensesame")
        answer = client.completions.create(
            model="octet-demo", prompt=PROMPT, max_tokens=5, n=2, seed=9,
            extra_body={"cache_salt": "tenant", "return_token_ids": True})
        leaving = server.connect()
        body = json.dumps({"prompt": "x", "max_tokens": 5000, "ignore_eos": True}).encode()
        leaving.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n"
                        b"Authorization: Bearer opensesame\r\nContent-Length: %d\r\n\r\n"
                        % len(body) + body)
        client.completions.create(model="octet-demo", prompt="y", max_tokens=2)
        leaving.close()
        client.completions.create(model="octet-demo", prompt="y", max_tokens=2)
        self.assertEqual(server.terminate(), 0)
        text = pathlib.Path(path).read_text()
        self.assertNotIn("opensesame", text)
        self.assertNotIn("tenant", text)
        lines = [json.loads(line) for line in text.splitlines()]
        self.assertEqual(len(lines), 4)
        first = next(line for line in lines if line["id"] == answer.id)
        self.assertEqual(first["path"], "/v1/completions")
        self.assertEqual(first["prompts"], [answer.choices[0].prompt_token_ids])
        self.assertEqual([c["output_ids"] for c in first["choices"]],
                         [c.token_ids for c in answer.choices])
        self.assertEqual([c["seed"] for c in first["choices"]], [9, 10])
        self.assertEqual(first["choices"][0]["finish_reason"], answer.choices[0].finish_reason)
        self.assertIn("abort", [c["finish_reason"] for line in lines for c in line["choices"]])
        self.assertEqual(os.stat(path).st_mode & 0o077, 0)


if __name__ == "__main__":
    unittest.main()
