"""What rows of known data sets say, as a prompt and its answer: `prompt_fields` is the name to use."""

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
    with completions become `input` and the answer, unless rows are taken `as_is`. InputError names a row that has no answer.
    """
    for needed, read in () if as_is else _KINDS:
        if needed <= row.keys():
            prompt, answer = read(row)
            return {"input": prompt, label_key: answer}
    if label_key not in row:
        raise InputError(f"{name} has no field {label_key}, the answer; it has {', '.join(row) or 'none'}")
    return {field: "" if value is None else str(value) for field, value in row.items()}


def _squad(row: Row) -> tuple[str, str]:
    answers = row["answers"]
    texts = answers.get("text", ()) if isinstance(answers, dict) else answers
    return f"Context: {row['context']} Question: {row['question']} Answer:", str(next(iter(texts), ""))


def _question(row: Row) -> tuple[str, str]:
    return f"Question: {row['question']} Answer:", str(row["answer"])


def _problem(row: Row) -> tuple[str, str]:
    return f"Problem: {row['problem']} Solution:", str(row["generated_solution"])


def _instruction(row: Row) -> tuple[str, str]:
    context = str(row.get("input") or "")
    head = _ALPACA.format(", paired with an input that provides further context" if context else "")
    middle = f"\n\n### Input:\n{context}" if context else ""
    return f"{head}\n\n### Instruction:\n{row['instruction']}{middle}\n\n### Response:", str(row["output"])


def _completion(row: Row) -> tuple[str, str]:
    return str(row["prompt"]), str(row["completion"])


_KINDS: tuple[tuple[frozenset[str], Callable[[Row], tuple[str, str]]], ...] = (
    (frozenset({"context", "question", "answers"}), _squad),
    (frozenset({"question", "answer"}), _question),
    (frozenset({"problem", "generated_solution"}), _problem),
    (frozenset({"instruction", "output"}), _instruction),
    (frozenset({"prompt", "completion"}), _completion),
)
