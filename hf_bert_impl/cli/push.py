"""`hf-bert push`: publishes a model with code and card on the hub."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, ClassVar

import typer

from hf_bert_impl.checkpoints import open_checkpoint
from hf_bert_impl.cli.errors import quiet_libraries
from hf_bert_impl.cli.reports import failure_shown, show_speed
from hf_bert_impl.cli.shared_options import only
from hf_bert_impl.files.json_files import to_json
from hf_bert_impl.hub.options import PushOptions
from hf_bert_impl.tables import console

if TYPE_CHECKING:
    from hf_bert_impl.hub.pushing import Pushed

_SHOWN = 3


@dataclasses.dataclass(frozen=True, kw_only=True)
class Push(PushOptions):
    """Publish a model on the hub, after a check that it loads without this package.

    The repository has weights, config, tokenizer, code and a model card. It loads as transformers'
    own classes, or with trust_remote_code=True as this package's. Before the upload, another
    process loads both and compares the outputs. If they differ, the upload is cancelled and the
    exit status is 1.

    Example: hf-bert push ./trained me/my-bert --dry-run ./repository
    """

    TAKES_BARE: ClassVar = True

    model: str
    repo_id: str
    """NAME or OWNER/NAME on the hub."""
    as_json: bool = False

    def run(self) -> None:
        """Publishes, and prints what was published."""
        self.check(self.repo_id)
        with quiet_libraries():
            checkpoint = open_checkpoint(self.model)
            from hf_bert_impl.hub.pushing import push
            from hf_bert_impl.inference.loading import load_own_tokenizer, load_whole

            loaded, left_out = load_whole(checkpoint, dtype="auto")
            tokenizer = load_own_tokenizer(checkpoint.path)
            options = dataclasses.asdict(only(PushOptions, self))
            try:
                with failure_shown(self.as_json):
                    pushed = push(
                        loaded,
                        self.repo_id,
                        tokenizer=tokenizer,
                        source=checkpoint.folder,
                        **options,
                    )
            except KeyboardInterrupt:
                if self.dry_run is None:
                    typer.echo("interrupted; run the same command again to resume", err=True)
                raise
        if pushed.missing:
            flags = " ".join(f"--{name.replace('_', '-')}" for name in pushed.missing)
            typer.echo(f"warning: the model card lacks what {flags} would add", err=True)
        if self.as_json:
            typer.echo(to_json(vars(pushed) | {"left_out": left_out}))
        else:
            _print(pushed, left_out, tokenizer is not None)


def _print(pushed: Pushed, left_out: list[str], has_tokenizer: bool) -> None:
    pushed.loading.render(console())
    if pushed.speed:
        show_speed(pushed.speed)
    if left_out:
        more = f" and {len(left_out) - _SHOWN} more" if len(left_out) > _SHOWN else ""
        typer.echo(
            f"not published, as the class does not use them: {', '.join(left_out[:_SHOWN])}{more}"
        )
    if not has_tokenizer:
        typer.echo("MODEL has no tokenizer, so the repository has none")
    size = sum(pushed.files.values())
    typer.echo(f"{pushed.place}: {len(pushed.files)} files, {size / 1e6:.1f} MB")
