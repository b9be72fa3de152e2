#!/usr/bin/env python3
"""Mixed load with cancels against a running server, and what it leaves behind.

    soak.py URL PID SECONDS [--json FILE]

32 clients send completions of random lengths, streamed and not, greedy and sampled, with and without
log-probabilities; a third of the streams are cut in the middle. Memory of process PID, resident and
on the GPU (if nvidia-smi is there), is read after a minute of warm-up and again at the end, when the
server is idle. Exit code 1 if a request failed, the GPU memory grew at all, or the resident memory
grew by more than 32 MiB.
"""
import http.client, json, random, subprocess, sys, threading, time, urllib.parse

url, pid, seconds = urllib.parse.urlparse(sys.argv[1]), sys.argv[2], float(sys.argv[3])
counts = {"done": 0, "cut": 0, "failed": 0}
failures, lock = [], threading.Lock()


def count(what, why=None):
    with lock:
        counts[what] += 1
        if why and len(failures) < 5:
            failures.append(why)


def one(rng):
    stream = rng.random() < 0.7
    body = {
        "prompt": [rng.randrange(3, 2000) for _ in range(rng.choice([1, 7, 40, 150, 700]))],
        "max_tokens": rng.choice([1, 5, 30, 120]),
        "temperature": rng.choice([0, 0, 0.8, 1.3]),
        "stream": stream,
    }
    if rng.random() < 0.3:
        body["logprobs"] = rng.randrange(1, 6)
    if rng.random() < 0.3:
        body["top_p"] = 0.9
    connection = http.client.HTTPConnection(url.hostname, url.port, timeout=120)
    try:
        connection.request("POST", "/v1/completions", json.dumps(body),
                           {"Content-Type": "application/json"})
        response = connection.getresponse()
        if response.status != 200:
            return count("failed", f"{response.status} {response.read(300)!r}")
        if stream and rng.random() < 0.33:
            response.read(rng.choice([1, 200, 2000]))
            return count("cut")
        text = response.read()
        good = text.rstrip().endswith(b"[DONE]") if stream else b"choices" in text
        count("done" if good else "failed", None if good else repr(text[-200:]))
    except OSError as error:
        count("failed", repr(error))
    finally:
        connection.close()


def client(seed, end):
    rng = random.Random(seed)
    while time.monotonic() < end:
        one(rng)


def load(duration, seed):
    end = time.monotonic() + duration
    threads = [threading.Thread(target=client, args=(seed + i, end)) for i in range(32)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    time.sleep(2)


def memory():
    with open(f"/proc/{pid}/status") as status:
        resident = next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))
    device = None
    try:
        out = subprocess.run(["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"],
                             capture_output=True, text=True, check=True).stdout
        device = int(out.split()[0])
    except (OSError, subprocess.CalledProcessError, IndexError, ValueError):
        pass
    return {"resident_kib": resident, "gpu_mib": device}


warm_up = min(60.0, seconds / 4)
load(warm_up, 1)
before = memory()
load(seconds - warm_up, 1000)
after = memory()
grew = after["gpu_mib"] is not None and after["gpu_mib"] > before["gpu_mib"]
leaked = after["resident_kib"] - before["resident_kib"] > 32 * 1024
result = {"seconds": seconds, **counts, "before": before, "after": after, "failures": failures}
print(json.dumps(result))
if "--json" in sys.argv:
    with open(sys.argv[sys.argv.index("--json") + 1], "w") as file:
        json.dump(result, file)
sys.exit(1 if counts["failed"] or grew or leaked else 0)
