//! What is wrong with what was seen, and what a page will make of it.

use std::time::Duration;

use super::measure::{Cursor, FIRST_FRAME, Measured, Stream};
use super::remedy::{Ailment, remedies};

/// Half of the events take longer than this: they wait somewhere, be it only for the next one, a second later.
const LATE: Duration = Duration::from_millis(800);
/// A stream begins at once; this is more than any way there takes.
const LATE_HEAD: Duration = Duration::from_secs(3);
/// How much earlier than asked for a long-poll may be answered.
const EARLY: Duration = Duration::from_secs(1);

/// Something that is not as the gateway sent it.
#[derive(Clone, Debug)]
pub struct Trouble {
    /// A stable name.
    pub code: &'static str,
    pub symptom: String,
    /// What helps; the general remedy first.
    pub remedies: Vec<String>,
}

#[derive(Debug)]
pub struct Findings {
    pub troubles: Vec<Trouble>,
    /// The best transport that gets through: `stream`, `long-poll`, `poll`.
    pub transport: Option<&'static str>,
    /// How long each event took that was shown before the job's end, in order.
    pub delays: Vec<Duration>,
}

impl Findings {
    pub fn of(measured: &Measured) -> Self {
        let mut findings = Self { troubles: Vec::new(), transport: None, delays: delays(measured) };
        let is_stream = findings.judge_stream(measured);
        findings.judge_limits(measured);
        findings.judge_headers(measured);
        let is_long_poll = findings.judge_long_poll(measured);
        let is_poll = measured.poll.status == Some(200);
        findings.transport = match (is_stream, is_long_poll, is_poll) {
            (true, _, _) => Some("stream"),
            (_, true, _) => Some("long-poll"),
            (_, _, true) => Some("poll"),
            _ => None,
        };
        findings
    }

    fn add(&mut self, measured: &Measured, code: &'static str, ailment: Ailment, symptom: String) {
        let remedies = remedies(measured.intermediary.kind, ailment);
        self.troubles.push(Trouble { code, symptom, remedies });
    }

    /// Whether streams are of use.
    fn judge_stream(&mut self, measured: &Measured) -> bool {
        let stream = &measured.busy;
        if let Some(error) = &measured.sent.failed {
            self.add(measured, "append_failed", Ailment::Other, format!("an event could not be appended: {error}"));
        }
        if let Some(status) = stream.status
            && (status != 200 || !is_event_stream(&stream.media_type))
        {
            let what = &stream.media_type;
            let symptom = format!("the stream was answered with {status} and the type {what:?}");
            self.add(measured, "stream_refused", Ailment::Other, symptom);
            return false;
        }
        if let Some(coding) = &stream.coding {
            let symptom = format!("the stream is compressed ({coding})");
            self.add(measured, "compressed", Ailment::Compression, symptom);
        }
        let held_until = match (stream.first_byte, measured.sent.finished) {
            (None, _) => Some("as long as it was watched"),
            (Some(first), Some(finished)) if first >= finished => Some("until the job had ended"),
            _ => None,
        };
        if let Some(until) = held_until {
            let symptom = format!("the stream is held back: nothing of it arrived, {until}");
            self.add(measured, "held", Ailment::Buffering, symptom);
            return false;
        }
        let head = first_byte(stream).unwrap_or_default();
        let mut sorted = self.delays.clone();
        sorted.sort_unstable();
        let median = sorted.get(sorted.len() / 2).copied().unwrap_or_default();
        // How many were due to be shown: what was sent while the stream was open.
        let due = due(measured);
        let is_late = median > LATE || self.delays.len() + 2 < due;
        if head > LATE_HEAD || is_late {
            let (head, median, shown) = (head.as_secs_f64(), median.as_secs_f64(), self.delays.len());
            let symptom = format!(
                "the stream is buffered: first byte after {head:.1} s; {shown} of {due} events while the job ran, {median:.1} s late"
            );
            self.add(measured, "buffered", Ailment::Buffering, symptom);
        }
        head < FIRST_FRAME && median < FIRST_FRAME && !(self.delays.is_empty() && due > 2)
    }

    fn judge_limits(&mut self, measured: &Measured) {
        let cut = |stream: &Stream| {
            stream
                .end
                .as_ref()
                .filter(|end| !end.planned && end.after < measured.time)
                .map(|end| (end.after, end.how.clone()))
        };
        match (cut(&measured.busy), cut(&measured.quiet)) {
            (Some((after, how)), _) => {
                let symptom =
                    format!("a stream is cut after {:.0} s, however lively it is ({how})", after.as_secs_f64());
                self.add(measured, "cut", Ailment::Timeout, symptom);
            }
            (None, Some((after, how))) => {
                let symptom = format!("a stream is cut when it is quiet, after {:.0} s ({how})", after.as_secs_f64());
                self.add(measured, "cut_when_quiet", Ailment::Timeout, symptom);
            }
            (None, None) => {}
        }
    }

    fn judge_headers(&mut self, measured: &Measured) {
        let poll = &measured.poll;
        if poll.etag.is_none() {
            let symptom = "the state's ETag is lost: every poll fetches the whole document".to_owned();
            self.add(measured, "etag_lost", Ailment::Headers, symptom);
        } else if !poll.revalidates {
            let symptom = "If-None-Match is not answered with 304: every poll fetches the whole document".to_owned();
            self.add(measured, "etag_ignored", Ailment::Headers, symptom);
        }
        let lost: Vec<&str> =
            ["accept", "authorization", "cookie"].into_iter().filter(|name| !varies_on(&poll.vary, name)).collect();
        if !lost.is_empty() {
            let symptom = format!("Vary has lost {}: a cache may show one reader what is another's", lost.join(", "));
            self.add(measured, "vary_lost", Ailment::Headers, symptom);
        }
        if let Some(seq) = poll.stale_seq {
            let symptom = format!("a cache answers: the state is still that of event {seq}, after later ones");
            self.add(measured, "cached", Ailment::Caching, symptom);
        }
        if measured.cursor == Cursor::Lost {
            let symptom = "Last-Event-ID does not arrive: a bare EventSource starts anew at each reconnect".to_owned();
            self.add(measured, "last_event_id_lost", Ailment::Headers, symptom);
        }
        if let Some(reason) = &measured.page_refused {
            let symptom = format!("buttons of pages are refused ({reason})");
            self.add(measured, "host_rewritten", Ailment::Host, symptom);
        }
    }

    /// Whether long-polls are of use.
    fn judge_long_poll(&mut self, measured: &Measured) -> bool {
        let poll = &measured.long_poll;
        let is_held = poll.took + EARLY >= poll.asked;
        if poll.status == Some(200) && poll.is_page && is_held {
            return true;
        }
        let how = match (&poll.reason, poll.status) {
            (Some(reason), _) => reason.clone(),
            (None, Some(status)) => format!("status {status}"),
            (None, None) => "no answer".to_owned(),
        };
        let (took, asked) = (poll.took.as_secs_f64(), poll.asked.as_secs());
        let symptom = format!("a long-poll of {asked} s is cut after {took:.0} s ({how})");
        self.add(measured, "long_poll_cut", Ailment::Timeout, symptom);
        false
    }
}

/// From opening to the first byte.
pub fn first_byte(stream: &Stream) -> Option<Duration> {
    Some(stream.first_byte?.duration_since(stream.opened?))
}

/// How many events were sent while the busy stream was open.
pub fn due(measured: &Measured) -> usize {
    let stream = &measured.busy;
    let closed = stream.end.as_ref().and_then(|end| Some(stream.opened? + end.after));
    measured.sent.events.iter().filter(|(_, at)| closed.is_none_or(|closed| *at < closed)).count()
}

/// Of a compressed stream only pieces are seen: then whatever comes first after an event is taken for it.
fn delays(measured: &Measured) -> Vec<Duration> {
    let stream = &measured.busy;
    measured
        .sent
        .events
        .iter()
        .filter_map(|(seq, sent)| {
            let shown = match stream.coding {
                Some(_) => stream.chunks.iter().find(|at| *at >= sent).copied(),
                None => stream.shown.iter().find(|(shown, _)| shown >= seq).map(|(_, at)| *at),
            };
            let shown = shown.filter(|at| measured.sent.finished.is_none_or(|finished| *at < finished))?;
            Some(shown.saturating_duration_since(*sent))
        })
        .collect()
}

fn is_event_stream(media_type: &str) -> bool {
    media_type.split(';').next().unwrap_or("").trim().eq_ignore_ascii_case("text/event-stream")
}

fn varies_on(vary: &str, name: &str) -> bool {
    vary.split(',').map(str::trim).any(|listed| listed == name || listed == "*")
}
