//! The memory for the cache, chosen from the memory that this process may use.
//!
//! The rules are pure functions of [`MemInfo`]. Both `auto` and an explicit size leave a reserve to
//! the system. A pool that exists already, held by a keeper, is never refused because of these
//! rules: it may hold the only copy of acknowledged writes.

use crate::{
    Bound, ConfigError, ConfigResult, MemInfo, MemorySetting, Mistake, ServerChange, words,
};
use forebay_types::{Action, Fault, Remedy, Size, limits};
use std::{fmt, str::FromStr};

/// The memory that is left to the system by default: enough for a Linux host and its services.
pub const RESERVE_BYTES: u64 = 500 << 20;
/// The smallest machine or container that `auto` accepts.
pub const MACHINE_BYTES_MIN: u64 = 512 << 20;
/// The minimum of `auto`, if that much can be spared.
pub const AUTO_BYTES_MIN: u64 = 64 << 20;
/// `auto` takes the available memory divided by this.
const AUTO_SHARE: u64 = 8;
/// `auto` grows to the available memory divided by this.
const MOST_SHARE: u64 = 2;
/// With an explicit size, a machine or container below twice [`RESERVE_BYTES`] reserves its memory
/// divided by this. Otherwise a small one could not be used at all.
const RESERVE_SHARE: u64 = 2;
/// The limit of a control group divided by this is left to other programs in it: the machine's own
/// services are elsewhere.
const GROUP_RESERVE_SHARE: u64 = 4;
/// Sizes are rounded down to whole mebibytes, for short numbers in logs and tables.
const STEP_BYTES: u64 = 1 << 20;

const fn rounded(bytes: u64) -> u64 {
    bytes / STEP_BYTES * STEP_BYTES
}

/// The memory that is left to the system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum MemoryReserve {
    /// [`RESERVE_BYTES`] of the machine; beside an explicit size, half of its memory if that is
    /// less. Of a control group that leaves less than the machine, a quarter if that is less.
    #[default]
    Auto,
    /// This many bytes.
    Bytes(u64),
}

impl MemoryReserve {
    /// The reserve beside a pool of an explicit size, in bytes.
    pub fn beside_explicit(self, machine: &MemInfo) -> u64 {
        self.of(machine, rounded(RESERVE_BYTES.min(machine.total.bytes / RESERVE_SHARE)))
    }

    /// The reserve beside a pool of a size chosen by `auto`, in bytes.
    pub fn beside_auto(self, machine: &MemInfo) -> u64 {
        self.of(machine, RESERVE_BYTES)
    }

    /// The part of the available memory to leave, if `of_machine_bytes` of the machine's are to be
    /// left.
    fn of(self, machine: &MemInfo, of_machine_bytes: u64) -> u64 {
        let available = &machine.available;
        match (self, &available.group) {
            (Self::Bytes(bytes), _) => bytes,
            (Self::Auto, None) => of_machine_bytes,
            (Self::Auto, Some(group)) => {
                let of_group = rounded(RESERVE_BYTES.min(group.bytes / GROUP_RESERVE_SHARE));
                // What the machine has beyond the group's limit is left to it in any case.
                let beyond = machine.machine_available_bytes.saturating_sub(available.bytes);
                of_group.max(of_machine_bytes.saturating_sub(beyond))
            }
        }
    }
}

impl FromStr for MemoryReserve {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "auto" {
            return Ok(Self::Auto);
        }
        let message = || format!("invalid memory reserve '{text}'");
        let remedy = || "write auto, or a size like 500MiB, or 0".to_owned();
        let size = words::size(text, message, remedy)?;
        Ok(Self::Bytes(size.bytes()))
    }
}

impl fmt::Display for MemoryReserve {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Bytes(bytes) => Size(*bytes).fmt(f),
        }
    }
}

/// The settings of the memory, all of which can change while the server runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemorySettings {
    /// Memory for the cache.
    pub memory: MemorySetting,
    /// Memory that the cache keeps while memory is short. Here, [`MemorySetting::Auto`] means the
    /// least that the server can run with.
    pub min: MemorySetting,
    /// The maximum for `memory=auto`. Here, [`MemorySetting::Auto`] means half of the memory that
    /// is available at the start.
    pub max: MemorySetting,
    /// Memory that is left to the system.
    pub reserve: MemoryReserve,
}

impl MemorySettings {
    /// Checks that the settings do not contradict one another.
    ///
    /// # Errors
    /// The memory for the cache, or its maximum, is less than its minimum.
    pub fn check(&self) -> ConfigResult<()> {
        if let (MemorySetting::Bytes(max), MemorySetting::Bytes(min)) = (self.max, self.min)
            && max < min
        {
            let (max, min) = (Size(max), Size(min));
            let message = format!("memory-max {max} is less than the {min} of memory-min");
            let remedy = Remedy::from(Action::set("memory-max", min.to_string()));
            let remedy = remedy.or(Action::set("memory-min", max.to_string()));
            return Err(ConfigError::new(Mistake::Limit, message, remedy));
        }
        match (self.memory, self.min) {
            (MemorySetting::Bytes(bytes), MemorySetting::Bytes(min)) if bytes < min => {
                let (size, min) = (Size(bytes), Size(min));
                let message = format!("memory {size} is less than the {min} of memory-min");
                let remedy = Remedy::from(Action::set("memory", min.to_string()));
                let remedy = remedy.or(Action::set("memory-min", size.to_string()));
                Err(ConfigError::new(Mistake::Limit, message, remedy))
            }
            _ => Ok(()),
        }
    }

    /// The settings after a change.
    ///
    /// # Errors
    /// As [`MemorySettings::check`].
    pub fn with(&self, change: &ServerChange) -> ConfigResult<Self> {
        let settings = Self {
            memory: change.memory.unwrap_or(self.memory),
            min: change.memory_min.unwrap_or(self.min),
            max: change.memory_max.unwrap_or(self.max),
            reserve: change.memory_reserve.unwrap_or(self.reserve),
        };
        settings.check().map(|()| settings)
    }

    /// The change from these settings to others.
    pub fn change_to(&self, new: &Self) -> ServerChange {
        ServerChange {
            memory: (self.memory != new.memory).then_some(new.memory),
            memory_min: (self.min != new.min).then_some(new.min),
            memory_max: (self.max != new.max).then_some(new.max),
            memory_reserve: (self.reserve != new.reserve).then_some(new.reserve),
            ..ServerChange::default()
        }
    }

    /// The part of the available memory that is left to the system, in bytes.
    pub fn reserve_bytes(&self, machine: &MemInfo) -> u64 {
        match self.memory {
            MemorySetting::Auto => self.reserve.beside_auto(machine),
            MemorySetting::Bytes(_) => self.reserve.beside_explicit(machine),
        }
    }
}

/// The memory of a pool that a keeper holds. The server that starts continues with it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeptMemory {
    /// The memory that the pool occupies, in bytes; zero without a pool.
    pub used_bytes: u64,
    /// The memory for the cache that the pool was created for, in bytes; `None` if that is unknown.
    pub limit_bytes: Option<u64>,
    /// The memory to which it was set while the server ran, in bytes; `None` if that is unknown.
    pub now_bytes: Option<u64>,
    /// The memory with which that server began, in bytes; `None` if that is unknown.
    pub start_bytes: Option<u64>,
}

impl KeptMemory {
    const fn is_there(self) -> bool {
        self.used_bytes > 0 || self.limit_bytes.is_some()
    }

    /// The size of the pool, as far as it is known.
    fn bytes(self) -> u64 {
        self.limit_bytes.unwrap_or(self.used_bytes).max(limits::MEMORY_BYTES_MIN)
    }
}

/// The resolved size of the memory for the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryChoice {
    /// The size at the start, in bytes.
    pub start_bytes: u64,
    /// The size up to which the cache may grow, in bytes: the same, except for `auto`.
    pub bytes: u64,
    /// Why this size would be refused if no pool existed already. For a warning.
    pub overrun: Option<MemoryError>,
}

impl MemInfo {
    /// The size that `auto` chooses beside a reserve: an eighth of the available memory, at least
    /// [`AUTO_BYTES_MIN`], without touching the reserve.
    ///
    /// # Errors
    /// There is too little memory, or too much of it is in use.
    pub fn auto_bytes(&self, reserve: MemoryReserve) -> Result<u64, MemoryError> {
        if self.total.bytes < MACHINE_BYTES_MIN {
            return Err(MemoryError::MachineTooSmall { total: self.total.clone() });
        }
        let reserve_bytes = reserve.beside_auto(self);
        let wanted = (self.available.bytes / AUTO_SHARE).max(AUTO_BYTES_MIN);
        let bytes = rounded(wanted.min(self.available.bytes.saturating_sub(reserve_bytes)));
        if bytes < limits::MEMORY_BYTES_MIN {
            return Err(MemoryError::TooMuchInUse {
                available: self.available.clone(),
                reserve_bytes,
            });
        }
        Ok(bytes)
    }

    /// The sizes between which a server with `memory=auto` chooses: at the start, and at most. The
    /// start is as [`MemInfo::auto_bytes`] says, within `settings`. With `memory-max=auto` and room
    /// for less than twice the start, the cache keeps its size.
    ///
    /// # Errors
    /// As [`MemInfo::auto_bytes`].
    pub fn auto_range(&self, settings: &MemorySettings) -> Result<(u64, u64), MemoryError> {
        let auto_bytes = self.auto_bytes(settings.reserve)?;
        let free_bytes = self.available.bytes.saturating_sub(settings.reserve.beside_auto(self));
        let free_bytes = rounded(free_bytes);
        let bound = |setting, default| match setting {
            MemorySetting::Auto => default,
            MemorySetting::Bytes(bytes) => rounded(bytes).min(free_bytes),
        };
        let start_bytes = auto_bytes.max(bound(settings.min, 0));
        let half_bytes = rounded(self.available.bytes / MOST_SHARE).min(free_bytes);
        let most_bytes = bound(settings.max, half_bytes.max(start_bytes));
        let start_bytes = start_bytes.min(most_bytes);
        match most_bytes < 2 * start_bytes && settings.max == MemorySetting::Auto {
            true => Ok((start_bytes, start_bytes)),
            false => Ok((start_bytes, most_bytes)),
        }
    }

    /// Checks that an explicit size leaves the reserve to the system.
    fn check_explicit(&self, bytes: u64, reserve: MemoryReserve) -> Result<(), MemoryError> {
        let available = self.available.clone();
        let reserve_bytes = reserve.beside_explicit(self);
        match available.bytes.checked_sub(bytes) {
            None => Err(MemoryError::NotAvailable { bytes, available, reserve_bytes }),
            Some(left_bytes) if left_bytes < reserve_bytes => {
                Err(MemoryError::NoReserve { bytes, available, reserve_bytes })
            }
            Some(_) => Ok(()),
        }
    }

    /// Checks that a running server may take more memory, up to `bytes` in all. It occupies
    /// `used_bytes` already.
    ///
    /// # Errors
    /// That would leave less than the reserve to the system.
    pub fn check_growth(
        &self,
        bytes: u64,
        reserve: MemoryReserve,
        used_bytes: u64,
    ) -> Result<(), MemoryError> {
        let kept = KeptMemory { used_bytes, ..KeptMemory::default() };
        self.beside(kept).check_explicit(bytes, reserve)
    }

    /// Counts the memory of a kept pool as available.
    fn beside(&self, kept: KeptMemory) -> Self {
        // The pool may be charged to another control group, whose limit is not this one's.
        let mut machine = self.clone();
        let bytes = self.available.bytes.saturating_add(kept.used_bytes);
        machine.available.bytes = bytes.min(self.total.bytes);
        let beyond = &mut machine.machine_available_bytes;
        *beyond = beyond.saturating_add(kept.used_bytes);
        machine
    }

    /// The sizes that the operator's settings mean on this machine. With `auto`, a kept pool keeps
    /// its size if the memory it was last set to leaves the system its reserve, because a pool of
    /// another size would begin empty.
    ///
    /// # Errors
    /// As [`MemInfo::auto_bytes`], or an explicit size does not leave the reserve. With a kept
    /// pool, only if the explicit size exceeds both the pool and the available memory.
    pub fn resolve(
        &self,
        settings: &MemorySettings,
        kept: KeptMemory,
    ) -> Result<MemoryChoice, MemoryError> {
        let (machine, reserve) = (self.beside(kept), settings.reserve);
        let range = |start_bytes, bytes| MemoryChoice { start_bytes, bytes, overrun: None };
        let fits = |bytes| range(bytes, bytes);
        match (settings.memory, kept.limit_bytes) {
            (MemorySetting::Auto, Some(bytes))
                if kept.now_bytes.unwrap_or(bytes)
                    <= machine.available.bytes.saturating_sub(reserve.beside_auto(&machine)) =>
            {
                Ok(range(kept.start_bytes.unwrap_or(bytes), bytes))
            }
            (MemorySetting::Auto, _) => match machine.auto_range(settings) {
                Err(error) if kept.is_there() => {
                    let start_bytes = kept.start_bytes.unwrap_or(kept.bytes());
                    Ok(MemoryChoice { overrun: Some(error), ..range(start_bytes, kept.bytes()) })
                }
                result => result.map(|(start_bytes, bytes)| range(start_bytes, bytes)),
            },
            (MemorySetting::Bytes(bytes), limit_bytes) => {
                let is_tolerated = |error: &MemoryError| match error {
                    MemoryError::NotAvailable { .. } => Some(bytes) <= limit_bytes,
                    _ => kept.is_there(),
                };
                match machine.check_explicit(bytes, reserve) {
                    Err(error) if is_tolerated(&error) => {
                        Ok(MemoryChoice { overrun: Some(error), ..fits(bytes) })
                    }
                    result => result.map(|()| fits(bytes)),
                }
            }
        }
    }
}

/// There is too little memory for the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MemoryError {
    /// The machine or a control group has less than [`MACHINE_BYTES_MIN`].
    MachineTooSmall {
        /// The memory.
        total: Bound,
    },
    /// Beside the reserve, less than [`limits::MEMORY_BYTES_MIN`] remains.
    TooMuchInUse {
        /// The available memory.
        available: Bound,
        reserve_bytes: u64,
    },
    /// The explicit size exceeds the available memory.
    NotAvailable {
        /// The explicit size.
        bytes: u64,
        /// The available memory.
        available: Bound,
        reserve_bytes: u64,
    },
    /// The explicit size does not leave the reserve.
    NoReserve {
        /// The explicit size.
        bytes: u64,
        /// The available memory.
        available: Bound,
        reserve_bytes: u64,
    },
}

/// An amount of available memory with the control group that limits it, if one does.
struct Available<'a>(&'a Bound);

impl fmt::Display for Available<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} available", Size(rounded(self.0.bytes)))?;
        match &self.0.group {
            Some(group) => write!(f, " ({group} allows {})", Size(rounded(group.bytes))),
            None => Ok(()),
        }
    }
}

impl fmt::Display for MemoryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::MachineTooSmall { total } => {
                match &total.group {
                    Some(group) => write!(f, "{group} allows")?,
                    None => f.write_str("the machine has")?,
                }
                let (has, needed) = (Size(rounded(total.bytes)), Size(MACHINE_BYTES_MIN));
                write!(f, " {has} of memory, less than the {needed} that memory=auto requires")
            }
            Self::TooMuchInUse { available, reserve_bytes } => write!(
                f,
                "too little memory is free: {}, of which {} are reserved for the system",
                Available(available),
                Size(*reserve_bytes)
            ),
            Self::NotAvailable { bytes, available, .. } => {
                write!(f, "memory {} exceeds the {}", Size(*bytes), Available(available))
            }
            Self::NoReserve { bytes, available, reserve_bytes } => write!(
                f,
                "memory {} leaves {} of the {}, less than the {} that are reserved for the system",
                Size(*bytes),
                Size(rounded(available.bytes.saturating_sub(*bytes))),
                Available(available),
                Size(*reserve_bytes)
            ),
        }
    }
}

impl std::error::Error for MemoryError {}

impl Fault for MemoryError {
    fn remedy(&self) -> Remedy {
        let memory = |bytes| Action::set("memory", Size(rounded(bytes)).to_string());
        let reserve = |bytes| Action::set("memory-reserve", Size(rounded(bytes)).to_string());
        let least = limits::MEMORY_BYTES_MIN;
        match self {
            Self::MachineTooSmall { total } => match total.group {
                Some(_) => Remedy::from("raise the limit").or(memory(least)),
                None => Remedy::from("use a larger machine").or(memory(least)),
            },
            Self::TooMuchInUse { available, .. } => {
                let free = Remedy::from(match available.group {
                    Some(_) => "raise the limit",
                    None => "free some",
                });
                match available.bytes.checked_sub(least) {
                    Some(left_bytes) => free.or(reserve(left_bytes)),
                    None => free,
                }
            }
            Self::NotAvailable { bytes, available, reserve_bytes }
            | Self::NoReserve { bytes, available, reserve_bytes } => {
                let most = rounded(available.bytes.saturating_sub(*reserve_bytes));
                // Not all that is free, if so much more was asked for: programs that are yet to
                // start need some. Half is what `auto` takes at most.
                let is_wild = matches!(self, Self::NotAvailable { .. }) && most / 2 >= least;
                let most = if is_wild { rounded(most / 2) } else { most };
                let left_bytes = available.bytes.checked_sub(*bytes);
                match (most >= least, left_bytes) {
                    (true, None) => memory(most).into(),
                    (true, Some(left_bytes)) => Remedy::from(memory(most)).or(reserve(left_bytes)),
                    (false, Some(left_bytes)) => {
                        Remedy::from("free some memory").or(reserve(left_bytes))
                    }
                    (false, None) => "free some memory".into(),
                }
            }
        }
    }
}

#[cfg(test)]
#[path = "memory_tests.rs"]
mod tests;
