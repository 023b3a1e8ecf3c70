//! What was found, for people and for machines.

use std::fmt::Write as _;
use std::time::Duration;

use serde_json::{Value, json};

use super::findings::{Findings, due, first_byte};
use super::measure::{Cursor, Measured, Stream};
use super::remedy::Kind;
use crate::cli::terminal::{one_line, printable};

/// For people. What others wrote (headers) is made safe for a terminal.
pub fn text(address: &str, measured: &Measured, findings: &Findings) -> String {
    let mut text = String::new();
    let mut line = |words: String| {
        let _ = writeln!(text, "{}", printable(&words));
    };
    line(format!("{address}: asked over {}{}", measured.version, between(measured)));
    line(String::new());
    line(format!("  busy stream   {}", busy(measured, findings)));
    line(format!("  quiet stream  {}", life(&measured.quiet, measured.time)));
    let poll = &measured.long_poll;
    line(format!("  long-poll     answered after {:.1} s, of {} s", poll.took.as_secs_f64(), poll.asked.as_secs()));
    let revalidates = if measured.poll.revalidates { "304 for what is known" } else { "no 304" };
    line(format!("  plain GET     {revalidates}"));
    line(format!("  pages will use  {}", findings.transport.unwrap_or("nothing: no transport gets through")));
    line(String::new());
    if findings.troubles.is_empty() {
        line(format!("Nothing is wrong, as far as {} s tell.", measured.time.as_secs()));
    }
    for trouble in &findings.troubles {
        line(format!("{}: {}", trouble.code, one_line(&trouble.symptom)));
        for remedy in &trouble.remedies {
            line(format!("    {remedy}"));
        }
    }
    text
}

fn between(measured: &Measured) -> String {
    let signs = measured.intermediary.signs.join("; ");
    match measured.intermediary.kind {
        _ if signs.is_empty() => ", nobody between that says so".to_owned(),
        Kind::Unknown => format!(", through somebody ({})", one_line(&signs)),
        kind => format!(", through {} ({})", kind.name(), one_line(&signs)),
    }
}

fn busy(measured: &Measured, findings: &Findings) -> String {
    let Some(first) = first_byte(&measured.busy) else {
        return "nothing arrived".to_owned();
    };
    let delays = &findings.delays;
    let worst = delays.iter().max().copied().unwrap_or_default();
    let (shown, due, open) = (delays.len(), due(measured), life(&measured.busy, measured.time));
    format!("first byte after {} ms, {shown} of {due} events in time, {} ms at worst; {open}", ms(first), ms(worst))
}

fn life(stream: &Stream, time: Duration) -> String {
    match &stream.end {
        Some(end) if end.after < time => format!("ended after {:.1} s", end.after.as_secs_f64()),
        Some(_) | None => format!("open for {} s", time.as_secs()),
    }
}

/// For machines.
pub fn json(address: &str, measured: &Measured, findings: &Findings) -> Value {
    let mut delays = findings.delays.clone();
    delays.sort_unstable();
    let troubles = findings
        .troubles
        .iter()
        .map(|trouble| json!({"code": trouble.code, "symptom": trouble.symptom, "remedies": trouble.remedies}));
    let kind = measured.intermediary.kind;
    json!({
        "url": address,
        "http_version": measured.version,
        "intermediary": (kind != Kind::Unknown).then(|| kind.name()),
        "signs": measured.intermediary.signs,
        "transport": findings.transport,
        "watched_ms": ms(measured.time),
        "stream": {
            "first_byte_ms": first_byte(&measured.busy).map(ms),
            "content_encoding": measured.busy.coding,
            "sent": due(measured),
            "shown": delays.len(),
            "delay_ms": {"median": delays.get(delays.len() / 2).copied().map(ms), "max": delays.last().copied().map(ms)},
            "cut_after_ms": cut(&measured.busy, measured.time),
        },
        "quiet_stream": {"cut_after_ms": cut(&measured.quiet, measured.time)},
        "long_poll": {
            "asked_ms": ms(measured.long_poll.asked),
            "answered_after_ms": ms(measured.long_poll.took),
            "status": measured.long_poll.status,
        },
        "poll": {
            "status": measured.poll.status,
            "etag": measured.poll.etag.is_some(),
            "revalidates": measured.poll.revalidates,
            "vary": measured.poll.vary,
        },
        "last_event_id": match measured.cursor {
            Cursor::Honoured => Some(true),
            Cursor::Lost => Some(false),
            Cursor::Unknown => None,
        },
        "troubles": troubles.collect::<Vec<_>>(),
    })
}

fn cut(stream: &Stream, time: Duration) -> Option<u64> {
    stream.end.as_ref().filter(|end| !end.planned && end.after < time).map(|end| ms(end.after))
}

fn ms(duration: Duration) -> u64 {
    duration.as_millis() as u64
}
