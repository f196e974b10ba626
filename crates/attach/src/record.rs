//! What is known of attached volumes, as files in `/run`: the devices outlive the processes that
//! have made them.

use clap::ValueEnum;
use forebay_api::DeviceConnection;
use forebay_terminal::with_remedy;
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Where the records are; another one for tests.
const FOLDER: &str = "/run/forebay-devices";
/// How often, and after which pauses, a locked record is tried again.
const LOCK_TRIES: u32 = 4;
const LOCK_PAUSE: Duration = Duration::from_millis(20);

/// The extension of the file of a connection.
const CONNECTION: &str = "connection";

/// The extension of the file that is locked during a change.
const CHANGE: &str = "change";

/// Where devices have the names of their volumes.
const LINKS: &str = "/dev/forebay";

/// A driver of the kernel for block devices that a process serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DeviceKind {
    /// The driver ublk: Linux 6.5 or later
    Ublk,
    /// The NBD client: Linux 5.14 or later
    Nbd,
}

impl fmt::Display for DeviceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ublk => "ublk",
            Self::Nbd => "nbd",
        })
    }
}

/// A device of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum KernelDevice {
    /// The number of a ublk device.
    Ublk(u32),
    Nbd(NbdTerms),
}

/// A device of the NBD client, with what the kernel knows of it for as long as it lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct NbdTerms {
    pub index: u32,
    /// The transmission flags of the server.
    pub flags: u16,
    /// The unit of its requests.
    pub block_bytes: u32,
}

/// The connection of a device of the NBD client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RecordedConnection {
    /// The server's process.
    pub pid: u32,
    #[serde(flatten)]
    pub connection: DeviceConnection,
}

/// An attached volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct AttachedVolume {
    /// The volume's name.
    pub volume: String,
    /// Its device, which a flattened record names by its driver.
    #[serde(flatten)]
    pub device: KernelDevice,
    /// The server's control socket.
    pub socket: PathBuf,
    /// The volume's backing store and its size in bytes. A server whose volume has others is not
    /// given the device: its users would find other data there.
    pub disk: (String, u64),
}

impl AttachedVolume {
    /// Its block device.
    pub(crate) fn device(&self) -> PathBuf {
        Path::new("/dev").join(self.device_name())
    }

    /// The name that the kernel has given its block device.
    pub(crate) fn device_name(&self) -> String {
        match self.device {
            KernelDevice::Ublk(number) => format!("ublkb{number}"),
            KernelDevice::Nbd(terms) => format!("nbd{}", terms.index),
        }
    }

    /// Has udev examine the device again, which names it by the record. The kernel has announced a
    /// device of the NBD client before its number was known here, and keeps it after its end.
    pub(crate) fn announce(&self) {
        if let KernelDevice::Nbd(_) = self.device {
            let event = Path::new("/sys/block").join(self.device_name()).join("uevent");
            // Without it, only the device's name is missing for systemd.
            let _ = std::fs::write(event, "change");
        }
    }

    /// The driver of its device.
    pub(crate) fn kind(&self) -> DeviceKind {
        match self.device {
            KernelDevice::Ublk(_) => DeviceKind::Ublk,
            KernelDevice::Nbd(_) => DeviceKind::Nbd,
        }
    }

    /// The stable name of its device.
    pub(crate) fn link(&self) -> PathBuf {
        Path::new(LINKS).join(&self.volume)
    }

    /// Its names and its driver, in a sentence.
    pub(crate) fn named(&self) -> String {
        format!("{} is {} ({})", self.link().display(), self.device().display(), self.kind())
    }

    /// Whether the stable name is that of this device. udev may have given it.
    pub(crate) fn has_link(&self) -> bool {
        std::fs::canonicalize(self.link()).is_ok_and(|device| device == self.device())
    }

    /// Gives the device its stable name.
    pub(crate) fn make_link(&self) -> io::Result<()> {
        if self.has_link() {
            return Ok(());
        }
        let link = self.link();
        std::fs::create_dir_all(LINKS)?;
        let beside = link.with_file_name(format!(".{}.new", self.volume));
        remove_if_there(&beside)?;
        symlink(self.device(), &beside)?;
        std::fs::rename(&beside, &link)
    }

    /// Takes the stable name away, if it names this device.
    pub(crate) fn remove_link(&self) -> io::Result<()> {
        if self.has_link() { remove_if_there(&self.link()) } else { Ok(()) }
    }
}

fn remove_if_there(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// The record of one volume, locked by the process that keeps its device served.
pub(crate) struct AttachRecord {
    file: File,
    path: PathBuf,
}

impl AttachRecord {
    /// Locks the record of a volume. `None` if another process keeps it locked.
    pub(crate) fn lock(volume: &str) -> anyhow::Result<Option<Self>> {
        // `is_kept` locks it for a moment.
        for _ in 0..LOCK_TRIES {
            if let Some(record) = Self::try_lock(volume)? {
                return Ok(Some(record));
            }
            std::thread::sleep(LOCK_PAUSE);
        }
        Self::try_lock(volume)
    }

    /// The record in an open file, which nothing else uses.
    #[cfg(test)]
    pub(crate) fn in_file(file: File) -> Self {
        Self { file, path: PathBuf::new() }
    }

    fn try_lock(volume: &str) -> anyhow::Result<Option<Self>> {
        let path = path_of(volume);
        let file = open(&path).map_err(|error| {
            let message = format!("cannot open {}: {error}", path.display());
            with_remedy(anyhow::Error::msg(message), "run the command as root")
        })?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(Self { file, path })),
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(anyhow::Error::new(error).context("cannot lock the record")),
        }
    }

    /// The attached volume, if there is one.
    pub(crate) fn read(&mut self) -> Option<AttachedVolume> {
        let mut text = String::new();
        self.file.rewind().ok()?;
        self.file.read_to_string(&mut text).ok()?;
        serde_json::from_str(&text).ok()
    }

    /// Writes the record over the former one, which other processes may read at any time.
    pub(crate) fn write(&mut self, attached: &AttachedVolume) -> io::Result<()> {
        let text = serde_json::to_string(attached)?;
        self.file.rewind()?;
        self.file.write_all(text.as_bytes())?;
        self.file.set_len(text.len() as u64)
    }

    /// Empties the record: there is no device.
    pub(crate) fn clear(&mut self) -> io::Result<()> {
        self.file.set_len(0)
    }

    /// Removes the record.
    pub(crate) fn remove(mut self) -> io::Result<()> {
        let attached = self.read();
        self.clear()?;
        remove_if_there(&self.path)?;
        for beside in [CONNECTION, CHANGE] {
            remove_if_there(&self.path.with_extension(beside))?;
        }
        if let Some(attached) = attached {
            attached.announce();
        }
        Ok(())
    }
}

/// The right to make a volume's device larger, or to remove it: never both at once, for which a
/// driver may not be prepared. The record is locked as long as the device is watched.
pub(crate) struct ChangeLock(#[expect(dead_code, reason = "held until it is dropped")] File);

impl ChangeLock {
    /// Waits for its turn.
    pub(crate) fn take(volume: &str) -> io::Result<Self> {
        let file = open(&path_of(volume).with_extension(CHANGE))?;
        flock(&file, FlockOperation::LockExclusive)?;
        Ok(Self(file))
    }

    /// `None` if another process has it.
    pub(crate) fn try_take(volume: &str) -> io::Result<Option<Self>> {
        Self::try_lock(open(&path_of(volume).with_extension(CHANGE))?)
    }

    fn try_lock(file: File) -> io::Result<Option<Self>> {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(Self(file))),
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

/// Records the connection of a volume's device, in a file of its own that is replaced as a whole.
pub(crate) fn write_connection(volume: &str, connection: &RecordedConnection) -> io::Result<()> {
    let path = path_of(volume).with_extension(CONNECTION);
    let beside = path.with_extension("new");
    std::fs::write(&beside, serde_json::to_string(connection)?)?;
    std::fs::rename(&beside, &path)
}

/// The last connection of a volume's device.
pub(crate) fn connection_of(volume: &str) -> Option<RecordedConnection> {
    let text = std::fs::read_to_string(path_of(volume).with_extension(CONNECTION)).ok()?;
    serde_json::from_str(&text).ok()
}

/// The attached volumes, by name.
pub(crate) fn all() -> io::Result<Vec<AttachedVolume>> {
    let entries = match std::fs::read_dir(FOLDER) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut found = Vec::new();
    for entry in entries {
        let path = entry?.path();
        if path.extension().is_none_or(|extension| extension != "json") {
            continue;
        }
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        let Ok(attached) = serde_json::from_str(&text) else { continue };
        found.push(attached);
    }
    found.sort_by(|one: &AttachedVolume, other| one.volume.cmp(&other.volume));
    Ok(found)
}

/// Whether a process keeps the device of a volume served.
pub(crate) fn is_kept(volume: &str) -> bool {
    File::open(path_of(volume))
        .is_ok_and(|file| flock(&file, FlockOperation::NonBlockingLockShared).is_err())
}

/// The attached volume of this name, if there is one.
pub(crate) fn find(volume: &str) -> io::Result<Option<AttachedVolume>> {
    Ok(all()?.into_iter().find(|it| it.volume == volume))
}

/// The file of a process in the background, for its messages.
pub(crate) fn log_of(volume: &str) -> PathBuf {
    Path::new(FOLDER).join(format!("{volume}.log"))
}

fn path_of(volume: &str) -> PathBuf {
    Path::new(FOLDER).join(format!("{volume}.json"))
}

fn open(path: &Path) -> io::Result<File> {
    std::fs::create_dir_all(FOLDER)?;
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_change_of_a_device_excludes_another() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let try_lock = || ChangeLock::try_lock(file.reopen().unwrap()).unwrap();
        let held = try_lock().expect("nothing has it");
        assert!(try_lock().is_none());
        drop(held);
        assert!(try_lock().is_some());
    }

    #[test]
    fn a_record_is_replaced_by_a_longer_and_by_a_shorter_one() {
        let mut record = AttachRecord::in_file(tempfile::tempfile().unwrap());
        for bytes in [512, 1 << 40, 1024] {
            let (volume, socket) = ("db".to_owned(), PathBuf::from("/s/control.sock"));
            let (device, disk) = (KernelDevice::Ublk(3), ("/dev/b".to_owned(), bytes));
            let attached = AttachedVolume { volume, device, socket, disk };
            record.write(&attached).unwrap();
            assert_eq!(record.read(), Some(attached));
        }
    }

    #[test]
    fn records_of_both_drivers_can_be_read_and_those_of_earlier_versions() {
        let earlier =
            r#"{"volume":"db","ublk":3,"socket":"/s/control.sock","disk":["/dev/b",512]}"#;
        let ublk: AttachedVolume = serde_json::from_str(earlier).unwrap();
        assert_eq!(ublk.device, KernelDevice::Ublk(3));
        assert_eq!(ublk.device().to_str(), Some("/dev/ublkb3"));
        assert_eq!(serde_json::to_string(&ublk).unwrap(), earlier);
        let terms = NbdTerms { index: 7, flags: 5, block_bytes: 512 };
        let nbd = AttachedVolume { device: KernelDevice::Nbd(terms), ..ublk };
        assert_eq!(nbd.device().to_str(), Some("/dev/nbd7"));
        let text = serde_json::to_string(&nbd).unwrap();
        assert_eq!(serde_json::from_str::<AttachedVolume>(&text).unwrap(), nbd);
        let connection = DeviceConnection { instance: 8, client: 9 };
        let recorded = RecordedConnection { pid: 7, connection };
        let text = serde_json::to_string(&recorded).unwrap();
        assert_eq!(text, r#"{"pid":7,"instance":8,"client":9}"#);
        assert_eq!(serde_json::from_str::<RecordedConnection>(&text).unwrap(), recorded);
    }
}
