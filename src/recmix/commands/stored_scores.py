"""Decide whether to store scores on data that the user named; warn if training examples are scored."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from recmix.commands.terminal import err, plain

if TYPE_CHECKING:
    from recmix.api import Model
    from recmix.data import Data

__all__ = ["GAP", "folder_of_one_data", "folder_of_scores", "note_random_part", "scored_data"]

GAP = "gap.json"
"""Name of the file in the run folder that holds the result of --gap."""


def folder_of_scores(
    model: Model,
    source: Data,
    scored: Any,
    split: str,
    run: str,
    data: str,
    root: Path | None,
    *,
    own: bool,
) -> Path | None:
    """Return the folder in which to store scores on data that the user named; None to store nothing.

    - If the model was trained by recmix, its scores are stored only for the data of its training, and
      only if no scored example is known to be a training example. If the data had no test part in the
      training, the examples of a test part can be training examples.
    - If it was trained elsewhere, the data of its training are not known. Then its folder holds scores
      on one data set, the first that was scored.

    If the model has a folder and the scores are not stored, a printed note says why.

    Args:
        source: the data that the user named.
        scored: the part of `source` that is scored.
        split: name of this part: train, val or test.
        run: folder or address of the run, as the user gave it.
        data: name or path of the data, as the user gave it.
        root: folder of the named data sets.
        own: whether `source` are the data that the model was trained on.
    """
    from recmix.data.overlap import count_repeated, count_training_examples

    if not model.spec.data:
        return folder_of_one_data(model, source, run, data)
    described = model.spec.data
    had_test = (described.get("counts") or {}).get("test") is not None
    if own and (split != "test" or had_test):  # the parts are those of the training
        return model.folder
    train = source.x_train if own else None
    how: Any = {"folder": model.folder, "root": root, "vocabulary": model.vocabulary, "train": train}
    trained = count_training_examples(scored, described, **how)  # None if it is not known
    if own and not trained:
        return model.folder
    name, owner, count = plain(data), plain(run), len(scored)
    if trained is None:
        text = (
            f"note: {name} has other examples than {owner} was trained on, or splits them in another "
            f"way. Whether training examples are among the {count:,} scored ones is not known, because "
            "the data of the run cannot be loaded again"
        )
    elif not trained:
        text = (
            f"note: {name} has other examples than {owner} was trained on; none of the {count:,} scored "
            "ones is a training example"
        )
    elif repeated := count_repeated(scored):
        text = (
            f"[bold]warning:[/] {trained:,} of the {count:,} scored examples of {name} are equal to "
            f"training examples of {owner}. Equal examples may be usual in these data, because "
            f"{repeated:,} scored examples are equal to another scored one. If not, the score is "
            "too good for new examples"
        )
    else:
        text = (
            f"[bold]warning:[/] {trained:,} of the {count:,} scored examples of {name} are training "
            f"examples of {owner}, so that the score is too good for new examples"
        )
    err.print(f"{text}. The result is not stored in the run", highlight=False)
    return None


def note_random_part(model: Model, data: Data, split: str, name: str, *, own: bool) -> None:
    """Print a note if the user's file has no part `split`, so that a random tenth of it is scored.

    Args:
        split: name of the part that is scored: train, val or test.
        name: name or path of the data, as the user gave it.
        own: whether the model was trained on `data`. Then the data are split as for the training, and
            no note is printed.
    """
    if own or split not in data.held_out:
        return
    sizes = {part: size or 0 for part, size in data.counts.items()}
    total = sizes["train"] + sum(sizes[part] for part in data.held_out)
    seen = (
        ""
        if model.spec.data
        else (". The model may have been trained on some of these examples: then the score is too good")
    )
    parts = f"a file with x_train and x_{split}, made with numpy.savez"
    if data.vocabulary is not None:
        parts = f"a folder with the files train.txt and {split}.txt (.smi for molecules)"
    err.print(
        f"note: {name} has no {split} part: a random tenth, {sizes[split]:,} of {total:,} examples, is "
        f"scored, the same each time. To score others, give {parts}{seen}",
        highlight=False,
        markup=False,
    )


def scored_data(model: Model, data: Data) -> dict[str, Any]:
    """Return an entry for a stored score that names the data: {"data": {"name": .., "fingerprint": ..}}.

    The entry is empty, {}, if the model was trained by recmix: then its run folder names the data.
    """
    if model.spec.data:
        return {}
    return {"data": {"name": data.name, "fingerprint": data.fingerprint}}


def folder_of_one_data(model: Model, source: Data, run: str, data: str) -> Path | None:
    """Return the folder in which to store results of a model that was not trained by recmix.

    The folder of such a model holds results on one data set only. If it has results on other data
    (scores, a gap, or a refinement that ``recmix tune`` chose), a note is printed and None is returned.
    None is also returned if the model has no folder.

    Args:
        source: the data that the user named.
        run: folder or address of the run, as the user gave it.
        data: name or path of the data, as the user gave it.
    """
    from recmix.runs.files import read_json
    from recmix.runs.folder import TUNED, Run

    if model.folder is None:
        return None
    results = list(Run(model.folder).scores().values())
    for name in (GAP, TUNED):
        if (path := model.folder / name).exists():
            found = read_json(path)
            if name == GAP or "data" in found:  # an earlier version did not name the data of TUNED
                results.append(found)
    for result in results:
        stored = result.get("data") if isinstance(result, dict) else None
        stored = stored if isinstance(stored, dict) else {}
        if stored.get("fingerprint") != source.fingerprint:
            name = stored.get("name", "data that are not known")
            err.print(
                f"note: the results in {run} are on {name}, and {data} has other examples. A model that "
                "was trained elsewhere stores results on one data set only, so that this result is not "
                "stored. To store it, save the model in another folder",
                highlight=False,
                markup=False,
            )
            return None
    return model.folder
