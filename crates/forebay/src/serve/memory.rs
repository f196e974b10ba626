//! The memory for the cache at the start of the daemon.

use crate::report::with_remedy;
use forebay_config::{
    Config, KeptMemory, MemInfo, MemoryChoice, MemoryError, MemoryReserve, MemorySetting,
    MemorySources,
};
use forebay_types::{Action, Remedy, Size};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;

/// The environment variable that names the folder whose `proc` and `sys` are read for the figures
/// of memory and load. Only tests set it; the default is `/`.
const ROOT_VARIABLE: &str = "FOREBAY_MEMORY_ROOT";

/// The files with the memory figures of the machine and of this process's control groups.
pub(super) fn sources() -> MemorySources {
    MemorySources::find(&root())
}

/// The folder whose `proc` and `sys` are read.
pub(super) fn root() -> PathBuf {
    std::env::var_os(ROOT_VARIABLE).map_or_else(|| PathBuf::from("/"), PathBuf::from)
}

/// The memory for the cache on this machine. A kept pool is never refused for a lack of memory; the
/// log warns instead.
///
/// # Errors
/// Fails if there is too little memory, or if its size cannot be read and none is configured.
pub(super) fn choose(config: &Config, kept: KeptMemory) -> anyhow::Result<MemoryChoice> {
    let settings = config.memory;
    let machine = match (sources().read(), settings.memory) {
        (Ok(machine), _) => machine,
        (Err(error), MemorySetting::Bytes(bytes)) => {
            tracing::warn!(%error, memory = %Size(bytes), "cannot check the memory setting");
            return Ok(MemoryChoice { start_bytes: bytes, bytes, overrun: None });
        }
        (Err(error), MemorySetting::Auto) => {
            let error =
                anyhow::Error::new(error).context("cannot read the size of the machine's memory");
            return Err(with_remedy(error, Action::set("memory", "SIZE")));
        }
    };
    let mut choice = machine.resolve(&settings, kept)?;
    let is_kept = Some(choice.bytes) == kept.limit_bytes;
    if config.vault.is_some() && config.memory.max == MemorySetting::Auto && !is_kept {
        // A vault must have space for the dirty data of the largest pool, and an existing vault was
        // made for the size at the start.
        choice.bytes = choice.start_bytes;
    }
    report(&machine, &choice);
    check_file_limit(choice.bytes)?;
    Ok(choice)
}

/// Checks that this process may have a file, that of the pool, of so many bytes.
fn check_file_limit(bytes: u64) -> anyhow::Result<()> {
    let Some(limit) = forebay_backend::file_bytes_max().filter(|&limit| limit < bytes) else {
        return Ok(());
    };
    let error = anyhow::anyhow!(
        "the cache takes up to {} in a memory file, and the limit on the size of files (ulimit -f) \
         is {}",
        Size(bytes),
        Size(limit)
    );
    let raise = "raise the limit (ulimit -f unlimited, or LimitFSIZE=infinity of the service)";
    Err(with_remedy(error, Remedy::from(raise).or(Action::set("memory", "SIZE"))))
}

fn report(machine: &MemInfo, choice: &MemoryChoice) {
    let MemInfo { total, available, .. } = machine;
    tracing::info!(
        memory = %Size(choice.start_bytes),
        most = %Size(choice.bytes),
        total_mib = total.bytes >> 20,
        available_mib = available.bytes >> 20,
        limited_by = available.group.as_ref().map(|group| &*group.name),
        "memory for the cache"
    );
    if let Some(reason) = &choice.overrun {
        tracing::warn!(
            %reason,
            "the kept pool leaves the system too little memory, continuing with it: a start \
             without a pool would be refused"
        );
    }
}

/// Checks that the running daemon may take more memory, up to `bytes` in all. Its pool occupies
/// `pool_bytes`.
///
/// # Errors
/// Fails if that would leave less than the reserve to the system.
pub(super) fn check_growth(
    bytes: u64,
    reserve: MemoryReserve,
    pool_bytes: u64,
) -> Result<(), MemoryError> {
    // Memory-backed volumes do not count towards the cache's memory.
    let private_bytes = private_bytes().saturating_sub(forebay_backend::saved_memory_bytes());
    match sources().read() {
        Ok(machine) => machine.check_growth(bytes, reserve, pool_bytes + private_bytes),
        Err(error) => {
            tracing::warn!(%error, memory = %Size(bytes), "cannot check the memory setting");
            Ok(())
        }
    }
}

/// The memory of this process outside the pool, in bytes; 0 if it is unknown.
pub(super) fn private_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let number = line.and_then(|line| line.split_whitespace().next());
    number.and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0) << 10
}

/// The memory of the pool in a file that a keeper holds.
pub(super) fn of_pool(pool: &OwnedFd) -> KeptMemory {
    let pool = pool.as_fd();
    let limits = forebay_runtime::limits_in(pool);
    KeptMemory {
        used_bytes: forebay_runtime::used_bytes_in(pool),
        limit_bytes: limits.map(|limits| limits.limit_bytes),
        now_bytes: limits.map(|limits| limits.now_bytes),
        start_bytes: limits.map(|limits| limits.start_bytes),
    }
}
