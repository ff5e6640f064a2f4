"""What the OpenAI-compatible routes share: the wait for a job's end, and what its end is to the caller."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from starlette.requests import Request
from starlette.responses import Response

from inclavate import artifacts, errors, jobs
from inclavate.faces import watch
from inclavate.faces.boundary import error_response, in_pool
from inclavate.models import Artifact, Job, Owner, State


async def settle(request: Request, owner: Owner, job: Job, timeout: float) -> tuple[Job, Response | None]:
    """Wait for the job's end; with it, the answer where there is no output to give. A client that goes away
    cancels its job, unless it can come back for it by its key, or said that it will."""
    async with watch.watching(job) as watched:
        over = asyncio.create_task(watched.over(timeout))
        gone = asyncio.create_task(disconnected(request))
        try:
            await asyncio.wait({over, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            over.cancel()
            gone.cancel()
        job = watched.job
        if not watched.is_over and gone.done() and not over.done() and not keeps(request):
            await in_pool(cancel, owner, job)
        if job.state == State.COMPLETED:
            return job, None
        return job, refusal(request, job, ended(job, timeout))


def refusal(request: Request, job: Job, error: errors.InclavateError) -> Response:
    return error_response(error, request.url.path, {"x-dppan-job-id": str(job.pk)})


async def disconnected(request: Request) -> None:
    """Returns when the client has closed the connection; the body has been read before."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def keeps(request: Request) -> bool:
    return "idempotency-key" in request.headers or request.headers.get("x-inclavate-on-disconnect") == "keep"


def cancel(owner: Owner, job: Job) -> None:
    with suppress(errors.AlreadyFinished, errors.NotFound):
        jobs.cancel(owner, job.pk)


class _Ended(errors.JobError):
    """How a job ended, with the job's own code."""

    def __init__(self, status: int, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message, param=param)
        self.status = status
        self.code = code


def ended(job: Job, timeout: float) -> errors.InclavateError:
    match job.state:
        case State.FAILED:
            code = job.error_code or "internal"
            return _Ended(errors.status_of(code), code, f"Job {job.pk} failed: {job.error_message}", _field(job))
        case State.CANCELLED:
            return _Ended(409, "cancelled", f"Job {job.pk} was cancelled.")
        case State.EXPIRED:
            return _Ended(504, "expired", f"Job {job.pk} did not end before its deadline.")
        case _ if watch.is_stopping():
            return errors.StillRunning(
                f"This server is stopping, and job {job.pk} goes on; poll GET /v1/generations/{job.pk}."
            )
        case _:
            return errors.StillRunning(
                f"The wait of {timeout:g} s ran out, and job {job.pk} goes on; poll GET /v1/generations/{job.pk}."
            )


def _field(job: Job) -> str | None:
    """The field that a job failed for, as these routes call it, where its code tells."""
    if job.error_code not in (errors.InputUnreadable.code, errors.InputTooLarge.code):
        return None
    return "speaker_artifact" if job.modality == "audio" else "file"


def output(owner: Owner, job: Job, position: int = 0) -> Artifact:
    """A completed job's output of that number. Raises `ArtifactGone`."""
    try:
        return artifacts.get(owner, jobs.output(job, position))
    except errors.NotFound:
        raise errors.ArtifactGone(f"The output of job {job.pk} was deleted.") from None


def headers(job: Job, artifact: Artifact) -> dict[str, str]:
    return {"x-dppan-artifact-id": str(artifact.pk), "x-dppan-job-id": str(job.pk)}
