#!/usr/bin/env python3
"""A worker on the Python standard library alone: `MILEPOST_URL=http://127.0.0.1:8080 worker.py QUEUE [NAME]`."""

import json, os, queue, signal, sys, threading, time, uuid
from http.client import HTTPException
from urllib.error import HTTPError
from urllib.request import Request, urlopen

URL = os.environ.get("MILEPOST_URL", "http://127.0.0.1:8080")
LEASE_MS = int(os.environ.get("LEASE_MS", "30000"))
QUEUE = sys.argv[1] if len(sys.argv) > 1 else "default"
WORKER = sys.argv[2] if len(sys.argv) > 2 else f"python-{os.getpid()}"


def work(payload, append, pause):
    """The work itself, here so many steps of so long. What it returns is the Outcome."""
    steps = payload.get("steps", 5)
    for step in range(1, steps + 1):
        pause(payload.get("step_ms", 200) / 1000)
        progress = {"type": "progress", "data": {"current": step, "total": steps, "unit": "steps"}}
        append(progress, {"type": "output", "data": {"text": f"step {step} of {steps}\n"}})
    return {"items": steps, "data": {"steps": steps}}


class Stopped(Exception):
    """The work has to end; the argument is the type of the event that says so, or None if there is none to send."""


def post(path, body, lease=None):
    """The answer, or None if the job is no longer ours. The key makes it safe to repeat until there is an answer."""
    headers = {"Content-Type": "application/json", **({"Lease-Token": lease} if lease else {})}
    if body:
        headers["Idempotency-Key"] = str(uuid.uuid4())
    while True:
        try:
            with urlopen(Request(URL + path, json.dumps(body).encode(), headers), timeout=60) as answer:
                return json.load(answer)
        except HTTPError as error:
            code = json.load(error)["code"] if error.code < 500 else "away"
            if code in ("lease_lost", "job_terminal", "job_not_found"):
                return None
            if code not in ("away", "too_many_requests", "idempotency_in_flight"):
                raise
        except (OSError, HTTPException):
            pass  # The gateway is away, or restarts.
        time.sleep(1)


def run(job, lease, stop):
    events = f"/v1/jobs/{job['id']}/events"

    def hold():  # Heartbeat and cancel signal in one: the answer comes early when there is something to say.
        while answer := post(f"{events}?wait_ms={LEASE_MS // 3}", [], lease):
            if answer["cancel_requested"]:
                return stop.put("cancelled")
        stop.put(None)

    def pause(seconds):
        try:
            raise Stopped(stop.get(timeout=seconds))
        except queue.Empty:
            pass

    def append(*added):
        if not post(events, added, lease):
            raise Stopped(None)
        pause(0)

    threading.Thread(target=hold, daemon=True).start()
    try:
        end = {"type": "completed", "data": work(job["payload"] or {}, append, pause)}
    except Stopped as stopped:
        end = {"type": stopped.args[0]}
    except Exception as error:
        end = {"type": "failed", "data": {"code": "exception", "message": repr(error)}}
    if end["type"]:
        post(events, end, lease)


stop, leaving = None, False


def leave(*_):
    global leaving
    leaving = True
    if stop is None:  # Parked in a claim, which takes nothing once its connection is closed.
        sys.exit()
    stop.put("released")


signal.signal(signal.SIGTERM, leave)
while not leaving:
    claim = {"queues": [QUEUE], "worker": WORKER, "wait_ms": 30000, "lease_ms": LEASE_MS}
    for handed in post("/v1/claims", claim)["jobs"]:
        stop = queue.SimpleQueue()  # Unlike others, it may be written to by a signal handler.
        run(handed["job"], handed["lease"]["token"], stop)
    stop = None
