"""Upload runs to the Hugging Face Hub and download them. Needs no torch.

Only the files in `SHARED` are uploaded and downloaded. They are JSON and safetensors files: nothing is
unpickled.
"""

from __future__ import annotations

import importlib
import os
import re
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from recmix._version import __version__
from recmix.errors import ConfigError, RunError
from recmix.runs.files import check_regular, make_folder, write_bytes, write_json
from recmix.runs.folder import TUNED, VOCABULARY, Run
from recmix.runs.model_card import model_card
from recmix.runs.spec import Spec

__all__ = ["SHARED", "download_run", "is_hub_address", "open_run", "prepare_upload", "upload_run"]

PREFIX = "hf://"
SHARED = (
    "spec.json",
    "weights.safetensors",
    "history.json",
    "status.json",
    "scores.json",
    "reports.json",
    "gap.json",
    TUNED,
    VOCABULARY,
)
"""The files of a run that are uploaded and downloaded. Checkpoints and logs stay on the machine."""
CARD = "README.md"
NAME = r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*"


def is_hub_address(place: object) -> bool:
    """Whether this is the address of a run on the Hub, such as ``hf://user/name``.

    >>> is_hub_address("hf://user/name"), is_hub_address("runs/vae")
    (True, False)
    """
    return isinstance(place, str) and place.startswith(PREFIX)


def open_run(place: str | Path) -> Run:
    """Return the run in a folder, or a download of the run at an address such as ``hf://user/name``.

    Do not write into a download.
    """
    return Run(download_run(str(place)) if is_hub_address(place) else place)


def download_run(address: str) -> Path:
    """Download a run from the Hugging Face Hub, and return its folder in the cache of huggingface_hub.

    Files in the cache are not downloaded again. RECMIX_OFFLINE=1 forbids all downloads. Do not write
    into the folder.

    Args:
        address: ``hf://user/name``, or ``hf://user/name@revision`` for a branch, a tag or a commit.
    """
    found = re.fullmatch(rf"{PREFIX}({NAME})(?:@([A-Za-z0-9][\w./-]*))?", address, re.ASCII)
    if found is None or ".." in address:
        raise ConfigError(
            f"the address is {address!r}; expected hf://user/name or hf://user/name@revision"
        )
    repo, revision = found.groups()
    hub = _library()
    offline = os.environ.get("RECMIX_OFFLINE", "") not in ("", "0")
    try:
        place = hub.snapshot_download(
            repo,
            revision=revision,
            allow_patterns=list(SHARED),
            local_files_only=offline,
            library_name="recmix",
            library_version=__version__,
        )
    except Exception as error:  # the network library below has errors of its own
        raise RunError(f"could not download {address}: {_first_line(error)}") from error
    if not Run(place).exists:
        raise RunError(f"{address} does not hold a run: the repository has no spec.json")
    return Path(place)


def upload_run(
    folder: str | Path,
    repo: str,
    *,
    private: bool | None = None,
    revision: str | None = None,
    licence: str | None = None,
    message: str = "Upload a recmix run",
    token: str | None = None,
) -> str:
    """Upload a run to the Hugging Face Hub as one commit; return its address for `recmix.load`.

    The repository is made if it does not exist. Files of an earlier run in it are replaced
    or deleted.

    Args:
        folder: the run folder.
        repo: the repository, ``user/name``.
        private: whether a new repository is private; None for the default of the account.
        revision: the branch, which must exist; None for the main branch.
        licence: the licence of the weights, such as ``apache-2.0``, for the model card.
        message: the message of the commit.
        token: an access token; None for the one that ``hf auth login`` stored.
    """
    if not re.fullmatch(NAME, repo, re.ASCII) or ".." in repo:
        raise ConfigError(f"repo is {repo!r}; expected user/name, in letters, digits, '-', '_' and '.'")
    hub = _library()
    with tempfile.TemporaryDirectory() as place:
        prepare_upload(folder, place, repo=repo, licence=licence)
        try:
            api = hub.HfApi(token=token, library_name="recmix", library_version=__version__)
            api.create_repo(repo, private=private, exist_ok=True)
            api.upload_folder(
                repo_id=repo,
                folder_path=place,
                revision=revision,
                commit_message=message,
                allow_patterns=[*SHARED, CARD],
                delete_patterns=list(SHARED),
            )
        except Exception as error:  # the network library below has errors of its own
            raise RunError(f"could not upload {folder} to {repo}: {_first_line(error)}") from error
    return f"{PREFIX}{repo}" + (f"@{revision}" if revision else "")


def prepare_upload(
    folder: str | Path, out: str | Path, *, repo: str = "USER/NAME", licence: str | None = None
) -> list[str]:
    """Write into the empty folder `out` the files that `upload_run` uploads, and return their names.

    `folder` is the run folder. ``spec.json`` is written without the paths of this machine. The model
    card (README.md) is added. `repo` and `licence` appear in the model card.
    """
    run, place = Run(folder), Path(out)
    spec = run.spec()
    if not run.weights.exists():
        raise RunError(f"{run.folder} has no weights yet: train the run first")
    make_folder(place)
    if any(place.iterdir()):
        raise RunError(f"{place} is not empty: give the name of a new folder")
    for name in SHARED:
        if (run.folder / name).exists() and name != "spec.json":
            check_regular(run.folder / name)
            shutil.copyfile(run.folder / name, place / name)
    write_json(place / "spec.json", _without_paths(spec))
    used = replace(spec, inference=run.tuned() or spec.inference)
    card = model_card(used, run.scores(), repo=repo, licence=licence)
    write_bytes(place / CARD, card.encode())
    return sorted(path.name for path in place.iterdir())


def _without_paths(spec: Spec) -> dict[str, Any]:
    """Return a spec as JSON values that do not show the folders of this machine.

    The data root is left out. Of other paths only the last part is kept; addresses on the Hub are kept.
    """
    content = spec.to_json()
    content["data"].pop("root", None)
    for part, name in (("data", "path"), ("init", "run")):
        value = content[part].get(name) if content[part] else None
        if isinstance(value, str) and not is_hub_address(value):
            content[part][name] = Path(content[part][name]).name
    return content


def _library() -> Any:
    """Return the module huggingface_hub."""
    try:
        return importlib.import_module("huggingface_hub")
    except ImportError as error:
        raise ConfigError("huggingface_hub is not installed: pip install 'recmix[hub]'") from error


def _first_line(error: Exception) -> str:
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
