"""REST shapes of asking models: comparisons, their divergence view, blind votes and batches.

Knows field names, types and limits. Does not know tables or HTTP; the shapes of jobs and models are in `schemas`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Literal

from pydantic import Field

from app.core.schemas import JobError, Shape

MAX_MODELS = 4
Template = Literal["chat", "alpaca", "plain"]
TemplateChoice = Literal["auto", "chat", "alpaca", "plain"]
ComparisonStatus = Literal["queued", "running", "succeeded", "failed", "cancelled"]
BatchStatus = Literal["queued", "running", "judging", "succeeded", "cancelled"]
Finish = Literal["stop", "length", "cancelled"]
Choice = Literal["a", "b", "tie", "both_bad"]


class ChatMessage(Shape):
    role: Literal["system", "user", "assistant"]
    content: str = Field(min_length=1)


class Turn(Shape):
    """A message of an earlier turn; a model's own answer may have been empty."""

    role: Literal["system", "user", "assistant"]
    content: str


class SamplingIn(Shape):
    """How every side answers."""

    max_new_tokens: int = Field(128, ge=1, le=4096)
    temperature: float = Field(0.0, ge=0, le=5, description="0 is greedy.")
    top_p: float = Field(1.0, gt=0, le=1)
    seed: int = Field(0, ge=0, lt=2**63)
    template: TemplateChoice = Field(
        "auto",
        description="auto: a student is asked as its job trained it (data.template), the teacher as the students "
        "beside it if they agree, else by its chat template. Another value is used for every side.",
    )


ASKED = (
    "Ids of models; a checkpoint of a job is called as GET /v1/jobs/{id}/checkpoints says: `job_…@20` after step 20."
)


class ComparisonIn(SamplingIn):
    model_ids: Sequence[str] = Field(min_length=1, max_length=MAX_MODELS, description=ASKED)
    messages: Sequence[ChatMessage] = Field(min_length=1, description="With `previous_id`: the new turn alone.")
    previous_id: str | None = Field(
        None, max_length=64, description="An ended comparison to go on from: each model sees its own earlier answers."
    )
    blind: bool = Field(False, description="Two models in random order, unnamed until somebody votes.")


class Answer(Shape):
    """What one model said, and how fast. All sides get the same seed and sampling settings.

    While the comparison runs, `text` is what there is so far and `finish` is null. In a blind comparison `model_id` is
    A or B, and what would tell the models apart is null until the vote.
    """

    model_id: str
    text: str
    tokens: int
    seconds: float | None = Field(description="The model's own computing time, without loading and other models.")
    tokens_per_s: float | None
    finished: bool = Field(description="Ended with EOS rather than at max_new_tokens.")
    parameters: int | None
    weights_sha256: str | None = Field(description="Of the weights that wrote this text, computed when they were read.")
    first_token_s: float | None = Field(None, description="Computing time to the first token: reading the prompt.")
    finish: Finish | None = None
    template: Template | None = None
    prompt_tokens: int | None = None


class ComparisonOut(Shape):
    id: str
    status: ComparisonStatus
    request: ComparisonIn
    answers: Sequence[Answer]
    error: JobError | None
    created_at: datetime
    finished_at: datetime | None
    history: Mapping[str, Sequence[Turn]] = Field(
        default_factory=dict, description="By model: the earlier turns, with that model's own answers."
    )
    hidden: bool = Field(False, description="Blind and not voted on yet: models are called A and B.")
    vote: Choice | None = None


class ComparisonLine(Shape):
    """One line of the history."""

    id: str
    status: ComparisonStatus
    prompt: str = Field(description="The last message, at most 200 characters of it.")
    model_ids: Sequence[str]
    blind: bool
    vote: Choice | None
    created_at: datetime


# --- divergence ---------------------------------------------------------------------------------------------


class DivergenceIn(Shape):
    """Which answer of a comparison is read, and by which two models."""

    of: str = Field(max_length=64, description="The model whose answer is scored.")
    teacher_id: str = Field(max_length=64)
    student_id: str = Field(max_length=64)


class Candidate(Shape):
    text: str
    probability: float


class TokenReading(Shape):
    """One token of the answer, as both models see it. `text` of all tokens joins to the answer."""

    text: str = Field(description="Empty where a character is not complete yet, and for special tokens.")
    token: str = Field(description="The vocabulary's own spelling.")
    kl: float = Field(description="KL(teacher || student) in nats of the two next-token distributions, temperature 1.")
    teacher_token: str = Field(description="The teacher's token here, chosen as SCRG chooses it.")
    mismatch: bool = Field(description="The teacher's token is another one.")
    teacher_probability: float
    student_probability: float
    teacher_top: Sequence[Candidate]
    student_top: Sequence[Candidate]


class Divergence(Shape):
    tokens: Sequence[TokenReading]
    mean_kl: float
    largest: int | None = Field(description="Index of the largest KL; null without tokens.")
    error_position: int | None = Field(description="The position SCRG corrects first; null without a mismatch.")
    rule: str = Field(description="How SCRG chooses it: the student's job's settings, in words.")
    text: str
    teacher_weights_sha256: str
    student_weights_sha256: str


class DivergenceOut(Shape):
    id: str
    comparison_id: str
    request: DivergenceIn
    status: ComparisonStatus
    result: Divergence | None
    error: JobError | None


# --- votes --------------------------------------------------------------------------------------------------


class VoteIn(Shape):
    choice: Choice = Field(description="a: the first pane's answer is better; b: the second's.")


class PairVotes(Shape):
    """All blind votes on one pair. The rate is of `model_a` among the votes that preferred one side."""

    model_a: str
    model_b: str
    wins_a: int
    wins_b: int
    ties: int
    both_bad: int
    rate: float | None = Field(description="wins_a / (wins_a + wins_b); null without a preference.")
    low: float | None = Field(description="Lower end of the 95 % Wilson score interval.")
    high: float | None


class VotesOut(Shape):
    data: Sequence[PairVotes]


# --- batches ------------------------------------------------------------------------------------------------


class BatchIn(SamplingIn):
    dataset_id: str = Field(max_length=64)
    model_ids: Sequence[str] = Field(min_length=1, max_length=MAX_MODELS, description=ASKED)
    limit: int = Field(100, ge=1, le=1000, description="The first so many rows of the data set.")
    judge: bool = Field(False, description="Ask the service's judge (STILLHOUSE_JUDGE_URL) which answer is better.")


class BatchOut(Shape):
    id: str
    status: BatchStatus
    request: BatchIn
    rows: int
    done: int
    failed: int
    judged: int
    created_at: datetime


class Verdict(Shape):
    """The judge on the first model's answer against `model_id`'s, asked in both orders."""

    model_id: str
    outcome: Literal["first", "other", "tie", "unclear"] = Field(
        description="Which answer won in both orders; tie also when the order decided; unclear: no verdict was given."
    )


class RowScore(Shape):
    model_id: str
    rouge_l: float | None = Field(description="F-measure against the row's own response; null where it has none.")
    kl: float | None = Field(description="Mean KL(teacher || this model) over its own answer; null for the teacher.")
    tokens: int


class BatchRow(Shape):
    row: int
    comparison_id: str
    status: ComparisonStatus
    prompt: str
    reference: str | None
    answers: Sequence[Answer]
    scores: Sequence[RowScore]
    verdicts: Sequence[Verdict]
    error: JobError | None
