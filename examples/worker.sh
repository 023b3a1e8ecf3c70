#!/usr/bin/env bash
# A worker in shell, with curl and jq: `MILEPOST_URL=http://127.0.0.1:8080 worker.sh QUEUE [NAME]`.
set -um # m: a background command is a process group of its own, which is ended as a whole

URL=${MILEPOST_URL:-http://127.0.0.1:8080} LEASE_MS=${LEASE_MS:-30000} QUEUE=${1:-default} WORKER=${2:-shell-$$}

# The work itself, here so many steps of so long. What it prints is the Outcome.
work() {
  local steps step pause
  steps=$(jq -e '.steps // 5 | numbers' <<<"$1") || return 1
  pause=$(jq '(.step_ms // 200) / 1000' <<<"$1")
  for ((step = 1; step <= steps; step++)); do
    sleep "$pause"
    append "{\"type\":\"progress\",\"data\":{\"current\":$step,\"total\":$steps,\"unit\":\"steps\"}}" \
      "{\"type\":\"output\",\"data\":{\"text\":\"step $step of $steps\\n\"}}" || return 1
  done
  echo "{\"items\":$steps,\"data\":{\"steps\":$steps}}"
}

# Prints the answer to a body, for which it waits, however long the gateway is away; what was answered before it is
# printed, too. The key makes it safe to repeat; heartbeats need none. It is the whole of a subshell.
post() {
  [[ $2 == '[]' ]] || set -- "$@" -H "Idempotency-Key: $(</proc/sys/kernel/random/uuid)"
  exec curl -s --max-time 60 --retry 1000000 --retry-delay 1 --retry-all-errors -w '\n' \
    --json "$2" -H "Lease-Token: $lease" "${@:3}" "$URL$1"
}

# Appends events, or fails: the job is no longer ours.
append() {
  (post "$events" "$(jq -sc . <<<"$@")") | jq -e .seq >/dev/null
}

# Does a job and says how it ended.
run() {
  local outcome failure='{"type":"failed","data":{"code":"exit_code","message":"the work failed"}}'
  outcome=$(work "$1") && append "{\"type\":\"completed\",\"data\":$outcome}" || append "$failure"
}

# Ends a background command and all that it has started.
stop() {
  { kill -- "-$1" && wait "$1"; } 2>/dev/null
}

leave() {
  kill "$!" 2>/dev/null # The request that is waited for: a parked claim takes nothing once its connection is closed.
  [[ -z $lease ]] || { stop "$working"; (post "$events" '{"type":"released"}') >/dev/null; }
  exit 0
}
trap leave TERM

claim="{\"queues\":[\"$QUEUE\"],\"worker\":\"$WORKER\",\"wait_ms\":30000,\"lease_ms\":$LEASE_MS}"
while lease='' && read -r said < <(post /v1/claims "$claim") && jq -e .jobs <<<"$said" >/dev/null; do
  given='.jobs[]? | "\(.job.id) \(.lease.token) \(.job.payload // {})"'
  read -r id lease payload < <(jq -r "$given" <<<"$said") || continue
  events=/v1/jobs/$id/events
  run "$payload" &
  working=$!
  # Heartbeat and cancel signal in one: the answer comes early when there is something to say.
  while read -r said < <(post "$events?wait_ms=$((LEASE_MS / 3))" '[]') && kill -0 "$working" 2>/dev/null; do
    jq -e '.cancel_requested == false' <<<"$said" >/dev/null || break
  done
  stop "$working"
  # If it is still ours it was cancelled, or its work has died without a word.
  end=$(jq -r 'select(.seq) | if .cancel_requested then "cancelled" else "failed" end' <<<"$said")
  [[ -z $end ]] || (post "$events" "{\"type\":\"$end\"}") >/dev/null
done
echo "$URL hands out no jobs of $QUEUE: $said" >&2
exit 1
