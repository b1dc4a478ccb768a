"""A loader whose `_get_iterator()` wraps torch's iterator, as PyTorch Geometric's, is taken up where it was; one within which none is seen is refused."""

import pytest
from collector import PACKAGE  # noqa: F401, which puts the staged package on the path

torch = pytest.importorskip("torch", reason="SKIPPED: this Python has no torch")

import stallscope  # noqa: E402

EPOCHS, SAMPLES, BATCH = 3, 32, 4


class Wrapper:
    """As PyTorch Geometric's DataLoaderIterator."""

    def __init__(self, iterator):
        self.iterator = iterator

    def __iter__(self):
        return self

    def _reset(self, loader, first_iter=False):
        self.iterator._reset(loader, first_iter)

    def __len__(self):
        return len(self.iterator)

    def __next__(self):
        return 10 * next(self.iterator)


class Twice(Wrapper):
    def __init__(self, iterator):
        super().__init__(Wrapper(iterator))


class Slotted:
    __slots__ = ("iterator",)
    __init__, __iter__, __next__ = Wrapper.__init__, Wrapper.__iter__, Wrapper.__next__


def generated(iterator):
    yield from (10 * batch for batch in iterator)


def loader_of(wrap, samples=SAMPLES, base=torch.utils.data.DataLoader, **more):
    class Wrapped(base):
        def _get_iterator(self):
            return wrap(super()._get_iterator())

    class Lazy(base):
        def _get_iterator(self):
            yield from super()._get_iterator()

    return (Lazy if wrap is None else Wrapped)(range(samples), batch_size=BATCH, **more)


def train(wrap, workers, stays, folder=None, stop=None):
    torch.manual_seed(3)
    more = {"num_workers": workers, "persistent_workers": stays}
    loader, validating = loader_of(wrap, shuffle=True, **more), loader_of(wrap, 12, **more)
    checkpointer = folder and stallscope.Checkpointer(folder, loader=loader, every=1 << 40, signals=())
    start = checkpointer.restore() if checkpointer else None
    got = []
    try:
        for epoch in range(start.epoch if start else 0, EPOCHS):
            for batch in loader:
                got.append((epoch, batch.tolist()))
                if checkpointer is not None:
                    checkpointer.step()
                    if len(got) == stop:
                        checkpointer.save(wait=True)
                        return got
            if stays:
                list(validating)
    finally:
        if checkpointer is not None:
            checkpointer.close()
    return got


@pytest.mark.parametrize("wrap, workers, stays", [(Wrapper, 2, False), (Wrapper, 2, True), (Twice, 1, False), (Wrapper, 0, False), (Slotted, 0, False), (generated, 0, False)])
def test_what_was_ahead_comes_after_a_resume(wrap, workers, stays, tmp_path, recwarn):
    whole = train(wrap, workers, stays)
    # Within an epoch, at the end of one, and in the next.
    for stop in (3, 8, 10):
        before = train(wrap, workers, stays, tmp_path / str(stop), stop)
        assert (stop, before + train(wrap, workers, stays, tmp_path / str(stop))) == (stop, whole)
    assert not [one for one in recwarn if "sampler" in str(one.message)]


@pytest.mark.parametrize("wrap, workers", [(None, 0), (None, 1), (generated, 1), (Slotted, 1)])
def test_where_torchs_is_not_seen_it_is_refused(wrap, workers, tmp_path):
    with pytest.raises(TypeError, match="the position of a (Wrapped|Lazy) is not known: its _get_iterator"):
        train(wrap, workers, False, tmp_path)


def test_who_asks_for_no_position_is_not():
    loader = loader_of(generated, base=stallscope.DataLoader, num_workers=1)
    assert [batch.tolist() for batch in loader] == [[*range(10 * at, 10 * (at + BATCH), 10)] for at in range(0, SAMPLES, BATCH)]
    batches = iter(loader)
    next(batches)
    with pytest.raises(TypeError, match="the position of a Wrapped is not known"):
        loader.state_dict()
