//! Planted bugs, which prove that the simulator finds such defects. Without the feature `sabotage`
//! no bug can be planted, and [`Planted::is`] is constant, so the checks cost nothing.

macro_rules! bugs {
    ($($(#[$doc:meta])* $bug:ident,)*) => {
        /// A defect that a shard can be made to have.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum PlantedBug {
            $($(#[$doc])* $bug,)*
        }

        impl PlantedBug {
            /// All planted bugs.
            #[cfg(feature = "sabotage")]
            pub const ALL: [Self; [$(stringify!($bug)),*].len()] = [$(Self::$bug),*];
        }
    };
}

bugs! {
    /// A write through the cache leaves its sectors valid while it is in flight.
    KeepValidInWriteThrough,
    /// A write through the cache does not destage the dirty sectors under it first.
    SkipDestageUnderWrite,
    /// A write-back write does not wait for operations on its lines.
    IgnoreBusyInWriteBack,
    /// A write-back write changes pinned lines in place.
    OverwritePinned,
    /// A FUA write to a write-back volume is acknowledged from memory.
    AcknowledgeFuaFromMemory,
    /// A write past the cache leaves older data in the pool.
    KeepLinesInBypass,
    /// A fill marks the whole line valid, even if it read only a part.
    FillMarksTooMuch,
    /// A flush does not wait for a line that was relocated.
    ForgetMovedInFlush,
    /// A failed destage marks its lines clean.
    CleanAfterFailedDestage,
    /// A completed erase leaves its sectors valid in the pool.
    KeepValidAfterErase,
    /// The parts that wait for an operation get no answer when it fails.
    LoseWaitersOnError,
    /// A write-back write overwrites dirty sectors in place.
    OverwriteDirty,
    /// Sectors count as valid while they are still being copied into their slot.
    TrustFilling,
    /// A relocated slot is cleared at once, so recovery does not find its dirty data.
    ForgetDetached,
    /// An erase leaves its sectors valid while it is in flight.
    KeepValidInErase,
    /// A long erase leaves the lines that are not in the pool to other operations.
    ForgetErasedRange,
    /// A write does not break the seal of the line it changes.
    KeepSeal,
    /// A destage writes dirty data without verifying its seal.
    DestageUnverified,
    /// A partial change of a sealed line does not verify it first.
    ChangeUnverified,
    /// Damaged dirty sectors are read from the disk again, like clean ones.
    ForgetLostSectors,
    /// A fill reads lost sectors from the disk.
    FillLostSectors,
    /// A flush succeeds although sectors are lost.
    FlushDespiteLoss,
    /// A line is verified with the parity of another line.
    WrongParityPlace,
    /// A write changes a line of a closed epoch in place.
    ChangeClosedEpoch,
    /// A write or erase past the pool does not wait for earlier epochs.
    PassEpochs,
    /// An epoch is destaged together with the next one.
    MergeEpochs,
    /// A held-back write is answered when the write that it waits for completes.
    AnswerHeldBack,
    /// When a gathered I/O fails, only the first of its writes fails.
    FailOnlyFirstGathered,
    /// A write that the UPS does not cover is acknowledged from the disk's volatile cache.
    AcknowledgeFromDiskCache,
    /// A slab is given back although dirty lines are in it.
    GiveBackDirty,
    /// A shrink drops the clean lines of pinned ranges.
    DropRetained,
    /// A write is acknowledged from memory beyond the dirty limit.
    PassDirtyLimit,
    /// A read of a held-out region takes dirty sectors from the disk.
    IgnoreDirtyInHoldOut,
    /// Lines that a write to a frozen volume brought into the pool stay there.
    KeepBuffered,
    /// A volume loses guaranteed lines to others.
    EvictGuaranteed,
    /// A volume gets more lines than its largest share.
    PassShareMax,
    /// A shrink drops guaranteed lines.
    DropGuaranteed,
}

/// The planted bug of a shard, if any.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Planted {
    #[cfg(feature = "sabotage")]
    bug: Option<PlantedBug>,
}

impl Planted {
    #[cfg(feature = "sabotage")]
    pub(crate) const fn of(bug: PlantedBug) -> Self {
        Self { bug: Some(bug) }
    }

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
