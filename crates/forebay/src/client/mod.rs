//! The commands that ask a running daemon: each is a request, and a way to show the answer.

mod bar;
pub(crate) mod columns;
mod disks;
mod gather;
mod governor;
mod leave;
pub(crate) mod table;
pub(crate) mod units;
mod write_back;

use crate::{
    cli::{ShowArguments, StateArguments, VolumeCommand},
    report::print,
    user::is_root,
};
use anyhow::{Context, anyhow};
use bar::Bar;
use forebay_api::{BlockingClient, VolumeStatus};
use forebay_config::{CONTROL_SOCKET, VolumeChange, default_state};
use serde_json::to_string_pretty;
use std::time::{Duration, Instant};

/// `forebay status`.
pub(crate) fn status(arguments: &ShowArguments) -> anyhow::Result<()> {
    let status = connect(&arguments.state)?.status()?;
    if arguments.json {
        return print(&(to_string_pretty(&status)? + "\n"));
    }
    print(&table::status(&status))
}

/// `forebay volume`.
pub(crate) fn volume(command: VolumeCommand) -> anyhow::Result<()> {
    match command {
        VolumeCommand::List(arguments) => list(&arguments),
        VolumeCommand::Add { volume, state } => {
            let here = std::env::current_dir().context("the current directory can't be found")?;
            let request = forebay_control::add_request(&volume.from_directory(&here));
            let added = connect(&state)?.add_volume(&request)?;
            print(&format!("{} is served: {}\n", named(&added.name), table::summary(&added)))
        }
        VolumeCommand::Set { name, settings, state } => {
            let change = VolumeChange::parse(settings.iter().map(String::as_str))?;
            let request = forebay_control::settings_request(&change);
            let volume = connect(&state)?.set_volume(&name, &request)?;
            print(&format!("{} is changed: {}\n", named(&name), table::summary(&volume)))
        }
        VolumeCommand::Remove { name, state } => {
            let bar = Bar::new(&format!("removing {}", named(&name)));
            let result = connect(&state)?.remove_volume(&name, |progress| bar.show(progress));
            bar.end();
            result?;
            print(&format!("{} is removed\n", named(&name)))
        }
        VolumeCommand::Flush { name, state } => {
            let bar = Bar::new(&format!("flushing {}", named(&name)));
            let result = connect(&state)?.flush_volume(&name, |progress| bar.show(progress));
            bar.end();
            result?;
            print(&format!("{} is flushed\n", named(&name)))
        }
        VolumeCommand::Trust { name, state } => {
            let bar = Bar::new(&format!("flushing {}", named(&name)));
            let result = connect(&state)?.trust_volume(&name, |progress| bar.show(progress));
            bar.end();
            result?;
            print(&format!("{} is trusted again\n", named(&name)))
        }
        VolumeCommand::Calibrate { name, state } => {
            let volume = connect(&state)?.calibrate_volume(&name)?;
            print(&format!("{} is measured: {}\n", named(&name), gather::summary(&volume.gather)))
        }
    }
}

/// How long the next process may take until it answers.
const UPGRADE_WAIT: Duration = Duration::from_secs(60);

/// `forebay drill`. That not everything would have been saved is a failure.
pub(crate) fn drill(arguments: &ShowArguments) -> anyhow::Result<()> {
    let report = connect(&arguments.state)?.drill()?;
    if arguments.json {
        print(&(to_string_pretty(&report)? + "\n"))?;
    } else {
        print(&table::drill(&report))?;
    }
    if report.saved_in_time { Ok(()) } else { Err(anyhow!("{}", report.verdict)) }
}

/// `forebay stop`.
pub(crate) fn stop(arguments: &StateArguments) -> anyhow::Result<()> {
    let client = connect(arguments)?;
    let pid = client.status()?.pid;
    let bar = Bar::new("writing dirty data to the disks");
    let result = client.stop(|progress| bar.show(progress));
    bar.end();
    result?;
    if leave::wait_for_exit(pid)? {
        return print("forebay has stopped\n");
    }
    Err(anyhow!(
        "forebay process {pid} has written all dirty data and is still there: look into its log"
    ))
}

/// `forebay upgrade`.
pub(crate) fn upgrade(arguments: &StateArguments) -> anyhow::Result<()> {
    let client = connect(arguments)?;
    let before = client.status()?;
    client.upgrade()?;
    let until = Instant::now() + UPGRADE_WAIT;
    while Instant::now() < until {
        match client.status() {
            Ok(status) if status.pid != before.pid => {
                return print(&format!("forebay {} goes on\n", status.version));
            }
            _ => std::thread::sleep(Duration::from_millis(20)),
        }
    }
    Err(anyhow!(
        "forebay has left its pool to the next process, which does not answer: look into its log"
    ))
}

fn list(arguments: &ShowArguments) -> anyhow::Result<()> {
    let volumes: Vec<VolumeStatus> = connect(&arguments.state)?.volume_list()?;
    if arguments.json {
        return print(&(to_string_pretty(&volumes)? + "\n"));
    }
    print(&table::volumes(&volumes))
}

fn connect(arguments: &StateArguments) -> anyhow::Result<BlockingClient> {
    let state = arguments.state.clone().or_else(|| default_state(is_root())).ok_or_else(|| {
        anyhow!("no forebay is named: say which one's state directory it is with --state DIR")
    })?;
    let socket = state.join(CONTROL_SOCKET);
    BlockingClient::new(socket).context("no event loop: see the limits for open files")
}

fn named(name: &str) -> String {
    format!("volume '{name}'")
}
