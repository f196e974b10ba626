//! Tests of the rules by which the memory for the cache is chosen.

use super::*;
use crate::GroupLimit;
use proptest::prelude::*;

const MIB: u64 = 1 << 20;
const AUTO: MemoryReserve = MemoryReserve::Auto;

fn machine(total_bytes: u64, available_bytes: u64) -> MemInfo {
    MemInfo::of_machine(total_bytes, available_bytes)
}

/// A machine with 32 GiB, and a control group of `limit_mib` of which `used_mib` are in use.
fn group(limit_mib: u64, used_mib: u64) -> MemInfo {
    let group = GroupLimit { name: "/user.slice/x".into(), bytes: limit_mib * MIB };
    machine(32 << 30, 16 << 30).limited(&group, used_mib * MIB)
}

/// Settings without bounds of `auto`.
fn settings(memory: MemorySetting, reserve: MemoryReserve) -> MemorySettings {
    MemorySettings { memory, min: MemorySetting::Auto, max: MemorySetting::Auto, reserve }
}

/// Resolves an explicit size without a kept pool.
fn explicit(machine: &MemInfo, mib: u64, reserve: MemoryReserve) -> Result<u64, MemoryError> {
    let setting = MemorySetting::Bytes(mib * MIB);
    let choice = machine.resolve(&settings(setting, reserve), KeptMemory::default())?;
    let sizes = (choice.start_bytes, choice.bytes, choice.overrun);
    assert_eq!(sizes, (mib * MIB, mib * MIB, None));
    Ok(choice.bytes)
}

fn refusal<T: fmt::Debug>(result: Result<T, MemoryError>) -> String {
    result.unwrap_err().explained()
}

#[test]
fn auto_is_an_eighth_of_the_available_memory() {
    assert_eq!(machine(32 << 30, 16 << 30).auto_bytes(AUTO), Ok(2 << 30));
    assert_eq!(machine(1 << 30, 800 * MIB).auto_bytes(AUTO), Ok(100 * MIB));
    assert_eq!(group(4096, 1024).auto_bytes(AUTO), Ok(384 * MIB));
}

#[test]
fn auto_is_at_least_64_mib_if_the_system_keeps_its_reserve() {
    let auto = |mib: u64| machine(600 * MIB, mib * MIB).auto_bytes(AUTO);
    assert_eq!(auto(570), Ok(70 * MIB), "an eighth");
    assert_eq!(auto(550), Ok(50 * MIB));
    assert_eq!(auto(532), Ok(32 * MIB));
    assert_eq!(
        refusal(machine(600 * MIB, 532 * MIB - 1).auto_bytes(AUTO)),
        "too little memory is free: 531MiB available, of which 500MiB are reserved for the \
         system: free some, or set memory-reserve to 499MiB"
    );
    assert_eq!(
        refusal(group(2048, 1748).auto_bytes(AUTO)),
        "too little memory is free: 300MiB available (the control group /user.slice/x allows \
         2GiB), of which 500MiB are reserved for the system: raise the limit, or set \
         memory-reserve to 268MiB"
    );
    assert!(refusal(machine(1 << 30, 31 * MIB).auto_bytes(AUTO)).ends_with("system: free some"));
}

#[test]
fn auto_keeps_the_reserve_that_is_set() {
    let machine = machine(1 << 30, 300 * MIB);
    assert_eq!(machine.auto_bytes(MemoryReserve::Bytes(200 * MIB)), Ok(64 * MIB));
    assert_eq!(machine.auto_bytes(MemoryReserve::Bytes(268 * MIB)), Ok(32 * MIB));
    assert!(machine.auto_bytes(MemoryReserve::Bytes(269 * MIB)).is_err());
    assert_eq!(machine.auto_bytes(MemoryReserve::Bytes(0)), Ok(64 * MIB));
}

#[test]
fn a_machine_or_container_below_512_mib_is_refused_without_an_explicit_size() {
    let small = machine(511 * MIB, 480 * MIB);
    let auto = |machine: &MemInfo, reserve| {
        machine.resolve(&settings(MemorySetting::Auto, reserve), KeptMemory::default())
    };
    assert_eq!(
        refusal(auto(&small, AUTO)),
        "the machine has 511MiB of memory, less than the 512MiB that memory=auto requires: use a \
         larger machine, or set memory to 32MiB"
    );
    assert!(auto(&small, MemoryReserve::Bytes(0)).is_err(), "whatever the reserve");
    assert_eq!(
        refusal(auto(&group(300, 0), AUTO)),
        "the control group /user.slice/x allows 300MiB of memory, less than the 512MiB that \
         memory=auto requires: raise the limit, or set memory to 32MiB"
    );
    assert_eq!(explicit(&small, 32, AUTO), Ok(32 * MIB));
    assert_eq!(explicit(&group(300, 0), 225, AUTO), Ok(225 * MIB), "three quarters of a container");
}

#[test]
fn an_explicit_size_leaves_the_reserve() {
    let large = machine(32 << 30, 16 << 30);
    assert_eq!(explicit(&large, 16384 - 500, AUTO), Ok((16384 - 500) * MIB));
    assert_eq!(
        refusal(explicit(&large, 16384 - 499, AUTO)),
        "memory 15885MiB leaves 499MiB of the 16GiB available, less than the 500MiB that are \
         reserved for the system: set memory to 15884MiB or memory-reserve to 499MiB"
    );
    assert_eq!(
        refusal(explicit(&group(900, 0), 800, AUTO)),
        "memory 800MiB leaves 100MiB of the 900MiB available (the control group /user.slice/x \
         allows 900MiB), less than the 225MiB that are reserved for the system: set memory to \
         675MiB or memory-reserve to 100MiB"
    );
    // What a remedy names is accepted.
    assert!(explicit(&group(900, 0), 675, AUTO).is_ok());
    assert!(explicit(&group(900, 0), 800, MemoryReserve::Bytes(100 * MIB)).is_ok());
    assert!(explicit(&large, 16384, MemoryReserve::Bytes(0)).is_ok());
}

#[test]
fn an_explicit_size_that_is_not_available_is_refused_whatever_the_reserve() {
    let small = machine(511 * MIB, 457 * MIB);
    assert_eq!(
        refusal(explicit(&small, 512, MemoryReserve::Bytes(0))),
        "memory 512MiB exceeds the 457MiB available: set memory to 228MiB"
    );
    assert_eq!(
        refusal(explicit(&group(900, 400), 512, MemoryReserve::Bytes(490 * MIB))),
        "memory 512MiB exceeds the 500MiB available (the control group /user.slice/x allows \
         900MiB): free some memory"
    );
}

#[test]
fn the_reserve_beside_an_explicit_size_is_at_most_half_of_a_small_machine() {
    for (total_mib, reserve_mib) in [(0, 0), (256, 128), (999, 499), (1000, 500), (4096, 500)] {
        let machine = machine(total_mib * MIB, 0);
        assert_eq!(AUTO.beside_explicit(&machine), reserve_mib * MIB, "{total_mib}");
    }
    assert_eq!(MemoryReserve::Bytes(7).beside_explicit(&machine(0, 0)), 7);
}

#[test]
fn the_reserve_in_a_control_group_is_a_quarter_of_its_limit() {
    for (limit_mib, reserve_mib) in [(512, 128), (650, 162), (2000, 500), (8192, 500)] {
        let group = group(limit_mib, 100);
        assert_eq!(AUTO.beside_auto(&group), reserve_mib * MIB, "{limit_mib}");
        assert_eq!(AUTO.beside_explicit(&group), reserve_mib * MIB, "{limit_mib}");
    }
    assert_eq!(MemoryReserve::Bytes(7).beside_auto(&group(650, 0)), 7);
    // The machine keeps its own reserve: 100 MiB are beyond the limit of the group.
    let limit = GroupLimit { name: "/x".into(), bytes: 650 * MIB };
    let busy = machine(32 << 30, 750 * MIB).limited(&limit, 0);
    assert_eq!(AUTO.beside_auto(&busy), 400 * MIB);
    // It has less than the group.
    let full = machine(32 << 30, 600 * MIB).limited(&limit, 0);
    assert_eq!(AUTO.beside_auto(&full), RESERVE_BYTES);
}

/// A kept pool that keeps the size of its creation.
fn kept(used_bytes: u64, limit_bytes: Option<u64>) -> KeptMemory {
    KeptMemory { used_bytes, limit_bytes, now_bytes: limit_bytes, start_bytes: limit_bytes }
}

#[test]
fn a_server_may_grow_by_what_the_system_can_spare() {
    let machine = machine(8 << 30, 1000 * MIB);
    let grow = |mib: u64, used_mib| machine.check_growth(mib * MIB, AUTO, used_mib * MIB);
    assert_eq!(grow(500, 0), Ok(()));
    assert_eq!(grow(700, 200), Ok(()), "what it occupies counts as available");
    assert_eq!(
        grow(701, 200).unwrap_err().explained(),
        "memory 701MiB leaves 499MiB of the 1200MiB available, less than the 500MiB that are \
         reserved for the system: set memory to 700MiB or memory-reserve to 499MiB"
    );
}

#[test]
fn auto_keeps_a_kept_pool_that_was_set_to_a_size_that_fits() {
    let machine = machine(8 << 30, 600 * MIB);
    let (now_bytes, start_bytes) = (Some(512 * MIB), Some(512 * MIB));
    let shrunk = KeptMemory { now_bytes, start_bytes, ..kept(500 * MIB, Some(2 << 30)) };
    let auto = |kept| machine.resolve(&settings(MemorySetting::Auto, AUTO), kept).unwrap();
    assert_eq!(
        auto(shrunk),
        MemoryChoice { start_bytes: 512 * MIB, bytes: 2 << 30, overrun: None }
    );
    let whole = KeptMemory { now_bytes: shrunk.limit_bytes, ..shrunk };
    assert_ne!(auto(whole).bytes, 2 << 30);
    assert_eq!(auto(KeptMemory { start_bytes: None, ..shrunk }).start_bytes, 2 << 30, "unknown");
}

#[test]
fn the_memory_of_a_kept_pool_counts_as_available() {
    let full = machine(32 << 30, 10 << 30);
    let kept = kept(19 << 30, Some(20 << 30));
    let twenty = MemorySetting::Bytes(20 << 30);
    let resolved = full.resolve(&settings(twenty, AUTO), kept).unwrap();
    assert_eq!(resolved, MemoryChoice { start_bytes: 20 << 30, bytes: 20 << 30, overrun: None });
    assert!(explicit(&full, 20 << 10, AUTO).is_err(), "it does not without the pool");
    let error = full.resolve(&settings(MemorySetting::Bytes(30 << 30), AUTO), kept).unwrap_err();
    assert!(matches!(error, MemoryError::NotAvailable { .. }), "{error}");
    assert!(error.to_string().contains("exceeds the 29GiB available"), "{error}");
    // The pool is charged to another group than the one that limits this process.
    let group = GroupLimit { name: "/x".into(), bytes: 8 << 30 };
    let limited = full.limited(&group, 1 << 30);
    assert!(limited.resolve(&settings(MemorySetting::Bytes(21 << 30), AUTO), kept).is_err());
}

#[test]
fn a_kept_pool_is_never_refused() {
    // It was started by a version without a reserve, or other programs have grown.
    let tight = machine(8 << 30, 100 * MIB);
    for (used_bytes, limit_bytes) in [(5 << 30, Some(6 << 30)), (7 << 30, Some(7 << 30))] {
        let kept = kept(used_bytes, limit_bytes);
        let setting = MemorySetting::Bytes(limit_bytes.unwrap());
        let choice = tight.resolve(&settings(setting, AUTO), kept).unwrap();
        assert_eq!(Some(choice.bytes), limit_bytes);
        assert!(choice.overrun.is_some(), "it is worth a warning");
    }
    // Before an upgrade, only the memory of the server is known.
    let server = kept(7 << 30, None);
    let choice = tight.resolve(&settings(MemorySetting::Bytes(7 << 30), AUTO), server).unwrap();
    assert!(matches!(choice.overrun, Some(MemoryError::NoReserve { .. })), "{choice:?}");
    // `auto` finds nothing to spare.
    let kept = kept(40 * MIB, Some(64 * MIB));
    for machine in [machine(400 * MIB, 300 * MIB), machine(4 << 30, 100 * MIB)] {
        let choice = machine.resolve(&settings(MemorySetting::Auto, AUTO), kept).unwrap();
        assert!(choice.bytes == 64 * MIB && choice.overrun.is_some(), "{choice:?}");
        let unknown = KeptMemory { limit_bytes: None, ..kept };
        let choice = machine.resolve(&settings(MemorySetting::Auto, AUTO), unknown).unwrap();
        assert!(choice.bytes == 40 * MIB && choice.overrun.is_some(), "{choice:?}");
    }
}

#[test]
fn auto_keeps_the_size_of_a_kept_pool_that_leaves_the_system_its_reserve() {
    let kept = |mib: u64| kept(mib * MIB, Some(mib * MIB));
    let auto = |available_bytes, kept| {
        let machine = machine(32 << 30, available_bytes);
        machine.resolve(&settings(MemorySetting::Auto, AUTO), kept).map(|choice| choice.start_bytes)
    };
    for available_bytes in [1 << 30, 8 << 30, 28 << 30] {
        assert_eq!(auto(available_bytes, kept(2048)), Ok(2 << 30), "{available_bytes}");
    }
    // Other programs have taken the memory, beside which the pool is too large.
    let in_use = KeptMemory { used_bytes: 100 * MIB, ..kept(4096) };
    assert_eq!(auto(2 << 30, in_use), machine(32 << 30, (2 << 30) + 100 * MIB).auto_bytes(AUTO));
    let unknown = KeptMemory { limit_bytes: None, ..kept(2048) };
    assert_eq!(auto(14 << 30, unknown), Ok(2 << 30), "an eighth");
}

#[test]
fn a_reserve_is_auto_or_a_size() {
    for text in ["auto", "0B", "500MiB", "1GiB"] {
        let reserve: MemoryReserve = text.parse().unwrap();
        assert_eq!(reserve.to_string(), text);
    }
    assert_eq!("0".parse(), Ok(MemoryReserve::Bytes(0)));
    assert_eq!(
        "much".parse::<MemoryReserve>().unwrap_err().explained(),
        "invalid memory reserve 'much': write auto, or a size like 500MiB, or 0"
    );
}

#[test]
fn the_memory_is_not_below_its_minimum() {
    let change = |words: &[&str]| ServerChange::parse(words.iter().copied()).unwrap();
    let auto = MemorySetting::Auto;
    let before = settings(auto, AUTO);
    let after = before.with(&change(&["memory=100MiB", "memory-min=100MiB"])).unwrap();
    assert_eq!(before.change_to(&after), change(&["memory=100MiB", "memory-min=100MiB"]));
    assert_eq!(after.with(&after.change_to(&before)), Ok(before));
    for words in [&["memory=99MiB"], &["memory-min=101MiB"]] {
        let refused = after.with(&change(words)).unwrap_err();
        assert_eq!(refused.mistake(), Mistake::Limit);
        assert!(refused.explained().contains("MiB is less than the "), "{refused}");
    }
    let free = after.with(&change(&["memory=auto", "memory-min=101MiB"])).unwrap();
    let refused = free.with(&change(&["memory-max=100MiB"])).unwrap_err().explained();
    let expected = "memory-max 100MiB is less than the 101MiB of memory-min: set memory-max to \
                    101MiB or memory-min to 100MiB";
    assert_eq!(refused, expected);
    let machine = machine(400 * MIB, 0);
    assert_eq!(after.reserve_bytes(&machine), 200 * MIB);
    assert_eq!(before.reserve_bytes(&machine), RESERVE_BYTES);
}

#[test]
fn auto_begins_with_an_eighth_and_takes_half_at_most() {
    let range = |machine: &MemInfo, words: &[&str]| {
        let change = ServerChange::parse(words.iter().copied()).unwrap();
        let settings = settings(MemorySetting::Auto, AUTO).with(&change).unwrap();
        let (start_bytes, most_bytes) = machine.auto_range(&settings).unwrap();
        (start_bytes / MIB, most_bytes / MIB)
    };
    let large = machine(32 << 30, 16 << 30);
    assert_eq!(range(&large, &[]), (2048, 8192));
    assert_eq!(range(&large, &["memory-max=12GiB"]), (2048, 12 << 10));
    assert_eq!(range(&large, &["memory-max=20GiB"]), (2048, 16_384 - 500), "the reserve");
    assert_eq!(range(&large, &["memory-max=1GiB"]), (1024, 1024));
    assert_eq!(range(&large, &["memory-min=3GiB"]), (3072, 8192));
    assert_eq!(range(&large, &["memory-min=5GiB"]), (5120, 5120), "less than twice as much");
    assert_eq!(range(&group(2048, 0), &[]), (256, 1024));
    assert_eq!(range(&group(650, 16), &[]), (79, 317));
    assert_eq!(range(&group(700, 450), &[]), (64, 64));
    assert_eq!(range(&group(1024, 300), &["memory-max=100MiB"]), (90, 100));
}

proptest! {
    #[test]
    fn auto_never_takes_the_systems_reserve(total: u64, available: u64) {
        if let Ok(bytes) = machine(total, available).auto_bytes(AUTO) {
            prop_assert!(bytes >= limits::MEMORY_BYTES_MIN);
            prop_assert!(available - bytes >= RESERVE_BYTES);
            prop_assert!(bytes <= (available / 8).max(AUTO_BYTES_MIN));
        }
    }

    #[test]
    fn an_explicit_size_never_takes_the_systems_reserve(
        total: u64,
        available: u64,
        bytes: u64,
        reserve in prop::option::of(any::<u64>()),
    ) {
        let reserve = reserve.map_or(AUTO, MemoryReserve::Bytes);
        let setting = MemorySetting::Bytes(bytes);
        let settings = settings(setting, reserve);
        let choice = machine(total, available).resolve(&settings, KeptMemory::default());
        if choice.is_ok() {
            prop_assert!(available - bytes >= reserve.beside_explicit(&machine(total, available)));
        }
    }

    #[test]
    fn a_kept_pool_of_the_configured_size_is_never_refused(
        total: u64,
        available: u64,
        used_bytes: u64,
        bytes: u64,
        is_auto: bool,
    ) {
        let kept = kept(used_bytes, Some(bytes));
        let setting = if is_auto { MemorySetting::Auto } else { MemorySetting::Bytes(bytes) };
        prop_assert!(machine(total, available).resolve(&settings(setting, AUTO), kept).is_ok());
    }
}
