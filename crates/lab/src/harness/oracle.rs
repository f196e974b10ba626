//! What each sector may hold: the dumb second opinion.
//!
//! A sector's content is a stamp of eight bytes that names the volume, the sector and the write it
//! came from, so that data in the wrong place shows itself. For each sector the oracle keeps the
//! writes that can still be seen, each with the interval from its submission to its answer. Time
//! is a counter that moves with every submission and every answer.
//!
//! A write can be seen by a read unless another write, answered well before the read began, was
//! submitted after the first one had ended. A write that failed may have been done or not, and so
//! takes nobody's place. After a crash the same rule holds with "answered well" replaced by what
//! the answer promised: on the disk (write-through), or on stable storage (flush, FUA).

use forebay_volume::RequestKind;
use std::hash::{Hash, Hasher};

/// What is never written: memory that nobody has filled.
pub(crate) const POISON: u64 = u64::MAX;
/// What a zeroed sector holds.
pub(crate) const ZERO: u64 = 0;
/// A moment that has not come.
const NEVER: u32 = u32::MAX;
/// Writes of a sector kept before those are looked for that nobody can see any more.
const PRUNE_AT: usize = 12;

/// The content that write number `version` of a volume gives a sector; version 0 is what was
/// there at the beginning.
pub(crate) const fn stamp(volume: u16, sector: u64, version: u32) -> u64 {
    (volume as u64 + 1) << 60 | sector << 32 | version as u64
}

/// Whether the stamp is of this sector and of a write that has been submitted.
pub(crate) const fn belongs(stamp_found: u64, volume: u16, sector: u64, issued: u32) -> bool {
    let version = stamp_found as u32;
    stamp_found == stamp(volume, sector, version) && version <= issued
}

/// A stamp for people.
pub(crate) fn show(stamp: u64) -> String {
    match stamp {
        POISON => "memory nobody has filled".into(),
        ZERO => "zeroes".into(),
        _ => format!(
            "write {} of sector {} of volume {}",
            stamp as u32,
            stamp >> 32 & 0xfff_ffff,
            (stamp >> 60) as i32 - 1
        ),
    }
}

/// What the answer to a write promised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Promise {
    /// That reads see it.
    Seen,
    /// That it outlives the process.
    OnDisk,
    /// That it outlives the power as long as a UPS bridges the failure until a vault has it.
    Kept,
    /// That it outlives the power.
    Stable,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    Write,
    /// A trim: anything that ever was there, or zeroes.
    Wild,
    /// What a read saw where several contents were possible: from then on, only that is.
    Observed,
}

/// A write that can be seen.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    stamp: u64,
    submitted: u32,
    ended: u32,
    source: Source,
    /// `None` unless it was answered well.
    promise: Option<Promise>,
}

/// One sector.
#[derive(Clone, Debug)]
struct Sector {
    /// What was there before all candidates.
    base: u64,
    candidates: Vec<Candidate>,
}

/// The contents that the sectors of one volume may have.
#[derive(Debug)]
pub(crate) struct Oracle {
    volume: u16,
    sectors: Vec<Sector>,
    /// The last version given to a write.
    issued: u32,
    /// Writes that ended before this moment are on stable storage: a flush submitted then has
    /// been answered well.
    flushed: u32,
    /// The same with [`Promise::Kept`] in the place of stable storage.
    kept: u32,
    /// Whether what a read saw of a trim or of a write that failed outlives a crash like a write
    /// does. A journal brings back what was acknowledged before.
    observed_lasts: bool,
}

impl Promise {
    /// What a good answer to a change promises of a volume in write-back; `journaled` if it has a
    /// journal, `each_write` if this keeps each write before its answer.
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

/// How much survives a crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Crash {
    /// The process is gone, its disk is not.
    Process,
    /// The disk's volatile cache is gone too.
    Power,
    /// The same, after a UPS gave a vault the time to save what was dirty.
    Saved,
}

impl Oracle {
    pub(crate) fn new(volume: u16, sectors: u64, observed_lasts: bool) -> Self {
        let sector = |at| Sector { base: stamp(volume, at, 0), candidates: Vec::new() };
        let sectors = (0..sectors).map(sector).collect();
        Self { volume, sectors, issued: 0, flushed: 0, kept: 0, observed_lasts }
    }

    /// The version for the next write.
    const fn issue(&mut self) -> u32 {
        self.issued += 1;
        self.issued
    }

    /// Goes on with the versions of another oracle, whose writes this one is told of no more.
    pub(crate) const fn reissue(&mut self, other: &Self) {
        self.issued = other.issued;
    }

    /// Whether a client ever wanted this content in this sector. Zeroes are written where what was
    /// lost in the pool comes back from the journal.
    pub(crate) fn was_written(&self, sector: u64, found: u64) -> bool {
        let state = &self.sectors[sector as usize];
        let is_zeroed = || state.candidates.iter().any(|c| c.stamp == ZERO) || state.base == ZERO;
        belongs(found, self.volume, sector, self.issued) || found == ZERO && is_zeroed()
    }

    /// A request is submitted that may change these sectors. `oldest_read` is when the oldest read
    /// in flight was. Returns the version of what it writes.
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
                RequestKind::Trim { .. } => (ZERO, Source::Wild),
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

    /// The write or trim of these sectors, submitted at `submitted`, has ended, well if there is a
    /// promise.
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
            let candidate = candidate.expect("a write that has not ended is a candidate");
            candidate.ended = now;
            candidate.promise = promise;
        }
    }

    /// A flush submitted at `submitted` was answered well.
    pub(crate) const fn flush(&mut self, submitted: u32) {
        if submitted > self.flushed {
            self.flushed = submitted;
        }
    }

    /// A flush submitted at `submitted` was answered well from what a UPS keeps.
    pub(crate) const fn flush_kept(&mut self, submitted: u32) {
        if submitted > self.kept {
            self.kept = submitted;
        }
    }

    /// Whether a read submitted at `submitted` may see `found`; it remembers what was seen.
    pub(crate) fn read(&mut self, sector: u64, found: u64, submitted: u32) -> bool {
        let (volume, issued) = (self.volume, self.issued);
        let state = &mut self.sectors[sector as usize];
        if state.candidates.is_empty() {
            return found == state.base;
        }
        let replaces = |c: &Candidate| c.promise.is_some() && c.ended < submitted;
        let known = found == ZERO || belongs(found, volume, sector, issued);
        if !state.allows(found, known, replaces) {
            return false;
        }
        state.observe(found, submitted, replaces);
        true
    }

    /// Whether the disk may hold `found` after a crash.
    pub(crate) fn crash(&self, sector: u64, found: u64, crash: Crash) -> bool {
        let (volume, issued) = (self.volume, self.issued);
        let observed_lasts = self.observed_lasts;
        let state = &self.sectors[sector as usize];
        if state.candidates.is_empty() {
            return found == state.base;
        }
        let (least, flushed) = match crash {
            Crash::Process => (Promise::OnDisk, self.flushed.max(self.kept)),
            Crash::Saved => (Promise::Kept, self.flushed.max(self.kept)),
            Crash::Power => (Promise::Stable, self.flushed),
        };
        let replaces =
            |c: &Candidate| c.promise.is_some_and(|promise| promise >= least || c.ended < flushed);
        let lasts = |c: &Candidate| observed_lasts || c.source != Source::Observed;
        let replaces = |c: &Candidate| replaces(c) && lasts(c);
        let known = found == ZERO || belongs(found, volume, sector, issued);
        state.allows(found, known, replaces)
    }

    /// Everything that [`Oracle::crash`] answers, for every sector and every content that it could
    /// ever have had; of others it says no.
    pub(crate) fn hash_crash(&self, crash: Crash, hasher: &mut impl Hasher) {
        self.issued.hash(hasher);
        for at in 0..self.sectors.len() as u64 {
            self.sectors[at as usize].base.hash(hasher);
            let known = (0..=self.issued).map(|version| stamp(self.volume, at, version));
            for content in known.chain([ZERO]) {
                self.crash(at, content, crash).hash(hasher);
            }
        }
    }

    /// The sector holds `found` for certain, and nothing is under way: it starts again from there.
    pub(crate) fn restart(&mut self, sector: u64, found: u64) {
        let state = &mut self.sectors[sector as usize];
        state.base = found;
        state.candidates.clear();
    }

    /// The first of these sectors whose content is not right, and what it is and may be.
    pub(crate) fn first_wrong(
        &mut self,
        contents: impl IntoIterator<Item = (u64, u64)>,
        mut is_right: impl FnMut(&mut Self, u64, u64) -> bool,
    ) -> Option<(u64, String)> {
        let wrong = contents.into_iter().find(|&(at, found)| !is_right(self, at, found));
        wrong.map(|(sector, found)| (sector, self.explain(sector, found)))
    }

    /// What a sector is that should be something else, for a message.
    pub(crate) fn explain(&self, sector: u64, found: u64) -> String {
        format!("is {}; it may be\n    {}", show(found), self.describe(sector))
    }

    /// The contents that would be right, for a message.
    pub(crate) fn describe(&self, sector: u64) -> String {
        let state = &self.sectors[sector as usize];
        let mut text = format!("before all else {}", show(state.base));
        for c in &state.candidates {
            let what = match c.source {
                Source::Write => show(c.stamp),
                Source::Wild => "a trim".into(),
                Source::Observed => format!("{} as read", show(c.stamp)),
            };
            let end = match (c.ended, c.promise) {
                (NEVER, _) => "under way".into(),
                (at, None) => format!("failed at {at}"),
                (at, Some(promise)) => format!("acknowledged at {at}, {promise:?}"),
            };
            text += &format!("\n    {what}, submitted at {}, {end}", c.submitted);
        }
        text + &format!("\n    flushed up to {}", self.flushed)
    }
}

impl Sector {
    /// Whether `found` is the content of a candidate that none of those that `replaces` names has
    /// taken the place of. `known` says that the content could ever have been there.
    fn allows(&self, found: u64, known: bool, replaces: impl Fn(&Candidate) -> bool) -> bool {
        // Newest first: that is the one that is nearly always found.
        for (at, candidate) in self.candidates.iter().enumerate().rev() {
            let matches = match candidate.source {
                Source::Wild => known,
                _ => candidate.stamp == found,
            };
            // Candidates stand in the order of submission, so whoever comes later stands behind.
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

    /// Where nothing was under way during a read and several contents were possible, the one that
    /// was seen is the only one from now on.
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
            c.source == Source::Wild
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

    /// Forgets candidates that neither a read in flight nor a crash can bring back.
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
