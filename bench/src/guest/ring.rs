//! A ring of a guest, and the driver that uses it.

use super::{GUEST_BASE, GuestRam};
use anyhow::{Result, ensure};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering, fence};
use std::time::{Duration, Instant};

/// What a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// Read.
    Read,
    /// Write.
    Write,
    /// Flush.
    Flush,
    /// Tell the name.
    Identify,
    /// Discard.
    Discard,
    /// Write zeroes.
    Zero,
}

impl Verb {
    const fn number(self) -> u32 {
        match self {
            Self::Read => 0,
            Self::Write => 1,
            Self::Flush => 4,
            Self::Identify => 8,
            Self::Discard => 11,
            Self::Zero => 13,
        }
    }
}

/// A request that was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Used {
    /// The place of the request.
    pub place: u16,
    /// 0 if it was done.
    pub status: u8,
    /// Bytes that the server says it has written.
    pub bytes: u32,
}

/// Descriptors of a place: the head of the request, the status, and pieces of data.
const PIECES_MAX: usize = 6;
const NEXT: u16 = 1;
const WRITABLE: u16 = 2;
const INDIRECT: u16 = 4;

/// Where things are in the ring's part of the memory.
const AVAILABLE_AT: usize = 0x4000;
const USED_AT: usize = 0x8000;
const HEADS_AT: usize = 0x10000;
/// Bytes of a place for its head, its status, and an indirect table.
const HEAD_BYTES: usize = 256;
const DATA_AT: usize = HEADS_AT + 256 * HEAD_BYTES;

/// A ring with its own part of the memory. Each place has a request of up to as many bytes.
pub struct GuestRing {
    ram: Arc<GuestRam>,
    start: usize,
    places: u16,
    data_bytes: usize,
    next_available: u16,
    next_used: u16,
    /// Tells the server of requests.
    pub kick: OwnedFd,
    /// The server's interrupts.
    pub call: OwnedFd,
}

impl GuestRing {
    /// Bytes of memory that a ring takes.
    pub const fn bytes(places: u16, data_bytes: usize) -> usize {
        DATA_AT + places as usize * data_bytes
    }

    /// A ring in the memory from `start` on, which must be zeroes.
    ///
    /// # Errors
    /// The system has no event counters.
    pub fn new(ram: &Arc<GuestRam>, start: usize, places: u16, data_bytes: usize) -> Result<Self> {
        ensure!(places <= 256 && start.is_multiple_of(4096), "a possible ring");
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let (kick, call) = (eventfd(0, flags)?, eventfd(0, flags)?);
        let (next_available, next_used) = (0, 0);
        let ram = Arc::clone(ram);
        Ok(Self { ram, start, places, data_bytes, next_available, next_used, kick, call })
    }

    /// Entries of the ring: enough for each place to have a chain of its own.
    pub const fn entries(&self) -> u16 {
        (self.places * (PIECES_MAX as u16 + 2)).next_power_of_two()
    }

    /// The index of the next request, from the used ring: what a monitor says after a crash.
    pub const fn base(&self) -> u16 {
        self.next_used
    }

    /// The addresses of table, used ring and available ring in this process.
    pub fn addresses(&self) -> [u64; 3] {
        [0, USED_AT, AVAILABLE_AT].map(|at| self.ram.at(self.start + at, 0) as u64)
    }

    /// The memory for the data of a place: its offset in the guest's memory.
    pub fn data_at(&self, place: u16) -> usize {
        self.start + DATA_AT + usize::from(place) * self.data_bytes
    }

    fn word(&self, at: usize) -> &AtomicU16 {
        // SAFETY: inside of the memory and aligned.
        unsafe { AtomicU16::from_ptr(self.ram.at(self.start + at, 2).cast()) }
    }

    /// Writes a descriptor into the table: raw, for whatever one wants to say.
    pub fn put_descriptor(&self, at: usize, fields: (u64, u32, u16, u16)) {
        let (address, bytes, flags, next) = fields;
        let mut raw = [0; 16];
        raw[..8].copy_from_slice(&address.to_le_bytes());
        raw[8..12].copy_from_slice(&bytes.to_le_bytes());
        raw[12..14].copy_from_slice(&flags.to_le_bytes());
        raw[14..].copy_from_slice(&next.to_le_bytes());
        self.ram.write(self.start + at * 16, &raw);
    }

    /// Adds an entry to the available ring without a request, and shows it.
    pub fn put_available(&mut self, head: u16, advance: u16) {
        let at = AVAILABLE_AT + 4 + 2 * usize::from(self.next_available % self.entries());
        self.word(at).store(head, Ordering::Relaxed);
        self.next_available = self.next_available.wrapping_add(advance);
        self.word(AVAILABLE_AT + 2).store(self.next_available, Ordering::Release);
        self.interrupt_server();
    }

    fn interrupt_server(&self) {
        let _ = rustix::io::write(&self.kick, &1_u64.to_ne_bytes());
    }

    /// Waits for an interrupt, of which all earlier ones are forgotten, while `act` runs.
    ///
    /// # Errors
    /// There is none within 20 seconds, or `act` fails.
    pub fn interrupted(&self, act: impl FnOnce() -> Result<()>) -> Result<()> {
        let mut count = [0; 8];
        let _ = rustix::io::read(&self.call, &mut count);
        act()?;
        let timeout = rustix::time::Timespec { tv_sec: 20, tv_nsec: 0 };
        let ready = poll(&mut [PollFd::new(&self.call, PollFlags::IN)], Some(&timeout))?;
        ensure!(ready == 1, "the guest is not interrupted");
        Ok(())
    }

    /// Adds a request whose data is at its place, cut into `pieces`, with a table of its own if it
    /// is `indirect`. The server sees it after [`GuestRing::kick`].
    pub fn add(
        &mut self,
        place: u16,
        verb: Verb,
        (sector, bytes): (u64, u32),
        (pieces, indirect): (usize, bool),
    ) {
        let head_at = self.start + HEADS_AT + usize::from(place) * HEAD_BYTES;
        let mut head = [0; 16];
        head[..4].copy_from_slice(&verb.number().to_le_bytes());
        head[8..].copy_from_slice(&sector.to_le_bytes());
        self.ram.write(head_at, &head);
        self.ram.write(head_at + 16, &[0xff]);
        let writable = if matches!(verb, Verb::Read | Verb::Identify) { WRITABLE } else { 0 };
        let mut descriptors = vec![(head_at, 16, 0)];
        let data_at = self.data_at(place);
        let piece = (bytes as usize).div_ceil(pieces.clamp(1, PIECES_MAX)).max(1);
        for at in (0..bytes as usize).step_by(piece) {
            let len = piece.min(bytes as usize - at);
            descriptors.push((data_at + at, len, writable));
        }
        descriptors.push((head_at + 16, 1, WRITABLE));
        let first = usize::from(place) * (PIECES_MAX + 2);
        let table_at = head_at + 32;
        let count = descriptors.len();
        for (at, (offset, len, flags)) in descriptors.into_iter().enumerate() {
            let (flags, next) = match (at + 1 < count, indirect) {
                (false, _) => (flags, 0),
                (true, true) => (flags | NEXT, at + 1),
                (true, false) => (flags | NEXT, first + at + 1),
            };
            let fields = (GUEST_BASE + offset as u64, len as u32, flags, next as u16);
            match indirect {
                true => self.put_descriptor((table_at - self.start) / 16 + at, fields),
                false => self.put_descriptor(first + at, fields),
            }
        }
        if indirect {
            let table = (GUEST_BASE + table_at as u64, count as u32 * 16, INDIRECT, 0);
            self.put_descriptor(first, table);
        }
        let at = AVAILABLE_AT + 4 + 2 * usize::from(self.next_available % self.entries());
        self.word(at).store(first as u16, Ordering::Relaxed);
        self.next_available = self.next_available.wrapping_add(1);
    }

    /// Shows the server what was added, and wakes it if it wants that.
    pub fn kick(&self) {
        let old = self.word(AVAILABLE_AT + 2).load(Ordering::Relaxed);
        self.word(AVAILABLE_AT + 2).store(self.next_available, Ordering::Release);
        fence(Ordering::SeqCst);
        let event = self.word(USED_AT + 4 + 8 * usize::from(self.entries()));
        let event = event.load(Ordering::Relaxed);
        let passed = self.next_available.wrapping_sub(event).wrapping_sub(1);
        if passed < self.next_available.wrapping_sub(old) {
            self.interrupt_server();
        }
    }

    /// Wakes the server in any case, as a monitor does when it has connected again.
    pub fn kick_anyway(&self) {
        self.kick();
        self.interrupt_server();
    }

    /// The next answer, if there is one.
    pub fn take(&mut self) -> Option<Used> {
        if self.word(USED_AT + 2).load(Ordering::Acquire) == self.next_used {
            return None;
        }
        let at = USED_AT + 4 + 8 * usize::from(self.next_used % self.entries());
        let mut raw = [0; 8];
        self.ram.read(self.start + at, &mut raw);
        self.next_used = self.next_used.wrapping_add(1);
        let head = u32::from_le_bytes([raw[0], raw[1], raw[2], raw[3]]);
        let bytes = u32::from_le_bytes([raw[4], raw[5], raw[6], raw[7]]);
        let place = (head as usize / (PIECES_MAX + 2)) as u16;
        let mut status = [0];
        let head_at = self.start + HEADS_AT + usize::from(place) * HEAD_BYTES;
        self.ram.read(head_at + 16, &mut status);
        Some(Used { place, status: status[0], bytes })
    }

    /// Waits for an answer, for up to a time.
    pub fn wait(&mut self, limit: Duration) -> Option<Used> {
        let end = Instant::now() + limit;
        loop {
            // An interrupt for the next answer that comes.
            let at = AVAILABLE_AT + 4 + 2 * usize::from(self.entries());
            self.word(at).store(self.next_used, Ordering::Relaxed);
            fence(Ordering::SeqCst);
            if let Some(used) = self.take() {
                return Some(used);
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            let timeout = rustix::time::Timespec {
                tv_sec: left.as_secs() as i64,
                tv_nsec: i64::from(left.subsec_nanos()),
            };
            let mut polled = [PollFd::new(&self.call, PollFlags::IN)];
            let _ = poll(&mut polled, Some(&timeout));
            let mut count = [0; 8];
            let _ = rustix::io::read(&self.call, &mut count);
        }
    }
}
