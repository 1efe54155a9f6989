"""Credentials are recognised by name, shape and place, and masked; what only resembles one stays."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from elastic_tpu.runs import masking
from elastic_tpu.runs.errors import BadInput, Infrastructure, Problem
from elastic_tpu.runs.judge.verdict import Observation, Verdict
from elastic_tpu.runs.record.status import Status, load_status
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
    ("GOCSPX-abcdefghijklmnopqrstuvwx", ""),
    ("xapp-1-A0123-4567-abcdef", ""),
    ("T000/B000/abcdefghijkl", "https://hooks.slack.com/services/T000/B000/abcdefghijkl"),
    ("ss@db-pass", "postgresql://user:pa@ss@db-pass@db:5432/x"),
    ("abcdef", "https://x.example.org/callback#access_token=abcdef"),
    ("abcdef", "https://x.example.org/?a=1&amp;refresh_token=abcdef"),
    ("abcdef", "https://x.example.org/?client_secret=abcdef&b=1"),
    ("correct-horse", "connect: host=db password=correct-horse"),
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
    "https://github.com/org/repo@v1.2.3",
    "password: a field that is required",
    "password=$DB_PASSWORD",
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


def test_a_secret_that_is_a_plain_word_damages_no_record() -> None:
    masking.remember(["training"])
    status = Status("r", 1, "n", phase="training")
    assert load_status(records.load(status.dump(), "status.json")) == status


def test_a_secret_is_known_line_by_line_and_as_a_url_spells_it() -> None:
    masking.remember(["first-line\nsecond/line==\n", "third/line=="])
    masked = masking.mask("at second/line== of it, https://x/?v=third%2Fline%3D%3D")
    assert masked == f"at {masking.HIDDEN} of it, https://x/?v={masking.HIDDEN}"


def test_a_private_key_whose_beginning_was_cut_off_is_masked() -> None:
    end = "\n".join(["MIIE" + "x" * 60] * 11 + ["-----END PRIVATE KEY-----"])
    assert masking.mask(f"{end}\nafter") == f"{masking.HIDDEN}\nafter"


@pytest.mark.parametrize(
    "part",
    ["token=", "a-", "a.", "a+", "bearer ", "https://", "eyJaaaaaaaa.", "a:@", "AAAA\n", "-----END PRIVATE KEY-----\n"],
)
def test_a_text_takes_time_by_its_length_only(part: str) -> None:
    """A writer of the run directory keeps no reader busy."""
    began = time.process_time()
    masking.mask((part * 200_000)[:200_000])
    assert time.process_time() - began < 2.0  # seconds; it was minutes


def test_what_a_platform_shows_of_a_job_is_masked() -> None:
    seen = Observation("over", detail=f"trainer exited 70: GET {JWT}", evidence={"tail": [JWT]})
    assert JWT not in seen.detail + str(seen.evidence)
