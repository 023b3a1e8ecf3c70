"""Shows the tasks of a Celery app in Milepost while they run. Beside this file it needs `tracked.py`.

    from celery_adapter import TrackedTask
    app = Celery("shop", broker="redis://…", task_cls=TrackedTask)  # or one task: @app.task(base=TrackedTask)

    @app.task(bind=True)
    def import_file(self, path):
        self.update_state(state="PROGRESS", meta={"current": 3, "total": 10, "unit": "files"})

`MILEPOST_URL` says where. `GET /v1/jobs?subject=celery:<task id>` finds the runs of a task, the newest first: there is
one job for each, from its start to its end. A run that Celery will try again ends as `failed`, code `retry`, and the
next one is a job of its own; so no failure is lost, and no success is told twice. A cancel revokes the task, with
SIGTERM to its process where the pool has processes; elsewhere a task looks at `self.cancelled` now and then.
"""

from celery import Task, signals

import tracked

FIELDS = ("percent", "current", "total", "unit", "phase", "message")


class TrackedTask(Task):
    """A task whose runs are reported."""

    def update_state(self, task_id=None, state=None, meta=None, **kwargs):
        super().update_state(task_id, state, meta, **kwargs)
        run = task_id in (None, self.request.id) and running.get(self.request.id)
        if run and isinstance(meta, dict):
            progress = {} if state == "PROGRESS" else {"phase": str(state)}
            progress.update((field, meta[field]) for field in FIELDS if field in meta)
            run.append("progress", **progress)

    def output(self, text):
        """Text for whoever watches, as it comes."""
        if run := running.get(self.request.id):
            run.append("output", text=text)

    @property
    def cancelled(self):
        run = running.get(self.request.id)
        return bool(run) and run.cancelled.is_set()


running = {}  # By task id, in the process that runs them.


def open_run(task, request, starts):
    attempt = (request.retries or 0) + 1
    delivery = request.delivery_info or {}
    spec = {
        "kind": tracked.name(task.name),
        "queue": tracked.name(delivery.get("routing_key") or "celery"),
        "subject": f"celery:{request.id}",
        "meta": {"attempt": attempt},
    }
    # The key is the same in the process that runs the task and in the one that ends it.
    key = f"celery:{request.id}:{attempt}:{bool(delivery.get('redelivered'))}"
    cancel = lambda: task.app.control.revoke(request.id, terminate=True)
    return tracked.Run(spec, key, on_cancel=cancel if starts else None, starts=starts)


@signals.task_prerun.connect
def started(sender, task_id, **_):
    if isinstance(sender, TrackedTask) and not sender.request.called_directly and not sender.request.is_eager:
        running[task_id] = open_run(sender, sender.request, starts=True)


@signals.task_postrun.connect
def ended(task_id, state, retval, **_):
    """After Celery has stored how it ended."""
    run = running.pop(task_id, None)
    if run is None:
        return
    if state == "SUCCESS":
        run.end("completed", **tracked.outcome(retval))
    elif state == "RETRY":
        run.end("failed", code="retry", message=str(retval.exc or retval), details={"again": retval.humanize()})
    elif state == "FAILURE":
        run.end("failed", code=tracked.name(type(retval).__name__), message=str(retval), retryable=False)
    else:
        run.end("cancelled", reason=state.lower())


@signals.task_revoked.connect
def revoked(sender, request, terminated, expired, **_):
    """In the worker's main process. The one that ran the task, if any did, has been killed and says nothing more."""
    if isinstance(sender, TrackedTask):
        run = open_run(sender, request, starts=False)
        run.end("cancelled", reason="expired" if expired else "terminated" if terminated else "revoked")


@signals.worker_process_shutdown.connect
def settle(**_):
    """These processes end without `atexit`."""
    tracked.settle()
