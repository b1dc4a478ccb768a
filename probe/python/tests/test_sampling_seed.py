"""A loader that draws its order itself takes it up with torch's generators as they were, in its first epoch and by whatever iterates it."""

import pytest
from collector import PACKAGE  # noqa: F401, which puts the staged package on the path

torch = pytest.importorskip("torch", reason="SKIPPED: this Python has no torch")

import stallscope  # noqa: E402


@pytest.mark.parametrize("sampling", ["importance", "iis", "shade"])
def test_the_generator_that_gave_the_seed_goes_on_behind_it(sampling):
    def made():
        generator = torch.Generator().manual_seed(5)
        return generator, stallscope.DataLoader(range(40), batch_size=4, generator=generator, sampling=sampling)

    generator, loader = made()
    batches = iter(loader.weighted())
    next(batches)
    position = loader.state_dict()
    whole = [batch.tolist() for batch, _, _ in batches], generator.get_state().tolist()
    generator, loader = made()
    loader.load_state_dict(position)
    assert ([batch.tolist() for batch, _, _ in loader.weighted()], generator.get_state().tolist()) == whole


def test_a_checkpointer_takes_what_iterates_with_weights_for_its_loader(tmp_path):
    torch.manual_seed(2)
    weighted = stallscope.DataLoader(range(40), batch_size=4, shuffle=True).weighted()
    with stallscope.Checkpointer(tmp_path, loader=weighted, every=10**6) as checkpointer:
        batches = iter(weighted)
        next(batches)
        checkpointer.step()
        checkpointer.save(wait=True)
        rest = [ids.tolist() for _, ids, _ in batches], torch.rand(1).item()
    again = stallscope.DataLoader(range(40), batch_size=4, shuffle=True).weighted()
    with stallscope.Checkpointer(tmp_path, loader=again, every=10**6) as checkpointer:
        assert checkpointer.restore().epoch == 0
        assert ([ids.tolist() for _, ids, _ in again], torch.rand(1).item()) == rest
