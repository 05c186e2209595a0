"""Options of a push; the fields are the options of `hf-bert push`."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from hf_bert_impl.errors import InputError
from hf_bert_impl.files.output_folder import check_output


@dataclasses.dataclass(frozen=True)
class PushOptions:
    """How a model is published."""

    dry_run: Path | None = None
    """Write the repository to this new or empty folder; upload nothing."""
    private: bool = False
    """Make a new repository private."""
    code: bool = True
    """Include this package's code, for trust_remote_code."""
    revision: str | None = None
    """The branch, created if missing; None for main."""
    license: str | None = None
    """The model's licence, as in apache-2.0; None for the card's."""
    base_model: str | None = None
    """The hub id of the base model; None for the card's, or MODEL."""
    language: str | None = None
    """The model's language, as in en, or en,nl; None for the card's."""
    speed: bool = True
    """Measure the speed for the card."""

    def check(self, repo_id: str) -> None:
        """Checks the options before anything is loaded.

        Raises:
            ValueError: A name, a language or the folder is invalid, or an option has no effect.
        """
        from hf_bert_impl.hub.uploading import check_repo_id
        from hf_bert_impl.model_card import language_codes

        check_repo_id(repo_id)
        if self.base_model is not None:
            check_repo_id(self.base_model)
        if self.language is not None:
            language_codes(self.language)
        for name in ("revision", "license"):
            value = getattr(self, name)
            if value is not None and not value.strip():
                raise InputError(f"`{name}` is empty. Leave it out, or give a value.", name)
        if self.dry_run is not None:
            for name in ("private", "revision"):
                if getattr(self, name):
                    raise InputError(
                        f"`{name}` has no effect with `dry_run`. Leave it out.", f"{name} dry_run"
                    )
            check_output(self.dry_run, [], None)
