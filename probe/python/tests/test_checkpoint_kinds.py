"""Which kinds of state a checkpoint keeps as data, what it says of the others, and whose folder it is."""

import argparse
import collections
import datetime
import decimal
import enum
import fractions
import os
import pathlib
import sys
import types
import uuid
import warnings

import pytest
from collector import PACKAGE  # noqa: F401, which puts the staged package on the path
from unwarned import unwarned

torch = pytest.importorskip("torch", reason="SKIPPED: this Python has no torch")

from test_checkpoint_state import again  # noqa: E402

from stallscope import Checkpointer, CheckpointError  # noqa: E402
from stallscope.checkpoint.tree import Reader, Writer  # noqa: E402


class Colour(enum.IntEnum):
    RED = 1
    BLUE = 2


class Parts(enum.Flag):
    HEAD = 1
    TAIL = 2


Point = collections.namedtuple("Point", "x y")

ZONE = datetime.timezone(datetime.timedelta(hours=2))
KINDS = [
    collections.defaultdict(list, {"a": [1]}),
    collections.defaultdict(None, {1: 2}),
    collections.Counter("abba"),
    collections.deque([1, (2,)], maxlen=5),
    bytearray(b"\x00x"),
    1 + 2j,
    range(1, 9, 2),
    slice(None, 3),
    datetime.datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=ZONE),
    datetime.datetime(2026, 1, 2, fold=1),
    datetime.date(2026, 1, 2),
    datetime.time(3, 4),
    datetime.timedelta(days=-1, microseconds=3),
    decimal.Decimal("1.10"),
    fractions.Fraction(1, 3),
    uuid.UUID(int=7),
    types.SimpleNamespace(a=1),
    argparse.Namespace(rate=0.1, path=pathlib.Path("x")),
    pathlib.Path("a/b"),
    pathlib.PureWindowsPath("c:/x"),
    Colour.BLUE,
    Parts.HEAD | Parts.TAIL,
    Point(1, {"y": 2}),
    {Colour.RED: "keyed"},
]


@pytest.mark.parametrize("value", KINDS, ids=lambda value: type(value).__name__)
def test_what_states_are_made_of_comes_back_without_trust(value):
    back = again({"it": value})["it"]
    assert back == value and type(back) is type(value)
    for name in ("default_factory", "maxlen", "fold", "tzinfo"):
        assert getattr(back, name, None) == getattr(value, name, None)


def test_numpys_strings_and_dates_come_back():
    numpy = pytest.importorskip("numpy", reason="SKIPPED: there is no numpy")
    values = [
        numpy.array([["ä", "bc"]]),
        numpy.array([b"x\xff", b""]),
        numpy.str_("one"),
        numpy.bytes_(b"two"),
        numpy.array(["2026-01-02", "NaT"], dtype="datetime64[D]"),
        numpy.timedelta64(3, "s"),
        numpy.complex64(1 - 2j),
        numpy.complex128(float("inf")),
    ]
    for before, after in zip(values, again(values)):
        assert type(before) is type(after) and before.dtype == after.dtype
        assert numpy.array_equal(before.view("i8"), after.view("i8")) if before.dtype.kind in "mM" else numpy.array_equal(before, after)


def test_a_few_bytes_of_a_checkpoint_take_no_gigabytes():
    pytest.importorskip("numpy", reason="SKIPPED: there is no numpy")
    for items in (["a"], [["a"]]):
        with pytest.raises(CheckpointError):
            Reader({}, trust=False).decode({"strings": ["<U500000000", [1], items, False]})
    # One tensor that is named again and again with the strides that it has.
    tensor = torch.rand(6).reshape(2, 3)
    turned = {"tensor": "it", "stride": [1, 2]}
    back = Reader({"it": tensor}, trust=False).decode([turned] * 40)
    assert len({one.data_ptr() for one in back}) == 1 and torch.equal(back[0], tensor) and back[0].stride() == (1, 2)
    # And so where tensors may stay unread until they are copied: not what is made of them.
    back = Reader({"it": tensor}, trust=False, unread=True).decode([{"numpy": turned}] * 40)
    assert len({one.__array_interface__["data"][0] for one in back}) == 1 and back[0].tolist() == tensor.tolist()


def test_what_a_checkpoint_calls_something_writes_no_more_than_text_to_a_terminal(tmp_path, capfd):
    with Checkpointer(tmp_path, model=torch.nn.Linear(2, 2), signals=(), **{"\x1b[2J\u202eall is well\n": torch.nn.Linear(2, 2)}) as one:
        one.save(wait=True)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        with Checkpointer(tmp_path, model=torch.nn.Linear(2, 2), signals=()) as one:
            one.restore()
        with pytest.raises(CheckpointError) as refused:
            Checkpointer(tmp_path, model=torch.nn.Linear(2, 2), more=torch.nn.Linear(2, 2), signals=()).restore()
    shown = [str(refused.value), *(str(one.message) for one in warned), *capfd.readouterr().err.splitlines()]
    assert any("all is well" in one for one in shown) and all(one.isprintable() for one in shown), shown


def test_a_generator_goes_on_where_it_was():
    generator = torch.Generator().manual_seed(3)
    torch.rand(5, generator=generator)
    back = again({"own": generator})["own"]
    assert torch.equal(torch.rand(9, generator=back), torch.rand(9, generator=generator))


def test_tensors_within_them_are_saved_as_tensors():
    writer = Writer()
    value = Point(torch.rand(3), collections.deque([torch.rand(2)]))
    writer.encode({"a": value, "b": collections.defaultdict(list, {"c": [torch.rand(4)]})}, "user")
    assert list(writer.tensors) == ["user/a/x", "user/a/y/0", "user/b/c/0"]


def test_no_class_that_a_checkpoint_names_is_imported_or_called():
    called = []

    class Named(tuple):
        _fields = ("x",)

        def __new__(cls, *values):
            called.append(values)
            return tuple.__new__(cls, values)

    globals()["Named"] = Named
    Named.__qualname__ = "Named"
    read = Reader({}, False).decode
    assert read({"namedtuple": [__name__, "Named", [1]]}) == (1,) and not called
    for body in (["antigravity", "X", [1]], ["os", "system", ["true"]], [__name__, "Colour", [1]], [__name__, "Point", [1]]):
        with pytest.raises(CheckpointError):
            read({"namedtuple": body})
    for body in (["antigravity", "X", "A"], ["subprocess", "Popen", "true"], [__name__, "Colour", "GREEN"], [__name__, "Colour", 1]):
        with pytest.raises(CheckpointError):
            read({"enum": body})
    with pytest.raises(CheckpointError):
        read({"defaultdict": ["eval", []]})
    assert "antigravity" not in sys.modules


class Tokens:
    """A class of the user's that says nothing of its state."""


class Other(Tokens):
    pass


def test_what_takes_trust_is_named_before_training_and_not_when_it_is_restored(tmp_path):
    with pytest.warns(RuntimeWarning, match=r"state/tokens is a .*Tokens, which restore\(\) takes with trust=True alone"):
        Checkpointer(tmp_path / "a", state={"tokens": Tokens()}).close()
    with pytest.warns(RuntimeWarning) as outcome:
        Checkpointer(tmp_path / "two", state={"tokens": Tokens(), "more": Tokens(), "other": Other()}).close()
    assert ["Tokens" in str(one.message) for one in outcome] == [True, False], "each kind once"
    with unwarned():
        Checkpointer(tmp_path / "b", state={"tokens": Tokens()}, trust=True).close()
        Checkpointer(tmp_path / "c", state={"point": Point(1, 2)}).close()


def test_another_state_is_the_one_that_is_saved(tmp_path):
    with Checkpointer(tmp_path, state={"best": 1}) as checkpointer:
        checkpointer.state = {"best": 2}
        checkpointer.save(wait=True)
    state = {}
    with Checkpointer(tmp_path, state=state) as checkpointer:
        checkpointer.restore()
    assert state == {"best": 2}


def test_a_folder_belongs_to_one_job(tmp_path):
    def checkpointer(model, **objects):
        return Checkpointer(tmp_path, model=model, **objects)

    with checkpointer(torch.nn.Linear(3, 2)) as first:
        first.save(wait=True)
    before = sorted(os.listdir(tmp_path / first._saved_name))
    for other, why in (
        (torch.nn.Linear(3, 4), r"model/weight is \[2, 3\] in step-000000000 and \[4, 3\] here"),
        (torch.nn.Linear(3, 2, bias=False), "lacks nothing and has model/bias besides"),
        (torch.nn.Sequential(torch.nn.Linear(3, 2)), "lacks model/0.weight, model/0.bias and has model/weight, model/bias besides"),
    ):
        with pytest.raises(CheckpointError, match=f"has checkpoints of another job: .*{why}; name another folder"):
            checkpointer(other)
    with pytest.raises(CheckpointError, match="step-000000000 has model and here is net"):
        Checkpointer(tmp_path, net=torch.nn.Linear(3, 2))
    assert sorted(os.listdir(tmp_path / first._saved_name)) == before
    # The same job with more to keep goes on.
    model = torch.nn.Linear(3, 2)
    with checkpointer(model, optimizer=torch.optim.SGD(model.parameters(), 0.1)) as again:
        again.save(wait=True)


def test_whatever_lies_there_as_latest_is_no_trouble(tmp_path):
    os.mkfifo(tmp_path / "latest")
    Checkpointer(tmp_path, model=torch.nn.Linear(3, 2)).close()
    for number, text in enumerate(("step-000000007", "../../x", "\xff")):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "latest").write_text(text, encoding="latin-1")
        Checkpointer(folder, model=torch.nn.Linear(3, 2)).close()
