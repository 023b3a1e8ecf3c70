#!/usr/bin/env bash
# Runs every test of Milepost, on both stores, from a clean clone: `tests/run.sh`, or a part: `tests/run.sh rust`.
#
# Parts: lint (formatting, clippy, docs), rust (unit and black-box), web (types and pure logic), browser (Chromium).
# As root it installs what Debian has and this machine lacks; otherwise it says what to install. The Postgres it
# tests against is its own: a throw-away cluster on a free loopback port, gone when the script ends.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly PARTS=(lint rust web browser)

die() {
  printf 'tests/run.sh: %s\n' "$*" >&2
  exit 1
}

step() {
  printf '\n== %s\n' "$*"
}

# --- What the machine must have ---------------------------------------------------------------------------------

postgres_bin() {
  # Debian keeps the servers out of PATH, one directory for each major version; the newest is taken.
  local found
  found=$(printf '%s\n' /usr/lib/postgresql/*/bin | sort -V | tail -n 1)
  if [[ -x "$found/initdb" && -x "$found/psql" ]]; then
    printf '%s\n' "$found"
  elif command -v initdb >/dev/null && command -v psql >/dev/null; then
    dirname "$(readlink -f "$(command -v initdb)")"
  fi
}

chromium_bin() {
  local name
  for name in chromium chromium-browser google-chrome; do
    if command -v "$name"; then return; fi
  done
}

has_node() {
  command -v node >/dev/null && command -v npm >/dev/null &&
    node -e 'const [a, b] = process.versions.node.split(".").map(Number); process.exit(a > 18 || (a === 18 && b >= 19) ? 0 : 1)'
}

python_bin() {
  # Debian's comes without what makes a venv, and one of the user's own may stand before it.
  local name
  for name in python3 /usr/bin/python3; do
    if "$name" -c 'import ensurepip, venv' 2>/dev/null; then command -v "$name" && return; fi
  done
}

has_compiler() {
  # The bundled SQLite and the TLS library have parts in C.
  command -v cc >/dev/null
}

has_server() {
  # Debian keeps them out of the PATH of users.
  PATH="$PATH:/usr/sbin:/usr/local/sbin" command -v "$1" >/dev/null
}

# Debian starts what it installs, now and at each boot: the tests start servers of their own.
POLICY=/usr/sbin/policy-rc.d
OWN_POLICY=

forbid_services() {
  if [[ -e $POLICY ]]; then return; fi
  OWN_POLICY=yes
  printf '#!/bin/sh\nexit 101\n' >"$POLICY"
  chmod 755 "$POLICY"
}

allow_services() {
  [[ -n $OWN_POLICY ]] || return 0
  OWN_POLICY=
  rm -f "$POLICY"
}

keep_services_off() {
  # Only those that came with this run: others are somebody's.
  local pair
  command -v systemctl >/dev/null || return 0
  for pair in nginx-light:nginx haproxy:haproxy varnish:varnish caddy:caddy; do
    if [[ " $1 " == *" ${pair%:*} "* ]]; then systemctl --quiet disable "${pair#*:}" >/dev/null 2>&1 || true; fi
  done
}

require() {
  local packages=() missing
  if wants lint rust browser; then
    command -v cargo >/dev/null || die "Rust is missing: install a toolchain with cargo, rustfmt and clippy (https://rustup.rs)"
    has_compiler || packages+=(build-essential)
  fi
  if wants rust browser; then
    [[ -n "$(postgres_bin)" ]] || packages+=(postgresql)
  fi
  if wants rust; then
    # What the workers of `examples/` are written in, and what its adapters run on.
    command -v curl >/dev/null || packages+=(curl)
    command -v jq >/dev/null || packages+=(jq)
    [[ -n "$(python_bin)" ]] || packages+=(python3 python3-venv)
    command -v redis-server >/dev/null || packages+=(redis-server)
  fi
  if wants rust browser; then
    # For the workers, and for an app of `examples/apps/`.
    command -v python3 >/dev/null || packages+=(python3)
    # A program that `milepost work` is put around.
    command -v ffmpeg >/dev/null && command -v ffprobe >/dev/null || packages+=(ffmpeg)
  fi
  if wants rust web browser; then
    has_node || packages+=(nodejs npm ca-certificates)
  fi
  if wants browser; then
    [[ -n "$(chromium_bin)" ]] || packages+=(chromium)
    command -v curl >/dev/null || packages+=(curl)
    # What stands before a gateway elsewhere.
    has_server nginx || packages+=(nginx-light)
    has_server haproxy || packages+=(haproxy)
    has_server varnishd || packages+=(varnish)
    has_server caddy || packages+=(caddy)
    command -v openssl >/dev/null || packages+=(openssl)
  fi
  ((${#packages[@]} > 0)) || return 0
  missing=$(printf '%s\n' "${packages[@]}" | sort -u | paste -sd ' ')
  if ((EUID != 0)) || ! command -v apt-get >/dev/null; then
    die "this machine lacks: $missing. Install them (Debian: sudo apt-get install $missing) and run it again."
  fi
  step "Installing $missing"
  # A cluster made and started by the package would only be in the way: the tests run one of their own.
  local no_cluster=
  if [[ " $missing " == *" postgresql "* && ! -e /etc/postgresql-common/createcluster.conf ]]; then
    no_cluster=/etc/postgresql-common/createcluster.conf
    mkdir -p "${no_cluster%/*}"
    echo 'create_main_cluster = false' >"$no_cluster"
  fi
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -q
  forbid_services
  # shellcheck disable=SC2086 # a list of names
  apt-get install -q -y --no-install-recommends $missing
  allow_services
  keep_services_off "$missing"
  if [[ -e "$no_cluster.ucf-dist" ]]; then
    mv "$no_cluster.ucf-dist" "$no_cluster"
  elif [[ -n "$no_cluster" ]]; then
    rm "$no_cluster"
  fi
  if wants rust browser; then [[ -n "$(postgres_bin)" ]] || die "postgresql was installed, but no initdb was found"; fi
  if wants rust; then [[ -n "$(python_bin)" ]] || die "python3-venv was installed, but no python3 makes a venv"; fi
  if wants rust web browser; then has_node || die "node 18.19 or newer is needed, this is $(node --version 2>&1 || true)"; fi
  if wants browser; then [[ -n "$(chromium_bin)" ]] || die "chromium was installed, but was not found"; fi
}

# --- A Postgres of our own --------------------------------------------------------------------------------------

SCRATCH=
POSTGRES_PID=

start_postgres() {
  local bin port user as=()
  bin=$(postgres_bin)
  # The tests make their databases with this psql.
  export PATH="$bin:$PATH"
  if ((EUID == 0)); then
    # The server refuses to be root.
    user=nobody
    if id -u postgres >/dev/null 2>&1; then user=postgres; fi
    chown "$user" "$SCRATCH"
    as=(setpriv --reuid "$user" --regid "$(id -g "$user")" --clear-groups -- env HOME="$SCRATCH")
  fi
  step "Starting $("$bin/postgres" --version)"
  # Durability stays as it is by default: what is tested is what runs in production.
  (cd "$SCRATCH" && exec "${as[@]}" "$bin/initdb" --pgdata "$SCRATCH/pg" --username milepost --auth trust \
    --encoding UTF8 --locale C.UTF-8 --no-instructions >"$SCRATCH/initdb.log" 2>&1) ||
    { cat "$SCRATCH/initdb.log" >&2; die "initdb failed"; }
  # A port that is free now may be taken when the server binds it: then another is tried.
  for _ in 1 2 3 4 5; do
    port=$((20000 + RANDOM % 12000))
    if (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then continue; fi
    # `exec` all the way: the process id is the server's own.
    (cd "$SCRATCH" && exec "${as[@]}" "$bin/postgres" -D "$SCRATCH/pg" -h 127.0.0.1 -p "$port" -k "$SCRATCH" \
      -c max_connections=300 >>"$SCRATCH/postgres.log" 2>&1) &
    POSTGRES_PID=$!
    if wait_for_postgres "$bin" "$port"; then
      export MILEPOST_TEST_POSTGRES="postgres://milepost@127.0.0.1:$port/postgres"
      echo "ready at $MILEPOST_TEST_POSTGRES"
      return
    fi
    stop_postgres
  done
  cat "$SCRATCH/postgres.log" >&2
  die "Postgres did not start"
}

wait_for_postgres() {
  local i
  for ((i = 0; i < 300; i++)); do
    kill -0 "$POSTGRES_PID" 2>/dev/null || return 1
    if "$1/pg_isready" -q -h 127.0.0.1 -p "$2" -U milepost -d postgres; then return 0; fi
    sleep 0.1
  done
  return 1
}

stop_postgres() {
  [[ -n "$POSTGRES_PID" ]] || return 0
  # Immediate: nothing in it is worth a checkpoint.
  kill -QUIT "$POSTGRES_PID" 2>/dev/null || true
  wait "$POSTGRES_PID" 2>/dev/null || true
  POSTGRES_PID=
}

clean_up() {
  stop_postgres
  allow_services
  if [[ -n "$SCRATCH" ]]; then rm -rf "$SCRATCH"; fi
}

# --- The parts --------------------------------------------------------------------------------------------------

lint() {
  step "Format, clippy, docs"
  cargo fmt --check
  cargo clippy --quiet --locked --all-targets -- -D warnings
  RUSTDOCFLAGS="-D warnings" cargo doc --quiet --locked --no-deps
  echo "no complaints"
}

python_install() {
  local venv=${CARGO_TARGET_DIR:-$PWD/target}/venv
  export MILEPOST_TEST_PYTHON=$venv/bin/python3
  if cmp -s "$venv/.milepost-requirements" tests/requirements.txt && "$MILEPOST_TEST_PYTHON" -c ''; then return; fi
  step "Installing the tests' Python packages"
  # Made anew: what was there may belong to a Python that is gone.
  "$(python_bin)" -m venv --clear "$venv"
  "$venv/bin/pip" install --quiet --disable-pip-version-check --requirement tests/requirements.txt
  cp tests/requirements.txt "$venv/.milepost-requirements"
}

rust() {
  npm_install
  python_install
  step "Rust: unit and black-box tests"
  # Most of them wait for something: more at a time than there are cores.
  RUST_TEST_THREADS=${RUST_TEST_THREADS:-4} cargo test --locked
}

npm_install() {
  local stamp=tests/node_modules/.milepost-lock
  if [[ -e "$stamp" ]] && cmp -s "$stamp" tests/package-lock.json; then return; fi
  step "Installing the tests' packages"
  # No scripts: nothing in here needs to build or fetch anything of its own.
  npm ci --prefix tests --ignore-scripts --no-audit --no-fund
  cp tests/package-lock.json "$stamp"
}

node_test() {
  node --test --test-reporter=tap "$@"
}

web() {
  npm_install
  step "Web: types"
  tests/node_modules/.bin/tsc --project tests/web
  tests/node_modules/.bin/tsc --project tests
  echo "no complaints"
  step "Web: pure logic"
  node_test tests/web/*.test.mjs
}

browser() {
  npm_install
  step "Browser: $("$(chromium_bin)" --version 2>/dev/null)"
  cargo build --quiet --locked --bin milepost
  export MILEPOST_BIN=${MILEPOST_BIN:-${CARGO_TARGET_DIR:-$PWD/target}/debug/milepost}
  # Three files at a time: most of their time is spent waiting for reconnects that are late on purpose.
  MILEPOST_CHROMIUM=$(chromium_bin) node_test --test-concurrency=3 tests/browser/*.test.mjs
}

wants() {
  local part
  for part in "$@"; do
    if [[ " ${SELECTED[*]} " == *" $part "* ]]; then return 0; fi
  done
  return 1
}

SELECTED=("$@")
if (($# == 0)); then SELECTED=("${PARTS[@]}"); fi
for part in "${SELECTED[@]}"; do
  [[ " ${PARTS[*]} " == *" $part "* ]] || die "no part '$part': there are ${PARTS[*]}"
done

trap clean_up EXIT
trap 'exit 130' INT TERM HUP
require
SCRATCH=$(mktemp -d "${TMPDIR:-/tmp}/milepost-tests.XXXXXX")
if wants rust browser; then start_postgres; fi

: >"$SCRATCH/summary"
for part in "${SELECTED[@]}"; do
  "$part" 2>&1 | tee "$SCRATCH/$part.log"
  echo "-- $part" >>"$SCRATCH/summary"
  grep -E '^(test result:|# (tests|pass|fail|cancelled|skipped) )' "$SCRATCH/$part.log" >>"$SCRATCH/summary" || true
done

step "All of it passed: ${SELECTED[*]}"
cat "$SCRATCH/summary"
