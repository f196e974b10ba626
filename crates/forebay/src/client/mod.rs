//! The commands that query a running daemon: each sends requests and prints the answer.

pub(crate) mod advise;
pub(crate) mod analyze;
mod bar;
pub(crate) mod clients;
mod exit;
mod gather;
pub(crate) mod pins;
pub(crate) mod sentences;
pub(crate) mod slow;
mod statistics;
pub(crate) mod status;
pub(crate) mod takeover;
pub(crate) mod top;
pub(crate) mod trace;

use crate::{
    arguments::{ForceArguments, ShowArguments, StateArguments, VolumeCommand, state_default},
    report::{print, print_json, with_remedy},
};
use anyhow::{Context, anyhow};
use bar::Bar;
use forebay_api::{BlockingClient, DiscardRequest, DrillReport, Status, VolumeStatus};
use forebay_attach::AttachArguments;
use forebay_config::{CONTROL_SOCKET, ServerChange, VolumeChange};
use forebay_types::Size;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// `forebay stats`.
pub(crate) fn stats(name: Option<&str>, arguments: &ShowArguments) -> anyhow::Result<()> {
    let client = connect(&arguments.state)?;
    let Some(name) = name else {
        let over_time = client.statistics()?;
        return match arguments.json {
            true => print_json(&over_time),
            false => print(&statistics::all(&over_time)),
        };
    };
    let over_time = client.volume_statistics(name)?;
    if arguments.json {
        return print_json(&over_time);
    }
    let status = client.status()?;
    // It may have been removed just now.
    let volume = status.volumes.iter().find(|volume| volume.name == name);
    let volume = volume.ok_or_else(|| {
        with_remedy(anyhow!("no volume '{name}'"), "see the names with `forebay volume list`")
    })?;
    print(&statistics::statistics(volume, &status.memory, &over_time.periods))
}

/// `forebay set`.
pub(crate) fn set(settings: &[String], arguments: &StateArguments) -> anyhow::Result<()> {
    let change = ServerChange::parse(settings.iter().map(String::as_str))?;
    let memory = connect(arguments)?.set_server(&forebay_control::server_request(&change))?;
    let limit = sentences::memory_limit(&memory);
    let ratio = memory.cache_ratio.as_ref().filter(|_| change.cache_ratio.is_some());
    match (change.has_memory(), ratio, change.background) {
        (false, Some(ratio), _) => {
            print(&format!("cache ratio is set: {}\n", sentences::shares(ratio)))
        }
        (false, None, Some(mode)) => print(&format!("background work is set to {mode}\n")),
        _ => print(&format!("memory is set: {limit}\n")),
    }
}

/// `forebay attach`.
pub(crate) fn attach(arguments: &AttachArguments, state: &StateArguments) -> anyhow::Result<()> {
    forebay_attach::attach(arguments, &socket(state)?, crate::keeper::systemd::notify_ready)
}

/// `forebay save`.
pub(crate) fn save(name: &str, arguments: &StateArguments) -> anyhow::Result<()> {
    connect(arguments)?.save_volume(name)?;
    print(&format!("{} is saved\n", named(name)))
}

/// `forebay volume`.
pub(crate) fn volume(command: VolumeCommand) -> anyhow::Result<()> {
    match command {
        VolumeCommand::List(arguments) => status::list(&arguments),
        VolumeCommand::Add { volume, state } => {
            let here = std::env::current_dir().context("cannot find the current directory")?;
            let request = forebay_control::add_request(&volume.from_directory(&here));
            let added = connect(&state)?.add_volume(&request)?;
            print(&format!("{} is served: {}\n", named(&added.name), sentences::summary(&added)))
        }
        VolumeCommand::Set { name, settings, state } => {
            let change = VolumeChange::parse(settings.iter().map(String::as_str))?;
            let request = forebay_control::settings_request(&change);
            let volume = connect(&state)?.set_volume(&name, &request)?;
            print(&format!("{} is changed: {}\n", named(&name), sentences::summary(&volume)))
        }
        VolumeCommand::Freeze { name, state } => {
            freeze(&name, true, &state)?;
            print(&format!("{} is frozen: it admits nothing into memory\n", named(&name)))
        }
        VolumeCommand::Thaw { name, state } => {
            let volume = freeze(&name, false, &state)?;
            print(&format!("{} is thawed: {}\n", named(&name), sentences::summary(&volume)))
        }
        VolumeCommand::Remove { name, force, state } => {
            let (client, bar) = (connect(&state)?, Bar::new(&format!("removing {}", named(&name))));
            bar.until_end(client.remove_volume(&name, force.force, |progress| bar.show(progress)))?;
            print(&format!("{} is removed\n", named(&name)))
        }
        VolumeCommand::Discard { name, save, yes, force, state } => {
            let save_to = save.map(std::path::absolute).transpose();
            let save_to = save_to.context("cannot find the current directory")?;
            discard(&connect(&state)?, &name, save_to, yes, force.force)
        }
        VolumeCommand::Flush { name, state } => {
            let (client, bar) = (connect(&state)?, Bar::new(&format!("flushing {}", named(&name))));
            bar.until_end(client.flush_volume(&name, |progress| bar.show(progress)))?;
            print(&format!("{} is flushed\n", named(&name)))
        }
        VolumeCommand::Trust { name, state } => {
            let (client, bar) = (connect(&state)?, Bar::new(&format!("flushing {}", named(&name))));
            bar.until_end(client.trust_volume(&name, |progress| bar.show(progress)))?;
            print(&format!("{} is trusted again\n", named(&name)))
        }
        VolumeCommand::Resize { name, state } => {
            let size = connect(&state)?.resize_volume(&name)?;
            let device = forebay_attach::follow_growth(&name, &socket(&state)?, size.size_bytes);
            print(&sentences::size(&name, &size, device.as_ref()))
        }
        VolumeCommand::Calibrate { name, state } => {
            let volume = connect(&state)?.calibrate_volume(&name)?;
            print(&format!("{} is measured: {}\n", named(&name), gather::summary(&volume.gather)))
        }
    }
}

/// `forebay volume discard`.
fn discard(
    client: &BlockingClient,
    name: &str,
    save_to: Option<PathBuf>,
    yes: bool,
    force: bool,
) -> anyhow::Result<()> {
    if save_to.is_none() && !yes {
        let dirty_bytes = client.volume(name)?.dirty_bytes;
        let error = anyhow!("{} of {} may not be on its disk", Size(dirty_bytes), named(name));
        let remedy = "repeat the command with --save FILE to write this data to a file first, or \
                      with --yes to give it up for good";
        return Err(with_remedy(error, remedy));
    }
    let save_to = match save_to.map(|path| path.into_os_string().into_string()).transpose() {
        Ok(save_to) => save_to,
        Err(path) => {
            let error = anyhow!("'{}' is not valid UTF-8", path.display());
            return Err(with_remedy(error, "name another file"));
        }
    };
    let discarded = client.discard_volume(name, &DiscardRequest { force, save_to })?;
    print(&sentences::discarded(name, &discarded))
}

/// Freezes or thaws a volume.
fn freeze(name: &str, frozen: bool, state: &StateArguments) -> anyhow::Result<VolumeStatus> {
    let change = VolumeChange::parse([if frozen { "frozen=yes" } else { "frozen=no" }])?;
    Ok(connect(state)?.set_volume(name, &forebay_control::settings_request(&change))?)
}

/// How long an upgrade waits for the new process to answer.
const UPGRADE_TIMEOUT: Duration = Duration::from_secs(60);

/// `forebay drill`. Fails if not all data would have been saved in time.
pub(crate) fn drill(arguments: &ShowArguments) -> anyhow::Result<()> {
    let report = connect(&arguments.state)?.drill()?;
    if arguments.json {
        print_json(&report)?;
    } else {
        print(&sentences::drill(&report))?;
    }
    if report.saved_in_time {
        return Ok(());
    }
    Err(with_remedy(anyhow!("{}", report.verdict), remedy_of_drill(&report)))
}

/// What to do after a drill that did not save everything in time.
fn remedy_of_drill(report: &DrillReport) -> &'static str {
    if !report.verified {
        "see the server's log for the vault"
    } else if !report.unflushed.is_empty() {
        "check the kernel log (`dmesg`) for errors of these disks"
    } else if report.battery_seconds.is_none() {
        "see `forebay status` for the UPS"
    } else {
        "replace the battery, use a faster vault, or make the cache smaller with `forebay set \
         memory=SIZE`"
    }
}

/// `forebay stop`.
pub(crate) fn stop(force: ForceArguments, arguments: &StateArguments) -> anyhow::Result<()> {
    let client = connect(arguments)?;
    let pid = client.status()?.pid;
    let bar = Bar::new("writing dirty data to the disks");
    bar.until_end(client.stop(force.force, |progress| bar.show(progress)))?;
    if exit::wait_for_exit(pid)? {
        return print("forebay has stopped\n");
    }
    let error = anyhow!("forebay process {pid} has written all dirty data, but has not exited");
    Err(with_remedy(error, "see the server's log"))
}

/// `forebay reload`.
pub(crate) fn reload(removes: bool, arguments: &StateArguments) -> anyhow::Result<()> {
    connect(arguments)?.reload(removes)?;
    print("the configuration file is applied\n")
}

/// `forebay upgrade`.
pub(crate) fn upgrade(arguments: &StateArguments) -> anyhow::Result<()> {
    let client = connect(arguments)?;
    let before = client.status()?;
    client.upgrade()?;
    let until = Instant::now() + UPGRADE_TIMEOUT;
    while Instant::now() < until {
        match client.status() {
            Ok(status) if status.pid != before.pid => return report_upgrade(&status),
            _ => std::thread::sleep(Duration::from_millis(20)),
        }
    }
    let error = anyhow!("the old server has handed over its pool, but the new one does not answer");
    Err(with_remedy(error, "see the server's log"))
}

/// Reports which program serves after an upgrade.
fn report_upgrade(status: &Status) -> anyhow::Result<()> {
    if !status.rolled_back {
        return print(&format!("forebay {} has taken over\n", status.version));
    }
    let error = anyhow!(
        "the new program exited before it served, and the former forebay {} serves the pool again",
        status.version
    );
    Err(with_remedy(error, "see the server's log, and upgrade again when the cause is gone"))
}

/// The daemon's control socket.
fn socket(arguments: &StateArguments) -> anyhow::Result<PathBuf> {
    let state = arguments.state.clone().or_else(state_default).ok_or_else(|| {
        let error = anyhow!("this user has no default state directory");
        with_remedy(error, "run it as root for the service, or name the directory with --state DIR")
    })?;
    Ok(state.join(CONTROL_SOCKET))
}

pub(crate) fn connect(arguments: &StateArguments) -> anyhow::Result<BlockingClient> {
    BlockingClient::new(socket(arguments)?).map_err(|error| {
        let error = anyhow::Error::new(error).context("cannot create an event loop");
        with_remedy(error, "check the limit of open files (`ulimit -n`)")
    })
}

fn named(name: &str) -> String {
    format!("volume '{name}'")
}
