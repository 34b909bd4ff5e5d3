"""What rows of known data sets say, as a prompt and its answer: `prompt_fields` is the name to use.

What is not there is not said: null in a prompt is no text, and an answer that is null is none.
"""

from collections.abc import Callable

from primus.engine.data.sft.rows import Row
from primus.errors import InputError

__all__ = ["is_conversation", "prompt_fields"]

_ALPACA = "Below is an instruction that describes a task{}. Write a response that appropriately completes the request."


def is_conversation(row: Row) -> bool:
    """Tell whether a row has messages."""
    return "messages" in row or "conversations" in row


def prompt_fields(row: Row, label_key: str, name: str, *, as_is: bool = False) -> dict[str, str]:
    """Return a row's texts by field, with `input` and the answer's field among them.

    A row that has an answer of its own field stands as it is; those of SQuAD, GSM8K, OpenMathInstruct, Alpaca and of prompts
    with completions become `input` and the answer, unless rows are taken `as_is`. InputError names a row that has no answer,
    or a field that is no text.
    """
    texts = _Texts(row, name)
    for needed, read in () if as_is else _KINDS:
        if needed <= row.keys():
            prompt, answer = read(texts)
            return {"input": prompt, label_key: answer}
    if label_key not in row:
        raise InputError(f"{name} has no field {label_key}, the answer; it has {', '.join(row) or 'none'}")
    # A list or a map beside them is for others to read.
    said = {field: texts[field] for field, value in row.items() if not isinstance(value, (list, dict))}
    return {**said, label_key: texts.answer(label_key)}


class _Texts:
    """The fields of a row as texts."""

    def __init__(self, row: Row, name: str) -> None:
        self._row, self._name = row, name

    def __getitem__(self, field: str) -> str:
        """Return a text, of null or of what is not there an empty one; InputError if it is a list or a map."""
        value = self._row.get(field)
        if isinstance(value, (list, dict)):
            kind = "list" if isinstance(value, list) else "map"
            raise InputError(f"{self._name}: {field} is a {kind}, and a text is needed")
        return "" if value is None else str(value)

    def answer(self, field: str) -> str:
        """Return a text; InputError if there is none."""
        if self._row[field] is None:
            raise InputError(f"{self._name}: {field}, the answer, is null; leave the row out, or let the answer be empty text")
        return self[field]

    def first(self, field: str) -> str:
        """Return the first of some answers, as a list or as SQuAD's map has them; an empty text if there are none."""
        value = self._row[field]
        answers = value.get("text") if isinstance(value, dict) else value
        if not isinstance(answers, (list, tuple)) or not all(isinstance(answer, str) for answer in answers):
            raise InputError(f"{self._name}: {field} must be a list of texts, or a map that has one as text")
        return next(iter(answers), "")


def _squad(texts: _Texts) -> tuple[str, str]:
    return f"Context: {texts['context']} Question: {texts['question']} Answer:", texts.first("answers")


def _question(texts: _Texts) -> tuple[str, str]:
    return f"Question: {texts['question']} Answer:", texts.answer("answer")


def _problem(texts: _Texts) -> tuple[str, str]:
    return f"Problem: {texts['problem']} Solution:", texts.answer("generated_solution")


def _instruction(texts: _Texts) -> tuple[str, str]:
    context = texts["input"]
    head = _ALPACA.format(", paired with an input that provides further context" if context else "")
    middle = f"\n\n### Input:\n{context}" if context else ""
    return f"{head}\n\n### Instruction:\n{texts['instruction']}{middle}\n\n### Response:", texts.answer("output")


def _completion(texts: _Texts) -> tuple[str, str]:
    return texts["prompt"], texts.answer("completion")


_KINDS: tuple[tuple[frozenset[str], Callable[[_Texts], tuple[str, str]]], ...] = (
    (frozenset({"context", "question", "answers"}), _squad),
    (frozenset({"question", "answer"}), _question),
    (frozenset({"problem", "generated_solution"}), _problem),
    (frozenset({"instruction", "output"}), _instruction),
    (frozenset({"prompt", "completion"}), _completion),
)
