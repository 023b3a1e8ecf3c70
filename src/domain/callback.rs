//! Callbacks: whom a job tells of its end, and where such news may go.
//!
//! A caller names the URL, and the gateway calls it from inside the operator's network: so it may be a public one only,
//! unless the operator says otherwise. An address in the URL is judged when the job is accepted, a name when it is
//! resolved: [`is_public`] is the judge of both.

// The types of `core::net` are numbers; the domain still does no I/O.
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use url::{Host, Url};

/// The longest URL that is taken, in bytes.
const MAX_URL_BYTES: usize = 2_048;

/// Where news of a job's end may be sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Callbacks {
    /// Nowhere: there is nothing to sign with, or no address of our own to be found at.
    #[default]
    Off,
    /// To public addresses.
    Public,
    /// To whatever a caller names.
    Anywhere,
}

impl Callbacks {
    /// Checks a URL; `Err` says what is wrong with it.
    pub(super) fn check(self, text: &str) -> Result<(), &'static str> {
        if self == Self::Off {
            return Err("needs a gateway with --webhook-secret and --public-url");
        }
        if text.len() > MAX_URL_BYTES {
            return Err("must have at most 2,048 bytes");
        }
        let url = Url::parse(text).map_err(|_| "must be an http or https URL")?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err("must be an http or https URL");
        }
        match url.host() {
            Some(host) if self == Self::Anywhere || host_is_public(&host) => Ok(()),
            Some(_) => Err("must not name a private, loopback or link-local address"),
            None => Err("must name a host"),
        }
    }
}

/// Whether the host of a URL is no address at all, or a public one.
pub fn host_is_public(host: &Host<&str>) -> bool {
    match host {
        Host::Ipv4(address) => is_public(IpAddr::V4(*address)),
        Host::Ipv6(address) => is_public(IpAddr::V6(*address)),
        // What it stands for is known when it is resolved.
        Host::Domain(_) => true,
    }
}

/// Whether an address belongs to the public internet: not this machine, its networks, a cloud's metadata, a group, nor
/// an address that stands for one of those (IANA special-purpose registries).
pub fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_public_v4(address),
        IpAddr::V6(address) => is_public_v6(address),
    }
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    let [a, b, c, _] = address.octets();
    let is_special = address.is_loopback()
        || address.is_private()
        // 169.254.169.254 is where clouds keep credentials.
        || address.is_link_local()
        // "This network", and 0.0.0.0, which connects to loopback.
        || a == 0
        // Carriers' own, and other clouds' metadata.
        || (a == 100 && b & 0b1100_0000 == 64)
        || (a == 192 && b == 0 && c == 0)
        || (a == 198 && b & 0b1111_1110 == 18)
        // Groups, reserved, broadcast.
        || a >= 224;
    !is_special
}

fn is_public_v6(address: Ipv6Addr) -> bool {
    let segments = address.segments();
    let v4_at = |at: usize| Ipv4Addr::from((u32::from(segments[at]) << 16) | u32::from(segments[at + 1]));
    match segments {
        // NAT64: the network translates, so what is meant counts.
        [0x64, 0xff9b, 0, 0, 0, 0, ..] => is_public_v4(v4_at(6)),
        // 6to4 leads to the address within, too.
        [0x2002, ..] => is_public_v4(v4_at(1)),
        // Protocol assignments, Teredo among them.
        [0x2001, 0..=0x1ff, ..] => false,
        // All else that is public lies in 2000::/3: loopback, mapped, unique local, link-local and groups do not.
        [first, ..] => first & 0xe000 == 0x2000,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_public_addresses_are_public() {
        for text in [
            "127.0.0.1",
            "127.255.0.1",
            "10.0.0.1",
            "172.16.0.1",
            "172.31.255.255",
            "192.168.1.1",
            "169.254.169.254",
            "0.0.0.0",
            "0.1.2.3",
            "100.64.0.1",
            "100.100.100.200",
            "192.0.0.8",
            "198.18.0.1",
            "224.0.0.1",
            "240.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::ffff:127.0.0.1",
            "::ffff:8.8.8.8",
            "::127.0.0.1",
            "fe80::1",
            "fec0::1",
            "fc00::1",
            "fd00:ec2::254",
            "ff02::1",
            "64:ff9b::a00:1",
            "64:ff9b:1::1",
            "2002:7f00:1::",
            "2001::1",
            "100::1",
        ] {
            assert!(!is_public(text.parse().expect("an address")), "{text}");
        }
        for text in [
            "1.1.1.1",
            "8.8.8.8",
            "100.63.0.1",
            "100.128.0.1",
            "172.15.0.1",
            "172.32.0.1",
            "198.20.0.1",
            "223.255.255.1",
            "2606:4700::1111",
            "2a00:1450::1",
            "64:ff9b::808:808",
            "2002:808:808::",
        ] {
            assert!(is_public(text.parse().expect("an address")), "{text}");
        }
    }

    #[test]
    fn urls_are_judged_as_a_browser_reads_them() {
        for url in [
            "",
            "hook",
            "ftp://example.com/",
            "javascript:alert(1)",
            "http://",
            "https://127.0.0.1/",
            "http://0x7f.1/",
            "http://2130706433/",
            "http://127.1/",
            "http://[::ffff:10.0.0.1]/",
            "http://[::1]:8080/",
            "http://user@169.254.169.254/latest",
            "http://127.0.0.1./",
            "http:\\\\127.0.0.1/",
        ] {
            assert!(Callbacks::Public.check(url).is_err(), "{url}");
        }
        for url in ["https://example.com/hook?a=b", "http://8.8.8.8:9/", "http://localhost/", "https://EXAMPLE.com"] {
            assert_eq!(Callbacks::Public.check(url), Ok(()), "{url}");
            assert!(Callbacks::Off.check(url).is_err());
        }
        assert_eq!(Callbacks::Anywhere.check("http://127.0.0.1:9/"), Ok(()));
        assert!(Callbacks::Anywhere.check("file:///etc/passwd").is_err());
        assert!(Callbacks::Anywhere.check(&format!("https://example.com/{}", "x".repeat(2_048))).is_err());
    }
}
