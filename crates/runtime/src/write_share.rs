//! The share of the pool for writes: the part that may hold dirty lines, as the operator set it.
//!
//! It scales the dirty limit of each shard. A share below the present dirty data drops nothing:
//! writeback reduces the dirty lines, and writers are throttled meanwhile. A share is refused if a
//! volume in write-back mode could not use it, or if the vault could not take what may become dirty
//! with it. The limit of a UPS is independent: it applies to the volumes that only a UPS protects,
//! and the lower of the two limits applies.

use crate::protect::vault::{Vault, vault_bytes_for};
use crate::shared::Shared;
use forebay_engine::{ShardConfig, limits_of_size};
use forebay_types::{Blame, Fault, LINE_BYTES, Mode, REGION_BYTES, Remedy, Size, WriteShare};
use std::sync::Arc;

/// Why a share cannot be set.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ShareError {
    /// A volume could not use it: its stripes, or parts of its requests, exceed the dirty limit.
    #[error(
        "a write share of {}% is {} per shard, less than the {} that volume '{volume}' needs",
        share.percent(), Size(*bytes), Size(*needed_bytes)
    )]
    TooSmall {
        /// The share.
        share: WriteShare,
        /// What it would be in the smallest shard.
        bytes: u64,
        /// The volume.
        volume: String,
        /// What the volume needs in each shard.
        needed_bytes: u64,
        /// The smallest sufficient share, if there is one.
        least: Option<WriteShare>,
    },
    /// The vault could not take the data that may be dirty.
    #[error(
        "vault {vault} has {}, but would need {} to take all data that could be dirty",
        Size(*bytes), Size(*needed_bytes)
    )]
    VaultTooSmall {
        /// The vault.
        vault: String,
        /// Its size.
        bytes: u64,
        /// The size that it would need.
        needed_bytes: u64,
        /// The largest share for which it is large enough.
        most: WriteShare,
    },
}

impl Fault for ShareError {
    fn remedy(&self) -> Remedy {
        match self {
            Self::TooSmall { volume, least, .. } => {
                let change = format!("set volume '{volume}' to mode=write-through first");
                match least.map(WriteShare::percent) {
                    Some(percent) => {
                        Remedy::from(format!("give writes at least {percent}%")).or(change)
                    }
                    None => Remedy::from("give the cache more memory").or(change),
                }
            }
            Self::VaultTooSmall { most, .. } => {
                let at_most = format!("give writes at most {}%", most.percent());
                Remedy::from(at_most).or("restart the server with a larger vault")
            }
        }
    }

    fn blame(&self) -> Blame {
        Blame::Operator
    }
}

/// The share for writes. Borrowed from [`crate::Runtime::write_share`].
pub struct WriteShares<'a> {
    pub(crate) shared: &'a Shared,
    pub(crate) vault: Option<Arc<Vault>>,
    /// The lines of each shard for which shares are checked; `None` for the present ones.
    pub(crate) lines: Option<usize>,
}

impl WriteShares<'_> {
    /// The share that was set; `None` for the default, two thirds.
    pub fn get(&self) -> Option<WriteShare> {
        self.shared.shards.write_share()
    }

    /// Sets the share in all shards; `None` for the default. Does not check it.
    pub fn set(&self, share: Option<WriteShare>) {
        self.shared.shards.set_write_share(share);
    }

    /// Checks whether a share may be set.
    ///
    /// # Errors
    /// It is too small for a volume in write-back mode, or too large for the vault.
    pub fn check(&self, share: Option<WriteShare>) -> Result<(), ShareError> {
        if let Some(error) = share.and_then(|share| self.shortage(share)) {
            return Err(error);
        }
        let Some(vault) = &self.vault else { return Ok(()) };
        let needed_bytes = |share| vault_bytes_for(self.dirty_bytes_max(share));
        let (bytes, needed) = (vault.size_bytes(), needed_bytes(share));
        // What is allowed now was checked when the vault was opened.
        if needed <= bytes || needed <= needed_bytes(self.get()) {
            return Ok(());
        }
        let fits = |share: &WriteShare| needed_bytes(Some(*share)) <= bytes;
        Err(ShareError::VaultTooSmall {
            vault: vault.name().to_owned(),
            bytes,
            needed_bytes: needed,
            most: WriteShare::all().take_while(fits).last().unwrap_or(WriteShare::NOTHING),
        })
    }

    /// The error if the present share is too small for a volume in write-back mode.
    pub fn current_shortage(&self) -> Option<ShareError> {
        self.get().and_then(|share| self.shortage(share))
    }

    /// The dirty limit of one shard of full size with a share, in bytes.
    pub(crate) fn shard_bytes_max(&self, share: Option<WriteShare>) -> u64 {
        let slots = self.shared.pool.shard_slots();
        let config = ShardConfig::for_slots(slots).with_share(share, slots);
        config.dirty_lines_max as u64 * LINE_BYTES
    }

    /// The dirty limit of all shards of full size with a share, in bytes.
    pub(crate) fn dirty_bytes_max(&self, share: Option<WriteShare>) -> u64 {
        self.shard_bytes_max(share) * self.shared.shards.len() as u64
    }

    /// The error for a share that is too small for a volume in write-back mode.
    fn shortage(&self, share: WriteShare) -> Option<ShareError> {
        let (volume, needed_bytes) = self.greatest_need()?;
        let bytes = self.shard_bytes(share);
        let is_enough = |share: &WriteShare| self.shard_bytes(*share) >= needed_bytes;
        (bytes < needed_bytes).then(|| ShareError::TooSmall {
            share,
            bytes,
            volume,
            needed_bytes,
            least: WriteShare::all().find(is_enough),
        })
    }

    /// The volume in write-back mode that needs most in each shard, and how much: a part of a
    /// request that exceeds the dirty limit is written through, and a wider stripe is not gathered.
    fn greatest_need(&self) -> Option<(String, u64)> {
        let mut volumes = self.shared.volumes.all();
        volumes.retain(|volume| self.shared.shards.mode(volume.id) == Some(Mode::WriteBack));
        let needs = volumes.into_iter().map(|volume| {
            let needed_bytes = volume.stripes.width().max(REGION_BYTES);
            (volume.name.clone(), needed_bytes)
        });
        needs.max_by_key(|(_, needed_bytes)| *needed_bytes)
    }

    /// The dirty limit of the smallest shard with a share, in bytes.
    fn shard_bytes(&self, share: WriteShare) -> u64 {
        let shards = self.shared.shards.each();
        let limits = shards.map(|mut shard| match self.lines {
            Some(lines) => limits_of_size(&shard, Some(share), lines),
            None => shard.quota().limits_with(Some(share)),
        });
        let lines = limits.map(|limits| limits.dirty_lines_max);
        lines.min().unwrap_or(0) as u64 * LINE_BYTES
    }

    /// Records the setting for the process that adopts the pool, in an encoding of the caller's.
    pub fn record(&self, word: u64) {
        self.shared.pool.record_share(word);
    }

    /// The recorded setting, possibly of the process whose pool was adopted; 0 if none was
    /// recorded.
    pub fn recorded(&self) -> u64 {
        self.shared.pool.recorded_share()
    }
}
