"""GET /metrics: true numbers, soon, whatever goes on."""
import re
import time
import unittest

import harness


def parse(text):
    """{name: {labels: value}}, and the type of each family."""
    samples, types = {}, {}
    for line in text.splitlines():
        if line.startswith("# TYPE"):
            _, _, name, kind = line.split()
            assert name not in types, f"{name} twice"
            types[name] = kind
        elif not line.startswith("#"):
            name, labels, value = re.fullmatch(r"([a-zA-Z_:][\w:]*)(\{.*\})? (\S+)", line).groups()
            series = samples.setdefault(name, {})
            key = dict(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', labels or ""))
            key = tuple(sorted(key.items()))
            assert key not in series, f"{name}{key} twice"
            series[key] = float(value)
    return samples, types


class Metrics(harness.ServerCase):
    def scrape(self):
        status, headers, body = self.server.request("GET", "/metrics")
        self.assertEqual(status, 200)
        self.assertIn("version=0.0.4", headers["Content-Type"])
        return parse(body.decode())

    def value(self, name, **labels):
        samples, _ = self.scrape()
        found = [value for key, value in samples[name].items()
                 if all(dict(key).get(label) == text for label, text in labels.items())]
        self.assertEqual(len(found), 1, f"{name} {labels}")
        return found[0]

    def wait_for(self, condition, seconds=1.0):
        deadline = time.monotonic() + seconds
        while not condition():
            self.assertLess(time.monotonic(), deadline, "gauges are not true within the time")
            time.sleep(0.02)

    def test_the_page_is_what_prometheus_reads(self):
        self.complete()
        samples, types = self.scrape()
        for name, kind in types.items():
            if kind == "histogram":
                buckets = samples[name + "_bucket"]
                for series in {tuple(p for p in key if p[0] != "le") for key in buckets}:
                    rows = [(float(dict(key)["le"].replace("+Inf", "inf")), value)
                            for key, value in buckets.items()
                            if tuple(p for p in key if p[0] != "le") == series]
                    values = [value for _, value in sorted(rows)]
                    self.assertEqual(values, sorted(values), name)
                    self.assertEqual(values[-1], samples[name + "_count"][series])
            else:
                self.assertIn(name, samples)
                self.assertEqual(name.endswith("_total"), kind == "counter", name)
        for name, series in samples.items():  # one value under both names
            if name.startswith("vllm:num_requests"):
                self.assertEqual(list(series.values()), [0.0], name)

    def test_counts_of_requests_and_tokens(self):
        def counts():
            return [self.value("octet_requests_ended_total", finished_reason="length"),
                    self.value("octet_prompt_tokens_total"),
                    self.value("octet_generation_tokens_total"),
                    self.value("vllm:generation_tokens_total"),
                    self.value("octet_time_to_first_token_seconds_count"),
                    self.value("octet_inter_token_latency_seconds_count"),
                    self.value("vllm:request_params_n_sum"),
                    self.value("vllm:request_params_max_tokens_sum"),
                    self.value("vllm:request_max_num_generation_tokens_sum"),
                    self.value("http_requests_total", handler="/v1/completions", status="2xx")]
        before = counts()
        usage = self.complete(max_tokens=9, n=2).usage
        self.assertEqual(usage.completion_tokens, 18)
        self.assertEqual([b - a for a, b in zip(before, counts())],
                         [2, 2 * usage.prompt_tokens, 18, 18, 2, 16, 2, 9, 9, 1])
        self.assertEqual(self.value("vllm:iteration_tokens_total_sum"),
                         self.value("octet_computed_tokens_total"))
        self.assertEqual(self.value("vllm:iteration_tokens_total_count"),
                         self.value("octet_steps_total"))
        bad = self.server.request("POST", "/v1/completions", "{")[0]
        self.assertEqual(bad, 400)
        self.assertGreaterEqual(
            self.value("http_requests_total", handler="/v1/completions", status="4xx"), 1)

    def test_every_request_ends_in_exactly_one_way(self):
        """Aborted ones, too, and the gauges forget them (within a second, with nothing to do)."""
        def ended():
            samples, _ = self.scrape()
            return {dict(key)["finished_reason"]: value
                    for key, value in samples["octet_requests_ended_total"].items()}
        before = ended()
        connections = [self.server.send_completion(prompt="x = ", max_tokens=900, ignore_eos=True,
                                                   stream=True, temperature=0) for _ in range(40)]
        self.wait_for(lambda: self.value("octet_requests_running") > 0, 10)
        def pending():
            samples, _ = self.scrape()
            return sum(sum(samples[f"octet_requests_{kind}"].values())
                       for kind in ("running", "waiting"))
        self.wait_for(lambda: pending() == 40, 10)
        self.assertGreater(self.value("octet_kv_cache_usage_ratio"), 0)
        for connection in connections:
            connection.close()
        self.wait_for(lambda: ended()["abort"] - before["abort"] == 40, 30)
        self.wait_for(lambda: self.value("octet_requests_running") == 0 and
                      self.value("octet_requests_waiting") == 0 and
                      self.value("octet_kv_cache_usage_ratio") == 0)
        after = ended()
        self.assertEqual({k: after[k] - before[k] for k in after},
                         {"stop": 0, "length": 0, "abort": 40, "timeout": 0, "error": 0})
        self.assertEqual(sum(after.values()), self.value("octet_request_seconds_count"))

    def test_a_scrape_is_quick_under_load(self):
        connections = [self.server.send_completion(prompt="y = ", max_tokens=400, ignore_eos=True,
                                                   stream=True, temperature=0) for _ in range(32)]
        self.wait_for(lambda: self.value("octet_requests_running") >= 16, 20)
        times = []
        for _ in range(20):
            begin = time.monotonic()
            self.scrape()
            times.append(time.monotonic() - begin)
        for connection in connections:
            connection.close()
        self.assertLess(sorted(times)[10], 0.5)  # of a process that shares two cores with its load
        self.wait_for(lambda: self.value("octet_requests_running") == 0, 30)

    def test_what_the_cache_holds(self):
        self.complete(prompt="def f(x):\n    return x\n" * 12, max_tokens=200,
                      extra_body={"ignore_eos": True})
        samples, _ = self.scrape()
        values = samples["octet_kv_sampled_values_total"]
        self.assertTrue(all(value > 0 for value in values.values()), values)
        self.assertEqual(set(samples["octet_kv_not_finite_values_total"].values()), {0.0})
        for key, used in samples["octet_kv_range_used_ratio"].items():
            self.assertTrue(0 < used <= 1, (key, used))
            self.assertGreater(samples["octet_kv_scale"][key], 0)

    def test_repetition(self):
        before = self.value("octet_repeated_tokens_total")
        self.complete(prompt="a a a a a a a a a a a a", max_tokens=300,
                      extra_body={"ignore_eos": True})
        self.assertGreater(self.value("octet_repeated_tokens_total") - before, 16)


class FeaturesInForce(unittest.TestCase):
    """What was asked for is on, or the start and the page say that it is off, and why."""

    def facts_of(self, *args):
        """The labels of octet_config_info, the start's line, and how much of a prompt is found again."""
        server = harness.Server(*args)
        self.addCleanup(server.close)
        samples, _ = parse(server.request("GET", "/metrics")[2].decode())
        (labels,) = samples["octet_config_info"]
        line = next(line for line in server.log().splitlines() if "in force: " in line)
        for _ in range(2):
            done = server.client().completions.create(
                model="octet-demo", prompt="def add(a, b):\n    return a + b\n" * 12, max_tokens=2)
        server.terminate()
        return dict(labels), line, done.usage.prompt_tokens_details

    def test_no_cache_type_turns_prefix_caching_off(self):
        for kind in ("fp8", "fp8_e5m2", "bf16"):
            facts, line, found = self.facts_of("--kv-cache-dtype", kind)
            self.assertEqual(facts["prefix_caching"], "on", kind)
            self.assertIn("prefix_caching: on", line)
            self.assertIn(f"kv_cache_dtype: {facts['kv_cache_dtype']}", line)
            self.assertGreater(found.cached_tokens, 16, kind)

    def test_what_is_off_is_said_with_its_reason(self):
        facts, line, found = self.facts_of("--no-enable-prefix-caching")
        self.assertEqual(facts["prefix_caching"], "off: as asked")
        self.assertIn("prefix_caching: off: as asked", line)
        self.assertFalse(found and found.cached_tokens)
        self.assertIn("no chat template", facts["chat"])
        self.assertEqual(facts["tool_calls"], "off: no chat")
        self.assertIn("chat: off: the model has no chat template", line)
        self.assertIn("tool_calls: off: no chat", line)
        self.assertEqual(facts["chunked_prefill"], "on")
        self.assertEqual(facts["schedule_policy"], "fcfs")


class OwnNamesAlone(harness.ServerCase):
    ARGS = ("--no-vllm-metrics",)

    def test_no_name_of_vllm(self):
        _, _, body = self.server.request("GET", "/metrics")
        self.assertNotIn(b"vllm:", body)
        self.assertIn(b"octet_requests_running", body)
