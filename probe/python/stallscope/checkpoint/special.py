"""Tensors that are more than their elements, and those of types that safetensors lacks: as plain ones and what makes them up.

As data, so that nothing has to be unpickled for them: torch.load(weights_only=True) takes a pickle's word for how large its
tensors are.
"""

import torch

from .errors import CheckpointError

_COMPRESSED = {
    getattr(torch, f"sparse_{name}"): (name, indices)
    for name, indices in (
        ("csr", ("crow_indices", "col_indices")),
        ("csc", ("ccol_indices", "row_indices")),
        ("bsr", ("crow_indices", "col_indices")),
        ("bsc", ("ccol_indices", "row_indices")),
    )
    if hasattr(torch, f"sparse_{name}")
}
_QUANTISED = (torch.qint8, torch.quint8, torch.qint32)
# torch before 2.0 looks at what a sparse tensor is made of without being asked.
_CHECKED = {"check_invariants": True} if hasattr(torch.sparse, "check_sparse_tensor_invariants") else {}


def encode(tensor, encode_one):
    """`tensor` as JSON; None where it is of none of these kinds. `encode_one(value, name)` encodes what it is made of."""

    def made_of(kind, parts, *facts):
        return {"special": [kind, [encode_one(part, str(at)) for at, part in enumerate(parts)], *facts]}

    if tensor.is_meta:
        return None
    if tensor.layout is torch.sparse_coo:
        return made_of("coo", [tensor._indices(), tensor._values()], list(tensor.shape), tensor.is_coalesced())
    if tensor.layout in _COMPRESSED:
        kind, indices = _COMPRESSED[tensor.layout]
        return made_of(kind, [*(getattr(tensor, name)() for name in indices), tensor.values()], list(tensor.shape))
    if tensor.layout is not torch.strided:
        return None
    if tensor.is_quantized:
        return _quantised(tensor, made_of)
    if tensor.is_conj() or tensor.is_neg():
        return encode_one(tensor.resolve_conj().resolve_neg(), "")
    if tensor.is_complex():
        return made_of("complex", [torch.view_as_real(tensor)])
    return None


def _quantised(tensor, made_of):
    if tensor.dtype not in _QUANTISED:
        return None
    if tensor.qscheme() is torch.per_tensor_affine:
        return made_of("quantised", [tensor.int_repr()], tensor.q_scale(), tensor.q_zero_point())
    if tensor.qscheme() is torch.per_channel_affine:
        parts = [tensor.int_repr(), tensor.q_per_channel_scales(), tensor.q_per_channel_zero_points()]
        return made_of("quantised by channel", parts, tensor.q_per_channel_axis())
    return None


def decode(body, decode_one):
    """What was encoded as `{"special": body}`."""
    kind, parts, *facts = body
    parts = [decode_one(part) for part in parts]
    if not all(type(part) is torch.Tensor for part in parts):
        raise CheckpointError(f"the checkpoint has a tensor ({kind}) that is made of none: another program made it")
    if kind == "coo":
        return _sparse(*parts, *facts)
    if kind == "complex":
        return torch.view_as_complex(*parts)
    if kind == "quantised":
        return torch._make_per_tensor_quantized_tensor(*parts, *facts)
    if kind == "quantised by channel":
        return torch._make_per_channel_quantized_tensor(*parts, *facts)
    layouts = {name: layout for layout, (name, _) in _COMPRESSED.items()}
    if kind not in layouts:
        raise CheckpointError(f"the checkpoint holds a tensor of a kind ({kind}) that this version of stallscope does not know")
    (shape,) = facts
    return torch.sparse_compressed_tensor(*parts, size=shape, layout=layouts[kind], **_CHECKED)


def _sparse(indices, values, shape, is_coalesced):
    tensor = torch.sparse_coo_tensor(indices, values, shape, **_CHECKED)
    if is_coalesced is not True:
        return tensor
    # What computes with it takes its word for it.
    before, after = indices[:, :-1], indices[:, 1:]
    first = (before != after).int().argmax(0, keepdim=True)
    if not (before.gather(0, first) < after.gather(0, first)).all():
        raise CheckpointError("the checkpoint has a sparse tensor whose indices are not in order: another program made it")
    return tensor._coalesced_(True)
