//! Who stands between, as far as he says so, and what to tell each of them.

use crate::client::probe::Probe;

/// What is known by name. HAProxy and Traefik do not say that they are there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    Nginx,
    Caddy,
    Envoy,
    Varnish,
    Cloudflare,
    Alb,
    #[default]
    Unknown,
}

/// Whoever answers in the gateway's stead.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Intermediary {
    pub kind: Kind,
    /// The headers by which he is known: the gateway sends none of them.
    pub signs: Vec<String>,
}

/// What can be wrong, as far as remedies differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ailment {
    Buffering,
    Timeout,
    Compression,
    Caching,
    Headers,
    Host,
    Other,
}

impl Intermediary {
    /// Reads the headers of an answer.
    pub fn of(answer: &Probe) -> Self {
        let headers = answer.names().map(|name| (name.to_owned(), answer.header(name).unwrap_or_default()));
        Self::read(headers)
    }

    fn read(headers: impl Iterator<Item = (String, String)>) -> Self {
        let mut found = Self::default();
        for (name, value) in headers {
            let said = value.to_ascii_lowercase();
            let says = |word: &str| said.contains(word);
            let kind = match name.as_str() {
                "server" | "via" if says("cloudflare") => Kind::Cloudflare,
                "server" | "via" if says("nginx") || says("openresty") => Kind::Nginx,
                "server" | "via" if says("caddy") => Kind::Caddy,
                "server" | "via" if says("envoy") => Kind::Envoy,
                "server" | "via" if says("varnish") => Kind::Varnish,
                "server" if says("awselb") => Kind::Alb,
                "server" | "via" | "x-cache" | "age" => Kind::Unknown,
                "cf-ray" => Kind::Cloudflare,
                "x-varnish" => Kind::Varnish,
                "x-amzn-trace-id" => Kind::Alb,
                name if name.starts_with("x-envoy-") => Kind::Envoy,
                _ => continue,
            };
            found.signs.push(format!("{name}: {value}"));
            // Behind one another, the outermost speaks for all.
            if found.kind == Kind::Unknown || kind == Kind::Cloudflare {
                found.kind = kind;
            }
        }
        found
    }
}

impl Kind {
    pub fn name(self) -> &'static str {
        match self {
            Self::Nginx => "nginx",
            Self::Caddy => "Caddy",
            Self::Envoy => "Envoy",
            Self::Varnish => "Varnish",
            Self::Cloudflare => "Cloudflare",
            Self::Alb => "ALB",
            Self::Unknown => "unknown",
        }
    }
}

/// What helps against it, with the name of whom to tell: the one that is known, or whoever it may be.
pub fn remedies(kind: Kind, ailment: Ailment) -> Vec<String> {
    let mut lines = vec![general(ailment).to_owned()];
    let all = TABLE.iter().filter(|(whom, what, _)| {
        let is_meant = match kind {
            Kind::Unknown => true,
            known => *whom == known.name(),
        };
        is_meant && *what == ailment
    });
    lines.extend(all.map(|(whom, _, how)| format!("{whom}: {how}")));
    lines
}

fn general(ailment: Ailment) -> &'static str {
    match ailment {
        Ailment::Buffering => "Answers of type text/event-stream must be passed on as they come, not gathered.",
        Ailment::Timeout => {
            "Let an answer be quiet for 60 s and take as long as it likes: the gateway pings after 15 s of silence and rotates streams after 15 min by itself (--stream-max-age-ms, if the limit cannot be raised)."
        }
        Ailment::Compression => {
            "Leave text/event-stream uncompressed: the answer says Cache-Control: no-transform, and coders gather what they are given."
        }
        Ailment::Caching => {
            "Respect Cache-Control: no-store and private: nothing below /v1 is the same for everybody, or for long."
        }
        Ailment::Headers => {
            "Pass headers on as they are: Last-Event-ID, If-None-Match, Cookie and Authorization to the gateway, ETag and Vary from it."
        }
        Ailment::Host => {
            "Pass the Host header on as the browser sent it, or tell the gateway its address with --public-url; else it takes its own pages for somebody else's, and their buttons fail."
        }
        Ailment::Other => {
            "See whether the gateway answers when it is asked directly: `milepost doctor` with its own address."
        }
    }
}

const TABLE: [(&str, Ailment, &str); 30] = [
    ("nginx", Ailment::Buffering, "`proxy_buffering off;`, or take X-Accel-Buffering out of `proxy_ignore_headers`"),
    ("nginx", Ailment::Timeout, "`proxy_read_timeout 1h;`"),
    ("nginx", Ailment::Compression, "take text/event-stream (or `*`) out of `gzip_types` and `brotli_types`"),
    ("nginx", Ailment::Caching, "no `proxy_ignore_headers Cache-Control` for it, or `proxy_cache off;`"),
    ("nginx", Ailment::Headers, "no `proxy_hide_header` of these, no `proxy_pass_request_headers off`"),
    ("nginx", Ailment::Host, "`proxy_set_header Host $http_host;`"),
    ("HAProxy", Ailment::Buffering, "no `http-response wait-for-body` for it"),
    ("HAProxy", Ailment::Timeout, "`timeout server 1h` and `timeout client 1h`"),
    ("HAProxy", Ailment::Compression, "`compression type` without text/event-stream"),
    ("HAProxy", Ailment::Caching, "no `http-request cache-use` for it"),
    (
        "Caddy",
        Ailment::Buffering,
        "no `encode` for it (`@still not path /v1/*/events`, `encode @still gzip`), or `flush_interval -1`",
    ),
    (
        "Caddy",
        Ailment::Timeout,
        "no `response_header_timeout` or `read_timeout` below 1h in the transport; servers > timeouts > write 0",
    ),
    ("Caddy", Ailment::Compression, "`encode` with a matcher that leaves the event streams out"),
    ("Traefik", Ailment::Buffering, "no `buffering` middleware for it"),
    (
        "Traefik",
        Ailment::Timeout,
        "`entryPoints.NAME.transport.respondingTimeouts.writeTimeout: 0` and `idleTimeout: 180s`",
    ),
    ("Traefik", Ailment::Compression, "`compress.excludedContentTypes: [text/event-stream]`"),
    ("Envoy", Ailment::Buffering, "no `envoy.filters.http.buffer` for it"),
    ("Envoy", Ailment::Timeout, "`timeout: 0s` of the route (it is 15 s by default), `stream_idle_timeout: 300s`"),
    ("Envoy", Ailment::Compression, "`content_type` of the compressor without text/event-stream"),
    ("Envoy", Ailment::Host, "no `host_rewrite_literal` or `auto_host_rewrite`"),
    (
        "Varnish",
        Ailment::Buffering,
        "`set beresp.do_stream = true;` in vcl_backend_response, or `return (pipe)` for /v1/*/events",
    ),
    ("Varnish", Ailment::Timeout, "`.between_bytes_timeout = 60s;` of the backend"),
    ("Varnish", Ailment::Compression, "no `set beresp.do_gzip = true;` for it"),
    ("Varnish", Ailment::Caching, "`return (pass);` for /v1/ in vcl_recv"),
    ("Varnish", Ailment::Headers, "no `unset req.http.…` of these for /v1/"),
    (
        "Cloudflare",
        Ailment::Buffering,
        "a Cache Rule with Bypass for /v1/*; a quick tunnel (trycloudflare.com) gathers streams: use a named one",
    ),
    ("Cloudflare", Ailment::Timeout, "it ends what is silent for 100 s: no gateway's --ping-ms above 60000"),
    ("Cloudflare", Ailment::Compression, "a Compression Rule that leaves /v1/* alone"),
    ("Cloudflare", Ailment::Caching, "a Cache Rule with Bypass for /v1/*"),
    ("ALB", Ailment::Timeout, "raise its idle timeout (60 s by default) above the pings, which come every 15 s"),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn known(headers: &[(&str, &str)]) -> Kind {
        let headers = headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        Intermediary::read(headers).kind
    }

    #[test]
    fn whoever_says_his_name_is_known_by_it() {
        assert_eq!(known(&[("content-type", "application/json"), ("date", "x")]), Kind::Unknown);
        assert_eq!(known(&[("server", "nginx/1.22.1")]), Kind::Nginx);
        assert_eq!(known(&[("server", "openresty")]), Kind::Nginx);
        assert_eq!(known(&[("via", "1.1 varnish (Varnish/7.1)"), ("x-varnish", "5")]), Kind::Varnish);
        assert_eq!(known(&[("server", "Caddy")]), Kind::Caddy);
        assert_eq!(known(&[("x-envoy-upstream-service-time", "3")]), Kind::Envoy);
        assert_eq!(known(&[("via", "1.1 nginx"), ("server", "cloudflare"), ("cf-ray", "1-FRA")]), Kind::Cloudflare);
        assert_eq!(known(&[("server", "something"), ("x-amzn-trace-id", "Root=1")]), Kind::Alb);
    }

    #[test]
    fn everybody_has_a_remedy_and_the_unknown_has_all() {
        let all = remedies(Kind::Unknown, Ailment::Timeout);
        for name in ["nginx", "HAProxy", "Caddy", "Traefik", "Envoy", "Varnish", "Cloudflare", "ALB"] {
            assert!(all.iter().any(|line| line.starts_with(name)), "{name}");
        }
        let one = remedies(Kind::Nginx, Ailment::Timeout);
        assert_eq!(one.len(), 2);
        assert!(one[1].contains("proxy_read_timeout"), "{one:?}");
        assert_eq!(remedies(Kind::Alb, Ailment::Timeout).len(), 2);
    }
}
