"""DTensors: which box of the whole a rank holds, and such a tensor made for what was saved."""

import math
import sys
import typing

import torch

from .errors import CheckpointError


class Box(typing.NamedTuple):
    """Elements of a tensor: where they begin, and how many there are, by dimension."""

    offset: tuple
    sizes: tuple

    def overlap(self, other):
        """The box of what is in both; None where that is nothing."""
        offset = tuple(map(max, self.offset, other.offset))
        ends = (min(at + size, its + of) for at, size, its, of in zip(self.offset, self.sizes, other.offset, other.sizes))
        sizes = tuple(end - at for end, at in zip(ends, offset))
        return Box(offset, sizes) if all(size > 0 for size in sizes) else None


def are_cells(boxes, shape):
    """Whether each is another cell of one grid over a tensor of that shape, as `_box` divides it: so none lies over another."""
    if any(len(box.offset) != len(shape) for box in boxes):
        return False
    ends = []
    for dim, size in enumerate(shape):
        cuts = sorted({box.offset[dim] for box in boxes})
        ends.append(dict(zip(cuts, [*cuts[1:], size])))
    whole = all(at + size == ends[dim][at] for box in boxes for dim, (at, size) in enumerate(zip(*box)))
    return whole and len({box.offset for box in boxes}) == len(boxes)


class Saved(typing.NamedTuple):
    """How a DTensor lay across ranks when it was saved: for each dimension of the mesh the tensor's that was sharded, None where each
    rank along it had all."""

    dims: tuple


class Likes:
    """Which DTensor a saved one is placed like. `here`: those that are in its state's place now, by name; `plain`: names of tensors there
    that are none, and stay so; `others`: any of the job's, on whose mesh what is not there yet comes."""

    def __init__(self, here, plain, others):
        self.here, self.plain, self.others = here, plain, others

    def of(self, name, shape):
        """None: as a plain tensor."""
        if name in self.here or name in self.plain:
            return self.here.get(name)
        alike = [*self.here.values(), *self.others]
        return next((one for one in alike if one.shape == shape), alike[0] if alike else None)


def is_dtensor(value):
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(value, getattr(module, "DTensor", ()))


def local_of(value):
    """This rank's tensor, in whose memory the DTensor is."""
    with torch.no_grad():
        return value.to_local()


def memory_of(local):
    """Says which memory a tensor of this rank's is in, for as long as that lives; also of an empty one, so that ranks with and without
    elements find the same tensors tied."""
    return local.untyped_storage()._cdata, local.storage_offset()


def box_of(value):
    """What this rank holds of it."""
    return _box(value.shape, value.device_mesh, _dims(value.placements))


def is_first(value):
    """Whether this rank is the first of those that hold the same."""
    places = zip(value.device_mesh.get_coordinate(), _dims(value.placements))
    return all(at == 0 for at, dim in places if dim is None)


def dims_of(value):
    """How it is placed, as `Saved` has it."""
    return _dims(value.placements)


def described(mesh):
    """A mesh as JSON."""
    return {"shape": list(mesh.mesh.shape), "names": list(mesh.mesh_dim_names or ()), "ranks": mesh.mesh.flatten().tolist()}


def refuse_unknown(value, name):
    """CheckpointError where what a rank holds of it is not known to be a box of the whole."""
    from torch.distributed.tensor import Replicate, Shard

    odd = [one for one in value.placements if type(one) not in (Shard, Replicate)]
    if odd:
        raise CheckpointError(
            f"{name} is a DTensor placed as {type(odd[0]).__name__}, and checkpoints hold those placed as Shard and Replicate: redistribute() it "
            "to such, or save with torch.distributed.checkpoint"
        )
    if value.device_mesh.get_coordinate() is None:
        raise CheckpointError(f"{name} is a DTensor of a mesh without this rank: save it with a Checkpointer of the mesh's ranks alone")
    world = torch.distributed.get_world_size()
    if value.device_mesh.mesh.numel() != world:
        # Several such meshes would each save all of it, and which of them is meant nobody says.
        raise CheckpointError(
            f"{name} is a DTensor of a mesh of {value.device_mesh.mesh.numel()} of the job's {world} ranks: place it on a mesh of all of them, "
            "replicated along the others' dimension, or save with torch.distributed.checkpoint"
        )
    local, box = local_of(value), box_of(value)
    if tuple(local.shape) != box.sizes:
        raise CheckpointError(
            f"{name} is a DTensor of which this rank holds {list(local.shape)} elements and by its placements {list(box.sizes)}: make it with "
            "distribute_tensor() or fully_shard(), or save with torch.distributed.checkpoint"
        )


def empty(saved, shape, like, name, dtype):
    """A DTensor of that shape, not filled, on the mesh of `like`: placed as that where it is of the same shape, else as it was `saved`."""
    if like.shape == shape:
        return torch.empty_like(like, dtype=dtype, requires_grad=False)
    from torch.distributed.tensor import DTensor, Replicate, Shard

    mesh = like.device_mesh
    if len(saved.dims) != mesh.ndim:
        raise CheckpointError(
            f"{name} was saved on a mesh of {len(saved.dims)} dimensions and here is one of {mesh.ndim}: restore on a mesh of "
            f"{len(saved.dims)} dimensions"
        )
    local = torch.empty(_box(shape, mesh, saved.dims).sizes, dtype=dtype, device=local_of(like).device)
    placements = [Replicate() if dim is None else Shard(dim) for dim in saved.dims]
    stride = torch.empty(shape, device="meta").stride()
    return DTensor.from_local(local, mesh, placements, run_check=False, shape=torch.Size(shape), stride=stride)


def _dims(placements):
    return tuple(getattr(placement, "dim", None) for placement in placements)


def _box(shape, mesh, dims):
    """Each dimension of the mesh in turn divides what is left of one of the tensor's, as torch.chunk() does: the first ones get as much
    as fits evenly, rounded up, and the last ones less or nothing."""
    offset, sizes = [0] * len(shape), list(shape)
    for ranks, at, dim in zip(mesh.mesh.shape, mesh.get_coordinate(), dims):
        if dim is not None:
            most = math.ceil(sizes[dim] / ranks)
            begin = min(most * at, sizes[dim])
            offset[dim] += begin
            sizes[dim] = min(most, sizes[dim] - begin)
    return Box(tuple(offset), tuple(sizes))
