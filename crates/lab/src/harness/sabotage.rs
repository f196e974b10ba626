//! Planted bugs: what the world around the engine can do wrong on purpose.
//!
//! They prove that the simulator sees what it is there to see. Each is a mistake that a driver of
//! the engine, or a disk, could make; the bugs planted inside the engine itself are behind its
//! feature `sabotage`.

use crate::named::named;
use forebay_engine::{IoVerb, MemoryStep, NoteKind};

named! {
    /// A planted bug of the driver or the disk.
    "planted bug" enum Sabotage {
        /// The copy of a line to its new slot is left out.
        SkipCopy = "skip-copy",
        /// A payload is not copied into the pool.
        SkipFill = "skip-fill",
        /// A write with FUA is sent to the disk without it.
        LoseFua = "lose-fua",
        /// A flush is answered before the disk has been asked.
        FlushEarly = "flush-early",
        /// A part that another worker's operation should wake is not told.
        DropRetry = "drop-retry",
        /// The pins of a reply are given back before its bytes are sent.
        ReleaseEarly = "release-early",
        /// The pins of a reply are never given back.
        LeakPin = "leak-pin",
        /// Two reads that end together get each other's data.
        SwapReads = "swap-reads",
        /// A write is answered well and was never done.
        LoseWrite = "lose-write",
        /// A write lands one sector further on.
        MisdirectWrite = "misdirect-write",
        /// A write is answered well and only its first half was done.
        TearWrite = "tear-write",
        /// Zeroing is answered well and nothing is done.
        IgnoreZero = "ignore-zero",
        /// A read that failed is reported as one that went well.
        HideReadError = "hide-read-error",
        /// A write that failed is reported as one that went well.
        HideWriteError = "hide-write-error",
        /// A payload in the pool is written before it is whole.
        ShortPayload = "short-payload",
        /// The bytes of a multi-part read go to the wrong place of its memory.
        WrongBase = "wrong-base",
        /// An answer is delivered twice.
        AnswerTwice = "answer-twice",
        /// The journal is not told that the disk has something newer.
        SkipForget = "skip-forget",
        /// The journal is not told of an erase.
        SkipEraseNote = "skip-erase-note",
        /// A batch of the journal is answered well and was never written.
        LoseBatch = "lose-batch",
        /// A batch of the journal is answered well and only its first half was written.
        TearBatch = "tear-batch",
        /// A superblock of the journal is answered well and was never written.
        LoseSuperblock = "lose-superblock",
        /// A flush does not wait for the journal.
        IgnoreBarrier = "ignore-barrier",
        /// A checkpoint is reported before the disk has the data.
        CheckpointEarly = "checkpoint-early",
        /// The failure of a journal is put on record nowhere.
        SkipMark = "skip-mark",
        /// A process that takes a journal over does not write that down.
        LoseGeneration = "lose-generation",
        /// A piece of what the journal holds is not restored.
        SkipRestore = "skip-restore",
        /// Writes are halted only after the vault has its copy.
        HaltLate = "halt-late",
        /// A dirty line is left out of the vault.
        SkipVaultLine = "skip-vault-line",
        /// The disks are not flushed when power goes.
        SkipPowerFlush = "skip-power-flush",
        /// The disks are not flushed when write-back ends because a UPS is not safe.
        SkipClosingSync = "skip-closing-sync",
        /// The vault is emptied before the disk has what it held.
        EmptyVaultEarly = "empty-vault-early",
        /// The loss of one of a journal's two devices is put on record nowhere.
        SkipMemberRecord = "skip-member-record",
        /// A process that takes a pool over mixes up the numbers of volumes.
        MixUpVolumes = "mix-up-volumes",
        /// A process that takes a pool over does not record what is dirty in it.
        SkipRecord = "skip-record",
        /// A process that takes a pool over lets older records of what is clean in it count on.
        KeepOldRecords = "keep-old-records",
        /// What a disk does not take is not recorded once more, although the checkpoint counts.
        SkipForward = "skip-forward",
        /// The journal is told that a disk has what it did not take.
        FenceAll = "fence-all",
        /// Transfers read, change and write back one block at the same time.
        ShareBlocks = "share-blocks",
    }
}

impl Sabotage {
    /// The bug that leaves a memory step out.
    pub(crate) const fn skipping_step(step: &MemoryStep) -> Option<Self> {
        match step {
            MemoryStep::Fill { .. } => Some(Self::SkipFill),
            MemoryStep::Copy { .. } => Some(Self::SkipCopy),
            MemoryStep::Verify { .. } => None,
        }
    }

    /// The bug that keeps a note from the journal.
    pub(crate) const fn skipping_note(kind: &NoteKind) -> Option<Self> {
        match kind {
            NoteKind::Forget => Some(Self::SkipForget),
            NoteKind::Zero { .. } => Some(Self::SkipEraseNote),
            _ => None,
        }
    }

    /// The bug that answers an I/O well which was never done.
    pub(crate) const fn losing(verb: IoVerb) -> Option<Self> {
        match verb {
            IoVerb::Write { .. } => Some(Self::LoseWrite),
            IoVerb::Zero { .. } => Some(Self::IgnoreZero),
            _ => None,
        }
    }

    /// The bug that reports an I/O that failed as one that went well.
    pub(crate) const fn hiding_error(verb: IoVerb) -> Option<Self> {
        match verb {
            IoVerb::Read => Some(Self::HideReadError),
            IoVerb::Write { .. } => Some(Self::HideWriteError),
            _ => None,
        }
    }
}
