#!/usr/bin/env python3
"""Octet beside llama.cpp on this machine, the same model in turns.

    bench/peers/run.py [--octet build/cpu/octet] [--models build/models] [--rounds 9] [--slice 2]
                       [--threads 2] [--work decode-1,prefill-512,...] [--engines octet-fp8,...]
                       [--shape models/configs/llama-3.2-1b] [--json FILE] [--markdown FILE]

Installs llama.cpp from PyPI (llama-cpp-python, compiled here for this processor; the wheel is kept
below build/peers, so it is compiled once) and lets it make Q8_0, BF16 and F32 of smollm2.gguf. `make
smollm2` makes what Octet reads. Then every engine loads its model once, all by the same processors and
as many threads, and computes slices of --slice seconds in turns: for each kind of work one slice of each
engine, with the machine's own rates measured between them, in the reverse order in every other round. A
ratio is that of two slices of one round. What an engine may choose (flash attention, one cache for all
sequences) is tried first, and the fastest is taken for each kind of work.

`start` is a process of its own each time: for Octet from exec to the end of `octet generate`, one token
out of 32; for llama.cpp from loading to the first token, without the start of Python.

--shape measures random weights of a Llama's shape instead, whose GGUF random_gguf.py writes.
"""
import argparse
import datetime
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
HERE = ROOT / "build/peers"
PEER = "llama-cpp-python==0.3.36"
CONTEXT = 128  # tokens before those that are decoded
WORK = ["decode-1", "decode-4", "decode-16", "prefill-128", "prefill-512", "prefill-2048"]
RATIOS = [("octet-fp8", "llama-q8_0"), ("octet-fp8", "llama-bf16"), ("octet-fp8", "llama-f32"),
          ("octet-bf16", "llama-bf16"), ("octet-fp8", "octet-bf16")]


def fail(message):
    sys.exit("run.py: " + message)


def install():
    """The Python of a virtual environment with llama.cpp."""
    python = HERE / "venv/bin/python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", HERE / "venv"], check=True)
    have = subprocess.run([python, "-m", "pip", "freeze"], capture_output=True, text=True).stdout
    if PEER.replace("-", "_") in have.replace("-", "_"):
        return python
    wheels = HERE / "wheels"
    if not list(wheels.glob("llama_cpp_python-*.whl")):
        print(f"run.py: compiling {PEER}, which takes some minutes", file=sys.stderr)
        environment = {**os.environ, "CMAKE_ARGS": "-DGGML_NATIVE=ON", "CMAKE_BUILD_PARALLEL_LEVEL": "2"}
        subprocess.run([python, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-cache-dir",
                        "--no-binary", "llama-cpp-python", "-w", wheels, PEER], check=True,
                       env=environment)
    subprocess.run([python, "-m", "pip", "install", "--quiet", "--find-links", wheels, PEER], check=True)
    return python


def make_gguf(python, source, kind):
    """`source`, a GGUF or the config.json of a shape, in another type."""
    if source.suffix != ".gguf":
        random = HERE / f"{source.parent.name}.gguf"
        if not random.exists():
            part = random.with_suffix(".part")
            subprocess.run([python, ROOT / "bench/peers/random_gguf.py", source, part], check=True)
            part.rename(random)
        source = random
    target = HERE / f"{source.stem}-{kind}.gguf"
    if not target.exists() or target.stat().st_mtime < source.stat().st_mtime:
        part = target.with_suffix(".part")
        subprocess.run([python, ROOT / "bench/peers/llama_slices.py", "--quantize", source, part, kind],
                       check=True)
        part.rename(target)
    return target


class Engine:
    """A process that computes slices; see `octet bench slices`."""

    def __init__(self, name, command, cpus):
        self.name = name
        self.process = subprocess.Popen([str(part) for part in command], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True,
                                        preexec_fn=lambda: os.sched_setaffinity(0, cpus))
        self.about = self.read()

    def read(self):
        line = self.process.stdout.readline()
        if not line:
            fail(f"{self.name} ended with {self.process.wait()}")
        return json.loads(line)

    def ask(self, command):
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        return self.read()

    def close(self):
        self.process.stdin.close()
        self.process.wait(60)


def command_of(work, seconds):
    kind, count = work.split("-")
    return f"decode {count} {CONTEXT} {seconds}" if kind == "decode" else f"prefill {count} {seconds}"


def measure(engines, works, rounds, seconds):
    """slices[work][engine]: one a round, each with the machine's rates before and after it."""
    prober = next(engine for engine in engines if engine.name.startswith("octet"))
    slices = {work: {engine.name: [] for engine in engines} for work in works}
    for work in works:  # what is made at the first use of it is no part of the figures
        for engine in engines:
            engine.ask(command_of(work, 0.1))
    before = prober.ask("probe")
    for number in range(rounds):
        forward = number % 2 == 0
        for work in works if forward else reversed(works):
            for engine in engines if forward else reversed(engines):
                found = engine.ask(command_of(work, seconds))
                after = prober.ask("probe")
                found["probes"] = [before, after]
                slices[work][engine.name].append(found)
                before = after
        print(f"round {number + 1} of {rounds}", file=sys.stderr)
    return slices


def start_times(commands, rounds, cpus):
    """starts[engine]: seconds to the first token of a new process, each round."""
    starts = {name: [] for name in commands}
    for number in range(rounds):
        for name in list(commands) if number % 2 == 0 else reversed(list(commands)):
            begin = time.perf_counter()
            done = subprocess.run([str(part) for part in commands[name]], capture_output=True, text=True,
                                  preexec_fn=lambda: os.sched_setaffinity(0, cpus))
            wall = time.perf_counter() - begin
            if done.returncode != 0:
                fail(f"{name} ended with {done.returncode}: {done.stderr}")
            inside = done.stdout.startswith('{"seconds"')
            starts[name].append(json.loads(done.stdout)["seconds"] if inside else wall)
    return starts


def spread(values):
    """Median and quartiles."""
    if len(values) < 2:
        return {"median": values[0], "q1": values[0], "q3": values[0]}
    q1, median, q3 = statistics.quantiles(values, n=4, method="inclusive")
    return {"median": median, "q1": q1, "q3": q3}


def rate(found):
    return found["tokens"] / found["seconds"]


def figures_of(slices, abouts):
    """For each work and engine: spreads of tokens/s, of the shares of the machine, and of ratios."""
    figures = {}
    for work, by_engine in slices.items():
        rows = {}
        for name, found in by_engine.items():
            row = {"tokens_per_s": spread([rate(one) for one in found])}
            if "weight_bytes" in found[0]:
                row["gb_per_s"] = spread([1e-9 * one["weight_bytes"] / one["seconds"] for one in found])
                row["share_of_read"] = spread([
                    1e-9 * one["weight_bytes"] / one["seconds"]
                    / statistics.mean(probe["read_gb_s"] for probe in one["probes"]) for one in found])
            flop = abouts[name]["decode_flop_per_token" if work.startswith("decode") else
                                "prompt_flop_per_token"]
            row["share_of_bf16_peak"] = spread([
                1e-9 * flop * rate(one)
                / statistics.mean(probe["compute_gflops"] for probe in one["probes"]) for one in found])
            if "ttft_ms" in found[0]:
                row["ttft_ms"] = spread([one["ttft_ms"] for one in found])
            row["options"] = {key: found[0][key] for key in ("flash_attention", "unified_cache")
                              if key in found[0]}
            rows[name] = row
        ratios = {f"{ours} / {theirs}": spread([rate(a) / rate(b) for a, b in
                                                zip(by_engine[ours], by_engine[theirs])])
                  for ours, theirs in RATIOS if ours in by_engine and theirs in by_engine}
        figures[work] = {"engines": rows, "ratios": ratios}
    return figures


def cell(figure, form):
    return f"{figure['median']:{form}} ({figure['q1']:{form}} to {figure['q3']:{form}})"


def markdown(report):
    """The report as tables: medians, and quartiles in parentheses."""
    lines = ["| work | engine | tokens/s | share of the read probe | share of the dot peak | "
             "first token, ms |", "|---|---|---|---|---|---|"]
    for work, found in report["work"].items():
        for name, row in found["engines"].items():
            read = cell(row["share_of_read"], ".2f") if "share_of_read" in row else ""
            ttft = cell(row["ttft_ms"], ".1f") if "ttft_ms" in row else ""
            lines.append(f"| {work} | {name} | {cell(row['tokens_per_s'], '.1f')} | {read} | "
                         f"{cell(row['share_of_bf16_peak'], '.2f')} | {ttft} |")
    pairs = list(next(iter(report["work"].values()))["ratios"])
    lines += ["", "| tokens/s, ratio | " + " | ".join(pairs) + " |", "|---" * (len(pairs) + 1) + "|"]
    for work, found in report["work"].items():
        lines.append(f"| {work} | " + " | ".join(cell(found["ratios"][pair], ".2f") for pair in pairs)
                     + " |")
    if report["start_s"]:
        lines += ["", "| start to first token, ms | |", "|---|---|"]
        for name, seconds in report["start_s"].items():
            lines.append(f"| {name} | {cell({k: 1e3 * v for k, v in seconds.items()}, '.0f')} |")
    return "\n".join(lines) + "\n"


def commands_of(args, python):
    """What runs each engine's slices, and one process of it to its first token."""
    threads = ["--threads", args.threads]
    script = ROOT / "bench/peers/llama_slices.py"
    commands, starts = {}, {}
    for name in args.engines.split(","):
        engine, _, kind = name.partition("-")
        if engine == "llama":
            source = args.shape / "config.json" if args.shape else args.models / "smollm2.gguf"
            commands[name] = [python, script, make_gguf(python, source, kind.upper()), *threads]
            starts[name] = [*commands[name], "--start", 32]
        elif args.shape:
            scheme = {"fp8": "fp8_channel", "bf16": "none"}[kind]
            commands[name] = [args.octet, "bench", "slices", args.shape, "--random-weights",
                              "--scheme", scheme, *threads]
        else:
            model = args.models / {"fp8": "smollm2-fp8", "bf16": "smollm2"}[kind]
            commands[name] = [args.octet, "bench", "slices", model, *threads]
            prompts = HERE / "prompt.json"
            prompts.write_text(json.dumps([list(range(1000, 1032))]))
            starts[name] = [args.octet, "generate", model, "--prompt-file", prompts, "--max-tokens", 1,
                            *threads]
    return commands, {} if args.shape else starts


def processor():
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()


def main():
    parser = argparse.ArgumentParser(description="Octet beside llama.cpp, in turns.")
    parser.add_argument("--octet", default=ROOT / "build/cpu/octet", type=pathlib.Path)
    parser.add_argument("--models", default=ROOT / "build/models", type=pathlib.Path,
                        help="folder with smollm2, smollm2-fp8 and smollm2.gguf")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--slice", type=float, default=2.0, help="seconds")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--work", default=",".join(WORK))
    parser.add_argument("--engines", default="octet-fp8,octet-bf16,llama-q8_0,llama-bf16,llama-f32")
    parser.add_argument("--shape", type=pathlib.Path, help="a folder with a config.json")
    parser.add_argument("--json", default="")
    parser.add_argument("--markdown", default="")
    args = parser.parse_args()

    models = [args.models / name for name in ("smollm2.gguf", "smollm2-fp8", "smollm2")]
    for needed in [args.octet, *([args.shape / "config.json"] if args.shape else models)]:
        if not needed.exists():
            fail(f"there is no {needed}; build octet, then `make smollm2`")
    allowed = sorted(os.sched_getaffinity(0))
    if args.threads > len(allowed):
        fail(f"--threads {args.threads}, but this process may use {len(allowed)} processors")
    cpus = allowed[:args.threads]
    HERE.mkdir(parents=True, exist_ok=True)
    commands, starts = commands_of(args, install())
    engines = [Engine(name, command, cpus) for name, command in commands.items()]
    for flop in ("prompt_flop_per_token", "decode_flop_per_token"):  # the same model
        known = next(engine.about[flop] for engine in engines if flop in engine.about)
        for engine in engines:
            engine.about.setdefault(flop, known)
    begin = datetime.datetime.now(datetime.timezone.utc)
    slices = measure(engines, args.work.split(","), args.rounds, args.slice)
    abouts = {engine.name: engine.about for engine in engines}
    for engine in engines:
        engine.close()
    report = {"date": begin.strftime("%Y-%m-%d %H:%M UTC"), "processor": processor(), "cpus": cpus,
              "threads": args.threads, "rounds": args.rounds, "slice_s": args.slice,
              "context": CONTEXT, "peer": PEER, "engines": abouts,
              "model": str(args.shape or "SmolLM2-135M"), "work": figures_of(slices, abouts),
              "start_s": {name: spread(found) for name, found
                          in start_times(starts, args.rounds, cpus).items()},
              "slices": slices}
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps(report, indent=1))
    table = markdown(report)
    if args.markdown:
        pathlib.Path(args.markdown).write_text(table)
    print(table, end="")


if __name__ == "__main__":
    main()
