//! `milepost watch`: a job's progress in the terminal, to its end.

use std::process::ExitCode;

use super::show::{self, OTHER};
use super::terminal::say;
use crate::client::{Address, Client, ClientError, JobReference};
use crate::config::client::WatchArgs;

/// Follows the job; the answer tells how it ended (see `--help`).
pub async fn run(args: WatchArgs) -> ExitCode {
    match target(&args) {
        Ok((client, id)) => show::to_end(client, id, &args.show).await,
        Err(error) => {
            say(&error.to_string());
            ExitCode::from(OTHER)
        }
    }
}

/// A URL says where its gateway is, and may bring its own credential; the flags say the rest.
fn target(args: &WatchArgs) -> Result<(Client, String), ClientError> {
    let reference = JobReference::parse(&args.job)?;
    let ours = Address::parse(&args.client.url);
    let (address, key) = match reference.address {
        // The key is for the gateway of the flags: it is not shown to whoever wrote the URL.
        Some(address) => {
            let key = args.client.key.clone().filter(|_| ours.is_ok_and(|ours| ours == address));
            (address, key)
        }
        None => (ours?, args.client.key.clone()),
    };
    Ok((Client::new(address, key.or(reference.token))?, reference.id))
}
