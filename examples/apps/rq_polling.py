#!/usr/bin/env python3
"""A job base polled from web pages, as people run it on RQ and Redis, on Milepost. Standard library only.

What it was: a web app that enqueues with RQ, `rq worker` beside it, and pages that ask the app "is it done yet?".

  q.enqueue(make_report, …)      POST /v1/jobs: 202, and an id that no other click ever had. A job_id of your own
                                 ("report-7") would find yesterday's job, and show its success for today's click
  rq worker                      `rq_polling.py worker`: claim, held heartbeat, end. RQ loses the job of a worker that
                                 is killed; here its lease runs out, and another takes it
  get_status(), return_value(),  one envelope: {"job_id","status","result","error",…}, status one of queued running
    exc_info                     retrying succeeded unsuccessful failed cancelled expired
  polling every second           the same request held until something changes (`?after=SEQ`): no delay, few requests
  FailedJobRegistry, dashboard   GET /v1/jobs?state=failed, the table in the page; "Requeue" is POST /v1/jobs/ID/retry
  Retry(max=2), job_timeout      "retryable" of `failed` (here false: RQ without Retry) with max_attempts, tries in all,
                                 which lost workers use up, too; timeout_ms
  result_ttl, failure_ttl        milepost serve --keep 7d
  the URL of Redis               MILEPOST_URL and MILEPOST_KEY, known to this server only: pages ask the app, the app
                                 asks the gateway. Put your own login in front of `Web.route`

Run it, with a gateway (`milepost serve`) on 127.0.0.1:8080, and open http://127.0.0.1:8000:

  python3 rq_polling.py worker &   # as many as there is to do at a time
  python3 rq_polling.py web
"""

import json, os, queue, re, signal, sys, threading, time, uuid
from http.client import HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.error import HTTPError
from urllib.parse import parse_qs
from urllib.request import Request, urlopen

MILEPOST = os.environ.get("MILEPOST_URL", "http://127.0.0.1:8080")
KEY = os.environ.get("MILEPOST_KEY")
QUEUE = os.environ.get("QUEUE", "reports")
LEASE_MS = int(os.environ.get("LEASE_MS", "30000"))
STEP = int(os.environ.get("STEP_MS", "500")) / 1000
CUSTOMERS = {"7": ["apples", "pears", "plums"], "8": ["nuts"], "9": []}  # A stand-in for the database.


def ask(method, path, body=None, lease=None, key=None, patience=float("inf")):
    """Status and answer of the gateway. The key makes it safe to repeat a request until there is an answer."""
    headers = {"Content-Type": "application/json", **({"Lease-Token": lease} if lease else {})}
    if KEY:
        headers["Authorization"] = f"Bearer {KEY}"
    if body:
        headers["Idempotency-Key"] = key or str(uuid.uuid4())
    end = time.monotonic() + patience
    while True:
        try:
            data = None if body is None else json.dumps(body).encode()
            try:
                answer = urlopen(Request(MILEPOST + path, data, headers, method=method), timeout=60)
            except HTTPError as error:
                answer = error  # It reads like any other answer.
            with answer:
                status, said = answer.getcode(), json.load(answer)
            if status < 500 and status != 429 and said.get("code") != "idempotency_in_flight":
                return status, said
        except (OSError, HTTPException, ValueError):
            pass  # The gateway is away, or restarts.
        print(f"no answer from {MILEPOST} yet", file=sys.stderr)
        if time.monotonic() > end:
            return 503, {"code": "away", "detail": "the job base is away, try again"}
        time.sleep(1)


# --- The worker -------------------------------------------------------------------------------------------------


def make_report(payload, append, pause):
    """The work itself. What it returns is the Outcome; `ok` false is "it ran, and there was nothing to be had"."""
    rows = CUSTOMERS[payload["customer"]]
    for number in range(1, 4):
        pause(STEP)
        append({"type": "progress", "data": {"current": number, "total": 3, "unit": "steps"}})
    if not rows:
        return {"ok": False, "items": 0, "note": "this customer has bought nothing"}
    return {"items": len(rows), "data": {"customer": payload["customer"], "rows": rows}}


HANDLERS = {"make_report": make_report}


class Stopped(Exception):
    """The work has to end; the argument is the type of the event that says so, or None if there is none to send."""


def run(job, lease, stop):
    events = f"/v1/jobs/{job['id']}/events"

    def hold():  # Heartbeat and cancel signal in one: the answer comes early when there is something to say.
        while True:
            status, said = ask("POST", f"{events}?wait_ms={LEASE_MS // 3}", [], lease)
            if status != 200 or said["cancel_requested"]:
                return stop.put("cancelled" if status == 200 else None)

    def pause(seconds):
        try:
            raise Stopped(stop.get(timeout=seconds))
        except queue.Empty:
            pass

    def append(*added):
        status, said = ask("POST", events, added, lease)
        if status == 409:
            raise Stopped(None)
        if status != 200:
            raise ValueError(said["detail"])
        pause(0)

    threading.Thread(target=hold, daemon=True).start()
    try:
        end = {"type": "completed", "data": HANDLERS[job["kind"]](job["payload"], append, pause)}
    except Stopped as stopped:
        end = {"type": stopped.args[0]}
    except Exception as error:
        end = {"type": "failed", "data": {"code": type(error).__name__, "message": repr(error), "retryable": False}}
    if end["type"]:
        ask("POST", events, end, lease)


def worker():
    current, leaving = None, False

    def leave(*_):
        nonlocal leaving
        leaving = True
        if current is None:  # Parked in a claim, which takes nothing once its connection is closed.
            sys.exit()
        current.put("released")

    signal.signal(signal.SIGTERM, leave)
    claim = {"queues": [QUEUE], "worker": f"rq-{os.getpid()}", "wait_ms": 30000, "lease_ms": LEASE_MS}
    while not leaving:
        for handed in ask("POST", "/v1/claims", claim)[1]["jobs"]:
            current = queue.SimpleQueue()  # Unlike others, it may be written to by a signal handler.
            run(handed["job"], handed["lease"]["token"], current)
        current = None


# --- The web app ------------------------------------------------------------------------------------------------


def envelope(job, result=None):
    """Every answer about a job has this shape. Lists leave the results out: one request each would be needed."""
    outcome = job["outcome"] or {}
    status = {"scheduled": "queued", "completed": "succeeded"}.get(job["state"], job["state"])
    if status == "succeeded" and not outcome["ok"]:
        status = "unsuccessful"
    error = job["error"] and {name: job["error"].get(name) for name in ("code", "message")}
    return {"job_id": job["id"], "status": status, "done": job["terminal"], "result": result, "error": error,
            "note": outcome.get("note"), "percent": (job["progress"] or {}).get("percent"), "attempt": job["attempt"],
            **{name: job[name] for name in ("subject", "created_at", "finished_at", "seq")}}


class Web(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def route(self, method, body):
        path, _, query = self.path.partition("?")
        query = {name: values[-1] for name, values in parse_qs(query).items()}
        named = re.fullmatch(r"/api/jobs/([0-9a-f-]{36})(/retry)?", path)
        if path == "/api/jobs" and method == "POST":
            customer = body.get("customer")
            if not isinstance(customer, str) or not 0 < len(customer) <= 100:
                return 422, {"error": {"code": "bad_customer", "message": "a customer is 1 to 100 characters"}}
            spec = {"queue": QUEUE, "kind": "make_report", "payload": {"customer": customer}, "max_attempts": 3,
                    "subject": f"customer:{customer}", "timeout_ms": 180000, "meta": {"from": "web"}}
            # The key is the click's, never the customer's: that would be answered with yesterday's job.
            status, said = ask("POST", "/v1/jobs", spec, key=self.headers.get("Idempotency-Key"), patience=5)
            job = said.get("job")
        elif path == "/api/jobs" and method == "GET":
            failed = "&state=failed,expired" if query.get("status") == "failed" else ""
            status, said = ask("GET", f"/v1/jobs?queue={QUEUE}{failed}", patience=5)
            if status == 200:
                return 200, {"jobs": [envelope(job) for job in said["jobs"]]}
        elif named and (method == "POST") == bool(named[2]):
            after = query.get("after", "")
            held = f"?wait=25&after={after}" if re.fullmatch("[0-9]+", after) else ""
            status, said = ask("GET", f"/v1/jobs/{named[1]}{held}", patience=5)
            if status == 200 and named[2] and said["queue"] == QUEUE:
                status, said = ask("POST", f"/v1/jobs/{named[1]}/retry", {}, patience=5)
            job = said
        else:
            return 404, {"error": {"code": "not_found", "message": "there is nothing here"}}
        if status < 400 and job["queue"] != QUEUE:  # The gateway may serve other apps, too.
            status, said = 404, {"code": "job_not_found", "detail": "there is no such job"}
        result = None
        if status < 400 and "result_url" in (job["outcome"] or {}):
            status, said = ask("GET", f"/v1/jobs/{job['id']}/result", patience=5)
            result = said
        if status >= 400:
            return status, {"error": {"code": said["code"], "message": said["detail"]}}
        return status, envelope(job, result)

    def answer(self, status, body, content_type="application/json"):
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self):
        if self.path == "/":
            return self.answer(200, PAGE.encode(), "text/html; charset=utf-8")
        self.answer(*self.route("GET", None))

    def do_POST(self):
        length = self.headers.get("Content-Length", "")
        if not re.fullmatch("[0-9]{1,5}", length):
            self.close_connection = True  # What follows is not read.
            return self.answer(413, {"error": {"code": "too_large", "message": "send a small body with its length"}})
        data = self.rfile.read(int(length))
        # A form on somebody else's page cannot send this type.
        if self.headers.get_content_type() != "application/json":
            return self.answer(415, {"error": {"code": "unsupported_media_type", "message": "send application/json"}})
        try:
            body = json.loads(data)
        except ValueError:
            body = None
        if not isinstance(body, dict):
            return self.answer(400, {"error": {"code": "invalid_json", "message": "send a JSON object"}})
        self.answer(*self.route("POST", body))

    def handle(self):
        try:
            super().handle()
        except ConnectionError:
            pass  # The page has gone.

    def log_message(self, *_):
        pass


def web():
    server = ThreadingHTTPServer(("127.0.0.1", int(os.environ.get("PORT", "8000"))), Web)
    print(f"ready at http://127.0.0.1:{server.server_port}", flush=True)
    server.serve_forever()


PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>Reports</title>
<style>body { font: 16px sans-serif; margin: 2em } td, th { padding: .2em .8em; text-align: left }
[data-status=succeeded] { color: green } [data-status=failed], [data-status=unsuccessful] { color: firebrick }</style>
<h1>Reports</h1>
<form id="order"><label>Customer <input name="customer" value="7" required></label> <button>Make a report</button></form>
<p>This click: <b id="status" role="status">none yet</b> <span id="detail"></span></p>
<h2>Jobs</h2>
<form id="search"><label><input type="checkbox" name="failed"> failed only</label>
<label>Job id <input name="wanted" size="40"></label> <button>Find</button></form>
<table><thead><tr><th>Job<th>About<th>Status<th>Error<th></thead><tbody id="jobs"></tbody></table>
<script>
const $ = (id) => document.getElementById(id);
const pause = (ms) => new Promise((done) => setTimeout(done, ms));

/** Asks until the app answers, with one key for all tries. */
async function ask(method, path, body) {
  const key = crypto.getRandomValues(new Uint32Array(4)).join("-");
  const headers = { "Content-Type": "application/json", "Idempotency-Key": key };
  for (;;) {
    const answer = await fetch(path, { method, headers, body: body && JSON.stringify(body) }).catch(() => null);
    if (answer && answer.status < 500) return answer.json();
    await pause(1000);
  }
}

function show({ status, result, error, note, percent }) {
  $("status").textContent = $("status").dataset.status = status ?? "refused";
  const far = percent ? `${Math.floor(percent)} %` : "";
  $("detail").textContent = error ? `${error.code}: ${error.message}` : result ? result.rows.join(", ") : note ?? far;
}

let click = 0;
$("order").onsubmit = async (event) => {
  event.preventDefault();
  const mine = ++click; // What is still answered to an earlier click is not shown.
  show({ status: "sending" });
  let job = await ask("POST", "/api/jobs", { customer: event.target.customer.value });
  while (mine === click) {
    show(job);
    list();
    if (job.done || !job.job_id) break;
    job = await ask("GET", `/api/jobs/${job.job_id}?after=${job.seq}`);
  }
};

/** Cells of text: nothing that comes from a job is ever read as HTML. */
function row(job) {
  const tr = document.createElement("tr");
  for (const text of [job.job_id, job.subject, job.status, job.error ? `${job.error.code}: ${job.error.message}` : ""])
    tr.insertCell().textContent = text;
  tr.cells[2].dataset.status = job.status;
  if (job.status === "failed") {
    const again = document.createElement("button");
    again.textContent = "Requeue";
    again.onclick = () => ask("POST", `/api/jobs/${job.job_id}/retry`, {}).then(list);
    tr.insertCell().append(again);
  }
  return tr;
}

let asked = 0, shown;
async function list() {
  const id = $("search").wanted.value.trim();
  const mine = ++asked;
  const found = id
    ? [await ask("GET", `/api/jobs/${encodeURIComponent(id)}`)].filter((job) => job.job_id)
    : (await ask("GET", `/api/jobs${$("search").failed.checked ? "?status=failed" : ""}`)).jobs;
  // What has not changed stays as it is, so that no button vanishes under the mouse.
  if (mine === asked && shown !== (shown = JSON.stringify(found))) $("jobs").replaceChildren(...found.map(row));
}
$("search").onsubmit = (event) => (event.preventDefault(), list());
$("search").onchange = list;
(async function keepListing() {
  await list();
  await pause(3000);
  keepListing();
})();
</script></html>
"""

if __name__ == "__main__":
    commands = {"web": web, "worker": worker}
    if sys.argv[1:] not in [[name] for name in commands]:
        sys.exit("usage: rq_polling.py web|worker")
    commands[sys.argv[1]]()
