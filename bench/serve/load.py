#!/usr/bin/env python3
"""Holds a server to what it promises under load.

    load.py OCTET MODEL [--minutes 10] [--streams 64] [--only load,idle,prefix,kill,drain]
            [--json FILE] [--serve-arg ARG ...] [--structured SHARE] [--slow]

load    STREAMS clients at once; 10 % of the requests are left in the middle, 5 % are malformed. No good
        request fails, none of the malformed is accepted, no request is left in the gauges a second after
        the last, resident memory grows by less than 1 % after the first minute, and every 20th result is
        bit for bit that of the same request alone. /metrics is asked for every half second, from a
        process of its own.
idle    2,000 streams that wait for their first token take less than 100 MiB together.
prefix  TTFT of 1,024 cached and 32 new tokens is at most a quarter of the cold one; bits are equal.
kill    after kill -9 under load, the next start serves as soon as the first did.
drain   after SIGTERM under load, running streams end whole, new requests are turned away, exit code 0.

Exit code 1 if one does not hold. Figures of time mean something on a quiet machine only. With --slow
(a server under a sanitizer), promises of time and memory are shown and not held. --structured asks for
a form (a choice, a pattern, a JSON schema) in that share of the good requests.
"""
import argparse
import http.client
import json
import multiprocessing
import os
import pathlib
import random
import resource
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time

WORDS = ["def", "return", "class", "the", "server", "list", "of", "value", "import", "for", "test",
         "is", "a", "(x)", "self", "and"]
FORMS = [{"choice": ["yes", "no", "perhaps"]}, {"regex": "[0-9]{3}-[0-9]{4}"},
         {"json": {"type": "object", "properties": {"name": {"type": "string", "maxLength": 8},
                                                    "count": {"type": "integer", "maximum": 99}},
                   "required": ["name", "count"], "additionalProperties": False}}]


class Server:
    """`octet serve`, ready when the constructor returns; `started_s` is how long that took."""

    def __init__(self, binary, model, *args):
        self.folder = tempfile.TemporaryDirectory()
        port_file = pathlib.Path(self.folder.name, "port")
        self.log = pathlib.Path(self.folder.name, "log")
        begin = time.monotonic()
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                [binary, "serve", model, "--port", "0", "--port-file", str(port_file), *args],
                stdout=log, stderr=log)
        while not port_file.exists():
            if self.process.poll() is not None:
                sys.exit("the server did not start:\n" + self.log.read_text(errors="replace"))
            time.sleep(0.005)
        self.port = int(port_file.read_text())
        self.started_s = time.monotonic() - begin

    def connect(self, timeout=300):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)

    def get(self, path):
        connection = self.connect()
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    def resident_kib(self):
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return next(int(line.split()[1]) for line in status.splitlines() if "VmRSS" in line)

    def settle(self):
        """Waits until its memory is there (--populate-memory)."""
        before, now, end = None, self.resident_kib(), time.monotonic() + 30
        while now != before and time.monotonic() < end:
            time.sleep(0.5)
            before, now = now, self.resident_kib()

    def cpu_seconds(self):
        fields = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def gauges(self):
        """Requests that run and that wait, by /metrics; None where the server has none."""
        status, text = self.get("/metrics")
        if status != 200:
            return None
        values = {}
        for line in text.splitlines():
            name = line.partition("{")[0].partition(" ")[0]
            if name.endswith(("requests_running", "requests_waiting")):
                values[name] = float(line.rpartition(" ")[2])
        return values or None

    def end(self, how=signal.SIGTERM):
        if self.process.poll() is None:
            self.process.send_signal(how)
        code = self.process.wait(60)
        self.folder.cleanup()
        return code


class Result:
    """What a completion gave, by every bit that a client sees."""

    def __init__(self):
        self.text, self.logprobs, self.finish, self.tokens, self.ttft = "", [], None, 0, None

    def take(self, answer):
        for choice in answer.get("choices", []):
            self.text += choice["text"]
            self.finish = choice["finish_reason"] or self.finish
            if choice.get("logprobs"):
                self.logprobs += choice["logprobs"]["token_logprobs"]
        if answer.get("usage"):
            self.tokens = answer["usage"]["completion_tokens"]

    def bits(self):
        return self.text, self.logprobs, self.finish


class Failed(Exception):
    pass


def complete(server, body, leave_after=None):
    """A completion to its end; None if it was left after so many events. Failed if it is not right."""
    connection = server.connect()
    result, begin = Result(), time.monotonic()
    try:
        connection.request("POST", "/v1/completions", json.dumps(body),
                           {"Content-Type": "application/json"})
        answer = connection.getresponse()
        if answer.status != 200:
            raise Failed(f"HTTP {answer.status}: {answer.read(300)!r}")
        if not body.get("stream"):
            result.take(json.loads(answer.read()))
            return result
        events, done = 0, False
        for line in answer:
            if not line.startswith(b"data: "):
                continue
            if line == b"data: [DONE]\n":
                done = True
                continue
            event = json.loads(line[6:])
            if "error" in event:
                raise Failed(f"an error in the stream: {event}")
            result.ttft = result.ttft or time.monotonic() - begin
            result.take(event)
            events += 1
            if events == leave_after:
                return None
        if not done or result.finish is None:
            raise Failed(f"a stream that was cut after {events} events")
        return result
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise Failed(repr(error)) from error
    finally:
        connection.close()


def good_body(rng):
    prompt = ([rng.randrange(100, 2000) for _ in range(rng.choice([1, 20, 60, 200]))]
              if rng.random() < 0.5 else " ".join(rng.choices(WORDS, k=rng.choice([3, 20, 60]))))
    body = {"prompt": prompt, "max_tokens": rng.choice([1, 8, 24, 48]), "logprobs": 2,
            "temperature": rng.choice([0, 0.7, 1.2]), "seed": rng.randrange(1 << 30),
            "ignore_eos": rng.random() < 0.5, "stream": rng.random() < 0.8}
    return streamed(body) if body["stream"] else body


def streamed(body):
    return {**body, "stream": True, "stream_options": {"include_usage": True}}


def whole(body):
    return {key: value for key, value in body.items() if key not in ("stream", "stream_options")}


def malformed(rng):
    """The bytes of a body that no server accepts."""
    body = good_body(rng)
    changes = [{"prompt": 7}, {"prompt": [10 ** 8]}, {"prompt": []}, {"prompt": [100] * 100000},
               {"max_tokens": -1}, {"temperature": "hot"}, {"temperature": -1}, {"top_p": 0},
               {"n": 0}, {"model": "another"}, {"stop": 3}, {"logprobs": 10 ** 6}]
    texts = [b"", b"{", b"[]", b"\xff\xfe", b'{"prompt": "a"', b'{"prompt": "\xff"}', b"null",
             b"[" * 5000]
    if rng.random() < 0.4:
        return rng.choice(texts)
    return json.dumps({**whole(body), **rng.choice(changes)}).encode()


def send_malformed(server, rng):
    connection = server.connect()
    try:
        if rng.random() < 0.2:  # less than was promised, then gone
            connection.connect()
            connection.sock.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n"
                                    b"Content-Length: 500\r\n\r\n{")
            return
        data = malformed(rng)
        connection.request("POST", "/v1/completions", data, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        text = answer.read(300)
        if not 400 <= answer.status < 500:
            raise Failed(f"a malformed request got HTTP {answer.status}: {data[:100]} {text!r}")
    except (OSError, http.client.HTTPException) as error:
        raise Failed(f"a malformed request: {error!r}") from error
    finally:
        connection.close()


class Load:
    def __init__(self, server, streams, seconds, structured=0.0):
        self.server, self.streams, self.end = server, streams, time.monotonic() + seconds
        self.structured = structured
        self.lock = threading.Lock()
        self.counts = {"good": 0, "left": 0, "malformed": 0, "failed": 0, "tokens": 0}
        self.failures, self.samples = [], []

    def count(self, what, number=1):
        with self.lock:
            self.counts[what] += number
            return self.counts[what]

    def one(self, rng):
        kind = rng.random()
        if kind < 0.05:
            send_malformed(self.server, rng)
            self.count("malformed")
            return
        body = good_body(rng)
        leave = rng.randrange(1, 6) if kind < 0.15 else None
        if leave:
            body = streamed({**body, "max_tokens": 200, "ignore_eos": True})
        elif rng.random() < self.structured:
            body = {**body, "structured_outputs": rng.choice(FORMS), "ignore_eos": False}
        result = complete(self.server, body, leave)
        if result is None:
            self.count("left")
            return
        number = self.count("good")
        self.count("tokens", result.tokens)
        if number % 20 == 0:
            with self.lock:
                self.samples.append((body, result.bits()))

    def client(self, seed):
        rng = random.Random(seed)
        while time.monotonic() < self.end:
            try:
                self.one(rng)
            except Failed as failure:
                self.count("failed")
                with self.lock:
                    self.failures.append(str(failure))

    def start(self):
        self.threads = [threading.Thread(target=self.client, args=(seed,), daemon=True)
                        for seed in range(self.streams)]
        for thread in self.threads:
            thread.start()

    def join(self):
        for thread in self.threads:
            thread.join()


def scrape(port, seconds, results):
    """Seconds that each of many scrapes took, and the bytes of the last."""
    end, took, size = time.monotonic() + seconds, [], 0
    while time.monotonic() < end:
        begin = time.monotonic()
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        connection.request("GET", "/metrics")
        size = len(connection.getresponse().read())
        connection.close()
        took.append(time.monotonic() - begin)
        time.sleep(0.5)
    results.put((took, size))


def check_load(options):
    server = Server(options.octet, options.model, *options.serve_arg)
    seconds = 60 * options.minutes
    load = Load(server, options.streams, seconds, options.structured)
    scrapes = multiprocessing.Queue()
    scraper = multiprocessing.Process(target=scrape, args=(server.port, seconds, scrapes))
    scraper.start()
    begin, cpu = time.monotonic(), server.cpu_seconds()
    load.start()
    memory = []
    while time.monotonic() < load.end:
        time.sleep(min(5, max(0, load.end - time.monotonic())))
        memory.append((time.monotonic() - begin, server.resident_kib()))
    load.join()
    last = time.monotonic()
    took, scraped_bytes = scrapes.get(timeout=60)
    scraper.join()
    cpu = server.cpu_seconds() - cpu
    gauges = server.gauges()
    while gauges and any(gauges.values()) and time.monotonic() - last < 5:
        time.sleep(0.02)
        gauges = server.gauges()
    idle_after = time.monotonic() - last
    memory.append((last - begin, server.resident_kib()))
    # After the first minute, or a third of a run that is shorter than two.
    warm = min(60, seconds / 3)
    after_warm = next(kib for at, kib in memory if at >= warm)
    growth = memory[-1][1] / after_warm - 1
    unequal = 0
    for body, bits in load.samples:
        unequal += complete(server, whole(body)).bits() != bits
    code = server.end()
    return {
        "seconds": round(last - begin, 1), **load.counts, "failures": load.failures[:5],
        "resident_kib_warm": after_warm, "resident_kib_end": memory[-1][1],
        "resident_growth": growth, "gauges": gauges, "idle_after_s": idle_after,
        "scrapes": len(took), "scrape_bytes": scraped_bytes,
        "scrape_ms_median": 1000 * statistics.median(took), "scrape_ms_max": 1000 * max(took),
        "compared_alone": len(load.samples), "unequal": unequal, "exit_code": code,
        "cpu_s_per_1000_tokens": 1000 * cpu / max(load.counts["tokens"], 1),
        "ok": {"no good request fails": load.counts["failed"] == 0 and load.counts["good"] > 0,
               "gauges are zero within 1 s": None if gauges is None else (
                   not any(gauges.values()) and idle_after < 1),
               "memory grows by less than 1 %": growth < 0.01,
               "results are those of a run alone": unequal == 0 and len(load.samples) > 0,
               "it ends with 0": code == 0}}


def check_idle(options):
    count = 2000
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    server = Server(options.octet, options.model, *options.serve_arg, "--max-num-seqs", "1",
                    "--max-queued-requests", "4096")
    # One long answer runs, and has touched the memory that it needs before.
    body = {"prompt": [100] * 8, "max_tokens": 2000, "ignore_eos": True, "stream": True}
    complete(server, {**body, "max_tokens": 500})
    server.settle()
    before = server.resident_kib()
    data = json.dumps(body).encode()
    head = (b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n" % len(data))
    connections = []
    for _ in range(count):
        connections.append(socket.create_connection(("127.0.0.1", server.port), timeout=60))
        connections[-1].sendall(head + data)
    time.sleep(2)
    alive = server.get("/health")[0]
    kib = server.resident_kib() - before
    gauges = server.gauges()
    for connection in connections:
        connection.close()
    time.sleep(1)
    fresh = complete(server, {"prompt": [100], "max_tokens": 2}).tokens
    server.end()
    return {"connections": count, "kib": kib, "kib_each": kib / count, "gauges": gauges,
            "ok": {"they take less than 100 MiB": kib < 100 * 1024 and alive == 200,
                   "and leave at once": fresh == 2}}


def check_prefix(options):
    server = Server(options.octet, options.model, *options.serve_arg)
    rng = random.Random(1)
    ids = lambda count: [rng.randrange(100, 2000) for _ in range(count)]
    cold, cached, equal = [], [], True
    for round_number in range(8):
        prefix, one, other = ids(1024), ids(32), ids(32)

        def ask(prompt, salt):
            return complete(server, {"prompt": prompt, "max_tokens": 8, "stream": True, "logprobs": 3,
                                     "temperature": 0, "cache_salt": f"{salt} {round_number}"})
        cold.append(ask(prefix + one, "a").ttft)
        warm = ask(prefix + other, "a")
        alone = ask(prefix + other, "b")
        cached.append(warm.ttft)
        cold.append(alone.ttft)
        equal = equal and warm.bits() == alone.bits()
    server.end()
    ratio = statistics.median(cached) / statistics.median(cold)
    return {"ttft_cold_ms": 1e3 * statistics.median(cold),
            "ttft_cached_ms": 1e3 * statistics.median(cached), "ratio": ratio,
            "ok": {"a cached prefix takes at most a quarter": ratio <= 0.25, "bits are equal": equal}}


def check_kill(options):
    starts = []
    for _ in range(3):
        server = Server(options.octet, options.model, *options.serve_arg)
        starts.append(server.started_s)
        load = Load(server, 16, 2)
        load.start()
        time.sleep(1)
        server.end(signal.SIGKILL)
        load.join()
    server = Server(options.octet, options.model, *options.serve_arg)
    begin = time.monotonic()
    tokens = complete(server, {"prompt": [100, 200], "max_tokens": 4, "ignore_eos": True}).tokens
    first_answer = time.monotonic() - begin
    server.end()
    again = starts[1:] + [server.started_s]
    return {"first_start_s": starts[0], "starts_after_kill_s": again, "first_answer_s": first_answer,
            "ok": {"the next start is as quick": max(again) < 2 * starts[0] + 0.5, "and serves":
                   tokens == 4}}


def check_drain(options):
    server = Server(options.octet, options.model, *options.serve_arg, "--shutdown-grace", "60")
    results, lock = [], threading.Lock()
    length = 30 if options.slow else 300  # the grace is for all of them

    def stream(seed):
        try:
            outcome = complete(server, streamed({"prompt": [100 + seed], "max_tokens": length,
                                                 "ignore_eos": True})).tokens
        except Failed as failure:
            outcome = str(failure)
        with lock:
            results.append(outcome)
    threads = [threading.Thread(target=stream, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    kept = server.connect()  # a connection from before
    kept.request("GET", "/v1/models")
    kept.getresponse().read()
    time.sleep(0.2)
    running = sum(thread.is_alive() for thread in threads)
    server.process.send_signal(signal.SIGTERM)
    time.sleep(0.1)
    turned = []
    for attempt in range(3):
        try:
            complete(server, {"prompt": [100], "max_tokens": 1})
            turned.append("served")
        except Failed as failure:
            turned.append(str(failure)[:60])
    try:
        kept.request("POST", "/v1/completions", json.dumps({"prompt": [100], "max_tokens": 1}))
        on_kept = f"HTTP {kept.getresponse().status}"
    except (OSError, http.client.HTTPException) as error:
        on_kept = repr(error)
    for thread in threads:
        thread.join()
    code = server.process.wait(60)  # a second signal would end it at once
    return {"running": running, "results": results, "new_requests": turned,
            "on_a_connection_from_before": on_kept, "exit_code": code,
            "ok": {"running streams end whole": results == [length] * 8 and running > 0,
                   "new requests are turned away": "served" not in turned and on_kept != "HTTP 200",
                   "exit code 0": code == 0}}


CHECKS = {"load": check_load, "idle": check_idle, "prefix": check_prefix, "kill": check_kill,
          "drain": check_drain}
# Promises of time and memory.
FIGURES = {"gauges are zero within 1 s", "memory grows by less than 1 %", "they take less than 100 MiB",
           "a cached prefix takes at most a quarter", "the next start is as quick"}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("octet")
    parser.add_argument("model")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--only", default=",".join(CHECKS))
    parser.add_argument("--json")
    parser.add_argument("--serve-arg", action="append", default=[])
    parser.add_argument("--structured", type=float, default=0.0)
    parser.add_argument("--slow", action="store_true")
    options = parser.parse_args()
    results, held = {}, True
    for name in options.only.split(","):
        results[name] = CHECKS[name](options)
        for promise, ok in results[name]["ok"].items():
            shown = {True: "yes", False: "NO", None: "not measured: the server has no /metrics"}[ok]
            if options.slow and promise in FIGURES:
                shown += " (not held to it)"
            elif ok is False:
                held = False
            print(f"{name:8} {promise:44} {shown}", flush=True)
        figures = {key: value for key, value in results[name].items() if key != "ok"}
        print(f"         {json.dumps(figures)}", flush=True)
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(results, indent=1) + "\n")
    print("all promises hold" if held else "a promise does not hold")
    sys.exit(not held)


if __name__ == "__main__":
    main()
