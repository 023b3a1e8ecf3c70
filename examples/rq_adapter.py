"""Shows the jobs of RQ in Milepost while they run. Beside this file it needs `tracked.py`.

    rq worker --worker-class rq_adapter.TrackedWorker

    from rq_adapter import progress, output, log
    def import_file(path):
        progress(current=3, total=10, unit="files")

`MILEPOST_URL` says where. `GET /v1/jobs?subject=rq:<job id>` finds the runs of a job, the newest first: there is one
Milepost job for each, from its start to its end as RQ has stored it. A run that RQ will try again ends as `failed`,
code `retry`, and the next one is a job of its own; so no failure is lost, and no success is told twice. A cancel stops
the job as `rq.command.send_stop_job_command` does, and RQ does not try it again.
"""

from rq import Worker
from rq.command import send_stop_job_command
from rq.job import Job, JobStatus
from rq.results import Result

import tracked

horse = None  # In the process that runs a job: its run.


def progress(**fields):
    """`percent`, or `current` and `total`; `unit`, `phase`, `message`."""
    if horse:
        horse.append("progress", **fields)


def output(text):
    """Text for whoever watches, as it comes."""
    if horse:
        horse.append("output", text=text)


def log(message, level="info", **fields):
    if horse:
        horse.append("log", level=level, message=message, fields=fields)


class TrackedWorker(Worker):
    """A worker that reports what its jobs do and how they end."""

    run, failure = None, ""

    def fork_work_horse(self, job, queue):
        super().fork_work_horse(job, queue)
        # After the fork: a process should not be forked while its threads are at something.
        self.run = open_run(job, self.execution, lambda: send_stop_job_command(self.connection, job.id))

    def execute_job(self, job, queue):
        self.failure = ""
        super().execute_job(job, queue)
        # Most often the work horse has said it already; but it may have been killed, or the gateway be away.
        self._end(self.run, job)

    def perform_job(self, job, queue, execution):
        global horse
        horse = open_run(job, execution)
        try:
            return super().perform_job(job, queue, execution)
        finally:
            self._end(horse, job)
            horse.flush(10)

    def handle_job_failure(self, job, queue, *args, **kwargs):
        self.failure = kwargs.get("exc_string", "")
        super().handle_job_failure(job, queue, *args, **kwargs)

    def _end(self, run, job):
        try:
            kind, data = how_it_ended(job, run.execution_id, self.failure)
            run.end(kind, **data)
        except Exception:  # Then its silence ends it.
            tracked.log.warning("how job %s ended is not known", job.id, exc_info=True)


def open_run(job, execution, on_cancel=None):
    try:
        kind = tracked.name(job.func_name)
    except Exception:  # It cannot be read; that RQ will say.
        kind = "unnamed"
    spec = {
        "kind": kind,
        "queue": tracked.name(job.origin),
        "subject": f"rq:{job.id}",
        "meta": {"retries_left": job.retries_left or 0},
    }
    # The worker and its work horse report about one job.
    run = tracked.Run(spec, f"rq:{execution.id}", on_cancel)
    run.execution_id = execution.id
    return run


def how_it_ended(job, execution_id, failure):
    """As RQ has stored it: the type of the event that says so, and its data."""
    stored = next((result for result in Result.all(job) if result.execution_id == execution_id), None)
    if stored and stored.type is Result.Type.SUCCESSFUL:
        return "completed", tracked.outcome(stored.return_value)
    if not stored and not Job.exists(job.id, job.connection):
        return "completed", {"note": "RQ was told to keep no result"}
    if stored and job.get_status() is JobStatus.STOPPED:
        return "cancelled", {"reason": "stopped"}
    # RQ stores nothing of an exception after which it tries again.
    again = not stored or stored.type is Result.Type.RETRIED
    lines = (failure or stored and stored.exc_string or "no reason was given").strip().splitlines()
    return "failed", {"code": "retry" if again else "exception", "message": lines[-1], "retryable": again}
