"""A tokenizer of one token a byte, in Hugging Face format: good for a trial, since nothing is trained or fetched."""

from __future__ import annotations

import json
from pathlib import Path

SPECIAL = {"pad_token": "<pad>", "bos_token": "<bos>", "eos_token": "<eos>", "unk_token": "<unk>"}
IDS = 256 + len(SPECIAL)


def write(folder: Path) -> None:
    """Write what `transformers.AutoTokenizer` loads: 256 bytes and 4 special tokens."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    vocabulary = [*SPECIAL.values(), *sorted(pre_tokenizers.ByteLevel.alphabet())]
    model = models.BPE({token: i for i, token in enumerate(vocabulary)}, merges=[], unk_token=SPECIAL["unk_token"])
    tokenizer = Tokenizer(model)
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in SPECIAL.values()])
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        **SPECIAL,
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": 1 << 20,
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1, sort_keys=True) + "\n")
