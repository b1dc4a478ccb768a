"""Modules that load their states by code that is not torch's own for any module."""


def own_prefixes(module):
    """What the names begin with, in the state of `module`, that such code loads: it says by itself which names, shapes and types it
    takes, and they need not be those that are here. Torch's observers of quantisation take the shapes that they had when they were
    saved."""
    named = module.named_modules(remove_duplicate=False)
    return tuple(f"{name}." if name else "" for name, one in named if not all(map(_is_torchs, _loading(one))))


def has_own_extra_state(module):
    return not all(_is_torchs(one.set_extra_state) for one in module.modules())


def _loading(module):
    hooks = [*module._load_state_dict_pre_hooks.values(), *module._load_state_dict_post_hooks.values()]
    return [module.load_state_dict, module._load_from_state_dict, *(getattr(hook, "hook", hook) for hook in hooks)]


def _is_torchs(function):
    package, _, rest = (getattr(function, "__module__", None) or "").partition(".")
    return package == "torch" and rest.partition(".")[0] != "ao"
