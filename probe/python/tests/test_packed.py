"""Decoded samples as bytes: the same again, or a refusal; broken ones are never a sample."""

import random
import struct
import zlib

import pytest
from collector import PACKAGE  # noqa: F401  where the package is

torch = pytest.importorskip("torch")
numpy = pytest.importorskip("numpy")

from stallscope.data.cache import encoding  # noqa: E402
from stallscope.data.cache.equality import alike  # noqa: E402


def made(draw, nesting=3):
    """Something that a decode may give, by chance."""
    shape = [draw.randrange(4) for _ in range(draw.randrange(4))]
    leaves = [
        lambda: draw.choice([None, True, False, 0, -1, 2**63, -(2**63), "", "text \ud800 \x00", b"", b"bytes"]),
        lambda: struct.unpack("<d", draw.randbytes(8))[0],
        lambda: bytearray(draw.randbytes(draw.randrange(80))),
        lambda: numpy.frombuffer(draw.randbytes(64), "u1")[: draw.randrange(64)].astype(draw.choice("bBhHiIlLfdFD?e")),
        lambda: numpy.ones(shape, draw.choice([">i2", "<f8"])).transpose(draw.sample(range(len(shape)), len(shape))),
        lambda: numpy.float32(draw.random()),
        lambda: torch.rand(shape).to(draw.choice([torch.float16, torch.bfloat16, torch.bool, torch.int8])),
        lambda: torch.rand(2, 3, 4).permute(draw.sample(range(3), 3)),
    ]
    if nesting == 0 or draw.random() < 0.4:
        return draw.choice(leaves)()
    parts = [made(draw, nesting - 1) for _ in range(draw.randrange(4))]
    return draw.choice([list, tuple, lambda parts: dict(zip(["name", 3, b"key", None], parts))])(parts)


def test_whatever_is_packed_is_the_same_again():
    draw = random.Random(1)
    for _ in range(300):
        sample = made(draw)
        data = encoding.pack(sample)
        again = encoding.unpack(bytearray(data))
        assert alike(sample, again), sample
        assert encoding.pack(again) == data, "to the last bit"


def test_what_comes_out_is_its_users_own_and_lies_as_before():
    array, tensor = numpy.arange(24.0).reshape(2, 3, 4).transpose(2, 0, 1), torch.rand(3, 5, 4).permute(2, 0, 1)
    array.flags.writeable = False
    data = encoding.pack((array, tensor))
    one, other = (encoding.unpack(bytearray(data)) for _ in range(2))
    assert one[0].strides == array.strides and one[1].stride() == tensor.stride()
    one[0][:], one[1][:] = -1, -1
    assert alike(other[0], array) and alike(other[1], tensor)


@pytest.mark.parametrize(
    "sample,why",
    [
        ({1, 2}, "it has a builtins.set"),
        (2**64, "more than 64 bits"),
        (numpy.arange(6)[::2], "bytes lie with gaps"),
        (numpy.arange(6)[::-1], "bytes lie with gaps"),
        (numpy.array(["text"]), "an array of"),
        (numpy.array([None]), "an array of object"),
        (numpy.ma.array([1]), "it has a numpy.ma"),
        (torch.zeros(2, requires_grad=True), "more than plain numbers"),
        (torch.zeros(2, 2).to_sparse(), "more than plain numbers"),
        (torch.nn.Parameter(torch.zeros(2)), "it has a torch.nn.parameter.Parameter"),
        ({(1, 2): 3}, "a tuple for a key"),
        ([[]] * 2, "the same list twice"),
        ([numpy.zeros(3)] * 2, "share memory"),
        ((lambda whole: [whole, whole[1:]])(torch.zeros(3)), "share memory"),
        ([0] * 5000, "too many parts"),
        ((lambda one: [one.append(one), one])([])[1], "the same list twice"),
    ],
)  # fmt: skip
def test_what_would_not_be_the_same_again_is_refused(sample, why):
    with pytest.raises(encoding.Unpackable, match=why):
        encoding.pack(sample)


def test_broken_bytes_are_no_sample():
    draw = random.Random(2)
    data = encoding.pack({"array": numpy.arange(50), "tensor": torch.arange(9), "label": 3, "bytes": bytearray(70)})
    for _ in range(3000):
        broken = bytearray(data)
        for _ in range(draw.randrange(1, 4)):
            kind, at = draw.randrange(4), draw.randrange(max(1, len(broken)))
            if kind == 0:
                broken[at : at + 1] = bytes([draw.randrange(256)])
            elif kind == 1:
                del broken[at : at + draw.randrange(1, 40)]
            elif kind == 2:
                broken[at:at] = draw.randbytes(draw.randrange(1, 40))
            else:
                del broken[at:]
        if broken != data:
            with pytest.raises(encoding.Broken):
                encoding.unpack(broken)


def with_sums(described, buffers=b""):
    """What `described` and `buffers` would be, were they one of ours."""
    size = 24 + len(described) + len(buffers)
    rest = struct.pack("<IQ", len(described), size) + described + buffers
    return bytearray(struct.pack("<4sHHI", b"SSdc", 1, 0, zlib.crc32(rest)) + rest)


def test_only_the_checksum_is_not_enough():
    assert encoding.unpack(with_sums(b"[\"list\",[1,true,null]]")) == [1, True, None]
    wrong = [
        b"", b"{}", b"[]", b"1.5", b"NaN", b'["?"]', b'["list"]', b'["list",1]', b'["list",[[]]]', b'["dict",[[1]]]',
        b'["dict",[[1,2],[1,3]]]', b'["dict",[[["list",[]],1]]]', b'["float",1.5]', b'["bytes",9]', b'["bytes",-1]',
        b'["bytes",true]', b'["bytes",99999999999999999999]', b'["numpy","O",[1],[0]]', b'["numpy","<f8",[2],[0]]',
        b'["numpy","<f8",[0],[1]]', b'["numpy","<f8",[-1,-1],[0,1]]', b'["numpy","<f8",[0,0],[0,0]]',
        b'["numpy",1,[],[]]',
        b'["numpy","<f8",[99999999999,99999999999],[0,1]]', b'["torch","device",[0],[0]]', b'["torch","float32",[1],[0]]',
        b'["scalar","<f8"]', b"[" * 100_000, b'["list",[' * 40 + b"]]" * 40, b"\xff", b"[[1],2]", b"[null]",
        b'["list",[' + b",".join([b"1"] * 5000) + b"]]",
    ]  # fmt: skip
    for described in wrong:
        with pytest.raises(encoding.Broken):
            encoding.unpack(with_sums(described))
    with pytest.raises(encoding.Broken, match="more bytes"):
        encoding.unpack(with_sums(b"1", b"more"))


def test_chance_descriptions_are_a_sample_or_broken():
    draw = random.Random(3)
    words = '"list" "tuple" "dict" "numpy" "torch" "<f4" "float32" "bytes" [ ] , 1 0 -1'.split()
    for _ in range(3000):
        described = "".join(draw.choice(words) for _ in range(draw.randrange(1, 14))).encode()
        try:
            encoding.unpack(with_sums(described, bytes(draw.randrange(70))))
        except encoding.Broken:
            pass
