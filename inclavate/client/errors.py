"""What a client's methods raise.

    ClientError
    ├─ Unreachable        nothing answers there, or the connection was cut and stayed cut
    │  └─ BadAnswer       something answers there, but not as Inclavate does
    ├─ Refused            an answer of 4xx or 5xx: status, code, message
    ├─ NoModel            no model for this task is ready
    └─ JobFailed          the job ended as failed, cancelled or expired

A key, a header or a text that cannot be sent is a bare `ClientError`. No other exception than these, and `OSError`
for the caller's own files, leaves a method.
"""

from __future__ import annotations

from inclavate.client.shapes import Job


class ClientError(Exception):
    """Anything that went wrong with the server or on the way to it; `str()` is one sentence for a person."""


class Unreachable(ClientError):
    """`is_unsent`: the request certainly did not reach the server."""

    def __init__(self, message: str, *, is_unsent: bool = False) -> None:
        super().__init__(message)
        self.is_unsent = is_unsent


class BadAnswer(Unreachable):
    """An answer that no Inclavate would give."""


class Refused(ClientError):
    """`code` is one of the platform's words (`no_generator`, `queue_full`…), or `http_<status>` where none came.
    `job_id` is set where a synchronous route leaves a job behind."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        param: str | None = None,
        retry_after_seconds: float | None = None,
        may_retry: bool = False,
        job_id: str | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.param = param
        self.retry_after_seconds = retry_after_seconds
        self.may_retry = may_retry
        self.job_id = job_id


class NoModel(ClientError):
    """Nothing that is up can do it."""


class JobFailed(ClientError):
    """`job` is as it ended: `error_code`, `error_message`, `state`."""

    def __init__(self, job: Job) -> None:
        code = f" ({job.error_code})" if job.error_code else ""
        reason = f": {job.error_message}" if job.error_message else "."
        super().__init__(f"Job {job.id} {job.state}{code}{reason}")
        self.job = job
