"""What training tells of samples: losses or gradient norms, kept until the draws learn of them."""

from array import array

import torch

from stallscope import _notices


class Scores:
    """In the order of `update()`, batch by batch."""

    def __init__(self, samples):
        self.samples = samples
        self.pending = []
        # What was pending where a position was saved, packed: lengths, ids, losses.
        self.packed = _nothing()
        # Those that were no number from 0 on, which count as 0.
        self.unsound = 0
        self.has_losses = False

    def add(self, ids, losses):
        """`losses`, a tensor on any device, of the samples `ids`. ValueError where they do not fit together."""
        ids = _vector("ids", ids, torch.int64).cpu()
        losses = _vector("losses", losses, torch.float32)
        if len(ids) != len(losses):
            raise ValueError(f"{len(ids)} ids have {len(losses)} losses: give one for each, as reduction=\"none\" does")
        if len(ids) and not (0 <= int(ids.min()) and int(ids.max()) < self.samples):
            wrong = int(ids.min()) if int(ids.min()) < 0 else int(ids.max())
            raise ValueError(f"there is no sample {wrong} among {self.samples}: give the ids that came with the batch")
        self.has_losses = True
        if losses.device.type == "cpu":
            losses = self._sound(losses)
        # On a device it stays until it is needed: nobody waits for the device at every step.
        self.pending.append((ids, losses))

    def _sound(self, losses):
        unsound = int((~(losses >= 0) | losses.isinf()).sum())
        if unsound and not self.unsound:
            _notices.warn(
                f"stallscope: {unsound} of {len(losses)} losses given to update() are negative or no numbers; such count "
                "as 0",
                4,
            )
        self.unsound += unsound
        return losses

    def _settled(self):
        """All that is pending, in memory: lengths, ids, losses."""
        self.pending = [
            (ids, losses if losses.device.type == "cpu" else self._sound(losses.cpu())) for ids, losses in self.pending
        ]
        lengths, ids, losses = (array(one.typecode, one) for one in self.packed)
        for some_ids, some_losses in self.pending:
            lengths.append(len(some_ids))
            ids.extend(some_ids.tolist())
            losses.extend(some_losses.tolist())
        return lengths.tobytes(), ids.tobytes(), losses.tobytes()

    def take(self):
        """All that is pending, which is not any longer, as plain data."""
        settled = self._settled()
        self.pending, self.packed = [], _nothing()
        return settled

    def state(self):
        """Plain data."""
        return list(self._settled())

    def load(self, state):
        # Packed as they are: as tensors they would take a hundred times as much.
        lengths, ids, losses = packed = tuple(map(array, "QIf", state))
        if not sum(lengths) == len(ids) == len(losses):
            raise ValueError("the state is damaged, or of other draws")
        self.pending, self.packed = [], packed
        self.has_losses = self.has_losses or bool(lengths)


def _nothing():
    return array("Q"), array("I"), array("f")


def unpacked(packed):
    """Lengths, ids and losses of `Scores.take`, as lists."""
    found = []
    for kind, data in zip("QIf", packed):
        values = array(kind)
        values.frombytes(data)
        found.append(values.tolist())
    return found


def in_turn(packed):
    """The batches of several ranks as one job's: the first of each rank, then the second of each, and so on."""
    ranks = [unpacked(one) for one in packed]
    if len(ranks) == 1:
        return ranks[0]
    at = [0] * len(ranks)
    lengths, ids, losses = [], [], []
    for turn in range(max(len(one[0]) for one in ranks)):
        for rank, (its_lengths, its_ids, its_losses) in enumerate(ranks):
            if turn < len(its_lengths):
                length = its_lengths[turn]
                lengths.append(length)
                ids += its_ids[at[rank] : at[rank] + length]
                losses += its_losses[at[rank] : at[rank] + length]
                at[rank] += length
    return lengths, ids, losses


def _vector(what, values, dtype):
    if isinstance(values, torch.Tensor):
        if dtype is torch.int64 and values.is_floating_point():
            raise ValueError(f"{what} are of {values.dtype}: give the ids that came with the batch")
        values = values.detach()
    else:
        try:
            values = torch.tensor(values, dtype=dtype, device="cpu")
        except (TypeError, ValueError, RuntimeError) as error:
            raise ValueError(f"{what} have to be a tensor of one number a sample ({error})") from None
    if values.dim() != 1:
        shape = tuple(values.shape)
        raise ValueError(f'{what} have the shape {shape}: give one number a sample, as reduction="none" does')
    return values.to(dtype, copy=True)
