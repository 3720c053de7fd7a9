"""`budgetrec reproduce`: the studies behind the rule, each from one command."""

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from budgetrec.cli import app
from budgetrec.cli.console import counted, print_json, stdout
from budgetrec.study.scale import Scale

reproduce = typer.Typer(
    help="Run a study of the theory and draw its figures.", no_args_is_help=True, rich_markup_mode=None
)
app.add_typer(reproduce, name="reproduce")

Output = Annotated[Path, typer.Option("--output", "-o", help="Folder for tables and figures.")]
HowMuch = Annotated[Scale, typer.Option("--scale", help="Seconds, minutes, or the size of the paper.")]
Seed = Annotated[int, typer.Option("--seed", help="The same seed gives the same numbers.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace an earlier result.")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")]


@reproduce.command("lognormal")
def reproduce_lognormal(
    output: Output,
    scale: HowMuch = Scale.SMALL,
    seed: Seed = 0,
    overwrite: Overwrite = False,
    json: AsJson = False,
) -> None:
    """Compare approximations of a sum of lognormals with Monte Carlo."""
    from budgetrec.files import new_folder
    from budgetrec.study.lognormal import count_cells, draw_densities, study_lognormal
    from budgetrec.study.outputs import FILES, write_study

    settings = {"study": "lognormal", "scale": scale.value, "seed": seed}
    with new_folder(output, overwrite=overwrite, files=FILES) as folder:
        with counted("sums of lognormals", count_cells(scale)) as progress:
            study = study_lognormal(scale=scale, seed=seed, progress=progress)
        files = write_study(
            folder,
            settings=settings,
            tables={"distances": study.distances, "densities": study.densities},
            charts={"densities": draw_densities(study.densities)},
        )
    rows = study.distances.to_dicts()
    if json:
        print_json({**settings, "output": str(output), "files": files, "rows": rows})
        return
    table = Table("sigma", "k", "approximation", "KS distance", "Wasserstein / mean", box=None)
    for row in rows:
        table.add_row(
            f"{row['sigma']:g}",
            str(row["num_terms"]),
            row["approximation"],
            f"{row['ks_distance']:.4f}",
            f"{row['wasserstein_over_mean']:.4f}",
        )
    stdout.print(table)
    stdout.print(f"wrote {', '.join(files)} to {output}")


@reproduce.command("variance")
def reproduce_variance(
    output: Output,
    scale: HowMuch = Scale.SMALL,
    seed: Seed = 0,
    overwrite: Overwrite = False,
    json: AsJson = False,
) -> None:
    """Simulate the gradient noise over batch size, negatives and sharing, and compare it with the law."""
    from budgetrec.files import new_folder
    from budgetrec.study.outputs import FILES, write_study
    from budgetrec.study.variance import count_cells, largest_error, study_variance
    from budgetrec.study.variance_figures import draw_errors, draw_noise

    settings = {"study": "variance", "scale": scale.value, "seed": seed}
    with new_folder(output, overwrite=overwrite, files=FILES) as folder:
        with counted("gradient noise", count_cells(scale)) as progress:
            frame = study_variance(scale=scale, seed=seed, progress=progress)
        files = write_study(
            folder,
            settings=settings,
            tables={"noise": frame},
            charts={"noise": draw_noise(frame), "errors": draw_errors(frame)},
        )
    error = largest_error(frame)
    rows = frame.to_dicts()
    if json:
        print_json(
            {
                **settings,
                "output": str(output),
                "files": files,
                "max_relative_error": error,
                "rows": rows,
            }
        )
        return
    table = Table(box=None, padding=(0, 1, 0, 0))
    for column in ("features", "negatives", "n", "k", "G", "measured", "law", "error", "k+rho", "1/k"):
        table.add_column(
            column, no_wrap=True, justify="left" if column in ("features", "negatives") else "right"
        )
    for row in rows:
        table.add_row(
            row["features"],
            row["sharing"],
            str(row["batch_size"]),
            str(row["num_negatives"]),
            str(row["num_groups"]),
            f"{row['measured']:.4g}",
            f"{row['law']:.4g}",
            f"{row['law_error']:+.1%}",
            f"{row['saturating_error']:+.1%}",
            f"{row['leading_error']:+.1%}",
        )
    stdout.print(table)
    stdout.print(
        f"largest error of the law where A2 holds and k >= 8: {error:.1%}; "
        f"wrote {', '.join(files)} to {output}"
    )


@reproduce.command("trained-noise")
def reproduce_trained_noise(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run of budgetrec train.")],
    output: Output,
    scale: HowMuch = Scale.SMALL,
    seed: Seed = 0,
    overwrite: Overwrite = False,
    json: AsJson = False,
) -> None:
    """Measure the gradient noise of a trained model's output layer, and compare it with the law."""
    from budgetrec.files import new_folder
    from budgetrec.runs import Run
    from budgetrec.study.outputs import FILES, write_study
    from budgetrec.study.trained import count_cells, study_trained

    opened = Run.open(run)
    settings = {"study": "trained-noise", "scale": scale.value, "seed": seed, "run": opened.config.to_dict()}
    with new_folder(output, overwrite=overwrite, files=FILES) as folder:
        with counted("gradient noise", count_cells(scale)) as progress:
            frame = study_trained(opened, scale=scale, seed=seed, progress=progress)
        files = write_study(folder, settings=settings, tables={"noise": frame}, charts={})
    rows = frame.to_dicts()
    if json:
        print_json({**settings, "output": str(output), "files": files, "rows": rows})
        return
    table = Table("negatives", "n", "k", "G", "measured", "law", "error", box=None, padding=(0, 1, 0, 0))
    for row in rows:
        table.add_row(
            row["sharing"],
            str(row["batch_size"]),
            str(row["num_negatives"]),
            str(row["num_groups"]),
            f"{row['measured']:.4g} +- {row['standard_error']:.2g}",
            f"{row['law']:.4g}",
            f"{row['law_error']:+.1%}",
        )
    stdout.print(table)
    stdout.print(f"wrote {', '.join(files)} to {output}")
