"""The figures of a load test, computed anew from the times of its requests.

By the definitions of `vllm bench serve`, written without a look at src/load: `recompute(result)` takes
the JSON that --save-detailed writes, and `differences(result)` says which figures are others.
"""
import math


def quantile(values, percent):
    values = sorted(values)
    if not values:
        return 0.0
    place = (len(values) - 1) * percent / 100
    low = math.floor(place)
    high = min(low + 1, len(values) - 1)
    return values[low] * (1 - (place - low)) + values[high] * (place - low)


def recompute(result):
    ok = [i for i, error in enumerate(result["errors"]) if not error]
    lens, ttfts = result["output_lens"], result["ttfts"]
    latencies, starts, itls = result["latencies"], result["start_times"], result["itls"]
    output = sum(lens[i] for i in ok)
    prompt = sum(result["input_lens"][i] for i in ok)
    duration = result["duration"]
    figures = {
        "completed": len(ok),
        "failed": len(result["errors"]) - len(ok),
        "total_input_tokens": prompt,
        "total_output_tokens": output,
        "request_throughput": len(ok) / duration,
        "output_throughput": output / duration,
        "total_token_throughput": (prompt + output) / duration,
    }
    metrics = {
        "ttft": [ttfts[i] for i in ok],
        "tpot": [(latencies[i] - ttfts[i]) / (lens[i] - 1) for i in ok if lens[i] > 1],
        "itl": [gap for i in ok for gap in itls[i]],
        "e2el": [latencies[i] for i in ok],
    }
    for name, values in metrics.items():
        mean = sum(values) / len(values) if values else 0
        figures[f"mean_{name}_ms"] = 1e3 * mean
        figures[f"median_{name}_ms"] = 1e3 * quantile(values, 50)
        spread = sum((v - mean) ** 2 for v in values) / len(values) if values else 0
        figures[f"std_{name}_ms"] = 1e3 * math.sqrt(spread)
        for percent in (50, 95, 99):
            figures[f"p{percent}_{name}_ms"] = 1e3 * quantile(values, percent)
    begin = min((starts[i] for i in ok), default=0)
    seconds = {}
    for i in ok:
        time = starts[i] + ttfts[i]
        for gap in [0, *itls[i]]:
            time += gap
            second = int(time - begin)
            seconds[second] = seconds.get(second, 0) + 1
    figures["max_output_tokens_per_s"] = max(seconds.values(), default=0)
    at_once = [sum(starts[j] <= starts[i] < starts[j] + latencies[j] for j in ok) for i in ok]
    figures["max_concurrent_requests"] = max(at_once, default=0)
    return figures


def differences(result):
    """What the result says otherwise: {name: (said, recomputed)}."""
    return {name: (result.get(name), value) for name, value in recompute(result).items()
            if name not in result or not math.isclose(result[name], value, rel_tol=1e-6,
                                                      abs_tol=1e-6)}


if __name__ == "__main__":
    import json
    import sys
    with open(sys.argv[1]) as file:
        found = differences(json.load(file))
    for name, (said, counted) in found.items():
        print(f"{name}: the result says {said}, its requests give {counted}")
    print("all figures agree" if not found else f"{len(found)} figures differ")
    sys.exit(1 if found else 0)
