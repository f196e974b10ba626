//! The shared stores of one volume: a disk and the device of its journal.
//!
//! The store itself decides whose I/O it accepts. An owner is a registration: a connection to a
//! cluster, or a key that a host has registered with a device. A takeover replaces the former owner
//! in one step; from then on, each I/O of that is refused. What was in flight has reached the store
//! wholly, partly or not at all.

use super::plan::FenceKind;
use super::{Planted, SiteBug};
use crate::harness::io::Io;
use crate::harness::journal::{GEOMETRY, SIZE_BYTES, buffers};
use crate::harness::log_device::LogDevice;
use crate::harness::oracle::{ZERO, stamp};
use crate::harness::places::{SECTORS, places};
use forebay_engine::IoVerb;
use forebay_format::journal::JournalId;
use forebay_journal::{Log, LogWrite};
use forebay_protect::JournalState;
use forebay_types::SECTOR_BYTES;
use forebay_volume::JobId;

/// The identity of the volume in its journal.
pub(super) const IDENTITY: [u8; 32] = [7; 32];
/// Indexes of the two devices.
pub(super) const DISK: usize = 0;
pub(super) const JOURNAL: usize = 1;

/// The stamps of one volume of the site name it by this number.
pub(super) const fn number_in_stamps(volume: u16) -> u16 {
    volume % 14
}

/// What an I/O does at the store.
pub(super) enum StoreWork {
    Io(Io),
    Flush(JobId),
    Log(LogWrite<Vec<u8>>),
}

impl StoreWork {
    pub(super) const fn device(&self) -> usize {
        match self {
            Self::Io(_) | Self::Flush(_) => DISK,
            Self::Log(_) => JOURNAL,
        }
    }

    /// The number of sectors that it changes.
    pub(super) fn changes(&self) -> usize {
        match self {
            Self::Io(io) if io.is_read() => 0,
            Self::Io(io) => places(io.action.range).len(),
            Self::Flush(_) => 0,
            Self::Log(write) => write.len / SECTOR_BYTES as usize,
        }
    }
}

pub(super) struct SharedStore {
    pub fence: FenceKind,
    pub disk: [u64; SECTORS],
    pub log: LogDevice,
    /// The registration that owns each device.
    pub holders: [Option<u32>; 2],
    /// Former owners that are shut out of at least one device.
    pub former: Vec<u32>,
    /// Former owners whose fence has expired, by a planted bug.
    pub expired: Vec<u32>,
    /// The registration that has begun to serve last.
    pub serving: Option<u32>,
    /// All that have ever served.
    pub served: Vec<u32>,
}

/// A new journal on an empty device.
fn formatted(id: u8) -> LogDevice {
    let mut device = LogDevice::new(SIZE_BYTES);
    let log = Log::format(JournalId([id; 16]), SIZE_BYTES, GEOMETRY, buffers());
    let mut state = JournalState::new(log);
    while let Some(write) = state.log.poll_write() {
        device.write_some(write.position, write.bytes_for(0), |_| true);
        state.handle_written(write, [Ok(()); 2]);
    }
    device
}

impl SharedStore {
    pub(super) fn new(volume: u16, fence: FenceKind) -> Self {
        let number = number_in_stamps(volume);
        Self {
            fence,
            disk: std::array::from_fn(|at| stamp(number, at as u64, 0)),
            log: formatted(volume as u8),
            holders: [None; 2],
            former: Vec::new(),
            expired: Vec::new(),
            serving: None,
            served: Vec::new(),
        }
    }

    /// Whether the store accepts an I/O of this registration.
    pub(super) fn permits(
        &self,
        registration: u32,
        device: usize,
        is_read: bool,
        planted: Planted,
    ) -> bool {
        self.holders[device] == Some(registration)
            // Hosts that have not registered can read.
            || is_read && self.fence == FenceKind::Reservations
            || planted.is(SiteBug::FenceExpires) && self.expired.contains(&registration)
            || planted.is(SiteBug::FenceDiskOnly) && device == JOURNAL
    }

    /// Whether neither device accepts a change of this registration.
    pub(super) fn is_shut_out(&self, registration: u32) -> bool {
        !self.holders.contains(&Some(registration))
    }

    /// Whether a change by this registration comes from a second owner: another one has begun to
    /// serve after it.
    pub(super) fn is_second_owner(&self, registration: u32) -> bool {
        self.serving.is_some_and(|serving| serving != registration)
            && self.served.contains(&registration)
    }

    /// Carries out those sectors of an I/O for which `lands` is true. A read gets its data.
    pub(super) fn execute(&mut self, work: &mut StoreWork, lands: &mut impl FnMut(usize) -> bool) {
        match work {
            StoreWork::Io(io) if io.is_read() => {
                io.stamps = self.disk[places(io.action.range)].to_vec();
            }
            StoreWork::Io(io) => {
                let is_write = matches!(io.action.verb, IoVerb::Write { .. });
                for (at, place) in places(io.action.range).enumerate() {
                    if lands(at) {
                        self.disk[place] = if is_write { io.stamps[at] } else { ZERO };
                    }
                }
            }
            StoreWork::Flush(_) => {}
            StoreWork::Log(write) => {
                let bytes = write.bytes_for(0);
                let sectors = bytes.len() / SECTOR_BYTES as usize;
                let landed: Vec<bool> = (0..sectors).map(&mut *lands).collect();
                self.log.write_some(write.position, bytes, |at| landed[at]);
            }
        }
    }
}
