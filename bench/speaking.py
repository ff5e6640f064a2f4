"""A deployment asked for speech, as its callers do."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import httpx

from bench.deployments import Deployment
from bench.figures import Round
from bench.measures.requests import raw, run_load
from bench.processes import Helper, cpu_seconds
from bench.rows import newest_jobs, until_done
from tests.driving import engines_of, until

_WAV_HEADER_BYTES = 44
_WAIT_SECONDS = 60
_PATIENCE_SECONDS = 3600.0
_SUBMITTERS = 4


class Speaker:
    def __init__(self, deployment: Deployment) -> None:
        self.deployment = deployment
        self._http = httpx.Client(
            base_url=f"http://127.0.0.1:{deployment.port}",
            headers=dict(deployment.headers),
            timeout=_PATIENCE_SECONDS,
        )

    def speak(self, model: str, text: str) -> Round:
        """One job, from its submit until its caller hears of its end."""
        cpu, began = self._cpu(), time.perf_counter()
        job = self._http.post("/v1/generations", json=_submission(model, text)).raise_for_status().json()
        while job["state"] in ("queued", "running"):
            job = self._http.get(f"/v1/generations/{job['id']}?wait={_WAIT_SECONDS}").raise_for_status().json()
        seconds, spent = time.perf_counter() - began, self._cpu() - cpu
        if job["state"] != "completed":
            raise RuntimeError(f"a job ended otherwise: {job}")
        ((_, started, completed),) = newest_jobs(self.deployment, model, 1)
        sound = self._sound_seconds(job["output_artifacts"][0])
        self.settle()
        return figures(seconds, completed - started, spent, sound)

    def first_sound(self, model: str, text: str) -> float:
        """Seconds until the first byte of a streamed sound; then nobody listens any more."""
        asked = {"model": model, "input": text, "stream_format": "audio"}
        began, heard, seconds = time.perf_counter(), 0, 0.0
        with self._http.stream("POST", "/v1/audio/speech", json=asked) as answer:
            answer.raise_for_status()
            for chunk in answer.iter_raw():
                heard += len(chunk)
                if heard > _WAV_HEADER_BYTES:
                    seconds = time.perf_counter() - began
                    break
        if not seconds:
            raise RuntimeError(f"the stream ended after {heard} bytes")
        self.settle()
        return seconds

    def whole(self, model: str, text: str) -> float:
        """Seconds until the answer without streaming is there."""
        began = time.perf_counter()
        self._http.post("/v1/audio/speech", json={"model": model, "input": text}).raise_for_status()
        seconds = time.perf_counter() - began
        self.settle()
        return seconds

    def batch(self, load: Helper, model: str, texts: Sequence[str]) -> float:
        """Jobs submitted at once: seconds from the first submit to the last end, by the rows."""
        path = "/v1/generations", self.deployment.headers
        requests = [raw("POST", *path, _submission(model, text)) for text in texts]
        run_load(load, self.deployment.port, requests, min(_SUBMITTERS, len(texts)), count=len(texts))
        times = until_done(self.deployment, model, len(texts), _PATIENCE_SECONDS)
        self.settle()
        return max(ended for _, _, ended in times) - min(created for created, _, _ in times)

    def settle(self) -> None:
        """Wait until nothing runs and every artifact was looked into."""
        until(lambda: self._count("job WHERE state IN ('queued', 'running')") == 0)
        until(lambda: self._count("artifact WHERE inspect_at IS NOT NULL") == 0)

    def _count(self, which: str) -> int:
        return int(self.deployment.rows(f"SELECT count(*) FROM inclavate_{which}")[0][0])

    def _sound_seconds(self, artifact_id: str) -> float:
        meta = self._http.get(f"/v1/artifacts/{artifact_id}/meta").raise_for_status().json()
        return float(meta["facts"]["duration_seconds"])

    def _cpu(self) -> float:
        """Of the worker and its engines; what looks into artifacts comes and goes."""
        worker = self.deployment.worker
        return sum(map(cpu_seconds, (worker, *engines_of(worker.pid))))


def figures(seconds: float, run_seconds: float, cpu: float, sound_seconds: float) -> Round:
    return {
        "s": seconds,
        "run s": run_seconds,
        "CPU s": cpu,
        "sound s": sound_seconds,
        "factor": seconds / sound_seconds,
    }


def _submission(model: str, text: str) -> dict[str, Any]:
    return {"model": model, "modality": "audio", "params": {"text": text}}
