"""Pictures that are decoded natively are those of torchvision's transforms, pixel by pixel and draw by draw; whatever the file, whatever reads it."""

import io
import pickle
import random

import pytest
from collector import PACKAGE  # noqa: F401  where the package is

torch = pytest.importorskip("torch")
pytest.importorskip("PIL")
pytest.importorskip("numpy")

import numpy  # noqa: E402
import pack_sets  # noqa: E402
from pack_sets import damage, packed  # noqa: E402
from PIL import Image  # noqa: E402

import stallscope  # noqa: E402

SIZE = 24
# Width, height, and how it is saved. Of sides that are no multiples of a block, of each subsampling, and with what else changes how rows are read.
KINDS = {
    "plain": ((97, 71), {}),
    "full-colour": ((64, 80), {"subsampling": 0}),
    "half-colour": ((111, 50), {"subsampling": 1}),
    "progressive": ((130, 99), {"progressive": True}),
    "tall": ((33, 150), {"quality": 95}),
    "wide": ((200, 17), {"quality": 30}),
    "tiny": ((3, 2), {}),
    "one": ((1, 1), {}),
    "same": ((SIZE, SIZE), {}),
    "large": ((400, 310), {"optimize": True}),
    "restarts": ((140, 120), {"restart_marker_blocks": 3}),
    "as-rgb": ((90, 60), {"keep_rgb": True}),
}


RESIZE = Image.Image.resize


def across_first(self, size, resample=None, box=None, reducing_gap=None):
    """Pillow's, across and then down for all sizes; from some version on it goes down first where a picture loses many more rows than columns."""
    left, top, right, bottom = box or (0, 0, *self.size)
    across = RESIZE(self, (size[0], self.height), resample, (left, 0, right, self.height))
    return RESIZE(across, size, resample, (0, top, size[0], bottom))


@pytest.fixture(autouse=True)
def pillow_goes_across_first(monkeypatch):
    monkeypatch.setattr(Image.Image, "resize", across_first)


def picture(size, seed):
    """Smooth, as photographs are, with some noise."""
    draw = numpy.random.default_rng(seed)
    coarse = Image.fromarray(draw.integers(0, 256, (5, 7, 3), dtype=numpy.uint8)).resize(size, Image.Resampling.BICUBIC)
    noise = draw.integers(-12, 13, (size[1], size[0], 3))
    return Image.fromarray((numpy.asarray(coarse, dtype=int) + noise).clip(0, 255).astype("u1"))


def jpeg(size=(90, 70), seed=0, mode="RGB", **how):
    file = io.BytesIO()
    picture(size, seed).convert(mode).save(file, "JPEG", **how)
    return file.getvalue()


def write(folder, files):
    for number, (name, data) in enumerate(files.items()):
        path = folder / f"class{number % 3}" / f"{name}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return folder


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("STALLSCOPE_RUNTIME_DIR", str(tmp_path / "run"))
    files = {name: jpeg(size, number, **how) for number, (name, (size, how)) in enumerate(KINDS.items())}
    files["grey"] = jpeg((80, 75), 20, "L")
    files["four-colours"] = jpeg((70, 60), 21, "CMYK")
    return write(tmp_path / "set", files)


def theirs(folder, crop="random", size=SIZE, **given):
    """torchvision's data set of the folder, with the transforms that these arguments stand for."""
    transforms = pytest.importorskip("torchvision.transforms")
    from torchvision.datasets import ImageFolder

    flip = given.pop("flip", 0.5 if crop == "random" else 0)
    if crop == "random":
        steps = [transforms.RandomResizedCrop(size, **given)]
    else:
        steps = [transforms.Resize(given.pop("resize", size * 256 // 224)), transforms.CenterCrop(size)]
    steps += [transforms.RandomHorizontalFlip(flip)] if flip else []
    return ImageFolder(folder, transforms.Compose([*steps, transforms.PILToTensor()]))


def ours(folder, crop="random", **given):
    return stallscope.PackedImages(packed(folder), size=given.pop("size", SIZE), crop=crop, **given)


def same(one, other):
    return len(one) == len(other) and all(torch.equal(a[0], b[0]) and torch.equal(torch.as_tensor(a[1]), torch.as_tensor(b[1])) for a, b in zip(one, other))


@pytest.mark.parametrize(
    "given", [{}, {"flip": 0}, {"scale": (0.5, 0.9), "ratio": (1.0, 2.0)}, {"crop": "center"}, {"crop": "center", "resize": 61, "flip": 0.3}]
)
@pytest.mark.parametrize("threads", [1, 3])
def test_samples_are_torchvisions(folder, given, threads):
    expected, dataset = theirs(folder, **given), ours(folder, threads=threads, **given)
    assert dataset.classes == expected.classes and len(dataset) == len(expected)
    # Several epochs, as crops are of every part.
    for seed in range(12):
        torch.manual_seed(seed)
        by_torchvision = [expected[index] for index in range(len(expected))]
        after = torch.get_rng_state()
        torch.manual_seed(seed)
        batch = dataset.__getitems__(range(len(dataset)))
        assert torch.equal(torch.get_rng_state(), after)
        names = [path for path, _ in dataset.samples]
        different = [name for name, a, b in zip(names, batch, by_torchvision) if not torch.equal(a[0], b[0]) or a[1] != b[1]]
        assert not different, (seed, different)
    torch.manual_seed(3)
    alone = [dataset[index] for index in range(len(dataset))]
    torch.manual_seed(3)
    assert same(alone, dataset.__getitems__(range(len(dataset))))


def test_where_pillow_goes_down_first_it_is_off_by_one_level(tmp_path, monkeypatch):
    folder = write(tmp_path / "set", {f"{number}": jpeg((40 + 9 * number, 230 - 15 * number), number) for number in range(12)})
    dataset, expected = ours(folder), theirs(folder)
    monkeypatch.setattr(Image.Image, "resize", RESIZE)
    for seed in range(8):
        torch.manual_seed(seed)
        by_torchvision = [expected[index][0] for index in range(len(expected))]
        torch.manual_seed(seed)
        batch = dataset.__getitems__(range(len(dataset)))
        torch.manual_seed(seed)
        cut_of = dataset.cut.drawer()
        cuts = [cut_of(*Image.open(f"{folder}/{path.removeprefix(dataset.root)}").size) for path, _ in dataset.samples]
        for (sample, _), other, (_, _, width, height, *_) in zip(batch, by_torchvision, cuts):
            apart = (sample.int() - other.int()).abs().max()
            assert apart <= (1 if height - SIZE > 2 * (width - SIZE) else 0), (width, height)


def test_a_size_may_have_two_sides(folder):
    expected, dataset = theirs(folder, size=(20, 31)), ours(folder, size=(20, 31))
    torch.manual_seed(1)
    by_torchvision = [expected[index] for index in range(len(expected))]
    torch.manual_seed(1)
    assert same(dataset.__getitems__(range(len(dataset))), by_torchvision)


def by_draft(data, cut):
    """By Pillow, decoded at the size at which it may be."""
    left, top, width, height, to_width, to_height, at_left, at_top, flip = cut
    divisor = next((one for one in (8, 4, 2) if width // one >= to_width and height // one >= to_height), 1)
    image = Image.open(io.BytesIO(data))
    if divisor == 1:
        image = image.convert("RGB").crop((left, top, left + width, top + height)).resize((to_width, to_height), Image.Resampling.BILINEAR)
    else:
        image.draft("RGB", (image.width // divisor, image.height // divisor))
        ends = [min((left + width) / divisor, image.width), min((top + height) / divisor, image.height)]
        image = image.convert("RGB").resize((to_width, to_height), Image.Resampling.BILINEAR, box=(left / divisor, top / divisor, *ends))
    image = image.crop((at_left, at_top, at_left + SIZE, at_top + SIZE))
    image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if flip else image
    return torch.from_numpy(numpy.asarray(image).copy()).permute(2, 0, 1)


@pytest.mark.parametrize("crop", ["random", "center"])
def test_scaled_it_is_what_pillows_draft_gives_and_near_to_all_of_it(tmp_path, crop):
    kinds = ({}, {"subsampling": 0}, {"subsampling": 1}, {"progressive": True})
    files = {f"{number}": jpeg((400 + 31 * number, 333 + 17 * number), number, **kinds[number % 4]) for number in range(12)}
    folder = write(tmp_path / "set", files)
    dataset, exact = ours(folder, crop, scaled=True), ours(folder, crop)
    data = [files[path.rpartition("/")[2][: -len(".jpg")]] for path, _ in dataset.samples]
    for seed in range(8):
        torch.manual_seed(seed)
        batch = dataset.__getitems__(range(len(dataset)))
        torch.manual_seed(seed)
        cut_of = dataset.cut.drawer()
        cuts = [cut_of(*Image.open(io.BytesIO(one)).size) for one in data]
        assert all(torch.equal(sample, by_draft(one, cut)) for (sample, _), one, cut in zip(batch, data, cuts))
        torch.manual_seed(seed)
        whole = exact.__getitems__(range(len(exact)))
        apart = [(sample.float() - other.float()).abs().mean() for (sample, _), (other, _) in zip(batch, whole)]
        assert 0 < max(apart) < 4, apart


@pytest.mark.parametrize("kind", ["torch", "stallscope"])
@pytest.mark.parametrize("workers", [0, "fork", "spawn"])
def test_loaders_give_the_same_batches_without_a_copy(folder, kind, workers):
    dataset = ours(folder, "center")
    expected = [dataset[index] for index in range(len(dataset))]
    made = {"torch": torch.utils.data.DataLoader, "stallscope": stallscope.DataLoader}[kind]
    more = {"num_workers": 2, "multiprocessing_context": workers} if workers else {}
    got = [*made(dataset, batch_size=4, **more)]
    assert [tuple(pictures.shape) for pictures, _ in got] == [(4, 3, SIZE, SIZE)] * 3 + [(2, 3, SIZE, SIZE)]
    pairs = [pair for pictures, targets in got for pair in zip(pictures, targets)]
    assert same(pairs, expected)


def test_a_batch_is_its_samples_memory(folder):
    dataset = ours(folder)
    samples = dataset.__getitems__([3, 1, 2])
    pictures, targets = torch.utils.data.default_collate(samples)
    assert pictures.data_ptr() == samples[0][0].data_ptr() and pictures.shape == (3, 3, SIZE, SIZE)
    assert targets.tolist() == [dataset.targets[index] for index in (3, 1, 2)]
    # Of others, or in another order, it is a copy.
    for chosen in (samples[:2], samples[::-1], [samples[0], *dataset.__getitems__([1, 2])]):
        pictures, _ = torch.utils.data.default_collate(chosen)
        assert torch.equal(pictures, torch.stack([sample for sample, _ in chosen]))
        assert pictures.data_ptr() != samples[0][0].data_ptr()


@pytest.mark.parametrize("workers", [0, 2])
def test_random_batches_are_torchs(folder, workers):
    def epochs(dataset):
        torch.manual_seed(7)
        loader = torch.utils.data.DataLoader(dataset, batch_size=5, shuffle=True, num_workers=workers)
        return [batch for _ in range(3) for batch in loader]

    assert same(epochs(ours(folder)), epochs(theirs(folder)))


def test_samples_that_a_subclass_or_a_wrapper_changes_are_its_own(folder):
    class Relabelled(stallscope.PackedImages):
        def __getitem__(self, index):
            picture, target = super().__getitem__(index)
            return picture, target + 100

    class InBatches(Relabelled):
        def __getitems__(self, indices):
            return [(picture, target + 200) for picture, target in super(Relabelled, self).__getitems__(indices)]

    class Wrapping:
        def __init__(self, *given, **more):
            self.inner = stallscope.PackedImages(*given, **more)

        def __len__(self):
            return len(self.inner)

        def __getitem__(self, index):
            picture, target = self.inner[index]
            return picture, target + 300

        def __getattr__(self, name):
            return getattr(self.inner, name)

    for kind, more in ((Relabelled, 100), (InBatches, 200), (Wrapping, 300)):
        dataset = kind(packed(folder), size=SIZE)
        expected = [target + more for target in dataset.targets]
        for one in (dataset, torch.utils.data.Subset(dataset, range(len(dataset)))):
            for loader in (torch.utils.data.DataLoader, stallscope.DataLoader):
                assert [target for _, targets in loader(one, batch_size=4) for target in targets.tolist()] == expected


@pytest.mark.parametrize("workers", [0, 2])
def test_a_cache_keeps_what_is_encoded(folder, workers, recwarn):
    dataset = ours(folder, "center")
    expected = [dataset[index] for index in range(len(dataset))]
    loader = stallscope.DataLoader(dataset, batch_size=None, num_workers=workers, cache="16MiB")
    for _ in range(2):
        assert same(list(loader), expected)
    figures = loader.cache_figures()
    batches = stallscope.DataLoader(dataset, batch_size=4, num_workers=workers, cache="16MiB")
    assert same([pair for pictures, targets in batches for pair in zip(pictures, targets)], expected)
    del loader, batches
    assert figures["kept"] == "encoded" and figures["hits"] == len(dataset) == figures["misses"]
    assert [str(one.message) for one in recwarn if "stallscope" in str(one.message)] == []


def test_chunks_that_are_read_ahead_are_decoded(folder):
    dataset = ours(folder, "center")
    expected = [dataset[index] for index in range(len(dataset))]
    loader = stallscope.DataLoader(dataset, batch_size=4, shuffle=stallscope.Shuffle(memory="64MiB"))
    got = [pair for pictures, targets in loader for pair in zip(pictures, targets)]
    assert len(got) == len(expected)
    assert all(any(torch.equal(one, other) for other, _ in expected) for one, _ in got)


def test_other_formats_are_pillows(tmp_path):
    folder = pack_sets.fill(tmp_path / "set")
    torch.manual_seed(2)
    dataset = ours(folder)
    batch = dataset.__getitems__(range(len(dataset)))
    expected = theirs(folder)
    torch.manual_seed(2)
    assert same(batch, [expected[index] for index in range(len(expected))])


def test_a_camera_that_lay_on_its_side_is_not_looked_at(tmp_path):
    turned = Image.Exif()
    turned[0x0112] = 6
    folder = write(tmp_path / "set", {"turned": jpeg((90, 40), exif=turned), "b": jpeg(), "c": jpeg()})
    assert same([ours(folder, "center")[0]], [theirs(folder, "center")[0]])


def broken():
    good = jpeg((200, 150), quality=90)
    flipped = bytearray(good)
    for at in range(len(good) // 2, len(good) // 2 + 40):
        flipped[at] ^= 0x5A
    size = good.index(b"\xff\xc0") + 5
    huge = good[:size] + (30_000).to_bytes(2, "big") * 2 + good[size + 4 :]
    return {
        "cut": good[: len(good) // 2],
        "without-end": good[:-2],
        "header-alone": good[:200],
        "empty": b"",
        "text": b"not a picture",
        "damaged": bytes(flipped),
        "much-behind": good + b"\0" * 5000,
        "no-pixels": good[:size] + bytes(4) + good[size + 4 :],
        "bomb": huge,
        "bytes-between": good.replace(b"\xff\xda", b"\0\0\0\xff\xda", 1),
    }


@pytest.mark.parametrize("name", broken())
def test_a_broken_picture_is_what_pillow_makes_of_it_or_an_error_that_names_it(tmp_path, name):
    folder = write(tmp_path / "set", {name: broken()[name], "b": jpeg(), "c": jpeg()})
    dataset = ours(folder, "center")
    try:
        expected = theirs(folder, "center")[0]
    except Exception:
        with pytest.raises(stallscope.PackError, match=rf"^{folder}.pack: the picture class0/{name}.jpg cannot be decoded: .*[^.\n]$"):
            dataset[0]
        # Wherever the crop is.
        anywhere = ours(folder, scale=(0.01, 0.1))
        for _ in range(30):
            with pytest.raises(stallscope.PackError, match=f"class0/{name}.jpg"):
                anywhere[0]
        loader = torch.utils.data.DataLoader(dataset, batch_size=3, num_workers=1)
        with pytest.raises(stallscope.PackError, match=f"class0/{name}.jpg"):
            list(loader)
    else:
        assert same([dataset[0]], [expected])
    # The others are there.
    assert same([dataset[1]], [theirs(folder, "center")[1]])


@pytest.mark.parametrize("name", broken())
@pytest.mark.parametrize("target_transform", [None, lambda label: label + torch.rand(1).item()], ids=["", "of-targets"])
def test_who_goes_on_after_a_broken_picture_draws_what_torchvision_would_have(tmp_path, name, target_transform):
    folder = write(tmp_path / "set", {"a": jpeg(), name: broken()[name], "z": jpeg(), "b": jpeg(), "c": jpeg(), "zz": broken()["text"]})
    expected, dataset = theirs(folder), ours(folder)
    expected.target_transform = dataset.target_transform = target_transform

    def drawn(take, errors):
        torch.manual_seed(7)
        with pytest.raises(errors):
            take()
        return torch.get_rng_state()

    by_torchvision = drawn(lambda: [expected[index] for index in range(6)], Exception)
    assert torch.equal(drawn(lambda: dataset.__getitems__(range(6)), stallscope.PackError), by_torchvision)


def test_sides_as_long_as_a_jpeg_has_them(tmp_path):
    folder = write(tmp_path / "set", {"wide": jpeg((16_384, 20)), "tall": jpeg((9, 16_384)), "c": jpeg()})
    for given in ({"crop": "center"}, {}):
        expected, dataset = theirs(folder, **given), ours(folder, **given)
        torch.manual_seed(4)
        by_torchvision = [expected[index] for index in range(3)]
        torch.manual_seed(4)
        assert same(dataset.__getitems__(range(3)), by_torchvision)


def test_any_flipped_byte_gives_pillows_picture_or_its_error(tmp_path):
    good, draw = jpeg((60, 50), 5), random.Random(1)
    files = {}
    for number in range(150):
        data = bytearray(good)
        for _ in range(draw.choice((1, 1, 3, 30))):
            data[draw.randrange(len(data))] = draw.randrange(256)
        files[f"{number:03}"] = bytes(data)
    folder = write(tmp_path / "set", files)
    expected, dataset = theirs(folder, "center"), ours(folder, "center")
    for index in range(len(dataset)):
        try:
            sample = expected[index]
        except Exception:
            with pytest.raises(stallscope.PackError, match="cannot be decoded"):
                dataset[index]
        else:
            assert same([dataset[index]], [sample]), dataset.samples[index]


def test_damaged_bytes_are_never_a_sample(folder):
    pack = packed(folder)
    damage(pack, "class0/plain.jpg")
    dataset = stallscope.PackedImages(pack, size=SIZE, threads=2)
    bad = [path.endswith("class0/plain.jpg") for path, _ in dataset.samples].index(True)
    with pytest.raises(stallscope.PackError, match="record class0/plain.jpg does not hold what was packed"):
        dataset.__getitems__(range(len(dataset)))
    assert len(dataset.__getitems__([index for index in range(len(dataset)) if index != bad])) == len(dataset) - 1


def test_pickled_it_is_a_path_and_its_arguments(folder):
    dataset = ours(folder, "center", target_transform=pack_sets.plus_100)
    expected = [dataset[index] for index in range(3)]
    assert expected[0][1] == 100
    data = pickle.dumps(dataset)
    assert len(data) < 2000 and same([pickle.loads(data)[index] for index in range(3)], expected)
    # A sample alone is a pair, not its batch.
    assert type(pickle.loads(pickle.dumps(dataset[0]))) is tuple


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"size": 0}, "size=0 has to be a whole number of 1 to 16384 pixels"), ({"size": (1, 2, 3)}, "height and width"), ({"size": 2.5}, "size=2.5"),
        ({"crop": "middle"}, "\"random\" or \"center\""), ({"flip": 2}, "flip=2 is a probability"), ({"threads": 0}, "threads=0"),
        ({"scale": (0.5, 1.5)}, "scale=.* at most 1"), ({"ratio": (2, 1)}, "ratio=.* the least first"), ({"resize": 30}, "resize= is of crop=\"center\""),
        ({"crop": "center", "resize": 20}, "resize=20 has to be a whole number of 24"),
    ],
)  # fmt: skip
def test_what_is_out_of_range_is_refused(folder, given, sentence):
    with pytest.raises(ValueError, match=f"^PackedImages: .*{sentence}"):
        stallscope.PackedImages(packed(folder), **{"size": SIZE, **given})
