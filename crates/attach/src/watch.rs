//! Keeps a device served: gives it to the next server when one has ended.

use crate::driver::UblkDriver;
use crate::record::AttachedVolume;
use anyhow::{Context, Error, ensure};
use forebay_api::{BlockingClient, ServeDevice, ServedDevice};
use forebay_ublk::control::{DeviceState, DiskProperties, Parameters};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::{Duration, Instant};

/// How often the state of a device is examined.
const INTERVAL: Duration = Duration::from_millis(100);

/// When a device has waited so long, a line says why, and again after each pause.
const FIRST_REMINDER: Duration = Duration::from_secs(5);
const REMINDER: Duration = Duration::from_secs(60);

/// Has the server serve a new device, tells the kernel about the volume, and starts the device.
pub(crate) fn start(
    driver: &mut UblkDriver,
    client: &BlockingClient,
    attached: &AttachedVolume,
) -> anyhow::Result<()> {
    let served = serve(driver, client, attached)?;
    let parameters = Parameters::new(&DiskProperties {
        size_bytes: served.size_bytes,
        read_only: served.read_only,
        rotational: served.rotational,
        logical_block_bytes: served.logical_block_bytes,
        physical_block_bytes: served.physical_block_bytes,
        optimal_bytes: served.optimal_bytes,
        request_bytes_max: crate::REQUEST_BYTES_MAX,
        can_discard: served.can_discard,
    });
    driver
        .set_parameters(attached.ublk, parameters)
        .context("the ublk driver refuses the volume's geometry")?;
    driver.start(attached.ublk, served.pid).context("the ublk driver does not start the device")
}

/// Lets the server open the device, and has it fetch from the queues.
fn serve(
    driver: &mut UblkDriver,
    client: &BlockingClient,
    attached: &AttachedVolume,
) -> anyhow::Result<ServedDevice> {
    let info = driver.info(attached.ublk).context("the ublk driver does not know the device")?;
    let pid = client.status()?.pid;
    let character = attached.character_device();
    // The server may run as a user of its own.
    let owner = std::fs::metadata(format!("/proc/{pid}")).map(|process| process.uid());
    let given = owner.and_then(|owner| {
        chown(&character, Some(owner), None)?;
        std::fs::set_permissions(&character, PermissionsExt::from_mode(0o600))
    });
    given.with_context(|| format!("cannot give {} to the server", character.display()))?;
    let request = ServeDevice { ublk: attached.ublk, queues: info.queues, depth: info.depth };
    Ok(client.serve_device(&attached.volume, &request)?)
}

/// Watches one device.
pub(crate) struct DeviceWatcher {
    driver: UblkDriver,
    client: BlockingClient,
    attached: AttachedVolume,
    /// How long requests may wait for a server.
    limit: Option<Duration>,
}

impl DeviceWatcher {
    pub(crate) const fn new(
        driver: UblkDriver,
        client: BlockingClient,
        attached: AttachedVolume,
        limit: Option<Duration>,
    ) -> Self {
        Self { driver, client, attached, limit }
    }

    pub(crate) const fn attached(&self) -> &AttachedVolume {
        &self.attached
    }

    /// Returns once the device has been removed.
    pub(crate) fn run(&mut self) -> anyhow::Result<()> {
        stay_in_memory();
        let device = self.attached.device();
        loop {
            std::thread::sleep(INTERVAL);
            match self.driver.info(self.attached.ublk) {
                Err(error) if is_gone(&error) => break,
                Err(error) => {
                    return Err(Error::new(error).context("the ublk driver does not answer"));
                }
                Ok(info) => match info.state() {
                    DeviceState::Live | DeviceState::Other(_) => {}
                    DeviceState::Quiesced => self.recover()?,
                    // It is being removed.
                    DeviceState::Dead => {}
                },
            }
        }
        say(&format!("{} has been removed", device.display()));
        self.attached.remove_link().context("cannot remove the name of the device")
    }

    /// Gives the device, whose requests wait, to the next server.
    fn recover(&mut self) -> anyhow::Result<()> {
        let (begun, device) = (Instant::now(), self.attached.device());
        say(&format!("the server of {} has ended, requests wait for the next", device.display()));
        let mut remind_at = begun + FIRST_REMINDER;
        loop {
            let failure = match self.try_recover() {
                Ok(pid) => {
                    let waited = begun.elapsed().as_millis();
                    say(&format!(
                        "{} is served again, by process {pid}, after {waited} ms",
                        device.display()
                    ));
                    return Ok(());
                }
                Err(failure) => failure,
            };
            match self.driver.info(self.attached.ublk).map(|info| info.state()) {
                Ok(DeviceState::Quiesced) => {}
                // Removed meanwhile; the caller sees it.
                _ => return Ok(()),
            }
            if self.limit.is_some_and(|limit| begun.elapsed() >= limit) {
                let seconds = begun.elapsed().as_secs();
                say(&format!(
                    "no server for {seconds} s: {} is removed, its requests fail: {failure:#}",
                    device.display()
                ));
                return self.driver.remove(self.attached.ublk).context("cannot remove the device");
            }
            if Instant::now() >= remind_at {
                remind_at = Instant::now() + REMINDER;
                let seconds = begun.elapsed().as_secs();
                say(&format!(
                    "{} has waited for a server for {seconds} s: {failure:#}",
                    device.display()
                ));
            }
            std::thread::sleep(INTERVAL);
        }
    }

    /// Returns the server's process.
    fn try_recover(&mut self) -> anyhow::Result<u32> {
        // Refused until a server answers, so that the driver is not asked in vain.
        let status = self.client.volume(&self.attached.volume)?;
        let (backing, size_bytes) = &self.attached.disk;
        ensure!(
            (&status.backing, &status.size_bytes) == (backing, size_bytes),
            "the server has another disk for the volume, {} with {} bytes instead of {backing} \
             with {size_bytes} bytes",
            status.backing,
            status.size_bytes
        );
        self.driver
            .start_recovery(self.attached.ublk)
            .context("the ublk driver does not begin to recover the device")?;
        let served = serve(&mut self.driver, &self.client, &self.attached)?;
        self.driver
            .end_recovery(self.attached.ublk, served.pid)
            .context("the ublk driver does not recover the device")?;
        Ok(served.pid)
    }
}

fn is_gone(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENODEV | libc::ENOENT | libc::ENXIO))
}

fn say(message: &str) {
    eprintln!("forebay: {message}");
}

/// Has a command's process survive the terminal that it was started from.
pub(crate) fn leave_session(command: &mut Command) {
    // SAFETY: between fork and exec, the closure calls one function that may be called there.
    unsafe {
        command.pre_exec(|| match libc::setsid() {
            -1 => Err(io::Error::last_os_error()),
            _ => Ok(()),
        });
    }
}

/// Keeps this process out of swap, which may be on the device that only it can recover.
fn stay_in_memory() {
    // SAFETY: has no effect on what memory contains.
    if unsafe { libc::mlockall(libc::MCL_CURRENT | libc::MCL_FUTURE) } != 0 {
        say(&format!("cannot lock memory: {}", io::Error::last_os_error()));
    }
}
