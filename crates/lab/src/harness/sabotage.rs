//! Planted bugs: deliberate defects of the engine's environment.
//!
//! They prove that the simulator detects such defects. Each is a mistake that a driver of the
//! engine, or a disk, could make. Bugs inside the engine are behind its feature `sabotage`.

use crate::named::named;
use forebay_engine::{IoVerb, JournalOp, MemoryStep};

named! {
    /// A planted bug of the driver, the disk or the journal.
    "planted bug" enum Sabotage {
        /// A line is not copied to its new slot.
        SkipCopy = "skip-copy",
        /// A payload is not copied into the pool.
        SkipFill = "skip-fill",
        /// A write with FUA is sent to the disk without it.
        LoseFua = "lose-fua",
        /// A flush is answered before the disk has been asked.
        FlushEarly = "flush-early",
        /// A part that waits for an operation of another worker is not woken.
        DropRetry = "drop-retry",
        /// The pins of a reply are released before its bytes are sent.
        ReleaseEarly = "release-early",
        /// The pins of a reply are never released.
        LeakPin = "leak-pin",
        /// A read returns the data of another read in flight.
        SwapReads = "swap-reads",
        /// A write is acknowledged, but not done.
        LoseWrite = "lose-write",
        /// A write lands one sector further on.
        MisdirectWrite = "misdirect-write",
        /// A write is acknowledged, but only its first half is done.
        TearWrite = "tear-write",
        /// Zeroing is acknowledged, but not done.
        IgnoreZero = "ignore-zero",
        /// A failed read is reported as a success.
        HideReadError = "hide-read-error",
        /// A failed write is reported as a success.
        HideWriteError = "hide-write-error",
        /// A payload in the pool is written before it is complete.
        ShortPayload = "short-payload",
        /// The bytes of a multi-part read go to the wrong place of its memory.
        WrongBase = "wrong-base",
        /// An answer is delivered twice.
        AnswerTwice = "answer-twice",
        /// The journal gets no record that the disk has newer data.
        SkipForget = "skip-forget",
        /// The journal gets no record of an erase.
        SkipEraseNote = "skip-erase-note",
        /// A batch of the journal is acknowledged, but not written.
        LoseBatch = "lose-batch",
        /// A batch of the journal is acknowledged, but only its first half is written.
        TearBatch = "tear-batch",
        /// A superblock of the journal is acknowledged, but not written.
        LoseSuperblock = "lose-superblock",
        /// A flush does not wait for the journal.
        IgnoreBarrier = "ignore-barrier",
        /// A checkpoint is reported before the disk has the data.
        CheckpointEarly = "checkpoint-early",
        /// The failure mark of a journal is not written.
        SkipMark = "skip-mark",
        /// A process that takes over a journal does not record its generation.
        LoseGeneration = "lose-generation",
        /// A piece of the journal's content is not restored.
        SkipRestore = "skip-restore",
        /// Writes are halted only after the dump to the vault.
        HaltLate = "halt-late",
        /// A dirty line is missing in the dump.
        SkipVaultLine = "skip-vault-line",
        /// A volume whose journal fails after a dump is not dumped.
        DumpOnce = "dump-once",
        /// After a dump, writes are accepted before the vault is empty.
        ResumeEarly = "resume-early",
        /// The disks are not flushed when power fails.
        SkipPowerFlush = "skip-power-flush",
        /// The disks are not flushed when write-back ends because a UPS is not safe.
        SkipClosingSync = "skip-closing-sync",
        /// The vault is emptied before the disk has its content.
        EmptyVaultEarly = "empty-vault-early",
        /// The failure of one device of a mirrored journal is not recorded.
        SkipMemberRecord = "skip-member-record",
        /// A flush does not wait until the failure of one device is recorded.
        IgnoreUnrecordedLoss = "ignore-unrecorded-loss",
        /// A process that takes over a pool exchanges the numbers of volumes.
        MixUpVolumes = "mix-up-volumes",
        /// A process that takes over a pool does not record its dirty data.
        SkipRecord = "skip-record",
        /// A process that takes over a pool does not void older records of clean data.
        KeepOldRecords = "keep-old-records",
        /// Data that is lost in an adopted pool is recorded again as the disk has it.
        RecordLost = "record-lost",
        /// Data that is lost in an adopted pool is restored from records that may be older.
        RestoreOlder = "restore-older",
        /// Data that a disk has refused is not recorded again, although the checkpoint succeeds.
        SkipForward = "skip-forward",
        /// A fence also voids the records of data that a disk has refused.
        FenceAll = "fence-all",
        /// Transfers modify the same block concurrently.
        ShareBlocks = "share-blocks",
        /// A damaged line whose parity matches it counts as correct.
        TrustParity = "trust-parity",
        /// The memory of an empty slab is given back only after the shard may use it again.
        GiveBackLate = "give-back-late",
        /// The pool is sized as if no memory were reserved for the system.
        IgnoreReserve = "ignore-reserve",
        /// The pool is sized as if programs never waited for memory.
        IgnorePressure = "ignore-pressure",
        /// A smaller size of the pool is decided, but not carried out.
        KeepSize = "keep-size",
        /// The pool grows before memory has been free for long enough.
        GrowEarly = "grow-early",
    }
}

impl Sabotage {
    /// The bug that omits a memory step.
    pub(crate) const fn skipping_step(step: &MemoryStep) -> Option<Self> {
        match step {
            MemoryStep::Fill { .. } => Some(Self::SkipFill),
            MemoryStep::Copy { .. } => Some(Self::SkipCopy),
            MemoryStep::Verify { .. } => None,
        }
    }

    /// The bug that omits a record of the journal.
    pub(crate) const fn skipping_record(kind: &JournalOp) -> Option<Self> {
        match kind {
            JournalOp::Forget => Some(Self::SkipForget),
            JournalOp::Zero { .. } => Some(Self::SkipEraseNote),
            _ => None,
        }
    }

    /// The bug that acknowledges an I/O that was not done.
    pub(crate) const fn losing(verb: IoVerb) -> Option<Self> {
        match verb {
            IoVerb::Write { .. } => Some(Self::LoseWrite),
            IoVerb::Zero { .. } => Some(Self::IgnoreZero),
            _ => None,
        }
    }

    /// The bug that reports a failed I/O as a success.
    pub(crate) const fn hiding_error(verb: IoVerb) -> Option<Self> {
        match verb {
            IoVerb::Read => Some(Self::HideReadError),
            IoVerb::Write { .. } => Some(Self::HideWriteError),
            _ => None,
        }
    }
}
