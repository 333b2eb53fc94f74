"""The command line. Commands import what they need when they run, so that help comes at once."""

from __future__ import annotations

import inspect
import json
import os
import sys
import tomllib
import typing
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from recmix._version import __version__
from recmix.commands.export import export_command
from recmix.commands.presets import presets_command
from recmix.errors import ConfigError, Interrupted, RecmixError, RunError, unknown
from recmix.explore.serve import explore_command

if TYPE_CHECKING:
    from recmix.data import ImageData
    from recmix.fitted import Fitted

__all__ = ["main"]

app = typer.Typer(
    name="recmix",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Accurate posterior inference for variational autoencoders, at the speed of one forward pass.",
    epilog="Bad input ends with status 2 and one message; [bold]--debug[/] anywhere adds the traceback.",
)
out = Console(soft_wrap=True)
err = Console(stderr=True, soft_wrap=True)


def main(arguments: list[str] | None = None) -> None:
    """Run a command; errors a user can act on end with status 2 and one message."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in words
    words = [word for word in words if word != "--debug"]
    command = next((word for word in words if not word.startswith("-")), "")
    _add_train(with_options=command == "train")
    try:
        app(words)
    except Interrupted as stop:
        err.print(f"[yellow]{_plain(stop)}[/]")
        sys.exit(130)
    except KeyboardInterrupt:
        err.print("[yellow]stopped before there was anything to save[/]")
        sys.exit(130)
    except RecmixError as error:
        if debug:
            raise
        err.print(f"[red]error:[/] {_plain(error)}")
        sys.exit(2)
    except BrokenPipeError:  # the reader of our output went away
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


def _plain(message: object) -> str:
    return str(message).replace("[", r"\[")


def _version(show: bool) -> None:
    if show:
        out.print(f"recmix {__version__}", highlight=False)
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


Root = Annotated[
    Path | None,
    typer.Option("--data-root", help="Folder of the data sets (default: RECMIX_DATA, then a cache)."),
]
Json = Annotated[bool, typer.Option("--json", help="Machine-readable output.")]


@app.command("data", epilog="Example: [bold]recmix data --data-root ~/data[/]")
def data_command(data_root: Root = None, as_json: Json = False) -> None:
    """List the data sets: what is there, what is missing, where it looked."""
    from dataclasses import asdict

    from recmix.data import inventory

    entries = inventory(data_root)
    if as_json:
        out.print_json(json.dumps([asdict(entry) for entry in entries], default=str))
        return
    table = Table("set", "state", "images", "train / val / test", "missing files")
    colour = {"present": "green", "partly": "yellow", "missing": "red"}
    for entry in entries:
        size = "x".join(map(str, entry.shape))
        counts = " / ".join(f"{n:,}" for n in entry.counts.values())
        missing = ", ".join(entry.missing) or "-"
        table.add_row(entry.name, f"[{colour[entry.state]}]{entry.state}[/]", size, counts, missing)
    out.print(table)
    looked = sorted({str(folder) for entry in entries for folder in entry.looked})
    out.print("looked in:", *[f"  {folder}" for folder in looked], sep="\n", highlight=False)
    out.print("Missing files are downloaded when a set is first used, unless RECMIX_OFFLINE=1.")


@app.command("methods", epilog="Example: [bold]recmix methods --json[/]")
def methods_command(as_json: Json = False) -> None:
    """List the methods and their options."""
    from recmix.core import METHODS, find_method
    from recmix.options import growth_options, method_options

    find_method("vae")  # fills the registry
    found = [
        {
            "name": name,
            "title": cls.title,
            "setting": cls.setting,
            "tried": list(cls.tried),
            "second_stage": cls.second_stage,
            "reference": cls.reference,
            "options": {
                o.name: {"default": o.default, "help": o.help}
                for o in (method_options(cls) | growth_options(cls)).values()
            },
        }
        for name, cls in sorted(METHODS.items())
    ]
    if as_json:
        out.print_json(json.dumps(found))
        return
    table = Table("method", "what it is", "setting", "in the paper", "reference")
    for row in found:
        setting = row["setting"]
        shown = f"{setting} = {row['options'][setting]['default']}" if setting else "-"
        tried = ", ".join(map(str, row["tried"])) or "-"
        table.add_row(row["name"], row["title"], shown, tried, row["reference"])
    out.print(table)
    out.print("All options with their defaults: recmix train --help, or recmix methods --json.")


app.command("presets", epilog="Example: [bold]recmix presets best > mine.toml[/]")(presets_command)


@app.command("evaluate", epilog="Example: [bold]recmix evaluate runs/rme --samples 5000 --json[/]")
def evaluate_command(
    run: Annotated[Path, typer.Argument(help="Folder of a run.")],
    samples: Annotated[
        int | None, typer.Option(help="K of IWAE-K (default 100, with --gap 1000).")
    ] = None,
    split: Annotated[str, typer.Option(help="train, val or test.")] = "test",
    refine: Annotated[
        int | None, typer.Option(help="Gauss-Newton steps for every image first (1, 2, 4).")
    ] = None,
    gap: Annotated[bool, typer.Option("--gap", help="Say how much is lost where, and advise.")] = False,
    images: Annotated[
        int | None, typer.Option(help="Images for --gap, and as many training images (default 200).")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the sampling noise.")] = 0,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda ...")] = "auto",
    memory: Annotated[
        int | None, typer.Option(help="MiB for the decoder's activations (default: by device).")
    ] = None,
    data: Annotated[str | None, typer.Option(help="Other data than it was trained on.")] = None,
    data_root: Root = None,
    as_json: Json = False,
) -> None:
    """Score a trained run: ELBO, IWAE with standard errors, mixing weights, time."""
    from recmix.evaluation.score import score
    from recmix.fitted import load
    from recmix.run import Run

    for name, value in (("samples", samples), ("memory", memory)):
        if value is not None and value < 1:
            raise ConfigError(f"{name} must be positive, got {value}")
    if images is not None and not gap:
        raise ConfigError("--images is for --gap: without it every image of the split is scored")
    fitted = load(run, device=device)
    if refine is not None:
        fitted = fitted.refined(refine)
    source = _data_of(fitted, data, data_root)
    scored = _split(source, split)
    if scored.shape[1:] != fitted.spec.shape:
        raise ConfigError(
            f"{run} was trained on images of shape {fitted.spec.shape}, "
            f"the images of {data} have shape {scored.shape[1:]}"
        )
    limit = None if memory is None else memory * 2**20
    if gap:
        from recmix.gap_report import report_gap

        report_gap(
            fitted,
            source,
            scored,
            split=split,
            own=data is None,
            images=200 if images is None else images,
            samples=1000 if samples is None else samples,
            seed=seed,
            memory=limit,
            console=out,
            as_json=as_json,
        )
        return
    samples = 100 if samples is None else samples
    with _progress(f"evaluating {split}", len(scored), as_json) as report:
        found = score(fitted.method, scored, samples=samples, seed=seed, memory=limit, report=report)
    if data is None:
        also = "" if refine is None else f"/refine {refine}"
        Run(run).add_score(f"{split}/{samples}{also}", found)
    if as_json:
        out.print_json(json.dumps({"run": str(run), "split": split, **found}))
        return
    print_scores([(run.name, found)], title=f"{split}, {found['images']:,} images")


@app.command("demo", epilog="Example: [bold]recmix demo --out runs/demo --overwrite[/]")
def demo_command(
    folder: Annotated[Path, typer.Option("--out", help="Folder for the runs and figures.")] = Path(
        "runs/demo"
    ),
    overwrite: Annotated[bool, typer.Option(help="Replace what is there.")] = False,
    quick: Annotated[bool, typer.Option(help="A few epochs only, to see that it works.")] = False,
) -> None:
    """Train a VAE, its continuation VAE+ and a recursive mixture on scikit-learn's digits."""
    from recmix.demo import demo

    rows, figures = demo(folder, overwrite=overwrite, quick=quick)
    print_scores(rows, title="scikit-learn's handwritten digits, test images")
    out.print(f"runs and figures in {folder}:", ", ".join(path.name for path in figures))


@app.command(
    "compare",
    epilog="Examples:\n\n[bold]recmix compare --data digits --out runs/compare[/]\n\n"
    "[bold]recmix compare --data mnist --init runs/vae --epochs 5 --out runs/all rme:order=2 rme iaf[/]",
)
def compare_command(
    entries: Annotated[
        list[str] | None,
        typer.Argument(help="Methods: name, or name:option=value,... (default: every method)."),
    ] = None,
    data: Annotated[str, typer.Option(help="Named data set or path.")] = "digits",
    folder: Annotated[Path, typer.Option("--out", help="Folder for the runs and the table.")] = Path(
        "runs/compare"
    ),
    latent: Annotated[int, typer.Option(help="Dimension of z.")] = 20,
    init: Annotated[Path | None, typer.Option(help="A trained VAE to start from.")] = None,
    vae_epochs: Annotated[int, typer.Option(help="Epochs of the VAE, if it is trained here.")] = 2000,
    epochs: Annotated[int, typer.Option(help="Epochs of all that start from it.")] = 20,
    learning_rate: Annotated[float, typer.Option(help="Their learning rate.")] = 1e-6,
    samples: Annotated[int, typer.Option(help="K of IWAE-K.")] = 100,
    seed: Annotated[int, typer.Option(help="Weights, data order, noise.")] = 0,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda ...")] = "auto",
    data_root: Root = None,
) -> None:
    """Train every method from one VAE under one schedule and print one table, VAE+ in it."""
    from recmix.compare import compare
    from recmix.data import load

    both = {"seed": seed, "device": device}
    rows = compare(
        load(data, root=data_root),
        folder,
        entries or [],
        init=init,
        vae={"latent": latent, "epochs": vae_epochs, **both},
        second={"epochs": epochs, "learning_rate": learning_rate, **both},
        samples=samples,
        progress=True,
    )
    table = Table("model", "ELBO", f"IWAE-{samples}", "over VAE+", "ms per batch", "best epoch")
    for row in rows:
        if "iwae" not in row:
            table.add_row(row["model"], f"[red]failed[/]: {_plain(row['reason'])}")
            continue
        table.add_row(
            row["model"],
            f"{row['elbo']:.2f} ± {row['elbo_se']:.2f}",
            f"{row['iwae']:.2f} ± {row['iwae_se']:.2f}",
            "" if row["gain"] is None else f"{row['gain']:+.2f}",
            f"{row['milliseconds']:.2f}",
            str(row["best_epoch"]),
        )
    out.print(table)
    out.print(f"runs, compare.json and compare.md in {folder}", highlight=False)


@app.command("grid", epilog="Example: [bold]recmix grid configs/smoke.toml --store runs/smoke[/]")
def grid_command(
    file: Annotated[Path, typer.Argument(help="TOML file of the grid.")],
    store: Annotated[Path, typer.Option(help="Folder of the runs.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")] = False,
    status: Annotated[bool, typer.Option("--status", help="Only say how the runs stand.")] = False,
    workers: Annotated[int | None, typer.Option(help="Runs at a time.")] = None,
    limit_hours: Annotated[float | None, typer.Option(help="Save and stop after so long.")] = None,
    ray: Annotated[str | None, typer.Option(help="local, or the address of a Ray cluster.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda ...")] = "auto",
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Try failed runs again.")] = False,
    data_root: Root = None,
) -> None:
    """Do the runs of a grid; start it again to continue."""
    from recmix.experiments.driver import run_grid

    code = run_grid(
        file,
        store,
        dry_run=dry_run,
        status=status,
        workers=workers,
        limit_hours=limit_hours,
        ray=ray,
        device=device,
        retry_failed=retry_failed,
        data_root=data_root,
    )
    raise typer.Exit(code)


@app.command("bench", epilog="Example: [bold]recmix bench --only growth_in_order --quick[/]")
def bench_command(
    figures: Annotated[list[str] | None, typer.Argument(help="Figures, as with --only.")] = None,
    only: Annotated[list[str] | None, typer.Option("--only", help="A figure; may be repeated.")] = None,
    quick: Annotated[bool, typer.Option(help="Fewer repetitions, to see that it works.")] = False,
    folder: Annotated[Path, typer.Option("--out", help="Folder of the results.")] = Path(
        "benchmarks/results"
    ),
    peer: Annotated[Path | None, typer.Option(help="Folder with pythae's source.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda ...")] = "auto",
    plot: Annotated[bool, typer.Option("--plot", help="Write docs/performance.md from them.")] = False,
) -> None:
    """Measure speed and memory, as ratios taken in one run on this machine."""
    from recmix import bench

    if plot:
        out.print("wrote", ", ".join(map(str, bench.plot(folder, "docs"))), highlight=False)
        return
    bench.run([*(figures or ()), *(only or ())], quick=quick, out=folder, peer=peer, device=device)


@app.command("figure1", epilog="Example: [bold]recmix figure1 --data mnist --out figures[/]")
def figure_one_command(
    data: Annotated[str, typer.Option(help="Named data set or path.")] = "digits",
    folder: Annotated[Path, typer.Option("--out", help="Folder for the figures.")] = Path("figures"),
    init: Annotated[Path | None, typer.Option(help="A trained VAE with --latent 2.")] = None,
    vae_epochs: Annotated[int, typer.Option(help="Epochs of the VAE, if it is trained here.")] = 100,
    epochs: Annotated[int, typer.Option(help="Epochs of the second component.")] = 16,
    learning_rate: Annotated[float, typer.Option(help="Of the second component.")] = 5e-4,
    bound: Annotated[float, typer.Option(help="C of the recursion.")] = 500.0,
    seed: Annotated[int, typer.Option(help="Of everything.")] = 0,
    data_root: Root = None,
) -> None:
    """Draw the paper's Figure 1: a second component learned in a two-dimensional latent space."""
    from recmix.data import load as load_data
    from recmix.fitted import load
    from recmix.illustrate import figure_one

    made = figure_one(
        load_data(data, root=data_root),
        folder,
        vae_epochs=vae_epochs,
        epochs=epochs,
        learning_rate=learning_rate,
        bound=bound,
        seed=seed,
        init=None if init is None else load(init),
        progress=True,
    )
    out.print("wrote", ", ".join(str(path) for path in made), highlight=False)


@app.command("report", epilog="Example: [bold]recmix report runs/grid --out report.html[/]")
def report_command(
    store: Annotated[Path, typer.Argument(help="Folder of run folders.")],
    file: Annotated[
        Path | None,
        typer.Option("--out", help="File to write (default report.html; text goes to the terminal)."),
    ] = None,
    form: Annotated[str, typer.Option("--format", help="html, markdown, latex or terminal.")] = "html",
    samples: Annotated[int, typer.Option(help="K of IWAE-K.")] = 100,
    holm: Annotated[bool, typer.Option(help="Correct p-values within a column (Holm).")] = False,
) -> None:
    """Tables, frontier, curves and every run of a store as one page."""
    from recmix.reports.write import write_report

    write_report(store, out=file, form=form, samples=samples, holm=holm, console=out, errors=err)


app.command("export", epilog="Example: [bold]recmix export runs/rme --format onnx[/]")(export_command)
app.command("explore", epilog="Example: [bold]recmix explore runs/vae runs/rme[/]")(explore_command)


def print_scores(rows: list[tuple[str, dict[str, Any]]], title: str) -> None:
    """One table of scores, a row per run."""
    samples = rows[0][1]["samples"]
    batch = rows[0][1]["batch"]
    table = Table(
        "model",
        "ELBO (nats)",
        f"IWAE-{samples} (nats)",
        "mean mixing weights",
        f"posterior, ms per batch of {batch}",
        title=title,
    )
    for name, found in rows:
        table.add_row(
            name,
            f"{found['elbo']:.2f} ± {found['elbo_se']:.2f}",
            f"{found['iwae']:.2f} ± {found['iwae_se']:.2f}",
            " ".join(f"{w:.3f}" for w in found["weights"]),
            f"{found['milliseconds']:.2f}",
        )
    out.print(table)


def _split(data: ImageData, name: str) -> Any:
    parts = {"train": data.x_train, "val": data.x_val, "validation": data.x_val, "test": data.x_test}
    if name not in parts:
        raise ConfigError(unknown("split", name, parts))
    if parts[name] is None:
        raise ConfigError(f"the data {data.name} have no {name} images: try --split val")
    return parts[name]


def _data_of(fitted: Fitted, data: str | None, root: Path | None) -> ImageData:
    from recmix.data import load, rebuild

    if data is not None:
        return load(data, root=root, seed=fitted.spec.data.get("seed", 0))
    return rebuild(fitted.spec.data, root=root)


def _progress(title: str, total: int, quiet: bool) -> Any:
    from recmix.training.progress import count

    return count(title, total, show=False if quiet else None)


# --- train: its flags are the keyword arguments of `recmix.fit` -----------------------------------

TRAIN_EPILOG = (
    "Examples:\n\n"
    "[bold]recmix train --data mnist --method vae --latent 20 --out runs/vae[/]\n\n"
    "[bold]recmix train --data mnist --method vae --init runs/vae --out runs/vae+[/]  (VAE+)\n\n"
    "[bold]recmix train --data mnist --method rme --order 5 --init runs/vae --out runs/rme[/]\n\n"
    "[bold]recmix train --data mnist --method rme --order auto --init runs/vae --out runs/auto[/]\n\n"
    "[bold]recmix train --data mnist --preset best --latent 20 --out runs/best[/]  (several stages)\n\n"
    "[bold]recmix train --config run.toml --out runs/mine --epochs 5[/]  (flags override the file)\n\n"
    "[bold]recmix train --resume --out runs/rme[/]  (continue what was interrupted)"
)
FIT_OPTIONS: dict[str, tuple[Any, str]] = {
    "data": (
        str,
        "Named data set (see `recmix data`), or a path: .npy, .npz, a folder or zip of images.",
    ),
    "data_root": (Path, "Folder of the data sets (default: RECMIX_DATA, then a cache)."),
    "size": (int, "Side to which pictures in files are cut and resized."),
    "crop": (int, "Side of the centred square cut from pictures before that."),
    "split_seed": (int, "Which validation images are held out (default 0)."),
    "method": (str, "Name of the method (see `recmix methods`)."),
    "preset": (
        str,
        "Instead of a method: trainings in stages (see `recmix presets`), or a TOML file of your own. "
        "Options then hold for the last stage, --vae-epochs for the first, --seed, --device, --dtype "
        "and --engine for all.",
    ),
    "latent": (int, "Dimension of z (default 20, or that of --init)."),
    "likelihood": (str, "gaussian or bernoulli (default: by the data)."),
    "network": (str, "conv (the paper's) or dense."),
    "decoder_network": (str, "The same for the decoder."),
    "init": (Path, "Run to start from: the second stage."),
    "out": (Path, "Folder of the new run."),
    "vae_epochs": (int, "Epochs of the VAE that a method trains first when it has no --init."),
    "config": (Path, "TOML file with any of these options; flags override it."),
}


def _add_train(*, with_options: bool) -> None:
    """Register `train`; the flags of all methods only if they are wanted, for they need torch."""
    if any(command.name == "train" for command in app.registered_commands):
        app.registered_commands = [c for c in app.registered_commands if c.name != "train"]

    def listed() -> None:
        pass

    command = _train_with_options() if with_options else listed
    command.__doc__ = _train.__doc__
    app.command("train", epilog=TRAIN_EPILOG)(command)


def _train(**given: Any) -> None:
    """Train a method; every option of the method and of training is a flag."""
    flags = {k: v for k, v in given.items() if v is not None}
    wanted = _read_config(flags["config"]) if "config" in flags else {}
    wanted |= {k: v for k, v in flags.items() if k != "config"}
    resume, overwrite = wanted.pop("resume", False), wanted.pop("overwrite", False)
    for name, value in (("resume", resume), ("overwrite", overwrite)):
        if not isinstance(value, bool):
            raise ConfigError(f"{name} must be true or false, got {value!r}")
    if "out" not in wanted:
        raise ConfigError("no --out was given: name the folder of the new run")
    if not isinstance(wanted["out"], str | Path):
        raise ConfigError(f"out must be a folder, got {wanted['out']!r}")
    if resume:
        there = any((Path(wanted["out"]) / name).exists() for name in ("spec.json", "preset.json"))
        if not ({"method", "preset"} & wanted.keys() or there):
            raise RunError(f"there is no run in {wanted['out']} to resume")
        stored = _stored(Path(wanted["out"])) | wanted
        if "init" in stored and not (Path(stored["init"]) / "spec.json").exists():
            raise RunError(
                f"the run it started from is no longer in {stored['init']}: say where with --init"
            )
        wanted = stored
    for name in ("method", "init"):
        if "preset" in wanted and name in wanted:
            raise ConfigError(f"a preset says itself what is trained: leave --{name} or --preset out")
    for name, listed_by in (("data", "recmix data"), ("method", "recmix methods")):
        if name not in wanted and not (name == "method" and "preset" in wanted):
            raise ConfigError(f"no --{name} was given: `{listed_by}` lists what there is")
    _run_training(wanted, resume=resume, overwrite=overwrite)


def _run_training(wanted: dict[str, Any], *, resume: bool, overwrite: bool) -> None:
    from recmix.data import load, rebuild
    from recmix.run import Run
    from recmix.training.fit import fit
    from recmix.training.world import world

    source, root = wanted.pop("data"), wanted.pop("data_root", None)
    seed, cut = wanted.pop("split_seed", 0), {k: wanted.pop(k, None) for k in ("size", "crop")}
    if isinstance(source, dict):
        data = rebuild(source, root=root)
    else:
        data = load(source, root=root, seed=seed, **cut)
    folder = Path(wanted["out"])
    if world().writer:
        err.print(f"{data.name}: " + ", ".join(f"{n} {part}" for part, n in data.counts.items() if n))
    both: dict[str, Any] = {"resume": resume, "overwrite": overwrite, "progress": True}
    if "preset" in wanted:
        from recmix.presets import fit_preset

        fitted = fit_preset(wanted.pop("preset"), data, **both, **wanted)
    else:
        fitted = fit(wanted.pop("method"), data, **both, **wanted)
    if not world().writer:
        return
    stands = Run(folder).status()
    if fitted.spec.auto:
        out.print(fitted.spec.auto["why"], highlight=False)
    out.print(
        f"{fitted.spec.method}: {len(fitted.history)} epochs, best validation bound "
        f"{stands['best_validation']:.2f} nats at epoch {stands['best_epoch']}. "
        f"Saved in {_plain(folder)}",
        highlight=False,
    )
    out.print(f"Next: recmix evaluate {_plain(folder)}", highlight=False)


def _stored(folder: Path) -> dict[str, Any]:
    """The options of the run in a folder, to continue it."""
    from recmix.run import PRESET, Run

    if (folder / PRESET).exists():
        from recmix.presets import stored

        return stored(folder)
    run = Run(folder)
    if not run.exists:
        return {}
    spec = run.spec()
    if spec.auto and "step of" in spec.auto:
        raise RunError(f"{folder} is a step in the choice of an order: resume the whole, {folder.parent}")
    if "own" in (spec.network, spec.decoder_network):
        raise RunError(f"{folder} has its user's own networks: resume it from Python with recmix.fit")
    init = spec.init or {}
    found: dict[str, Any] = {
        **spec.options,
        **{k: v for k, v in (spec.auto or {}).items() if k != "why"},
        **vars(spec.training),
        "method": spec.method,
        "data": spec.data,
        "latent": spec.latent,
        "likelihood": spec.likelihood,
        "network": spec.network,
        "decoder_network": spec.decoder_network,
    }
    if "weights" in init:
        if init["run"] is None:
            raise RunError(f"{folder} started from a model that was not saved: resume it from Python")
        found["init"] = init["run"]
    elif init:
        found["vae_epochs"] = init["epochs"]
    return found


def _read_config(path: Path) -> dict[str, Any]:
    """Options from a TOML file: at the top, or in the tables [method] (with its name) and [training]."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not TOML: {error}") from error
    flat: dict[str, Any] = {}
    for key, value in content.items():
        if key == "method" and isinstance(value, dict):
            inner = dict(value)
            if "name" in inner:
                flat["method"] = inner.pop("name")
            flat |= inner
        elif key == "training" and isinstance(value, dict):
            flat |= value
        elif isinstance(value, dict):
            raise ConfigError(f"{path}: {unknown('table', key, ['method', 'training'])}")
        else:
            flat[key] = value
    if "config" in flat:
        raise ConfigError(f"{path}: a file cannot name another one with 'config'")
    return flat


def _train_with_options() -> Callable[..., None]:
    """`_train` with one flag for each option there is, typed and described."""
    from recmix.core import METHODS, find_method
    from recmix.options import Option, growth_options, method_options, training_options

    def flag(name: str, kind: Any, about: str, panel: str, default: Any = None) -> inspect.Parameter:
        if default is not None and not isinstance(default, bool):
            about += f" [dim](default {default})[/]"
        option = typer.Option(f"--{name.replace('_', '-')}", help=about, rich_help_panel=panel)
        if kind is bool:
            words = f"--{name.replace('_', '-')}/--no-{name.replace('_', '-')}"
            option = typer.Option(words, help=about, rich_help_panel=panel)
        annotation = Annotated[kind | None, option]
        return inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation
        )

    find_method("vae")  # fills the registry
    parameters = {n: flag(n, kind, about, "The run") for n, (kind, about) in FIT_OPTIONS.items()}
    parameters["resume"] = flag("resume", bool, "Continue the run in --out.", "The run")
    parameters["overwrite"] = flag("overwrite", bool, "Replace the run in --out.", "The run")
    users: dict[str, dict[str, list[str]]] = {}  # option -> what is said of it -> by whom
    options: dict[str, Option] = {}
    for name, cls in sorted(METHODS.items()):
        for option in (method_options(cls) | growth_options(cls)).values():
            users.setdefault(option.name, {}).setdefault(option.help, []).append(name)
            options.setdefault(option.name, option)
    for option in options.values():
        told = users[option.name].items()
        about = " ".join(f"[bold]{', '.join(names)}[/]: {_plain(text)}" for text, names in told)
        parameters.setdefault(option.name, flag(option.name, _flag_type(option.kind), about, "Methods"))
    for option in training_options().values():
        kind = _flag_type(option.kind)
        parameters[option.name] = flag(option.name, kind, option.help, "Training", option.default)

    def train(**given: Any) -> None:
        _train(**given)

    train.__signature__ = inspect.Signature(list(parameters.values()))  # type: ignore[attr-defined]
    train.__annotations__ = {name: p.annotation for name, p in parameters.items()}
    return train


def _flag_type(kind: Any) -> Any:
    """The type of a flag: without None, text for anything that is not a number or a switch."""
    plain = [k for k in (typing.get_args(kind) or (kind,)) if k is not type(None)]
    return plain[0] if len(plain) == 1 and plain[0] in (int, float, bool) else str


if __name__ == "__main__":
    main()
