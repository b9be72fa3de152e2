#!/usr/bin/env python3
"""Writes the golden cases: tiny random models and what Hugging Face transformers computes from them.

Each case is a directory with a checkpoint in the Hugging Face layout and a `golden.safetensors`:

    config.json  model.safetensors (or shards and an index)  golden.safetensors

A case is made in three steps. The order matters: the golden values come from the files, not from
the model that wrote them, so names, dtypes and both dialects of `config.json` are part of the proof.
    1. write   random weights, saved by transformers (`save_pretrained`) under their on-disk names
    2. read    the directory, by `from_pretrained`, into a float32 model with eager attention
    3. record  logits, residual stream and routing decisions of a few short sequences
README.md says what each case is for, what the tensors are called, and how to run this.
    generate.py                 write every case beside this script
    generate.py NAME ...        write only these cases
    generate.py --out DIR       write elsewhere
"""

import argparse
import json
import pathlib
import shutil
import zlib

import numpy as np
import safetensors
import safetensors.torch
import torch
import transformers
from cases import CASES, Case
from transformers import AutoConfig, AutoModelForCausalLM

HERE = pathlib.Path(__file__).resolve().parent
VERSIONS = {
    "transformers": transformers.__version__,
    "torch": torch.__version__.split("+")[0],
    "safetensors": safetensors.__version__,
    "numpy": np.__version__,
}
# A router decision closer than this to a tie could fall the other way in a correct engine.
MIN_ROUTER_MARGIN = 1e-4



# ---- 1. write -----------------------------------------------------------------------------------


def normal(case: Case, name: str, shape) -> np.ndarray:
    """Standard normal numbers that depend on the case's seed and the tensor's name only."""
    return np.random.default_rng([case.seed, zlib.crc32(name.encode())]).standard_normal(tuple(shape))


def random_weight(case: Case, name: str, shape) -> torch.Tensor:
    """A weight of such a size that every part of the model shows in the logits."""
    x = normal(case, name, shape)
    if name.endswith("e_score_correction_bias"):
        mean, std = case.router_bias
        x = mean + std * x
    elif name.endswith("norm.weight"):
        x = 1.0 + 0.25 * x
    elif name.endswith(".bias"):
        x = 0.3 * x
    elif name.endswith("embed_tokens.weight"):
        # Small, so that the epsilon of the first norms shows; not where these rows also make the logits.
        x = (0.25 if case.config["tie_word_embeddings"] else 0.08) * x
    else:  # a linear, or a stack of experts' linears: [..., out, in]
        gain = 2.0 if name.endswith(("lm_head.weight", "mlp.gate.weight")) else 1.4
        x = gain / np.sqrt(shape[-1]) * x
        if case.small_latents and name.endswith("kv_a_proj_with_mqa.weight"):
            x[: case.config["kv_lora_rank"]] *= 0.003  # the rope rows keep their size
        if case.small_latents and name.endswith("q_a_proj.weight"):
            x *= 0.003
    return torch.from_numpy(x.astype(np.float32))


def mtp_tensors(case: Case, saved: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """A multi-token-prediction layer as DeepSeek-V3 stores it: one layer past the last, in bfloat16."""
    layers, hidden = case.config["num_hidden_layers"], case.config["hidden_size"]
    last, extra = f"model.layers.{layers - 1}.", f"model.layers.{layers}."
    shapes = {extra + name[len(last) :]: t.shape for name, t in saved.items() if name.startswith(last)}
    shapes |= {extra + f"{name}.weight": (hidden,) for name in ("enorm", "hnorm", "shared_head.norm")}
    shapes[extra + "eh_proj.weight"] = (hidden, 2 * hidden)
    tensors = {name: random_weight(case, name, shape) for name, shape in shapes.items()}
    tensors = {n: t if n.endswith("e_score_correction_bias") else t.to(torch.bfloat16) for n, t in tensors.items()}
    tensors[extra + "embed_tokens.weight"] = saved["model.embed_tokens.weight"].to(torch.bfloat16)
    tensors[extra + "shared_head.head.weight"] = saved["lm_head.weight"].to(torch.bfloat16)
    return tensors


def write_checkpoint(case: Case, directory: pathlib.Path) -> None:
    config = AutoConfig.for_model(**case.config)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if not (config.tie_word_embeddings and name == "lm_head.weight"):
                tensor.copy_(random_weight(case, name, tensor.shape))
        # The router bias stays in float32 whatever the rest is, as in the published checkpoints.
        biases = {n: b.clone() for n, b in model.named_buffers() if n.endswith("e_score_correction_bias")}
        model.to(case.dtype)
        for name, bias in biases.items():
            model.get_submodule(name.rpartition(".")[0]).e_score_correction_bias = bias
    model.save_pretrained(directory, **({"max_shard_size": case.shard_size} if case.shard_size else {}))
    (directory / "generation_config.json").unlink(missing_ok=True)
    if not case.config_by_hf:
        (directory / "config.json").write_text(json.dumps(case.config, indent=2) + "\n")
    if case.mtp_layer:
        path = directory / "model.safetensors"
        tensors = safetensors.torch.load_file(path)
        safetensors.torch.save_file(tensors | mtp_tensors(case, tensors), path, metadata={"format": "pt"})


# ---- 2. read ------------------------------------------------------------------------------------


def load(directory: pathlib.Path, **overrides) -> torch.nn.Module:
    """The model that lies in `directory`, in float32 with eager attention and experts, on the CPU."""
    config = AutoConfig.from_pretrained(directory)
    for key, value in overrides.items():
        setattr(config, key, value)
    config.dtype = torch.float32
    model, report = AutoModelForCausalLM.from_pretrained(
        directory,
        config=config,
        dtype=torch.float32,
        attn_implementation="eager",
        experts_implementation="eager",
        output_loading_info=True,
    )
    if report["missing_keys"] or report["mismatched_keys"]:
        raise SystemExit(f"{directory.name}: the checkpoint does not load: {report}")
    stray = [key for key in report["unexpected_keys"] if f"layers.{config.num_hidden_layers}." not in key]
    if stray:
        raise SystemExit(f"{directory.name}: tensors that transformers does not know: {stray}")
    return model.eval()


def sequences(case: Case) -> list[torch.Tensor]:
    """Random ids; each sequence longer than one token holds the first and the last id of the vocabulary."""
    vocab = case.config["vocab_size"]
    rng = np.random.default_rng([case.seed, 0])
    result = [rng.integers(0, vocab, length) for length in case.lengths]
    for ids in result:
        if len(ids) > 1:
            ids[1], ids[-2] = 0, vocab - 1
    return [torch.from_numpy(ids) for ids in result]


# ---- 3. record ----------------------------------------------------------------------------------


class Recorder:
    """Hooks that keep the residual stream before each layer, the final norm and the routers' decisions."""

    def __init__(self, model: torch.nn.Module):
        self.hidden: dict[int, torch.Tensor] = {}
        self.final_norm = torch.empty(0)
        self.routers: dict[int, tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = {}
        body = model.model
        for i, layer in enumerate(body.layers):
            layer.register_forward_pre_hook(lambda _m, args, i=i: self.hidden.__setitem__(i, args[0][0].clone()))
            if hasattr(layer.mlp, "gate"):
                layer.mlp.gate.register_forward_hook(lambda _m, _a, out, i=i: self.routers.__setitem__(i, out))
        body.norm.register_forward_pre_hook(
            lambda _m, args: self.hidden.__setitem__(len(body.layers), args[0][0].clone())
        )
        body.norm.register_forward_hook(lambda _m, _a, out: setattr(self, "final_norm", out[0].clone()))


def router_margin(model: torch.nn.Module, layer: int, logits: torch.Tensor) -> float:
    """How near the decisions for `logits` [T, experts] come to a tie: the least gap at either cut."""
    config, gate = model.config, model.model.layers[layer].mlp.gate
    if config.model_type == "deepseek_v3":
        choice, best_of_group = logits.sigmoid() + gate.e_score_correction_bias, 2
    else:
        choice, best_of_group = logits.softmax(-1), 1

    def cut(values: torch.Tensor, k: int) -> float:
        if k >= values.shape[-1]:
            return float("inf")
        ordered = values.sort(-1, descending=True).values
        return float((ordered[:, k - 1] - ordered[:, k]).min())

    margin = float("inf")
    if (getattr(config, "n_group", None) or 1) > 1 and getattr(config, "topk_method", "") != "greedy":
        groups = choice.view(len(choice), config.n_group, -1)
        scores = groups.topk(best_of_group, -1).values.sum(-1)
        margin = cut(scores, config.topk_group)
        kept = torch.zeros_like(scores).scatter_(1, scores.topk(config.topk_group, -1).indices, 1).bool()
        choice = groups.masked_fill(~kept.unsqueeze(-1), float("-inf")).flatten(1)
    return min(margin, cut(choice, config.num_experts_per_tok))


def record(case: Case, directory: pathlib.Path) -> None:
    model = load(directory)
    recorder = Recorder(model)
    golden: dict[str, torch.Tensor] = {}
    margin = float("inf")
    for n, ids in enumerate(sequences(case)):
        with torch.no_grad():
            logits = model(input_ids=ids.unsqueeze(0), use_cache=False).logits[0]
        golden[f"input_ids.{n}"] = ids
        golden[f"logits.{n}"] = logits
        for layer, (router_logits, _, _) in recorder.routers.items():
            margin = min(margin, router_margin(model, layer, router_logits))
        if n == 1:  # the short sequence: everything between the layers
            for layer, hidden in recorder.hidden.items():
                golden[f"hidden.{n}.{layer}"] = hidden
            golden[f"final_norm.{n}"] = recorder.final_norm
            for layer, (_, weights, experts) in recorder.routers.items():
                experts, order = experts.sort(-1)
                golden[f"router.{n}.{layer}.experts"] = experts.to(torch.int32)
                golden[f"router.{n}.{layer}.weights"] = weights.gather(-1, order)
    if margin < MIN_ROUTER_MARGIN:
        raise SystemExit(f"{case.name}: a router comes within {margin:.1e} of a tie; take another seed")
    origin = VERSIONS | {"case": case.name, "seed": case.seed, "compute": "float32, eager, CPU"}
    if margin < float("inf"):
        origin["router_margin"] = f"{margin:.1e}"
    golden = {name: tensor.contiguous() for name, tensor in golden.items()}
    # One key only: safetensors writes several in no fixed order, and the bytes should not change by themselves.
    metadata = {"origin": json.dumps(origin)}
    safetensors.torch.save_file(golden, directory / "golden.safetensors", metadata=metadata)

    for path in directory.iterdir():
        path.chmod(0o644)  # safetensors writes 0600
    size = sum(path.stat().st_size for path in directory.iterdir())
    peak = max(float(golden[f"logits.{n}"].abs().max()) for n in range(len(case.lengths)))
    print(f"{case.name:28} {size / 1000:6.1f} kB  max|logit| {peak:5.2f}  router margin {margin:.1e}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="cases to write; all of them if none")
    parser.add_argument("--out", type=pathlib.Path, default=HERE, help="where to write (default: beside this script)")
    args = parser.parse_args()
    unknown = set(args.names) - {case.name for case in CASES}
    if unknown:
        parser.error(f"no such case: {', '.join(sorted(unknown))}; there are {', '.join(c.name for c in CASES)}")

    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    for case in CASES:
        if args.names and case.name not in args.names:
            continue
        directory = args.out / case.name
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        write_checkpoint(case, directory)
        record(case, directory)


if __name__ == "__main__":
    main()
