"""What FlashInfer takes and heddle does not is refused by name; nothing is ignored in silence."""
from heddle import InputError, UnsupportedError

# These choose among FlashInfer's own kernels and launches and change no result, so any value will do.
HINTS = "use_tensor_cores, non_blocking, enable_pdl"
BACKENDS = ("auto", "fa2", "fa3")


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


def positions(pos_encoding_mode, rope_scale, rope_theta):
    unless(("NONE",), pos_encoding_mode=pos_encoding_mode)
    unless_none(rope_scale=rope_scale, rope_theta=rope_theta)


def scales(q_scale, k_scale):
    unless((None, 1.0), q_scale=q_scale, k_scale=k_scale)
