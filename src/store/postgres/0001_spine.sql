-- The spine: jobs, their logs, and what keeps them right. Forwards only; never changed once released.
-- Every hot statement carries job_id, so that jobs could be spread over databases by it.

-- The newest state of each job: the fold of its log. fillfactor 70 and no index on anything that progress changes
-- keep updates HOT (no index writes); an index on `state` alone would take that away from every claim and completion.
create table jobs (
    job_id uuid not null constraint jobs_pkey primary key,
    queue text not null,
    kind text not null,
    subject text,
    state text not null,
    seq bigint not null,
    attempt integer not null,
    max_attempts integer not null,
    priority integer not null,
    tracked boolean not null,
    progress json,
    output_bytes bigint not null,
    outcome json,
    error json,
    cancel_requested boolean not null,
    worker text,
    created_at timestamptz not null,
    run_at timestamptz not null,
    started_at timestamptz,
    finished_at timestamptz,
    updated_at timestamptz not null,
    meta json not null,
    run bigint not null,
    -- the latest run's output are the `output` events after this seq
    output_after_seq bigint not null,
    -- enqueued or last redriven: deadline_ms counts from here
    enqueued_at timestamptz not null,
    cancel_reason text,
    -- the next instant at which TTL or deadline may end the job
    due_at timestamptz,
    -- which append ended the latest run: its repetition is answered, another one refused
    ending_run bigint,
    ending_hash bytea
) with (fillfactor = 70);

-- "What runs about this subject?": the way back to its job for a page that was reloaded.
create index jobs_subject on jobs (subject, job_id) where subject is not null;
create index jobs_due on jobs (due_at) where due_at is not null;

-- What progress must not copy.
create table specs (
    job_id uuid not null constraint specs_pkey primary key,
    policy json not null,
    payload json not null
);
create table results (
    job_id uuid not null constraint results_pkey primary key,
    data json not null
);

-- The logs. Ids are UUIDv7, so ranges of ids are ranges of time: old logs go by dropping a partition.
-- `json`, not `jsonb`: data comes out as it went in, and arrays of events are stored a quarter faster.
create table events (
    job_id uuid not null,
    seq bigint not null,
    type text not null,
    at timestamptz not null,
    attempt integer not null,
    data json not null,
    constraint events_pkey primary key (job_id, seq)
) partition by range (job_id);
create table events_default partition of events default;

-- What waits: claimable now, and from run_at on. A job stands in at most one of the two.
create table ready (
    job_id uuid not null constraint ready_pkey primary key,
    queue text not null,
    priority integer not null,
    concurrency_key text,
    kind text not null,
    run_at timestamptz not null
);
create table later (
    job_id uuid not null constraint later_pkey primary key,
    run_at timestamptz not null
);
create index later_run_at on later (run_at);

-- What runs. Small, and scanned by the sweep: no index on the instants, which every heartbeat changes.
create table leases (
    job_id uuid not null constraint leases_pkey primary key,
    run bigint not null,
    worker text,
    queue text not null,
    concurrency_key text,
    -- null: nothing bounds its runner's silence
    expires_at timestamptz,
    cancel_at timestamptz
) with (fillfactor = 70);

-- At most one live job per queue and key.
create table unique_keys (
    queue text not null,
    key text not null,
    job_id uuid not null,
    constraint unique_keys_pkey primary key (queue, key)
);

-- Requests that were answered, for 24 hours.
create table idempotency (
    scope text not null,
    key text not null,
    body_hash bytea not null,
    answer json not null,
    created_at timestamptz not null default now(),
    constraint idempotency_pkey primary key (scope, key)
);
create index idempotency_created_at on idempotency (created_at);

-- Who watches jobs that are cancelled when nobody does: written when watching begins and ends, and every few seconds
-- in between, so that a node that dies stops counting.
create table watches (
    job_id uuid not null,
    node text not null,
    cancel_at timestamptz not null,
    constraint watches_pkey primary key (job_id, node)
);

create table nodes (
    node text not null constraint nodes_pkey primary key,
    alive_at timestamptz not null
);

-- Bound into every validator, so that a restored backup is not mistaken for what clients have seen.
create table epoch (
    value text not null
);
