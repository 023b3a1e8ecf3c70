-- The queue: hand-outs, limits, dead letters. Forwards only; never changed once released.

-- One lease per run. `lease_ms` is how long a sign of life lasts; `heard`: there has been one.
alter table leases
    add column lease_ms bigint,
    add column timeout_at timestamptz,
    add column heard boolean not null default false,
    -- belongs to an outside runner: no limit of the queue counts it
    add column tracked boolean not null default false;
update leases l set tracked = true, lease_ms = (s.policy ->> 'timeout_ms')::bigint from specs s where s.job_id = l.job_id;
-- "How many run, of this queue and key?" Nothing that a heartbeat changes is indexed.
create index leases_queue on leases (queue, concurrency_key);
-- "What has this worker been asked to stop?" Few are.
create index leases_cancel on leases (worker) where cancel_at is not null;
alter table leases set (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000);

-- Runs that ended without using up their attempt: within this attempt, and in a row without a sign of life.
alter table jobs
    add column released integer not null default 0,
    add column unheard integer not null default 0;

-- What waits, in the order in which it is handed out: rank (−priority), lane (concurrency key or ''), run_at, id.
-- Byte order: the order of lanes is judged by the program, too.
drop table ready;
create table ready (
    job_id uuid not null constraint ready_pkey primary key,
    queue text collate "C" not null,
    rank integer not null,
    lane text collate "C" not null,
    kind text collate "C" not null,
    run_at timestamptz not null
) with (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000);
create index ready_order on ready (queue, rank, lane, run_at, job_id);
create index ready_kind on ready (queue, kind, rank, lane, run_at, job_id);
drop table later;
create table later (
    job_id uuid not null constraint later_pkey primary key,
    queue text collate "C" not null,
    rank integer not null,
    lane text collate "C" not null,
    kind text collate "C" not null,
    run_at timestamptz not null,
    -- waits for its back-off, not for its first try
    retrying boolean not null
) with (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000);
create index later_run_at on later (run_at);
create index later_queue on later (queue);
insert into ready (job_id, queue, rank, lane, kind, run_at)
select j.job_id, j.queue, -j.priority, coalesce(s.policy ->> 'concurrency_key', ''), j.kind, j.run_at
from jobs j join specs s using (job_id) where j.state = 'queued';
insert into later (job_id, queue, rank, lane, kind, run_at, retrying)
select j.job_id, j.queue, -j.priority, coalesce(s.policy ->> 'concurrency_key', ''), j.kind, j.run_at, j.state = 'retrying'
from jobs j join specs s using (job_id) where j.state in ('scheduled', 'retrying');

-- A row from the first job on, or from the first setting. Whoever claims from a queue locks its row.
create table queues (
    queue text collate "C" not null constraint queues_pkey primary key,
    settings json not null default '{}',
    -- who stopped it, why and when
    paused_by text,
    paused_reason text,
    paused_at timestamptz,
    -- a worker said: nothing more before this
    held_until timestamptz,
    -- the lane served last at each rank
    turns json not null default '{}',
    -- what the rate limit remembers, in microseconds since the epoch
    ahead_until bigint
) with (fillfactor = 50);
insert into queues (queue) select distinct queue from jobs;

-- What a rate limit per concurrency key remembers, in microseconds since the epoch.
create table rates (
    queue text collate "C" not null,
    lane text collate "C" not null,
    ahead_until bigint not null,
    constraint rates_pkey primary key (queue, lane)
);

-- The dead letters: failed jobs, by queue. An index on the state of `jobs` would cost every claim and completion.
create table dead (
    job_id uuid not null constraint dead_pkey primary key,
    queue text collate "C" not null,
    error_code text not null,
    tracked boolean not null
);
create index dead_queue on dead (queue, job_id);
insert into dead (job_id, queue, error_code, tracked)
select job_id, queue, coalesce(error ->> 'code', 'failed'), tracked from jobs where state = 'failed';

-- Who asks for work where, written every few seconds.
create table workers (
    worker text not null,
    node text not null,
    queues json not null,
    kinds json not null,
    seen_at timestamptz not null,
    constraint workers_pkey primary key (worker, node)
);

-- How long jobs waited and ran, and how many ended: a histogram per queue, node and ten seconds.
create table queue_stats (
    queue text collate "C" not null,
    slot bigint not null,
    node text not null,
    data json not null,
    constraint queue_stats_pkey primary key (queue, slot, node)
);

-- Lease tokens are made with it. It goes with the epoch: a restored store must not honour what was given out since.
alter table epoch add column lease_secret bytea;

-- What is live or has ended lately is shown on connect (a feed). The one update that ends a job pays for both; progress
-- touches neither.
create index jobs_finished_at on jobs (finished_at) where finished_at is not null;
create index jobs_live on jobs (job_id) where finished_at is null;
