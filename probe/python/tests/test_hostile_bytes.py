"""Bytes from elsewhere that Python parses: the state of a checkpoint, and decoded samples from the pool. Whatever is in them, they
are read or refused with an error of ours, soon, and with little memory.

Seeded: what was seen to fail once is among `HOSTILE` and `WRONG`, and a run is the same each time.
"""

import collections
import copy
import datetime
import decimal
import fractions
import json
import pathlib
import random
import resource
import struct
import subprocess
import sys
import zlib

import pytest

CASES = 3000
MEMORY_BYTES, LIMIT_S = 512 << 20, 60

# Numbers, names and texts that somebody may have put in the place of others.
HOSTILE = [
    None, True, -1, 0, 2**31, 2**40, 2**63, 2**64, 10**400, -(2**62), 1e308, "", "\0", "a" * 5000, "1e999999999", "1/0", "nan",
    "O", "V2000000000", "S2000000000", "cuda:99", "meta", "load", "__class__", "os.system", "9999-99-99", [], [[]], {}, {"dict": {}},
    {"pickle": ""}, {"pickle": "gASVIAAAAAAAAACMBXBvc2l4lIwGc3lzdGVtlJOUjARlY2hvlIWUUpQu"}, {"tensor": "a", "stride": [2**40, 1]},
    {"tensor": "a", "stride": [-1, 1]}, {"tensor": "nowhere"}, {"enum": ["os", "system", "x"]}, {"namedtuple": ["os", "stat_result", []]},
    {"fraction": "1e999999999"}, {"decimal": "1e999999999"}, {"range": [0, 2**60, 1]}, {"scalar": ["O", "AAAAAAAAAAA="]}, {"generator": ["cuda", 1]},
    {"module": [1, 2]}, {"set": [[]]}, {"pairs": [[[], 1]]}, {"deque": [2**40, []]}, {"strings": ["<U2000000000", [2**40], ""]}, {"size": [-1]},
]  # fmt: skip


def mutated(tree, random):
    """A copy of `tree` in which some nodes are replaced, doubled, left out or called otherwise."""
    tree = copy.deepcopy(tree)
    places = []

    def walk(node):
        for key in node if isinstance(node, dict) else range(len(node)):
            places.append((node, key))
            if isinstance(node[key], (dict, list)):
                walk(node[key])

    walk(tree)
    for _ in range(random.randrange(1, 4)):
        node, key = random.choice(places)
        deed = random.randrange(5)
        other, name = random.choice(places)
        try:
            if deed == 0:
                node[key] = copy.deepcopy(random.choice(HOSTILE))
            elif deed == 1:
                node[key] = copy.deepcopy(other[name])
            elif deed == 2:
                del node[key]
            elif isinstance(node, dict):
                node[random.choice([name, "tensor", "stride", "numpy", "pickle", "times", "fraction"])] = node.pop(key)
            else:
                node.insert(key, copy.deepcopy(random.choice(HOSTILE)))
        except (KeyError, IndexError, TypeError):
            pass
    return tree


def parse_states(seed):
    import torch

    from stallscope.checkpoint.errors import CheckpointError
    from stallscope.checkpoint.tree import Reader, Writer, from_bytes, to_bytes

    state = {
        "a": torch.arange(6.0).reshape(2, 3).t(),
        "list": [1, 2.5, None, "text", b"bytes", (1, {"deep": [True]})],
        "ordered": collections.OrderedDict([(1, torch.ones(2)), ("two", 3)]),
        "kinds": [
            collections.defaultdict(list, a=[1]), collections.Counter("aab"), collections.deque([1, 2], 5), bytearray(b"x"), 1 + 2j, range(3),
            slice(1, 2), datetime.datetime(2026, 1, 1), datetime.timedelta(1), decimal.Decimal("1.5"), fractions.Fraction(1, 3),
            pathlib.Path("a"), {1, 2}, frozenset({3}), torch.Size([1, 2]), torch.float16, torch.device("cpu"), torch.Generator(),
        ],
    }  # fmt: skip
    try:
        import numpy

        state["numpy"] = [numpy.arange(3), numpy.float32(1.5), numpy.array(["a", "bc"]), numpy.datetime64("2026-01-01")]
    except ImportError:
        pass
    writer, moments = Writer(), random.Random(seed)
    encoded = json.loads(to_bytes(writer.encode(state, "state")))
    tensors = {**writer.tensors, "a": torch.arange(6.0)}
    refused = 0
    for case in range(CASES):
        outcome = mutated(encoded, moments)
        try:
            Reader(tensors, False).decode(from_bytes(to_bytes(outcome)))
        except CheckpointError:
            refused += 1
        except BaseException as error:
            raise AssertionError(f"case {case}: {type(error).__name__}: {error}: {json.dumps(outcome)[:2000]}") from error
    for wrong in [b"", b"{", b"\xff", b"[" * 100_000, b'{"a":' * 100_000, b"1" * 10_000]:
        try:
            Reader(tensors, False).decode(from_bytes(wrong))
        except CheckpointError:
            refused += 1
    return refused


def multiply(_):
    """A few bytes that name what is stored again and again must not take its size each time."""
    import torch

    from stallscope.checkpoint.errors import CheckpointError
    from stallscope.checkpoint.tree import Reader

    size = 4 << 20
    tensors = {"a": torch.zeros([2] * 22, dtype=torch.uint8), "b": torch.zeros(size, dtype=torch.uint8)}
    strides = [1 << place for place in range(22)]
    # 22! orders, each of 4 MiB.
    orders = [{"tensor": "a", "stride": strides[turn:] + strides[:turn]} for turn in range(1, 22)]
    orders += [{"tensor": "a", "stride": (one["stride"])[::-1]} for one in orders]
    orders += [{"tensor": "a", "stride": [one["stride"][1], one["stride"][0], *one["stride"][2:]]} for one in orders]
    orders += [{"tensor": "a", "stride": [*one["stride"][:-2], one["stride"][-1], one["stride"][-2]]} for one in orders]
    quantised = [{"special": ["quantised", [{"tensor": "b"}], 1.0 + number, 0]} for number in range(1000)]
    strings = [{"strings": ["<U16384", [1], [""], False]}] * 20_000
    tensors["g"] = torch.Generator().get_state()
    generators = [{"generator": ["cpu", {"tensor": "g"}]}] * 200_000
    refused = 0
    for state, its in [(orders, tensors), (quantised, tensors), (strings, tensors), (generators, {"g": tensors["g"]})]:
        try:
            Reader(its, False).decode(state)
        except CheckpointError as error:
            # Not as there was no more memory.
            assert "another program made it" in str(error), error
            refused += 1
    assert refused == 4
    # What is saved so is read so: in one order, and of as many as there are.
    Reader(tensors, False).decode([orders[0]] * 1000 + [quantised[0]] * 1000 + quantised[:10] + strings[:1000] + generators[:10])
    return CASES


def parse_samples(seed):
    import torch

    from stallscope.data.cache import encoding

    moments = random.Random(seed)
    sample = (torch.arange(12).reshape(3, 4).t(), {"a": [1, 2.5, b"xyz"], 2: (None, bytearray(b"q"))}, torch.ones(2))
    whole = encoding.pack(sample)
    head, sizes = struct.Struct("<4sHHI"), struct.Struct("<IQ")
    described, _ = sizes.unpack_from(whole, head.size)
    begin = head.size + sizes.size
    node, rest = json.loads(whole[begin : begin + described]), whole[begin + described :]
    magic, version, zero, _ = head.unpack_from(whole)
    refused = 0
    for case in range(CASES):
        text = json.dumps(mutated({"sample": node}, moments).get("sample")).encode()
        data = bytearray(rest)
        if data and moments.random() < 0.3:
            del data[moments.randrange(len(data)) :]
        # Its checksum is right: every writer of the pool can make one.
        outcome = sizes.pack(len(text), begin + len(text) + len(data)) + text + data
        try:
            encoding.unpack(bytearray(head.pack(magic, version, zero, zlib.crc32(outcome)) + outcome))
        except encoding.Broken:
            refused += 1
        except BaseException as error:
            raise AssertionError(f"case {case}: {type(error).__name__}: {error}: {text[:2000]}") from error
    for _ in range(CASES):
        data = bytearray(whole)
        for _ in range(moments.randrange(1, 4)):
            data[moments.randrange(len(data))] = moments.randrange(256)
        try:
            encoding.unpack(data)
        except encoding.Broken:
            refused += 1
    return refused


@pytest.mark.parametrize("parser", ["parse_states", "parse_samples", "multiply"])
def test_whatever_the_bytes_are_they_are_read_or_refused(parser):
    from collector import PACKAGE, environment

    command = [sys.executable, __file__, parser]
    done = subprocess.run(
        command, env=environment(None, PYTHONPATH=str(PACKAGE)), capture_output=True, text=True, timeout=LIMIT_S * 5
    )
    assert done.returncode == 0, done.stderr[-3000:]
    refused = int(done.stdout)
    assert refused > CASES // 4, "most of them have to be looked at in vain"


def main():
    import torch  # noqa: F401  Before the limit: what it maps is no matter.

    used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY_BYTES,) * 2)
    resource.setrlimit(resource.RLIMIT_CPU, (LIMIT_S, LIMIT_S))
    print(globals()[sys.argv[1]](int(sys.argv[2]) if len(sys.argv) > 2 else 1))


if __name__ == "__main__":
    main()
