//! A log on two devices: both get every write, and a device that fails becomes stale.
//!
//! When a device fails, the log defers acknowledgements until the loss is recorded in the state
//! directory, and then in the superblock of the remaining device. So a device that both records
//! list as a member holds everything that was ever acknowledged.

use super::{BatchWrite, Log, LogBytes, LogWrite, Notification};
use forebay_format::journal::{MEMBERS_MAX, Members, Superblock};
use forebay_types::{IoError, IoResult};

/// Where it is recorded which devices are members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Membership {
    /// In the state directory and in the superblock.
    Recorded,
    /// A device became stale, and nothing records that yet.
    Unrecorded,
    /// Only the state directory records that a device became stale.
    InStateDirectory,
}

/// The state of a log's devices.
#[derive(Debug)]
pub(super) struct Mirror<W> {
    /// Why each stale device failed.
    lost: [Option<IoError>; MEMBERS_MAX],
    membership: Membership,
    /// Waiters for batches that only one device has, until the loss of the other is recorded.
    deferred: Vec<W>,
}

impl<W> Default for Mirror<W> {
    fn default() -> Self {
        let lost = [None; MEMBERS_MAX];
        Self { lost, membership: Membership::Recorded, deferred: Vec::new() }
    }
}

impl<W> Mirror<W> {
    pub(super) fn is_unrecorded(&self) -> bool {
        self.membership == Membership::Unrecorded
    }

    pub(super) const fn has_deferred(&self) -> bool {
        !self.deferred.is_empty()
    }

    /// Keeps waiters until the loss of a device is recorded.
    pub(super) fn defer(&mut self, waiters: impl IntoIterator<Item = W>) {
        assert!(self.membership != Membership::Recorded, "nothing would notify them");
        self.deferred.extend(waiters);
    }

    /// The superblock, with the current members, is durable. Returns the waiters to notify.
    pub(super) fn superblock_durable(&mut self) -> impl Iterator<Item = W> {
        assert!(!self.is_unrecorded(), "the state directory records a loss first");
        self.membership = Membership::Recorded;
        self.take_deferred()
    }

    pub(super) fn take_deferred(&mut self) -> impl Iterator<Item = W> {
        self.deferred.drain(..)
    }

    /// Panics if the state contradicts the member list.
    pub(super) fn self_check(&self, superblock: &Superblock) {
        let current = superblock.members.current;
        for (device, lost) in self.lost.iter().enumerate() {
            assert!(lost.is_none() || current[device] == 0, "stale device {device} is a member");
        }
        let has_loss = self.lost.iter().any(Option::is_some);
        assert!(has_loss || !self.is_unrecorded(), "a loss to record has a device");
        assert!(has_loss || self.deferred.is_empty(), "waiters are deferred only after a loss");
    }
}

impl<B> LogWrite<B> {
    /// Whether the write goes to the device with this index.
    pub const fn goes_to(&self, device: usize) -> bool {
        self.targets[device]
    }
}

impl<B: AsRef<[u8]>> LogWrite<B> {
    /// The bytes for the device with this index. Superblocks differ between devices.
    pub fn bytes_for(&self, device: usize) -> &[u8] {
        match &self.bytes {
            LogBytes::Batch(buffer) => &buffer.as_ref()[..self.len],
            LogBytes::Superblock(copies) => &copies[device],
        }
    }
}

/// Encodes the superblock for each member.
pub(crate) fn encode_for_members(superblock: &Superblock) -> [Vec<u8>; MEMBERS_MAX] {
    let current = superblock.members.current;
    let targets = targets_of(&superblock.members);
    std::array::from_fn(|at| {
        if !targets[at] {
            return Vec::new();
        }
        let members = Members { own: current[at], current };
        Superblock { members, ..superblock.clone() }.encode()
    })
}

/// The devices to write: the members, or the first device if the log was never mirrored.
pub(crate) fn targets_of(members: &Members) -> [bool; MEMBERS_MAX] {
    if members.current == [0; MEMBERS_MAX] {
        return [true, false];
    }
    members.current.map(|number| number != 0)
}

impl<B: AsRef<[u8]> + AsMut<[u8]>, W> Log<B, W> {
    /// Mirrors a new log on two devices with these member numbers, before its first write.
    #[must_use]
    pub fn mirrored(mut self, numbers: [u64; MEMBERS_MAX]) -> Self {
        assert!(self.usage.written_bytes == 0 && self.superblock().sequence == 0, "the log is new");
        assert!(numbers[0] != 0 && numbers[1] != 0 && numbers[0] != numbers[1], "{numbers:?}");
        self.extent.superblock_mut().members = Members { own: numbers[0], current: numbers };
        self
    }

    /// Which devices are written: the members, or the first device of a log that was never
    /// mirrored.
    pub fn devices(&self) -> [bool; MEMBERS_MAX] {
        targets_of(&self.superblock().members)
    }

    /// Why the device with this index became stale since the log was opened, if it did.
    pub const fn lost(&self, device: usize) -> Option<IoError> {
        self.mirror.lost[device]
    }

    /// The remaining members, if a device became stale and the state directory does not record it
    /// yet. The log writes nothing before [`Log::confirm_loss_recorded`].
    pub fn unrecorded_loss(&self) -> Option<Vec<u64>> {
        self.mirror.is_unrecorded().then(|| self.superblock().members.numbers())
    }

    /// Confirms that the state directory durably records the loss of a device.
    pub fn confirm_loss_recorded(&mut self) {
        if self.mirror.is_unrecorded() {
            self.mirror.membership = Membership::InStateDirectory;
        }
    }

    /// As [`Log::complete`], with a result for each device. Results of devices that were not
    /// written are ignored.
    pub fn complete_on(
        &mut self,
        write: LogWrite<B>,
        results: [IoResult; MEMBERS_MAX],
        notifications: &mut Vec<(W, Notification)>,
    ) {
        assert_eq!(write.targets, self.devices(), "members change only between writes");
        let is_target = |&device: &usize| write.targets[device];
        let mut failed = (0..MEMBERS_MAX).filter(is_target).filter_map(|device| {
            let error = results[device].err()?;
            Some((device, error))
        });
        let (first, second) = (failed.next(), failed.next());
        let is_alone = write.targets.iter().filter(|&&target| target).count() == 1;
        match (first, second) {
            (None, _) => self.complete(write, Ok(()), notifications),
            (Some((_, error)), Some(_)) => self.complete(write, Err(error), notifications),
            (Some((_, error)), None) if is_alone => self.complete(write, Err(error), notifications),
            (Some((device, error)), None) => {
                self.mark_stale(device, error);
                self.complete(write, Ok(()), notifications);
            }
        }
    }

    /// Removes the device with this index, or fails the log if there is no other. No write may be
    /// in flight.
    pub fn fail_device(
        &mut self,
        device: usize,
        error: IoError,
        notifications: &mut Vec<(W, Notification)>,
    ) {
        assert!(matches!(self.writing, BatchWrite::Nothing), "a write is in flight");
        let targets = self.devices();
        if self.failed.is_some() || !targets[device] {
            return;
        }
        if targets.iter().filter(|&&target| target).count() == 1 {
            self.fail(BatchWrite::Nothing, error, notifications);
        } else {
            self.mark_stale(device, error);
        }
    }

    fn mark_stale(&mut self, device: usize, error: IoError) {
        let members = &mut self.extent.superblock_mut().members;
        assert!(members.current[device] != 0, "device {device} is not a member");
        members.current[device] = 0;
        members.own = members.current.into_iter().find(|&number| number != 0).unwrap_or_default();
        assert!(members.own != 0, "no other member is left");
        self.mirror.lost[device] = Some(error);
        self.mirror.membership = Membership::Unrecorded;
    }

    /// Whether the state directory and the superblock list the same members, so that written
    /// records are durable. While the loss of a device is not recorded yet, acknowledgements are
    /// deferred.
    pub fn is_membership_recorded(&self) -> bool {
        self.mirror.membership == Membership::Recorded
    }
}
