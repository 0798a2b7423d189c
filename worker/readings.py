"""Numbers about an answer as the API shows them: the divergence view, and a batch row's scores.

Knows shapes and the library. Does not know the database.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rouge_score.rouge_scorer import RougeScorer
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from app.core.compare_schemas import Candidate, Divergence, RowScore, Template, TokenReading
from app.core.errors import VocabularyMismatch
from app.core.job_config import ScrgConfig
from worker.distill.compare import AnswerStream, LoadedModel, encoder_of
from worker.distill.pieces import label, pieces, spelling
from worker.distill.reading import Reading, mean_kl, read


def divergence(
    *,
    author: LoadedModel,
    template: Template | None,
    messages: Sequence[Mapping[str, str]],
    answer_ids: Sequence[int],
    teacher: LoadedModel,
    student: LoadedModel,
    scrg: ScrgConfig,
) -> Divergence:
    """The answer `answer_ids` that `author` gave to `messages`, as teacher and student read it: both see exactly the
    ids that its author saw. `scrg` are the settings of the student's job."""
    encoder, _ = encoder_of(author, template)
    found = read(
        teacher,
        student,
        prompt_ids=encoder.prompt([dict(message) for message in messages]),
        answer_ids=answer_ids,
        config=scrg,
        eos_ids=encoder.eos_ids,
    )
    text = encoder.text(answer_ids)
    cut = pieces(author.tokenizer, answer_ids, text)
    kl = found.kl_T.tolist()
    return Divergence(
        tokens=[_token(found, t, piece, answer_ids[t], author.tokenizer) for t, piece in enumerate(cut)],
        mean_kl=sum(kl) / max(len(kl), 1),
        largest=max(range(len(kl)), key=kl.__getitem__, default=None),
        error_position=found.error_position,
        rule=_rule(scrg),
        text=text,
        teacher_weights_sha256=teacher.weights_sha256,
        student_weights_sha256=student.weights_sha256,
    )


def row_score(
    model_id: str, stream: AnswerStream, model: LoadedModel, *, teacher: LoadedModel | None, reference: str | None
) -> RowScore:
    """ROUGE-L (with stemming) against the row's own response, and the mean KL to `teacher`; None where there is
    nothing to measure against, or the two have different tokenizers."""
    said = stream.so_far()
    rouge_l = None
    if reference:
        rouge_l = RougeScorer(["rougeL"], use_stemmer=True).score(reference, said.text)["rougeL"].fmeasure
    kl = None
    if teacher is not None and said.token_ids:
        try:
            kl = mean_kl(teacher, model, prompt_ids=stream.prompt_ids, answer_ids=said.token_ids)
        except VocabularyMismatch:
            kl = None
    return RowScore(model_id=model_id, rouge_l=rouge_l, kl=kl, tokens=len(said.token_ids))


def _token(found: Reading, t: int, piece: str, token_id: int, tokenizer: PreTrainedTokenizerBase) -> TokenReading:
    return TokenReading(
        text=piece,
        token=spelling(tokenizer, token_id),
        kl=max(0.0, float(found.kl_T[t])),  # rounding may leave -1e-8
        teacher_token=label(tokenizer, int(found.teacher_token_T[t])),
        mismatch=bool(found.mismatch_T[t]),
        teacher_probability=float(found.teacher_probability_T[t]),
        student_probability=float(found.student_probability_T[t]),
        teacher_top=_candidates(found.teacher_top_TK, t, tokenizer),
        student_top=_candidates(found.student_top_TK, t, tokenizer),
    )


def _candidates(top_TK: tuple[Tensor, Tensor], t: int, tokenizer: PreTrainedTokenizerBase) -> list[Candidate]:
    probabilities, ids = (part[t].tolist() for part in top_TK)
    return [
        Candidate(text=label(tokenizer, token_id), probability=probability)
        for probability, token_id in zip(probabilities, ids, strict=True)
    ]


def _rule(scrg: ScrgConfig) -> str:
    """SCRG's settings in words."""
    largest = "KL(teacher‖student)" if scrg.kl_direction == "teacher_student" else "KL(student‖teacher)"
    where = {
        "largest_kl": f"the largest {largest}",
        "first": "the first",
        "random": "a random one (drawn with seed 0)",
    }[scrg.position]
    token = "most probable token" if scrg.teacher_token == "greedy" else "token sampled with seed 0"
    return f"{where} among the tokens that differ from the teacher's {token}"
