//! Recovery of a log on two devices: which of them are in sync, and which batches each one lacks.
//!
//! A device is **in sync** if the newest superblock lists it as a member. The log extends as far as
//! any in-sync device has it, and a batch that is damaged on one device is read from the other. A
//! device that is not in sync is stale: it is overwritten, and becomes a member again under a new
//! number.
//!
//! If only one device is present, it may be older than the missing one. It is accepted only if the
//! state directory's member record lists it: [`crate::Log`] has that record updated before it
//! acknowledges anything that only one device has. A single device continues under a new number, so
//! that no earlier member list covers what it writes from then on.
//!
//! The caller carries out [`RecoveredLog::steps`] in order, and may crash between any two of them.

use crate::log::{encode_for_members, targets_of};
use crate::recover::{CopyRange, Found, ReadAt, RecoverError, walk};
use forebay_format::journal::{
    JournalId, LogKind, MEMBERS_MAX, Members, SUPERBLOCK_BYTES, Superblock, SuperblockInvalid,
};

/// A device that may hold a log.
pub struct MirrorDevice<'a> {
    /// The device.
    pub device: &'a mut dyn ReadAt,
    /// Its size in bytes.
    pub size_bytes: u64,
}

/// The content of a device's superblock area.
#[derive(Clone, Debug, PartialEq, Eq)]
enum SuperblockSeen {
    /// The device is missing or unreadable.
    Missing,
    /// Zeroes: a new device.
    Blank,
    /// A damaged superblock; the content of the device is unknown.
    Damaged,
    Journal(Box<Superblock>),
}

/// The outcome of comparing the superblocks.
#[derive(Clone, Debug, PartialEq, Eq)]
struct MirrorChoice {
    /// The newest superblock.
    superblock: Box<Superblock>,
    in_sync: [bool; MEMBERS_MAX],
    /// The new member numbers; all zero for a journal that was never mirrored.
    numbers: [u64; MEMBERS_MAX],
}

/// A log recovered from two devices.
#[derive(Debug)]
pub struct RecoveredLog {
    /// The content of the log. The members in its superblock are the in-sync devices.
    pub found: Found,
    /// The index of the device to rebuild, which then becomes a member.
    rebuild_target: Option<usize>,
    in_sync: [bool; MEMBERS_MAX],
    /// Whether the member list in `found` differs from the one on the devices.
    has_new_list: bool,
    /// The numbers that the in-sync devices have in their superblocks.
    old_numbers: Vec<u64>,
    /// The index of an in-sync device with an older superblock.
    late: Option<usize>,
    /// Batches that an in-sync device lacks.
    lags: Vec<CopyRange>,
    /// Positions and lengths of the log on the devices, in order.
    extents: Vec<(u64, u64)>,
}

/// A step to carry out before the log is used. Each must be durable before the next one begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MirrorStep {
    /// Record in the state directory that these members hold everything.
    Record(Vec<u64>),
    /// Write a superblock.
    Write {
        /// The index of the device.
        to: usize,
        /// Position in bytes.
        position: u64,
        /// The superblock.
        bytes: Vec<u8>,
    },
    /// Copy a part of the log.
    Copy(CopyRange),
}

/// Recovers a journal from two devices.
///
/// `drawn` are unused member numbers. `is_on_record` returns whether the state directory lists a
/// member as holding everything. With `accept_loss` a single device is accepted without such a
/// record.
///
/// Returns `Ok(None)` if both devices are present and blank, so that a journal may be created.
///
/// # Errors
/// If no device is reliable, or the devices do not belong together.
pub fn recover_mirrored(
    mut candidates: [Option<MirrorDevice<'_>>; MEMBERS_MAX],
    drawn: [u64; MEMBERS_MAX],
    is_on_record: &dyn Fn(JournalId, u64) -> bool,
    accept_loss: bool,
) -> Result<Option<RecoveredLog>, RecoverError> {
    let mut seen = [SuperblockSeen::Missing, SuperblockSeen::Missing];
    let on = |device, error| RecoverError::On { device, error: Box::new(error) };
    for (at, (seen, candidate)) in seen.iter_mut().zip(&mut candidates).enumerate() {
        let read = candidate.as_mut().map_or(Ok(SuperblockSeen::Missing), read_superblock);
        *seen = read.map_err(|error| on(at, error))?;
    }
    let sequences = seen.each_ref().map(|seen| match seen {
        SuperblockSeen::Journal(superblock) => Some(superblock.sequence),
        _ => None,
    });
    let is_present = seen.each_ref().map(|seen| *seen != SuperblockSeen::Missing);
    let owns = seen.each_ref().map(|seen| match seen {
        SuperblockSeen::Journal(superblock) => Some(superblock.members.own),
        _ => None,
    });
    let Some(choice) = choose(seen, drawn, is_on_record, accept_loss)? else { return Ok(None) };
    let expected = choice.superblock.size_bytes;
    for (at, candidate) in candidates.iter().enumerate() {
        let found = candidate.as_ref().map(|candidate| candidate.size_bytes);
        if let Some(found) = found.filter(|&found| found < expected) {
            return Err(on(at, RecoverError::Truncated { expected, found }));
        }
    }
    let MirrorChoice { mut superblock, in_sync, numbers } = choice;
    assert!(in_sync.contains(&true), "the chosen superblock is on an in-sync device");
    let are_members = (0..MEMBERS_MAX).all(|at| in_sync[at] || numbers[at] == 0);
    assert!(are_members, "only in-sync devices are members: {in_sync:?}, {numbers:?}");
    let rebuild_target = (0..MEMBERS_MAX).find(|&at| is_present[at] && !in_sync[at]);
    let old_members = superblock.members;
    let old_numbers: Vec<u64> =
        (0..MEMBERS_MAX).filter(|&at| in_sync[at]).filter_map(|at| owns[at]).collect();
    let has_new_list = numbers.iter().any(|&number| number != 0 && !old_members.has(number))
        || old_members.current.iter().any(|number| !numbers.contains(number));
    let late =
        (0..MEMBERS_MAX).find(|&at| in_sync[at] && sequences[at] < Some(superblock.sequence));
    let own = numbers.into_iter().find(|&number| number != 0).unwrap_or_default();
    superblock.members = Members { own, current: numbers };
    if has_new_list || rebuild_target.is_some() {
        superblock.sequence += 1;
    }
    let mut devices: [Option<&mut dyn ReadAt>; MEMBERS_MAX] = [None, None];
    for (at, candidate) in candidates.into_iter().enumerate() {
        devices[at] = candidate.filter(|_| in_sync[at]).map(|candidate| candidate.device);
    }
    let (found, extents, lags) = walk(devices, *superblock);
    let is_between = |lag: &CopyRange| in_sync[lag.from] && in_sync[lag.to] && lag.to != lag.from;
    assert!(lags.iter().all(is_between), "lags are between in-sync devices");
    Ok(Some(RecoveredLog {
        found,
        rebuild_target,
        in_sync,
        has_new_list,
        late,
        old_numbers,
        lags,
        extents,
    }))
}

impl RecoveredLog {
    /// The steps to carry out, in order, before [`crate::Log::resume`]. Once the first superblock
    /// of the resumed log is durable, the caller records the members in the state directory.
    ///
    /// If a device cannot be written, remove it with [`RecoveredLog::remove_device`] and get the
    /// steps again.
    pub fn steps(&self) -> Vec<MirrorStep> {
        let is_outside = self.rebuild_target.is_none_or(|device| !self.in_sync[device]);
        assert!(is_outside, "an in-sync device is not rebuilt");
        // Two in-sync devices may lack different batches. Copy first, so that each one is complete
        // before the other may be dropped.
        let mut steps: Vec<MirrorStep> = self.lags.iter().copied().map(MirrorStep::Copy).collect();
        let superblock = &self.found.superblock;
        let numbers = superblock.members.numbers();
        let copies = encode_for_members(superblock);
        let position = superblock.position();
        if let Some(to) = self.late {
            // The late device has only its older copy, which the next superblock would overwrite.
            steps.push(MirrorStep::Write { to, position, bytes: copies[to].clone() });
        }
        if self.has_new_list || self.rebuild_target.is_some() {
            // After this step the other devices are stale and may be overwritten. The old numbers
            // stay valid until the new superblocks are written.
            steps.push(MirrorStep::Record([&numbers[..], &self.old_numbers[..]].concat()));
            for (to, bytes) in copies.into_iter().enumerate() {
                if targets_of(&superblock.members)[to] {
                    steps.push(MirrorStep::Write { to, position, bytes });
                }
            }
        }
        if let Some(to) = self.rebuild_target {
            // A partial copy must be mistaken neither for a valid log nor for foreign data.
            for position in [0, SUPERBLOCK_BYTES as u64] {
                steps.push(MirrorStep::Write { to, position, bytes: Superblock::unfinished() });
            }
        }
        let from = self.in_sync.iter().position(|&in_sync| in_sync);
        let from = from.expect("one device is in sync");
        if let Some(to) = self.rebuild_target.filter(|_| !self.found.records.is_empty()) {
            let copy = |&(position, len): &(u64, u64)| {
                MirrorStep::Copy(CopyRange { from, to, position, len })
            };
            steps.extend(self.extents.iter().map(copy));
        }
        steps
    }

    /// The number of batches that one in-sync device lacks and the other has.
    pub fn lag_count(&self) -> usize {
        self.lags.len()
    }

    /// The index of the device to rebuild.
    pub const fn rebuild_target(&self) -> Option<usize> {
        self.rebuild_target
    }

    /// Which devices are in sync and may be read.
    pub const fn in_sync(&self) -> [bool; MEMBERS_MAX] {
        self.in_sync
    }

    /// Removes a device. Returns false if no other device is in sync.
    #[must_use]
    pub fn remove_device(&mut self, device: usize) -> bool {
        if self.rebuild_target == Some(device) {
            self.rebuild_target = None;
            return true;
        }
        if !self.in_sync[1 - device] {
            return false;
        }
        self.in_sync[device] = false;
        self.lags.retain(|lag| lag.to != device);
        self.late = self.late.filter(|&late| late != device);
        let members = &mut self.found.superblock.members;
        self.old_numbers.retain(|&number| number != members.current[device]);
        members.current[device] = 0;
        members.own = members.current[1 - device];
        assert!(members.own != 0, "the other device is a member");
        self.found.superblock.sequence += 1;
        self.has_new_list = true;
        true
    }

    /// Completes recovery after all steps: a rebuilt device is a member from the next superblock
    /// on.
    pub fn complete_rebuild(&mut self, drawn: [u64; MEMBERS_MAX]) {
        if let Some(device) = self.rebuild_target.take() {
            assert!(drawn[device] != 0, "member numbers are not zero");
            assert!(!self.in_sync[device], "an in-sync device is not rebuilt");
            self.in_sync[device] = true;
            self.found.superblock.members.current[device] = drawn[device];
        }
    }
}

fn read_superblock(candidate: &mut MirrorDevice<'_>) -> Result<SuperblockSeen, RecoverError> {
    let mut copies = [vec![0; SUPERBLOCK_BYTES], vec![0; SUPERBLOCK_BYTES]];
    let mut is_readable = true;
    for (at, copy) in copies.iter_mut().enumerate() {
        is_readable &= candidate.device.read_at((at * SUPERBLOCK_BYTES) as u64, copy).is_ok();
    }
    match Superblock::newest([&copies[0], &copies[1]]) {
        Ok(superblock) if superblock.kind != LogKind::Journal => {
            Err(RecoverError::Kind(superblock.kind))
        }
        Ok(superblock) => Ok(SuperblockSeen::Journal(Box::new(superblock))),
        Err(_) if !is_readable => Ok(SuperblockSeen::Missing),
        Err(SuperblockInvalid::Foreign) if copies.iter().flatten().all(|&byte| byte == 0) => {
            Ok(SuperblockSeen::Blank)
        }
        Err(SuperblockInvalid::Checksum) => Ok(SuperblockSeen::Damaged),
        Err(error) => Err(RecoverError::Superblock(error)),
    }
}

/// Chooses the newest superblock and the in-sync devices; `None` if both devices are blank.
fn choose(
    seen: [SuperblockSeen; MEMBERS_MAX],
    drawn: [u64; MEMBERS_MAX],
    is_on_record: &dyn Fn(JournalId, u64) -> bool,
    accept_loss: bool,
) -> Result<Option<MirrorChoice>, RecoverError> {
    let checksum = Err(RecoverError::Superblock(SuperblockInvalid::Checksum));
    let (at, superblock, has_other) = match seen {
        [SuperblockSeen::Journal(a), SuperblockSeen::Journal(b)] => {
            return choose_of_two([a, b], drawn, is_on_record).map(Some);
        }
        [SuperblockSeen::Journal(one), other] => (0, one, other != SuperblockSeen::Missing),
        [other, SuperblockSeen::Journal(one)] => (1, one, other != SuperblockSeen::Missing),
        [SuperblockSeen::Blank, SuperblockSeen::Blank] => return Ok(None),
        [SuperblockSeen::Damaged, _] | [_, SuperblockSeen::Damaged] => return checksum,
        // The missing device may hold a journal, so none may be created.
        [SuperblockSeen::Missing, _] | [_, SuperblockSeen::Missing] => {
            return Err(RecoverError::Missing);
        }
    };
    let members = superblock.members;
    let mut in_sync = [false; MEMBERS_MAX];
    in_sync[at] = true;
    let is_plain = members == Members::default();
    // Its own superblock does not prove that it is current: the other device may have continued
    // alone, with a superblock that was never written to this device.
    let is_trusted = is_plain || is_on_record(superblock.journal, members.own);
    if !is_trusted && !accept_loss {
        return Err(RecoverError::MayBeStale { journal: superblock.journal, device: at });
    }
    let mut numbers = [0; MEMBERS_MAX];
    if !is_plain || has_other || at > 0 {
        // Draw a new number: the other device may have continued alone, or may do so later, and its
        // member list has the old number.
        numbers[at] = drawn[at];
    }
    Ok(Some(MirrorChoice { superblock, in_sync, numbers }))
}

fn choose_of_two(
    pair: [Box<Superblock>; MEMBERS_MAX],
    drawn: [u64; MEMBERS_MAX],
    is_on_record: &dyn Fn(JournalId, u64) -> bool,
) -> Result<MirrorChoice, RecoverError> {
    let journals = pair.each_ref().map(|superblock| superblock.journal);
    let [journal, other] = journals;
    if journal != other {
        return Err(RecoverError::TwoJournals { journals });
    }
    let owns = pair.each_ref().map(|superblock| superblock.members.own);
    let sequences = pair.each_ref().map(|superblock| superblock.sequence);
    let lists_other = |at: usize| pair[at].members.has(owns[1 - at]);
    let newer = usize::from(sequences[1] > sequences[0]);
    let ahead = sequences[newer] - sequences[1 - newer];
    let is_mutual = lists_other(newer) && (ahead == 1 || lists_other(1 - newer));
    if owns.contains(&0) || owns[0] == owns[1] {
        return Err(RecoverError::Split { journal });
    }
    // Each superblock is written to both devices before the next one, so members differ by at most
    // one superblock.
    let (at, in_sync, numbers) = if is_mutual && ahead <= 1 {
        (newer, [true; MEMBERS_MAX], owns)
    } else {
        // The older device lists the newer one as a member, and the newer one is ahead.
        let is_listed_by_older = lists_other(1 - newer) && ahead > 0;
        let on_record = owns.map(|own| is_on_record(journal, own));
        let at = match (lists_other(newer) && ahead > 1 || is_listed_by_older, on_record) {
            (true, _) => newer,
            (false, [true, false]) => 0,
            (false, [false, true]) => 1,
            (false, _) => return Err(RecoverError::Split { journal }),
        };
        let only = |device: usize| device == at;
        (at, [only(0), only(1)], [0, 1].map(|device| if only(device) { drawn[device] } else { 0 }))
    };
    let [a, b] = pair;
    Ok(MirrorChoice { superblock: if at == 0 { a } else { b }, in_sync, numbers })
}

#[cfg(test)]
#[path = "mirror_tests.rs"]
mod tests;
