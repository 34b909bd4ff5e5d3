"""Tokenizers, each with a tiny model made here."""

import base64
import json
import subprocess
import sys
import urllib.request
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

from primus.engine.config import TokenizerConfig
from primus.engine.data.prepare import train_tokenizer
from primus.engine.data.tokenizer import build_tokenizer
from primus.errors import InputError

TEXT = "The quick brown fox jumps over the lazy dog, 42 times.\nÄpfel und Birnen.\n" * 30
ALIASES = ["HuggingFaceTokenizer"] + [
    f"{name}Tokenizer"
    for name in ("Llama2", "Llama3", "Llama4", "Mixtral", "DeepSeekV2", "DeepSeekV3", "DeepSeekV4", "KimiK2", "Lfm2")
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a byte-level BPE tokenizer."""
    base = tmp_path_factory.mktemp("tokenizer")
    (base / "text.txt").write_text(TEXT)
    train_tokenizer([str(base / "text.txt")], base / "bpe", vocab_size=300, show_progress=False)
    return base / "bpe"


def check_round_trip(tokenizer: Any, text: str = TEXT) -> None:
    ids = tokenizer.tokenize(text)
    assert tokenizer.detokenize(ids) == text
    assert tokenizer.tokenize_many([text, "", "fox"]) == [ids, [], tokenizer.tokenize("fox")]
    assert 0 <= min(ids) <= max(ids) < tokenizer.vocab_size
    assert 0 <= tokenizer.eod < tokenizer.vocab_size
    assert tokenizer.eod not in ids


@pytest.mark.parametrize("kind", ALIASES)
def test_hugging_face_folders_open_under_every_alias(kind: str, folder: Path) -> None:
    tokenizer = build_tokenizer(TokenizerConfig(type=kind, model=str(folder)))
    check_round_trip(tokenizer)
    assert tokenizer.detokenize([tokenizer.eod]) == "<|endoftext|>"


def test_a_local_folder_needs_neither_torch_nor_transformers(folder: Path) -> None:
    code = (
        "import sys\nfrom primus.engine.config import TokenizerConfig\n"
        "from primus.engine.data.tokenizer import build_tokenizer\n"
        f"build_tokenizer(TokenizerConfig(type='HuggingFaceTokenizer', model={str(folder)!r})).tokenize('fox')\n"
        "assert not {'torch', 'transformers', 'sentencepiece', 'tiktoken'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_transformers_counts_and_cuts_a_folder_alike(folder: Path) -> None:
    plain = build_tokenizer(TokenizerConfig(type="HuggingFaceTokenizer", model=str(folder)))
    other = build_tokenizer(TokenizerConfig(type="HuggingFaceTokenizer", model=str(folder), trust_remote_code=True))
    check_round_trip(other)
    assert type(plain) is not type(other)
    assert (plain.vocab_size, plain.eod, plain.tokenize(TEXT)) == (other.vocab_size, other.eod, other.tokenize(TEXT))


def test_added_tokens_count_in_the_vocabulary(folder: Path, tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.add_special_tokens([AddedToken("<|user|>")])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": "<|user|>"}}))
    opened = build_tokenizer(TokenizerConfig(type="HuggingFaceTokenizer", model=str(tmp_path)))
    assert opened.vocab_size == tokenizer.get_vocab_size() == opened.eod + 1


def test_a_hub_out_of_reach_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def refuse(request: urllib.request.Request, timeout: float) -> None:
        asked.append(request.full_url)
        raise OSError("no route")

    monkeypatch.setattr(urllib.request, "urlopen", refuse)
    with pytest.raises(InputError, match="tokenizer_model no/such is neither a folder with a tokenizer nor a hub id"):
        build_tokenizer(TokenizerConfig(type="HuggingFaceTokenizer", model="no/such"))
    assert len(asked) == 1


def test_folders_that_cannot_serve_are_refused_with_a_reason(folder: Path, tmp_path: Path) -> None:
    config = TokenizerConfig(type="HuggingFaceTokenizer", model=str(tmp_path))
    with pytest.raises(
        InputError, match=r"folder without a tokenizer that can be opened: it needs a tokenizer\.json.*config\.json$"
    ):
        build_tokenizer(config)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(InputError, match=r"tokenizer\.json cannot be read"):
        build_tokenizer(config)
    (tmp_path / "tokenizer.json").write_bytes((folder / "tokenizer.json").read_bytes())
    with pytest.raises(InputError, match="names no eos_token of the vocabulary"):
        build_tokenizer(config)
    for wrong in ("{", "[]", '{"eos_token": 3}', '{"eos_token": {}}'):
        (tmp_path / "tokenizer_config.json").write_text(wrong)
        with pytest.raises(InputError, match=r"tokenizer_config\.json cannot be read"):
            build_tokenizer(config)
    with pytest.raises(InputError, match="tokenizer_model /nowhere/at/all is neither a folder with a tokenizer nor a hub id"):
        build_tokenizer(replace(config, model="/nowhere/at/all"))
    with pytest.raises(InputError, match="needs tokenizer_model"):
        build_tokenizer(replace(config, model=None))


@pytest.mark.parametrize("kind", ["SentencePieceTokenizer", "GPTSentencePieceTokenizer"])
def test_sentencepiece_models_open(kind: str, tmp_path: Path) -> None:
    import sentencepiece

    (tmp_path / "text.txt").write_text(TEXT)
    settings = {"vocab_size": 60, "model_type": "bpe", "normalization_rule_name": "identity", "minloglevel": 2}
    sentencepiece.SentencePieceTrainer.train(input=str(tmp_path / "text.txt"), model_prefix=str(tmp_path / "m"), **settings)
    tokenizer = build_tokenizer(TokenizerConfig(type=kind, model=str(tmp_path / "m.model")))
    assert tokenizer.vocab_size == 60
    check_round_trip(tokenizer, "The quick brown fox")
    assert tokenizer.eod == 2
    with pytest.raises(InputError, match=r"m\.vocab is not a SentencePiece model"):
        build_tokenizer(TokenizerConfig(type=kind, model=str(tmp_path / "m.vocab")))
    with pytest.raises(InputError, match="does not exist; a SentencePiece tokenizer needs its"):
        build_tokenizer(TokenizerConfig(type=kind, model=str(tmp_path / "none.model")))


def test_gpt2_tables_open(folder: Path, tmp_path: Path) -> None:
    Tokenizer.from_file(str(folder / "tokenizer.json")).model.save(str(tmp_path))
    config = TokenizerConfig(
        type="GPT2BPETokenizer", vocab_file=str(tmp_path / "vocab.json"), merge_file=str(tmp_path / "merges.txt")
    )
    tokenizer = build_tokenizer(config)
    check_round_trip(tokenizer)
    same = build_tokenizer(TokenizerConfig(type="HuggingFaceTokenizer", model=str(folder)))
    assert tokenizer.tokenize(TEXT) == same.tokenize(TEXT)
    with pytest.raises(InputError, match="tokenizer_type GPT2BPETokenizer needs merge_file, a file; set it"):
        build_tokenizer(replace(config, merge_file=None))


@pytest.mark.parametrize("kind", ["BertWordPieceLowerCase", "BertWordPieceCase"])
def test_word_pieces_open_with_their_sentinels(kind: str, tmp_path: Path) -> None:
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "The", "fox", "##es"]
    (tmp_path / "vocab.txt").write_text("\n".join(words))
    tokenizer = build_tokenizer(TokenizerConfig(type=kind, vocab_file=str(tmp_path / "vocab.txt"), vocab_extra_ids=2))
    assert (tokenizer.vocab_size, tokenizer.eod) == (11, 3)
    assert tokenizer.tokenize("The foxes") == [5 if kind == "BertWordPieceLowerCase" else 6, 7, 8]


@pytest.mark.parametrize("kind", ["BertWordPieceLowerCase", "BertWordPieceCase"])
def test_a_word_piece_vocabulary_that_cannot_serve_is_named(kind: str, tmp_path: Path) -> None:
    config = TokenizerConfig(type=kind, vocab_file=str(tmp_path / "vocab.txt"))
    with pytest.raises(InputError, match=r"^vocab_file .*/vocab\.txt: no such file$"):
        build_tokenizer(config)
    with pytest.raises(InputError, match=f"^tokenizer_type {kind} needs vocab_file, a file; set it$"):
        build_tokenizer(replace(config, vocab_file=None))
    for words, reason in (
        ("the", "sep_token not found"),
        ("[SEP] [UNK]", "cls_token not found"),
        ("[SEP] [CLS]", r"\[UNK\], which"),
    ):
        (tmp_path / "vocab.txt").write_text("\n".join(words.split()))
        with pytest.raises(InputError, match=rf"vocab\.txt is no WordPiece vocabulary \(.*\): {reason}"):
            build_tokenizer(config)


def tik_config(tmp_path: Path, **changes: Any) -> TokenizerConfig:
    merges = [bytes([i]) for i in range(256)] + [b"th", b"the", b" f", b"ox"]
    rows = [
        {"rank": rank, "token_bytes": base64.b64encode(token).decode(), "token_str": token.decode("utf-8", "replace")}
        for rank, token in enumerate(merges)
    ]
    (tmp_path / "tik.json").write_text(json.dumps(rows))
    config = TokenizerConfig(
        type="TikTokenizer", model=str(tmp_path / "tik.json"), vocab_size=270, tiktoken_num_special_tokens=10
    )
    return replace(config, **changes)


@pytest.mark.parametrize("pattern", [None, "v1", "v2"])
def test_tik_puts_special_tokens_first(pattern: str | None, tmp_path: Path) -> None:
    tokenizer = build_tokenizer(tik_config(tmp_path, tiktoken_pattern=pattern))
    assert (tokenizer.vocab_size, tokenizer.eod) == (270, 2)
    assert tokenizer.tokenize("the fox") == [10 + 257, 10 + 258, 10 + 259]
    check_round_trip(tokenizer)
    assert tokenizer.detokenize([2, 10 + 257, 9]) == "</s>the<SPECIAL_9>"


def test_tik_cuts_its_table_to_the_vocabulary(tmp_path: Path) -> None:
    assert build_tokenizer(tik_config(tmp_path, vocab_size=267)).tokenize("the") == [10 + 256, 10 + ord("e")]


def test_tik_refuses_special_tokens_that_do_not_serve(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"unique and contain <unk>.*missing: \['</s>'"):
        build_tokenizer(tik_config(tmp_path, tiktoken_special_tokens=("<unk>", "<s>")))
    with pytest.raises(InputError, match="tiktoken_num_special_tokens is 3; it must be at least the 7 special tokens"):
        build_tokenizer(tik_config(tmp_path, tiktoken_num_special_tokens=3))
    config = tik_config(tmp_path)
    for wrong in (b'[{"no": 1}]', b"{}", b"\xff", b'[{"token_bytes": "x", "rank": 0}]'):
        (tmp_path / "tik.json").write_bytes(wrong)
        with pytest.raises(InputError, match="is not a list of rank, token_bytes and token_str"):
            build_tokenizer(config)


def test_null_text_is_integers_and_the_end_is_one_more() -> None:
    tokenizer = build_tokenizer(TokenizerConfig(type="NullTokenizer", vocab_size=64))
    assert (tokenizer.vocab_size, tokenizer.eod) == (65, 64)
    assert tokenizer.tokenize(" 1 2\n63 ") == [1, 2, 63]
    assert tokenizer.detokenize([1, 2, 63]) == "1 2 63"
    with pytest.raises(ValueError, match="ids reach from 3 to 64, the vocabulary from 0 to 63"):
        tokenizer.tokenize("3 64")
    with pytest.raises(InputError, match="needs vocab_size"):
        build_tokenizer(TokenizerConfig(type="NullTokenizer"))
    for size in (0, -1):
        with pytest.raises(InputError, match=f"vocab_size is {size}; tokenizer_type NullTokenizer needs at least one id"):
            build_tokenizer(TokenizerConfig(type="NullTokenizer", vocab_size=size))


def test_an_unknown_type_is_answered_with_all_that_exist() -> None:
    with pytest.raises(InputError) as caught:
        build_tokenizer(TokenizerConfig(type="GPT3Tokenizer", model="x"))
    for kind in (*ALIASES, "SentencePieceTokenizer", "TikTokenizer", "GPT2BPETokenizer", "NullTokenizer", "BertWordPieceCase"):
        assert kind in str(caught.value)


def test_a_tokenizer_without_splits_is_not_truncated(tmp_path: Path) -> None:
    tokenizer = Tokenizer(models.WordLevel({"a": 0, "b": 1, "</s>": 2}, unk_token="a"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.enable_truncation(2)
    tokenizer.enable_padding(length=4)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": "</s>"}')
    opened = build_tokenizer(TokenizerConfig(type="HuggingFaceTokenizer", model=str(tmp_path)))
    assert opened.tokenize("a b a b") == [0, 1, 0, 1]
    assert opened.tokenize_many(["a", "a b a"]) == [[0], [0, 1, 0]]


def test_a_file_in_a_folder_that_may_not_be_entered_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, **_: Any) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "stat", refuse)
    for kind in ("SentencePieceTokenizer", "TikTokenizer", "HuggingFaceTokenizer"):
        with pytest.raises(InputError, match=rf"^tokenizer_type {kind}: shut/model\S* cannot be read: Permission denied$"):
            build_tokenizer(TokenizerConfig(type=kind, model="shut/model"))
