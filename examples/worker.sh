#!/usr/bin/env bash
# A worker in shell, with curl and jq: `MILEPOST_URL=http://127.0.0.1:8080 worker.sh QUEUE [NAME]`.
set -um # m: a background command is a process group of its own, which is ended as a whole

URL=${MILEPOST_URL:-http://127.0.0.1:8080} LEASE_MS=${LEASE_MS:-30000}
QUEUE=${1:-default} WORKER=${2:-shell-$$}
lease='' events='' working='' waiting='' answer=$(mktemp)

# The work itself, here so many steps of so long. What it prints is the Outcome.
work() {
  local steps step pause
  steps=$(jq -e '.steps // 5 | numbers' <<<"$1") || { echo "steps is no number" >&2; return 1; }
  pause=$(jq '(.step_ms // 200) / 1000' <<<"$1")
  for ((step = 1; step <= steps; step++)); do
    sleep "$pause"
    post "$events" "[{\"type\":\"progress\",\"data\":{\"current\":$step,\"total\":$steps,\"unit\":\"steps\"}},
      {\"type\":\"output\",\"data\":{\"text\":\"step $step of $steps\\n\"}}]" >/dev/null || return 1
  done
  echo "{\"items\":$steps,\"data\":{\"steps\":$steps}}"
}

# Sends a body until there is an answer, and prints it; fails if the job is no longer ours. The key makes repeating safe:
# nothing is handed out or stored twice. Ends with this shell, also in the background.
post() {
  local key=() said
  [[ $2 == '[]' ]] || key=(-H "Idempotency-Key: $(</proc/sys/kernel/random/uuid)")
  while kill -0 $$ 2>/dev/null; do
    said=$(curl -s --max-time 60 --json "$2" -H "Lease-Token: $lease" "${key[@]}" -w '\n%{http_code}' "$URL$1")
    case ${said##*$'\n'} in
      200) printf '%s\n' "${said%$'\n'*}"; return ;;
      000 | 429 | 5??) ;; # The gateway is away, or restarts.
      404 | 409) [[ $said == *idempotency_in_flight* ]] || return 1 ;;
      *) printf '%s\n' "$said" >&2; return 1 ;;
    esac
    sleep 1
  done
  return 1
}

# As post, but a signal is heard at once; the answer is left in a file.
await_post() {
  post "$@" >"$answer" &
  waiting=$!
  wait "$waiting"
}

run() {
  local outcome
  if outcome=$(work "$1"); then
    post "$events" "{\"type\":\"completed\",\"data\":$outcome}"
  else
    post "$events" '{"type":"failed","data":{"code":"exit_code","message":"the work failed"}}'
  fi
}

# Ends a background command and all that it has started.
stop() {
  { kill -- "-$1" && wait "$1"; } 2>/dev/null
}

leave() {
  stop "$waiting" # A parked claim takes nothing once its connection is closed.
  [[ -z $working ]] || stop "$working"
  [[ -z $lease ]] || post "$events" '{"type":"released"}' >/dev/null
  exit 0
}
trap leave TERM
trap 'rm -f "$answer"' EXIT

while lease='' working='' && await_post /v1/claims \
  "{\"queues\":[\"$QUEUE\"],\"worker\":\"$WORKER\",\"wait_ms\":30000,\"lease_ms\":$LEASE_MS}"; do
  lease=$(jq -r '.jobs[0].lease.token // empty' "$answer")
  [[ -n $lease ]] || continue
  events=/v1/jobs/$(jq -r '.jobs[0].job.id' "$answer")/events
  payload=$(jq -c '.jobs[0].job.payload // {}' "$answer")
  run "$payload" >/dev/null &
  working=$!
  # Heartbeat and cancel signal in one: the answer comes early when there is something to say.
  while await_post "$events?wait_ms=$((LEASE_MS / 3))" '[]'; do
    jq -e .cancel_requested "$answer" >/dev/null || continue
    stop "$working"
    post "$events" '{"type":"cancelled"}' >/dev/null
    break
  done
  stop "$working"
done
echo "$URL hands out no jobs of $QUEUE" >&2
exit 1
