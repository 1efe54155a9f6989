"""What looks like a credential, and text without it: the one place that knows. Standard library only.

Specs with a credential are refused (`looks_secret`). Text that comes from elsewhere, such as the last log line of a
trainer, is masked before it is written to a record, told as a reason or raised as an error (`mask`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any
from urllib.parse import quote

HIDDEN = "<hidden>"
_SHORTEST = 8  # characters of a secret's value that is looked for: a shorter one would hide words

_WORDS = (
    r"(?:token|api_?key|access_?key|private_?key|wandb_?key|secret|passw(?:or)?d|passphrase|credentials?|authorization)"
)

# Shapes that services give to their keys; see each service's documentation, and GitHub's list of secret scanning.
_SHAPES = (
    r"\bhf_[A-Za-z0-9]{20,}",  # Hugging Face
    r"\bgh[pousr]_\w{20,}|\bgithub_pat_\w{20,}",
    r"\bglpat-[\w-]{16,}",  # GitLab
    r"\bAIza[\w-]{30,}|\bya29\.[\w-]{8,}|\bGOCSPX-[\w-]{20,}",  # Google: API key, access token, OAuth client
    r"\bsk-[\w-]{20,}",  # OpenAI, Anthropic
    r"\bxox[abeoprs]-[\w-]{10,}|\bxapp-[\w-]{10,}|(?<=hooks\.slack\.com/services/)[\w/]{10,}",  # Slack
    r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b",  # AWS
    r"\beyJ[\w-]{8,}\.eyJ[\w-]{8,}(?:\.[\w-]*)?",  # JSON Web Token, RFC 7519
    r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----(?:.*?-----END [A-Z ]{0,40}PRIVATE KEY-----|.*)",  # RFC 7468
)
# Each with a group `keep`, which stays, before what is hidden.
_IN_CONTEXT = (
    # The user information of a URL, RFC 3986 3.2.1: with a password, or for HTTP any.
    # Lengths are bounded and a scheme begins where no part of one precedes, so that no text takes more than its length.
    r"(?P<keep>(?<![a-z0-9+.-])[a-z][a-z0-9+.-]{0,30}://[^\s/@:'\"]{0,256}:)[^\s/'\"]{1,1024}(?=@)",
    r"(?P<keep>\bhttps?://)[^\s/'\"]{1,1024}(?=@)",
    # Signatures and tokens in the query of a URL.
    r"(?P<keep>[?&#;](?:x-goog-signature|x-amz-signature|x-amz-security-token|signature|sig|(?:access_|id_|refresh_)?token"
    r"|api[_-]?key|key|client_secret|passw(?:or)?d)=)[^\s&'\"]+",
    r"(?P<keep>\bauthorization['\"]?\s*[:=]\s*['\"]?(?:(?:bearer|basic|token)\s+)?)[^\s'\"]{8,}",
    r"(?P<keep>\bbearer\s+)[\w.~+/-]{16,}=*",
    # An assignment to a name of a secret, of a value with a letter and a digit.
    rf"(?P<keep>{_WORDS}s?['\"]?\s{{0,9}}[:=]\s{{0,9}}['\"]?)"
    r"(?=[^\s'\",;]{0,255}[0-9])(?=[^\s'\",;]{0,255}[A-Za-z])[^\s'\",;<]{12,}",
    # No word of prose follows this name without a space.
    r"(?P<keep>(?:passw(?:or)?d|passphrase)=['\"]?)[^\s'\",;<$&]{6,}",
)

_LAST_OF_KEY = re.compile(r"-----END [A-Z ]{0,40}PRIVATE KEY-----")
_PLAIN_WORD = re.compile(r"[a-z_]{1,16}")
_BASE64 = re.compile(r"[A-Za-z0-9+/=]{1,76}")

_known: set[str] = set()


@cache
def _shapes() -> re.Pattern[str]:
    return re.compile("|".join(_SHAPES), re.DOTALL)


@cache
def _in_context() -> tuple[re.Pattern[str], ...]:
    return tuple(re.compile(pattern, re.IGNORECASE) for pattern in _IN_CONTEXT)


@cache
def _key() -> re.Pattern[str]:
    return re.compile(rf"(?:^|[_.-]|(?<=[a-z]))(?:{_WORDS}|bearer)s?$")


def looks_secret(key: str, value: object) -> bool:
    """Whether a value seems to be a credential, which must not get into files, arguments and reports.

    Args:
      key: the name that the value stands under; empty if it has none.
    """
    if not isinstance(value, str) or not value:
        return False
    name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", key).lower()
    return bool(_key().search(name)) or mask(value) != value


def remember(values: Iterable[str]) -> None:
    """Mask these values as well from now on: those of the secrets that a spec refers to.

    One that is a plain word or shorter than `_SHORTEST` is not looked for: records and messages hold such words
    themselves, and a phase that is hidden would be damage.
    """
    for value in values:
        # A log is told line by line, and a URL has its own spelling of a value.
        spellings = {value, quote(value, safe=""), *map(str.strip, value.splitlines())}
        _known.update(text for text in spellings if len(text) >= _SHORTEST and not _PLAIN_WORD.fullmatch(text))


def mask(text: str) -> str:
    """The text without what looks like a credential; masking twice changes nothing more."""
    for value in sorted(_known, key=len, reverse=True):
        text = text.replace(value, HIDDEN)
    text = _without_cut_keys(_shapes().sub(HIDDEN, text))
    for pattern in _in_context():
        text = pattern.sub(rf"\g<keep>{HIDDEN}", text)
    return text


def _without_cut_keys(text: str) -> str:
    """The text without a private key whose first lines were cut off: lines of base64 up to its last line."""
    if not _LAST_OF_KEY.search(text):
        return text
    kept: list[str] = []
    inside = False
    for line in reversed(text.split("\n")):
        if _LAST_OF_KEY.search(line):
            inside = True
            kept.append(_LAST_OF_KEY.sub(HIDDEN, line))
        elif not (inside and _BASE64.fullmatch(line.strip())):
            inside = False
            kept.append(line)
    return "\n".join(reversed(kept))


def mask_all(value: Any) -> Any:
    """Plain data with every text in it masked; keys stay as they are."""
    if isinstance(value, str):
        return mask(value)
    if isinstance(value, Mapping):
        return {key: mask_all(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [mask_all(inner) for inner in value]
    return value
