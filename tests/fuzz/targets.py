"""The readers of files, each with valid files that are changed at random.

A reader must return a result or raise a `RecmixError` with a message, whatever the file holds.
"""

import gzip
import io
import json
import struct
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from fuzz import mutate


@dataclass
class Target:
    """A reader of one file.

    Attributes:
        name: of the target.
        file: name that the changed file gets in a fresh folder.
        seeds: valid contents.
        change: makes another content from one of them.
        read: reads the file; its argument is the folder.
        whole: files that are in the folder, too.
        share: how often it is tried, relative to the others.
    """

    name: str
    file: str
    seeds: list[bytes]
    change: object
    read: object
    whole: dict[str, bytes]
    share: float = 1.0


def _npy(array):
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def _npz(**arrays):
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)
    return file.getvalue()


def _pictures():
    from PIL import Image

    rng = np.random.default_rng(0)
    grey, colour = rng.integers(0, 256, (8, 8), np.uint8), rng.integers(0, 256, (8, 8, 3), np.uint8)
    for suffix in ("png", "jpeg", "gif", "bmp", "webp"):
        for array in (grey, colour):
            file = io.BytesIO()
            Image.fromarray(array).save(file, suffix)
            yield file.getvalue()


def _zip(members):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return file.getvalue()


def _safetensors(content, choose):
    """Change the header of a safetensors file and give it the right digest, or change bytes."""
    from safetensors.torch import load, save

    from recmix.training.checkpoint import _digest

    if choose.random() < 0.4:
        return mutate.change_bytes(content, choose)
    length = struct.unpack("<Q", content[:8])[0]
    head = json.loads(content[8 : 8 + length])
    if choose.random() < 0.5:
        made = json.dumps(mutate.change_value(head, choose)).encode("utf-8", "surrogatepass")
        return struct.pack("<Q", len(made)) + made + content[8 + length :]
    tensors = load(content)
    header = mutate.change_value(json.loads(head["__metadata__"]["recmix"]), choose)
    if isinstance(header, dict):
        header["sha256"] = _digest(tensors, header)
    if choose.random() < 0.2:
        del tensors[choose.choice(sorted(tensors))]
    return save(tensors, {"recmix": json.dumps(header)})


def _json(content, choose):
    """Change values of a JSON file and mostly give it the right digest, or change bytes."""
    from recmix.runs.files import DIGEST, _json

    found = mutate.change_json(content, choose)
    try:
        values = json.loads(found)
    except (ValueError, RecursionError):
        return found
    if not isinstance(values, dict) or DIGEST not in values or choose.random() < 0.1:
        return found
    return _json(values)


def _table(data):
    """Use loaded data a little, as training does."""
    for part in (data.x_train, data.x_val, data.x_test):
        if part is not None:
            part[:2]
    data.describe()


def make(place):
    """Return all targets. A small run is trained in the folder `place` for files to change."""
    import recmix
    from recmix.data import formats, load
    from recmix.experiments.grid import check, read_grid
    from recmix.experiments.store import Store
    from recmix.inference import Inference
    from recmix.model.vocabulary import vocabulary_from_json
    from recmix.reports.read_store import read_store
    from recmix.runs.files import read_json
    from recmix.runs.folder import Run
    from recmix.training.build import load_trained
    from recmix.training.presets import read_preset, stored_arguments

    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (12, 8, 8), np.uint8)
    real = rng.random((12, 3)).astype(np.float32)
    small = {"latent": 2, "network": "mlp", "widths": (4,), "batch_size": 20, "device": "cpu"}
    run = Path(place) / "run"
    x = rng.random((60, 1, 8, 8)).astype(np.float32)
    recmix.fit("vae", x, epochs=2, out=run, progress=False, **small)
    Run(run).add_score("test/3", {"elbo": -1.0, "iwae": -1.0, "images": 3, "samples": 3})
    Run(run).set_tuned(Inference(refine=2))
    Run(run).add_reports("test/3", {"latent": {"kl": [1.0, 2.0], "active": 2}})
    lines = [f"{a} {b} {c}" for a in "abc" for b in "def" for c in ("here", "there")]
    recmix.fit("vae", recmix.data.from_texts(lines), out=Path(place) / "texts", epochs=1, latent=2,
               units=8, blocks=1, device="cpu", progress=False)  # fmt: skip
    texts_run = {path.name: path.read_bytes() for path in (Path(place) / "texts").iterdir()}
    stored = {path.name: path.read_bytes() for path in run.iterdir() if path.is_file()}

    def trained(folder):
        load_trained(folder, device="cpu")

    def resumed(folder):
        recmix.fit("vae", x, epochs=3, out=folder, resume=True, progress=False, **small)

    def grid(folder):
        read_grid(folder / "small.toml").to_json()
        check(read_grid(folder / "small.toml").jobs[:3])

    def config(folder):
        from recmix.commands.train_flags import _read_config

        _read_config(folder / "small.toml")

    def csv_of(change):
        def zipped(content, choose):
            made = change(gzip.decompress(content), choose)
            return mutate.change_bytes(content, choose) if choose.random() < 0.3 else gzip.compress(made)

        return zipped

    def mat(folder):
        return formats.read_mat(folder / "a.mat", "x")

    def data(name):
        return lambda folder: _table(load(folder / name))

    def csv(table, names=""):
        return (names + "\n".join(",".join(map(str, row)) for row in table)).encode()

    texts = [csv(images.reshape(12, 64)), csv(real, "a,b,c\n")]
    pictures = list(_pictures())
    folder_zip = [_zip({f"{part}/{i}.png": pictures[0] for part in ("train", "test") for i in range(6)})]
    toml = [path.read_bytes() for path in sorted(Path("configs").glob("*.toml"))[:6]]
    presets = Path(recmix.__file__).parent / "training" / "presets"
    idx = b"\0\0\x08\x03" + struct.pack(">3I", 12, 8, 8) + images.tobytes()
    some = _npz(x_train=images, x_test=images), _npz(**{"x_train.a": real, "x_train.b": images[:, 0]})
    sparse = {"format": b"csr", "shape": np.array([4, 3]), "data": np.ones(4, np.float32)}
    sparse |= {"indices": np.array([0, 1, 2, 0]), "indptr": np.arange(5)}
    digest = "0123456789abcdef"
    job = {"format": 2, "digest": digest, "label": "VAE", "setting": None, "option": None, "split": 0}
    job |= {"restart": 0, "data": "digits", "latent": 2, "network": "mlp", "decoder_network": "auto"}
    job |= {"likelihood": "gaussian", "continued": False, "dependency": None, "evaluate": ["test/3"]}
    job |= {"definition": {"model": {"latent": 2}}, "extra": {}, "threads": 1}
    listed = {"format": 2, "name": "a", "title": "A", "protocol": {"samples": [3]}, "jobs": [job]}
    store_files = {f"{digest}/{name}": content for name, content in stored.items()}
    store_files[f"{digest}/job.json"] = json.dumps(job).encode()
    store_files["grid-a.json"] = json.dumps(listed).encode()

    def store(folder):
        Store(folder).check_format()
        Store(folder).job_file(digest)
        Store(folder).failure(digest)
        Store(folder).repair(digest)

    def report(folder):
        read_store(folder)

    def of_run(file, read, share=1.0):
        return Target(f"run {file}", file, [stored[file]], _json, read, stored, share)

    def of_store(file, read):
        name = f"{read.__name__} {Path(file).name}"
        return Target(name, file, [store_files[file]], _json, read, store_files, 0.5)

    plain = {}
    return [
        Target("idx", "a.idx", [idx, gzip.compress(idx)], mutate.change_bytes,
               lambda f: formats.read_idx(f / "a.idx"), plain),
        Target("amat", "a.amat", [b"0 1 1\n1 0 0\n"], mutate.change_bytes,
               lambda f: formats.read_amat(f / "a.amat", 3), plain, 0.3),
        Target("npy", "a.npy", [_npy(images), _npy(real)], mutate.change_npy, data("a.npy"), plain),
        Target("npz", "a.npz", [*some, _npz(**sparse)], mutate.change_zip, data("a.npz"), plain),
        Target("mat", "a.mat", _mats(images), mutate.change_bytes, mat, plain, 0.5),
        Target("zip", "a.zip", folder_zip, mutate.change_zip, data("a.zip"), plain),
        Target("picture", "in/a.png", pictures, mutate.change_bytes, data("in"),
               {f"in/{i}.png": pictures[0] for i in range(6)}),
        Target("csv", "a.csv", texts, mutate.change_csv, data("a.csv"), plain),
        Target("csv.gz", "a.csv.gz", [gzip.compress(text) for text in texts], csv_of(mutate.change_csv),
               data("a.csv.gz"), plain, 0.3),
        *_parquet(real, data),
        Target("txt", "a.txt", ["\n".join(lines).encode(), "é ß\n中 文\n\n🙂 a\n".encode() * 4],
               mutate.change_bytes, data("a.txt"), plain),
        Target("txt.gz", "a.txt.gz", [gzip.compress("\n".join(lines).encode())],
               csv_of(mutate.change_bytes), data("a.txt.gz"), plain, 0.3),
        Target("smi", "a.smi", [b"CCO\nc1ccccc1\nCC(=O)O\nC[C@H](N)C(=O)O\n" * 3, b"CCO a\nC\tb\n" * 6],
               mutate.change_bytes, data("a.smi"), plain),
        Target("run vocabulary.json", "vocabulary.json", [texts_run["vocabulary.json"]], _json,
               lambda folder: (Run(folder).vocabulary(), trained(folder)), texts_run),
        Target("vocabulary", "vocabulary.json", [texts_run["vocabulary.json"]], _json,
               lambda folder: vocabulary_from_json(read_json(folder / "vocabulary.json")), plain),
        Target("weights", "weights.safetensors", [stored["weights.safetensors"]], _safetensors,
               trained, stored),
        Target("checkpoint", "checkpoint.safetensors", [stored["checkpoint.safetensors"]], _safetensors,
               resumed, stored),
        of_run("spec.json", trained, 2.0),
        of_run("status.json", resumed),
        of_run("history.json", trained),
        of_run("scores.json", lambda folder: Run(folder).scores()),
        of_run("reports.json", lambda folder: Run(folder).reports(), 0.5),
        of_run("tuned.json", lambda folder: Run(folder).tuned()),
        *(of_store(f"{digest}/{name}", report) for name in ("spec.json", "job.json", "history.json")),
        *(of_store(f"{digest}/{name}", report) for name in ("scores.json", "status.json")),
        of_store("grid-a.json", report),
        *(of_store(f"{digest}/{name}", store) for name in ("spec.json", "job.json", "status.json")),
        of_store("grid-a.json", store),
        Target("preset.json", "preset.json", [_preset_file(presets)], mutate.change_json,
               stored_arguments, plain),
        Target("grid TOML", "small.toml", toml, mutate.change_toml, grid, plain),
        Target("config TOML", "small.toml",
               [b'data = "digits"\n[method]\nname = "vae"\n[training]\nepochs = 3'],
               mutate.change_toml, config, plain, 0.5),
        Target("preset TOML", "p.toml", [p.read_bytes() for p in sorted(presets.glob("*.toml"))],
               mutate.change_toml, lambda folder: read_preset(folder / "p.toml"), plain, 0.5),
    ]  # fmt: skip


def _mats(images):
    from scipy.io import savemat

    found = []
    for compressed in (False, True):
        file = io.BytesIO()
        savemat(file, {"x": images}, do_compression=compressed)
        found.append(file.getvalue())
    return found


def _parquet(real, data):
    try:
        import pandas
        import pyarrow  # noqa: F401
    except ImportError:
        return []
    file = io.BytesIO()
    pandas.DataFrame(real, columns=list("abc")).to_parquet(file)
    seeds, read = [file.getvalue()], data("a.parquet")
    return [Target("parquet", "a.parquet", seeds, mutate.change_bytes, read, {}, 0.5)]


def _preset_file(presets):
    import tomllib

    name = sorted(presets.glob("*.toml"))[0]
    content = {"format": 2, "name": name.stem, "preset": tomllib.loads(name.read_text())}
    about = {"name": "digits", "kind": "named", "fingerprint": "x", "seed": 0, "options": {}}
    return json.dumps({**content, "first": {}, "data": about}).encode()
