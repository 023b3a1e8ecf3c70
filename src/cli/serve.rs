//! `milepost serve`: runs the gateway, and says where.

use std::io::Write;
use std::process::ExitCode;

use crate::config::serve::ServeArgs;
use crate::{compose, telemetry};

/// Wrong configuration, as for a wrong command line.
const USAGE: u8 = 2;

/// Runs until told to stop. Exit codes: 0 stopped, 1 could not start, 2 wrong configuration.
pub async fn run(args: ServeArgs) -> ExitCode {
    telemetry::start(&args.log);
    let settings = match args.settings() {
        Ok(settings) => settings,
        Err(error) => {
            eprintln!("milepost: {error}");
            return ExitCode::from(USAGE);
        }
    };
    let base_path = settings.http.base_path.clone();
    let ready = |address| {
        // Scripts wait for this line. A closed stdout is no reason not to serve.
        let mut stdout = std::io::stdout();
        let _ = writeln!(stdout, "milepost ready at http://{address}{base_path}").and_then(|()| stdout.flush());
    };
    match compose::serve(settings, ready).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("milepost: {error}");
            ExitCode::FAILURE
        }
    }
}
