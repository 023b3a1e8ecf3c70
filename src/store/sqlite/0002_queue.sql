-- The queue: hand-outs, limits, dead letters. Forwards only; never changed once released.

-- One lease per run. `lease_ms` is how long a sign of life lasts; `heard`: there has been one; `tracked`: it belongs to
-- an outside runner, and no limit of the queue counts it.
alter table leases add column lease_ms integer;
alter table leases add column timeout_at integer;
alter table leases add column heard integer not null default 0;
alter table leases add column tracked integer not null default 0;
update leases set tracked = 1,
    lease_ms = (select s.policy ->> 'timeout_ms' from specs s where s.job_id = leases.job_id);
create index leases_queue on leases (queue, concurrency_key);
-- "What has this worker been asked to stop?" Few are.
create index leases_cancel on leases (worker) where cancel_at is not null;

-- Runs that ended without using up their attempt: within this attempt, and in a row without a sign of life.
alter table jobs add column released integer not null default 0;
alter table jobs add column unheard integer not null default 0;

-- What waits, in the order in which it is handed out: rank (−priority), lane (concurrency key or ''), run_at, id.
drop table ready;
create table ready (
    job_id text not null constraint ready_pkey primary key,
    queue text not null,
    rank integer not null,
    lane text not null,
    kind text not null,
    run_at integer not null
);
create index ready_order on ready (queue, rank, lane, run_at, job_id);
create index ready_kind on ready (queue, kind, rank, lane, run_at, job_id);
drop table later;
create table later (
    job_id text not null constraint later_pkey primary key,
    queue text not null,
    rank integer not null,
    lane text not null,
    kind text not null,
    run_at integer not null,
    -- waits for its back-off, not for its first try
    retrying integer not null
);
create index later_run_at on later (run_at);
create index later_queue on later (queue);
insert into ready (job_id, queue, rank, lane, kind, run_at)
select j.job_id, j.queue, -j.priority, coalesce(s.policy ->> 'concurrency_key', ''), j.kind, j.run_at
from jobs j join specs s using (job_id) where j.state = 'queued';
insert into later (job_id, queue, rank, lane, kind, run_at, retrying)
select j.job_id, j.queue, -j.priority, coalesce(s.policy ->> 'concurrency_key', ''), j.kind, j.run_at, j.state = 'retrying'
from jobs j join specs s using (job_id) where j.state in ('scheduled', 'retrying');

-- A row from the first job on, or from the first setting.
create table queues (
    queue text not null constraint queues_pkey primary key,
    settings text not null default '{}',
    -- who stopped it, why and when
    paused_by text,
    paused_reason text,
    paused_at integer,
    -- a worker said: nothing more before this
    held_until integer,
    -- the lane served last at each rank
    turns text not null default '{}',
    -- what the rate limit remembers, in microseconds since the epoch
    ahead_until integer
);
insert into queues (queue) select distinct queue from jobs;

-- What a rate limit per concurrency key remembers, in microseconds since the epoch.
create table rates (
    queue text not null,
    lane text not null,
    ahead_until integer not null,
    constraint rates_pkey primary key (queue, lane)
) without rowid;

-- The dead letters: failed jobs, by queue.
create table dead (
    job_id text not null constraint dead_pkey primary key,
    queue text not null,
    error_code text not null,
    tracked integer not null
);
create index dead_queue on dead (queue, job_id);
insert into dead (job_id, queue, error_code, tracked)
select job_id, queue, coalesce(error ->> 'code', 'failed'), tracked from jobs where state = 'failed';

-- Who asks for work where, written every few seconds.
create table workers (
    worker text not null,
    node text not null,
    queues text not null,
    kinds text not null,
    seen_at integer not null,
    constraint workers_pkey primary key (worker, node)
);

-- How long jobs waited and ran, and how many ended: a histogram per queue, node and ten seconds.
create table queue_stats (
    queue text not null,
    slot integer not null,
    node text not null,
    data text not null,
    constraint queue_stats_pkey primary key (queue, slot, node)
);

-- Lease tokens are made with it. It goes with the epoch: a restored store must not honour what was given out since.
alter table epoch add column lease_secret blob;

-- What is live or has ended lately is shown on connect (a feed). The one update that ends a job pays for both; progress
-- touches neither.
create index jobs_finished_at on jobs (finished_at) where finished_at is not null;
create index jobs_live on jobs (job_id) where finished_at is null;
