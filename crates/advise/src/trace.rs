//! A sample of the requests to block devices, through a tracing instance of the kernel.
//!
//! The instance has buffers of its own. It records a single kind of event, filtered by device
//! number, and is removed at the end, also after a panic. An instance that a killed process has
//! left is removed by the next one. Other users of tracing are not affected.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// The name of instances, followed by a process id.
const PREFIX: &str = "forebay-advise-";
/// The kernel reports this event when a request reaches a device, before it is merged with others:
/// what a cache in front of the device would see. Devices without a request queue report it too.
const EVENT: &str = "block_bio_queue";
/// The buffer of each processor, in KiB: about 30,000 events.
const BUFFER_KIB: u32 = 2_048;
/// The longest line of the trace: a name has 15 bytes, a number 20 digits.
const LINE_BYTES_MAX: usize = 512;
const READ_BYTES: usize = 64 << 10;
/// Longer requests are no reads or writes of data.
const REQUEST_SECTORS_MAX: u64 = 1 << 21;
const SECTOR_BYTES: u64 = 512;

/// A read or write of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TraceEvent {
    /// Major and minor number.
    pub(super) device: (u32, u32),
    pub(super) is_write: bool,
    pub(super) offset: u64,
    pub(super) len: u64,
}

/// A tracing instance. Dropping it removes it.
#[derive(Debug)]
pub(super) struct Instance {
    path: PathBuf,
    /// `None` once it is closed; an instance in use cannot be removed.
    pipe: Option<File>,
    /// The beginning of a line whose end was not read yet.
    rest: Vec<u8>,
}

impl Instance {
    /// Begins to trace devices with these numbers.
    ///
    /// # Errors
    /// Tracing is not available or not permitted.
    pub(super) fn start(tracing: &Path, devices: &[(u32, u32)]) -> io::Result<Self> {
        let instances = tracing.join("instances");
        remove_stale(&instances);
        let path = instances.join(format!("{PREFIX}{}", std::process::id()));
        fs::create_dir(&path)?;
        let mut instance = Self { path, pipe: None, rest: Vec::new() };
        instance.write("buffer_size_kb", &BUFFER_KIB.to_string())?;
        // Names and times of the processes are not needed. Older kernels have no such option.
        let _ = instance.write("options/context-info", "0");
        instance.write(&format!("events/block/{EVENT}/filter"), &filter(devices))?;
        let pipe = instance.path.join("trace_pipe");
        let nonblocking = rustix::fs::OFlags::NONBLOCK.bits() as i32;
        let pipe = OpenOptions::new().read(true).custom_flags(nonblocking).open(pipe)?;
        instance.pipe = Some(pipe);
        instance.write(&format!("events/block/{EVENT}/enable"), "1")?;
        Ok(instance)
    }

    /// Passes the events that have been recorded to `take`, and returns when there are no more.
    ///
    /// # Errors
    /// The kernel refuses the trace, for example because the instance was removed.
    pub(super) fn drain(&mut self, mut take: impl FnMut(TraceEvent)) -> io::Result<()> {
        let Some(pipe) = &mut self.pipe else { return Ok(()) };
        let mut buffer = vec![0; READ_BYTES];
        loop {
            let len = match pipe.read(&mut buffer) {
                Ok(0) => return Ok(()),
                Ok(len) => len,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            take_lines(&mut self.rest, &buffer[..len], &mut take);
        }
    }

    /// Ends the recording; what was recorded can still be drained.
    pub(super) fn stop(&self) {
        let _ = self.write("tracing_on", "0");
    }

    /// The number of events that were lost because the buffers were full.
    pub(super) fn lost(&self) -> u64 {
        let entries = fs::read_dir(self.path.join("per_cpu")).into_iter().flatten().flatten();
        let texts = entries.filter_map(|entry| fs::read_to_string(entry.path().join("stats")).ok());
        texts.map(|text| lost_in(&text)).sum()
    }

    fn write(&self, file: &str, text: &str) -> io::Result<()> {
        OpenOptions::new().write(true).open(self.path.join(file))?.write_all(text.as_bytes())
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        self.pipe = None;
        let _ = self.write(&format!("events/block/{EVENT}/enable"), "0");
        let _ = fs::remove_dir(&self.path);
    }
}

/// Removes instances of processes that are gone.
fn remove_stale(instances: &Path) {
    for entry in fs::read_dir(instances).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.strip_prefix(PREFIX)) else { continue };
        let Some(pid) = pid.parse().ok().and_then(rustix::process::Pid::from_raw) else { continue };
        if rustix::process::test_kill_process(pid) == Err(rustix::io::Errno::SRCH) {
            let _ = fs::remove_dir(entry.path());
        }
    }
}

/// The filter of the event for devices with these numbers, as the kernel joins them.
fn filter(devices: &[(u32, u32)]) -> String {
    let terms = devices.iter().map(|&(major, minor)| format!("dev == {}", major << 20 | minor));
    terms.collect::<Vec<_>>().join(" || ")
}

/// Takes the events of whole lines, and keeps the rest for the next call.
fn take_lines(rest: &mut Vec<u8>, mut bytes: &[u8], take: &mut impl FnMut(TraceEvent)) {
    while let Some(end) = bytes.iter().position(|&byte| byte == b'\n') {
        let event = if rest.is_empty() {
            parse(&bytes[..end])
        } else {
            rest.extend_from_slice(&bytes[..end]);
            parse(rest)
        };
        rest.clear();
        event.into_iter().for_each(&mut *take);
        bytes = &bytes[end + 1..];
    }
    if rest.len() + bytes.len() <= LINE_BYTES_MAX {
        rest.extend_from_slice(bytes);
    } else {
        rest.clear();
    }
}

/// Parses a line: `...block_bio_queue: 8,16 WS 2048 + 8 [dd]`. `None` for other lines and for
/// requests that are no reads or writes of data.
fn parse(line: &[u8]) -> Option<TraceEvent> {
    let line = std::str::from_utf8(line).ok()?;
    let (_, fields) = line.split_once(concat!("block_bio_queue", ": "))?;
    let mut fields = fields.split_ascii_whitespace();
    let (major, minor) = fields.next()?.split_once(',')?;
    let flags = fields.next()?;
    let sector: u64 = fields.next()?.parse().ok()?;
    let sectors: u64 = fields.nth(1)?.parse().ok()?;
    // A leading `F` is a flush before the request.
    let is_write = match flags.strip_prefix('F').unwrap_or(flags).bytes().next()? {
        b'R' => false,
        b'W' if !flags.contains('Z') => true,
        _ => return None,
    };
    if sectors == 0 || sectors > REQUEST_SECTORS_MAX {
        return None;
    }
    Some(TraceEvent {
        device: (major.parse().ok()?, minor.parse().ok()?),
        is_write,
        offset: sector.checked_mul(SECTOR_BYTES)?,
        len: sectors * SECTOR_BYTES,
    })
}

/// The lost events in the statistics of one processor.
fn lost_in(text: &str) -> u64 {
    let lost = |line: &str| {
        let (name, count) = line.split_once(':')?;
        let is_loss = matches!(name, "overrun" | "commit overrun" | "dropped events");
        is_loss.then(|| count.trim().parse::<u64>().ok())?
    };
    text.lines().filter_map(lost).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_and_writes_are_parsed_with_and_without_context() {
        let read = TraceEvent { device: (7, 0), is_write: false, offset: 512, len: 65_536 };
        for (line, event) in [
            ("block_bio_queue: 7,0 RS 1 + 128 [dd]", Some(read)),
            ("block_bio_queue: 7,0 RA 1 + 128 [a] b]", Some(read)),
            (" a: b-12  [001] .....  1.5: block_bio_queue: 7,0 R 1 + 128 [a: b]", Some(read)),
            ("block_bio_queue: 7,0 WFS 1 + 128 [dd]", Some(TraceEvent { is_write: true, ..read })),
            ("block_bio_queue: 7,0 FWS 1 + 128 [dd]", Some(TraceEvent { is_write: true, ..read })),
            ("block_bio_queue: 7,0 FWS 0 + 0 [dd]", None),
            ("block_bio_queue: 7,0 FF 0 + 0 [dd]", None),
            ("block_bio_queue: 7,0 D 0 + 4096 [fstrim]", None),
            ("block_bio_queue: 7,0 WZ 0 + 4096 [mkfs]", None),
            ("block_bio_queue: 7,0 R 1 + 9999999 [dd]", None),
            ("block_bio_queue: 7,0 R 99999999999999999999 + 8 [dd]", None),
            ("block_bio_queue: 7,0 R 36028797018963968 + 8 [dd]", None),
            ("block_bio_queue: 7 R 1 + 8 [dd]", None),
            ("block_bio_queue: 7,0 R 1", None),
            ("block_bio_queue: 7,0", None),
            ("block_rq_issue: 7,0 R 1 + 128 [dd]", None),
            ("CPU:1 [LOST 17 EVENTS]", None),
            ("", None),
        ] {
            assert_eq!(parse(line.as_bytes()), event, "{line}");
        }
        assert_eq!(parse(b"block_bio_queue: 7,0 R 1 + 8 [\xff]"), None);
    }

    #[test]
    fn lines_may_be_cut_anywhere() {
        let text = b"block_bio_queue: 7,0 R 1 + 8 [dd]\nblock_bio_queue: 7,0 W 9 + 8 [dd]\n";
        for cut in 0..text.len() {
            let (mut rest, mut found) = (Vec::new(), Vec::new());
            for part in [&text[..cut], &text[cut..]] {
                take_lines(&mut rest, part, &mut |event: TraceEvent| found.push(event.offset));
            }
            assert_eq!(found, [512, 9 * 512], "cut at {cut}");
        }
        let mut rest = Vec::new();
        for _ in 0..100 {
            take_lines(&mut rest, &[b'x'; 100], &mut |_| panic!("no line has ended"));
        }
        assert!(rest.len() <= LINE_BYTES_MAX);
    }

    #[test]
    fn the_filter_names_devices_by_the_kernel_s_numbers() {
        assert_eq!(filter(&[(7, 0)]), "dev == 7340032");
        assert_eq!(filter(&[(8, 16), (253, 1)]), "dev == 8388624 || dev == 265289729");
    }

    #[test]
    fn losses_are_added_up() {
        let text = "entries: 5\noverrun: 3\ncommit overrun: 1\nbytes: 9\ndropped events: 2\n";
        assert_eq!(lost_in(text), 6);
        assert_eq!(lost_in("overrun: many\n"), 0);
    }

    #[test]
    fn without_tracing_there_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        let error = Instance::start(directory.path(), &[(7, 0)]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        let instances = directory.path().join("instances");
        fs::create_dir(&instances).unwrap();
        fs::create_dir(instances.join("other")).unwrap();
        let gone = format!("{PREFIX}{}", i32::MAX);
        fs::create_dir(instances.join(gone)).unwrap();
        assert!(Instance::start(directory.path(), &[(7, 0)]).is_err());
        let names: Vec<_> =
            fs::read_dir(&instances).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, ["other"], "its own is removed, and that of a process that is gone");
    }
}
