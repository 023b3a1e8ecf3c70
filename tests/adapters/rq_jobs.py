"""An RQ queue with a tracked worker: `rq_jobs.py work`, `rq_jobs.py add NAME JSON` (prints the id), and
`rq_jobs.py wait ID` (prints how the job ended)."""

import json, os, sys, time
from pathlib import Path

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..", "..", "examples")]

from redis import Redis
from rq import Queue, Retry
from rq.job import Job
from rq_adapter import TrackedWorker, log, output, progress


def steps(steps):
    progress(percent=1000)  # Refused, without harm to what comes with it.
    for step in range(1, steps + 1):
        progress(current=step, total=steps, unit="steps", path=Path("no JSON"))
        output(f"step {step}\n")
    log("all done")
    return {"steps": steps}


def flaky():
    from rq import get_current_job

    if get_current_job().retries_left == 2:
        raise ValueError("not yet")
    return "at last"


def broken():
    raise ValueError("never")


def endless():
    progress(message="begun")
    time.sleep(120)


if __name__ == "__main__":
    redis = Redis.from_url(os.environ["REDIS_URL"])
    queue = Queue(os.environ["QUEUE"], connection=redis)
    if sys.argv[1] == "work":
        TrackedWorker([queue], connection=redis).work(logging_level="WARNING", with_scheduler=False)
    elif sys.argv[1] == "add":
        retry = None if sys.argv[2] == "broken" else Retry(max=2)
        print(queue.enqueue(f"rq_jobs.{sys.argv[2]}", kwargs=json.loads(sys.argv[3]), retry=retry).id)
    else:
        job = Job.fetch(sys.argv[2], connection=redis)
        while job.get_status().value not in ("finished", "failed", "stopped"):
            time.sleep(0.05)
        print(job.get_status().value)
