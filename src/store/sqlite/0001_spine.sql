-- The spine: jobs, their logs, and what keeps them right. Forwards only; never changed once released.
-- Instants are milliseconds since the epoch, ids and JSON are text, booleans 0 and 1.

-- The newest state of each job: the fold of its log. No index on anything that progress changes.
create table jobs (
    job_id text not null constraint jobs_pkey primary key,
    queue text not null,
    kind text not null,
    subject text,
    state text not null,
    seq integer not null,
    attempt integer not null,
    max_attempts integer not null,
    priority integer not null,
    tracked integer not null,
    progress text,
    output_bytes integer not null,
    outcome text,
    error text,
    cancel_requested integer not null,
    worker text,
    created_at integer not null,
    run_at integer not null,
    started_at integer,
    finished_at integer,
    updated_at integer not null,
    meta text not null,
    run integer not null,
    -- the latest run's output are the `output` events after this seq
    output_after_seq integer not null,
    -- enqueued or last redriven: deadline_ms counts from here
    enqueued_at integer not null,
    cancel_reason text,
    -- the next instant at which TTL or deadline may end the job
    due_at integer,
    -- which append ended the latest run: its repetition is answered, another one refused
    ending_run integer,
    ending_hash blob
);

-- "What runs about this subject?": the way back to its job for a page that was reloaded.
create index jobs_subject on jobs (subject, job_id) where subject is not null;
create index jobs_due on jobs (due_at) where due_at is not null;

-- What progress must not copy.
create table specs (
    job_id text not null constraint specs_pkey primary key,
    policy text not null,
    payload text not null
);
create table results (
    job_id text not null constraint results_pkey primary key,
    data text not null
);

-- The logs, in key order: a stretch of one log is read in one sweep.
create table events (
    job_id text not null,
    seq integer not null,
    type text not null,
    at integer not null,
    attempt integer not null,
    data text not null,
    constraint events_pkey primary key (job_id, seq)
) without rowid;

-- What waits: claimable now, and from run_at on. A job stands in at most one of the two.
create table ready (
    job_id text not null constraint ready_pkey primary key,
    queue text not null,
    priority integer not null,
    concurrency_key text,
    kind text not null,
    run_at integer not null
);
create table later (
    job_id text not null constraint later_pkey primary key,
    run_at integer not null
);
create index later_run_at on later (run_at);

-- What runs. Small, and scanned by the sweep: no index on the instants, which every heartbeat changes.
create table leases (
    job_id text not null constraint leases_pkey primary key,
    run integer not null,
    worker text,
    queue text not null,
    concurrency_key text,
    -- null: nothing bounds its runner's silence
    expires_at integer,
    cancel_at integer
);

-- At most one live job per queue and key.
create table unique_keys (
    queue text not null,
    key text not null,
    job_id text not null,
    constraint unique_keys_pkey primary key (queue, key)
);

-- Requests that were answered, for 24 hours.
create table idempotency (
    scope text not null,
    key text not null,
    body_hash blob not null,
    answer text not null,
    created_at integer not null,
    constraint idempotency_pkey primary key (scope, key)
);
create index idempotency_created_at on idempotency (created_at);

-- Who watches jobs that are cancelled when nobody does: written when watching begins and ends, and every few seconds
-- in between, so that a node that dies stops counting.
create table watches (
    job_id text not null,
    node text not null,
    cancel_at integer not null,
    constraint watches_pkey primary key (job_id, node)
);

create table nodes (
    node text not null constraint nodes_pkey primary key,
    alive_at integer not null
);

-- Bound into every validator, so that a restored backup is not mistaken for what clients have seen.
create table epoch (
    value text not null
);
