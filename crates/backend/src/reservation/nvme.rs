//! Reservations of NVMe namespaces, by the commands of NVMe itself.
//!
//! The kernel's requests for reservations do not suffice on NVMe. They cannot end a registration:
//! they set its key to 0, and the host could still write. They cannot register a host anew whose
//! former registration is left. And few kernels can be asked who holds the reservation.
//!
//! The commands take `CAP_SYS_ADMIN`, or, since Linux 6.2, a device that is open for writing, if
//! its controller has a log of commands and their effects that lists them.
//!
//! Source: NVM Express 1.4, 6.10 to 6.13 and 8.8.

use super::ReservationKey;
use super::device::{ReservationCall, ReservationFault, ReservationResult};
use crate::geometry::attribute;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

const REGISTER: u8 = 0x0d;
const REPORT: u8 = 0x0e;
const ACQUIRE: u8 = 0x11;

/// Actions of `REGISTER`: the third one changes the key of a host that is registered.
const REGISTER_NEW: u32 = 0;
const UNREGISTER: u32 = 1;
const REPLACE: u32 = 2;
/// Of `REGISTER`: whatever the present key of this host is.
const IGNORE_KEY: u32 = 1 << 3;
/// Of `REGISTER`: registrations and reservation outlive a loss of power.
const PERSIST: u32 = 3 << 30;
/// Actions of `ACQUIRE`.
const RESERVE: u32 = 0;
const PREEMPT_AND_ABORT: u32 = 2;
/// Of `ACQUIRE`: hosts that are not registered can read.
const WRITE_EXCLUSIVE_REGISTRANTS: u32 = 3 << 8;
/// Of `REPORT`: with host identifiers of 128 bits.
const EXTENDED: u32 = 1;
/// The types of reservations that all registered hosts hold together.
const ALL_REGISTRANTS: [u8; 2] = [5, 6];

const SUCCESS: u16 = 0;
const INVALID_OPCODE: u16 = 0x01;
const INVALID_FIELD: u16 = 0x02;
const INVALID_NAMESPACE: u16 = 0x0b;
/// The controller has host identifiers of the other length.
const HOST_IDENTIFIER_FORMAT: u16 = 0x18;
const CONFLICT: u16 = 0x83;

/// The head of a report, with host identifiers of 64 and of 128 bits, and each of its entries.
const SHORT_REPORT: ReportLayout = ReportLayout { head: 24, entry: 24, key: 16 };
const LONG_REPORT: ReportLayout = ReportLayout { head: 64, entry: 64, key: 8 };
/// The length of a report in bytes, unless there are more controllers: 63 with long identifiers.
const REPORT_BYTES: usize = 4096;

/// The lengths of head and entries in bytes, and where in an entry the key is.
#[derive(Clone, Copy)]
struct ReportLayout {
    head: usize,
    entry: usize,
    key: usize,
}

/// A command of the kinds here: these have no other words.
#[derive(Clone, Copy, Debug)]
pub(super) struct NvmeCommand {
    pub opcode: u8,
    pub word10: u32,
    pub word11: u32,
}

/// A namespace that takes commands.
pub(super) trait NvmeNamespace {
    /// Carries out a command, with the data that it sends or reads. Returns its status: the type
    /// and the code, without flags.
    ///
    /// # Errors
    /// If the command has not reached the namespace, or is not permitted.
    fn submit(&self, command: NvmeCommand, data: &mut [u8]) -> io::Result<u16>;
}

/// The reservations of a namespace, as this host sees them.
pub(super) struct NvmeReservations<N>(pub N);

impl<N: NvmeNamespace> NvmeReservations<N> {
    fn submit(&self, command: NvmeCommand, data: &mut [u8]) -> ReservationResult {
        match self.0.submit(command, data) {
            Ok(status) => check(status),
            Err(error) => Err(ReservationFault::System(error)),
        }
    }

    /// A command whose data are two keys.
    fn change(&self, opcode: u8, word10: u32, keys: [u64; 2]) -> ReservationResult {
        let mut data = [0; 16];
        let (first, second) = data.split_at_mut(8);
        first.copy_from_slice(&keys[0].to_le_bytes());
        second.copy_from_slice(&keys[1].to_le_bytes());
        self.submit(NvmeCommand { opcode, word10, word11: 0 }, &mut data)
    }

    fn report(&self) -> ReservationResult<Report> {
        let mut layout = LONG_REPORT;
        let mut data = vec![0; REPORT_BYTES];
        loop {
            let word10 = u32::try_from(data.len() / 4 - 1).expect("a report has at most 4 MiB");
            let word11 = if layout.head == LONG_REPORT.head { EXTENDED } else { 0 };
            let command = NvmeCommand { opcode: REPORT, word10, word11 };
            let status = self.0.submit(command, &mut data).map_err(ReservationFault::System)?;
            if status == HOST_IDENTIFIER_FORMAT && word11 == EXTENDED {
                layout = SHORT_REPORT;
                continue;
            }
            check(status)?;
            let count = usize::from(u16::from_le_bytes([data[5], data[6]]));
            let bytes = layout.head + count * layout.entry;
            if bytes <= data.len() {
                data.truncate(bytes);
                return Ok(Report { data, layout });
            }
            // Rounded up, because hosts may register meanwhile.
            data = vec![0; bytes.next_multiple_of(REPORT_BYTES)];
        }
    }
}

impl<N: NvmeNamespace> ReservationCall for NvmeReservations<N> {
    fn register(
        &self,
        old: Option<ReservationKey>,
        new: Option<ReservationKey>,
    ) -> ReservationResult {
        let [old_key, new_key] = [old, new].map(|key| key.map_or(0, |key| key.0));
        let flags = if old.is_none() { IGNORE_KEY } else { 0 };
        if new.is_none() {
            return self.change(REGISTER, UNREGISTER | flags, [old_key, 0]);
        }
        if old.is_none() {
            // A host that is registered with another key gets a conflict, in spite of the flag.
            match self.change(REGISTER, REGISTER_NEW | flags | PERSIST, [0, new_key]) {
                Err(ReservationFault::Conflict) => {}
                result => return result,
            }
        }
        self.change(REGISTER, REPLACE | flags | PERSIST, [old_key, new_key])
    }

    fn reserve(&self, key: ReservationKey) -> ReservationResult {
        self.change(ACQUIRE, RESERVE | WRITE_EXCLUSIVE_REGISTRANTS, [key.0, 0])
    }

    fn preempt(&self, key: ReservationKey, former: ReservationKey) -> ReservationResult {
        let word10 = PREEMPT_AND_ABORT | WRITE_EXCLUSIVE_REGISTRANTS;
        self.change(ACQUIRE, word10, [key.0, former.0])
    }

    fn holder(&self) -> ReservationResult<Option<ReservationKey>> {
        Ok(self.report()?.holder())
    }

    /// By a report: a registration each second, which is to outlive a loss of power, would wear
    /// the memory of a disk.
    fn is_registered(&self, key: ReservationKey) -> ReservationResult<bool> {
        Ok(self.report()?.keys().any(|(found, _)| found == key))
    }
}

fn check(status: u16) -> ReservationResult {
    match status {
        SUCCESS => Ok(()),
        CONFLICT => Err(ReservationFault::Conflict),
        INVALID_OPCODE | INVALID_FIELD | INVALID_NAMESPACE => Err(ReservationFault::Unsupported),
        status => {
            let text = format!("the disk answers with the NVMe status {status:#x}");
            Err(ReservationFault::System(io::Error::other(text)))
        }
    }
}

/// Who is registered with a namespace, and who has reserved it.
struct Report {
    data: Vec<u8>,
    layout: ReportLayout,
}

impl Report {
    /// The keys of the registered controllers, and whether their host holds the reservation.
    fn keys(&self) -> impl Iterator<Item = (ReservationKey, bool)> {
        let ReportLayout { head, entry, key } = self.layout;
        self.data[head..].chunks_exact(entry).map(move |entry| {
            let bytes = entry[key..].first_chunk().expect("an entry has a key");
            (ReservationKey(u64::from_le_bytes(*bytes)), entry[2] & 1 != 0)
        })
    }

    /// The key 0 stands for all registered hosts, as with SCSI.
    fn holder(&self) -> Option<ReservationKey> {
        if ALL_REGISTRANTS.contains(&self.data[4]) {
            return Some(ReservationKey(0));
        }
        self.keys().find_map(|(key, is_holder)| is_holder.then_some(key))
    }
}

/// The namespace of a block device.
pub(super) struct NvmeDevice {
    file: OwnedFd,
    namespace: u32,
}

impl NvmeDevice {
    /// The namespace that is open as `file`, or the file again if it is none.
    ///
    /// # Errors
    /// If it is a partition: the reservation would be that of the whole namespace.
    pub(super) fn open(file: OwnedFd) -> ReservationResult<Result<Self, OwnedFd>> {
        // SAFETY: the request has no argument.
        let result = unsafe { libc::ioctl(file.as_raw_fd(), IOCTL_ID) };
        match u32::try_from(result) {
            Ok(namespace) if namespace > 0 && !is_partition(&file) => {
                Ok(Ok(Self { file, namespace }))
            }
            Ok(namespace) if namespace > 0 => Err(ReservationFault::Unsupported),
            _ => Ok(Err(file)),
        }
    }
}

fn is_partition(file: &OwnedFd) -> bool {
    rustix::fs::fstat(file).is_ok_and(|stat| {
        let (major, minor) = (rustix::fs::major(stat.st_rdev), rustix::fs::minor(stat.st_rdev));
        let directory = format!("/sys/dev/block/{major}:{minor}");
        attribute(Path::new(&directory), "partition").is_some()
    })
}

/// `NVME_IOCTL_ID`: the number of the namespace.
const IOCTL_ID: libc::Ioctl = 0x4e40;
/// `NVME_IOCTL_IO_CMD`.
const IOCTL_COMMAND: libc::Ioctl =
    (3 << 30 | (size_of::<Passthrough>() as u32) << 16 | (b'N' as u32) << 8 | 0x43) as libc::Ioctl;
/// The type and the code in a status. Flags are above it, such as "do not retry".
const STATUS_MASK: i32 = 0x7ff;

/// `struct nvme_passthru_cmd` of `linux/nvme_ioctl.h`.
#[repr(C)]
#[derive(Default)]
struct Passthrough {
    opcode: u8,
    flags: u8,
    reserved: u16,
    namespace: u32,
    words_2_3: [u32; 2],
    metadata: u64,
    data: u64,
    metadata_bytes: u32,
    data_bytes: u32,
    words_10_15: [u32; 6],
    /// 0: the kernel's own, 30 seconds.
    timeout_ms: u32,
    result: u32,
}

impl NvmeNamespace for NvmeDevice {
    fn submit(&self, command: NvmeCommand, data: &mut [u8]) -> io::Result<u16> {
        let mut call = Passthrough {
            opcode: command.opcode,
            namespace: self.namespace,
            data: data.as_mut_ptr() as u64,
            data_bytes: u32::try_from(data.len()).map_err(io::Error::other)?,
            words_10_15: [command.word10, command.word11, 0, 0, 0, 0],
            ..Passthrough::default()
        };
        // SAFETY: the structure is that of the request, and the kernel reads or fills `data` within
        // its length before it returns.
        let status = unsafe { libc::ioctl(self.file.as_raw_fd(), IOCTL_COMMAND, &raw mut call) };
        match status {
            ..0 => Err(io::Error::last_os_error()),
            status => Ok((status & STATUS_MASK) as u16),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_request_has_the_number_of_the_kernel() {
        assert_eq!(u64::from(IOCTL_COMMAND as u32), 0xc048_4e43);
    }

    #[test]
    fn a_file_is_no_namespace() {
        let file = tempfile::tempfile().unwrap().into();
        assert!(NvmeDevice::open(file).unwrap().is_err());
    }
}
