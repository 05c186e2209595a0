"""`hf-bert push`: a model as a hub repository that loads anywhere, with code and card."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hf_bert_impl import checkpoints
from hf_bert_impl.cli.errors import quiet_libraries
from hf_bert_impl.cli.options import AsJson, Model, refuse_unused
from hf_bert_impl.errors import InputError
from hf_bert_impl.tables import console

if TYPE_CHECKING:
    from hf_bert_impl.hub.pushing import Pushed

_SHOWN = 3


def push(
    context: typer.Context,
    model: Model,
    repo_id: Annotated[
        str, typer.Argument(metavar="REPO_ID", help="NAME or OWNER/NAME on the hub.")
    ],
    dry_run: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Write the repository to this folder; upload nothing."),
    ] = None,
    private: Annotated[
        bool, typer.Option("--private", help="Make a new repository private.")
    ] = False,
    with_code: Annotated[
        bool,
        typer.Option(
            "--with-code/--no-code", help="Bring this BERT's code along, for trust_remote_code."
        ),
    ] = True,
    revision: Annotated[
        str | None,
        typer.Option(help="The branch; made where it is missing.", show_default="main"),
    ] = None,
    license: Annotated[
        str | None,
        typer.Option(
            metavar="ID", help="The model's licence, as in apache-2.0.", show_default="the card's"
        ),
    ] = None,
    base_model: Annotated[
        str | None,
        typer.Option(
            metavar="ID",
            help="The hub id that the model was made from.",
            show_default="the card's, or MODEL",
        ),
    ] = None,
    language: Annotated[
        str | None,
        typer.Option(
            metavar="CODE",
            help="The model's language, as in en, or en,nl.",
            show_default="the card's",
        ),
    ] = None,
    speed: Annotated[
        bool, typer.Option("--speed/--no-speed", help="Time the model for the card.")
    ] = True,
    as_json: AsJson = False,
) -> None:
    """Publish a model on the hub, and see before that it loads without this package.

    The repository gets safetensors, config, tokenizer, the code and a model card. Whoever loads it
    gets transformers' own classes, and with trust_remote_code=True these; another process loads
    both, and the outputs are compared. Models that transformers would compute wrongly are refused
    by it, and load with the code. Exit status 1 where that fails (nothing is uploaded then), 2 for
    bad input and whatever the hub refuses.

    Example: hf-bert push ./trained me/my-bert --dry-run ./repository
    """
    # These take no torch, so that a wrong name is refused at once.
    from hf_bert_impl.files.output_folder import check_output
    from hf_bert_impl.hub.uploading import check_repo_id
    from hf_bert_impl.model_card import language_codes

    check_repo_id(repo_id)
    if base_model is not None:
        check_repo_id(base_model)
    if language is not None:
        language_codes(language)
    for option, value in (("--revision", revision), ("--license", license)):
        if value is not None and not value.strip():
            raise InputError(f"{option} is empty", "a name", "leave it out, or give one")
    if dry_run is not None:
        refuse_unused(context, "with --dry-run", "private", "revision")
        check_output(dry_run, [], None)
    with quiet_libraries():
        from hf_bert_impl.hub.load_check import LoadingFailed
        from hf_bert_impl.hub.pushing import push as publish

        checkpoint = checkpoints.open_checkpoint(model)
        loaded, left_out = checkpoints.load_whole(checkpoint, dtype="auto")
        tokenizer = checkpoints.load_own_tokenizer(checkpoint)
        try:
            pushed = publish(
                loaded,
                repo_id,
                tokenizer=tokenizer,
                dry_run=dry_run,
                private=private or None,
                code=with_code,
                revision=revision,
                source=checkpoint.folder,
                license=license,
                base_model=base_model,
                language=language,
                speed=speed,
            )
        except LoadingFailed as failed:
            if as_json:
                typer.echo(json.dumps(failed.report.to_dict()))
            else:
                failed.report.render(console())
            raise typer.Exit(1) from failed
        except KeyboardInterrupt:
            if dry_run is None:
                typer.echo("interrupted; run the same command again to resume", err=True)
            raise
    if pushed.missing:
        options = " ".join(f"--{name.replace('_', '-')}" for name in pushed.missing)
        typer.echo(f"warning: the model card does not say what {options} would", err=True)
    if as_json:
        report = dataclasses.asdict(pushed) | {
            "loading": pushed.loading.to_dict(),
            "left_out": left_out,
        }
        typer.echo(json.dumps(report))
        return
    _print(pushed, left_out, tokenizer is not None)


def _print(pushed: Pushed, left_out: list[str], has_tokenizer: bool) -> None:
    out = console()
    pushed.loading.render(out)
    for row in pushed.speed:
        out.print(
            f"{row.rows} sequence{'s' * (row.rows > 1)}, {row.tokens} tokens: "
            f"{row.model_ms:.1f} ms, transformers {row.other_ms:.1f} ms: "
            f"[bold]{row.ratio:.2f} times as fast[/] ({row.least:.2f}–{row.greatest:.2f})",
            highlight=False,
        )
    if left_out:
        more = f" and {len(left_out) - _SHOWN} more" if len(left_out) > _SHOWN else ""
        typer.echo(
            f"left out, since its class has no place for them: {', '.join(left_out[:_SHOWN])}{more}"
        )
    if not has_tokenizer:
        typer.echo("MODEL has no tokenizer, so none is in the repository")
    size = sum(pushed.files.values())
    typer.echo(f"{pushed.place}: {len(pushed.files)} files, {size / 1e6:.1f} MB")
