"""Define the named data sets: their files, readers and citations."""

from __future__ import annotations

import dataclasses
import hashlib
import zlib
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np

from recmix.data.checks import check_examples
from recmix.data.examples import Array, ArrayExamples, Examples
from recmix.data.file_images import FileImages, ImageFolder, check_no_resize, check_resize
from recmix.data.formats import read_amat, read_bytes, read_cifar, read_idx, read_mat
from recmix.data.set_files import (
    DataFile,
    Entry,
    NamedSet,
    Parts,
    TextParts,
    data_root,
    entry_of,
    find_or_download,
)
from recmix.data.splits import Data, complete_parts
from recmix.data.text_data import check_not_texts, data_of_texts, lines_of, read_texts, text_options
from recmix.errors import DataError
from recmix.model.vocabulary import Vocabulary

__all__ = ["SETS", "inventory", "load_named"]

_AGAIN = "download the file again"


def _images(array: Array, shape: tuple[int, int, int], source: str | Path) -> ArrayExamples:
    try:
        checked = check_examples(array, shape=shape)
    except DataError as error:
        raise DataError(f"{source}: {error}") from error
    if checked.dtype != np.uint8 and not (checked.min() >= 0 and checked.max() <= 1):
        low, high = checked.min(), checked.max()
        raise DataError(
            f"{source}: it has values from {low:.6g} to {high:.6g}, expected [0, 1]: {_AGAIN}"
        )
    return ArrayExamples(checked)


def _read_digits(found: Mapping[str, Path]) -> Parts:
    from sklearn.datasets import load_digits

    grey = (load_digits().images / 16).astype(np.float32)
    return _images(grey[:1500], (1, 8, 8), "digits"), None, _images(grey[1500:], (1, 8, 8), "digits")


def _read_mnist(name: str, found: Mapping[str, Path]) -> Parts:
    # The MD5 sums of MNIST are always checked: it is small, and there are no partial copies of it.
    train, test = (
        _images(read_idx(found[file.name], file.md5), (1, 28, 28), found[file.name])
        for file in SETS[name].files
    )
    return train, None, test


def _read_static_mnist(found: Mapping[str, Path]) -> Parts:
    def part(name: str) -> Examples:
        path = found[f"binarized_mnist_{name}.amat"]
        return _images(read_amat(path).reshape(-1, 28, 28) == 1, (1, 28, 28), path)

    return part("train"), part("valid"), part("test")


def _read_omniglot(found: Mapping[str, Path]) -> Parts:
    path = found["chardata.mat"]

    def part(columns: Array) -> Examples:
        if columns.ndim != 2 or columns.shape[0] != 784:
            raise DataError(
                f"{path} holds an array of shape {columns.shape}, expected (784, N), one image per "
                f"column: {_AGAIN}"
            )
        # Each column is a 28x28 image in MATLAB's column-major order.
        upright = columns.T.reshape(-1, 28, 28).transpose(0, 2, 1).astype(np.float32)
        return _images(upright, (1, 28, 28), path)

    train, test = read_mat(path, "data", "testdata")
    return part(train), None, part(test)


def _read_cifar10(found: Mapping[str, Path]) -> Parts:
    batches = [read_cifar(found[name]) for name in sorted(found) if name.startswith("data_batch_")]
    test = read_cifar(found["test_batch.bin"])
    shape = (3, 32, 32)
    return _images(np.concatenate(batches), shape, "cifar10"), None, _images(test, shape, "cifar10")


def _read_svhn(found: Mapping[str, Path]) -> Parts:
    def part(name: str) -> Examples:
        path = found[name]
        (x,) = read_mat(path, "X")
        if x.shape[:-1] != (32, 32, 3) or x.ndim != 4 or x.dtype != np.uint8:
            raise DataError(
                f"{path}: X is {x.dtype} of shape {x.shape}, expected uint8 of shape (32, 32, 3, N): "
                f"{_AGAIN}"
            )
        return _images(x.transpose(3, 2, 0, 1), (3, 32, 32), path)

    return part("train_32x32.mat"), None, part("test_32x32.mat")


def _read_celeba(found: Mapping[str, Path]) -> Parts:
    folder = ImageFolder(found["img_align_celeba.zip"])
    names = folder.names()
    _, height, width, _ = folder.header(names[0])
    if (height, width) != (218, 178):
        raise DataError(
            f"{folder.location(names[0])} is {height}x{width} (height x width), expected 218x178: "
            "use the aligned and cropped images, img_align_celeba.zip"
        )
    return FileImages(folder, names, size=(64, 64), channels=3, crop=108), None, None


def _read_wikitext2(found: Mapping[str, Path]) -> TextParts:
    train, val, test = (read_texts(found[file.name]) for file in SETS["wikitext2"].files)
    return train, val, test


def _read_zinc250k(found: Mapping[str, Path]) -> TextParts:
    path = found["zinc250k.smi"]
    content = read_bytes(path, most=_ZINC_BYTES)
    if (digest := hashlib.sha256(content).hexdigest()) != _ZINC_SHA256:
        raise DataError(
            f"{path} is not the published list of molecules: the SHA-256 sum of its (decompressed) "
            f"content is {digest}, expected {_ZINC_SHA256}; to load your own molecules, give their path"
        )
    return lines_of(content, path), None, None


_MNIST_URLS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist",
    "https://storage.googleapis.com/cvdf-datasets/mnist",
)
_MNIST = NamedSet(
    name="mnist",
    shape=(1, 28, 28),
    published_counts=(60_000, None, 10_000),
    read=partial(_read_mnist, "mnist"),
    files=tuple(
        DataFile(name, tuple(f"{url}/{name}.gz" for url in _MNIST_URLS), md5)
        for name, md5 in (
            ("train-images-idx3-ubyte", "6bbc9ace898e44ae57da46a324031adb"),
            ("t10k-images-idx3-ubyte", "2646ac647ad5339dbf082846283269ea"),
        )
    ),
    folders=("mnist", "MNIST/raw", "."),
    page="http://yann.lecun.com/exdb/mnist/",
    citation="LeCun, Bottou, Bengio, Haffner: Gradient-based learning applied to document "
    "recognition. Proceedings of the IEEE 86(11), 1998",
    note="grey values",
)
_FASHION_URL = "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion"
_FASHION_MNIST = dataclasses.replace(
    _MNIST,
    name="fashion-mnist",
    read=partial(_read_mnist, "fashion-mnist"),
    files=tuple(
        DataFile(name, (f"{_FASHION_URL}/{name}.gz",), file_sum=f"md5:{md5}")
        for name, md5 in (  # the sums of torchvision
            ("train-images-idx3-ubyte", "8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
            ("t10k-images-idx3-ubyte", "bef4ecab320f06d8554ea6380940ec79"),
        )
    ),
    folders=("fashion-mnist", "FashionMNIST/raw"),
    page="https://github.com/zalandoresearch/fashion-mnist",
    citation="Xiao, Rasul, Vollgraf: Fashion-MNIST: a novel image dataset for benchmarking machine "
    "learning algorithms. arXiv:1708.07747, 2017",
)
_STATIC_MNIST_URL = "https://www.cs.toronto.edu/~larocheh/public/datasets/binarized_mnist"
_SVHN_URL = "http://ufldl.stanford.edu/housenumbers/"
_ZINC_SHA256 = "f900b46bb42b77aab37cd827d1ea474e2a037ecab2bd7def2b6027492216d36a"
_ZINC_BYTES = 1 << 24

SETS: dict[str, NamedSet] = {
    spec.name: spec
    for spec in (
        NamedSet(
            name="digits",
            shape=(1, 8, 8),
            published_counts=(1500, None, 297),
            read=_read_digits,
            page="https://archive.ics.uci.edu/dataset/80",
            citation="Alpaydin, Kaynak: Optical Recognition of Handwritten Digits. UCI, 1998",
            note="part of scikit-learn; the last 297 of its 1797 images are the test part",
        ),
        _MNIST,
        _FASHION_MNIST,
        dataclasses.replace(
            _MNIST,
            name="binary-mnist",
            dynamic=True,
            binary=True,
            citation="Salakhutdinov, Murray: On the quantitative analysis of deep belief networks. "
            "ICML, 2008; Burda, Grosse, Salakhutdinov: Importance weighted autoencoders. ICLR, 2016",
            note="MNIST's files. Training images are binarised anew in each batch, validation and "
            "test images once. static-mnist has fixed training images",
        ),
        NamedSet(
            name="static-mnist",
            shape=(1, 28, 28),
            published_counts=(50_000, 10_000, 10_000),
            read=_read_static_mnist,
            files=tuple(
                DataFile(
                    f"binarized_mnist_{part}.amat",
                    (f"{_STATIC_MNIST_URL}/binarized_mnist_{part}.amat",),
                    file_sum=f"sha256:{digits}",
                )
                for part, digits in (  # the sums of tensorflow_datasets
                    ("train", "ad693b29f94c14277b095f5238ddefbbdaaae0939789dd2f4f0205278cee3e4d"),
                    ("valid", "1de3d397c40fe8eeb33dafd4099a1f665ec01e96d9be234aaeeac8a34930e2e2"),
                    ("test", "e6687bfea3f820c174f33b7865140b2a2dd2930ef786f35d45795fc193b5ab2c"),
                )
            ),
            folders=("static-mnist", "binarized_mnist", "mnist", "."),
            binary=True,
            page=_STATIC_MNIST_URL,
            citation="Larochelle, Murray: The neural autoregressive distribution estimator. "
            "AISTATS, 2011",
            note="binarised once, with a validation part. binary-mnist is binarised in each batch",
        ),
        NamedSet(
            name="omniglot",
            shape=(1, 28, 28),
            published_counts=(24_345, None, 8_070),
            read=_read_omniglot,
            files=(
                DataFile(
                    "chardata.mat",
                    ("https://github.com/yburda/iwae/raw/master/datasets/OMNIGLOT/chardata.mat",),
                    file_sum="git:016a3536ffe5e1d38e42563a18d7a78bfaf643ec",
                ),
            ),
            folders=("omniglot", "."),
            page="https://github.com/yburda/iwae",
            citation="Lake, Salakhutdinov, Tenenbaum: Human-level concept learning through "
            "probabilistic program induction. Science 350, 2015",
            note="28x28, in the split of Burda et al.",
        ),
        NamedSet(
            name="cifar10",
            shape=(3, 32, 32),
            published_counts=(50_000, None, 10_000),
            read=_read_cifar10,
            files=(
                *(DataFile(f"data_batch_{batch}.bin", required=batch == 1) for batch in range(1, 6)),
                DataFile("test_batch.bin"),
            ),
            folders=("cifar10/cifar-10-batches-bin", "cifar-10-batches-bin"),
            archive=DataFile(
                "cifar-10-binary.tar.gz",
                ("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",),
                file_sum="md5:c32a1d4ab5d03f1284b67883e8d87530",
            ),
            page="https://www.cs.toronto.edu/~kriz/cifar.html",
            citation="Krizhevsky: Learning multiple layers of features from tiny images. 2009",
            note="the binary version; all training batches that exist are used",
        ),
        NamedSet(
            name="svhn",
            shape=(3, 32, 32),
            published_counts=(73_257, None, 26_032),
            read=_read_svhn,
            files=tuple(
                DataFile(name, (_SVHN_URL + name,), md5)
                for name, md5 in (
                    ("train_32x32.mat", "e26dedcc434d2e4c54c9b2d4a06d8373"),
                    ("test_32x32.mat", "eb5a983be6a315427106f1b164d9cef3"),
                )
            ),
            folders=("svhn", "."),
            page=_SVHN_URL,
            citation="Netzer, Wang, Coates, Bissacco, Wu, Ng: Reading digits in natural images with "
            "unsupervised feature learning. NIPS workshop, 2011",
            note="cropped digits, without the extra part",
        ),
        NamedSet(
            name="celeba",
            shape=(3, 64, 64),
            published_counts=(202_599, None, None),
            read=_read_celeba,
            files=(DataFile("img_align_celeba.zip", other_names=("img_align_celeba",)),),
            folders=("celeba",),
            page="https://mmlab.ie.cuhk.edu.hk/projects/CelebA.html",
            citation="Liu, Luo, Wang, Tang: Deep learning face attributes in the wild. ICCV, 2015",
            note="aligned images, the centred 108x108 pixels resized to 64x64 (crop=148 for a wider "
            "crop); split 80/10/10 by seed; must be downloaded by hand",
        ),
        NamedSet(
            name="wikitext2",
            shape=(41,),
            published_counts=(66_189, 6_955, 8_132),
            read=_read_wikitext2,
            files=tuple(
                DataFile(f"wikitext2_sentences.{part}.txt") for part in ("train", "valid", "test")
            ),
            folders=("text", "wikitext2", "."),
            vocabulary="words",
            citation="Merity, Xiong, Bradbury, Socher: Pointer sentinel mixture models. ICLR, 2017",
            note="sentences of WikiText-2, one per line, words separated by spaces; 10,000 words, "
            "sentences of up to 40 words; the files have no download address",
        ),
        NamedSet(
            name="zinc250k",
            shape=(60,),
            published_counts=(249_456, None, None),
            read=_read_zinc250k,
            files=(DataFile("zinc250k.smi"),),
            folders=("molecules", "zinc250k", "."),
            vocabulary="smiles",
            citation="Gómez-Bombarelli et al.: Automatic chemical design using a data-driven continuous "
            "representation of molecules. ACS Central Science 4(2), 2018",
            note="molecules, one SMILES string per line; about 1 % of more than 59 tokens are left out "
            "(length=... for all); split 80/10/10 by seed; the file has no download address",
        ),
    )
}


def load_named(
    name: str,
    root: str | Path | None,
    seed: int,
    download: bool,
    vocabulary: Vocabulary | None,
    options: Mapping[str, Any],
) -> Data:
    """Load a named data set, split into training, validation and test examples.

    `options` has values of further arguments of `recmix.data.load` by name, such as `size` and `length`.
    The other arguments are those of `load`.
    """
    spec = SETS[name]
    if spec.vocabulary:
        check_no_resize(options, f"{name} has texts: leave them out")
    else:
        check_not_texts(options, name)
    found = find_or_download(spec, data_root(root), download)
    parts = spec.read(found)
    source: dict[str, Any] = {"kind": "named"}
    if root is not None:
        source["root"] = str(Path(root).expanduser().resolve())
    if spec.vocabulary:
        source["options"] = text_options(options)
        return data_of_texts(
            dict(zip(("train", "val", "test"), cast(TextParts, parts), strict=True)),
            kind=spec.vocabulary,
            options=options,
            vocabulary=vocabulary,
            name=name,
            seed=seed,
            need_test=True,
            source=source,
        )
    train, val, test = cast(Parts, parts)
    source["options"] = kept = {"size": options.get("size"), "crop": options.get("crop")}
    if isinstance(train, FileImages):
        check_resize(**kept)
        train = train.resized(**kept).loaded(options.get("stream", "auto"))
        kept["stream"] = not train.in_memory
    else:
        check_no_resize(options, f"{name} has images of {spec.shape}")
    x_train, x_val, x_test = complete_parts(train, val, test, name=name, seed=seed, need_test=True)
    if spec.dynamic:
        x_val = _binarise_once(x_val, seed, f"{name} validation")
        x_test = None if x_test is None else _binarise_once(x_test, 0, f"{name} test")
    missing = [file.name for file in spec.files if file.name not in found]
    note = f"{len(missing)} of {len(spec.files)} files are left out, not found: {', '.join(missing)}"
    return Data(
        name,
        x_train,
        x_val,
        x_test,
        seed=seed,
        dynamic=spec.dynamic,
        binary=spec.binary,
        source=source,
        notes=(note,) if missing else (),
    )


def inventory(root: str | Path | None = None) -> list[Entry]:
    """Return, for each named data set, which of its files exist.

    >>> [entry.state for entry in inventory("/nowhere") if entry.name in ("digits", "mnist")]
    ['present', 'missing']

    Args:
        root: Folder of the named data sets; by default the environment variable RECMIX_DATA, else a
            cache folder.
    """
    return [entry_of(spec, data_root(root)) for spec in SETS.values()]


def _binarise_once(images: Examples, seed: int, what: str) -> ArrayExamples:
    """Binarise images once: each pixel becomes 1 with the probability of its grey value, else 0.

    The random numbers depend on `seed` and on `what`, a name of the images.
    """
    random = np.random.default_rng([seed, zlib.crc32(what.encode())])
    grey = np.asarray(images)
    return ArrayExamples((random.random(grey.shape) < grey).astype(np.uint8) * np.uint8(255))
