#!/usr/bin/env python3
"""generate() of Transformers with attn_implementation="heddle" beside eager and sdpa: five small models of random
weights, made from their config classes, 8 prompts of one length or padded, 64 greedy tokens.

    PYTHONPATH=build/python python3 tests/python/gpu_generate.py [--json out.json] [--only gemma2,qwen3]

Random weights leave the two best logits close, so that rounding alone changes a greedy token now and then, and all that
follow it. So the same model in float32 with eager attention is the measure. Forms: bfloat16, float16, and "mixed", the
float32 model whose attention alone rounds its inputs and outputs to float16, so that nothing else can change a token.

  logits   the float32 model's own tokens are fed one by one, with the cache; the largest error of any logit and the
           mean one. heddle's may be at most --factor of eager's in the same form.
  argmax   of those steps, how many have the float32 model's token; where not, the float32 model's gap between the two
           tokens must be within what two roundings as large as the allowed error can turn.
  tokens   of generate(), how many come before the first one that differs from eager's in the same form, and the
           float32 model's gap there.

Exit code 1 where a model breaks the first two. `--device cpu --small` tries the script without a GPU.
"""
import argparse
import copy
import json
import pathlib
import sys
import time

import torch
import transformers

import heddle
import heddle.transformers
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import eager_mask

IMPLEMENTATIONS = ["eager", "sdpa", "heddle"]
NO_SDPA = {"gpt_oss"}  # Transformers has none for it
WINDOW = 128
SIZES = {"vocab_size": 4096, "hidden_size": 1024, "intermediate_size": 2048, "num_hidden_layers": 4,
         "num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 128, "max_position_embeddings": 2048,
         "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": None}
SMALL = {"vocab_size": 256, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
         "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32}
# Every expert takes part: which ones are the better may hang on a rounding.
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 4, "head_dim": 64, "experts_implementation": "eager"}
MODELS = {
    "llama": ("LlamaConfig", {}),
    "mistral": ("MistralConfig", {"sliding_window": WINDOW}),
    "gemma2": ("Gemma2Config", {"sliding_window": WINDOW, "attn_logit_softcapping": 50.0, "head_dim": 256,
                                "query_pre_attn_scalar": 256}),
    "gpt_oss": ("GptOssConfig", {"sliding_window": WINDOW, **EXPERTS}),
    "qwen3": ("Qwen3Config", {}),
}


def attention_in_float16(module, query, key, value, attention_mask, **words):
    """heddle's, in a float32 model."""
    q, k, v = (x.half() for x in (query, key, value))
    o, weights = heddle.transformers.attention(module, q, k, v, attention_mask, **words)
    return o.to(query.dtype), weights


def eager_in_float16(module, query, key, value, attention_mask, **words):
    """The model's own, in a float32 model, from and to what float16 can hold."""
    eager = sys.modules[type(module).__module__].eager_attention_forward
    q, k, v = (x.half().float() for x in (query, key, value))
    o, weights = eager(module, q, k, v, attention_mask, **words)
    return o.half().float(), weights


def no_attention(module, query, *_, **__):
    """To see by how much attention matters to the logits at all."""
    return torch.zeros_like(query).transpose(1, 2), None


for word, function, mask in (("heddle_float16", attention_in_float16, heddle.transformers.mask),
                             ("no_attention", no_attention, heddle.transformers.mask),
                             ("eager_float16", eager_in_float16, eager_mask)):
    AttentionInterface.register(word, function)
    AttentionMaskInterface.register(word, mask)


def make_attention_matter(model):
    """A fresh model's weights are so small that a row sees all keys nearly alike, and its sinks are zero."""
    for name, parameter in model.named_parameters():
        if "sinks" in name:
            parameter.data.normal_()
        elif "self_attn" in name and parameter.dim() == 2:
            wide = 1.6 if "q_proj" in name or "k_proj" in name else 1.0
            parameter.data.normal_(std=wide / parameter.shape[1] ** 0.5)


def model_of(name, given):
    """In float32, on the device."""
    kind, words = MODELS[name]
    small = {**SMALL, **({"sliding_window": 16} if "sliding_window" in words else {})} if given.small else {}
    torch.manual_seed(0)
    config = getattr(transformers, kind)(**{**SIZES, **words, **small})
    with torch.device(given.device):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager")
    make_attention_matter(model)
    model.generation_config.eos_token_id = None
    return model.eval()


def prompts_of(model, given, padded):
    """8 prompts; padded on the left to one length where they are unequal."""
    length = 40 if given.small else given.prompt
    torch.manual_seed(1)
    ids = torch.randint(2, model.config.vocab_size, (given.prompts, length))
    mask = torch.ones_like(ids)
    for i in range(given.prompts if padded else 0):
        mask[i, :i * length // (2 * given.prompts)] = 0
    ids[mask == 0] = 0
    return ids.to(given.device), mask.to(given.device)


def wait(given):
    if given.device == "cuda":
        torch.cuda.synchronize()


@torch.no_grad()
def generate(model, implementation, ids, mask, given):
    """New tokens [prompts, new], seconds."""
    model.set_attn_implementation(implementation)
    wait(given)
    begin = time.perf_counter()
    out = model.generate(input_ids=ids, attention_mask=mask, do_sample=False, max_new_tokens=given.new,
                         min_new_tokens=given.new)
    wait(given)
    return out[:, ids.shape[1]:], time.perf_counter() - begin


@torch.no_grad()
def logits_along(model, implementation, ids, mask, tokens):
    """[prompts, new, vocab] in float32: what the model says of each step when `tokens` are fed one by one."""
    model.set_attn_implementation(implementation)
    out, cache, fed = [], None, ids
    for i in range(tokens.shape[1]):
        positions = (mask.cumsum(-1) - 1).clamp(min=0)[:, -fed.shape[1]:]
        step = model(input_ids=fed, attention_mask=mask, position_ids=positions, past_key_values=cache, use_cache=True)
        cache, fed = step.past_key_values, tokens[:, i:i + 1]
        mask = torch.cat([mask, torch.ones_like(fed)], 1)
        out.append(step.logits[:, -1].float())
    return torch.stack(out, 1)


def gaps(exact, tokens, others):
    """By how much the exact logits prefer `tokens` to `others`, step by step."""
    return (exact.gather(2, tokens[..., None]) - exact.gather(2, others[..., None])).squeeze(2)


def along(model, implementation, ids, mask, exact, tokens):
    """Errors of the logits, and the tokens that differ."""
    found = logits_along(model, implementation, ids, mask, tokens)
    error, best = (found - exact).abs(), found.argmax(-1)
    gap = gaps(exact, tokens, best)
    return {"max_error": error.max().item(), "mean_error": error.mean().item(),
            "same_argmax": (best == tokens).sum().item(), "of": tokens.numel(), "largest_gap": gap.max().item(),
            "finite": bool(torch.isfinite(found).all())}


def first_differences(exact_model, ids, mask, eager, other):
    """Tokens before the first one that differs, for each prompt, and the exact gap at each of those places."""
    new = eager.shape[1]
    differs = eager != other
    first = torch.where(differs.any(1), differs.int().argmax(1), new).tolist()
    if min(first) == new:
        return first, []
    exact = logits_along(exact_model, "eager", ids, mask, eager)
    gap = gaps(exact, eager, other).abs()
    return first, [round(gap[i, n].item(), 4) for i, n in enumerate(first) if n < new]


class Exact:
    """The float32 model with eager attention, its prompts, tokens and logits."""

    def __init__(self, name, padded, given):
        self.name, self.padded, self.given = name, padded, given
        self.model = model_of(name, given)
        self.ids, self.mask = prompts_of(self.model, given, padded)
        self.tokens, _ = generate(self.model, "eager", self.ids, self.mask, given)
        self.logits = logits_along(self.model, "eager", self.ids, self.mask, self.tokens)
        without = logits_along(self.model, "no_attention", self.ids, self.mask, self.tokens)
        self.attentions_part = (without - self.logits).abs().mean().item()

    def compare(self, form):
        model = self.model if form == "mixed" else copy.deepcopy(self.model).to(getattr(torch, form))
        best, second = self.logits.topk(2).values.unbind(-1)
        row = {"model": self.name, "padded": self.padded, "form": form, "logit_spread": self.logits.std().item(),
               "median_top_gap": (best - second).median().item(), "mean_change_without_attention": self.attentions_part}
        made = {}
        for name in self._implementations(form):
            registered = f"{name}_float16" if form == "mixed" else name
            made[name], row[name] = self._run(model, registered, timed=form == "bfloat16")
            tokens = self.tokens if form == "mixed" else made["eager"]
            first, gap = first_differences(self.model, self.ids, self.mask, tokens, made[name])
            row[name].update(first_difference=first, exact_gap_there=gap, equal_tokens=sum(first))
        return judged(row, self.given)

    def _implementations(self, form):
        """sdpa for the times; eager where it rounds."""
        left_out = {"bfloat16": NO_SDPA & {self.name} and {"sdpa"}}.get(form, {"sdpa"})
        return [name for name in IMPLEMENTATIONS if name not in left_out]

    def _run(self, model, implementation, timed):
        call = lambda: generate(model, implementation, self.ids, self.mask, self.given)  # noqa: E731
        made, _ = call()  # compiles, where it must
        seconds = sorted(call()[1] for _ in range(self.given.rounds if timed else 0))
        found = along(model, implementation, self.ids, self.mask, self.logits, self.tokens)
        if seconds:
            found["tokens_per_s"] = round(self.tokens.numel() / seconds[len(seconds) // 2], 1)
        return made, found


def judged(row, given):
    found = row["heddle"]
    allowed = {word: given.factor * row["eager"][word] for word in ("max_error", "mean_error")}
    why = [word for word, bad in (
        ("not finite", not found["finite"]),
        ("largest error", found["max_error"] > allowed["max_error"]),
        ("mean error", found["mean_error"] > allowed["mean_error"]),
        ("a token beyond rounding", found["largest_gap"] > 2 * allowed["max_error"])) if bad]
    return {**row, "ok": not why, "why": ", ".join(why)}


HEAD = (f"{'model':9}{'form':10}{'prompts':8}{'':8}{'max error':>10}{'mean':>9}{'argmax':>9}{'gap':>9}"
        f"{'same tokens':>13}{'tokens/s':>10}  first differences: prompt@token, float32's gap")


def lines(row):
    if row["form"] == "bfloat16":
        yield (f"\n{row['model']}: without attention the logits change by {row['mean_change_without_attention']:.4f} in the "
               f"mean; median gap of the best two {row['median_top_gap']:.4f}")
    if not row["ok"]:
        yield f"{row['model']} {row['form']}: NOT OK, {row['why']}"
    for name in IMPLEMENTATIONS:
        if name not in row:
            continue
        found = row[name]
        first, new = found["first_difference"], found["of"] // len(found["first_difference"])
        places = [(i, n) for i, n in enumerate(first) if n < new]
        where = ", ".join(f"{i}@{n} {gap:.4f}" for (i, n), gap in zip(places, found["exact_gap_there"]))
        speed = f"{found['tokens_per_s']:10.0f}" if "tokens_per_s" in found else f"{'-':>10}"
        yield (f"{row['model']:9}{row['form']:10}{'padded' if row['padded'] else 'even':8}{name:8}"
               f"{found['max_error']:10.5f}{found['mean_error']:9.6f}{found['same_argmax']:>5}/{found['of']}"
               f"{found['largest_gap']:9.5f}{found['equal_tokens']:>9}/{found['of']}{speed}  {where}")


def main():
    parser = argparse.ArgumentParser(description="generate() with heddle, eager and sdpa")
    parser.add_argument("--only", default="", help="models, with commas")
    parser.add_argument("--forms", default="bfloat16,float16,mixed")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--small", action="store_true", help="smaller models and prompts")
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--prompt", type=int, default=320, help="tokens of a prompt")
    parser.add_argument("--new", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=2, help="timed generate() calls, in bfloat16")
    parser.add_argument("--factor", type=float, default=1.5, help="of eager's error")
    parser.add_argument("--seconds", type=float, default=240, help="no further comparison is begun after these")
    parser.add_argument("--json", type=pathlib.Path)
    given = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    chosen = [name for name in MODELS if not given.only or name in given.only.split(",")]
    begin, rows, left_out = time.monotonic(), [], []
    print(f"heddle {heddle.__version__}, Transformers {transformers.__version__}, PyTorch {torch.__version__}, "
          f"{heddle.Engine(given.device).device.name}\n{HEAD}", flush=True)
    for name in chosen:
        for padded in (False, True):
            exact = None
            for form in given.forms.split(","):
                if time.monotonic() - begin > given.seconds:
                    left_out.append(f"{name} {form} {'padded' if padded else 'even'}")
                    continue
                exact = exact or Exact(name, padded, given)
                rows.append(exact.compare(form))
                print("\n".join(lines(rows[-1])), flush=True)
    if left_out:
        print(f"not run within {given.seconds:.0f} s: {', '.join(left_out)}")
    bad = [row for row in rows if not row["ok"]]
    print(f"{len(rows) - len(bad)} of {len(rows)} within rounding, {time.monotonic() - begin:.0f} s")
    if given.json:
        given.json.write_text(json.dumps({"rows": rows, "left_out": left_out}, indent=1))
    return 1 if bad or left_out else 0


if __name__ == "__main__":
    sys.exit(main())
