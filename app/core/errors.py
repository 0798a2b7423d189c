"""Every error a user may meet, with a stable `code` and a message that says what to do.

StillhouseError
├── InvalidRequest (also ValueError)      the user can mend it by sending something else
│   ├── ModelNotFound                     no such hub id, folder or .gguf file
│   ├── ModelUnreadable                   it exists but is no causal language model we can load
│   ├── VocabularyMismatch                teacher and student do not share a tokenizer
│   ├── TooManyLayers                     a student deeper than its teacher
│   ├── ContextTooShort                   prompt + max_new_tokens do not fit the model's context
│   ├── NoChatTemplate                    data.template is chat and the tokenizer has none
│   ├── BadDataset                        empty, or a row that cannot be used (names the row)
│   ├── CheckpointMismatch                checkpoints of a run with other settings or data
│   └── MissingDependency                 an optional library that a setting asks for is not installed
├── NotFound (also LookupError)           an id that does not exist
├── Conflict                              the current status forbids it
├── TrainingFailed                        a run that could not go on
│   ├── OutOfMemory                       names the settings to lower
│   ├── NonFiniteLoss                     names the step and the term
│   ├── NothingToLearn                    a batch without a response token
│   ├── Hung                              nothing was heard of a step for too long
│   ├── WorkerLost                        the process that trained, or its worker, was killed
│   ├── TimeLimit                         the job's max_hours are used up
│   └── InternalError                     nobody foresaw it; the worker's log has the traceback
├── Cancelled                             a run that was asked to stop
├── Paused                                a run that was asked to stop and kept a checkpoint to go on from
├── DiskFull                              no space for a checkpoint or a student; what was kept before is whole
└── AttemptLost                           a worker whose claim was taken over; it must stop writing

Knows codes and words only, no HTTP numbers: `app/errors.py` maps classes to statuses. All are picklable (they cross
process borders): to add one, subclass, set `code`, and pass every constructor argument on to `super().__init__`.
"""

from __future__ import annotations


class StillhouseError(Exception):
    """Base. `message` says what is wrong and what to do; `field` is the setting's dotted path, if there is one."""

    code = "error"

    def __init__(self, message: str, field: str | None = None) -> None:
        super().__init__(message, field)
        self.message = message
        self.field = field

    def __str__(self) -> str:
        return f"{self.field}: {self.message}" if self.field else self.message


class InvalidRequest(StillhouseError, ValueError):
    code = "invalid_request"


class ModelNotFound(InvalidRequest):
    code = "model_not_found"


class ModelUnreadable(InvalidRequest):
    code = "model_unreadable"


class VocabularyMismatch(InvalidRequest):
    code = "vocabulary_mismatch"


class TooManyLayers(InvalidRequest):
    code = "too_many_layers"


class ContextTooShort(InvalidRequest):
    code = "context_too_short"


class NoChatTemplate(InvalidRequest):
    code = "no_chat_template"


class BadDataset(InvalidRequest):
    code = "bad_dataset"


class CheckpointMismatch(InvalidRequest):
    code = "checkpoint_mismatch"


class MissingDependency(InvalidRequest):
    code = "missing_dependency"


class NotFound(StillhouseError, LookupError):
    code = "not_found"


class Conflict(StillhouseError):
    code = "conflict"


class TrainingFailed(StillhouseError):
    code = "training_failed"


class OutOfMemory(TrainingFailed):
    code = "out_of_memory"


class NonFiniteLoss(TrainingFailed):
    code = "non_finite_loss"


class NothingToLearn(TrainingFailed):
    code = "nothing_to_learn"


class Hung(TrainingFailed):
    code = "hung"


class WorkerLost(TrainingFailed):
    code = "worker_lost"


class TimeLimit(TrainingFailed):
    code = "time_limit"


class InternalError(TrainingFailed):
    code = "internal_error"


class Cancelled(StillhouseError):
    code = "cancelled"


class Paused(StillhouseError):
    code = "paused"


class DiskFull(StillhouseError):
    code = "disk_full"


class AttemptLost(StillhouseError):
    code = "attempt_lost"
