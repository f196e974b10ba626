//! The patrol over the pool: seals what has changed, and looks again at what is sealed.
//!
//! Which line is next, and what follows from what is found, the shards say (`integrity` of the
//! engine); here is the arithmetic, and the moment for it. Each worker looks after the shards that
//! it ticks, between two turns of its loop: so the patrol needs no thread, nobody waits for a lock
//! that a thread of low priority holds, and whoever has requests to answer does that first.
//!
//! **Pace.** A worker that has had nothing to do for 2 ms seals and verifies in slices of 64 lines,
//! about 60 us. What is unsealed goes at up to a quarter of its time; after that a slice in 20 ms,
//! which is 13 MB/s for each worker. A worker that has requests, or had some just now, spends at
//! most a twentieth of its time on seals, 16 lines at once, and a hundredth on verifying when there
//! are none to make: between two batches of a busy client is no leisure. A shard is locked for four
//! lines at a time.
//!
//! **Where things are.** The checksums lie beside the tables of lines in the pool's file, four
//! bytes a line; parity lies in slots of the pool itself. Whoever computes has the shard locked, or
//! the line pinned by an operation that reads it, so no valid sector changes meanwhile.

use crate::pool::{MappedLines, Pool};
use crate::shared::Shared;
use forebay_ecc::{Code, LINE_PARITY_BYTES, Line, LineParity, Repair, seal, seed};
use forebay_engine::{
    IoAction, LineKey, PARITIES_PER_SLOT, ParityPlace, Seal, Shard, Slot, Verdict, Work,
};
use forebay_types::{ByteRange, LINE_BYTES, SECTOR_BYTES};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Lines for which a shard is locked at a time.
const LINES_PER_LOCK: usize = 4;
/// Lines of a slice: when nothing else is to be done, and when there is.
const LINES_IDLE: usize = 64;
const LINES_BUSY: usize = 16;
/// How long a worker that has served somebody counts as busy: longer than a client under load
/// takes to send again.
const QUIET: Duration = Duration::from_millis(2);
/// From the end of a slice that verified to the next one, while nothing else is to be done.
const PAUSE: Duration = Duration::from_millis(20);
/// The same while the pool is empty.
const PAUSE_EMPTY: Duration = Duration::from_millis(500);
/// Pauses as multiples of what a slice took: for seals when idle, for seals and for verifying
/// when not.
const REST_IDLE: u32 = 3;
const REST_SEAL: u32 = 19;
const REST_VERIFY: u32 = 99;

const _: () = assert!(PARITIES_PER_SLOT as usize * LINE_PARITY_BYTES <= LINE_BYTES as usize);

/// How damage to the pool is noticed and undone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ecc {
    /// Not at all.
    Off,
    /// It is noticed. Clean lines are fetched again, dirty ones fail.
    Checksum,
    /// Dirty lines are corrected as well, up to six wrong bytes in each 64. Their parity takes up
    /// to a fifth of their size from the pool.
    #[default]
    Parity,
}

/// How the patrol is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PatrolStatus {
    /// What is done at all.
    pub ecc: Ecc,
    /// Lines sealed since the start.
    pub sealed_lines: u64,
    /// Sealed lines looked at again by the patrol.
    pub verified_lines: u64,
    /// Bytes of lines that changed and are not sealed yet.
    pub unsealed_bytes: u64,
    /// Dirty bytes that have parity.
    pub parity_bytes: u64,
    /// Bytes of the pool that hold it.
    pub parity_slot_bytes: u64,
    /// Walks over the whole pool that have ended.
    pub walks: u64,
    /// Milliseconds that the slowest shard's last walk took.
    pub walk_ms: u64,
}

fn place_of(seal: &Seal) -> u64 {
    seed(u64::from(seal.key.volume().0), seal.key.offset() / SECTOR_BYTES)
}

/// The parity at a place of a shard.
fn parity_at(pool: &Pool, shard: usize, place: ParityPlace) -> *mut LineParity {
    assert!(place.index < PARITIES_PER_SLOT);
    let start = pool.line(shard, place.slot);
    start.wrapping_add(usize::from(place.index) * LINE_PARITY_BYTES).cast()
}

/// Whether a copy of a line's valid sectors is what the line was sealed as last.
pub(crate) fn is_sealed_as(
    pool: &Pool,
    shard: usize,
    key: LineKey,
    slot: Slot,
    valid: u8,
    copy: &[u8],
) -> bool {
    let Ok(line) = copy.try_into() else { return false };
    let place = seed(u64::from(key.volume().0), key.offset() / SECTOR_BYTES);
    seal(place, line, valid) == pool.sum(shard, slot).load(Ordering::Relaxed)
}

/// Computes the checksum of a line, and its parity where it has a place. The shard is locked.
fn make_seal(pool: &Pool, code: Code, shard: usize, sealed: &Seal) {
    // SAFETY: the shard is locked and nobody has the line pinned, so nothing writes to it.
    let line = unsafe { &*pool.line(shard, sealed.slot).cast::<Line>() };
    let sum = seal(place_of(sealed), line, sealed.valid);
    pool.sum(shard, sealed.slot).store(sum, Ordering::Relaxed);
    if let Some(place) = sealed.parity {
        // SAFETY: inside a slot that the shard keeps for parity alone; the place is this line's,
        // and whoever uses it has the shard locked. Any bytes make an array of bytes.
        let parity = unsafe { &mut *parity_at(pool, shard, place) };
        code.encode(line, parity);
    }
}

/// Looks at a sealed line and puts right what can be. The shard is locked, or the line pinned by an
/// operation that reads it and `sealed` names no parity.
fn look(pool: &Pool, code: Code, shard: usize, sealed: &Seal) -> Verdict {
    let address = pool.line(shard, sealed.slot).cast::<Line>();
    let expected = pool.sum(shard, sealed.slot).load(Ordering::Relaxed);
    // SAFETY: as the caller says, no valid sector is being written to; of the others nothing is
    // used. A sector that is read by the kernel meanwhile does not mind.
    let line = unsafe { &*address };
    if seal(place_of(sealed), line, sealed.valid) == expected {
        return Verdict::Intact;
    }
    // SAFETY: as in `make_seal`; parity is only named where the shard is locked.
    let parity = sealed.parity.map(|place| unsafe { &*parity_at(pool, shard, place) });
    let mut corrected = *line;
    let place = place_of(sealed);
    match code.repair_sealed(&mut corrected, parity, sealed.valid, place, expected) {
        Repair::Intact => Verdict::Intact,
        Repair::Corrected => {
            let sum = seal(place, &corrected, sealed.valid);
            pool.sum(shard, sealed.slot).store(sum, Ordering::Relaxed);
            put_right(address, line, &corrected, sealed.valid);
            Verdict::Corrected
        }
        Repair::Lost { sectors } => Verdict::Lost { sectors },
    }
}

/// Writes the valid sectors of a line that were wrong.
fn put_right(address: *mut Line, found: &Line, corrected: &Line, valid: u8) {
    let sector = SECTOR_BYTES as usize;
    for at in (0..8).filter(|at| valid & 1 << at != 0).map(|at| at * sector) {
        let right = &corrected[at..at + sector];
        if found[at..at + sector] != *right {
            // SAFETY: inside the line. Whoever reads the sector meanwhile, which only the kernel
            // does, reads some of the wrong bytes or none.
            unsafe {
                let to = address.cast::<u8>().add(at);
                std::ptr::copy_nonoverlapping(right.as_ptr(), to, sector);
            }
        }
    }
}

/// Says what was found, once for each line.
fn tell(shared: &Shared, shard: &Shard<MappedLines>, seal: &Seal, verdict: Verdict) {
    let volume = shared.volume(seal.key.volume());
    let name = volume.as_ref().map_or("", |volume| &volume.name);
    let range = ByteRange::new(seal.key.offset(), LINE_BYTES);
    match verdict {
        Verdict::Intact => {}
        Verdict::Corrected => {
            tracing::warn!(
                volume = name,
                "memory was damaged and is corrected: dirty data at {range}"
            );
        }
        Verdict::Lost { .. } if shard.lost_of(seal.key) != 0 => {
            if let Some(used) = volume.as_ref().and_then(|volume| volume.journal.as_ref()) {
                used.journal.regain(used.number, seal.key.volume());
            }
            tracing::error!(
                volume = name,
                "memory was damaged beyond repair: {} sectors at {range} are lost, newer than what \
                 the backing store has. They fail with EIO until they are written again, or given \
                 up with `forebay volume trust {name}`",
                shard.lost_of(seal.key).count_ones(),
            );
        }
        Verdict::Lost { .. } => {
            tracing::warn!(volume = name, "memory was damaged: {range} will be read again");
        }
    }
}

/// A line is about to change in part: looks at what it keeps. The shard is locked.
pub(crate) fn verify_before(
    shared: &Shared,
    shard: usize,
    locked: &mut Shard<MappedLines>,
    seal: &Seal,
    kept: u8,
) {
    let verdict = look(&shared.pool, shared.code, shard, seal);
    if verdict != Verdict::Intact {
        locked.damaged_before(seal, kept, verdict);
        tell(shared, locked, seal, verdict);
    }
}

/// Dirty data is about to go to the disk. Returns whether it may: its memory is what it was, now at
/// least. The shard is not locked.
pub(crate) fn verify_destage(shared: &Shared, shard: usize, io: &IoAction) -> bool {
    let mut good = true;
    for seal in &io.seals {
        // Under the lock, parity is looked at as well.
        let blind = Seal { parity: None, ..*seal };
        if look(&shared.pool, shared.code, shard, &blind) == Verdict::Intact {
            continue;
        }
        let mut locked = shared.shard(shard);
        let Some(sealed) = locked.seal_of(seal.slot) else {
            // It was found damaged in another piece of the same write, or has moved meanwhile, and
            // what moved was looked at then.
            good = false;
            continue;
        };
        let verdict = verify_locked(shared, shard, &mut locked, &sealed);
        good &= !matches!(verdict, Verdict::Lost { .. });
    }
    good
}

/// Looks at a line under its shard's lock, puts right what can be, and tells the shard. For whoever
/// is about to save dirty data elsewhere: what is lost is not among its dirty sectors from then on.
pub(crate) fn verify_locked(
    shared: &Shared,
    shard: usize,
    locked: &mut Shard<MappedLines>,
    sealed: &Seal,
) -> Verdict {
    let verdict = look(&shared.pool, shared.code, shard, sealed);
    if verdict != Verdict::Intact {
        locked.damaged(sealed, verdict);
        tell(shared, locked, sealed, verdict);
    }
    verdict
}

/// Puts back what was lost of a line: these sectors of `bytes`, if they are lost still. The shard
/// is locked. False when somebody uses the line just now.
pub(crate) fn put_back(
    shared: &Shared,
    number: usize,
    shard: &mut Shard<MappedLines>,
    key: LineKey,
    bytes: &[u8],
    sectors: u8,
) -> bool {
    let sectors = sectors & shard.lost_of(key);
    if sectors == 0 {
        return true;
    }
    let Some(slot) = shard.idle_slot_of(key) else { return false };
    if let Some(sealed) = shard.seal_of(slot) {
        // A new seal vouches for the rest of the line as well.
        verify_locked(shared, number, shard, &sealed);
    }
    let sector_bytes = SECTOR_BYTES as usize;
    for at in (0..8).filter(|at| sectors & 1 << at != 0).map(|at| at * sector_bytes) {
        // SAFETY: inside a line whose shard is locked; these sectors are not valid and nobody has
        // the line pinned, so nobody reads or writes them.
        unsafe {
            let to = shared.pool.line(number, slot).add(at);
            std::ptr::copy_nonoverlapping(bytes[at..at + sector_bytes].as_ptr(), to, sector_bytes);
        }
    }
    shard.regained(key, sectors);
    let volume = shared.volume(key.volume());
    tracing::warn!(
        volume = volume.as_ref().map_or("", |volume| &volume.name),
        "{} sectors at {} that were lost in memory are back from the journal",
        sectors.count_ones(),
        ByteRange::new(key.offset(), LINE_BYTES)
    );
    true
}

/// One worker's part of the patrol.
pub(crate) struct Patrol {
    /// The worker's shards, and when their walks began.
    shards: Vec<(usize, Instant)>,
    /// Which of them is next.
    turn: usize,
    next: Option<Instant>,
    busy_until: Instant,
}

impl Patrol {
    pub(crate) fn new(shared: &Shared, worker: usize, now: Instant) -> Self {
        let workers = shared.inboxes.len();
        let shards = (worker..shared.shards.len()).step_by(workers).map(|shard| (shard, now));
        let shards: Vec<_> = shards.collect();
        let next = (shared.ecc != Ecc::Off && !shards.is_empty()).then_some(now + PAUSE);
        Self { shards, turn: 0, next, busy_until: now }
    }

    /// When there is something to do, if ever.
    pub(crate) const fn next(&self) -> Option<Instant> {
        self.next
    }

    /// Whether the worker is at leisure. `idle` says that nothing else is to be done in this turn.
    fn is_quiet(&mut self, idle: bool, now: Instant) -> bool {
        if !idle {
            self.busy_until = now + QUIET;
        }
        now >= self.busy_until
    }

    /// Does a slice if it is time. `idle` says that nothing else is to be done in this turn.
    pub(crate) fn go_on(&mut self, shared: &Shared, idle: bool, now: Instant) {
        let idle = self.is_quiet(idle, now);
        if self.next.is_none_or(|next| next > now) {
            return;
        }
        let lines = if idle { LINES_IDLE } else { LINES_BUSY };
        let begun = Instant::now();
        let sealed = self.seal_some(shared, lines);
        let verified = if sealed < lines { self.verify_some(shared, lines - sealed) } else { 0 };
        let took = begun.elapsed();
        let pause = match (idle, sealed == lines) {
            (true, true) => took * REST_IDLE,
            (true, false) if sealed + verified == 0 => PAUSE_EMPTY,
            (true, false) => PAUSE,
            (false, true) => took * REST_SEAL,
            (false, false) => (took * REST_VERIFY).max(PAUSE),
        };
        self.next = Some(begun + took + pause);
    }

    /// Seals up to `lines` lines and returns how many.
    fn seal_some(&self, shared: &Shared, lines: usize) -> usize {
        let mut done = 0;
        for &(shard, _) in &self.shards {
            while done < lines {
                let before = done;
                let mut locked = shared.shard(shard);
                while done < lines && done - before < LINES_PER_LOCK {
                    let Some(found) = locked.next_unsealed() else { break };
                    make_seal(&shared.pool, shared.code, shard, &found.seal);
                    locked.inspected(&found, Verdict::Intact);
                    done += 1;
                }
                if done - before < LINES_PER_LOCK {
                    break;
                }
            }
        }
        done
    }

    /// Looks at up to `lines` sealed lines and returns how many.
    fn verify_some(&mut self, shared: &Shared, lines: usize) -> usize {
        let mut done = 0;
        let mut ended = 0;
        while done < lines && ended < self.shards.len() {
            let (shard, _) = self.shards[self.turn];
            let mut locked = shared.shard(shard);
            let walks = locked.patrol_counters().walks;
            let mut left = LINES_PER_LOCK.min(lines - done);
            while left > 0 {
                let Some(found) = locked.next_sealed() else { break };
                assert_eq!(found.work, Work::Verify);
                let sealed =
                    Seal { parity: found.seal.parity.filter(|_| !found.encode), ..found.seal };
                let verdict = look(&shared.pool, shared.code, shard, &sealed);
                if verdict == Verdict::Intact && found.seal.parity.is_some() {
                    // Its parity may be what was damaged.
                    make_seal(&shared.pool, shared.code, shard, &found.seal);
                }
                locked.inspected(&found, verdict);
                tell(shared, &locked, &found.seal, verdict);
                left -= 1;
                done += 1;
            }
            let walked = locked.patrol_counters().walks > walks;
            drop(locked);
            if walked {
                self.note_walk(shared);
            }
            if left > 0 {
                ended += 1;
                self.turn = (self.turn + 1) % self.shards.len();
            }
        }
        done
    }

    /// A shard's walk has come round.
    fn note_walk(&mut self, shared: &Shared) {
        let (shard, begun) = &mut self.shards[self.turn];
        let now = Instant::now();
        let ms = now.duration_since(*begun).as_millis() as u64;
        shared.walk_ms[*shard].store(ms.max(1), Ordering::Relaxed);
        *begun = now;
    }
}

/// A time for each shard, none yet.
pub(crate) fn no_walks(shards: usize) -> Vec<AtomicU64> {
    (0..shards).map(|_| AtomicU64::new(0)).collect()
}

#[cfg(test)]
pub(crate) mod tests;
