//! How a worker is called that nobody has given a name.

/// The machine and the process, within what a worker's name may be: `host:pid`. In containers every process has the same
/// number, so the host says which.
#[must_use]
pub fn default_name() -> String {
    let host = nix::unistd::gethostname().ok();
    let host = host.map(|host| host.to_string_lossy().into_owned()).unwrap_or_default();
    let host: String =
        host.chars().take(80).map(|c| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '-' }).collect();
    format!("{}:{}", if host.is_empty() { "worker" } else { &host }, std::process::id())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::WorkerName;

    #[test]
    fn a_default_name_is_a_name_and_ends_in_the_process() {
        let name = default_name();
        assert!(WorkerName::parse(&name).is_some(), "{name}");
        assert!(name.ends_with(&format!(":{}", std::process::id())), "{name}");
    }
}
