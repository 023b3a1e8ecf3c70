#!/usr/bin/env python3
"""A worker on the Python standard library alone: `MILEPOST_URL=http://127.0.0.1:8080 worker.py QUEUE [NAME]`."""

import json, os, signal, sys, time, uuid
from http.client import HTTPException
from multiprocessing import Process
from urllib.request import Request, urlopen

URL = os.environ.get("MILEPOST_URL", "http://127.0.0.1:8080")
LEASE_MS = int(os.environ.get("LEASE_MS", "30000"))


def work(payload, append):
    """The work itself, here so many steps of so long. What it returns is the Outcome."""
    steps = payload.get("steps", 5)
    for step in range(1, steps + 1):
        time.sleep(payload.get("step_ms", 200) / 1000)
        progress = {"type": "progress", "data": {"current": step, "total": steps, "unit": "steps"}}
        append(progress, {"type": "output", "data": {"text": f"step {step} of {steps}\n"}})
    return {"items": steps, "data": {"steps": steps}}


def post(path, body, lease=""):
    """The answer, or None if the job is no longer ours. The key makes it safe to repeat until there is an answer."""
    headers = {"Content-Type": "application/json", "Lease-Token": lease}
    if body:  # Heartbeats need none.
        headers["Idempotency-Key"] = str(uuid.uuid4())
    while True:
        try:
            return json.load(urlopen(Request(URL + path, json.dumps(body).encode(), headers), timeout=60))
        except (OSError, HTTPException) as error:
            status = getattr(error, "code", 503)  # Without one the gateway is away, or restarts.
            if status in (404, 409):
                return None
            if status < 500 and status != 429:
                raise
            time.sleep(1)


def run(payload, events, lease):
    """Does a job and says how it ended, in a process of its own, which can be stopped whatever it is doing."""
    def append(*added):
        post(events, added, lease) or sys.exit()
    try:
        end = {"type": "completed", "data": work(payload or {}, append)}
    except Exception as error:
        end = {"type": "failed", "data": {"code": "exception", "message": repr(error)}}
    append(end)


def serve(queue="default", worker=f"python-{os.getpid()}"):
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())  # A parked claim takes nothing once its connection is closed.
    while claimed := post("/v1/claims", {"queues": [queue], "worker": worker, "wait_ms": 30000, "lease_ms": LEASE_MS}):
        for given in claimed["jobs"]:
            events, lease, end = f"/v1/jobs/{given['job']['id']}/events", given["lease"]["token"], "released"
            working = Process(target=run, args=(given["job"]["payload"], events, lease))
            working.start()
            try:
                # Heartbeat and cancel signal in one: the answer comes early when there is something to say.
                while (said := post(f"{events}?wait_ms={LEASE_MS // 3}", [], lease)) and working.is_alive():
                    if said["cancel_requested"]:
                        break
                # If it is still ours it was cancelled, or its process has died without a word.
                end = said and ("cancelled" if said["cancel_requested"] else "failed")
            finally:
                working.kill()
                if end:
                    post(events, {"type": end}, lease)


if __name__ == "__main__":
    serve(*sys.argv[1:])
