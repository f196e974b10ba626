//! Keeps a device served: gives it to the next server when one has ended.

use crate::device::{WatchedDevice, WatchedState};
use crate::record::{AttachRecord, AttachedVolume, ChangeLock};
use anyhow::{Context, ensure};
use forebay_api::BlockingClient;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::{Duration, Instant};

/// How often the state of a device is examined.
const INTERVAL: Duration = Duration::from_millis(100);

/// How often the server is asked whether the volume has grown.
pub(crate) const SIZE_INTERVAL: Duration = Duration::from_secs(2);

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

    /// Returns once the device has been removed. The record is the device's.
    pub(crate) fn run(&mut self, record: &mut AttachRecord) -> anyhow::Result<()> {
        stay_in_memory();
        let device = self.attached.device();
        say(&self.attached.named());
        loop {
            self.device.wait(INTERVAL);
            match self.device.state()? {
                WatchedState::Gone => break,
                WatchedState::Waiting => self.recover()?,
                WatchedState::Live(_) => self.follow_size(record),
                WatchedState::Changing => {}
                // It is being removed.
                WatchedState::Stopped => {}
            }
        }
        say(&format!("{} has been removed", device.display()));
        self.attached.remove_link().context("cannot remove the name of the device")
    }

    /// Makes the device larger if its volume has grown.
    fn follow_size(&mut self, record: &mut AttachRecord) {
        if self.asked.elapsed() < SIZE_INTERVAL {
            return;
        }
        self.asked = Instant::now();
        // Without an answer, the server is ending, which the device shows.
        let Ok(volume) = self.client.volume(&self.attached.volume) else { return };
        // A device that is being removed is left alone, and looked at again.
        let Ok(Some(_lock)) = ChangeLock::try_take(&self.attached.volume) else { return };
        self.grow_to((volume.backing, volume.size_bytes), record);
    }

    /// Makes the device as large as this disk, if it is the volume's.
    fn grow_to(&mut self, disk: (String, u64), record: &mut AttachRecord) {
        let is_larger = disk.0 == self.attached.disk.0 && disk.1 > self.attached.disk.1;
        if !is_larger || !matches!(self.device.state(), Ok(WatchedState::Live(_))) {
            return;
        }
        let (device, bytes) = (self.attached.device().display().to_string(), disk.1);
        // Not again, whatever the driver does.
        self.attached.disk = disk;
        let obstacle = match self.device.fixed_size() {
            Ok(Some(reason)) => reason,
            Ok(None) => match self.device.grow(bytes) {
                Ok(()) => return self.record_growth(record),
                Err(error) => format!("{error:#}"),
            },
            Err(error) => format!("{error:#}"),
        };
        say(&format!(
            "{device} keeps its size, although its volume has grown to {bytes} bytes: {obstacle}: \
             detach the volume and attach it again"
        ));
    }

    /// The next watcher gives the device to no server whose disk is smaller.
    fn record_growth(&self, record: &mut AttachRecord) {
        let (device, bytes) = (self.attached.device(), self.attached.disk.1);
        say(&format!("{} has grown to {bytes} bytes", device.display()));
        if let Err(error) = record.write(&self.attached) {
            say(&format!("cannot record the size of {}: {error}", device.display()));
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
        /// The sizes that it was to grow to.
        sizes: Vec<u64>,
        /// Why it does not.
        fixed: Option<String>,
        refuses: bool,
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

        fn fixed_size(&mut self) -> anyhow::Result<Option<String>> {
            Ok(self.0.borrow().fixed.clone())
        }

        fn grow(&mut self, size_bytes: u64) -> anyhow::Result<()> {
            self.0.borrow_mut().sizes.push(size_bytes);
            ensure!(!self.0.borrow().refuses, "refused");
            Ok(())
        }

        fn remove(&mut self) -> anyhow::Result<()> {
            self.0.borrow_mut().is_removed = true;
            Ok(())
        }
    }

    /// A watcher of a device of 512 bytes that does this, without a server.
    fn watcher(script: Script, limit: Option<Duration>) -> (DeviceWatcher, Rc<RefCell<Script>>) {
        let script = Rc::new(RefCell::new(script));
        let socket = std::path::PathBuf::from("/nowhere/control.sock");
        let attached = AttachedVolume {
            volume: "disk".into(),
            device: KernelDevice::Ublk(0),
            socket: socket.clone(),
            disk: ("memory".into(), 512),
        };
        let client = BlockingClient::new(socket).unwrap();
        let device = Box::new(ScriptedDevice(Rc::clone(&script)));
        (DeviceWatcher::new(device, client, attached, limit), script)
    }

    /// Recovers a device without a server, in these states.
    fn recover(states: &[WatchedState], limit: Option<Duration>) -> Rc<RefCell<Script>> {
        let script = Script { states: states.to_vec(), ..Script::default() };
        let (mut watcher, script) = watcher(script, limit);
        watcher.recover().unwrap();
        script
    }

    /// Offers these disks to a live device. Returns the sizes that it was to grow to, and the size
    /// in its record.
    fn offer(script: Script, disks: &[(&str, u64)]) -> (Vec<u64>, u64) {
        let states = vec![WatchedState::Live(1); disks.len()];
        let (mut watcher, script) = watcher(Script { states, ..script }, None);
        let mut record = AttachRecord::in_file(tempfile::tempfile().unwrap());
        record.write(watcher.attached()).unwrap();
        for (backing, bytes) in disks {
            watcher.grow_to(((*backing).to_owned(), *bytes), &mut record);
        }
        let sizes = script.borrow().sizes.clone();
        (sizes, record.read().unwrap().disk.1)
    }

    #[test]
    fn a_device_grows_with_its_volume_and_the_record_says_so() {
        let disks = [("memory", 512), ("memory", 1024), ("memory", 1024), ("memory", 4096)];
        assert_eq!(offer(Script::default(), &disks), (vec![1024, 4096], 4096));
    }

    #[test]
    fn a_device_neither_shrinks_nor_follows_another_disk() {
        let disks = [("memory", 256), ("file", 1024)];
        assert_eq!(offer(Script::default(), &disks), (vec![], 512));
    }

    #[test]
    fn a_device_that_cannot_grow_is_asked_once_for_each_size_and_its_record_stays() {
        let disks = [("memory", 1024), ("memory", 1024), ("memory", 2048)];
        let fixed = Script { fixed: Some("of its age".into()), ..Script::default() };
        assert_eq!(offer(fixed, &disks), (vec![], 512));
        let refuses = Script { refuses: true, ..Script::default() };
        assert_eq!(offer(refuses, &disks), (vec![1024, 2048], 512));
    }

    #[test]
    fn a_device_that_is_no_longer_live_does_not_grow_until_it_is() {
        let states = vec![WatchedState::Stopped, WatchedState::Waiting, WatchedState::Live(1)];
        let (mut watcher, script) = watcher(Script { states, ..Script::default() }, None);
        let mut record = AttachRecord::in_file(tempfile::tempfile().unwrap());
        for asked in [0, 0, 1] {
            watcher.grow_to(("memory".into(), 1024), &mut record);
            assert_eq!(script.borrow().sizes.len(), asked);
        }
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
