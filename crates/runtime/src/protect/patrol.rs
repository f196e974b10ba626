//! The patrol over the pool: seals lines that have changed, and verifies sealed ones (scrubbing).
//!
//! The shards choose the next line and handle the verdict (`engine/src/integrity/mod.rs`); this
//! module computes checksums and parity, and paces the work. Each worker patrols the shards that it
//! ticks, between two turns of its loop. So the patrol needs no thread, no worker waits for a lock
//! held by a low-priority thread, and requests are served first.
//!
//! **Pace.** A worker that has been idle for 2 ms seals and verifies in slices of 64 lines, about
//! 60 us. Sealing takes up to a quarter of its time; when everything is sealed, it verifies one
//! slice in 20 ms, which is 13 MB/s per worker. A busy worker spends at most a twentieth of its
//! time on sealing, 16 lines at once, and a hundredth on verifying. Gaps between a busy client's
//! batches do not count as idle time. While other programs wait for processors, an idle worker
//! works like a busy one. At the least share, it verifies a quarter as much as a busy one. A shard
//! is locked for four lines at a time.
//!
//! **Storage.** The checksums follow the line tables in the pool's file, four bytes per line;
//! parity lies in slots of the pool. The thread that computes them holds the shard's lock, or the
//! line is pinned by an operation that reads it, so no valid sector changes meanwhile.

use crate::pool::{MappedLines, Pool};
use crate::shared::{Ecc, Shared};
use forebay_ecc::{Code, LINE_PARITY_BYTES, Line, LineParity, Repair, seal, seed};
use forebay_engine::{
    IoAction, LineKey, PARITIES_PER_SLOT, ParityPlace, PatrolWork, Seal, SealVerdict, Shard, Slot,
};
use forebay_journal::NewestRecords;
use forebay_types::{ByteRange, LINE_BYTES, SECTOR_BYTES};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Lines handled per lock of a shard.
const LINES_PER_LOCK: usize = 4;
/// Lines of a slice on an idle and on a busy worker.
const LINES_IDLE: usize = 64;
const LINES_BUSY: usize = 16;
/// How long a worker counts as busy after its last request: longer than a client under load takes
/// to send the next one.
const IDLE_AFTER: Duration = Duration::from_millis(2);
/// The pause after a slice that verified, on an idle worker.
const PAUSE: Duration = Duration::from_millis(20);
/// The pause while the pool is empty.
const PAUSE_EMPTY: Duration = Duration::from_millis(500);
/// Pauses as multiples of the duration of a slice: after sealing on an idle worker, and after
/// sealing and after verifying on a busy one.
const REST_IDLE: u32 = 3;
const REST_SEAL: u32 = 19;
const REST_VERIFY: u32 = 99;

const _: () = assert!(LINES_BUSY * 4 == LINES_IDLE, "the reduced share is a quarter");
const _: () = assert!(PARITIES_PER_SLOT as usize * LINE_PARITY_BYTES <= LINE_BYTES as usize);

/// A snapshot of the patrol's counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PatrolStatus {
    /// The protection in use.
    pub ecc: Ecc,
    /// Lines sealed since the start.
    pub sealed_lines: u64,
    /// Sealed lines verified by the patrol since the start.
    pub verified_lines: u64,
    /// Bytes of lines that changed and are not sealed yet.
    pub unsealed_bytes: u64,
    /// Dirty bytes that have parity.
    pub parity_bytes: u64,
    /// Bytes of the pool that hold parity.
    pub parity_slot_bytes: u64,
    /// Completed walks over all shards that have something to verify.
    pub walks: u64,
    /// Milliseconds of the slowest shard's last walk.
    pub walk_ms: u64,
}

/// The place that goes into a line's checksum.
fn place_of(seal: &Seal) -> u64 {
    seed(u64::from(seal.key.volume().0), seal.key.offset() / SECTOR_BYTES)
}

fn parity_at(pool: &Pool, shard: usize, place: ParityPlace) -> *mut LineParity {
    assert!(place.index < PARITIES_PER_SLOT);
    let start = pool.line(shard, place.slot);
    start.wrapping_add(usize::from(place.index) * LINE_PARITY_BYTES).cast()
}

/// Whether a copy of a line matches the line's last seal.
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

/// Computes the checksum of a line, and its parity if the seal has a place for it. The caller holds
/// the shard's lock.
fn make_seal(pool: &Pool, code: Code, shard: usize, sealed: &Seal) {
    // SAFETY: the shard is locked and the line is not pinned, so nothing writes to it.
    let line = unsafe { &*pool.line(shard, sealed.slot).cast::<Line>() };
    let sum = seal(place_of(sealed), line, sealed.valid);
    pool.sum(shard, sealed.slot).store(sum, Ordering::Relaxed);
    if let Some(place) = sealed.parity {
        // SAFETY: the place is inside a slot that the shard uses for parity only. It belongs to
        // this line and is accessed only under the shard's lock. Any bytes are a valid value.
        let parity = unsafe { &mut *parity_at(pool, shard, place) };
        code.encode(line, parity);
    }
}

/// Verifies a sealed line, and corrects it if possible. The caller holds the shard's lock; or the
/// line is pinned by an operation that reads it, and `sealed` has no parity.
fn verify_line(pool: &Pool, code: Code, shard: usize, sealed: &Seal) -> SealVerdict {
    let address = pool.line(shard, sealed.slot).cast::<Line>();
    let expected = pool.sum(shard, sealed.slot).load(Ordering::Relaxed);
    // SAFETY: the caller ensures that no valid sector is written to, and only valid ones are used.
    // The kernel may read them at the same time.
    let line = unsafe { &*address };
    if seal(place_of(sealed), line, sealed.valid) == expected {
        return SealVerdict::Intact;
    }
    // SAFETY: as in `make_seal`; `sealed` has parity only if the shard is locked.
    let parity = sealed.parity.map(|place| unsafe { &*parity_at(pool, shard, place) });
    let mut corrected = *line;
    let place = place_of(sealed);
    match code.repair_sealed(&mut corrected, parity, sealed.valid, place, expected) {
        Repair::Intact => SealVerdict::Intact,
        Repair::Corrected => {
            let sum = seal(place, &corrected, sealed.valid);
            pool.sum(shard, sealed.slot).store(sum, Ordering::Relaxed);
            write_corrected(address, line, &corrected, sealed.valid);
            SealVerdict::Corrected
        }
        Repair::Lost { sectors } => SealVerdict::Lost { sectors },
    }
}

/// Overwrites the valid sectors that differ.
fn write_corrected(address: *mut Line, found: &Line, corrected: &Line, valid: u8) {
    let sector = SECTOR_BYTES as usize;
    for at in (0..8).filter(|at| valid & 1 << at != 0).map(|at| at * sector) {
        let right = &corrected[at..at + sector];
        if found[at..at + sector] != *right {
            // SAFETY: the sector is inside the line. Only the kernel may read it meanwhile, and
            // gets some of the wrong bytes or none.
            unsafe {
                let to = address.cast::<u8>().add(at);
                std::ptr::copy_nonoverlapping(right.as_ptr(), to, sector);
            }
        }
    }
}

/// Logs a verdict other than intact, and starts a restore from the journal if data is lost.
fn report(shared: &Shared, shard: &Shard<MappedLines>, seal: &Seal, verdict: SealVerdict) {
    let volume = shared.volume(seal.key.volume());
    let name = volume.as_ref().map_or("", |volume| &volume.name);
    let range = ByteRange::new(seal.key.offset(), LINE_BYTES);
    match verdict {
        SealVerdict::Intact => {}
        SealVerdict::Corrected => {
            tracing::warn!(volume = name, %range, "memory damaged: dirty line corrected");
        }
        SealVerdict::Lost { .. } if shard.slots().line(seal.key).lost() != 0 => {
            if let Some(used) = volume.as_ref().and_then(|volume| volume.journal.get()) {
                used.journal.regain(used.number, seal.key.volume());
            }
            tracing::error!(
                volume = name,
                %range,
                sectors = shard.slots().line(seal.key).lost().count_ones(),
                "memory damaged beyond repair: dirty sectors lost; they fail with EIO until they \
                 are written again, or given up with `forebay volume trust`"
            );
        }
        SealVerdict::Lost { .. } => {
            tracing::warn!(volume = name, %range, "memory damaged: clean line is read again");
        }
    }
}

/// Verifies a line that is about to be overwritten in part. `kept` are the sectors that stay. The
/// caller holds the shard's lock.
pub(crate) fn verify_before(
    shared: &Shared,
    shard: usize,
    locked: &mut Shard<MappedLines>,
    seal: &Seal,
    kept: u8,
) {
    let verdict = verify_line(&shared.pool, shared.code, shard, seal);
    if verdict != SealVerdict::Intact {
        locked.damaged_before(seal, kept, verdict);
        report(shared, locked, seal, verdict);
    }
}

/// Verifies, and if necessary corrects, the lines of a destage. Returns whether all are intact now,
/// so that the write may be submitted. The caller does not hold the shard's lock.
pub(crate) fn verify_destage(shared: &Shared, shard: usize, io: &IoAction) -> bool {
    let mut good = true;
    for seal in &io.seals {
        // Parity may be read only under the lock.
        let without_parity = Seal { parity: None, ..*seal };
        if verify_line(&shared.pool, shared.code, shard, &without_parity) == SealVerdict::Intact {
            continue;
        }
        let mut locked = shared.shard(shard);
        let Some(sealed) = locked.seal_of(seal.slot) else {
            // Another piece of this write has found the damage, or the line was relocated and
            // verified meanwhile.
            good = false;
            continue;
        };
        let verdict = verify_locked(shared, shard, &mut locked, &sealed);
        good &= !matches!(verdict, SealVerdict::Lost { .. });
    }
    good
}

/// Verifies a line under its shard's lock, corrects it if possible, and notifies the shard. Called
/// before dirty data is copied elsewhere: lost sectors do not count as dirty from then on.
pub(crate) fn verify_locked(
    shared: &Shared,
    shard: usize,
    locked: &mut Shard<MappedLines>,
    sealed: &Seal,
) -> SealVerdict {
    let verdict = verify_line(&shared.pool, shared.code, shard, sealed);
    if verdict != SealVerdict::Intact {
        locked.damaged(sealed, verdict);
        report(shared, locked, sealed, verdict);
    }
    verdict
}

/// Restores the given sectors of a line that are still lost from `bytes`, which are those of the
/// newest records. The caller holds the shard's lock. Returns false if the line is in use.
pub(crate) fn restore_sectors(
    shared: &Shared,
    number: usize,
    shard: &mut Shard<MappedLines>,
    key: LineKey,
    bytes: &[u8],
    sectors: u8,
    _: NewestRecords,
) -> bool {
    assert_eq!(bytes.len() as u64, LINE_BYTES, "the sectors are at their places");
    let sectors = sectors & shard.slots().line(key).lost();
    if sectors == 0 {
        return true;
    }
    let Some(slot) = shard.idle_slot_of(key) else { return false };
    if let Some(sealed) = shard.seal_of(slot) {
        // The new seal will cover the rest of the line, too, so that has to be intact.
        verify_locked(shared, number, shard, &sealed);
    }
    let sector_bytes = SECTOR_BYTES as usize;
    for at in (0..8).filter(|at| sectors & 1 << at != 0).map(|at| at * sector_bytes) {
        // SAFETY: the sector is inside a line whose shard is locked. It is not valid and the line
        // is not pinned, so nothing else reads or writes it.
        unsafe {
            let to = shared.pool.line(number, slot).add(at);
            std::ptr::copy_nonoverlapping(bytes[at..at + sector_bytes].as_ptr(), to, sector_bytes);
        }
    }
    shard.regained(key, sectors);
    let volume = shared.volume(key.volume());
    tracing::warn!(
        volume = volume.as_ref().map_or("", |volume| &volume.name),
        range = %ByteRange::new(key.offset(), LINE_BYTES),
        sectors = sectors.count_ones(),
        "lost sectors restored from the journal"
    );
    true
}

/// One worker's patrol.
pub(crate) struct Patrol {
    /// The worker's shards, and when their walks began.
    shards: Vec<(usize, Instant)>,
    /// The index of the next shard to verify.
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

    /// When the next slice is due.
    pub(crate) const fn next(&self) -> Option<Instant> {
        self.next
    }

    /// Whether the worker counts as idle. `idle` says that it has no other work in this turn.
    fn is_idle(&mut self, idle: bool, now: Instant) -> bool {
        if !idle {
            self.busy_until = now + IDLE_AFTER;
        }
        now >= self.busy_until
    }

    /// Runs a slice if it is due. `idle` says that the worker has no other work in this turn.
    pub(crate) fn poll(&mut self, shared: &Shared, idle: bool, now: Instant) {
        let idle = self.is_idle(idle, now);
        if self.next.is_none_or(|next| next > now) {
            return;
        }
        let share = shared.background.processors();
        let idle = idle && share.is_full();
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
            // A quarter of the lines of an idle worker, and less at the least share.
            (false, false) => (took * REST_VERIFY).max(PAUSE) * (share.divisor() / 4).max(1),
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
                    locked.inspected(&found, SealVerdict::Intact);
                    done += 1;
                }
                if done - before < LINES_PER_LOCK {
                    break;
                }
            }
        }
        done
    }

    /// Verifies up to `lines` sealed lines and returns how many.
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
                assert_eq!(found.work, PatrolWork::Verify);
                let sealed =
                    Seal { parity: found.seal.parity.filter(|_| !found.encode), ..found.seal };
                let verdict = verify_line(&shared.pool, shared.code, shard, &sealed);
                if verdict == SealVerdict::Intact && found.seal.parity.is_some() {
                    // The line is intact, but its parity may be damaged.
                    make_seal(&shared.pool, shared.code, shard, &found.seal);
                }
                locked.inspected(&found, verdict);
                report(shared, &locked, &found.seal, verdict);
                left -= 1;
                done += 1;
            }
            let walked = locked.patrol_counters().walks > walks;
            drop(locked);
            if walked {
                self.complete_walk(shared);
            }
            if left > 0 {
                ended += 1;
                self.turn = (self.turn + 1) % self.shards.len();
            }
        }
        done
    }

    /// Records the duration of the current shard's walk, and starts the next one.
    fn complete_walk(&mut self, shared: &Shared) {
        let (shard, begun) = &mut self.shards[self.turn];
        let now = Instant::now();
        let ms = now.duration_since(*begun).as_millis() as u64;
        shared.walk_ms[*shard].store(ms.max(1), Ordering::Relaxed);
        *begun = now;
    }
}

/// The durations of the last walks, one per shard, all unknown.
pub(crate) fn no_walks(shards: usize) -> Vec<AtomicU64> {
    (0..shards).map(|_| AtomicU64::new(0)).collect()
}

#[cfg(test)]
mod tests;
