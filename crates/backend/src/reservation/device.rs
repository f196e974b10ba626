//! The requests of persistent reservations, as the kernel passes them to a block device.

use super::ReservationKey;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

/// `PR_WRITE_EXCLUSIVE_REG_ONLY`: hosts that are not registered can read.
const TYPE: u32 = 3;
/// `PR_FL_IGNORE_KEY`: replaces the registration of this host, whatever its key.
const IGNORE_KEY: u32 = 1;
/// The result that means a conflict: `RESERVATION CONFLICT` of SCSI, also as `pr_status`.
const CONFLICT: i32 = 0x18;

/// The requests: `_IOW('p', NUMBER, STRUCTURE)`.
const REGISTER: libc::Ioctl = request(200, size_of::<PrRegistration>());
const RESERVE: libc::Ioctl = request(201, size_of::<PrReservation>());
const PREEMPT_ABORT: libc::Ioctl = request(204, size_of::<PrPreemption>());

const fn request(number: u32, bytes: usize) -> libc::Ioctl {
    (1 << 30 | (bytes as u32) << 16 | (b'p' as u32) << 8 | number) as libc::Ioctl
}

#[repr(C)]
struct PrRegistration {
    old_key: u64,
    new_key: u64,
    flags: u32,
    pad: u32,
}

#[repr(C)]
struct PrReservation {
    key: u64,
    kind: u32,
    flags: u32,
}

/// `struct pr_preempt`. The kernel's documentation calls the first key that of the old reservation
/// and the second one that of the new; its driver for SCSI sends them as below.
#[repr(C)]
struct PrPreemption {
    /// The key of this host.
    key: u64,
    /// The key of the host whose registration and reservation end.
    former_key: u64,
    kind: u32,
    flags: u32,
}

/// Why a request has failed.
#[derive(Debug)]
pub(crate) enum ReservationFault {
    /// The registration or reservation of another host forbids it.
    Conflict,
    /// The device has no reservations.
    Unsupported,
    /// Anything else.
    System(io::Error),
}

impl From<ReservationFault> for io::Error {
    fn from(fault: ReservationFault) -> Self {
        match fault {
            ReservationFault::Conflict => Self::other("reservation conflict"),
            ReservationFault::Unsupported => Self::from(io::ErrorKind::Unsupported),
            ReservationFault::System(error) => error,
        }
    }
}

pub(crate) type ReservationResult<T = ()> = Result<T, ReservationFault>;

/// A disk with reservations, as one host sees it.
pub(crate) trait ReservationCall {
    /// Changes the key of this host from `old`, or from any or none if that is `None`, to `new`.
    /// Without a new key, the host is no longer registered.
    fn register(
        &self,
        old: Option<ReservationKey>,
        new: Option<ReservationKey>,
    ) -> ReservationResult;

    /// Reserves the disk. Succeeds if this host has reserved it already.
    fn reserve(&self, key: ReservationKey) -> ReservationResult;

    /// Takes the reservation of the host with the key `former`, whose registration ends and whose
    /// commands in progress are aborted.
    fn preempt(&self, key: ReservationKey, former: ReservationKey) -> ReservationResult;

    /// The key of the host that has reserved the disk, if one has.
    fn holder(&self) -> ReservationResult<Option<ReservationKey>>;

    /// Whether this host is registered with `key`.
    fn is_registered(&self, key: ReservationKey) -> ReservationResult<bool> {
        match self.register(Some(key), Some(key)) {
            Err(ReservationFault::Conflict) => Ok(false),
            asked => asked.map(|()| true),
        }
    }
}

/// A block device with the kernel's requests: SCSI.
pub(crate) struct BlockReservations {
    file: OwnedFd,
}

impl BlockReservations {
    pub(super) const fn new(file: OwnedFd) -> Self {
        Self { file }
    }

    fn call<T>(&self, request: libc::Ioctl, argument: &mut T) -> ReservationResult {
        // SAFETY: each request is called with its structure, which the kernel only reads, or fills
        // within its length.
        let result = unsafe { libc::ioctl(self.file.as_raw_fd(), request, &raw mut *argument) };
        match result {
            0 => Ok(()),
            CONFLICT => Err(ReservationFault::Conflict),
            status if status > 0 => {
                let text = format!("the disk answers with the status {status:#x}");
                Err(ReservationFault::System(io::Error::other(text)))
            }
            _ => Err(fault(io::Error::last_os_error())),
        }
    }
}

fn fault(error: io::Error) -> ReservationFault {
    match error.raw_os_error() {
        Some(libc::EOPNOTSUPP | libc::ENOTTY | libc::EINVAL) => ReservationFault::Unsupported,
        Some(libc::EBADE) => ReservationFault::Conflict,
        _ => ReservationFault::System(error),
    }
}

impl ReservationCall for BlockReservations {
    fn register(
        &self,
        old: Option<ReservationKey>,
        new: Option<ReservationKey>,
    ) -> ReservationResult {
        let flags = if old.is_none() { IGNORE_KEY } else { 0 };
        let [old_key, new_key] = [old, new].map(|key| key.map_or(0, |key| key.0));
        self.call(REGISTER, &mut PrRegistration { old_key, new_key, flags, pad: 0 })
    }

    fn reserve(&self, key: ReservationKey) -> ReservationResult {
        self.call(RESERVE, &mut PrReservation { key: key.0, kind: TYPE, flags: 0 })
    }

    fn preempt(&self, key: ReservationKey, former: ReservationKey) -> ReservationResult {
        let (key, former_key) = (key.0, former.0);
        self.call(PREEMPT_ABORT, &mut PrPreemption { key, former_key, kind: TYPE, flags: 0 })
    }

    /// By a SCSI command of its own: the kernel has no request for it. Other devices do not say it.
    fn holder(&self) -> ReservationResult<Option<ReservationKey>> {
        let mut answer = [0; 24];
        let mut command = read_reservation(answer.len() as u8);
        let mut header = SgHeader::reading(&mut command, &mut answer);
        self.call(libc::Ioctl::from(SG_IO), &mut header)?;
        if header.status != 0 || header.host_status != 0 || header.driver_status != 0 {
            let text = format!("the disk answers with the SCSI status {:#x}", header.status);
            return Err(ReservationFault::System(io::Error::other(text)));
        }
        let (head, key) = answer.split_at(8);
        // The additional length is 16 if there is a reservation.
        let is_reserved = head[4..] == [0, 0, 0, 16];
        let key = key.first_chunk().map(|key| ReservationKey(u64::from_be_bytes(*key)));
        Ok(key.filter(|_| is_reserved))
    }
}

/// The request that passes a SCSI command to a disk.
const SG_IO: u16 = 0x2285;
/// The length of a command in bytes.
const COMMAND_BYTES: usize = 10;
/// How long a disk may take to answer, in milliseconds.
const SG_TIMEOUT_MS: u32 = 5_000;

/// `PERSISTENT RESERVE IN` with the service action `READ RESERVATION`.
const fn read_reservation(bytes: u8) -> [u8; COMMAND_BYTES] {
    [0x5e, 0x01, 0, 0, 0, 0, 0, 0, bytes, 0]
}

/// `struct sg_io_hdr` of `scsi/sg.h`.
#[repr(C)]
struct SgHeader {
    interface_id: i32,
    direction: i32,
    command_bytes: u8,
    sense_bytes_max: u8,
    iovec_count: u16,
    data_bytes: u32,
    data: *mut u8,
    command: *mut u8,
    sense: *mut u8,
    timeout_ms: u32,
    flags: u32,
    pack_id: i32,
    user: *mut u8,
    status: u8,
    masked_status: u8,
    message_status: u8,
    sense_bytes: u8,
    host_status: u16,
    driver_status: u16,
    rest: i32,
    duration_ms: u32,
    info: u32,
}

impl SgHeader {
    /// A command that reads into `answer`. The header must not outlive either.
    const fn reading(command: &mut [u8; COMMAND_BYTES], answer: &mut [u8]) -> Self {
        Self {
            interface_id: b'S' as i32,
            // SG_DXFER_FROM_DEV
            direction: -3,
            command_bytes: COMMAND_BYTES as u8,
            sense_bytes_max: 0,
            iovec_count: 0,
            data_bytes: answer.len() as u32,
            data: answer.as_mut_ptr(),
            command: command.as_mut_ptr(),
            sense: std::ptr::null_mut(),
            timeout_ms: SG_TIMEOUT_MS,
            flags: 0,
            pack_id: 0,
            user: std::ptr::null_mut(),
            status: 0,
            masked_status: 0,
            message_status: 0,
            sense_bytes: 0,
            host_status: 0,
            driver_status: 0,
            rest: 0,
            duration_ms: 0,
            info: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_no_reservations() {
        let device = BlockReservations::new(tempfile::tempfile().unwrap().into());
        let key = ReservationKey(1);
        assert!(matches!(device.register(None, Some(key)), Err(ReservationFault::Unsupported)));
        assert!(device.holder().is_err());
    }

    #[test]
    fn requests_have_the_numbers_of_the_kernel() {
        assert_eq!(u64::from(REGISTER as u32), 0x4018_70c8);
        assert_eq!(u64::from(RESERVE as u32), 0x4010_70c9);
        assert_eq!(u64::from(PREEMPT_ABORT as u32), 0x4018_70cc);
    }
}
