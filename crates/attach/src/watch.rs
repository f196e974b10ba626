//! Keeps a device served: gives it to the next server when one has ended.

use crate::device::{WatchedDevice, WatchedState};
use crate::record::AttachedVolume;
use anyhow::{Context, ensure};
use forebay_api::BlockingClient;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::{Duration, Instant};

/// How often the state of a device is examined.
const INTERVAL: Duration = Duration::from_millis(100);

/// How often the server is asked whether the volume has grown.
const SIZE_INTERVAL: Duration = Duration::from_secs(2);

/// When a device has waited so long, a line says why, and again after each pause.
const FIRST_REMINDER: Duration = Duration::from_secs(5);
const REMINDER: Duration = Duration::from_secs(60);

/// Watches one device.
pub(crate) struct DeviceWatcher {
    device: Box<dyn WatchedDevice>,
    client: BlockingClient,
    attached: AttachedVolume,
    /// How long requests may wait for a server.
    limit: Option<Duration>,
    /// When the server was last asked for the size of the volume.
    asked: Instant,
}

impl DeviceWatcher {
    pub(crate) fn new(
        device: Box<dyn WatchedDevice>,
        client: BlockingClient,
        attached: AttachedVolume,
        limit: Option<Duration>,
    ) -> Self {
        Self { device, client, attached, limit, asked: Instant::now() }
    }

    pub(crate) const fn attached(&self) -> &AttachedVolume {
        &self.attached
    }

    /// Returns once the device has been removed.
    pub(crate) fn run(&mut self) -> anyhow::Result<()> {
        stay_in_memory();
        let device = self.attached.device();
        say(&self.attached.named());
        loop {
            self.device.wait(INTERVAL);
            match self.device.state()? {
                WatchedState::Gone => break,
                WatchedState::Waiting => self.recover()?,
                WatchedState::Live(_) => self.follow_size(),
                WatchedState::Changing => {}
                // It is being removed.
                WatchedState::Stopped => {}
            }
        }
        say(&format!("{} has been removed", device.display()));
        self.attached.remove_link().context("cannot remove the name of the device")
    }

    /// Makes the device larger if its volume has grown.
    fn follow_size(&mut self) {
        if self.asked.elapsed() < SIZE_INTERVAL {
            return;
        }
        self.asked = Instant::now();
        let (backing, size_bytes) = &self.attached.disk;
        // Without an answer, the server is ending, which the device shows.
        let Ok(volume) = self.client.volume(&self.attached.volume) else { return };
        if volume.backing != *backing || volume.size_bytes <= *size_bytes {
            return;
        }
        let (device, bytes) = (self.attached.device(), volume.size_bytes);
        // Not again, whatever the driver does.
        self.attached.disk.1 = bytes;
        match self.device.grow(bytes) {
            Ok(true) => say(&format!("{} has grown to {bytes} bytes", device.display())),
            Ok(false) => say(&format!(
                "the volume of {} has grown to {bytes} bytes: detach it and attach it again",
                device.display()
            )),
            Err(error) => say(&format!(
                "{} does not grow with its volume: {error:#}: detach it and attach it again",
                device.display()
            )),
        }
    }

    /// Gives the device, whose requests wait, to the next server.
    fn recover(&mut self) -> anyhow::Result<()> {
        let (begun, device) = (Instant::now(), self.attached.device());
        say(&format!("no server serves {}, its requests wait for one", device.display()));
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
            if self.device.state()? != WatchedState::Waiting {
                // Removed meanwhile; the caller sees it.
                return Ok(());
            }
            if self.limit.is_some_and(|limit| begun.elapsed() >= limit) {
                let seconds = begun.elapsed().as_secs();
                say(&format!(
                    "no server for {seconds} s: {} is removed, its requests fail: {failure:#}",
                    device.display()
                ));
                return self.device.remove().context("cannot remove the device");
            }
            if Instant::now() >= remind_at {
                remind_at = Instant::now() + REMINDER;
                let seconds = begun.elapsed().as_secs();
                say(&format!(
                    "{} has waited for a server for {seconds} s: {failure:#}",
                    device.display()
                ));
            }
            self.device.wait(INTERVAL);
        }
    }

    /// Returns the server's process.
    fn try_recover(&mut self) -> anyhow::Result<u32> {
        // Refused until a server answers, so that the driver is not asked in vain.
        let status = self.client.volume(&self.attached.volume)?;
        let (backing, size_bytes) = &self.attached.disk;
        ensure!(
            status.backing == *backing && status.size_bytes >= *size_bytes,
            "the server has another disk for the volume, {} with {} bytes instead of {backing} \
             with {size_bytes} bytes",
            status.backing,
            status.size_bytes
        );
        self.device.give(&self.client)
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::KernelDevice;
    use std::cell::RefCell;
    use std::rc::Rc;

    /// What a device has been asked for, and the states that it is in, one for each question.
    #[derive(Default)]
    struct Script {
        states: Vec<WatchedState>,
        gives: usize,
        is_removed: bool,
    }

    struct ScriptedDevice(Rc<RefCell<Script>>);

    impl WatchedDevice for ScriptedDevice {
        fn state(&mut self) -> anyhow::Result<WatchedState> {
            Ok(self.0.borrow_mut().states.remove(0))
        }

        fn wait(&mut self, _time: Duration) {}

        fn adopt(&mut self, _client: &BlockingClient) -> anyhow::Result<()> {
            Ok(())
        }

        fn give(&mut self, _client: &BlockingClient) -> anyhow::Result<u32> {
            self.0.borrow_mut().gives += 1;
            Ok(1)
        }

        fn grow(&mut self, _size_bytes: u64) -> anyhow::Result<bool> {
            Ok(false)
        }

        fn remove(&mut self) -> anyhow::Result<()> {
            self.0.borrow_mut().is_removed = true;
            Ok(())
        }
    }

    /// Recovers a device without a server, in these states.
    fn recover(states: &[WatchedState], limit: Option<Duration>) -> Rc<RefCell<Script>> {
        let script = Rc::new(RefCell::new(Script { states: states.to_vec(), ..Script::default() }));
        let socket = std::path::PathBuf::from("/nowhere/control.sock");
        let attached = AttachedVolume {
            volume: "disk".into(),
            device: KernelDevice::Ublk(0),
            socket: socket.clone(),
            disk: ("memory".into(), 512),
        };
        let client = BlockingClient::new(socket).unwrap();
        let device = Box::new(ScriptedDevice(Rc::clone(&script)));
        DeviceWatcher::new(device, client, attached, limit).recover().unwrap();
        script
    }

    #[test]
    fn a_device_is_given_to_no_server_that_does_not_answer_and_removed_at_the_limit() {
        let script = recover(&[WatchedState::Waiting], Some(Duration::ZERO));
        assert!(script.borrow().is_removed);
        assert_eq!(script.borrow().gives, 0);
    }

    #[test]
    fn a_device_that_is_removed_while_it_waits_is_left_alone() {
        let waiting = [WatchedState::Waiting, WatchedState::Waiting, WatchedState::Gone];
        let script = recover(&waiting, None);
        assert!(!script.borrow().is_removed && script.borrow().states.is_empty());
    }
}
