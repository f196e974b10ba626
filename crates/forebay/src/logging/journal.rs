//! The log in the system's journal, where each field of an event is a field of the entry: the
//! [native protocol](https://systemd.io/JOURNAL_NATIVE_PROTOCOL/) of systemd.

use super::queue::{LogQueue, Record};
use std::{
    fmt::{Debug, Write},
    io::{self, ErrorKind},
    os::unix::net::UnixDatagram,
    path::PathBuf,
    sync::Arc,
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

/// The journal's socket.
pub(super) struct Socket {
    socket: UnixDatagram,
    path: PathBuf,
}

impl Socket {
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

    /// Sends an entry. Waits while the journal does not read.
    ///
    /// # Errors
    /// If the journal is gone, or the entry too long.
    pub(super) fn send(&self, entry: &[u8]) -> io::Result<()> {
        loop {
            match self.socket.send_to(entry, &self.path) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                sent => return sent.map(drop),
            }
        }
    }
}

/// Queues events as entries of the journal.
pub(super) struct Entries(pub(super) Arc<LogQueue>);

impl<S: Subscriber> Layer<S> for Entries {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut entry = JournalEntry::default();
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
        self.0.push(Record::Entry { bytes: entry.bytes, message });
    }
}

/// An entry of the journal.
#[derive(Default)]
struct JournalEntry {
    bytes: Vec<u8>,
    /// The message, followed by all fields, because `journalctl` shows nothing else by default.
    message: String,
}

impl JournalEntry {
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

impl Visit for JournalEntry {
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
    use std::path::Path;
    use tracing_subscriber::layer::SubscriberExt;

    /// The journal's end of its socket, and a queue whose entries are sent there.
    fn journal(directory: &Path) -> (UnixDatagram, Arc<LogQueue>) {
        let path = directory.join("socket");
        assert!(Socket::open(path.clone()).is_err(), "nothing listens");
        let listener = UnixDatagram::bind(&path).unwrap();
        let socket = Socket::open(path).unwrap();
        let mut bytes = [0; 16];
        assert_eq!(listener.recv(&mut bytes).unwrap(), 0);
        let queue = Arc::new(LogQueue::new(1 << 20));
        let (writer, reporter) = (Arc::clone(&queue), Arc::clone(&queue));
        std::thread::spawn(move || {
            let write = |record: &Record| match record {
                Record::Entry { bytes, .. } => socket.send(bytes),
                Record::Lines(text) => socket.send(text),
            };
            writer.run(write, |dropped| {
                reporter.push(Record::Lines(format!("{dropped} dropped").into_bytes()));
            })
        });
        (listener, queue)
    }

    #[test]
    fn an_event_is_an_entry_with_its_fields() {
        let directory = tempfile::tempdir().unwrap();
        let (listener, queue) = journal(directory.path());
        let entries = tracing_subscriber::registry().with(Entries(queue));
        tracing::subscriber::with_default(entries, || {
            tracing::warn!(volume = %"db", bytes = 7, reason = "two\nlines", "disk failed");
        });
        let mut bytes = [0; 4096];
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
    fn a_journal_that_is_not_read_holds_up_no_thread_that_logs() {
        const EVENTS: u64 = 20_000;
        let directory = tempfile::tempdir().unwrap();
        let (listener, queue) = journal(directory.path());
        let entries = tracing_subscriber::registry().with(Entries(Arc::clone(&queue)));
        tracing::subscriber::with_default(entries, || {
            (0..EVENTS).for_each(|number| tracing::warn!(number, "an event"));
        });
        let dropped = queue.dropped();
        assert!(dropped > 0, "the queue is bounded");
        let report = format!("{dropped} dropped");
        let (mut entries, mut bytes) = (0, [0; 4096]);
        loop {
            let len = listener.recv(&mut bytes).unwrap();
            if bytes[..len] == *report.as_bytes() {
                break;
            }
            entries += 1;
        }
        assert_eq!(entries + dropped, EVENTS);
    }

    #[test]
    fn only_the_announced_stream_is_the_journal() {
        assert!(is_journal(Some("8:123"), (8, 123)));
        for other in [None, Some(""), Some("8"), Some("8:124"), Some("9:123"), Some("8:123:1")] {
            assert!(!is_journal(other, (8, 123)), "{other:?}");
        }
    }
}
