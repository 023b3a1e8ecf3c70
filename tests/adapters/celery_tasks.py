"""A Celery app with tracked tasks: `celery_tasks.py work`, `celery_tasks.py add NAME JSON` (prints the id), and
`celery_tasks.py wait ID` (prints how the task ended)."""

import json, os, sys, time

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "..", "examples"))

from celery import Celery
from celery.exceptions import TaskRevokedError
from celery_adapter import TrackedTask

URL, QUEUE = os.environ["REDIS_URL"], os.environ["QUEUE"]
app = Celery("tests", broker=URL, backend=URL, task_cls=TrackedTask)
if os.environ.get("SHORT_LOCKS"):
    app.conf.broker_transport_options = {"visibility_timeout": 2}
app.conf.update(task_default_queue=QUEUE, worker_hijack_root_logger=False, broker_connection_retry_on_startup=True)


@app.task(bind=True, name="steps")
def steps(self, steps):
    self.update_state(state="PROGRESS", meta={"percent": 1000})  # Refused, without harm to what comes with it.
    for step in range(1, steps + 1):
        self.update_state(state="PROGRESS", meta={"current": step, "total": steps, "unit": "steps"})
        self.output(f"step {step}\n")
    return {"steps": steps}


@app.task(bind=True, name="flaky", max_retries=2, default_retry_delay=0.3)
def flaky(self):
    if self.request.retries == 0:
        raise self.retry(exc=ValueError("not yet"))
    return "at last"


@app.task(name="broken")
def broken():
    raise ValueError("never")


@app.task(bind=True, name="endless")
def endless(self):
    self.update_state(state="WAITING", meta={"message": "begun", "phase": "waiting"})
    time.sleep(120)


@app.task(bind=True, name="again", acks_late=True)
def again(self):
    if app.backend.client.setnx(f"{QUEUE}:again", 1):
        self.update_state(state="PROGRESS", meta={"message": "begun"})
        time.sleep(120)


if sys.argv[1] == "work":
    app.worker_main(["worker", "--concurrency", "1", "--without-gossip", "--without-mingle", "--loglevel", "warning"])
elif sys.argv[1] == "add":
    print(app.send_task(sys.argv[2], kwargs=json.loads(sys.argv[3])).id)
else:
    result = app.AsyncResult(sys.argv[2])
    try:
        result.get(timeout=60)
    except (ValueError, TaskRevokedError):
        pass
    print(result.state)
