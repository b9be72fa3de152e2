#!/usr/bin/env python3
"""Start to first token, and resident memory.

    bench/start.py MODEL [--octet build/cpu/octet] [--rounds 9] [--tokens 32] [--threads N]

Each round is a process of its own, `octet generate` of one token out of a prompt of --tokens, from exec
to its end, with the files in the system's cache (an unmeasured round comes first). Peak resident memory
is what the kernel says of the process; beside it stand the bytes of the checkpoint's files and what is
left when they are subtracted, the KV cache included.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]


def one_start(command):
    """Seconds from exec to exit, and peak resident bytes."""
    begin = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - begin
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise SystemExit(f"start.py: {command[0]} ended with {process.returncode}")
    return seconds, usage.ru_maxrss * 1024


def main():
    parser = argparse.ArgumentParser(description="Start to first token, and resident memory.")
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("--octet", default=ROOT / "build/cpu/octet", type=pathlib.Path)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--tokens", type=int, default=32, help="of the prompt")
    parser.add_argument("--threads", type=int, default=0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        prompts = pathlib.Path(folder) / "prompt.json"
        prompts.write_text(json.dumps([list(range(1, args.tokens + 1))]))
        command = [str(part) for part in (args.octet, "generate", args.model, "--prompt-file", prompts,
                                          "--max-tokens", 1, "--threads", args.threads)]
        one_start(command)
        found = [one_start(command) for _ in range(args.rounds)]
    files = args.model.glob("*.safetensors") if args.model.is_dir() else [args.model]
    weights = sum(file.stat().st_size for file in files)
    seconds = sorted(one[0] for one in found)
    resident = max(one[1] for one in found)
    print(f"start to first token  {1e3 * statistics.median(seconds):7.0f} ms   "
          f"({1e3 * seconds[0]:.0f} to {1e3 * seconds[-1]:.0f}, {args.rounds} processes)")
    print(f"peak resident memory  {resident / 2**20:7.0f} MiB  "
          f"(weights {weights / 2**20:.0f} MiB, the rest {(resident - weights) / 2**20:.0f} MiB)")


if __name__ == "__main__":
    main()
