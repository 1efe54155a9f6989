"""MaxText's configuration as data: overrides are checked against the installed wheel, without importing it."""

from __future__ import annotations

from pathlib import Path

import pytest
from elastic_tpu.runs.masking import looks_secret
from elastic_tpu.runs.spec import maxtext_config
from elastic_tpu.runs.spec.plan import maxtext_overrides
from elastic_tpu.tests.tools.small import gke, spec

_DERIVED = ("checkpoint_dir", "tensorboard_dir", "base_config")  # MaxText makes them from others, or takes them first


def told(**overrides: object) -> list[str]:
    return [str(problem) for problem in maxtext_config.check_overrides(overrides)]


def test_the_wheels_files_are_read() -> None:
    assert maxtext_config.base()["per_device_batch_size"] > 0
    assert "qwen3-0.6b" in maxtext_config.models()
    assert maxtext_config.model("qwen3-0.6b")["decoder_block"] == "qwen3"
    assert maxtext_config.model("no-such-model") == {}
    assert maxtext_config.resolved("qwen3-0.6b", {"base_emb_dim": 96})["base_emb_dim"] == 96


@pytest.mark.parametrize("key", sorted(maxtext_config.OWNED))
def test_each_owned_key_exists_and_is_refused_with_the_field_that_decides_it(key: str) -> None:
    assert key in maxtext_config.base() or key in _DERIVED, "MaxText knows no such key"
    (line,) = told(**{key: 1})
    assert f"use {maxtext_config.OWNED[key]}" in line


def test_whatever_the_product_sets_is_owned_or_a_default_that_may_be_overridden() -> None:
    may_be_overridden = {
        "grain_worker_count",
        "enable_goodput_recording",
        "log_config",
        "attention",
        "enable_tensorboard",
    }
    for one in (spec(), spec(**gke()), spec(recovery=False, data={"train": "/d/x.jsonl"})):
        keys = set(maxtext_overrides(one))
        assert keys - may_be_overridden <= set(maxtext_config.OWNED)
        assert keys <= {*maxtext_config.base(), *_DERIVED}


@pytest.mark.parametrize(
    ("key", "value", "secret"),
    [
        ("hf_access_token", "hf_x", True),
        ("wandb_api_key", "x", True),
        ("password", "x", True),
        ("anything", "hf_abcdefghijklmnopqrstuv", True),
        ("anything", "use hf_abcdefghijklmnopqrstuv", True),
        ("anything", "ghp_0123456789abcdefghij0", True),
        ("anything", "-----BEGIN PRIVATE KEY-----", True),
        ("hf_access_token", "", False),
        ("num_experts_per_tok", 8, False),
        ("max_target_length", "8", False),
        ("tokenizer_path", "hf_tokenizers", False),
        ("token_count_metric", "x", False),
    ],
)
def test_credentials(key: str, value: object, secret: bool) -> None:
    assert looks_secret(key, value) is secret


def test_a_credential_is_not_repeated() -> None:
    (line,) = told(hf_access_token="sesame")
    assert "sesame" not in line
    assert "secrets" in line


@pytest.mark.parametrize(
    ("key", "value", "normal"),
    [
        ("base_emb_dim", "20", 20),  # E08
        ("base_emb_dim", 20.0, 20),
        ("base_emb_dim", "20.0", 20),
        ("base_emb_dim", 20.5, 20.5),
        ("learning_rate", "3e-5", 3e-5),  # YAML 1.1 takes this for text
        ("learning_rate", 1, 1),
        ("packing", "False", False),
        ("packing", "true", True),
        ("packing", "maybe", "maybe"),
        ("run_name", "20", "20"),
        ("base_emb_dim", "0x10", "0x10"),
        ("no_such_key", "20", "20"),
    ],
)
def test_text_is_what_it_stands_for_where_maxtexts_default_says_so(key: str, value: object, normal: object) -> None:
    found = maxtext_config.normalised({key: value})[key]
    assert (found, type(found)) == (normal, type(normal))


def test_every_default_of_maxtext_is_a_valid_override() -> None:
    owned_or_secret = {*maxtext_config.OWNED, "hf_access_token"}
    defaults = {key: value for key, value in maxtext_config.base().items() if key not in owned_or_secret}
    assert told(**maxtext_config.normalised(defaults)) == []


def test_every_models_keys_are_valid_overrides() -> None:
    for name in maxtext_config.models():
        keys = {k: v for k, v in maxtext_config.model(name).items() if k in maxtext_config.base()}
        free = {k: v for k, v in keys.items() if k not in maxtext_config.OWNED}
        assert told(**maxtext_config.normalised(free)) == [], name


def test_with_no_maxtext_here_nothing_is_refused_that_it_would_have_to_know(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(maxtext_config, "configs_folder", lambda: None)
    maxtext_config._read.cache_clear()
    try:
        assert maxtext_config.check_model("anything") == []
        assert told(whatever=1) == []
        assert len(told(run_name="x", hf_access_token="x")) == 2
    finally:
        monkeypatch.undo()
        maxtext_config._read.cache_clear()
