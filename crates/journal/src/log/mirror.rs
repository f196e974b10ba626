//! A log on two devices: both get every write, and one that fails is left behind.
//!
//! What was written on one device alone is not told to anybody before the failure of the other is
//! on record outside of the journal, and then in the superblock of the one that is left. So a
//! device that says nothing against itself, and against which nothing is on record, holds
//! everything that was ever acknowledged.

use super::{Log, LogBytes, LogWrite, Told, Writing};
use forebay_format::journal::{MEMBERS_MAX, Members, Superblock};
use forebay_types::{IoError, IoResult};

/// How the devices of a log are doing.
#[derive(Debug)]
pub(super) struct Mirror<W> {
    /// Why a device was left behind.
    lost: [Option<IoError>; MEMBERS_MAX],
    /// One was, and that is not on record yet.
    is_unrecorded: bool,
    /// Who waits for a batch that one device alone has, until that may be relied on.
    held: Vec<W>,
}

impl<W> Default for Mirror<W> {
    fn default() -> Self {
        Self { lost: [None; MEMBERS_MAX], is_unrecorded: false, held: Vec::new() }
    }
}

impl<W> Mirror<W> {
    pub(super) const fn is_unrecorded(&self) -> bool {
        self.is_unrecorded
    }

    pub(super) const fn is_holding(&self) -> bool {
        !self.held.is_empty()
    }

    pub(super) fn hold(&mut self, waiters: impl IntoIterator<Item = W>) {
        self.held.extend(waiters);
    }

    pub(super) fn release(&mut self) -> impl Iterator<Item = W> {
        self.held.drain(..)
    }
}

impl<B> LogWrite<B> {
    /// Whether the device with this index is to be written.
    pub const fn goes_to(&self, device: usize) -> bool {
        self.targets[device]
    }
}

impl<B: AsRef<[u8]>> LogWrite<B> {
    /// The bytes for the device with this index: superblocks differ.
    pub fn bytes_for(&self, device: usize) -> &[u8] {
        match &self.bytes {
            LogBytes::Batch(buffer) => &buffer.as_ref()[..self.len],
            LogBytes::Superblock(copies) => &copies[device],
        }
    }
}

/// The copies of a superblock for all members.
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

/// The devices that are written: the members, or the first where there never was a mirror.
pub(crate) fn targets_of(members: &Members) -> [bool; MEMBERS_MAX] {
    if members.current == [0; MEMBERS_MAX] {
        return [true, false];
    }
    members.current.map(|number| number != 0)
}

impl<B: AsRef<[u8]> + AsMut<[u8]>, W> Log<B, W> {
    /// Makes a new log one of two devices with these numbers, before it has written anything.
    #[must_use]
    pub fn mirrored(mut self, numbers: [u64; MEMBERS_MAX]) -> Self {
        assert!(self.usage.written_bytes == 0 && self.superblock.sequence == 0);
        self.superblock.members = Members { own: numbers[0], current: numbers };
        self
    }

    /// The devices that hold everything, by their index.
    pub fn devices(&self) -> [bool; MEMBERS_MAX] {
        targets_of(&self.superblock.members)
    }

    /// Why the device with this index was left behind since the log was opened, if so.
    pub const fn lost(&self, device: usize) -> Option<IoError> {
        self.mirror.lost[device]
    }

    /// Whether a device has been left behind and that is to be put on record, with the members
    /// that remain. Nothing is written before [`Log::loss_recorded`].
    pub fn unrecorded_loss(&self) -> Option<Vec<u64>> {
        self.mirror.is_unrecorded().then(|| self.superblock.members.numbers())
    }

    /// The loss of a device is on record outside of the journal, durably.
    pub fn loss_recorded(&mut self) {
        self.mirror.is_unrecorded = false;
    }

    /// As [`Log::complete`], where the devices have answered differently. Of a device that was not
    /// to be written the answer does not count.
    pub fn complete_on(
        &mut self,
        write: LogWrite<B>,
        results: [IoResult; MEMBERS_MAX],
        told: &mut Vec<(W, Told)>,
    ) {
        let asked = |&device: &usize| write.targets[device];
        let mut failed = (0..MEMBERS_MAX).filter(asked).filter_map(|device| {
            let error = results[device].err()?;
            Some((device, error))
        });
        let (first, second) = (failed.next(), failed.next());
        let is_alone = write.targets.iter().filter(|&&target| target).count() == 1;
        match (first, second) {
            (None, _) => self.complete(write, Ok(()), told),
            (Some((_, error)), Some(_)) => self.complete(write, Err(error), told),
            (Some((_, error)), None) if is_alone => self.complete(write, Err(error), told),
            (Some((device, error)), None) => {
                self.leave_behind(device, error);
                self.complete(write, Ok(()), told);
            }
        }
    }

    /// Does without the device with this index from now on, or fails where there is no other. To
    /// be called while nothing is on its way to a device.
    pub fn give_up(&mut self, device: usize, error: IoError, told: &mut Vec<(W, Told)>) {
        assert!(matches!(self.writing, Writing::Nothing), "a write is on its way");
        let targets = self.devices();
        if self.failed.is_some() || !targets[device] {
            return;
        }
        if targets.iter().filter(|&&target| target).count() == 1 {
            self.fail(Writing::Nothing, error, told);
        } else {
            self.leave_behind(device, error);
        }
    }

    fn leave_behind(&mut self, device: usize, error: IoError) {
        let members = &mut self.superblock.members;
        members.current[device] = 0;
        members.own = members.current.into_iter().find(|&number| number != 0).unwrap_or_default();
        self.mirror.lost[device] = Some(error);
        self.mirror.is_unrecorded = true;
        self.change_superblock();
    }

    /// A superblock is durable wherever it was to be written. If it is the one that lists those
    /// who are left, what they hold may be relied on.
    pub(super) fn superblock_written(&mut self, told: &mut Vec<(W, Told)>) {
        if self.superblock_stale == 0 {
            // DURABLE: the batch is on the device that is left, which says that it is alone.
            told.extend(self.mirror.release().map(|waiter| (waiter, Told::Durable)));
        }
    }

    /// Whether everything that was written counts: not while a device was left behind, and that is
    /// not on record everywhere.
    pub fn is_relied_upon(&self) -> bool {
        !self.must_hold()
    }

    /// Whether waiters must wait until the loss of a device is on record everywhere.
    pub(super) fn must_hold(&self) -> bool {
        self.mirror.is_unrecorded() || self.mirror.is_holding()
    }

    /// Whether what is being written is a superblock.
    pub(super) const fn writes_superblock(&self) -> bool {
        matches!(self.writing, Writing::Superblock { .. })
    }
}
