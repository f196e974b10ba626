//! Planted bugs: what the world around the engine can do wrong on purpose.
//!
//! They prove that the simulator sees what it is there to see. Each is a mistake that a driver of
//! the engine, or a disk, could make; the bugs planted inside the engine itself are behind its
//! feature `sabotage`.

/// A planted bug of the driver or the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Sabotage {
    /// The copy of a line to its new slot is left out.
    SkipCopy,
    /// A payload is not copied into the pool.
    SkipFill,
    /// A write with FUA is sent to the disk without it.
    LoseFua,
    /// A flush is answered before the disk has been asked.
    FlushEarly,
    /// A part that another worker's operation should wake is not told.
    DropRetry,
    /// The pins of a reply are given back before its bytes are sent.
    ReleaseEarly,
    /// The pins of a reply are never given back.
    LeakPin,
    /// Two reads that end together get each other's data.
    SwapReads,
    /// A write is answered well and was never done.
    LoseWrite,
    /// A write lands one sector further on.
    MisdirectWrite,
    /// A write is answered well and only its first half was done.
    TearWrite,
    /// Zeroing is answered well and nothing is done.
    IgnoreZero,
    /// A read that failed is reported as one that went well.
    HideReadError,
    /// A write that failed is reported as one that went well.
    HideWriteError,
    /// A payload in the pool is written before it is whole.
    ShortPayload,
    /// The bytes of a multi-part read go to the wrong place of its memory.
    WrongBase,
    /// An answer is delivered twice.
    AnswerTwice,
    /// The journal is not told that the disk has something newer.
    SkipForget,
    /// The journal is not told of an erase.
    SkipEraseNote,
    /// A batch of the journal is answered well and was never written.
    LoseBatch,
    /// A batch of the journal is answered well and only its first half was written.
    TearBatch,
    /// A superblock of the journal is answered well and was never written.
    LoseSuperblock,
    /// A flush does not wait for the journal.
    IgnoreBarrier,
    /// A checkpoint is reported before the disk has the data.
    CheckpointEarly,
    /// The failure of a journal is put on record nowhere.
    SkipMark,
    /// A process that takes a journal over does not write that down.
    LoseGeneration,
    /// A piece of what the journal holds is not restored.
    SkipRestore,
    /// Writes are halted only after the vault has its copy.
    HaltLate,
    /// A dirty line is left out of the vault.
    SkipVaultLine,
    /// The disks are not flushed when power goes.
    SkipPowerFlush,
    /// The disks are not flushed when write-back ends because a UPS is not safe.
    SkipClosingSync,
    /// The vault is emptied before the disk has what it held.
    EmptyVaultEarly,
    /// The loss of one of a journal's two devices is put on record nowhere.
    SkipMemberRecord,
    /// A process that takes a pool over mixes up the numbers of volumes.
    MixUpVolumes,
    /// A process that takes a pool over does not record what is dirty in it.
    SkipRecord,
    /// A process that takes a pool over lets older records of what is clean in it count on.
    KeepOldRecords,
    /// What a disk does not take is not recorded once more, although the checkpoint counts.
    SkipForward,
    /// The journal is told that a disk has what it did not take.
    FenceAll,
    /// Transfers read, change and write back one block at the same time.
    ShareBlocks,
}

impl Sabotage {
    /// All of them.
    pub const ALL: [Self; 39] = [
        Self::SkipCopy,
        Self::SkipFill,
        Self::LoseFua,
        Self::FlushEarly,
        Self::DropRetry,
        Self::ReleaseEarly,
        Self::LeakPin,
        Self::SwapReads,
        Self::LoseWrite,
        Self::MisdirectWrite,
        Self::TearWrite,
        Self::IgnoreZero,
        Self::HideReadError,
        Self::HideWriteError,
        Self::ShortPayload,
        Self::WrongBase,
        Self::AnswerTwice,
        Self::SkipForget,
        Self::SkipEraseNote,
        Self::LoseBatch,
        Self::TearBatch,
        Self::LoseSuperblock,
        Self::IgnoreBarrier,
        Self::CheckpointEarly,
        Self::SkipMark,
        Self::LoseGeneration,
        Self::SkipRestore,
        Self::HaltLate,
        Self::SkipVaultLine,
        Self::SkipPowerFlush,
        Self::SkipClosingSync,
        Self::EmptyVaultEarly,
        Self::SkipMemberRecord,
        Self::MixUpVolumes,
        Self::SkipRecord,
        Self::KeepOldRecords,
        Self::SkipForward,
        Self::FenceAll,
        Self::ShareBlocks,
    ];

    /// The word for it on a command line.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::SkipCopy => "skip-copy",
            Self::SkipFill => "skip-fill",
            Self::LoseFua => "lose-fua",
            Self::FlushEarly => "flush-early",
            Self::DropRetry => "drop-retry",
            Self::ReleaseEarly => "release-early",
            Self::LeakPin => "leak-pin",
            Self::SwapReads => "swap-reads",
            Self::LoseWrite => "lose-write",
            Self::MisdirectWrite => "misdirect-write",
            Self::TearWrite => "tear-write",
            Self::IgnoreZero => "ignore-zero",
            Self::HideReadError => "hide-read-error",
            Self::HideWriteError => "hide-write-error",
            Self::ShortPayload => "short-payload",
            Self::WrongBase => "wrong-base",
            Self::AnswerTwice => "answer-twice",
            Self::SkipForget => "skip-forget",
            Self::SkipEraseNote => "skip-erase-note",
            Self::LoseBatch => "lose-batch",
            Self::TearBatch => "tear-batch",
            Self::LoseSuperblock => "lose-superblock",
            Self::IgnoreBarrier => "ignore-barrier",
            Self::CheckpointEarly => "checkpoint-early",
            Self::SkipMark => "skip-mark",
            Self::LoseGeneration => "lose-generation",
            Self::SkipRestore => "skip-restore",
            Self::HaltLate => "halt-late",
            Self::SkipVaultLine => "skip-vault-line",
            Self::SkipPowerFlush => "skip-power-flush",
            Self::SkipClosingSync => "skip-closing-sync",
            Self::EmptyVaultEarly => "empty-vault-early",
            Self::SkipMemberRecord => "skip-member-record",
            Self::MixUpVolumes => "mix-up-volumes",
            Self::SkipRecord => "skip-record",
            Self::KeepOldRecords => "keep-old-records",
            Self::SkipForward => "skip-forward",
            Self::FenceAll => "fence-all",
            Self::ShareBlocks => "share-blocks",
        }
    }

    /// The planted bug of this name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|bug| bug.as_str() == name)
    }
}
