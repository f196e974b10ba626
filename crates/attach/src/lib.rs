//! `forebay attach`: volumes as block devices of this machine.
//!
//! A driver of the kernel makes a device, and a running server serves it: ublk, whose queues are
//! in memory that the server shares (`forebay-frontend-ublk`), or the NBD client, over a connection
//! to the server's listener. Making devices and giving them to another server takes CAP_SYS_ADMIN,
//! which a server does not need, so this is done by a process of its own: the *watcher*. It holds
//! no data. When the server ends, for whatever reason, the device's requests wait, and the watcher
//! gives the device to the next server that answers at the same control socket. If the watcher
//! ends, the device stays, and the next `forebay attach` of the volume continues.

mod device;
mod driver;
mod growth;
mod record;
mod usage;
mod watch;

use anyhow::{Context, Error};
use clap::Args;
use device::{AttachPlan, WatchedDevice, WatchedState};
use forebay_api::BlockingClient;
use forebay_terminal::{columns, print, print_json, with_remedy};
pub use growth::{FollowedDevice, follow_growth};
pub use record::DeviceKind;
use record::{AttachRecord, AttachedVolume, ChangeLock};
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use watch::DeviceWatcher;

/// Arguments of `forebay attach`.
#[derive(Args, Debug)]
pub struct AttachArguments {
    /// The volume's name
    #[arg(value_name = "VOLUME")]
    pub volume: String,
    /// The driver of the kernel [default: ublk, or nbd on a kernel without it]
    #[arg(long = "as", value_name = "DRIVER")]
    pub kind: Option<DeviceKind>,
    /// Queues of a ublk device, at most 64 [default: the number of processors, at most 8]
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub queues: Option<u16>,
    /// Requests in flight of each queue of a ublk device [default: 128]
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub depth: Option<u16>,
    /// Fail the requests and remove the device if no server has served it for this long, in
    /// seconds [default: they wait as long as it takes]
    #[arg(long, value_name = "SECONDS")]
    pub give_up_after: Option<u64>,
    /// Wait up to this long for a server that serves the volume, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    pub wait: u64,
    /// Stay in the foreground, for a service manager
    #[arg(long)]
    pub foreground: bool,
}

/// Arguments of `forebay detach`.
#[derive(Args, Debug)]
pub struct DetachArguments {
    /// The volume's name
    #[arg(value_name = "VOLUME", required_unless_present = "all")]
    pub volume: Option<String>,
    /// Remove the devices of all volumes, or none if one of them is in use
    #[arg(long, conflicts_with = "volume")]
    pub all: bool,
    /// Remove the device although no server serves it: requests that wait fail
    #[arg(long)]
    pub force: bool,
}

/// Time between two questions to a server that may not serve the volume yet.
const SERVER_POLL: Duration = Duration::from_millis(200);

/// How long `forebay attach` waits for the process that it leaves in the background.
const BACKGROUND_TIME: Duration = Duration::from_secs(60);

/// Attaches a volume of the server at this control socket. `arguments` are those of this command,
/// for the process in the background. `ready` is called once the device can be used; in the
/// foreground, this returns when the device has been removed.
///
/// # Errors
/// When there is no such volume, it is attached already, or the kernel has no driver.
pub fn attach(
    arguments: &AttachArguments,
    socket: &Path,
    ready: impl FnOnce(),
) -> anyhow::Result<()> {
    let volume = &arguments.volume;
    check_name(volume)?;
    if !arguments.foreground {
        return attach_in_background(arguments, socket);
    }
    let client = connect(socket)?;
    wait_for_volume(&client, arguments)?;
    let Some(mut record) = AttachRecord::lock(volume)? else {
        let message = format!("volume '{volume}' is attached already");
        return Err(with_remedy(Error::msg(message), "see its device with `forebay devices`"));
    };
    let socket = &canonical(socket);
    let limit = arguments.give_up_after.map(Duration::from_secs);
    let (device, attached) = match find_left(&mut record, arguments, socket)? {
        Some((mut device, attached)) => {
            device.adopt(&client)?;
            (device, attached)
        }
        None => make_device(&client, arguments, socket, &mut record)?,
    };
    let mut watcher = DeviceWatcher::new(device, client, attached, limit);
    watcher.attached().make_link().context("cannot name the device")?;
    ready();
    watcher.run(&mut record)?;
    record.remove().context("cannot remove the record of the device")
}

/// The device that an earlier process has left. One that was never started is removed.
fn find_left(
    record: &mut AttachRecord,
    arguments: &AttachArguments,
    socket: &Path,
) -> anyhow::Result<Option<(Box<dyn WatchedDevice>, AttachedVolume)>> {
    let Some(left) = record.read() else { return Ok(None) };
    let mut device = driver::open(&left, arguments.give_up_after.map(Duration::from_secs))?;
    match device.state()? {
        WatchedState::Gone => return Ok(None),
        WatchedState::Stopped => {
            device.remove().context("cannot remove a device that was never started")?;
            return Ok(None);
        }
        WatchedState::Live(_) | WatchedState::Waiting | WatchedState::Changing => {}
    }
    let name = left.device().display().to_string();
    let message = if left.socket != socket {
        let (volume, other) = (&left.volume, left.socket.display());
        let message =
            format!("{name} is the device of volume '{volume}' of another server, at {other}");
        (message, "name its state directory with --state")
    } else if arguments.kind.is_some_and(|kind| kind != left.kind()) {
        let message = format!("volume '{}' is attached already, as {name}", left.volume);
        (message, "omit --as to continue, or detach it first")
    } else {
        return Ok(Some((device, left)));
    };
    Err(with_remedy(Error::msg(message.0), message.1))
}

/// A control socket by one of its names: the state directory may be a link.
fn canonical(socket: &Path) -> PathBuf {
    let folder = socket.parent().and_then(|folder| folder.canonicalize().ok());
    match (folder, socket.file_name()) {
        (Some(folder), Some(name)) => folder.join(name),
        _ => socket.to_owned(),
    }
}

/// Makes and starts a device, and records it.
fn make_device(
    client: &BlockingClient,
    arguments: &AttachArguments,
    socket: &Path,
    record: &mut AttachRecord,
) -> anyhow::Result<(Box<dyn WatchedDevice>, AttachedVolume)> {
    let status = client.volume(&arguments.volume)?;
    let plan = AttachPlan {
        volume: arguments.volume.clone(),
        socket: socket.to_owned(),
        disk: (status.backing, status.size_bytes),
        queues: arguments.queues,
        depth: arguments.depth,
        limit: arguments.give_up_after.map(Duration::from_secs),
    };
    driver::make(driver::choose(arguments.kind)?, client, &plan, record)
}

/// Leaves a process in the background that keeps the device served, once the device can be used.
fn attach_in_background(arguments: &AttachArguments, socket: &Path) -> anyhow::Result<()> {
    let volume = &arguments.volume;
    let state = socket.parent().context("the control socket is in the state directory")?;
    // Before there is a process whose errors would be in a file only.
    wait_for_volume(&connect(socket)?, arguments)?;
    if let Some(mut record) = AttachRecord::lock(volume)? {
        if record.read().is_none() {
            driver::choose(arguments.kind)?;
        }
    } else {
        let message = format!("volume '{volume}' is attached already");
        return Err(with_remedy(Error::msg(message), "see its device with `forebay devices`"));
    }
    let log = record::log_of(volume);
    let output = std::fs::File::create(&log).context("cannot create the log of the device")?;
    let mut command = Command::new(std::env::current_exe().context("cannot find this program")?);
    command.args(["attach", "--foreground", volume, "--state"]).arg(state);
    let given = [
        ("--as", arguments.kind.map(|kind| kind.to_string())),
        ("--depth", arguments.depth.map(|depth| depth.to_string())),
        ("--queues", arguments.queues.map(|queues| queues.to_string())),
        ("--give-up-after", arguments.give_up_after.map(|seconds| seconds.to_string())),
    ];
    for (option, value) in given {
        if let Some(value) = value {
            command.args([option, &value]);
        }
    }
    command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
    watch::leave_session(&mut command);
    let mut process = command.spawn().context("cannot start a process in the background")?;
    let until = std::time::Instant::now() + BACKGROUND_TIME;
    loop {
        if let Some(attached) = record::find(volume)?.filter(AttachedVolume::has_link) {
            return print(&format!("{}\n", attached.named()));
        }
        if let Some(status) = process.try_wait()? {
            let text = std::fs::read_to_string(&log).unwrap_or_default();
            let text = text.trim_start_matches("forebay: ").trim_end();
            let message =
                if text.is_empty() { format!("it ended with {status}") } else { text.into() };
            return Err(Error::msg(message));
        }
        if std::time::Instant::now() > until {
            let message = "the device was not there in time";
            return Err(with_remedy(Error::msg(message), format!("see {}", log.display())));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Detaches a volume, or all of them.
///
/// # Errors
/// When it is not attached, a device is in use, or its requests wait for a server.
pub fn detach(arguments: &DetachArguments) -> anyhow::Result<()> {
    let all = match &arguments.volume {
        None => record::all()?,
        Some(volume) => {
            let Some(attached) = record::find(volume)? else {
                let message = format!("volume '{volume}' is not attached");
                return Err(with_remedy(Error::msg(message), "see `forebay devices`"));
            };
            vec![attached]
        }
    };
    if all.is_empty() {
        return Ok(());
    }
    let mut devices = Vec::new();
    for attached in &all {
        let mut device = driver::open(attached, None)?;
        check_detachable(&mut *device, attached, arguments.force)?;
        devices.push(device);
    }
    // All before the first is removed: a server may refuse a flush.
    if !arguments.force {
        for (attached, device) in all.iter().zip(&mut devices) {
            if device.state()? != WatchedState::Gone {
                usage::flush(attached)?;
            }
        }
    }
    let both = all.iter().zip(&mut devices);
    both.into_iter().try_for_each(|(attached, device)| detach_unused(&mut **device, attached))
}

/// Refuses a device that is in use, or whose requests wait for a server.
fn check_detachable(
    device: &mut dyn WatchedDevice,
    attached: &AttachedVolume,
    force: bool,
) -> anyhow::Result<()> {
    let state = device.state()?;
    if state == WatchedState::Gone {
        return Ok(());
    }
    usage::check_unused(attached)?;
    if !matches!(state, WatchedState::Live(_)) && !force {
        let message =
            format!("no server serves volume '{}': its device waits for one", attached.volume);
        let remedy = "start the server, or use --force to fail the requests that wait";
        return Err(with_remedy(Error::msg(message), remedy));
    }
    Ok(())
}

/// Removes a device that has passed [`check_detachable`].
fn detach_unused(device: &mut dyn WatchedDevice, attached: &AttachedVolume) -> anyhow::Result<()> {
    let is_there = device.state()? != WatchedState::Gone;
    let link = attached.remove_link();
    if is_there {
        let _lock = ChangeLock::take(&attached.volume).context("cannot lock the device")?;
        device.remove()?;
    }
    link.context("cannot remove the name of the device")?;
    // The process that watches the device sees that it is gone, and removes the record. Without
    // one, this does.
    if let Some(record) = AttachRecord::lock(&attached.volume)? {
        record.remove()?;
    }
    Ok(())
}

/// An attached volume as `forebay devices --json` shows it.
#[derive(Serialize)]
struct ShownDevice<'a> {
    volume: &'a str,
    device: String,
    name: String,
    /// The driver of the kernel: `ublk` or `nbd`.
    driver: String,
    /// `live`, `waiting` for a server, `gone`, or `unknown` without the right to ask the driver.
    state: &'static str,
    /// Whether a process gives the device to the next server.
    watched: bool,
    /// The process that serves it.
    pid: Option<u32>,
}

/// Prints the name of the volume whose block device has this name of the kernel, for udev.
///
/// # Errors
/// When it is the device of no volume.
pub fn name_of(device: &str) -> anyhow::Result<()> {
    let path = Path::new("/dev").join(device);
    match record::all()?.into_iter().find(|attached| attached.device() == path) {
        Some(attached) => print(&format!("{}\n", attached.volume)),
        None => Err(with_remedy(
            Error::msg(format!("no volume has the device {device}")),
            "see `forebay devices`",
        )),
    }
}

/// Prints the attached volumes.
///
/// # Errors
/// When the records cannot be read, or nothing printed.
pub fn devices(json: bool) -> anyhow::Result<()> {
    let all = record::all()?;
    let mut shown = Vec::new();
    for attached in &all {
        let watched = record::is_kept(&attached.volume);
        // Without the right to open the driver, nothing is known of the device.
        let state = driver::open(attached, None).and_then(|mut device| device.state());
        let (state, pid) = match state {
            Ok(WatchedState::Live(pid)) => ("live", Some(pid)),
            Ok(WatchedState::Gone) => ("gone", None),
            Ok(_) => ("waiting", None),
            Err(_) => ("unknown", None),
        };
        let device = attached.device().display().to_string();
        let name = attached.link().display().to_string();
        let (volume, driver) = (attached.volume.as_str(), attached.kind().to_string());
        shown.push(ShownDevice { volume, device, name, driver, state, watched, pid });
    }
    if json {
        return print_json(&shown);
    }
    let mut table = columns::table(["VOLUME", "NAME", "DEVICE", "STATE", "SERVER"]);
    for device in &shown {
        let server = device.pid.map_or_else(|| "-".to_owned(), |pid| pid.to_string());
        let state = match device.watched {
            true => device.state.to_owned(),
            false => format!("{}, not watched", device.state),
        };
        table.add_row([device.volume, &device.name, &device.device, &state, &server]);
    }
    print(&columns::lines(table, &[0, 1, 2, 3]))
}

fn connect(socket: &Path) -> anyhow::Result<BlockingClient> {
    BlockingClient::new(socket).context("cannot create an event loop")
}

/// Waits for a server that serves the volume. At boot, a disk may be missing when the server starts
/// for the first time.
fn wait_for_volume(client: &BlockingClient, arguments: &AttachArguments) -> anyhow::Result<()> {
    let end = Instant::now() + Duration::from_secs(arguments.wait);
    let mut is_said = false;
    while let Err(error) = client.volume(&arguments.volume) {
        if Instant::now() >= end {
            return Err(error.into());
        }
        if !is_said {
            eprintln!("forebay: waiting for up to {} s: {error}", arguments.wait);
            is_said = true;
        }
        std::thread::sleep(SERVER_POLL);
    }
    Ok(())
}

/// Refuses a name that cannot be the name of a file.
fn check_name(volume: &str) -> anyhow::Result<()> {
    if volume.starts_with('.') || volume.is_empty() || !volume.bytes().all(is_plain) {
        let message = format!("volume '{volume}' cannot have a device: no file can have its name");
        let remedy = "serve it under a name of letters, digits and ._+@- only";
        return Err(with_remedy(Error::msg(message), remedy));
    }
    Ok(())
}

const fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'+' | b'@' | b'-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_files_have_devices() {
        for name in ["data", "vm-1.qcow", "a@b+c"] {
            assert!(check_name(name).is_ok(), "{name}");
        }
        for name in ["", ".", "..", ".data", "a/b", "a b", "ü"] {
            assert!(check_name(name).is_err(), "{name}");
        }
    }
}
