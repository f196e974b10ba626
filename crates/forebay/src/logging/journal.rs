//! The log in the system's journal, where each field of an event is a field of the entry: the
//! [native protocol](https://systemd.io/JOURNAL_NATIVE_PROTOCOL/) of systemd.

use std::{
    fmt::{Debug, Write},
    io::{self, ErrorKind},
    os::unix::net::UnixDatagram,
    path::PathBuf,
};
use tracing::{
    Event, Level, Subscriber,
    field::{Field, Visit},
};
use tracing_subscriber::layer::{Context, Layer};

/// Where systemd's journal receives entries.
pub(super) const SOCKET: &str = "/run/systemd/journal/socket";
/// Longest name of a field. The journal drops longer ones.
const NAME_BYTES_MAX: usize = 64;

/// Whether a stream with this device and inode is connected to the journal. `announced` is the
/// variable `JOURNAL_STREAM`, in which systemd tells a service the stream that it has given it.
pub(super) fn is_journal(announced: Option<&str>, (device, inode): (u64, u64)) -> bool {
    announced.and_then(|text| text.split_once(':'))
        == Some((&device.to_string(), &inode.to_string()))
}

/// Sends events to the journal.
pub(super) struct Journal {
    socket: UnixDatagram,
    path: PathBuf,
}

impl Journal {
    /// The journal that listens at `path`.
    ///
    /// # Errors
    /// If nothing listens there.
    pub(super) fn open(path: PathBuf) -> io::Result<Self> {
        let socket = UnixDatagram::unbound()?;
        // An empty entry is ignored.
        socket.send_to(b"", &path)?;
        Ok(Self { socket, path })
    }

    /// Sends an entry. Without the journal, it is written to standard error.
    fn send(&self, entry: &Entry) {
        let sent = loop {
            match self.socket.send_to(&entry.bytes, &self.path) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                sent => break sent,
            }
        };
        if sent.is_err() {
            eprintln!("{}", entry.message);
        }
    }
}

impl<S: Subscriber> Layer<S> for Journal {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut entry = Entry::default();
        event.record(&mut entry);
        let metadata = event.metadata();
        let priority = match *metadata.level() {
            Level::ERROR => "3",
            Level::WARN => "4",
            Level::INFO => "6",
            Level::DEBUG | Level::TRACE => "7",
        };
        entry.add("PRIORITY", priority);
        entry.add("SYSLOG_IDENTIFIER", "forebay");
        entry.add("TARGET", metadata.target());
        let message = entry.message.clone();
        entry.add("MESSAGE", &message);
        self.send(&entry);
    }
}

/// An entry of the journal.
#[derive(Default)]
struct Entry {
    bytes: Vec<u8>,
    /// The message, followed by all fields, because `journalctl` shows nothing else by default.
    message: String,
}

impl Entry {
    fn add(&mut self, name: &str, value: &str) {
        self.bytes.extend_from_slice(name.as_bytes());
        if value.contains('\n') {
            // The other form ends at a line feed.
            self.bytes.push(b'\n');
            self.bytes.extend_from_slice(&(value.len() as u64).to_le_bytes());
        } else {
            self.bytes.push(b'=');
        }
        self.bytes.extend_from_slice(value.as_bytes());
        self.bytes.push(b'\n');
    }

    fn add_field(&mut self, field: &Field, value: &str, shown: &str) {
        if field.name() == "message" {
            // Fields that were recorded earlier follow it.
            self.message.insert_str(0, value);
            return;
        }
        let _ = write!(self.message, " {}={shown}", field.name());
        let mut name = String::from("FOREBAY_");
        let valid = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' };
        name.extend(field.name().chars().map(valid));
        name.truncate(NAME_BYTES_MAX);
        self.add(&name, value);
    }
}

impl Visit for Entry {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.add_field(field, value, &format!("{value:?}"));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let value = format!("{value:?}");
        self.add_field(field, &value, &value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracing_subscriber::layer::SubscriberExt;

    #[test]
    fn an_event_is_an_entry_with_its_fields() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        assert!(Journal::open(path.clone()).is_err(), "nothing listens");
        let listener = UnixDatagram::bind(&path).unwrap();
        let journal = Journal::open(path).unwrap();
        let mut bytes = [0; 4096];
        assert_eq!(listener.recv(&mut bytes).unwrap(), 0);
        tracing::subscriber::with_default(tracing_subscriber::registry().with(journal), || {
            tracing::warn!(volume = %"db", bytes = 7, reason = "two\nlines", "disk failed");
        });
        let len = listener.recv(&mut bytes).unwrap();
        let mut expected = b"FOREBAY_VOLUME=db\nFOREBAY_BYTES=7\nFOREBAY_REASON\n".to_vec();
        expected.extend_from_slice(&9u64.to_le_bytes());
        expected.extend_from_slice(b"two\nlines\nPRIORITY=4\nSYSLOG_IDENTIFIER=forebay\nTARGET=");
        expected.extend_from_slice(module_path!().as_bytes());
        expected
            .extend_from_slice(b"\nMESSAGE=disk failed volume=db bytes=7 reason=\"two\\nlines\"\n");
        assert_eq!(String::from_utf8_lossy(&bytes[..len]), String::from_utf8_lossy(&expected));
    }

    #[test]
    fn only_the_announced_stream_is_the_journal() {
        assert!(is_journal(Some("8:123"), (8, 123)));
        for other in [None, Some(""), Some("8"), Some("8:124"), Some("9:123"), Some("8:123:1")] {
            assert!(!is_journal(other, (8, 123)), "{other:?}");
        }
    }
}
