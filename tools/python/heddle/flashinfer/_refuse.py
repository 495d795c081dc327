"""What FlashInfer takes and heddle does not is refused by name; nothing is ignored in silence."""
from heddle import InputError, UnsupportedError

# These choose among FlashInfer's own kernels and launches and change no result, so any value will do.
HINTS = "use_tensor_cores, non_blocking, enable_pdl"
BACKENDS = ("auto", "fa2", "fa3")

# Stands where FlashInfer has the CUDA source of its variant with a sink: jit_args that name it are understood.
attention_sink_decl = {backend: f"heddle: AttentionSink, {backend}" for backend in BACKENDS}


def unless(allowed, **arguments):
    """Refuses each argument whose value is none of `allowed`."""
    for name, value in arguments.items():
        if not any(value is a or (type(value) is not bool and isinstance(value, (int, float, str)) and value == a)
                   for a in allowed):
            raise UnsupportedError(f"{name}={value!r} is not supported by heddle.flashinfer; "
                                   f"leave it at {' or '.join(map(repr, allowed))}.")


def unless_none(**arguments):
    unless((None,), **arguments)


def backend(value):
    unless(BACKENDS, backend=value)


def layout(value):
    if value not in ("NHD", "HND"):
        raise InputError(f"kv_layout is {value!r}; it must be 'NHD' or 'HND'.")
    return value


def no_positions(name, why):
    raise UnsupportedError(f"{name} is not supported with {why}.")


def positions_of_blocks(causal, pos_encoding_mode, rope_scale, rope_theta):
    """Of a block-sparse request: its keys are the blocks that it sees, one behind the other."""
    if causal or pos_encoding_mode != "NONE":
        no_positions("causal=True" if causal else f"pos_encoding_mode={pos_encoding_mode!r}",
                     "block-sparse attention: a position would count the keys of the chosen blocks, not those of the "
                     "sequence; choose the blocks, mask inside them, and turn q and k beforehand")
    unless_none(rope_scale=rope_scale, rope_theta=rope_theta)


def names_a_sink(jit_args, jit_kwargs):
    """Whether jit_args are those of FlashInfer's AttentionSink, with attention_sink_decl of this package; others are
    CUDA source for FlashInfer's kernels, and refused."""
    if jit_args is None:
        unless_none(jit_kwargs=jit_kwargs or None)
        return False
    known = (["sink"], ["float"], ["sm_scale"], ["double"], "AttentionSink")
    if len(jit_args) != 13 or tuple(jit_args[7:12]) != known or jit_args[12] not in attention_sink_decl.values():
        raise UnsupportedError("jit_args name a variant in CUDA for FlashInfer's kernels, which heddle does not take; "
                               "write it as a heddle variant, or use heddle.flashinfer.attention_sink_decl.")
    for name, value in (jit_kwargs or {}).items():
        if name != "use_sliding_window":  # plan()'s window_left says it
            unless((0, False), **{name: value})
    return True
