"""Many clients, impatient clients, and what the server says meanwhile."""
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import harness

PROMPTS = ["def add(a, b):", "import os\n", "class Stack:", "# The install guide\n", "for i in",
           "return", "print(", "The server"]


class Load(harness.ServerCase):
    ARGS = ("--max-num-seqs", 16, "--max-num-batched-tokens", 128)

    def test_concurrent_streams_are_as_alone(self):
        prompts = [prompt * (1 + i // 8) for i, prompt in enumerate(PROMPTS * 4)]
        alone = {p: self.complete(p, max_tokens=24).choices[0].text for p in prompts[:8]}
        client = self.client

        def stream(prompt):
            return harness.join(client.completions.create(
                model="octet-demo", prompt=prompt, max_tokens=24, temperature=0, stream=True))[0]
        with ThreadPoolExecutor(32) as pool:
            texts = list(pool.map(stream, prompts))
        for prompt, text in zip(prompts, texts):
            if prompt in alone:
                self.assertEqual(text, alone[prompt])
        # And those of which nobody knew before.
        for prompt, text in list(zip(prompts, texts))[8::6]:
            self.assertEqual(self.complete(prompt, max_tokens=24).choices[0].text, text)

    def test_cancel_in_the_stream(self):
        for _ in range(3):
            stream = self.complete(max_tokens=4000, stream=True,
                                   extra_body={"ignore_eos": True})
            for count, _ in enumerate(stream):
                if count == 3:
                    break
            stream.close()
        self.assert_idle()

    def test_disconnect_while_queued_or_prefilling(self):
        long = list(range(100, 4100))
        # More than there is room for: some decode, some prefill, some wait; streamed or not.
        connections = [
            self.server.send_completion(model="octet-demo", prompt=long[i:], max_tokens=4000,
                                        ignore_eos=True, stream=i % 2 == 0) for i in range(24)]
        time.sleep(0.3)
        for connection in connections:
            connection.close()
        self.assert_idle()

    def test_health_does_not_wait(self):
        long = list(range(100, 6100))
        busy = threading.Thread(target=lambda: self.complete(long, max_tokens=1))
        busy.start()
        slowest = 0
        while busy.is_alive():
            begin = time.monotonic()
            self.assertEqual(self.server.request("GET", "/health")[0], 200)
            slowest = max(slowest, time.monotonic() - begin)
            time.sleep(0.02)
        busy.join()
        self.assertLess(slowest, 2)

    def test_health_does_not_wait_for_a_long_text(self):
        text = "many words and then some " * 200000  # 5 MB, far too long, but it is encoded first
        refused = []
        busy = threading.Thread(target=lambda: refused.append(
            self.server.request("POST", "/v1/completions", {"prompt": text})[0]))
        busy.start()
        while busy.is_alive():
            self.assertTrue(self.server.healthy_within(2))
            time.sleep(0.02)
        busy.join()
        self.assertEqual(refused, [400])
