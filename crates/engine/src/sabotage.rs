//! Bugs planted on purpose, to prove that the simulator finds them. Without the feature `sabotage`
//! none can be planted, and the questions below cost nothing: the answer is known when compiling.

/// A mistake that the engine can be told to make.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PlantedBug {
    /// Sectors stay valid while a write through them is on its way.
    KeepValidInWriteThrough,
    /// A write through a dirty line does not wait for the line to be destaged.
    SkipDestageUnderWrite,
    /// A write in write-back does not wait for operations on its lines.
    IgnoreBusyInWriteBack,
    /// A write in write-back changes lines that replies still use.
    OverwritePinned,
    /// A write with FUA in a write-back volume is acknowledged from memory.
    AcknowledgeFuaFromMemory,
    /// A write past the cache leaves the old data in the pool.
    KeepLinesInBypass,
    /// A line that is filled counts as valid to its end, whatever was read.
    FillMarksTooMuch,
    /// A flush no longer waits for a line that has moved.
    ForgetMovedInFlush,
    /// A destage that failed counts as one that went well.
    CleanAfterFailedDestage,
    /// An erase leaves its sectors valid in the pool.
    KeepValidAfterErase,
    /// Who waits for an operation is not told when it fails.
    LoseWaitersOnError,
    /// A write in write-back overwrites dirty sectors where they are.
    OverwriteDirty,
    /// What is on its way into a slot counts as there before it is.
    TrustFilling,
    /// A process that takes a pool over forgets what is in detached slots.
    ForgetDetached,
    /// An erase under way leaves its sectors valid.
    KeepValidInErase,
    /// A write leaves the seal on a line whose content it changes.
    KeepSeal,
    /// Dirty data goes to the disk without a look at its seal.
    DestageUnverified,
    /// A line is changed in part without a look at its seal.
    ChangeUnverified,
    /// Damaged sectors that were dirty are read from the disk as if they had been clean.
    ForgetLostSectors,
    /// A line of which sectors are lost is filled from the disk.
    FillLostSectors,
    /// A flush does not mind that sectors are lost.
    FlushDespiteLoss,
    /// A line is said to have the parity of its neighbour.
    WrongParityPlace,
    /// A write changes a line of an epoch that is over where it is.
    ChangeClosedEpoch,
    /// What goes past the pool does not wait for the epochs before it.
    PassEpochs,
    /// An epoch is destaged together with the one after it.
    MergeEpochs,
    /// A write that was held back is answered with the one that it waited for.
    AnswerHeldBack,
    /// Where writes failed together, only the first of them is told.
    PraiseGathered,
    /// A write that the UPS does not cover is acknowledged from the disk's volatile cache.
    AcknowledgeFromDiskCache,
}

impl PlantedBug {
    /// All of them.
    #[cfg(feature = "sabotage")]
    pub const ALL: [Self; 28] = [
        Self::KeepValidInWriteThrough,
        Self::SkipDestageUnderWrite,
        Self::IgnoreBusyInWriteBack,
        Self::OverwritePinned,
        Self::AcknowledgeFuaFromMemory,
        Self::KeepLinesInBypass,
        Self::FillMarksTooMuch,
        Self::ForgetMovedInFlush,
        Self::CleanAfterFailedDestage,
        Self::KeepValidAfterErase,
        Self::LoseWaitersOnError,
        Self::OverwriteDirty,
        Self::TrustFilling,
        Self::ForgetDetached,
        Self::KeepValidInErase,
        Self::KeepSeal,
        Self::DestageUnverified,
        Self::ChangeUnverified,
        Self::ForgetLostSectors,
        Self::FillLostSectors,
        Self::FlushDespiteLoss,
        Self::WrongParityPlace,
        Self::ChangeClosedEpoch,
        Self::PassEpochs,
        Self::MergeEpochs,
        Self::AnswerHeldBack,
        Self::PraiseGathered,
        Self::AcknowledgeFromDiskCache,
    ];
}

/// The mistake that a shard makes, if any.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Planted {
    #[cfg(feature = "sabotage")]
    bug: Option<PlantedBug>,
}

impl Planted {
    /// This one.
    #[cfg(feature = "sabotage")]
    pub(crate) const fn of(bug: PlantedBug) -> Self {
        Self { bug: Some(bug) }
    }

    /// Whether it is this one.
    #[cfg(feature = "sabotage")]
    pub(crate) fn is(self, bug: PlantedBug) -> bool {
        self.bug == Some(bug)
    }

    #[cfg(not(feature = "sabotage"))]
    #[inline(always)]
    pub(crate) const fn is(self, _: PlantedBug) -> bool {
        false
    }
}
