"""Credentials are recognised by name, shape and place, and masked; what only resembles one stays."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from elastic_tpu.runs import masking
from elastic_tpu.runs.errors import BadInput, Infrastructure, Problem
from elastic_tpu.runs.judge.verdict import Verdict
from elastic_tpu.runs.spec import maxtext_config
from elastic_tpu.runs.store import records

JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2lnbmF0dXJl"
PEM = "-----BEGIN RSA PRIVATE KEY-----\nMIIEow\nabc\n-----END RSA PRIVATE KEY-----"
SECRETS = [
    ("hf_abcdefghijklmnopqrstuv", ""),
    ("ghp_0123456789abcdefghij0", ""),
    ("glpat-abcdefghij0123456789", ""),
    ("xoxb-1234567890-abcdefghij", ""),
    ("AKIAIOSFODNN7EXAMPLE", ""),
    ("AIzaSyA-0123456789abcdefghijklmnopqrstu", ""),
    (JWT, ""),
    ("s3cr3t-pass", "postgresql://user:s3cr3t-pass@db:5432/x"),
    ("0123456789abcdef", "https://0123456789abcdef@api.example.org/x"),
    ("a1b2c3", "https://storage.googleapis.com/b/o?X-Goog-Date=2026&X-Goog-Signature=a1b2c3"),
    ("Zm9vYmFyMTIz", "https://x.blob.core.windows.net/c?sv=1&sig=Zm9vYmFyMTIz&se=2"),
    ("abcdefgh12345678", "Authorization: Bearer abcdefgh12345678"),
    ("dXNlcjpwYXNz", "{'authorization': 'Basic dXNlcjpwYXNz'}"),
    ("abc123def456ghi", "WANDB_API_KEY=abc123def456ghi"),
    ("abc123def456ghi", "--wandb-key=abc123def456ghi --steps 5".replace("wandb-key", "wandb_key")),
    ("wJalrXUtnFEMI/K7MDENG", "aws_secret_access_key = wJalrXUtnFEMI/K7MDENG"),
]
HARMLESS = [
    "https://user.example.org/a@b",
    "gs://bucket/runs/a@b/checkpoints",
    "docker.io/library/python@sha256:0123456789abcdef0123456789abcdef",
    "max_tokens: 1234567890123",
    "read 12345678901234 tokens",
    "tokenizer_path=/models/qwen3-0.6b/tokenizer1",
    "the key=abcdef123456789 of an evaluation",
    "no Google credentials: install gcloud-500.0.0 first",
    "step 12, loss 3.25: token 17 of 128",
    "git@github.com:org/repo.git",
]


@pytest.fixture(autouse=True)
def nothing_remembered() -> Iterator[None]:
    yield
    masking._known.clear()


@pytest.mark.parametrize(("secret", "text"), [(s, t or f"in {s} a text") for s, t in SECRETS])
def test_a_credential_is_masked_wherever_it_is_told(secret: str, text: str) -> None:
    masked = masking.mask(text)
    assert secret not in masked
    assert masking.HIDDEN in masked
    assert masking.mask(masked) == masked
    assert masking.looks_secret("x", text)
    told = [str(Infrastructure(text)), str(BadInput([Problem("x", text, "cure")]))]
    told += [Verdict("done", reason=text).reason, str(Verdict("done", evidence={"tail": [text]}).evidence)]
    told += [records.dump({"a": {"reason": text}}).decode(), records.seal({"tail": [text]}).decode()]
    assert not [one for one in told if secret in one]


def test_a_sealed_record_with_a_credential_still_proves_itself() -> None:
    assert records.load(records.seal({"reason": JWT}), "x")["reason"] == masking.HIDDEN


def test_a_private_key_is_masked_to_its_last_line() -> None:
    assert masking.mask(f"before\n{PEM}\nafter") == f"before\n{masking.HIDDEN}\nafter"
    assert "MIIEow" not in masking.mask(PEM[:50])  # cut off


@pytest.mark.parametrize("text", HARMLESS)
def test_what_only_resembles_one_stays(text: str) -> None:
    assert masking.mask(text) == text


@pytest.mark.parametrize(
    "key",
    [
        "hf_access_token",
        "wandb_key",
        "aws_secret_access_key",
        "private_key",
        "accessToken",
        "clientSecret",
        "db.password",
    ],
)
def test_a_name_says_that_its_value_is_one(key: str) -> None:
    assert masking.looks_secret(key, "x")
    assert not masking.looks_secret(key, "")


def test_no_key_of_maxtext_is_taken_for_one_by_its_default() -> None:
    wrong = [key for key, value in maxtext_config.base().items() if masking.looks_secret(key, value)]
    assert wrong == []


def test_the_value_of_a_secret_that_a_spec_refers_to_is_masked() -> None:
    masking.remember(["open-sesame", "short"])
    assert masking.mask("it is open-sesame, a short one") == f"it is {masking.HIDDEN}, a short one"
