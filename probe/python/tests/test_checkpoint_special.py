"""Tensors that are more than their elements: kept as data, and refused where they are made up."""

import io

import pytest
from collector import PACKAGE  # noqa: F401, which puts the staged package on the path

torch = pytest.importorskip("torch", reason="SKIPPED: this Python has no torch")

from test_checkpoint_state import again  # noqa: E402

from stallscope import Checkpointer, CheckpointError  # noqa: E402
from stallscope.checkpoint.tree import Reader, Writer  # noqa: E402

DENSE = torch.tensor([[0.0, 1.5, 0.0, 2.0], [0.0, 0.0, 0.0, 0.0], [3.0, 0.0, 0.0, 0.0], [0.0, 0.0, 4.0, 0.0]])


def sparse():
    kinds = [DENSE.to_sparse(), DENSE.to_sparse_csr(), DENSE.to_sparse_csc(), DENSE.to_sparse_bsr((2, 2)), DENSE.to_sparse_bsc((2, 2))]
    twice = torch.sparse_coo_tensor([[0, 0], [1, 1]], [1.0, 2.0], (2, 3))
    hybrid = torch.sparse_coo_tensor([[0, 2]], torch.ones(2, 2, dtype=torch.complex128) * 2j, (3, 2)).coalesce()
    return [*kinds, twice, hybrid, torch.zeros(2, 2).to_sparse()]


@pytest.mark.filterwarnings("ignore:Sparse")
def test_sparse_tensors_come_back_without_trust():
    for one in sparse():
        back = again({"it": one})["it"]
        assert (back.layout, back.shape, back.dtype) == (one.layout, one.shape, one.dtype)
        assert torch.equal(back.to_dense(), one.to_dense())
        if one.layout is torch.sparse_coo:
            assert back.is_coalesced() == one.is_coalesced() and back._nnz() == one._nnz()
    weight = torch.nn.Parameter(DENSE.to_sparse())
    back = again([weight, weight])
    assert type(back[0]) is torch.nn.Parameter and back[0].requires_grad and back[0] is back[1]


def test_complex_numbers_come_back_without_trust():
    number = torch.tensor([[1 + 2j, 3 - 1j], [0, 5j]], dtype=torch.complex128)
    for one in [number, number.t(), number.conj(), number.to(torch.complex64).conj(), number.conj().imag]:
        back = again({"it": one})["it"]
        assert back.dtype == one.dtype and torch.equal(back.resolve_conj(), one.resolve_conj().resolve_neg())


@pytest.mark.filterwarnings("ignore")
def test_quantised_tensors_come_back_without_trust():
    whole = torch.quantize_per_tensor(DENSE, 0.1, 3, torch.quint8)
    scales, zeros = torch.tensor([0.1, 0.2, 0.3, 0.4]).double(), torch.tensor([0, 1, 2, 3])
    by_channel = torch.quantize_per_channel(DENSE, scales, zeros, 0, torch.qint8)
    for one in [whole, by_channel]:
        back = again({"it": one})["it"]
        assert (back.dtype, back.qscheme()) == (one.dtype, one.qscheme()) and torch.equal(back.dequantize(), one.dequantize())


@pytest.mark.filterwarnings("ignore:Sparse")
def test_a_module_with_a_sparse_buffer_is_restored_without_trust(tmp_path):
    def module(factor):
        one = torch.nn.Linear(2, 2)
        one.register_buffer("graph", DENSE.to_sparse() * factor)
        return one

    with Checkpointer(tmp_path, model=module(1)) as checkpointer:
        checkpointer.save(wait=True)
    model = module(2)
    with Checkpointer(tmp_path, model=model) as checkpointer:
        checkpointer.restore()
    assert torch.equal(model.graph.to_dense(), DENSE)


def test_made_up_ones_are_refused():
    def parts(**plain):
        writer = Writer()
        return {name: writer.encode(torch.tensor(one), name) for name, one in plain.items()}, writer.tensors

    named, tensors = parts(far=[[0, 9]], turned=[[1, 0]], twice=[[1, 1]], whole=[[0, 1]], negative=[[-1, 0]], values=[1.0, 2.0], ends=[0, 9, 2])
    values = named["values"]
    for wrong in [
        ["coo", [named["far"], values], [2], False],
        ["coo", [named["negative"], values], [2], False],
        ["coo", [named["turned"], values], [2], True],
        ["coo", [named["twice"], values], [2], True],
        ["coo", [named["whole"], values], [2**63], False],
        ["coo", [named["whole"]], [2], False],
        ["coo", [1, 2], [2], False],
        ["csr", [named["ends"], named["whole"], values], [2, 2]],
        ["csr", [named["ends"]], [2, 2]],
        ["complex", [named["whole"]]],
        ["quantised", [values], 0.1, 0],
        ["nothing", [values]],
        ["coo"],
        7,
    ]:
        with pytest.raises(CheckpointError):
            Reader(tensors, trust=False).decode({"special": wrong})
    again = {"special": ["coo", [named["whole"], values], [2], True]}
    back = Reader(tensors, trust=False).decode([again] * 3)
    assert back[0] is back[1] is back[2], "what is named often is made once"


def test_no_pickle_is_read_without_trust():
    """One that torch holds harmless may name a tensor larger than what it has of it, and hold lists that are one another's."""
    import base64

    harmless = io.BytesIO()
    torch.save([torch.ones(2)], harmless)
    encoded = {"pickle": base64.b64encode(harmless.getvalue()).decode()}
    with pytest.raises(CheckpointError, match="pass trust=True"):
        Reader({}, trust=False).decode(encoded)
    assert torch.equal(Reader({}, trust=True).decode(encoded)[0], torch.ones(2))
