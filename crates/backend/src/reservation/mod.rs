//! A persistent reservation on a shared disk: the disk itself refuses the writes of other hosts.
//!
//! SCSI-3 and NVMe have the same model. A host registers a key, and one registered host reserves
//! the disk; with the type used here, only registered hosts can write. A host that takes the disk
//! over removes the registration of the former one in the same step, and whatever that sends later,
//! also after hours of sleep, is refused by the disk. No clock and no lease is involved.
//!
//! Keys are random. A server that comes back after a crash finds its host's registration, by the
//! key of the present reservation, and goes on with it: the key is the number of its
//! [tenure](Tenure). If the disk does not say which key has reserved it, it registers with a new
//! one: a disk tells hosts apart by their port, so the reservation stays.
//!
//! A reservation is never given up, also not by an orderly end: a former owner that still sleeps
//! has older data, and without any reservation the disk would take it. Another host takes it over.
//!
//! Sources: SPC-4, 5.13 (persistent reservations); NVM Express 1.4, 8.8; `linux/pr.h`.

mod device;
mod nvme;
#[cfg(test)]
mod tests;

use crate::Tenure;
use device::{BlockReservations, ReservationCall, ReservationFault, ReservationResult};
use forebay_types::{Fault, Remedy};
use nvme::{NvmeDevice, NvmeReservations};
use rustix::rand::GetRandomFlags;
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;

/// The first two bytes of the keys of Forebay: `FB`.
const KEY_PREFIX: u64 = 0x4642 << 48;

/// The key of a host that has registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReservationKey(u64);

impl ReservationKey {
    fn random() -> io::Result<Self> {
        let mut bytes = [0; 8];
        rustix::rand::getrandom(&mut bytes, GetRandomFlags::empty())?;
        Ok(Self(KEY_PREFIX | u64::from_ne_bytes(bytes) >> 16))
    }
}

/// As `blkpr` and `sg_persist` write it.
impl fmt::Display for ReservationKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// Why a disk cannot be reserved.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReservationError {
    /// The disk, or its driver, has no persistent reservations.
    #[error("'{path}' has no persistent reservations")]
    Unsupported {
        /// The disk.
        path: String,
    },
    /// Another host has reserved it.
    #[error("another host has reserved '{path}'{}", with_key(*holder))]
    Reserved {
        /// The disk.
        path: String,
        /// The key of that host, if the disk says it.
        holder: Option<ReservationKey>,
    },
    /// The disk has failed a request.
    #[error("cannot {what} '{path}'")]
    Failed {
        /// The disk.
        path: String,
        /// The request.
        what: &'static str,
        /// The cause.
        source: io::Error,
    },
}

fn with_key(holder: Option<ReservationKey>) -> String {
    holder.map(|key| format!(" with the key {key}")).unwrap_or_default()
}

impl Fault for ReservationError {
    fn remedy(&self) -> Remedy {
        match self {
            Self::Unsupported { .. } => {
                Remedy::from("set reserve=no").or("use a disk that has them, over SCSI or NVMe")
            }
            Self::Reserved { holder: Some(_), .. } => {
                "take it over with `forebay takeover VOLUME`, if it is to be served here".into()
            }
            Self::Reserved { holder: None, .. } => {
                Remedy::from("give the server CAP_SYS_RAWIO, if the disk says its key only then")
                    .or("remove the reservation with the management of the disk")
            }
            Self::Failed { .. } => "check the disk, and the kernel's log".into(),
        }
    }
}

/// A reservation that this host holds.
pub(crate) struct Reservation {
    device: Box<dyn ReservationCall + Send>,
    key: ReservationKey,
    /// By the keys of this host and of the one before it. `None` if the disk does not say who has
    /// reserved it.
    tenure: Option<Tenure>,
    is_lost: bool,
}

impl Reservation {
    /// Reserves the block device that is open as `file`, at `path`. With `takes_over`, the
    /// reservation of another host ends.
    ///
    /// # Errors
    /// If it has no reservations, or another host has reserved it. Nothing is changed then.
    pub(crate) fn acquire(
        file: OwnedFd,
        path: &str,
        takes_over: bool,
    ) -> Result<Self, ReservationError> {
        let key = ReservationKey::random()
            .map_err(|error| failed(path, "choose a key for", ReservationFault::System(error)))?;
        let device = open(file).map_err(|fault| failed(path, "reserve", fault))?;
        Self::acquire_on(device, path, key, takes_over)
    }

    fn acquire_on(
        device: Box<dyn ReservationCall + Send>,
        path: &str,
        key: ReservationKey,
        takes_over: bool,
    ) -> Result<Self, ReservationError> {
        let found = device.holder().ok().flatten();
        if let Some(own) = found {
            match device.register(Some(own), Some(own)) {
                // What this host has left there.
                Ok(()) => return Self::resume(device, path, own),
                Err(ReservationFault::Conflict) if takes_over => {}
                Err(ReservationFault::Conflict) => {
                    // Without a registration, if only for a moment: a late write could be taken.
                    let _ = device.register(None, None);
                    return Err(ReservationError::Reserved {
                        path: path.to_owned(),
                        holder: found,
                    });
                }
                Err(fault) => return Err(failed(path, "register with", fault)),
            }
        }
        let register = device.register(None, Some(key));
        register.map_err(|fault| failed(path, "register with", fault))?;
        match device.reserve(key) {
            Err(ReservationFault::Conflict) => {
                let holder = device.holder().unwrap_or_default();
                let taken = match holder.filter(|_| takes_over) {
                    Some(former) => device
                        .preempt(key, former)
                        .and_then(|()| device.reserve(key))
                        .map_err(|fault| failed(path, "take over", fault)),
                    None => Err(ReservationError::Reserved { path: path.to_owned(), holder }),
                };
                if taken.is_err() {
                    // A host that is registered could write beside the owner.
                    let _ = device.register(Some(key), None);
                }
                taken?;
            }
            // It may be this host's already: the registration stays.
            reserved => reserved.map_err(|fault| failed(path, "reserve", fault))?,
        }
        if takes_over {
            tracing::warn!(disk = path, %key, "reserved, and taken over from any other host");
        }
        let is_known = device.holder().ok().flatten() == Some(key);
        let former = found.iter().map(|former| former.0).collect();
        let tenure = is_known.then_some(Tenure { own: key.0, former });
        Ok(Self { device, key, tenure, is_lost: false })
    }

    /// Goes on with this host's reservation under the key `own`.
    fn resume(
        device: Box<dyn ReservationCall + Send>,
        path: &str,
        own: ReservationKey,
    ) -> Result<Self, ReservationError> {
        device.reserve(own).map_err(|fault| failed(path, "reserve", fault))?;
        let tenure = Some(Tenure { own: own.0, former: Vec::new() });
        Ok(Self { device, tenure, key: own, is_lost: false })
    }

    /// See [`crate::Backend::tenure`].
    pub(crate) fn tenure(&self) -> Option<Tenure> {
        self.tenure.clone()
    }

    /// Whether another host has taken the disk over. Asks the disk, which may block; a disk that
    /// does not answer has not been taken over as far as this process knows.
    pub(crate) fn is_lost(&mut self) -> bool {
        self.is_lost |= matches!(self.device.is_registered(self.key), Ok(false));
        self.is_lost
    }
}

/// The reservations of the block device that is open as `file`.
fn open(file: OwnedFd) -> ReservationResult<Box<dyn ReservationCall + Send>> {
    Ok(match NvmeDevice::open(file)? {
        Ok(namespace) => Box::new(NvmeReservations(namespace)),
        Err(file) => Box::new(BlockReservations::new(file)),
    })
}

fn failed(path: &str, what: &'static str, fault: ReservationFault) -> ReservationError {
    let path = path.to_owned();
    match fault {
        ReservationFault::Unsupported => ReservationError::Unsupported { path },
        fault => ReservationError::Failed { path, what, source: fault.into() },
    }
}
