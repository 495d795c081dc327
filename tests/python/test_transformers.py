"""attn_implementation="heddle" against Transformers' eager attention, on small random models on the CPU."""
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import heddle  # noqa: E402
import heddle.transformers  # noqa: E402

SIZES = {"vocab_size": 97, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
         "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 256,
         "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": None}


def model_of(family):
    torch.manual_seed(0)
    if family == "llama":
        config = transformers.LlamaConfig(**SIZES)
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
def logits_of(model, implementation, ids, mask):
    """Of a prompt, then of three tokens one by one with the cache."""
    model.set_attn_implementation(implementation)
    out, cache = [], None
    for begin, end in ((0, -3), (-3, -2), (-2, -1), (-1, None)):
        seen = mask if end is None else mask[:, :end]
        step = model(ids[:, begin or None:end], attention_mask=seen, past_key_values=cache, use_cache=True)
        cache = step.past_key_values
        out.append(step.logits)
    return torch.cat(out, 1).float()


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt_oss"])
def test_logits_are_those_of_eager_attention(family, batch):
    model = model_of(family)
    ids = torch.randint(2, 97, (batch, 21), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    if batch > 1:
        mask[1, :5] = 0  # padded on the left
    seen = mask.bool()
    found, wanted = (logits_of(model, name, ids, mask)[seen] for name in ("heddle", "eager"))
    assert (found - wanted).abs().max() < 0.05 * wanted.abs().max()


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
