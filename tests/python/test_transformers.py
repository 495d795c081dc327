"""attn_implementation="heddle" against Transformers' eager attention, on small random models on the CPU."""
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import heddle  # noqa: E402
import heddle.transformers  # noqa: E402

SIZES = {"vocab_size": 97, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
         "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 256,
         "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": None}

FAMILIES = ["llama", "mistral", "qwen2_moe", "gemma2", "gpt_oss"]


def model_of(family):
    torch.manual_seed(0)
    if family == "llama":
        config = transformers.LlamaConfig(**SIZES)
    elif family == "mistral":
        config = transformers.MistralConfig(**SIZES, sliding_window=8)
    elif family == "qwen2_moe":  # its layers do not name their window; the router takes all experts
        config = transformers.Qwen2MoeConfig(**SIZES, use_sliding_window=True, sliding_window=8, max_window_layers=2,
                                             num_experts=2, num_experts_per_tok=2, moe_intermediate_size=32,
                                             shared_expert_intermediate_size=32)
    elif family == "gemma2":
        config = transformers.Gemma2Config(**SIZES, sliding_window=8, attn_logit_softcapping=20.0,
                                           query_pre_attn_scalar=16)
    else:
        config = transformers.GptOssConfig(**SIZES, sliding_window=8, num_local_experts=2, num_experts_per_tok=2)
        # Both experts: which one is the better may hang on a rounding.
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
    for name, parameter in model.named_parameters():
        if "sinks" in name:
            parameter.data.normal_()
    return model


@torch.no_grad()
def logits_of(model, implementation, ids, mask, cache=None, steps=(18, 1, 1, 1)):
    """Of a prompt, then of more tokens with the cache."""
    model.set_attn_implementation(implementation)
    out, begin = [], 0
    for count in steps:
        end = begin + count
        seen = None if mask is None else mask[:, :end]
        step = model(ids[:, begin:end], attention_mask=seen, past_key_values=cache, use_cache=True)
        cache, begin = step.past_key_values, end
        out.append(step.logits)
    return torch.cat(out, 1).float()


def ids_of(batch):
    return torch.randint(2, 97, (batch, 21), generator=torch.Generator().manual_seed(1))


def check(found, wanted):
    assert (found - wanted).abs().max() < 0.05 * wanted.abs().max()


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_are_those_of_eager_attention(family, batch):
    model, ids = model_of(family), ids_of(batch)
    mask = torch.ones_like(ids)
    if batch > 1:
        mask[1, :5] = 0  # padded on the left
    check(*(logits_of(model, name, ids, mask)[mask.bool()] for name in ("heddle", "eager")))


# A prompt at once; in pieces behind a cache; without a cache that forgets what the window has passed.
@pytest.mark.parametrize("steps", [(18, 1, 2), (6, 9, 5, 1)], ids=str)
@pytest.mark.parametrize("form", ["with a mask of ones", "without a mask", "a cache without windows"])
@pytest.mark.parametrize("family", FAMILIES)
def test_windows_run_in_the_kernel(family, form, steps, monkeypatch):
    model, ids = model_of(family), ids_of(2)
    mask = torch.ones_like(ids) if form == "with a mask of ones" else None
    cache = transformers.DynamicCache if form == "a cache without windows" else lambda: None
    wanted = logits_of(model, "eager", ids, mask, cache(), steps)
    monkeypatch.setattr(heddle.transformers, "_dense", lambda *_: pytest.fail("a mask was made"))
    check(logits_of(model, "heddle", ids, mask, cache(), steps), wanted)


@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_a_static_cache(family):
    model, ids = model_of(family), ids_of(2)
    cache = lambda: transformers.StaticCache(config=model.config, max_cache_len=32)  # noqa: E731
    for steps in ((18, 1, 2), (6, 9, 5, 1)):
        check(*(logits_of(model, name, ids, torch.ones_like(ids), cache(), steps) for name in ("heddle", "eager")))


def test_masks_that_are_more_than_a_window_are_made():
    words = {"batch_size": 1, "q_length": 12, "kv_length": 12, "local_size": 8}
    config = transformers.MistralConfig(**SIZES, sliding_window=8)
    assert heddle.transformers.mask(config=config, **words) is None
    ones, zero = torch.ones(1, 12, dtype=torch.bool), torch.ones(1, 12, dtype=torch.bool)
    zero[0, 0] = False
    assert heddle.transformers.mask(config=config, attention_mask=ones, **words) is None
    for more in ({"attention_mask": zero}, {"allow_is_causal_skip": False}, {"local_size": 6}, {"q_offset": 1}):
        assert heddle.transformers.mask(config=config, **{**words, **more}).shape == (1, 1, 12, 12)
    config.attention_chunk_size = 8  # then the 8 may be a chunk's
    assert heddle.transformers.mask(config=config, **words) is not None


def test_training_and_foreign_masks_are_refused():
    model = model_of("llama")
    model.set_attn_implementation("heddle")
    ids = torch.randint(2, 97, (1, 9))
    with pytest.raises(NotImplementedError, match="no backward pass"):
        model(ids)
    q = torch.zeros(1, 4, 3, 16, dtype=torch.bfloat16)
    with pytest.raises(ValueError, match="attention_mask is torch.float32"):
        heddle.transformers.attention(model, q, q, q, torch.zeros(1, 1, 3, 3))
    with pytest.raises(NotImplementedError, match="position_bias"):
        heddle.transformers.attention(model, q, q, q, None, position_bias=q)
