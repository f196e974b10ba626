//! The oracle: a simple, independent model of the permitted content of each sector.
//!
//! The content of a sector is a stamp of eight bytes that names the volume, the sector and the
//! write it came from, so that misplaced data is detected. For each sector the oracle keeps the
//! writes that may still be visible, each with the interval from its submission to its answer. Time
//! is a counter that advances with every submission and every answer.
//!
//! A read may see a write unless another write, acknowledged before the read began, was submitted
//! after the first one had ended. A write that failed may or may not have been done, and therefore
//! replaces no other. After a crash the same rule applies, with "acknowledged" replaced by the
//! guarantee of the acknowledgement: on the disk (write-through), or on stable storage (flush,
//! FUA).

use forebay_volume::RequestKind;
use std::hash::{Hash, Hasher};

/// The content of memory that has not been filled; it is never written.
pub(crate) const POISON: u64 = u64::MAX;
/// The content of a zeroed sector.
pub(crate) const ZERO: u64 = 0;
/// The end of a write in flight.
const NEVER: u32 = u32::MAX;
/// The number of candidates at which a sector is pruned before another is added.
const PRUNE_AT: usize = 12;

/// The content of a sector after write number `version` of a volume; version 0 is the initial
/// content.
pub(crate) const fn stamp(volume: u16, sector: u64, version: u32) -> u64 {
    (volume as u64 + 1) << 60 | sector << 32 | version as u64
}

/// Whether the stamp belongs to this sector and to a write that has been submitted.
pub(crate) const fn is_stamp_of(stamp_found: u64, volume: u16, sector: u64, issued: u32) -> bool {
    let version = stamp_found as u32;
    stamp_found == stamp(volume, sector, version) && version <= issued
}

pub(crate) fn describe_stamp(stamp: u64) -> String {
    match stamp {
        POISON => "memory that was not filled".into(),
        ZERO => "zeroes".into(),
        _ => format!(
            "write {} of sector {} of volume {}",
            stamp as u32,
            stamp >> 32 & 0xfff_ffff,
            (stamp >> 60) as i32 - 1
        ),
    }
}

/// Whether a client's request changes sectors.
pub(crate) const fn is_change(kind: RequestKind) -> bool {
    matches!(kind, RequestKind::Write { .. } | RequestKind::Trim { .. } | RequestKind::Zero { .. })
}

/// What the acknowledgement of a write guarantees, in ascending order of strength.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Promise {
    /// Reads see the write.
    Seen,
    /// The write survives the process.
    OnDisk,
    /// The write survives a power failure that a UPS bridges until a vault has the data.
    Kept,
    /// The write survives a power failure.
    Stable,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    Write,
    /// A trim: any earlier content, or zeroes.
    Trim,
    /// The content that a read saw while several were possible; later reads must see the same.
    Observed,
}

/// A write that may be visible.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    stamp: u64,
    submitted: u32,
    ended: u32,
    source: Source,
    /// `None` unless the write was acknowledged.
    promise: Option<Promise>,
}

#[derive(Clone, Debug)]
struct Sector {
    /// The content before all candidates.
    base: u64,
    candidates: Vec<Candidate>,
}

/// The permitted contents of the sectors of one volume.
#[derive(Debug)]
pub(crate) struct Oracle {
    volume: u16,
    sectors: Vec<Sector>,
    /// The version of the last write.
    issued: u32,
    /// Writes that ended before this moment are on stable storage: a flush submitted at this moment
    /// was acknowledged.
    flushed: u32,
    /// The same for the guarantee [`Promise::Kept`].
    kept: u32,
    /// Whether a crash keeps the content that a read saw while several were possible. If not, any
    /// of the possible contents is permitted after a crash: a journal or a vault restores the last
    /// acknowledged write, whatever a failed later one left on the disk.
    observed_survives: bool,
}

impl Promise {
    /// The guarantee of an acknowledged change in a write-back volume: `journaled` if the volume
    /// has a journal, `each_write` if the journal keeps each write before its acknowledgement.
    pub(crate) const fn of(kind: RequestKind, journaled: bool, each_write: bool) -> Self {
        match kind {
            RequestKind::Trim { .. } | RequestKind::Zero { .. } if journaled => Self::Stable,
            RequestKind::Write { .. } if each_write => Self::Stable,
            RequestKind::Write { fua: true }
            | RequestKind::Trim { fua: true }
            | RequestKind::Zero { fua: true, .. } => Self::Stable,
            RequestKind::Write { .. } => Self::Seen,
            _ => Self::OnDisk,
        }
    }
}

/// What is lost in a crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Crash {
    /// The process is lost; its pool and the disk are not.
    Kill,
    /// The process and its pool are lost, the disk is not.
    Process,
    /// The disk's volatile cache is lost, too.
    Power,
    /// The same, after a UPS has bridged the dump of dirty data to a vault.
    Saved,
}

impl Oracle {
    pub(crate) fn new(volume: u16, sectors: u64, observed_survives: bool) -> Self {
        let sector = |at| Sector { base: stamp(volume, at, 0), candidates: Vec::new() };
        let sectors = (0..sectors).map(sector).collect();
        Self { volume, sectors, issued: 0, flushed: 0, kept: 0, observed_survives }
    }

    const fn issue(&mut self) -> u32 {
        self.issued += 1;
        self.issued
    }

    /// Continues the version numbers of another oracle, without its writes.
    pub(crate) const fn continue_from(&mut self, other: &Self) {
        self.issued = other.issued;
    }

    /// Whether a client may have written this content to this sector. Zeroes count if the sector
    /// has been zeroed or trimmed, or was zero at the last start: then the journal may restore
    /// zeroes to a sector that was lost in the pool.
    pub(crate) fn was_written(&self, sector: u64, found: u64) -> bool {
        let state = &self.sectors[sector as usize];
        let is_zeroed = || state.candidates.iter().any(|c| c.stamp == ZERO) || state.base == ZERO;
        is_stamp_of(found, self.volume, sector, self.issued) || found == ZERO && is_zeroed()
    }

    /// Records the submission of a request that may change these sectors. `oldest_read` is the
    /// submission of the oldest read in flight. Returns the version of the request's content.
    pub(crate) fn submit(
        &mut self,
        kind: RequestKind,
        sectors: impl IntoIterator<Item = u64>,
        now: u32,
        oldest_read: u32,
    ) -> u32 {
        let version = if matches!(kind, RequestKind::Write { .. }) { self.issue() } else { 0 };
        for sector in sectors {
            let (stamp, source) = match kind {
                RequestKind::Write { .. } => (stamp(self.volume, sector, version), Source::Write),
                RequestKind::Zero { .. } => (ZERO, Source::Write),
                RequestKind::Trim { .. } => (ZERO, Source::Trim),
                _ => break,
            };
            self.push(sector, stamp, source, now, oldest_read);
        }
        version
    }

    fn push(&mut self, sector: u64, stamp: u64, source: Source, now: u32, oldest_read: u32) {
        let flushed = self.flushed;
        let state = &mut self.sectors[sector as usize];
        if state.candidates.len() >= PRUNE_AT {
            state.prune(flushed, oldest_read);
        }
        let promise = None;
        state.candidates.push(Candidate { stamp, submitted: now, ended: NEVER, source, promise });
    }

    /// Records the end of a change of these sectors that was submitted at `submitted`; it succeeded
    /// if there is a promise.
    pub(crate) fn end(
        &mut self,
        sectors: impl IntoIterator<Item = u64>,
        submitted: u32,
        now: u32,
        promise: Option<Promise>,
    ) {
        for sector in sectors {
            let mut open = self.sectors[sector as usize].candidates.iter_mut().rev();
            let candidate = open.find(|c| c.submitted == submitted && c.source != Source::Observed);
            let candidate = candidate.expect("a write in flight is a candidate");
            candidate.ended = now;
            candidate.promise = promise;
        }
    }

    /// Records the acknowledgement of a flush submitted at `submitted`.
    pub(crate) const fn flush(&mut self, submitted: u32) {
        if submitted > self.flushed {
            self.flushed = submitted;
        }
    }

    /// Records the acknowledgement of a flush submitted at `submitted` that a UPS protects.
    pub(crate) const fn flush_kept(&mut self, submitted: u32) {
        if submitted > self.kept {
            self.kept = submitted;
        }
    }

    /// Whether a read submitted at `submitted` may return `found`; if so, records the observation.
    pub(crate) fn check_read(&mut self, sector: u64, found: u64, submitted: u32) -> bool {
        let (volume, issued) = (self.volume, self.issued);
        let state = &mut self.sectors[sector as usize];
        if state.candidates.is_empty() {
            return found == state.base;
        }
        let replaces = |c: &Candidate| c.promise.is_some() && c.ended < submitted;
        let known = found == ZERO || is_stamp_of(found, volume, sector, issued);
        if !state.allows(found, known, replaces) {
            return false;
        }
        state.observe(found, submitted, replaces);
        true
    }

    /// As [`Self::check_read`], without recording the observation.
    pub(crate) fn permits_read(&self, sector: u64, found: u64, submitted: u32) -> bool {
        let (volume, issued) = (self.volume, self.issued);
        let state = &self.sectors[sector as usize];
        if state.candidates.is_empty() {
            return found == state.base;
        }
        let known = found == ZERO || is_stamp_of(found, volume, sector, issued);
        state.allows(found, known, |c| c.promise.is_some() && c.ended < submitted)
    }

    /// Whether this content is that of a write in flight.
    pub(crate) fn is_in_flight(&self, sector: u64, found: u64) -> bool {
        let candidates = &self.sectors[sector as usize].candidates;
        candidates.iter().any(|c| c.stamp == found && c.ended == NEVER)
    }

    /// Forgets what reads saw in a sector while several contents were possible. Returns the last.
    pub(crate) fn forget_observed(&mut self, sector: u64) -> Option<u64> {
        let candidates = &mut self.sectors[sector as usize].candidates;
        let seen = candidates.extract_if(.., |it| it.source == Source::Observed);
        seen.last().map(|it| it.stamp)
    }

    /// Fixes the content of a sector, unless a write to it is in flight.
    pub(crate) fn settle(&mut self, sector: u64, found: u64) {
        if self.sectors[sector as usize].candidates.iter().all(|c| c.ended != NEVER) {
            self.restart(sector, found);
        }
    }

    /// Whether the sector may hold `found` after a crash.
    pub(crate) fn check_crash(&self, sector: u64, found: u64, crash: Crash) -> bool {
        let (volume, issued) = (self.volume, self.issued);
        let observed_survives = self.observed_survives;
        let state = &self.sectors[sector as usize];
        if state.candidates.is_empty() {
            return found == state.base;
        }
        let (least, flushed) = match crash {
            Crash::Kill => (Promise::Seen, self.flushed.max(self.kept)),
            Crash::Process => (Promise::OnDisk, self.flushed.max(self.kept)),
            Crash::Saved => (Promise::Kept, self.flushed.max(self.kept)),
            Crash::Power => (Promise::Stable, self.flushed),
        };
        let replaces =
            |c: &Candidate| c.promise.is_some_and(|promise| promise >= least || c.ended < flushed);
        let survives = |c: &Candidate| observed_survives || c.source != Source::Observed;
        let replaces = |c: &Candidate| replaces(c) && survives(c);
        let known = found == ZERO || is_stamp_of(found, volume, sector, issued);
        state.allows(found, known, replaces)
    }

    /// Hashes the answers of [`Oracle::check_crash`] for every sector and every content that the
    /// sector ever had; for all other contents the answer is no.
    pub(crate) fn hash_crash(&self, crash: Crash, hasher: &mut impl Hasher) {
        self.issued.hash(hasher);
        for at in 0..self.sectors.len() as u64 {
            self.sectors[at as usize].base.hash(hasher);
            let known = (0..=self.issued).map(|version| stamp(self.volume, at, version));
            for content in known.chain([ZERO]) {
                self.check_crash(at, content, crash).hash(hasher);
            }
        }
    }

    /// Sets the content of a sector, without any write in flight.
    pub(crate) fn restart(&mut self, sector: u64, found: u64) {
        let state = &mut self.sectors[sector as usize];
        state.base = found;
        state.candidates.clear();
    }

    /// The first of these sectors with wrong content, and a description.
    pub(crate) fn first_mismatch(
        &mut self,
        contents: impl IntoIterator<Item = (u64, u64)>,
        mut is_right: impl FnMut(&mut Self, u64, u64) -> bool,
    ) -> Option<(u64, String)> {
        let wrong = contents.into_iter().find(|&(at, found)| !is_right(self, at, found));
        wrong.map(|(sector, found)| (sector, self.explain(sector, found)))
    }

    pub(crate) fn explain(&self, sector: u64, found: u64) -> String {
        format!("is {}; permitted are\n    {}", describe_stamp(found), self.describe(sector))
    }

    /// Forgets the observations of reads of a sector since the moment `since`: no client made these
    /// reads.
    pub(crate) fn forget_seen(&mut self, sector: u64, since: u32) {
        let candidates = &mut self.sectors[sector as usize].candidates;
        candidates.retain(|c| c.source != Source::Observed || c.submitted < since);
    }

    pub(crate) fn describe(&self, sector: u64) -> String {
        let state = &self.sectors[sector as usize];
        let mut text = format!("initially {}", describe_stamp(state.base));
        for c in &state.candidates {
            let what = match c.source {
                Source::Write => describe_stamp(c.stamp),
                Source::Trim => "a trim".into(),
                Source::Observed => format!("{} as read", describe_stamp(c.stamp)),
            };
            let end = match (c.ended, c.promise) {
                (NEVER, _) => "in flight".into(),
                (at, None) => format!("failed at {at}"),
                (at, Some(promise)) => format!("acknowledged at {at}, {promise:?}"),
            };
            text += &format!("\n    {what}, submitted at {}, {end}", c.submitted);
        }
        text + &format!("\n    flushed up to {}", self.flushed)
    }
}

impl Sector {
    /// Whether `found` is the content of a candidate that no later candidate accepted by `replaces`
    /// has replaced. `known` says whether the sector may ever have had this content; that suffices
    /// after a trim.
    fn allows(&self, found: u64, known: bool, replaces: impl Fn(&Candidate) -> bool) -> bool {
        // Newest first: it is nearly always the match.
        for (at, candidate) in self.candidates.iter().enumerate().rev() {
            let matches = match candidate.source {
                Source::Trim => known,
                _ => candidate.stamp == found,
            };
            // Candidates are in the order of submission, so all later ones follow.
            let replaced = || {
                let later = &self.candidates[at + 1..];
                later.iter().any(|c| c.submitted > candidate.ended && replaces(c))
            };
            if matches && !replaced() {
                return true;
            }
        }
        found == self.base && !self.candidates.iter().any(replaces)
    }

    /// If no write was in flight during a read and several contents were possible, later reads must
    /// see the same content.
    fn observe(&mut self, found: u64, submitted: u32, replaces: impl Fn(&Candidate) -> bool) {
        let quiet = self.candidates.iter().all(|c| c.ended < submitted);
        let last = self.candidates.last().expect("there are candidates");
        if !quiet || last.source == Source::Observed {
            return;
        }
        let newest_alone = last.promise.is_some()
            && last.stamp == found
            && last.source == Source::Write
            && self.candidates.iter().rev().skip(1).all(|c| c.ended < last.submitted);
        let trimmed = self.candidates.iter().enumerate().any(|(at, c)| {
            c.source == Source::Trim
                && !self.candidates[at + 1..].iter().any(|d| d.submitted > c.ended && replaces(d))
        });
        if newest_alone || trimmed {
            return;
        }
        self.candidates.push(Candidate {
            stamp: found,
            submitted,
            ended: submitted,
            source: Source::Observed,
            promise: Some(Promise::Seen),
        });
    }

    /// Removes candidates that are invisible to all reads in flight and after any crash.
    fn prune(&mut self, flushed: u32, oldest_read: u32) {
        let newest = self.candidates.iter().rev().find(|c| {
            c.source == Source::Write
                && c.ended < oldest_read
                && c.promise.is_some_and(|promise| promise == Promise::Stable || c.ended < flushed)
        });
        if let Some(&newest) = newest {
            self.candidates.retain(|c| c.ended >= newest.submitted);
        }
    }
}

#[cfg(test)]
mod tests;
