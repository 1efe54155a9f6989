"""The tokenizer of an export: which files it consists of, how many ids it uses, and its special tokens.

Read without transformers, which takes seconds and hundreds of megabytes to import. A tokenizer is a folder (local or
``gs://``) or a Hugging Face repository that has a tokenizer.json.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from etils import epath
from tokenizers import Tokenizer

from ...runs.errors import BadInput, Problem

# What a tokenizer folder may hold; anything else in it (weights, a readme) is not copied.
NAMES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
    "tokenizer.model",
)
_CURE = "name a folder or a Hugging Face repository with a tokenizer.json"


@dataclass(frozen=True)
class TokenizerFiles:
    """A tokenizer's files by name, the ids it needs (largest id + 1), and the ids of its special tokens."""

    files: Mapping[str, epath.Path]
    size: int
    bos: int | None
    eos: int | None
    pad: int | None

    def load(self) -> Tokenizer:
        """The tokenizer itself."""
        return Tokenizer.from_str(self.files["tokenizer.json"].read_text())


def find_tokenizer(tokenizer: str) -> TokenizerFiles:
    """The tokenizer in a folder or a Hugging Face repository.

    Raises:
      BadInput: there is none, or its files cannot be read.
    """
    folder = epath.Path(tokenizer)
    if not (folder / "tokenizer.json").exists():
        if tokenizer.startswith("gs://") or folder.exists() or tokenizer.startswith(("/", ".")):
            raise BadInput([Problem("model.tokenizer", tokenizer, f"has no tokenizer.json; {_CURE}")])
        folder = epath.Path(_download(tokenizer))
    files = {name: folder / name for name in NAMES if (folder / name).exists()}
    if "tokenizer.json" not in files:
        raise BadInput([Problem("model.tokenizer", tokenizer, f"has no tokenizer.json; {_CURE}")])
    try:
        loaded = Tokenizer.from_str(files["tokenizer.json"].read_text())
    except Exception as error:
        raise BadInput([Problem("model.tokenizer", str(folder), f"tokenizer.json cannot be read: {error}")]) from error
    settings = {**_settings(files, "special_tokens_map.json"), **_settings(files, "tokenizer_config.json")}

    def identify(role: str) -> int | None:
        token = settings.get(role)
        text = token.get("content") if isinstance(token, dict) else token
        return loaded.token_to_id(text) if isinstance(text, str) else None

    return TokenizerFiles(
        files=files,
        size=max(loaded.get_vocab(with_added_tokens=True).values(), default=-1) + 1,
        bos=identify("bos_token"),
        eos=identify("eos_token"),
        pad=identify("pad_token"),
    )


def _download(repository: str) -> str:
    from huggingface_hub import snapshot_download

    try:
        return snapshot_download(repository, allow_patterns=list(NAMES))
    except Exception as error:
        cure = f"is neither a folder nor a Hugging Face repository that can be read ({error}); {_CURE}"
        raise BadInput([Problem("model.tokenizer", repository, cure)]) from error


def _settings(files: Mapping[str, epath.Path], name: str) -> Mapping[str, Any]:
    if name not in files:
        return {}
    try:
        value = json.loads(files[name].read_text())
    except ValueError as error:
        raise BadInput([Problem("model.tokenizer", str(files[name]), f"is not valid JSON: {error}")]) from error
    return value if isinstance(value, dict) else {}
