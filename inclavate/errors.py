"""Every error that Inclavate raises on purpose.

    InclavateError                 internal               500
    ├─ InvalidRequest              invalid_request        400
    │  ├─ NoPrompt                 no_prompt              400
    │  ├─ NoInput                  no_input               400
    │  ├─ SpeakerUnsupported       speaker_unsupported    400
    │  ├─ MethodNotAllowed         invalid_request        405
    │  └─ UnsupportedBody          invalid_request        415
    ├─ Unauthenticated             unauthenticated        401
    ├─ Forbidden                   forbidden              403
    ├─ NotFound                    not_found              404
    │  └─ ArtifactGone             artifact_gone          404
    ├─ Conflict                    conflict               409
    │  ├─ AlreadyFinished          already_finished       409
    │  ├─ IdempotencyMismatch      idempotency_mismatch   409
    │  └─ NotReady                 not_ready              409
    ├─ LengthRequired              length_required        411
    ├─ PayloadTooLarge             payload_too_large      413
    ├─ RangeNotSatisfiable         range_not_satisfiable  416
    ├─ NoGenerator                 no_generator           422
    ├─ QueueFull                   queue_full             429  retryable
    ├─ RateLimited                 rate_limited           429  retryable
    ├─ QuotaExhausted              quota_exhausted        507
    ├─ Unavailable                 unavailable            503  retryable
    ├─ NotConfigured               unavailable            503
    ├─ StillRunning                not_ready              504
    └─ JobError                    (a job's own end)      500
       ├─ InputUnreadable          input_unreadable       400
       ├─ InputTooLarge            input_too_large        400
       ├─ UnsupportedInput         unsupported_input      400
       ├─ InferenceFailed          inference_failed       500
       ├─ PublishFailed            publish_failed         500
       ├─ EngineCrashed            engine_crashed         500
       ├─ OutOfMemory              out_of_memory          500
       ├─ Stalled                  stalled                500
       └─ AttemptsExhausted        attempts_exhausted     500

`code` and `status` are what a client sees; the message is a sentence that names the field, the limit and
the value. A `JobError` is recorded on a job; its status is what a synchronous route answers with.
"""

from __future__ import annotations


class InclavateError(Exception):
    code = "internal"
    status = 500
    retryable = False

    def __init__(self, message: str, *, param: str | None = None, retry_after: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.retry_after = retry_after


class InvalidRequest(InclavateError):
    code = "invalid_request"
    status = 400


class NoPrompt(InvalidRequest):
    code = "no_prompt"


class NoInput(InvalidRequest):
    code = "no_input"


class SpeakerUnsupported(InvalidRequest):
    code = "speaker_unsupported"


class MethodNotAllowed(InvalidRequest):
    status = 405


class UnsupportedBody(InvalidRequest):
    status = 415


class Unauthenticated(InclavateError):
    code = "unauthenticated"
    status = 401


class Forbidden(InclavateError):
    code = "forbidden"
    status = 403


class NotFound(InclavateError):
    code = "not_found"
    status = 404


class ArtifactGone(NotFound):
    code = "artifact_gone"


class Conflict(InclavateError):
    code = "conflict"
    status = 409


class AlreadyFinished(Conflict):
    code = "already_finished"


class IdempotencyMismatch(Conflict):
    code = "idempotency_mismatch"


class NotReady(Conflict):
    code = "not_ready"


class LengthRequired(InclavateError):
    code = "length_required"
    status = 411


class PayloadTooLarge(InclavateError):
    code = "payload_too_large"
    status = 413


class RangeNotSatisfiable(InclavateError):
    """`size` is the object's, for `Content-Range: bytes */size`."""

    code = "range_not_satisfiable"
    status = 416

    def __init__(self, message: str, *, size: int) -> None:
        super().__init__(message, param="Range")
        self.size = size


class NoGenerator(InclavateError):
    code = "no_generator"
    status = 422


class QueueFull(InclavateError):
    code = "queue_full"
    status = 429
    retryable = True


class RateLimited(InclavateError):
    code = "rate_limited"
    status = 429
    retryable = True


class QuotaExhausted(InclavateError):
    code = "quota_exhausted"
    status = 507


class Unavailable(InclavateError):
    code = "unavailable"
    status = 503
    retryable = True


class NotConfigured(InclavateError):
    """This deployment does not have it; asking again changes nothing."""

    code = "unavailable"
    status = 503


class StillRunning(InclavateError):
    """A synchronous route's wait ran out; the job goes on."""

    code = "not_ready"
    status = 504


class JobError(InclavateError):
    """How a job failed; engines raise its subclasses, the runner records `code` and `message` on the job."""


class InputUnreadable(JobError):
    code = "input_unreadable"
    status = 400


class InputTooLarge(JobError):
    code = "input_too_large"
    status = 400


class UnsupportedInput(JobError):
    code = "unsupported_input"
    status = 400


class InferenceFailed(JobError):
    code = "inference_failed"


class PublishFailed(JobError):
    code = "publish_failed"


class EngineCrashed(JobError):
    code = "engine_crashed"


class OutOfMemory(JobError):
    code = "out_of_memory"


class Stalled(JobError):
    code = "stalled"


class AttemptsExhausted(JobError):
    code = "attempts_exhausted"


def status_of(code: str) -> int:
    """The HTTP status of a failed job's code; 500 for a word that is not ours (an engine's own)."""
    pending = [InclavateError]
    while pending:
        kind = pending.pop()
        if kind.code == code and kind is not InclavateError:
            return kind.status
        pending.extend(kind.__subclasses__())
    return 500
