"""Reports work that something else runs as a tracked job, in the background: nothing here blocks it or breaks it.

    run = tracked.Run({"kind": "import", "subject": "file:7"}, on_cancel=stop)
    run.append("progress", current=3, total=10)
    run.end("completed", items=10)
"""

import atexit, json, logging, os, re, threading, time, uuid
from http.client import HTTPException
from urllib.request import Request, urlopen

URL = os.environ.get("MILEPOST_URL", "http://127.0.0.1:8080")
SILENCE_MS = int(os.environ.get("MILEPOST_SILENCE_MS", "60000"))  # A process that died is noticed after so long.
HOLD_MS = min(10_000, SILENCE_MS // 3)
PATIENCE = 60  # Seconds: how long after the end of a run the gateway may stay away before its report is given up.
MAX_WAITING = 1_000  # Events of a run; those that come while so many wait are dropped, its end is not.
MAX_RUNS = 500  # Reported at a time; those beyond go on unreported.

ENDS = ("completed", "failed", "cancelled")
log = logging.getLogger("milepost")
runs = set()
os.register_at_fork(after_in_child=runs.clear)  # Their threads stay behind.


def name(text):
    """A queue or kind out of any name."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", text)[-64:] or "unnamed"


def outcome(result):
    """An Outcome with what a function returned, if that is small and JSON."""
    try:
        fits = result is not None and len(json.dumps(result)) <= 200_000
    except (TypeError, ValueError):
        fits = False
    return {"data": result} if fits else {}


def settle(seconds=5):
    """Before a process ends: waits a little for runs that have ended and are not yet reported."""
    deadline = time.monotonic() + seconds
    for run in [run for run in runs if run.ended_at]:
        run.over.wait(max(0, deadline - time.monotonic()))


atexit.register(settle)


class Refused(Exception):
    """The gateway will not have it, however often it is sent."""


class Run:
    """One tracked job. Whoever opens a run under the same key reports about the same job, also from another process."""

    def __init__(self, spec, key=None, on_cancel=None, starts=True):
        """`starts`: a job under this key that has ended was an earlier run's, as after a crash; a new one is made."""
        self.spec = {"tracked": True, "timeout_ms": SILENCE_MS, **spec}
        self.key, self.on_cancel, self.starts = key or str(uuid.uuid4()), on_cancel, starts
        self.cancelled, self.over, self.ended_at = threading.Event(), threading.Event(), None
        self.waiting, self.busy, self.away, self.changed = [], True, False, threading.Condition()
        if len(runs) >= MAX_RUNS:
            log.warning("%d runs wait for %s: this one is not reported", MAX_RUNS, URL)
            self.over.set()
            return
        runs.add(self)
        try:
            threading.Thread(target=self._report, daemon=True).start()
        except RuntimeError as error:  # No more threads.
            log.warning("this run is not reported: %s", error)
            runs.discard(self)
            self.over.set()

    def append(self, kind, **data):
        with self.changed:
            if not self.ended_at and not self.over.is_set() and len(self.waiting) < MAX_WAITING:
                self.waiting.append({"type": kind, "data": data})
                self.changed.notify_all()

    def end(self, kind, **data):
        """Only the first end counts."""
        with self.changed:
            if not self.ended_at:
                self.ended_at = time.monotonic()
                self.waiting.append({"type": kind, "data": data})
                self.changed.notify_all()

    def flush(self, seconds):
        """Waits until all of it is reported, but no longer than so, and for no gateway that is away."""
        with self.changed:
            done = lambda: self.over.is_set() or self.away or not self.waiting and not self.busy
            self.changed.wait_for(done, seconds)

    def _report(self):
        try:
            path = self._open()
            threading.Thread(target=self._hold, args=(path,), daemon=True).start()
            while self._send(path, self._next()) and not (self.ended_at and not self.waiting):
                pass
        except Exception as error:
            log.warning("a run of %s is not reported: %s", self.spec.get("subject"), error)
        finally:
            runs.discard(self)
            with self.changed:
                self.over.set()
                self.changed.notify_all()

    def _open(self):
        answer = self._post("/v1/jobs", self.spec, self.key)
        if answer["job"]["terminal"] and self.starts:
            answer = self._post("/v1/jobs", self.spec, str(uuid.uuid4()))
        return f"/v1/jobs/{answer['job']['id']}/events"

    def _next(self):
        """What waits, as soon as there is something: at once when idle, joined when it piled up."""
        with self.changed:
            self.busy = False
            self.changed.notify_all()
            self.changed.wait_for(lambda: self.waiting)
            self.busy = True
            batch, self.waiting = self.waiting[:1_000], self.waiting[1_000:]
            return batch

    def _send(self, path, batch):
        """Whether the job was still there."""
        try:
            return self._post(path, batch) is not None
        except Refused as refused:
            if len(batch) > 1:  # All or nothing: the others may be good.
                return all([self._send(path, [event]) for event in batch])
            kind, data = batch[0].values()
            log.warning("%s of %s was refused: %s", kind, self.spec.get("subject"), refused)
            # An end has to be told all the same.
            return self._send(path, [{"type": kind, "data": {}}]) if kind in ENDS and data else True

    def _hold(self, path):
        """Heartbeat and cancel signal in one: the answer comes early when there is something to say."""
        while not self.over.is_set():
            hold = "" if self.cancelled.is_set() else f"?wait_ms={HOLD_MS}"
            try:
                said = self._post(path + hold, [])
            except Exception:
                return
            if not said or self.over.wait(0 if hold else HOLD_MS / 1000):
                return
            if said["cancel_requested"] and not self.cancelled.is_set():
                self.cancelled.set()
                try:
                    self.on_cancel and self.on_cancel()
                except Exception:
                    log.warning("%s cannot be stopped", self.spec.get("subject"), exc_info=True)

    def _post(self, path, body, key=None):
        """The answer, or None if the job has ended. The key makes it safe to repeat until there is an answer."""
        headers = {"Content-Type": "application/json"}
        if body:
            headers["Idempotency-Key"] = key or str(uuid.uuid4())
        request = Request(URL + path, json.dumps(body, default=str).encode(), headers)
        while not self.ended_at or time.monotonic() < self.ended_at + PATIENCE:
            try:
                with urlopen(request, timeout=30) as answer:
                    self.away = False
                    return json.load(answer)
            except (OSError, HTTPException) as error:
                status = getattr(error, "code", 503)  # Without one the gateway is away, or restarts.
                if status in (404, 409):
                    return None
                if status < 500 and status != 429:
                    raise Refused(json.load(error).get("detail", status))
                with self.changed:
                    self.away = True
                    self.changed.notify_all()
                time.sleep(1)
        raise TimeoutError(f"{URL} was away for too long")
