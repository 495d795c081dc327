"""Where compiled kernels are kept, what is there, filling it ahead of time and clearing it."""
from heddle import _core
from heddle._nvrtc import folders


def directory(dir=None):
    """The cache's folder: `dir`, or the user's. Empty where nothing can be kept on disk."""
    return _core.cache_directory(dir)


def entries(dir=None):
    """A dict a stored kernel: key, name, arch, bytes, compile_ms, registers, used_at (seconds since 1970)."""
    return _core.cache_entries(dir)


def clear(dir=None):
    """Deletes every stored kernel; returns how many there were."""
    return _core.cache_clear(dir)


def warm(configs, *, engine=None, archs=(), dir=None):
    """Compiles every kernel of `configs` (AttentionConfigs, or dicts of their words) into the cache.

    engine: knows the variants; without one, a new Engine of the automatic device does.
    archs:  for these architectures ("sm_90a", "sm_80") instead of the engine's device, without a GPU.
    dir:    the cache's folder, with `archs` only; an engine has its own.

    Returns a KernelInfo a kernel, in order.
    """
    if dir is not None and not archs:
        raise _core.InputError(f"dir is {dir!r}, but without archs kernels go to the cache of the engine; "
                               "make the engine with cache_dir.")
    if engine is None:
        engine = _core.Engine("cpu" if archs else "auto")
    made = []
    for config in configs:
        if not isinstance(config, _core.AttentionConfig):
            config = _core.AttentionConfig(**config)
        if not archs:
            made += engine.attention(config).kernels
        for arch in archs:
            made += _core.compile_for(engine, config, arch, dir, folders())
    return made
