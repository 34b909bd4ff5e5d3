"""Rows to tokens: what is trained, what is cut, what is refused."""

import json
import pickle
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from runs import build_container

from primus.engine.config import PackingConfig, SFTConfig
from primus.engine.config.sft import ChatConfig, PromptConfig
from primus.engine.data.sft.batches import Batches
from primus.engine.data.sft.chat import ChatReader
from primus.engine.data.sft.fields import prompt_fields
from primus.engine.data.sft.preflight import check_rows
from primus.engine.data.sft.rows import JsonLines, Listed
from primus.engine.data.sft.samples import Samples
from primus.engine.data.sft.shape import Shape
from primus.engine.data.sft.sources import open_splits
from primus.errors import InputError, RunError


class Letters:
    """A token a letter; the end is 0."""

    vocab_size, eod = 256, 0

    def tokenize(self, text):
        return [ord(letter) for letter in text]

    def detokenize(self, ids):
        return "".join(chr(token) for token in ids)


class Words(Letters):
    """A token a word, with no blanks in them."""

    def tokenize(self, text):
        return [len(word) for word in text.split()]


class Pieces(Letters):
    """A token a word with the blank before it, the first one's too, as SentencePiece has it; a further blank is a piece."""

    def tokenize(self, text):
        return [len(word) for word in text.split(" ")]


def sample(row, *, length=100, tokenizer=None, **config):
    rows = Listed([row], "rows")
    made = Samples(rows, SFTConfig(train="rows", **config), tokenizer or Letters(), tokenizer_model=None, max_length=length)[0]
    return Letters().detokenize(made.ids.tolist()), "".join("_x"[int(each)] for each in made.trained)


def test_the_answer_and_its_end_are_trained_and_nothing_else():
    assert sample({"input": " ab ", "output": "cd "}) == ("ab cd\0", "__xxxx")
    assert sample({"input": "ab", "output": "\n\tc\n"}) == ("ab \n\tc\n\0", "__xxxxxx"), "what code is made of stays"
    assert sample({"input": "ab", "output": "cd"}, loss_on="all") == ("ab cd\0", "xxxxxx")
    assert sample({"input": "ab", "output": "cd"}, prompt_format=PromptConfig(add_eos=False)) == ("ab cd", "__xxx")


@pytest.mark.parametrize("tokenizer", [Words(), Pieces()])
def test_a_blank_is_none_of_the_text_of_tokenizers_without_blanks(tokenizer):
    made = Samples(
        Listed([{"input": "a bb", "output": "ccc"}], "r"), SFTConfig(train="r"), tokenizer, tokenizer_model=None, max_length=9
    )[0]
    assert made.ids.tolist() == [1, 2, 3, 0]


def test_a_template_has_places_for_fields():
    config = PromptConfig(template="Q: {q} A: {a}", label_key="a", truncation_fields=("q",))
    assert sample({"q": "xy", "a": "z"}, prompt_format=config) == ("Q: xy A: z\0", "________xxx")


@pytest.mark.parametrize(
    ("method", "length", "text", "trained"),
    [
        ("right", 6, "abc X\0", "___xxx"),
        ("left", 6, "def X\0", "___xxx"),
        ("right", 3, " X\0", "xxx"),
        ("right", 2, " X", "xx"),
    ],
)
def test_a_long_sample_loses_its_prompt_first(method, length, text, trained):
    assert sample({"input": "abcdef", "output": "X"}, length=length, truncation_method=method) == (text, trained)


def test_that_samples_are_cut_is_said_once(caplog):
    rows = Listed([{"input": "a" * size, "output": "b"} for size in (9, 30, 40)], "rows")
    samples = Samples(rows, SFTConfig(train="rows"), Letters(), tokenizer_model=None, max_length=20)
    assert [samples[number].num_inputs for number in range(3)] == [11, 19, 19]
    shape = Shape(seq_length=20, multiple=1, segment_multiple=1, is_fixed=False, end=0)
    assert len(list(Batches(samples, None, shape, torch.device("cpu")).stream(lambda: iter([[0], [1], [2]])))) == 3
    assert caplog.messages == ["rows, row 1 has 33 tokens, a sequence 20: it is cut, and so are others like it"]


def test_fields_share_what_is_cut():
    config = PromptConfig(template="{a}{b}{output}", truncation_fields=("a", "b"))
    assert sample({"a": "aaaa", "b": "bbbb", "output": "X"}, length=7, prompt_format=config)[0] == "aabbbX\0"
    assert sample({"a": "a", "b": "bbbb", "output": "X"}, length=4, prompt_format=config)[0] == "bbX\0"


def test_a_long_sample_is_refused_on_request():
    with pytest.raises(InputError, match="rows, row 0 has 9 tokens, more than the 5 of a sequence"):
        sample({"input": "abcdef", "output": "X"}, length=5, truncation_method="error")


def test_a_row_without_trained_tokens_counts_for_nothing_and_is_told():
    config = SFTConfig(train="rows", prompt_format=PromptConfig(truncation_fields=(), add_eos=False))
    rows = Listed([{"input": "abcdef", "output": "X"}], "rows")
    made = Samples(rows, config, Letters(), tokenizer_model=None, max_length=5)[0]
    assert (made.ids.tolist(), made.trained.any(), made.lost) == ([ord(letter) for letter in "abcde"], False, 3)
    assert made.remarks["mute"].startswith("rows, row 0 has no token left to train on")


def test_a_row_without_its_answer_is_named():
    with pytest.raises(InputError, match="rows, row 0 has no field output, the answer; it has input"):
        sample({"input": "a"})
    with pytest.raises(InputError, match="rows, row 0 has no field q, which the template needs"):
        sample({"output": "a"}, prompt_format=PromptConfig(template="{q}{output}"))
    with pytest.raises(InputError, match=r"must end with \{output\}"):
        sample({"output": "a"}, prompt_format=PromptConfig(template="{output}{q}"))


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"input": "a", "output": None}, "output, the answer, is null"),
        ({"prompt": "a", "completion": None}, "completion, the answer, is null"),
        ({"question": "a", "answer": None}, "answer, the answer, is null"),
        ({"input": "a", "output": ["x"]}, "output is a list, and a text is needed"),
        ({"instruction": {"a": 1}, "output": "x"}, "instruction is a map, and a text is needed"),
        ({"input": ["a"], "output": "x"}, "input is a list or a map, and the template needs a text there"),
        *(
            ({"context": "c", "question": "q", "answers": answers}, "answers must be a list of texts, or a map")
            for answers in (None, 5, {"text": None}, {"text": [5]})
        ),
    ],
)
def test_what_is_no_text_is_not_trained_as_python_writes_it(row, said):
    with pytest.raises(InputError, match=f"rows, row 0: {said}"):
        sample(row)


def test_what_is_null_is_no_text():
    assert (
        sample({"input": None, "output": "a", "tags": ["b"]}, prompt_format=PromptConfig(template="{input}{output}"))[0]
        == "a\0"
    )
    assert prompt_fields({"prompt": None, "completion": "c"}, "output", "row") == {"input": "", "output": "c"}


@pytest.mark.parametrize(
    ("row", "prompt", "answer"),
    [
        ({"context": "c", "question": "q", "answers": {"text": ["a", "b"]}}, "Context: c Question: q Answer:", "a"),
        ({"question": "q", "answer": "a"}, "Question: q Answer:", "a"),
        ({"prompt": "p", "completion": "c"}, "p", "c"),
        ({"input": "p", "output": "c"}, "p", "c"),
    ],
)
def test_rows_of_known_data_sets(row, prompt, answer):
    assert prompt_fields(row, "output", "row") == {"input": prompt, "output": answer}


def test_alpaca_says_whether_there_is_an_input():
    row = {"instruction": "I", "input": "", "output": "O"}
    assert "### Input" not in prompt_fields(row, "output", "r")["input"]
    assert "### Input:\nX\n" in prompt_fields({**row, "input": "X"}, "output", "r")["input"]


def folder(tmp_path, **files):
    for name, rows in files.items():
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return SFTConfig(train=str(tmp_path), seed=3)


def test_lines_are_read_where_they_lie(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"a": 1}\n\n{"a": 2}\n[1]\n{\n')
    rows = JsonLines(tmp_path / "a.jsonl")
    assert [rows[0], rows[1]] == [{"a": 1}, {"a": 2}]
    assert pickle.loads(pickle.dumps(rows))[1] == {"a": 2}, "processes that are not forked get a copy"
    with pytest.raises(InputError, match=r"a\.jsonl:4 is no map of fields"):
        rows[2]
    with pytest.raises(InputError, match=r"a\.jsonl:5 is not JSON"):
        rows[3]
    (tmp_path / "a.jsonl").write_text('{"a": "\\ud83d\\ude00"}\n{"a": "\\ud83d"}\n' + "[" * 100_000)
    rows = JsonLines(tmp_path / "a.jsonl")
    assert rows[0] == {"a": "\U0001f600"}
    with pytest.raises(InputError, match=r"a\.jsonl:2 is not JSON: it has '\\ud83d', one half of a character"):
        rows[1]
    with pytest.raises(InputError, match=r"a\.jsonl:3 is not JSON: it is nested too deep"):
        rows[2]


def test_a_file_that_changes_while_it_is_read_is_told(tmp_path):
    file = tmp_path / "a.jsonl"
    file.write_text('{"a": 1}\n{"a": 2}\n')
    late, held = JsonLines(file), JsonLines(file)
    assert held[0] == {"a": 1}
    (tmp_path / "b.jsonl").write_text('{"b": "longer"}\n{"a": 2}\n')
    (tmp_path / "b.jsonl").replace(file)
    assert held[1] == {"a": 2}, "whoever had opened it goes on with what it was"
    with pytest.raises(RunError, match=r"a\.jsonl was changed while it was read"):
        late[0]
    file.unlink()
    with pytest.raises(RunError, match=r"a\.jsonl:1 cannot be read any more: No such file"):
        pickle.loads(pickle.dumps(held))[0]
    file.write_text('{"a": 1}\n{"a": 2}\n')
    cut = JsonLines(file)
    assert cut[0] == {"a": 1}
    file.write_text("{")
    with pytest.raises(RunError, match=r"a\.jsonl was changed while it was read"):
        cut[1]


def test_rows_are_set_apart_by_the_seed(tmp_path):
    config = folder(tmp_path, training=[{"n": number} for number in range(20)])
    splits = open_splits(config)
    numbers = [[rows[number]["n"] for number in range(len(rows))] for rows in (splits.train, splits.validation)]
    assert sorted([*numbers[0], *numbers[1]]) == list(range(20))
    assert (len(numbers[1]), splits.test) == (2, None)
    again = open_splits(config).validation
    assert [again[0]["n"], again[1]["n"]] == numbers[1]
    assert len(open_splits(replace(config, max_train_samples=5)).train) == 5
    assert open_splits(replace(config, val_proportion=None)).validation is None


def test_a_folders_own_rows_validate(tmp_path):
    config = folder(tmp_path, training=[{"n": 1}], validation=[{"n": 2}], test=[{"n": 3}])
    splits = open_splits(replace(config, do_test=True))
    assert [rows[0]["n"] for rows in (splits.train, splits.validation, splits.test)] == [1, 2, 3]
    unwanted = open_splits(replace(config, do_validation=False))
    assert (len(unwanted.train), unwanted.validation, unwanted.test) == (1, None, None)


def test_rows_of_a_json_list_a_table_and_a_saved_data_set(tmp_path):
    datasets = pytest.importorskip("datasets")
    rows = [{"input": str(number), "output": "a"} for number in range(12)]
    (tmp_path / "rows.json").write_bytes(b"\xef\xbb\xbf" + json.dumps(rows).encode())
    held = datasets.Dataset.from_list(rows)
    held.to_parquet(str(tmp_path / "rows.parquet"))
    held.save_to_disk(str(tmp_path / "one"))
    datasets.DatasetDict({"train": held, "validation": held.select([3])}).save_to_disk(str(tmp_path / "several"))
    for name in ("rows.json", "rows.parquet", "one", "several"):
        splits = open_splits(SFTConfig(train=str(tmp_path / name), val_proportion=None))
        assert [splits.train[number]["input"] for number in (0, 11)] == ["0", "11"]
    own = open_splits(SFTConfig(train=str(tmp_path / "several"), prefer_own_validation=True))
    assert (len(own.train), own.validation[0]["input"]) == (12, "3")
    apart = open_splits(SFTConfig(train=str(tmp_path / "several")))
    assert (len(apart.train), len(apart.validation)) == (11, 1)


def test_what_a_map_in_a_table_lacks_is_not_there(tmp_path):
    datasets = pytest.importorskip("datasets")
    calls = [{"name": "a", "arguments": {"x": 1}}, {"name": "b", "arguments": {"y": 2}}]
    rows = [{"messages": [{"role": "assistant", "content": "c", "call": each}], "other": None} for each in calls]
    datasets.Dataset.from_list(rows).to_parquet(str(tmp_path / "rows.parquet"))
    splits = open_splits(SFTConfig(train=str(tmp_path / "rows.parquet"), val_proportion=None))
    assert [splits.train[number] for number in range(2)] == rows


def test_a_short_name_is_that_of_the_hub(monkeypatch):
    datasets = pytest.importorskip("datasets")
    asked = []

    def load_dataset(*names):
        asked.append(names)
        if names[0] != "openai/gsm8k":
            raise ConnectionError("there is no network")
        return {"train": [{"question": "q", "answer": "a"}] * 10, "test": [{"question": "t", "answer": "a"}]}

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    monkeypatch.setattr("primus.engine.data.sft.sources.is_reachable", lambda: False)
    splits = open_splits(SFTConfig(train="gsm8k", do_test=True))
    assert (splits.train[0]["question"], splits.test[0]["question"]) == ("q", "t")
    assert splits.test.name(0) == "openai/gsm8k test, row 0"
    with pytest.raises(InputError, match=r"dataset squad \(rajpurkar/squad on the hub\) .*: there is no network"):
        open_splits(SFTConfig(train="squad"))
    open_splits(SFTConfig(train="gsm8k", subset="socratic"))
    assert asked == [("openai/gsm8k", "main"), ("rajpurkar/squad", None), ("openai/gsm8k", "socratic")]


def test_a_table_that_holds_nothing_is_refused(tmp_path):
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pa.table({"input": pa.array([], pa.string())}), tmp_path / "a.parquet")
    with pytest.raises(InputError, match=r"a\.parquet has no rows"):
        open_splits(SFTConfig(train=str(tmp_path / "a.parquet")))
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    with pytest.raises(InputError, match=r"a\.parquet cannot be read"):
        open_splits(SFTConfig(train=str(tmp_path / "a.parquet")))


def test_data_that_are_not_there_are_named(tmp_path, monkeypatch):
    with pytest.raises(InputError, match=r"holds no rows: put training\.jsonl there"):
        open_splits(SFTConfig(train=str(tmp_path)))
    (tmp_path / "a.txt").write_text("x")
    with pytest.raises(InputError, match="is no file of rows"):
        open_splits(SFTConfig(train=str(tmp_path / "a.txt")))
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(InputError, match=r"empty\.jsonl has no rows"):
        open_splits(SFTConfig(train=str(tmp_path / "empty.jsonl")))


MARKED = (
    "{% for m in messages %}{{ m['role'] }}:"
    "{% if m['role'] == 'assistant' %}{% generation %}{{ m['content'] }};{% endgeneration %}"
    "{% else %}{{ m['content'] }};{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
)
PLAIN = (
    "{% for m in messages %}{{ m['role'] }}:{{ m['content'] }};{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
)
ENDED = (
    "{% for m in messages %}{{ m['role'] }}:{{ m['content'] }}<e> {% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)
"""As ChatML: a turn ends with the end token, and a blank parts it from the next."""
COUNTS = "{{ messages | length }}{% for m in messages %}{{ m['content'] }}{% endfor %}"
MIXES = "{{ messages | length }}" + 2 * "{% for m in messages %}{{ m['content'] }}{% endfor %}"
ASKS = "{% for m in messages %}({{ m['content'] }}){% endfor %}{% if add_generation_prompt %}(<think>{% endif %}"
"""As DeepSeek-R1's: a turn is opened by more than is kept of it."""
THOUGHTS = (Path(__file__).parents[3] / "data/sft/thoughts.jinja").read_text()
TALK = {
    "messages": [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "bc"},
        {"role": "user", "content": "d"},
        {"role": "assistant", "content": "e"},
    ]
}


@pytest.fixture(scope="module")
def spelling(tmp_path_factory):
    """A Hugging Face tokenizer folder that spells."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    letters = [chr(code) for code in range(32, 127)]
    tokenizer = Tokenizer(models.WordLevel({"<e>": 0, **{each: n for n, each in enumerate(letters, start=1)}}, unk_token="<e>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens(["<e>"])
    place = tmp_path_factory.mktemp("spelling")
    tokenizer.save(str(place / "tokenizer.json"))
    (place / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<e>"}))
    return str(place)


def test_tokens_that_the_tokenizer_names_stand_before_and_between(spelling, tmp_path):
    place = shutil.copytree(spelling, tmp_path / "named")
    names = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<e>", "bos_token": "#", "sep_token": "!"}
    (place / "tokenizer_config.json").write_text(json.dumps(names))
    asked = SFTConfig(train="rows", prompt_format=PromptConfig(add_bos=True, add_sep=True))
    rows = Listed([{"input": "a", "output": "b"}], "rows")
    made = Samples(rows, asked, Letters(), tokenizer_model=str(place), max_length=99)[0]
    assert made.ids.tolist() == [ord("#") - 31, ord("a"), ord("!") - 31, ord(" "), ord("b"), 0]
    assert made.trained.tolist() == [False, False, False, True, True, True]
    with pytest.raises(InputError, match=r"add_bos is true, but the tokenizer .* names no bos token"):
        Samples(rows, asked, Letters(), tokenizer_model=spelling, max_length=99)


def test_conversations_need_a_fast_tokenizer(tmp_path):
    from transformers import ByT5Tokenizer

    ByT5Tokenizer().save_pretrained(tmp_path)
    asked = SFTConfig(train="rows", chat_format=ChatConfig(template="{{ messages }}"))
    with pytest.raises(InputError, match=r"is a slow one, .* need a fast one, with a tokenizer\.json"):
        Samples(Listed([{"messages": []}], "rows"), asked, Letters(), tokenizer_model=str(tmp_path), max_length=99)


def talked(spelling, row, template, **config):
    made = Samples(
        Listed([row], "rows"),
        SFTConfig(train="rows", chat_format=ChatConfig(template=template), **config),
        Letters(),
        tokenizer_model=spelling,
        max_length=99,
    )[0]
    text = "".join("$" if token == 0 else chr(token + 31) for token in made.ids.tolist())
    return "".join(letter if is_trained else "_" for letter, is_trained in zip(text, made.trained, strict=True))


@pytest.mark.parametrize("template", [MARKED, PLAIN])
def test_all_the_assistant_says_is_trained(spelling, template):
    assert talked(spelling, TALK, template).replace("_", "") == "bc;e;$"
    assert talked(spelling, TALK, template, loss_on="last_answer").replace("_", "") == "e;$"
    assert talked(spelling, TALK, template, loss_on="all").startswith("user:a;assistant:bc;")


@pytest.mark.parametrize(("template", "opened", "ends"), [(PLAIN, "user:a;assistant:", []), (ENDED, "user:a$ assistant:", [0])])
def test_a_question_opens_its_answer_and_knows_what_ends_it(spelling, template, opened, ends):
    ids, found = ChatReader(ChatConfig(template=template), spelling, "all").question("a")
    assert "".join("$" if token == 0 else chr(token + 31) for token in ids) == opened
    assert found == ends


@pytest.mark.parametrize("template", [MARKED, PLAIN])
def test_blanks_are_trained_though_a_tokenizer_gives_them_no_place(spelling, template, tmp_path):
    from tokenizers import Tokenizer, processors

    place = shutil.copytree(spelling, tmp_path / "trimmed")
    tokenizer = Tokenizer.from_file(str(place / "tokenizer.json"))
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)
    tokenizer.save(str(place / "tokenizer.json"))
    row = {"messages": [{"role": "user", "content": " a "}, {"role": "assistant", "content": "  b  c"}]}
    assert talked(str(place), row, template) == "_" * 19 + "  b  c;$"


def test_a_token_that_is_the_assistants_in_part_is_trained(spelling, tmp_path):
    from tokenizers import Regex, Tokenizer, pre_tokenizers

    place = shutil.copytree(spelling, tmp_path / "pairs")
    saved = json.loads((place / "tokenizer.json").read_text())
    saved["model"]["vocab"] |= {":b": 96, "c;": 97}
    (place / "tokenizer.json").write_text(json.dumps(saved))
    tokenizer = Tokenizer.from_file(str(place / "tokenizer.json"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(":b|c;|."), "isolated")
    tokenizer.save(str(place / "tokenizer.json"))
    row = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "bc"}]}
    assert talked(str(place), row, PLAIN) == "_" * 16 + chr(96 + 31) + chr(97 + 31) + "$"


def test_what_parts_turns_is_not_trained_and_their_own_end_is_the_only_one(spelling):
    assert talked(spelling, TALK, ENDED) == "_" * 18 + "bc$" + "_" * 19 + "e$_"


def test_a_turn_that_later_ones_rewrite_is_trained_as_the_whole_conversation_has_it(spelling):
    said = ("q", "{hm}ab", "r", "{so}cd")
    row = {"messages": [{"role": ("user", "assistant")[n % 2], "content": text} for n, text in enumerate(said)]}
    kept = talked(spelling, row, THOUGHTS)
    assert kept == "_" * len("[user]q$ [assistant]") + "ab$" + "_" * len(" [user]r$ [assistant]") + "{so}cd$_"
    # Thoughts behind the last question stay, so the turns before it are not rewritten where an answer is in two turns.
    row["messages"].append({"role": "assistant", "content": "e"})
    assert talked(spelling, row, THOUGHTS).replace("_", "") == "ab${so}cd${}e$"


@pytest.mark.parametrize(("template", "trained"), [(COUNTS, "__bc_e$"), (ASKS, "____bc)____e)$")])
def test_an_answer_is_found_by_where_its_content_stands(spelling, template, trained):
    assert talked(spelling, TALK, template) == trained


@pytest.mark.parametrize("template", [PLAIN, THOUGHTS])
def test_the_assistant_may_speak_first(spelling, template):
    row = {"messages": [TALK["messages"][1], *TALK["messages"][:2]]}
    assert talked(spelling, row, template).replace("_", "") in ("bc;bc;$", "bc${}bc$")


def test_no_end_is_trained_behind_somebody_elses_words(spelling):
    row = {"messages": [*TALK["messages"], {"role": "user", "content": "f"}]}
    assert talked(spelling, row, PLAIN).replace("_", "") == "bc;e;"


def test_conversations_of_sharegpt(spelling):
    row = {"system": "s", "conversations": [{"from": "Human", "value": "a"}, {"from": "gpt", "value": "b"}]}
    assert talked(spelling, row, PLAIN, loss_on="all") == "system:s;user:a;assistant:b;$"
    assert talked(spelling, {**TALK, **row}, PLAIN, loss_on="all").startswith("user:a;assistant:bc;"), "messages go before"


@pytest.mark.parametrize(
    ("row", "template", "said"),
    [
        (TALK, None, "has no chat template"),
        (TALK, MIXES, "rows, row 0: the chat template rewrites earlier turns so that the assistant's words cannot be told"),
        ({"messages": [{"role": "oracle", "content": "a"}]}, PLAIN, "'oracle' is no role"),
        ({"messages": "a"}, PLAIN, "messages must be a list of maps"),
    ],
)
def test_a_conversation_that_cannot_be_read_is_named(spelling, row, template, said):
    with pytest.raises(InputError, match=said):
        talked(spelling, row, template)


CALLS = "{% for m in messages %}{{ m.content or m.tool_calls }}{% endfor %}"
TOOLS = PLAIN + "{{ tools }}"


def talk_of(**message):
    return {"messages": [{"role": "assistant", **message}]}


@pytest.mark.parametrize(
    ("row", "template", "said"),
    [
        (talk_of(content=None), PLAIN, "message 1 has no content; leave the message out"),
        ({"conversations": [{"from": "gpt", "value": None, "weight": 1}]}, PLAIN, "message 1 has no value"),
        (talk_of(content={"text": "a"}), PLAIN, "message 1: content is a map, and a text is needed"),
        (talk_of(content=[{"type": "image"}]), PLAIN, "message 1 has a part of type image; only parts with type text"),
        (talk_of(content=["a"]), PLAIN, "message 1 has a part of type str"),
        (talk_of(content=None, tool_calls=[{"f": 1}]), PLAIN, "has tool_calls, for which the chat template has no place"),
        ({**TALK, "tools": [{"f": 1}]}, PLAIN, "has tools, for which the chat template has no place"),
        ({**TALK, "tools": "{"}, TOOLS, "tools are neither a list nor one that is written as JSON"),
    ],
)
def test_what_a_template_would_drop_or_misread_is_named(spelling, row, template, said):
    with pytest.raises(InputError, match=f"rows, row 0.*{said}"):
        talked(spelling, row, template)


def test_parts_that_are_text_are_one_text_and_tools_may_be_written_as_json(spelling):
    parts = [{"type": "text", "text": "b"}, {"type": "text", "text": "c"}]
    assert talked(spelling, talk_of(content=parts), PLAIN).replace("_", "") == "bc;$"
    assert talked(spelling, talk_of(content=None, tool_calls=["x"]), CALLS, loss_on="all") == "['x']$"
    row = {**talk_of(content="b"), "tools": json.dumps([{"type": "function", "function": {"name": "f"}}])}
    assert "'name': 'f'" in talked(spelling, row, TOOLS, loss_on="all")


def test_of_several_templates_the_default_one_is_taken(spelling, tmp_path):
    place = shutil.copytree(spelling, tmp_path / "several")
    told = json.loads((place / "tokenizer_config.json").read_text())
    told["chat_template"] = [{"name": "default", "template": PLAIN}, {"name": "tool_use", "template": MIXES}]
    (place / "tokenizer_config.json").write_text(json.dumps(told))
    assert talked(str(place), TALK, None).replace("_", "") == "bc;e;$"


def test_rows_without_anything_to_learn_are_refused_before_a_start(spelling, tmp_path):
    config = build_container(tmp_path, "exp", 1, {})
    config = replace(config, tokenizer=replace(config.tokenizer, model=spelling))
    asked = {"messages": TALK["messages"][:1]}
    rows = replace(folder(tmp_path, training=[asked] * 9), chat_format=ChatConfig(template=PLAIN), val_proportion=None)
    found = check_rows(config, rows, Letters())
    assert found == [
        f"{tmp_path}/training.jsonl:1 has no token to train on, and so it is with all 9 rows that were looked at: "
        "conversations need words of the assistant, and seq_length room for an answer"
    ]
    assert (
        check_rows(config, replace(folder(tmp_path, training=[asked] * 8 + [TALK]), chat_format=rows.chat_format), Letters())
        == []
    )


def test_rows_are_looked_at_before_a_start(tmp_path):
    config = build_container(tmp_path, "exp", 1, {})
    rows = folder(tmp_path, training=[{"input": "1", "output": "2"}] * 20)
    assert check_rows(config, rows, Letters()) == []
    assert check_rows(config, SFTConfig(train="a/name/of/the/hub"), Letters()) == []
    few = check_rows(config, replace(rows, max_train_samples=3), Letters())
    assert few == [f"{tmp_path} has 3 rows to train on, fewer than global_batch_size 8: lower it"]
    (few,) = check_rows(config, replace(folder(tmp_path, training=[{"input": "1"}] * 8), val_proportion=0.3), Letters())
    assert "has 6 rows to train on (2 more are set apart to validate on, by val_proportion 0.3), fewer than" in few
    right, wrong = {"input": "1", "output": "2"}, {"input": "1"}
    bad = folder(tmp_path, training=[right] * 12 + [wrong], validation=[wrong] * 9)
    assert check_rows(config, bad, None) == []
    no_field = "has no field output, the answer; it has input"
    assert check_rows(config, bad, Letters()) == [
        f"{tmp_path}/training.jsonl:13 {no_field}",
        *(f"{tmp_path}/validation.jsonl:{line} {no_field}" for line in (1, 2, 3)),
        f"rows behind {tmp_path}/validation.jsonl:3 were not looked at: more may be wrong",
    ]


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("{% if %}", "the chat template cannot be read: Expected an expression"),
        (
            "{{ raise_exception('no tools') if messages[1].role == 'tool' }}",
            "training.jsonl:14: the chat template does not take this conversation: no tools",
        ),
    ],
)
def test_conversations_are_written_before_a_start(spelling, tmp_path, template, said):
    config = build_container(tmp_path, "exp", 1, {})
    config = replace(config, tokenizer=replace(config.tokenizer, model=spelling))
    tool = {"messages": [TALK["messages"][0], {"role": "tool", "content": "x"}]}
    rows = replace(
        folder(tmp_path, training=[TALK] * 13 + [tool] * 2), chat_format=ChatConfig(template=template), val_proportion=None
    )
    found = check_rows(config, rows, Letters())
    assert said in found[0]
    assert len(found) == (1 if "read" in said else 2)


def test_packs_are_looked_for_before_a_start(tmp_path):
    config = build_container(tmp_path, "exp", 1, {})
    rows = SFTConfig(train="squad", packing=PackingConfig(size=32, train_file=f"{tmp_path}/t.parquet", validation_file="/v"))
    part = "dataset.packed_sequence_specs.packed"
    none = "no file of packed samples is there; `primus data prepare --sft` writes them"
    assert check_rows(config, rows, Letters()) == [
        f"{part}_train_data_path {tmp_path}/t.parquet: {none}",
        f"{part}_val_data_path /v: {none}",
    ]
    assert len(check_rows(config, replace(rows, do_validation=False), Letters())) == 1


def test_fields_to_cut_are_those_of_the_template():
    with pytest.raises(
        InputError, match=r"truncation_field nope, b: prompt_template .* no such field before its answer; there is a"
    ):
        sample(
            {"a": "x", "b": "y"}, prompt_format=PromptConfig(template="{a}{b}", label_key="b", truncation_fields=("nope", "b"))
        )
    every = PromptConfig(template="{a}{c}{output}")
    assert sample({"a": "aaaa", "c": "cccc", "output": "X"}, length=7, prompt_format=every)[0] == "aacccX\0"
