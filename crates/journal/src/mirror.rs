//! A log that lies on two devices: which of them counts, and what the other one lacks.
//!
//! Both are read. A device **counts** when it is among the members that the newest superblock
//! lists; the log goes on as far as any device that counts has it, and where the batch of one is
//! damaged, the other's stands in. A device that does not count is stale and is written anew,
//! whatever it holds; it is a member again after that, under a new number.
//!
//! One device **alone** may be older than the one that is missing. It is believed only if the
//! record outside of the journal lists it: that record is changed before anything is acknowledged
//! without a device (see [`crate::Log`]). Whoever is alone at a start goes on under a new number,
//! so that no list made before speaks for what comes after.
//!
//! Whoever opens a journal carries out [`Recovered::steps`] in their order, and may die at any.

use crate::log::{encode_for_members, targets_of};
use crate::recover::{Found, ReadAt, RecoverError, walk};
use forebay_format::journal::{
    JournalId, LogKind, MEMBERS_MAX, Members, SUPERBLOCK_BYTES, Superblock, SuperblockInvalid,
};

/// A device that may hold a log.
pub struct Half<'a> {
    /// Reads it.
    pub device: &'a mut dyn ReadAt,
    /// Its size.
    pub size_bytes: u64,
}

/// What a device shows where the superblocks are.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Seen {
    /// There is no such device, or it can't be read.
    Missing,
    /// Zeroes: it waits to become a member.
    Blank,
    /// A superblock that can't be used; what was there is not known.
    Broken,
    Journal(Box<Superblock>),
}

/// Who counts.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Choice {
    /// The newest.
    superblock: Box<Superblock>,
    counts: [bool; MEMBERS_MAX],
    /// The members from now on; all zero in a journal that has no mirror and never had one.
    numbers: [u64; MEMBERS_MAX],
}

/// What two devices hold of a log.
#[derive(Debug)]
pub struct Recovered {
    /// What the journal holds. Its members are those that count now.
    pub found: Found,
    /// The device that is to become a member, by its index.
    joins: Option<usize>,
    counts: [bool; MEMBERS_MAX],
    /// The list on the devices is not the one of `found`.
    is_new_list: bool,
    /// The numbers, on the devices, of those that count.
    was: Vec<u64>,
    /// A device that counts and has an older superblock.
    late: Option<usize>,
    /// Batches that a device which counts lacks.
    lags: Vec<Copy>,
    /// Where the log lies: position and length, in order.
    extents: Vec<(u64, u64)>,
}

/// Bytes that one device has and another is to get, at the same place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Copy {
    /// The index of the device that has them.
    pub from: usize,
    /// The index of the device that lacks them.
    pub to: usize,
    /// Where, in bytes; whole blocks.
    pub position: u64,
    /// How many; whole blocks.
    pub len: u64,
}

/// What has to be done before a log is used, each step durable before the next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Put on record, outside of the journal, that these members hold everything.
    Record(Vec<u64>),
    /// Write a superblock.
    Write {
        /// The index of the device.
        to: usize,
        /// Where, in bytes.
        position: u64,
        /// What.
        bytes: Vec<u8>,
    },
    /// Copy a piece of the log.
    Copy(Copy),
}

/// What two devices hold of a journal, if they hold one.
///
/// `drawn` are numbers that nobody has had, and `is_on_record` says whether a member is known,
/// outside of the journal, to hold everything. With `accept_loss` a device that is alone is
/// believed without that.
///
/// `Ok(None)` when both are there and blank: a journal may be made.
///
/// # Errors
/// When no device can be relied on, or they hold things that do not belong together.
pub fn recover_mirrored(
    mut halves: [Option<Half<'_>>; MEMBERS_MAX],
    drawn: [u64; MEMBERS_MAX],
    is_on_record: &dyn Fn(JournalId, u64) -> bool,
    accept_loss: bool,
) -> Result<Option<Recovered>, RecoverError> {
    let mut seen = [Seen::Missing, Seen::Missing];
    let on = |device, error| RecoverError::On { device, error: Box::new(error) };
    for (at, (seen, half)) in seen.iter_mut().zip(&mut halves).enumerate() {
        let looked = half.as_mut().map_or(Ok(Seen::Missing), look);
        *seen = looked.map_err(|error| on(at, error))?;
    }
    let sequences = seen.each_ref().map(|seen| match seen {
        Seen::Journal(superblock) => Some(superblock.sequence),
        _ => None,
    });
    let is_there = seen.each_ref().map(|seen| *seen != Seen::Missing);
    let owns = seen.each_ref().map(|seen| match seen {
        Seen::Journal(superblock) => Some(superblock.members.own),
        _ => None,
    });
    let Some(choice) = choose(seen, drawn, is_on_record, accept_loss)? else { return Ok(None) };
    let expected = choice.superblock.size_bytes;
    for (at, half) in halves.iter().enumerate() {
        if let Some(found) = half.as_ref().map(|half| half.size_bytes).filter(|&f| f < expected) {
            return Err(on(at, RecoverError::Truncated { expected, found }));
        }
    }
    let Choice { mut superblock, counts, numbers } = choice;
    let joins = (0..MEMBERS_MAX).find(|&at| is_there[at] && !counts[at]);
    let was = superblock.members;
    let names: Vec<u64> =
        (0..MEMBERS_MAX).filter(|&at| counts[at]).filter_map(|at| owns[at]).collect();
    let is_new_list = numbers.iter().any(|&number| number != 0 && !was.has(number))
        || was.current.iter().any(|number| !numbers.contains(number));
    let late = (0..MEMBERS_MAX).find(|&at| counts[at] && sequences[at] < Some(superblock.sequence));
    let own = numbers.into_iter().find(|&number| number != 0).unwrap_or_default();
    superblock.members = Members { own, current: numbers };
    if is_new_list || joins.is_some() {
        superblock.sequence += 1;
    }
    let mut devices: [Option<&mut dyn ReadAt>; MEMBERS_MAX] = [None, None];
    for (at, half) in halves.into_iter().enumerate() {
        devices[at] = half.filter(|_| counts[at]).map(|half| half.device);
    }
    let (found, extents, lags) = walk(devices, *superblock);
    Ok(Some(Recovered { found, joins, counts, is_new_list, late, was: names, lags, extents }))
}

impl Recovered {
    /// What is to be done before [`crate::Log::resume`], in this order. It ends where the log may
    /// be resumed; after the log's first superblock is durable, the members are put on record.
    ///
    /// A device that can't be written is taken out with [`Recovered::without`], and the steps are
    /// asked for anew.
    pub fn steps(&self) -> Vec<Step> {
        // Two that count lack different batches: before one is left behind, the other has all.
        let mut steps: Vec<Step> = self.lags.iter().copied().map(Step::Copy).collect();
        let superblock = &self.found.superblock;
        let numbers = superblock.members.numbers();
        let copies = encode_for_members(superblock);
        let position = superblock.position();
        if let Some(to) = self.late {
            // Its older copy is its only one: the next superblock would be written over it.
            steps.push(Step::Write { to, position, bytes: copies[to].clone() });
        }
        if self.is_new_list || self.joins.is_some() {
            // From here on nobody believes the others, and they may be overwritten. The number
            // that is on the device counts until the new one is.
            steps.push(Step::Record([&numbers[..], &self.was[..]].concat()));
            for (to, bytes) in copies.into_iter().enumerate() {
                if targets_of(&superblock.members)[to] {
                    steps.push(Step::Write { to, position, bytes });
                }
            }
        }
        for at in self.joins.into_iter().flat_map(|to| [(to, 0), (to, SUPERBLOCK_BYTES as u64)]) {
            // What is half copied must not look like a log, nor like something foreign.
            let (to, position) = at;
            steps.push(Step::Write { to, position, bytes: Superblock::unfinished() });
        }
        let from = self.counts.iter().position(|&counts| counts).unwrap_or_default();
        if let Some(to) = self.joins.filter(|_| !self.found.records.is_empty()) {
            let copy = |&(position, len): &(u64, u64)| Step::Copy(Copy { from, to, position, len });
            steps.extend(self.extents.iter().map(copy));
        }
        steps
    }

    /// Batches that one device had lost and the other has.
    pub fn healed(&self) -> usize {
        self.lags.len()
    }

    /// The device that is written anew, by its index.
    pub const fn joins(&self) -> Option<usize> {
        self.joins
    }

    /// The devices that can be read: those that count.
    pub const fn counts(&self) -> [bool; MEMBERS_MAX] {
        self.counts
    }

    /// Goes on without a device. Returns false when no other is left.
    #[must_use]
    pub fn without(&mut self, device: usize) -> bool {
        if self.joins == Some(device) {
            self.joins = None;
            return true;
        }
        if !self.counts[1 - device] {
            return false;
        }
        self.counts[device] = false;
        self.lags.retain(|lag| lag.to != device);
        self.late = self.late.filter(|&late| late != device);
        let members = &mut self.found.superblock.members;
        self.was.retain(|&number| number != members.current[device]);
        members.current[device] = 0;
        members.own = members.current[1 - device];
        self.found.superblock.sequence += 1;
        self.is_new_list = true;
        true
    }

    /// All steps are done: a device that was written anew is a member from the next superblock on.
    pub fn joined(&mut self, drawn: [u64; MEMBERS_MAX]) {
        if let Some(device) = self.joins.take() {
            self.counts[device] = true;
            self.found.superblock.members.current[device] = drawn[device];
        }
    }
}

/// What a device shows.
fn look(half: &mut Half<'_>) -> Result<Seen, RecoverError> {
    let mut copies = [vec![0; SUPERBLOCK_BYTES], vec![0; SUPERBLOCK_BYTES]];
    let mut is_readable = true;
    for (at, copy) in copies.iter_mut().enumerate() {
        is_readable &= half.device.read_at((at * SUPERBLOCK_BYTES) as u64, copy).is_ok();
    }
    match Superblock::newest([&copies[0], &copies[1]]) {
        Ok(superblock) if superblock.kind != LogKind::Journal => {
            Err(RecoverError::Kind(superblock.kind))
        }
        Ok(superblock) => Ok(Seen::Journal(Box::new(superblock))),
        Err(_) if !is_readable => Ok(Seen::Missing),
        Err(SuperblockInvalid::Foreign) if copies.iter().flatten().all(|&byte| byte == 0) => {
            Ok(Seen::Blank)
        }
        Err(SuperblockInvalid::Checksum) => Ok(Seen::Broken),
        Err(error) => Err(RecoverError::Superblock(error)),
    }
}

/// Which of two devices count, if there is a journal on them.
fn choose(
    seen: [Seen; MEMBERS_MAX],
    drawn: [u64; MEMBERS_MAX],
    is_on_record: &dyn Fn(JournalId, u64) -> bool,
    accept_loss: bool,
) -> Result<Option<Choice>, RecoverError> {
    let checksum = Err(RecoverError::Superblock(SuperblockInvalid::Checksum));
    let (at, superblock, is_joined) = match seen {
        [Seen::Journal(a), Seen::Journal(b)] => {
            return choose_of_two([a, b], drawn, is_on_record).map(Some);
        }
        [Seen::Journal(one), other] => (0, one, other != Seen::Missing),
        [other, Seen::Journal(one)] => (1, one, other != Seen::Missing),
        [Seen::Blank, Seen::Blank] => return Ok(None),
        [Seen::Broken, _] | [_, Seen::Broken] => return checksum,
        // What the missing one holds is not known, so none is made.
        [Seen::Missing, _] | [_, Seen::Missing] => return Err(RecoverError::Missing),
    };
    let members = superblock.members;
    let mut counts = [false; MEMBERS_MAX];
    counts[at] = true;
    let is_plain = members == Members::default();
    // What it says itself is no proof: the other one may have become a member by a superblock that
    // this one failed to take.
    let is_believed = is_plain || is_on_record(superblock.journal, members.own);
    if !is_believed && !accept_loss {
        return Err(RecoverError::MayBeStale { journal: superblock.journal, device: at });
    }
    let mut numbers = [0; MEMBERS_MAX];
    if !is_plain || is_joined || at > 0 {
        // Another history begins here than the one that may go on, or have gone on, elsewhere.
        numbers[at] = drawn[at];
    }
    Ok(Some(Choice { superblock, counts, numbers }))
}

fn choose_of_two(
    pair: [Box<Superblock>; MEMBERS_MAX],
    drawn: [u64; MEMBERS_MAX],
    is_on_record: &dyn Fn(JournalId, u64) -> bool,
) -> Result<Choice, RecoverError> {
    let journals = pair.each_ref().map(|superblock| superblock.journal);
    let [journal, other] = journals;
    if journal != other {
        return Err(RecoverError::TwoJournals { journals });
    }
    let owns = pair.each_ref().map(|superblock| superblock.members.own);
    let sequences = pair.each_ref().map(|superblock| superblock.sequence);
    let lists = |at: usize| pair[at].members.has(owns[1 - at]);
    let newer = usize::from(sequences[1] > sequences[0]);
    let ahead = sequences[newer] - sequences[1 - newer];
    let is_mutual = lists(newer) && (ahead == 1 || lists(1 - newer));
    if owns.contains(&0) || owns[0] == owns[1] {
        return Err(RecoverError::Split { journal });
    }
    // Each superblock goes to both before the next is written.
    let (at, counts, numbers) = if is_mutual && ahead <= 1 {
        (newer, [true; MEMBERS_MAX], owns)
    } else {
        let is_older_named = lists(1 - newer) && ahead > 0;
        let listed = owns.map(|own| is_on_record(journal, own));
        let at = match (lists(newer) && ahead > 1 || is_older_named, listed) {
            (true, _) => newer,
            (false, [true, false]) => 0,
            (false, [false, true]) => 1,
            (false, _) => return Err(RecoverError::Split { journal }),
        };
        let only = |device: usize| device == at;
        (at, [only(0), only(1)], [0, 1].map(|device| if only(device) { drawn[device] } else { 0 }))
    };
    let [a, b] = pair;
    Ok(Choice { superblock: if at == 0 { a } else { b }, counts, numbers })
}

#[cfg(test)]
#[path = "mirror_tests.rs"]
mod tests;
