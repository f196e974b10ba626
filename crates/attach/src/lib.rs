//! `forebay attach`: volumes as block devices of this machine.
//!
//! The kernel's ublk driver makes a device; a running server serves it (`forebay-frontend-ublk`).
//! Making, starting and recovering devices takes CAP_SYS_ADMIN, which a server does not need, so
//! this is done by a process of its own: the *watcher*. It holds no data. When the server ends, for
//! whatever reason, the device's requests wait, and the watcher gives the device to the next server
//! that answers at the same control socket. If the watcher ends, the device stays, and the next
//! `forebay attach` of the volume continues.

mod driver;
mod record;
mod usage;
mod watch;

use anyhow::{Context, Error};
use clap::Args;
use driver::UblkDriver;
use forebay_api::BlockingClient;
use forebay_terminal::{columns, print, print_json, with_remedy};
use forebay_ublk::control::{DeviceInfo, DeviceState};
use record::{AttachRecord, AttachedVolume};
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
    /// Queues of the device, at most 64 [default: the number of processors, at most 8]
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub queues: Option<u16>,
    /// Requests in flight of each queue
    #[arg(long, default_value_t = 128, value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub depth: u16,
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

/// Bytes of the longest request of a device.
const REQUEST_BYTES_MAX: u32 = 1 << 20;

/// The most queues of a device by default.
const QUEUES_AUTO_MAX: usize = 8;

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
    let mut driver = UblkDriver::open()?;
    let socket = &canonical(socket);
    let attached = match find_left(&mut driver, &mut record, socket)? {
        Some(left) => left,
        None => make_device(&mut driver, &client, arguments, socket, &mut record)?,
    };
    let limit = arguments.give_up_after.map(Duration::from_secs);
    let mut watcher = DeviceWatcher::new(driver, client, attached, limit);
    watcher.attached().make_link().context("cannot name the device")?;
    ready();
    watcher.run()?;
    record.remove().context("cannot remove the record of the device")
}

/// The device that an earlier process has left. One that was never started is removed.
fn find_left(
    driver: &mut UblkDriver,
    record: &mut AttachRecord,
    socket: &Path,
) -> anyhow::Result<Option<AttachedVolume>> {
    let Some(left) = record.read() else { return Ok(None) };
    match driver.info(left.ublk).map(|info| info.state()) {
        Err(_) => Ok(None),
        Ok(DeviceState::Dead) => {
            driver.remove(left.ublk).context("cannot remove a device that was never started")?;
            Ok(None)
        }
        Ok(_) if left.socket == socket => Ok(Some(left)),
        Ok(_) => {
            let (device, other) = (left.device(), left.socket);
            let message = format!(
                "{} is the device of volume '{}' of another server, at {}",
                device.display(),
                left.volume,
                other.display()
            );
            Err(with_remedy(Error::msg(message), "name its state directory with --state"))
        }
    }
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
    driver: &mut UblkDriver,
    client: &BlockingClient,
    arguments: &AttachArguments,
    socket: &Path,
    record: &mut AttachRecord,
) -> anyhow::Result<AttachedVolume> {
    let volume = &arguments.volume;
    let status = client.volume(volume)?;
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let queues = arguments.queues.unwrap_or(processors.min(QUEUES_AUTO_MAX) as u16);
    let info = driver
        .add(DeviceInfo::new(queues, arguments.depth, REQUEST_BYTES_MAX))
        .context("the ublk driver makes no device")?;
    let (socket, volume) = (socket.to_owned(), volume.clone());
    let disk = (status.backing, status.size_bytes);
    let attached = AttachedVolume { volume, ublk: info.device, socket, disk };
    let started = record.write(&attached).map_err(Error::new);
    let started = started.and_then(|()| watch::start(driver, client, &attached));
    if let Err(error) = started {
        // Nothing has used the device.
        let _ = driver.remove(attached.ublk);
        let _ = record.clear();
        return Err(error);
    }
    Ok(attached)
}

/// Leaves a process in the background that keeps the device served, once the device can be used.
fn attach_in_background(arguments: &AttachArguments, socket: &Path) -> anyhow::Result<()> {
    let volume = &arguments.volume;
    let state = socket.parent().context("the control socket is in the state directory")?;
    // Before there is a process whose errors would be in a file only.
    wait_for_volume(&connect(socket)?, arguments)?;
    UblkDriver::open()?;
    if let Some(record) = AttachRecord::lock(volume)? {
        drop(record);
    } else {
        let message = format!("volume '{volume}' is attached already");
        return Err(with_remedy(Error::msg(message), "see its device with `forebay devices`"));
    }
    let log = record::log_of(volume);
    let output = std::fs::File::create(&log).context("cannot create the log of the device")?;
    let mut command = Command::new(std::env::current_exe().context("cannot find this program")?);
    command.args(["attach", "--foreground", volume, "--state"]).arg(state);
    command.args(["--depth", &arguments.depth.to_string()]);
    if let Some(queues) = arguments.queues {
        command.args(["--queues", &queues.to_string()]);
    }
    if let Some(seconds) = arguments.give_up_after {
        command.args(["--give-up-after", &seconds.to_string()]);
    }
    command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
    watch::leave_session(&mut command);
    let mut process = command.spawn().context("cannot start a process in the background")?;
    let until = std::time::Instant::now() + BACKGROUND_TIME;
    loop {
        if let Some(attached) = record::find(volume)?.filter(AttachedVolume::has_link) {
            let (link, device) = (attached.link(), attached.device());
            return print(&format!("{} is {}\n", link.display(), device.display()));
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
    let mut driver = UblkDriver::open()?;
    for attached in &all {
        check_detachable(&mut driver, attached, arguments.force)?;
    }
    // All before the first is removed: a server may refuse a flush.
    if !arguments.force {
        for attached in &all {
            flush_if_there(&mut driver, attached)?;
        }
    }
    all.iter().try_for_each(|attached| detach_unused(&mut driver, attached))
}

/// Refuses a device that is in use, or whose requests wait for a server.
fn check_detachable(
    driver: &mut UblkDriver,
    attached: &AttachedVolume,
    force: bool,
) -> anyhow::Result<()> {
    let Ok(info) = driver.info(attached.ublk) else { return Ok(()) };
    usage::check_unused(attached)?;
    if info.state() != DeviceState::Live && !force {
        let message =
            format!("no server serves volume '{}': its device waits for one", attached.volume);
        let remedy = "start the server, or use --force to fail the requests that wait";
        return Err(with_remedy(Error::msg(message), remedy));
    }
    Ok(())
}

/// Flushes a device, if the kernel has it.
fn flush_if_there(driver: &mut UblkDriver, attached: &AttachedVolume) -> anyhow::Result<()> {
    if driver.info(attached.ublk).is_ok() { usage::flush(attached) } else { Ok(()) }
}

/// Removes a device that has passed [`check_detachable`].
fn detach_unused(driver: &mut UblkDriver, attached: &AttachedVolume) -> anyhow::Result<()> {
    let is_there = driver.info(attached.ublk).is_ok();
    let link = attached.remove_link();
    if is_there {
        driver.remove(attached.ublk).context("the ublk driver does not remove the device")?;
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
    /// `live`, `waiting` for a server, or `gone`.
    state: &'static str,
    /// Whether a process gives the device to the next server.
    watched: bool,
    /// The process that serves it.
    pid: Option<i32>,
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
    let mut driver = if all.is_empty() { None } else { UblkDriver::open().ok() };
    let mut shown = Vec::new();
    for attached in &all {
        let watched = record::is_kept(&attached.volume);
        let info = driver.as_mut().and_then(|driver| driver.info(attached.ublk).ok());
        let (state, pid) = match info {
            Some(info) if info.state() == DeviceState::Live => ("live", Some(info.process)),
            Some(_) => ("waiting", None),
            None => ("gone", None),
        };
        let device = attached.device().display().to_string();
        let name = attached.link().display().to_string();
        shown.push(ShownDevice { volume: &attached.volume, device, name, state, watched, pid });
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
    while let Err(error) = client.volume(&arguments.volume) {
        if Instant::now() >= end {
            return Err(error.into());
        }
        std::thread::sleep(SERVER_POLL);
    }
    Ok(())
}

/// Refuses a name that cannot be the name of a file.
fn check_name(volume: &str) -> anyhow::Result<()> {
    if volume.starts_with('.') || volume.is_empty() || !volume.bytes().all(is_plain) {
        let message = format!("volume '{volume}' cannot have a device: its name is no file's");
        let remedy = "serve it under a name of letters, digits, and ._+@- in it";
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
