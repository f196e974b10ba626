//! Forebay: an in-line block cache.
//!
//! `forebay serve` is the daemon; every other command queries a daemon over its control socket or
//! works on files. This file parses the command line and maps the outcome to an exit code: 0 for
//! success, 1 for failure, 2 for an invalid command line or configuration. `rescue` also exits
//! with 2 if a device is not usable, and the server with `keeper::UPGRADE_CODE` for an upgrade.

mod alerts;
mod arguments;
mod cli;
mod client;
#[cfg(test)]
mod documents_tests;
mod keeper;
mod logging;
mod manual;
mod reliance;
mod report;
mod serve;
mod signals;
mod space;
mod usage;

use anyhow::Context;
use clap::Parser;
use cli::{Cli, Command};
use std::process::ExitCode;

fn main() -> ExitCode {
    forebay_backend::report_oversize_writes();
    forebay_backend_s3::register();
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return report::usage(&error),
    };
    let outcome = match cli.command {
        Command::Serve(arguments) => {
            let code = run_server(arguments).unwrap_or_else(|error| report::failure(&error));
            logging::flush();
            return code;
        }
        Command::Status(arguments) => {
            return client::status::status(&arguments)
                .unwrap_or_else(|error| report::failure(&error));
        }
        Command::Top(arguments) => client::top::top(&arguments),
        Command::Stats { name, show } => client::stats(name.as_deref(), &show),
        Command::Analyze(command) => client::analyze::analyze(command),
        Command::Advise { arguments, state } => client::advise::advise(&arguments, &state),
        Command::Volume(command) => client::volume(command),
        Command::Pin(arguments) => client::pins::pin(&arguments),
        Command::Unpin(arguments) => client::pins::unpin_places(&arguments),
        Command::Save { name, state } => client::save(&name, &state),
        Command::Set { settings, state } => client::set(&settings, &state),
        Command::Slow { name, last, show } => client::slow::slow(name.as_deref(), last, &show),
        Command::Clients(arguments) => client::clients::clients(&arguments),
        Command::Trace(arguments) => client::trace::trace(&arguments),
        Command::Drill(arguments) => client::drill(&arguments),
        Command::Stop { force, state } => client::stop(force, &state),
        Command::Reload { remove, state } => client::reload(remove, &state),
        Command::Upgrade(arguments) => client::upgrade(&arguments),
        Command::Takeover { name, hold, state } => client::takeover::take_over(&name, hold, &state),
        Command::Standby { name, state } => client::takeover::stand_by(&name, &state),
        Command::Attach { arguments, state } => client::attach(&arguments, &state),
        Command::Detach(arguments) => forebay_attach::detach(&arguments),
        Command::Devices { name_of: Some(device), .. } => forebay_attach::name_of(&device),
        Command::Devices { json, name_of: None } => forebay_attach::devices(json),
        Command::Completions { shell } => manual::completions(shell),
        Command::Man { directory } => manual::write_pages(&directory),
        Command::Rescue(command) => return forebay_rescue::run(command, report::failure),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => report::failure(&error),
    }
}

fn run_server(arguments: arguments::ServeArguments) -> anyhow::Result<ExitCode> {
    if arguments.example {
        report::print(&forebay_config::example())?;
        return Ok(ExitCode::SUCCESS);
    }
    let overrides = serve::ServeOverrides {
        accepted_disks: arguments.accepted_disks.clone(),
        given_up: reliance::GivenUp {
            journals: arguments.accepted_journals.clone(),
            vaults: arguments.accepted_vaults.clone(),
        },
    };
    let is_check = arguments.check;
    let config = arguments.source().load()?;
    if is_check {
        serve::check(&config)?;
        report::print("the configuration is valid\n")?;
        serve::announcement().map_or(Ok(()), |text| report::print(&text))?;
        return Ok(ExitCode::SUCCESS);
    }
    logging::log_panics();
    forebay_threads::make_essential();
    logging::start(config.log).context("cannot start the thread of the log")?;
    if keeper::is_wanted(config.keeper) {
        return keeper::run();
    }
    serve::run(config, overrides)
}
